//! Memory that peers may read.

use std::fmt;
use std::ops::Deref;

use crate::{
    Access, Gather, LKey, Memory, Pd, Region, RegisterError, ReleaseError, RemoteRegion, SgeList,
};

/// Frozen memory that peers with its key may READ.
///
/// It is filled before it is registered, and does not change as long as it is: `&[u8]` is all there is. Several sends can
/// share it as `Arc<Readable<M>>`.
pub struct Readable<M>(Region<M>);

impl<M: Memory> Readable<M> {
    pub(crate) fn new(pd: &Pd, memory: M) -> Result<Readable<M>, RegisterError<M>> {
        Region::new(pd, memory, Access::REMOTE_READ, None).map(Readable)
    }
}

impl<M> Readable<M> {
    pub(crate) fn region(&self) -> &Region<M> {
        &self.0
    }

    /// Description for peers: address, length and key.
    pub fn remote(&self) -> RemoteRegion {
        self.0.describe()
    }

    /// The key for this process's own work requests.
    pub fn lkey(&self) -> LKey {
        self.0.lkey()
    }

    /// Withdraws the key and gives the memory back. A READ of a peer that is under way fails.
    ///
    /// # Errors
    /// [`ReleaseError`], with the region, when the device refuses.
    pub fn into_inner(self) -> Result<M, ReleaseError<Readable<M>>> {
        self.0.into_inner().map_err(|e| e.map(Readable))
    }
}

impl<M: Memory> Deref for Readable<M> {
    type Target = [u8];
    #[inline]
    fn deref(&self) -> &[u8] {
        // SAFETY: mapped and initialised by `Memory`'s contract. It was registered without any right to write, and this
        // type gives nobody a way to.
        unsafe { std::slice::from_raw_parts(self.0.as_ptr(), self.0.len()) }
    }
}

impl<M: Memory> AsRef<[u8]> for Readable<M> {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

// SAFETY: owned memory that stays where it is and is not written.
unsafe impl<M: Memory> Gather for Readable<M> {
    #[inline(always)]
    fn gather(&self, out: &mut SgeList) {
        self.0.push_to(out);
    }
}

impl<M> fmt::Debug for Readable<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "Readable({} bytes at {:p})",
            self.0.len(),
            self.0.as_ptr()
        )
    }
}
