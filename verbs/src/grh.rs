//! The network header in front of a datagram.

use std::fmt;

use crate::Gid;

/// The 40 bytes that devices put before a datagram: a global route header, or in its place that of IPv6, or of IPv4 in the last 20 of
/// them, what comes before being undefined.
///
/// Who sent it chose what it says, within what its network lets pass: it is no proof of origin.
#[doc(alias = "ibv_grh")]
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Grh([u8; Grh::LEN as usize]);

impl Grh {
    /// Its length, which a receive must have room for before the message.
    pub const LEN: u32 = 40;

    /// Where the header of IPv4 begins.
    const IPV4: usize = 20;

    /// From the first bytes of a receive.
    pub fn from_bytes(received: &[u8]) -> Option<Grh> {
        received.first_chunk().copied().map(Grh)
    }

    /// As it came.
    pub fn as_bytes(&self) -> &[u8; Grh::LEN as usize] {
        &self.0
    }

    /// The sender's GID; an IPv4 address is mapped into one. `None` if this is neither header.
    pub fn source(&self) -> Option<Gid> {
        self.gid(12, 8)
    }

    /// The GID it was sent to, as [`source`](Self::source).
    pub fn destination(&self) -> Option<Gid> {
        self.gid(16, 24)
    }

    /// Routers that it could still have passed.
    pub fn hop_limit(&self) -> u8 {
        match self.is_ipv4() {
            true => self.0[Self::IPV4 + 8],
            false => self.0[7],
        }
    }

    /// The address at `v4` in the header of IPv4, or at `v6` in the other.
    fn gid(&self, v4: usize, v6: usize) -> Option<Gid> {
        let mut gid = [0; 16];
        if self.is_ipv4() {
            let at = Self::IPV4 + v4;
            gid[10..12].fill(0xff);
            gid[12..].copy_from_slice(&self.0[at..at + 4]);
        } else if self.version_6() {
            gid.copy_from_slice(&self.0[v6..v6 + 16]);
        } else {
            return None;
        }
        Some(Gid(gid))
    }

    fn version_6(&self) -> bool {
        self.0[0] >> 4 == 6
    }

    /// What precedes the header of IPv4 may look like one of IPv6, and the other way round: where it could be both, the checksum
    /// decides (annex A17 of the InfiniBand specification).
    fn is_ipv4(&self) -> bool {
        let header = &self.0[Self::IPV4..];
        if !self.version_6() {
            return header[0] >> 4 == 4;
        }
        header[0] == 0x45 && ones_complement(header) == 0xffff
    }
}

/// The sum of 16-bit words, carries added in; all ones for a header with its checksum (RFC 791).
fn ones_complement(bytes: &[u8]) -> u32 {
    let words = bytes.chunks_exact(2);
    let sum: u32 = words
        .map(|w| u32::from(u16::from_be_bytes([w[0], w[1]])))
        .sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    (folded & 0xffff) + (folded >> 16)
}

impl fmt::Debug for Grh {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Grh")
            .field("source", &self.source())
            .field("destination", &self.destination())
            .field("hop_limit", &self.hop_limit())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// From 192.0.2.1 to 192.0.2.2, the checksum computed by hand.
    fn ipv4() -> [u8; 20] {
        let mut header = [0; 20];
        header[..10].copy_from_slice(&[0x45, 0, 0, 60, 0, 0, 0x40, 0, 64, 17]);
        header[12..].copy_from_slice(&[192, 0, 2, 1, 192, 0, 2, 2]);
        let sum = !(ones_complement(&header) as u16);
        assert_eq!(sum, 0xb6ad);
        header[10..12].copy_from_slice(&sum.to_be_bytes());
        header
    }

    #[test]
    fn both_headers_are_told_apart() {
        let mut bytes = [0xaa; 40];
        bytes[20..].copy_from_slice(&ipv4());
        for before in [0x00, 0xaa, 0x60, 0x6f] {
            bytes[0] = before;
            let grh = Grh::from_bytes(&bytes).unwrap();
            let [from, to] = [grh.source(), grh.destination()].map(|gid| gid?.to_ipv4());
            assert_eq!(from, Some([192, 0, 2, 1].into()));
            assert_eq!((to, grh.hop_limit()), (Some([192, 0, 2, 2].into()), 64));
        }
        // An address of IPv6 that begins like a header of IPv4.
        bytes[0] = 0x60;
        bytes[7] = 3;
        bytes[30] ^= 1;
        let grh = Grh::from_bytes(&bytes).unwrap();
        assert_eq!(grh.source().unwrap().0[..], bytes[8..24]);
        assert_eq!(grh.destination().unwrap().0[..], bytes[24..40]);
        assert_eq!(grh.hop_limit(), 3);
        assert_eq!(Grh([0; 40]).source(), None);
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_header_or_none(bytes in prop::collection::vec(any::<u8>(), 0..60)) {
            let grh = Grh::from_bytes(&bytes);
            prop_assert_eq!(grh.is_some(), bytes.len() >= 40);
            if let Some(grh) = grh {
                prop_assert_eq!(grh.source().is_some(), grh.destination().is_some());
                prop_assert_eq!(&grh.as_bytes()[..], &bytes[..40]);
            }
        }
    }
}
