//! Unique buffers.

use crate::handle::Handle;
use crate::sg::SgList;
use crate::shared_buf::SharedBuf;
use crate::slab::{Slab, StackIndex};
use crate::write::Writer;
use std::fmt;
use std::io::Cursor;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use verbs::{Contiguous, Gather, LKey, Memory, MemoryMut, Scatter, SgeList, StoredAs};

/// Registered memory that this value alone refers to: a slice, to send from, to receive into, and for READ destinations.
///
/// Comes from a [`Pool`](crate::Pool) and goes back to it when dropped, from whichever thread. It is three words, and a segment of a work request
/// by itself.
///
/// ```
/// # use mempool::{Budget, Pool};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let pd = verbs::Device::open_spec("soft0")?.alloc_pd()?;
/// let pool = Pool::builder(&pd).budget(Budget::user(64 << 20)).build()?;
/// let mut page = pool.alloc(4096)?;
/// page[..5].copy_from_slice(b"hello");
/// let (head, tail) = page.split_at(64); // no copy: each is a buffer
/// assert_eq!((head.len(), tail.len()), (64, 4032));
/// let shared = head.freeze();
/// assert_eq!(&shared.slice(1..5)[..], b"ello");
/// # Ok(()) }
/// ```
pub struct Buf(Handle);

impl Buf {
    /// # Safety
    /// As [`Handle::new`], and the slab is not of an exposed arena.
    #[inline(always)]
    pub(crate) unsafe fn new(slab: (NonNull<Slab>, StackIndex), len: usize) -> Buf {
        // SAFETY: the caller's promise.
        Buf(unsafe { Handle::new(slab, len) })
    }

    /// A buffer of 0 bytes, which takes no memory.
    #[inline]
    pub const fn empty() -> Buf {
        Buf(Handle::empty())
    }

    pub(crate) fn as_handle(&self) -> &Handle {
        &self.0
    }

    pub(crate) fn from_unique(handle: Handle) -> Buf {
        Buf(handle)
    }

    /// The local key of the memory. Costs two loads. `LKey(0)` for a buffer that takes no memory.
    #[inline]
    pub fn lkey(&self) -> LKey {
        self.0.lkey()
    }

    /// Shortens to `len` bytes; does nothing if it is not longer. The rest stays out of the pool until the buffer is dropped.
    pub fn truncate(&mut self, len: usize) {
        self.0.truncate(len);
    }

    /// Splits in two at `at`, without copying. The slab goes back to the pool with the last of its parts.
    ///
    /// # Panics
    /// If `at` is greater than the length.
    pub fn split_at(mut self, at: usize) -> (Buf, Buf) {
        let tail = self.split_off(at);
        (self, tail)
    }

    /// Keeps `..at` and returns `at..`, without copying.
    ///
    /// # Panics
    /// If `at` is greater than the length.
    pub fn split_off(&mut self, at: usize) -> Buf {
        Buf(self.0.split_off(at))
    }

    /// Returns `..at` and keeps `at..`, without copying.
    ///
    /// # Panics
    /// If `at` is greater than the length.
    pub fn split_to(&mut self, at: usize) -> Buf {
        let tail = self.split_off(at);
        std::mem::replace(self, tail)
    }

    /// Gives up the first `count` bytes, without copying.
    ///
    /// # Panics
    /// If there are fewer.
    #[inline]
    pub fn advance(&mut self, count: usize) {
        self.0.advance(count);
    }

    /// Joins with the part that was split off directly behind this one, without copying.
    ///
    /// # Errors
    /// Gives `tail` back if it does not lie directly behind in the same slab.
    pub fn unsplit(&mut self, tail: Buf) -> Result<(), Buf> {
        self.0.join(tail.0).map_err(Buf)
    }

    /// Gives up writing, for as many readers as wanted.
    pub fn freeze(self) -> SharedBuf {
        SharedBuf::from_handle(self.0)
    }

    /// Writes from the start, as [`std::io::Write`] and [`std::io::Seek`]; [`Writer::finish`] gives the buffer with what was written.
    pub fn into_writer(self) -> Writer {
        Writer::new(self)
    }

    /// Reads from the start, as [`std::io::Read`], [`std::io::BufRead`] and [`std::io::Seek`].
    ///
    /// A buffer has no such position of its own, since as a segment it is always all of its bytes. To read or write in passing, use a slice
    /// of it: `(&mut &buf[..]).read_exact(..)`, `(&mut buf[..]).write_all(..)`.
    pub fn into_reader(self) -> Cursor<Buf> {
        Cursor::new(self)
    }
}

impl Deref for Buf {
    type Target = [u8];
    #[inline]
    fn deref(&self) -> &[u8] {
        // SAFETY: the handle's bytes are mapped and initialised as long as it lives; no other handle covers them, and peers have no
        // key to write them.
        unsafe { std::slice::from_raw_parts(self.0.ptr(), self.0.len()) }
    }
}

impl DerefMut for Buf {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above.
        unsafe { std::slice::from_raw_parts_mut(self.0.ptr(), self.0.len()) }
    }
}

impl AsRef<[u8]> for Buf {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl AsMut<[u8]> for Buf {
    fn as_mut(&mut self) -> &mut [u8] {
        self
    }
}

impl Default for Buf {
    fn default() -> Buf {
        Buf::empty()
    }
}

impl fmt::Debug for Buf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buf({} bytes at {:p})", self.0.len(), self.0.ptr())
    }
}

// SAFETY: the slab stays out of the pool, and its arena mapped, until the handle is dropped, or for ever if it is forgotten. All
// references to the bytes are borrowed from the value.
unsafe impl Gather for Buf {
    #[inline]
    fn gather(&self, out: &mut SgeList) {
        self.0.push_to(out);
    }
}

// SAFETY: as above.
unsafe impl Scatter for Buf {
    #[inline]
    fn scatter(&mut self, out: &mut SgeList) {
        self.0.push_to(out);
    }
}

impl Contiguous for Buf {
    #[inline]
    fn bytes(&self) -> &[u8] {
        self
    }
}

// SAFETY: the list holds the buffer itself, and gives no references while it is in a queue.
unsafe impl StoredAs<SgList> for Buf {
    #[inline]
    fn store(self) -> SgList {
        self.into()
    }
}

// SAFETY: mapped, initialised, at a fixed address until the handle is dropped; only the holder of the value writes.
unsafe impl Memory for Buf {
    fn as_ptr(&self) -> *mut u8 {
        self.0.ptr()
    }
    fn len(&self) -> usize {
        self.0.len()
    }
}

// SAFETY: no other handle covers the bytes, and the pointer is the mapping's own.
unsafe impl MemoryMut for Buf {}
