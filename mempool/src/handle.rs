//! A counted part of a slab: what `Buf`, `SharedBuf` and `ExposedBuf` have in common.

use crate::refill;
use crate::size::LINE;
use crate::slab::Slab;
use std::ptr::NonNull;
use verbs::{LKey, RemoteRegion, SgeList};

/// Address, length and slab of some bytes. Keeps the slab out of the pool; the last handle on it gives it back.
///
/// Without a slab it is empty.
#[derive(Debug)]
pub(crate) struct Handle {
    ptr: NonNull<u8>,
    len: usize,
    slab: Option<NonNull<Slab>>,
}

// SAFETY: the bytes belong to the handle as its wrapper says; the slab's count is atomic, and what else a handle reads of it
// does not change while there is one.
unsafe impl Send for Handle {}
// SAFETY: as above.
unsafe impl Sync for Handle {}

#[repr(align(64))]
struct Line;
const _: () = assert!(align_of::<Line>() == LINE);

impl Handle {
    pub const fn empty() -> Handle {
        Handle {
            ptr: NonNull::<Line>::dangling().cast(),
            len: 0,
            slab: None,
        }
    }

    /// The first handle on a slab.
    ///
    /// # Safety
    /// The slab has just been taken from the pool, and has at least `len` bytes.
    #[inline]
    pub unsafe fn new(slab: NonNull<Slab>, len: usize) -> Handle {
        Handle {
            // SAFETY: invariant A.
            ptr: unsafe { slab.as_ref().addr },
            len,
            slab: Some(slab),
        }
    }

    #[inline]
    pub fn ptr(&self) -> *mut u8 {
        self.ptr.as_ptr()
    }

    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    #[inline]
    fn slab(&self) -> Option<&Slab> {
        // SAFETY: invariant A, as a handle keeps the slab outside.
        self.slab.map(|slab| unsafe { slab.as_ref() })
    }

    /// The arena's key; 0 if empty without a slab.
    #[inline]
    pub fn lkey(&self) -> LKey {
        self.slab().map_or(LKey(0), |slab| slab.run().lkey)
    }

    pub fn remote(&self) -> Option<RemoteRegion> {
        self.slab()?
            .run()
            .chunk()
            .arena
            .remote_of(self.ptr, self.len)
    }

    #[inline]
    pub fn push_to(&self, out: &mut SgeList) {
        if self.len > 0 {
            out.push_bytes(self.ptr.addr().get() as u64, self.len, self.lkey());
        }
    }

    pub fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
    }

    /// Whether no other handle is on the same slab.
    pub fn is_unique(&self) -> bool {
        self.slab().is_none_or(|slab| slab.count.is_one())
    }

    /// Another handle on a part of the same bytes.
    pub fn part(&self, start: usize, end: usize) -> Handle {
        assert!(
            start <= end && end <= self.len,
            "range {start}..{end} of {} bytes",
            self.len
        );
        if start == end {
            return Handle::empty();
        }
        if let Some(slab) = self.slab() {
            slab.count.add();
        }
        Handle {
            // SAFETY: checked to be within.
            ptr: unsafe { self.ptr.add(start) },
            len: end - start,
            slab: self.slab,
        }
    }

    /// Splits into `..at`, which stays, and `at..`.
    pub fn split_off(&mut self, at: usize) -> Handle {
        assert!(at <= self.len, "split at {at} of {} bytes", self.len);
        if at == 0 {
            return std::mem::replace(self, Handle::empty());
        }
        let tail = self.part(at, self.len);
        self.len = at;
        tail
    }

    /// Joins with what lies directly behind in the same slab.
    pub fn join(&mut self, other: Handle) -> Result<(), Handle> {
        if other.len == 0 {
            return Ok(());
        }
        if self.len == 0 {
            *self = other;
            return Ok(());
        }
        // SAFETY: one past the end at most.
        let end = unsafe { self.ptr.add(self.len) };
        if other.slab != self.slab || end != other.ptr {
            return Err(other);
        }
        self.len += other.len;
        Ok(())
    }
}

impl Drop for Handle {
    #[inline]
    fn drop(&mut self) {
        if let Some(slab) = self.slab {
            // SAFETY: invariant A, and this handle's count is given up here.
            if unsafe { slab.as_ref() }.count.drop_one() {
                // SAFETY: it was the last: we are the holder (invariant B).
                unsafe { refill::free(slab) };
            }
        }
    }
}

const _: () = assert!(size_of::<Handle>() <= 32);
const _: () = assert!(size_of::<Option<Handle>>() == size_of::<Handle>());
