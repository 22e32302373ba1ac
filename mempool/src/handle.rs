//! A counted part of a slab: what `Buf`, `SharedBuf` and `ExposedBuf` have in common.

use crate::refill;
use crate::size::{LINE, MAX_LEN};
use crate::slab::{Slab, StackIndex};
use std::ptr::NonNull;
use verbs::{LKey, RemoteRegion, SgeList};

/// Address, length and slab of some bytes. Keeps the slab out of the pool; the last handle on it gives it back.
///
/// Without a slab it is empty.
#[derive(Debug)]
pub(crate) struct Handle {
    ptr: NonNull<u8>,
    slab: Option<NonNull<Slab>>,
    extent: Extent,
}

/// Length, and which of a thread's stacks the slab is for (known here before the slab's descriptor has come out of memory).
///
/// One word, written at once: two stores of half a word that are then moved as a whole would stall the move.
#[derive(Debug, Clone, Copy)]
struct Extent(u64);

impl Extent {
    #[inline(always)]
    const fn new(len: usize, index: StackIndex) -> Extent {
        Extent(len as u64 | (index.offset() as u64) << u32::BITS)
    }

    #[inline]
    fn len(self) -> usize {
        self.0 as u32 as usize
    }

    #[inline(always)]
    fn index(self) -> StackIndex {
        StackIndex::from_offset((self.0 >> u32::BITS) as u32)
    }

    #[inline]
    fn with_len(self, len: usize) -> Extent {
        Extent::new(len, self.index())
    }
}

const _: () = assert!(MAX_LEN <= u32::MAX as usize);

// SAFETY: the bytes belong to the handle as its wrapper says; the slab's count is atomic, and what else a handle reads of it
// does not change while there is one.
unsafe impl Send for Handle {}
// SAFETY: as above.
unsafe impl Sync for Handle {}

#[repr(align(64))]
struct Line;
const _: () = assert!(align_of::<Line>() == LINE);

impl Handle {
    #[inline]
    pub const fn empty() -> Handle {
        Handle {
            ptr: NonNull::<Line>::dangling().cast(),
            slab: None,
            extent: Extent::new(0, StackIndex::ANY),
        }
    }

    /// The first handle on a slab.
    ///
    /// # Safety
    /// The slab has just been taken from the pool, from the stack of that number, and has at least `len` bytes.
    #[inline(always)]
    pub unsafe fn new((slab, index): (NonNull<Slab>, StackIndex), len: usize) -> Handle {
        Handle {
            // SAFETY: invariant A.
            ptr: unsafe { slab.as_ref().addr },
            slab: Some(slab),
            extent: Extent::new(len, index),
        }
    }

    #[inline]
    pub fn ptr(&self) -> *mut u8 {
        self.ptr.as_ptr()
    }

    #[inline]
    pub fn len(&self) -> usize {
        self.extent.len()
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

    /// The arena's key of one of the pool's devices.
    pub fn lkey_on(&self, device: usize) -> LKey {
        self.slab()
            .map_or(LKey(0), |slab| slab.run().chunk().arena.lkeys()[device])
    }

    pub fn push_to_on(&self, device: usize, out: &mut SgeList) {
        if self.len() > 0 {
            #[cfg(feature = "debug")]
            self.note_posted();
            let lkey = self.lkey_on(device);
            out.push_bytes(self.ptr.addr().get() as u64, self.len(), lkey);
        }
    }

    /// Tells the pool's debug mode.
    #[cfg(feature = "debug")]
    fn note_posted(&self) {
        if let Some(slab) = self.slab {
            // SAFETY: the slab is outside, so its pool lives (invariants A and D).
            unsafe { (*slab.as_ref().run().chunk().shared).note_posted(slab) };
        }
    }

    pub fn remote(&self) -> Option<RemoteRegion> {
        self.slab()?
            .run()
            .chunk()
            .arena
            .remote_of(self.ptr, self.len())
    }

    #[inline]
    pub fn push_to(&self, out: &mut SgeList) {
        if self.len() > 0 {
            #[cfg(feature = "debug")]
            self.note_posted();
            out.push_bytes(self.ptr.addr().get() as u64, self.len(), self.lkey());
        }
    }

    pub fn truncate(&mut self, len: usize) {
        self.extent = self.extent.with_len(self.len().min(len));
    }

    /// Whether no other handle is on the same slab.
    pub fn is_unique(&self) -> bool {
        self.slab().is_none_or(|slab| slab.count.is_one())
    }

    /// Another handle on a part of the same bytes.
    pub fn part(&self, start: usize, end: usize) -> Handle {
        assert!(
            start <= end && end <= self.len(),
            "range {start}..{end} of {} bytes",
            self.len()
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
            slab: self.slab,
            extent: self.extent.with_len(end - start),
        }
    }

    /// Splits into `..at`, which stays, and `at..`.
    pub fn split_off(&mut self, at: usize) -> Handle {
        assert!(at <= self.len(), "split at {at} of {} bytes", self.len());
        if at == 0 {
            return std::mem::replace(self, Handle::empty());
        }
        let tail = self.part(at, self.len());
        self.extent = self.extent.with_len(at);
        tail
    }

    /// Gives up `..count`. The handle goes on counting as one on its slab, unless nothing is left for it.
    #[inline]
    pub fn advance(&mut self, count: usize) {
        let len = self.len();
        assert!(count <= len, "advance by {count} of {len} bytes");
        if count == len {
            // What has no bytes keeps no memory.
            *self = Handle::empty();
            return;
        }
        // SAFETY: checked to be within.
        self.ptr = unsafe { self.ptr.add(count) };
        self.extent = self.extent.with_len(len - count);
    }

    /// Joins with what lies directly behind in the same slab.
    pub fn join(&mut self, other: Handle) -> Result<(), Handle> {
        if other.len() == 0 {
            return Ok(());
        }
        if self.len() == 0 {
            *self = other;
            return Ok(());
        }
        // SAFETY: one past the end at most.
        let end = unsafe { self.ptr.add(self.len()) };
        if other.slab != self.slab || end != other.ptr {
            return Err(other);
        }
        self.extent = self.extent.with_len(self.len() + other.len());
        Ok(())
    }
}

impl Drop for Handle {
    #[inline(always)]
    fn drop(&mut self) {
        if let Some(slab) = self.slab {
            // SAFETY: invariant A, and this handle's count is given up here.
            if unsafe { slab.as_ref() }.count.drop_one() {
                // SAFETY: it was the last: we are the holder (invariant B).
                unsafe { refill::free(slab, self.extent.index()) };
            }
        }
    }
}

const _: () = assert!(size_of::<Handle>() == 24);
const _: () = assert!(size_of::<Option<Handle>>() == size_of::<Handle>());
