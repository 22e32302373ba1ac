//! What the other side must know to connect to a queue pair.

use std::fmt;

use crate::{Gid, Mtu};

/// One end of a reliable connection: what the peer needs to know, exchanged by means of the user's own.
///
/// `to_bytes` and `from_bytes` carry it over anything. To talk to programs that are not written with this crate, take the
/// fields apart and put them together with [`Endpoint::new`]; LID, queue pair number, packet sequence number and GID are what
/// they exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Endpoint {
    qpn: u32,
    psn: u32,
    gid: Gid,
    lid: u16,
    mtu: Mtu,
    rd_atomic: u8,
}

/// Bytes that are not an end point.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not an end point of a queue pair: {what}")]
pub struct BadEndpoint {
    what: &'static str,
}

const MAGIC: [u8; 4] = *b"vbE1";
const BITS_24: u32 = 0xff_ffff;

impl Endpoint {
    /// Length of [`to_bytes`](Self::to_bytes).
    pub const LEN: usize = 32;

    /// An end point from its parts.
    ///
    /// # Errors
    /// [`BadEndpoint`] when the numbers of queue pair or packet do not fit 24 bits, or the queue pair's is 0.
    pub fn new(
        qpn: u32,
        psn: u32,
        lid: u16,
        gid: Gid,
        mtu: Mtu,
        rd_atomic: u8,
    ) -> Result<Endpoint, BadEndpoint> {
        let bad = |what| Err(BadEndpoint { what });
        if qpn == 0 || qpn > BITS_24 {
            return bad("the queue pair number is not within 1 to 2^24-1");
        }
        if psn > BITS_24 {
            return bad("the packet sequence number does not fit 24 bits");
        }
        Ok(Endpoint {
            qpn,
            psn,
            gid,
            lid,
            mtu,
            rd_atomic,
        })
    }

    /// Queue pair number, 24 bits.
    pub fn qpn(&self) -> u32 {
        self.qpn
    }

    /// Packet sequence number that this end starts to send with, 24 bits.
    pub fn psn(&self) -> u32 {
        self.psn
    }

    /// GID of the port; all zeroes if it has none.
    pub fn gid(&self) -> Gid {
        self.gid
    }

    /// Local identifier of the port, 0 for Ethernet.
    pub fn lid(&self) -> u16 {
        self.lid
    }

    /// MTU of the port; the connection uses the smaller of both.
    pub fn mtu(&self) -> Mtu {
        self.mtu
    }

    /// READs and atomics that this end answers at once; the peer has at most as many outstanding.
    pub fn rd_atomic(&self) -> u8 {
        self.rd_atomic
    }

    /// 32 bytes: a mark, then queue pair number (4), packet sequence number (4), GID (16), LID (2), MTU code (1) and READ depth (1),
    /// little endian, the GID as it is.
    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        let mut out = [0; Self::LEN];
        out[..4].copy_from_slice(&MAGIC);
        out[4..8].copy_from_slice(&self.qpn.to_le_bytes());
        out[8..12].copy_from_slice(&self.psn.to_le_bytes());
        out[12..28].copy_from_slice(&self.gid.0);
        out[28..30].copy_from_slice(&self.lid.to_le_bytes());
        out[30] = self.mtu as u8;
        out[31] = self.rd_atomic;
        out
    }

    /// The reverse of [`to_bytes`](Self::to_bytes).
    ///
    /// # Errors
    /// [`BadEndpoint`] for other lengths and for bytes that no end point has.
    pub fn from_bytes(bytes: &[u8]) -> Result<Endpoint, BadEndpoint> {
        let bytes: &[u8; Self::LEN] = bytes.try_into().map_err(|_| BadEndpoint {
            what: "it has not 32 bytes",
        })?;
        if bytes[..4] != MAGIC {
            return Err(BadEndpoint {
                what: "it does not begin with the mark of this version",
            });
        }
        let word = |at: usize| {
            u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
        };
        let mut gid = [0; 16];
        gid.copy_from_slice(&bytes[12..28]);
        let mtu = Mtu::from_code(bytes[30]).ok_or(BadEndpoint {
            what: "the MTU code is not within 1 to 5",
        })?;
        Endpoint::new(
            word(4),
            word(8),
            u16::from_le_bytes([bytes[28], bytes[29]]),
            Gid(gid),
            mtu,
            bytes[31],
        )
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "queue pair {:#x} at ", self.qpn)?;
        if self.gid.is_zero() {
            write!(f, "LID {}", self.lid)
        } else {
            write!(f, "GID {}", self.gid)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn bytes_round_trip(qpn in 1u32..=BITS_24, psn in 0u32..=BITS_24, gid: [u8; 16], lid: u16, mtu in 1u8..=5, rd: u8) {
            let e = Endpoint::new(qpn, psn, lid, Gid(gid), Mtu::from_code(mtu).unwrap(), rd).unwrap();
            prop_assert_eq!(Endpoint::from_bytes(&e.to_bytes()), Ok(e));
        }

        #[test]
        fn any_bytes_are_refused_or_kept(bytes in prop::collection::vec(any::<u8>(), 0..40)) {
            if let Ok(e) = Endpoint::from_bytes(&bytes) {
                prop_assert_eq!(&e.to_bytes()[..], &bytes[..]);
            }
        }
    }

    #[test]
    fn nonsense_is_refused() {
        let good = Endpoint::new(5, 6, 7, Gid([1; 16]), Mtu::B4096, 16)
            .unwrap()
            .to_bytes();
        for (at, value) in [(0, 0), (7, 1), (11, 1), (30, 0), (30, 6)] {
            let mut bytes = good;
            bytes[at] = value;
            assert!(Endpoint::from_bytes(&bytes).is_err(), "byte {at} = {value}");
        }
        assert!(Endpoint::from_bytes(&good[..31]).is_err());
        let mut bytes = good;
        bytes[4] = 0;
        assert!(Endpoint::from_bytes(&bytes).is_err(), "queue pair 0");
    }
}
