//! Memory that only this process and its own work requests use.

use std::fmt;
use std::ops::{Deref, DerefMut};

use crate::Access;
use crate::{
    Contiguous, Gather, LKey, Memory, MemoryMut, Pd, Region, RegisterError, ReleaseError, Scatter,
    SgeList,
};

/// Registered memory without a remote key: a slice, to send from, to receive into, and for READ destinations.
///
/// While it is in a queue nobody else has it; outside of queues no device touches it. Hence plain slices.
///
/// ```
/// # use verbs::Device;
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let pd = Device::open_spec("soft0")?.alloc_pd()?;
/// let mut buf = pd.register(vec![0u8; 16])?;
/// buf[..5].copy_from_slice(b"hello");
/// assert_eq!(buf.into_inner()?, b"hello\0\0\0\0\0\0\0\0\0\0\0");
/// # Ok(()) }
/// ```
pub struct Private<M>(Region<M>);

impl<M: MemoryMut> Private<M> {
    pub(crate) fn new(pd: &Pd, memory: M) -> Result<Private<M>, RegisterError<M>> {
        Region::new(pd, memory, Access::LOCAL_WRITE, None).map(Private)
    }
}

impl<M> Private<M> {
    pub(crate) fn region(&self) -> &Region<M> {
        &self.0
    }

    /// The key for this process's own work requests.
    pub fn lkey(&self) -> LKey {
        self.0.lkey()
    }

    /// The protection domain it belongs to.
    pub fn pd(&self) -> &Pd {
        self.0.pd()
    }

    /// Deregisters and gives the memory back.
    ///
    /// # Errors
    /// [`ReleaseError`], with the region, when the device refuses.
    pub fn into_inner(self) -> Result<M, ReleaseError<Private<M>>> {
        self.0.into_inner().map_err(|e| e.map(Private))
    }
}

impl<M: Memory> Deref for Private<M> {
    type Target = [u8];
    #[inline]
    fn deref(&self) -> &[u8] {
        // SAFETY: mapped and initialised by `Memory`'s contract; no key lets a peer in, and work requests of this process
        // own the value while the device uses it.
        unsafe { std::slice::from_raw_parts(self.0.as_ptr(), self.0.len()) }
    }
}

impl<M: MemoryMut> DerefMut for Private<M> {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and `MemoryMut` lets the holder of the value write.
        unsafe { std::slice::from_raw_parts_mut(self.0.as_ptr(), self.0.len()) }
    }
}

impl<M: Memory> AsRef<[u8]> for Private<M> {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

// SAFETY: owned memory that stays where it is; references to it are borrowed from the value.
unsafe impl<M: MemoryMut> Gather for Private<M> {
    #[inline(always)]
    fn gather(&self, out: &mut SgeList) {
        self.0.push_to(out);
    }
}

// SAFETY: as above.
unsafe impl<M: MemoryMut> Scatter for Private<M> {
    #[inline(always)]
    fn scatter(&mut self, out: &mut SgeList) {
        self.0.push_to(out);
    }
}

impl<M: MemoryMut> Contiguous for Private<M> {
    #[inline]
    fn bytes(&self) -> &[u8] {
        self
    }
}

impl<M> fmt::Debug for Private<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "Private({} bytes at {:p})",
            self.0.len(),
            self.0.as_ptr()
        )
    }
}
