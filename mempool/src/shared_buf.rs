//! Frozen buffers with several readers.

use crate::buf::Buf;
use crate::handle::Handle;
use std::fmt;
use std::io::Cursor;
use std::ops::{Bound, Deref, RangeBounds};
use verbs::{Gather, LKey, Memory, SgeList};

/// Registered memory that nobody writes: clones and slices share it, without copying.
///
/// Made by [`Buf::freeze`]. Any number of sends can hold it at the same time. With [`Pd::readable`](verbs::Pd::readable) it becomes
/// a lease: peers may READ exactly these bytes, by a key of its own, until the lease is dropped.
#[derive(Clone)]
pub struct SharedBuf(Shared);

/// A handle whose bytes other handles may cover.
struct Shared(Handle);

impl Clone for Shared {
    fn clone(&self) -> Shared {
        Shared(self.0.part(0, self.0.len()))
    }
}

impl SharedBuf {
    pub(crate) fn from_handle(handle: Handle) -> SharedBuf {
        SharedBuf(Shared(handle))
    }

    pub(crate) fn as_handle(&self) -> &Handle {
        self.handle()
    }

    fn handle(&self) -> &Handle {
        &self.0.0
    }

    /// A part of the bytes, without copying.
    ///
    /// # Panics
    /// If the range does not lie within, as slices do.
    pub fn slice(&self, range: impl RangeBounds<usize>) -> SharedBuf {
        let start = match range.start_bound() {
            Bound::Included(&s) => s,
            Bound::Excluded(&s) => s.saturating_add(1),
            Bound::Unbounded => 0,
        };
        let end = match range.end_bound() {
            Bound::Included(&e) => e.saturating_add(1),
            Bound::Excluded(&e) => e,
            Bound::Unbounded => self.handle().len(),
        };
        SharedBuf::from_handle(self.handle().part(start, end))
    }

    /// Keeps `..at` and returns `at..`, without copying.
    ///
    /// # Panics
    /// If `at` is greater than the length.
    pub fn split_off(&mut self, at: usize) -> SharedBuf {
        SharedBuf::from_handle(self.0.0.split_off(at))
    }

    /// Returns `..at` and keeps `at..`, without copying.
    ///
    /// # Panics
    /// If `at` is greater than the length.
    pub fn split_to(&mut self, at: usize) -> SharedBuf {
        let tail = self.split_off(at);
        std::mem::replace(self, tail)
    }

    /// Gives up the first `count` bytes, without copying; other clones keep theirs.
    ///
    /// # Panics
    /// If there are fewer.
    #[inline]
    pub fn advance(&mut self, count: usize) {
        self.0.0.advance(count);
    }

    /// Joins with what lies directly behind in the same slab, without copying.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let pd = verbs::Device::open_spec("soft0")?.alloc_pd()?;
    /// # let pool = mempool::Pool::builder(&pd).build()?;
    /// let text = pool.alloc_from_slice(b"0123456789")?.freeze();
    /// let mut part = text.slice(2..5);
    /// part.unsplit(text.slice(5..7)).expect("it follows");
    /// assert_eq!(&part[..], b"23456");
    /// let back = part.unsplit(text.slice(..2)).expect_err("it does not follow");
    /// assert_eq!(&back[..], b"01");
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// Gives `tail` back if it does not lie there.
    pub fn unsplit(&mut self, tail: SharedBuf) -> Result<(), SharedBuf> {
        self.0.0.join(tail.0.0).map_err(SharedBuf::from_handle)
    }

    /// Shortens to `len` bytes; other clones keep theirs.
    pub fn truncate(&mut self, len: usize) {
        self.0.0.truncate(len);
    }

    /// The local key of the memory. `LKey(0)` for a buffer that takes no memory.
    #[inline]
    pub fn lkey(&self) -> LKey {
        self.handle().lkey()
    }

    /// Makes it writable again, if this is the only handle left on its slab.
    ///
    /// # Errors
    /// Gives it back if there are others: clones, slices, or parts split off before it was frozen.
    pub fn try_unfreeze(self) -> Result<Buf, SharedBuf> {
        if self.handle().is_unique() {
            Ok(Buf::from_unique(self.0.0))
        } else {
            Err(self)
        }
    }

    /// Reads from the start, as [`std::io::Read`], [`std::io::BufRead`] and [`std::io::Seek`].
    pub fn into_reader(self) -> Cursor<SharedBuf> {
        Cursor::new(self)
    }
}

impl Deref for SharedBuf {
    type Target = [u8];
    #[inline]
    fn deref(&self) -> &[u8] {
        // SAFETY: the handle's bytes are mapped and initialised as long as it lives; all handles that cover them are frozen, and
        // peers have no key to write them.
        unsafe { std::slice::from_raw_parts(self.handle().ptr(), self.handle().len()) }
    }
}

impl AsRef<[u8]> for SharedBuf {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl From<Buf> for SharedBuf {
    fn from(buf: Buf) -> SharedBuf {
        buf.freeze()
    }
}

impl fmt::Debug for SharedBuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "SharedBuf({} bytes at {:p})",
            self.handle().len(),
            self.handle().ptr()
        )
    }
}

// SAFETY: the slab stays out of the pool, and its arena mapped, until the last handle is dropped, or for ever if one is
// forgotten. Nobody writes as long as two handles exist, and unfreezing the only one takes it out of the queue first.
unsafe impl Gather for SharedBuf {
    #[inline]
    fn gather(&self, out: &mut SgeList) {
        self.handle().push_to(out);
    }
}

// SAFETY: mapped, initialised, at a fixed address until the handle is dropped; nobody writes.
unsafe impl Memory for SharedBuf {
    fn as_ptr(&self) -> *mut u8 {
        self.handle().ptr()
    }
    fn len(&self) -> usize {
        self.handle().len()
    }
}
