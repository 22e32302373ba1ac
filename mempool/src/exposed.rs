//! Exposed memory: cells that a peer may write.

use crate::handle::Handle;
use crate::slab::{Slab, StackIndex};
use std::fmt;
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;
// Not `Memory` itself: with it in scope, `len` of a mutable slice would be its.
use verbs::{Access, CellError, Exposed, Gather, LKey, OutOfBounds, Pd, RemoteRegion, SgeList};

/// Memory of an exposed arena. There are no slices of it, because a peer that has a key can change it at any instant: bytes are
/// copied in and out, and words to synchronise on are atomics.
///
/// A peer gets a key by [`lease`](ExposedBuf::lease), for these bytes only.
pub struct ExposedBuf(Handle);

impl ExposedBuf {
    pub(crate) fn as_handle(&self) -> &Handle {
        &self.0
    }

    /// # Safety
    /// As [`Handle::new`], and the slab is of an exposed arena.
    pub(crate) unsafe fn new(slab: (NonNull<Slab>, StackIndex), len: usize) -> ExposedBuf {
        // SAFETY: the caller's promise.
        ExposedBuf(unsafe { Handle::new(slab, len) })
    }

    pub(crate) const fn empty() -> ExposedBuf {
        ExposedBuf(Handle::empty())
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.0.len() == 0
    }

    /// The local key of the memory.
    pub fn lkey(&self) -> LKey {
        self.0.lkey()
    }

    /// What peers can reach these bytes by; `None` unless the pool was built with
    /// [`trusted_peers`](crate::PoolBuilder::trusted_peers). The key is the whole arena's.
    pub fn remote(&self) -> Option<RemoteRegion> {
        self.0.remote()
    }

    #[inline]
    fn cells(&self) -> verbs::Cells<'_> {
        // SAFETY: mapped as long as the handle lives, and nobody in this process reaches these bytes but through it: as these cells.
        unsafe { verbs::Cells::new(self.0.ptr(), self.0.len()) }
    }

    /// Copies `out.len()` bytes from `offset`. While a peer writes, they may be old, new, or a mixture.
    ///
    /// # Errors
    /// [`OutOfBounds`] if they do not lie within; nothing is copied then.
    #[inline]
    pub fn read_at(&self, offset: usize, out: &mut [u8]) -> Result<(), OutOfBounds> {
        self.cells().read_at(offset, out)
    }

    /// Copies `bytes` to `offset`.
    ///
    /// # Errors
    /// [`OutOfBounds`] if they do not fit; nothing is copied then.
    #[inline]
    pub fn write_at(&self, offset: usize, bytes: &[u8]) -> Result<(), OutOfBounds> {
        self.cells().write_at(offset, bytes)
    }

    /// The eight bytes at `offset` as an atomic in this machine's byte order. What a peer WRITEs to an aligned word is seen whole.
    ///
    /// # Errors
    /// [`CellError`] if they do not lie within, or `offset` is no multiple of 8.
    #[inline]
    pub fn atomic_u64(&self, offset: usize) -> Result<&AtomicU64, CellError> {
        self.cells().atomic_u64(offset)
    }

    /// Gives peers of `pd` a key to exactly these bytes, for as long as the lease lives. Registers, which takes its time.
    ///
    /// # Errors
    /// The device's, with the limits that were in the way; `access` without a remote right; no bytes. The buffer is dropped then.
    pub fn lease(self, pd: &Pd, access: Access) -> Result<ExposedLease, verbs::Error> {
        Ok(ExposedLease(pd.expose_memory(Cells(self.0), access)?))
    }
}

impl fmt::Debug for ExposedBuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "ExposedBuf({} bytes at {:p})",
            self.0.len(),
            self.0.ptr()
        )
    }
}

// SAFETY: the slab stays out of the pool until the handle is dropped, or for ever if it is forgotten; only cells are written.
unsafe impl Gather for ExposedBuf {
    fn gather(&self, out: &mut SgeList) {
        self.0.push_to(out);
    }
}

/// Exposed memory with a key of its own. Dropping it withdraws the key, then gives the memory back to the pool.
#[derive(Debug)]
pub struct ExposedLease(Exposed<Cells>);

/// Not public: as [`verbs::MemoryMut`] it could be registered as private memory, of which there are slices.
#[derive(Debug)]
pub(crate) struct Cells(Handle);

// SAFETY: mapped, initialised, at a fixed address until the handle is dropped. It only ever gets into an `Exposed`, which makes no
// references.
unsafe impl verbs::Memory for Cells {
    fn as_ptr(&self) -> *mut u8 {
        self.0.ptr()
    }
    fn len(&self) -> usize {
        self.0.len()
    }
}

// SAFETY: no other handle covers the bytes, and the pointer is the mapping's own.
unsafe impl verbs::MemoryMut for Cells {}

impl ExposedLease {
    /// Length in bytes.
    #[allow(
        clippy::len_without_is_empty,
        reason = "registered memory is never empty"
    )]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// What the peer needs: address, length and key.
    pub fn remote(&self) -> RemoteRegion {
        self.0.remote()
    }

    /// See [`ExposedBuf::read_at`].
    ///
    /// # Errors
    /// [`OutOfBounds`] if they do not lie within.
    #[inline]
    pub fn read_at(&self, offset: usize, out: &mut [u8]) -> Result<(), OutOfBounds> {
        self.0.read_at(offset, out)
    }

    /// See [`ExposedBuf::write_at`].
    ///
    /// # Errors
    /// [`OutOfBounds`] if they do not fit.
    #[inline]
    pub fn write_at(&self, offset: usize, bytes: &[u8]) -> Result<(), OutOfBounds> {
        self.0.write_at(offset, bytes)
    }

    /// See [`ExposedBuf::atomic_u64`].
    ///
    /// # Errors
    /// [`CellError`] if they do not lie within, or `offset` is no multiple of 8.
    #[inline]
    pub fn atomic_u64(&self, offset: usize) -> Result<&AtomicU64, CellError> {
        self.0.atomic_u64(offset)
    }

    /// Withdraws the key and gives the memory back.
    ///
    /// # Errors
    /// When the device refuses to deregister; the memory is then leaked, as the peer may still reach it.
    pub fn end(self) -> Result<ExposedBuf, verbs::Error> {
        Ok(ExposedBuf(self.0.into_inner()?.0))
    }
}
