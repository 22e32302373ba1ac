//! Keys of memory regions.
//!
//! The local and the remote key of a region are often the same number, which hides mistakes until they are not: they are
//! different types here.

use std::fmt;

/// Local key: names a memory region in this process's own work requests.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(transparent)]
pub struct LKey(pub u32);

/// Remote key: lets whoever knows it reach a memory region, as far as the region's [`Access`](crate::Access) allows.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(transparent)]
pub struct RKey(pub u32);

impl fmt::Debug for LKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LKey({:#x})", self.0)
    }
}

impl fmt::Debug for RKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RKey({:#x})", self.0)
    }
}
