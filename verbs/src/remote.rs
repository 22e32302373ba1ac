//! Memory of a peer, as this process may address it.

use std::ops::{Bound, RangeBounds};

use crate::RKey;

/// Peer memory that one-sided operations may name: address, length and key.
///
/// A plain description, meant to be sent: the peer's device checks every use of it against the key, so a forged or stale one
/// ends in an error completion, never in a wrong access. The bounds are checked here as well, before anything is posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RemoteRegion {
    /// First address, in the peer's address space.
    pub addr: u64,
    /// Length in bytes.
    pub len: u64,
    /// Key of the region it lies in.
    pub rkey: RKey,
}

/// A range does not lie within a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("bytes {start}..{end} do not lie within a region of {len} bytes")]
pub struct OutOfBounds {
    /// First byte asked for.
    pub start: u64,
    /// End (exclusive) asked for.
    pub end: u64,
    /// What the region has.
    pub len: u64,
}

impl OutOfBounds {
    /// `Ok` when `start..start+len` lies within `size`.
    pub(crate) fn check(start: u64, len: u64, size: u64) -> Result<(), OutOfBounds> {
        match start.checked_add(len) {
            Some(end) if end <= size => Ok(()),
            end => Err(OutOfBounds {
                start,
                end: end.unwrap_or(u64::MAX),
                len: size,
            }),
        }
    }
}

impl RemoteRegion {
    /// Length of [`to_bytes`](Self::to_bytes).
    pub const LEN: usize = 24;

    /// A part of the region, by offset from its start: `region.slice(4096..8192)?`.
    ///
    /// # Errors
    /// [`OutOfBounds`] when the range is reversed, ends behind the region or overflows.
    pub fn slice(&self, range: impl RangeBounds<u64>) -> Result<RemoteRegion, OutOfBounds> {
        let start = match range.start_bound() {
            Bound::Included(&s) => s,
            Bound::Excluded(&s) => s.saturating_add(1),
            Bound::Unbounded => 0,
        };
        let end = match range.end_bound() {
            Bound::Included(&e) => e.saturating_add(1),
            Bound::Excluded(&e) => e,
            Bound::Unbounded => self.len,
        };
        match self.addr.checked_add(start) {
            Some(addr) if start <= end && end <= self.len => Ok(RemoteRegion {
                addr,
                len: end - start,
                rkey: self.rkey,
            }),
            _ => Err(OutOfBounds {
                start,
                end,
                len: self.len,
            }),
        }
    }

    /// 24 bytes, little endian: address (8), length (8), key (4), zero (4).
    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        let mut out = [0; Self::LEN];
        out[..8].copy_from_slice(&self.addr.to_le_bytes());
        out[8..16].copy_from_slice(&self.len.to_le_bytes());
        out[16..20].copy_from_slice(&self.rkey.0.to_le_bytes());
        out
    }

    /// The reverse of [`to_bytes`](Self::to_bytes). Every input is a region; whether it exists, the peer's device decides.
    pub fn from_bytes(bytes: &[u8; Self::LEN]) -> RemoteRegion {
        let word = |at: usize| {
            let mut b = [0; 8];
            b.copy_from_slice(&bytes[at..at + 8]);
            u64::from_le_bytes(b)
        };
        RemoteRegion {
            addr: word(0),
            len: word(8),
            rkey: RKey(word(16) as u32),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const REGION: RemoteRegion = RemoteRegion {
        addr: 0x1000,
        len: 100,
        rkey: RKey(7),
    };

    #[test]
    fn slices_are_relative_and_bounded() {
        let s = REGION.slice(10..30).unwrap();
        assert_eq!((s.addr, s.len, s.rkey), (0x100a, 20, RKey(7)));
        assert_eq!(s.slice(..).unwrap(), s);
        assert_eq!(s.slice(5..=9).unwrap().len, 5);
        assert!(s.slice(0..21).is_err());
        assert!(REGION.slice(100..).unwrap().len == 0);
        assert!(REGION.slice(101..).is_err());
        #[allow(clippy::reversed_empty_ranges)]
        let reversed = REGION.slice(30..10);
        assert!(reversed.is_err());
    }

    proptest! {
        #[test]
        fn bytes_round_trip(addr: u64, len: u64, rkey: u32) {
            let r = RemoteRegion { addr, len, rkey: RKey(rkey) };
            prop_assert_eq!(RemoteRegion::from_bytes(&r.to_bytes()), r);
        }

        #[test]
        fn a_slice_never_leaves_its_region(addr: u64, len: u64, a: u64, b: u64) {
            let r = RemoteRegion { addr, len, rkey: RKey(0) };
            if let Ok(s) = r.slice(a..b) {
                prop_assert!(s.addr >= r.addr);
                prop_assert!(s.addr as u128 + s.len as u128 <= r.addr as u128 + r.len as u128);
            }
        }
    }
}
