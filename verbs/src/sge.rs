//! Segments, and the contracts of memory in flight.
//!
//! A work request names memory by address; the device uses the addresses until the completion, whatever becomes of the Rust
//! value meanwhile. The two unsafe traits here are the contracts that make handing a value to a queue enough:
//!
//! * [`Gather`]: the device will *read* the memory;
//! * [`Scatter`]: the device will *write* it.

use std::mem::MaybeUninit;
use std::sync::Arc;

use ibverbs_sys::ibv_sge;

use crate::LKey;

/// One segment of a work request.
///
/// Source: `ibv_post_send(3)`, `struct ibv_sge`.
#[doc(alias = "ibv_sge")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Sge {
    /// First address.
    pub addr: u64,
    /// Length in bytes.
    pub len: u32,
    /// Key of the memory region the segment lies in.
    pub lkey: LKey,
}

// `SgeList` hands its array to the device as it is.
const _: () = {
    assert!(size_of::<Sge>() == size_of::<ibv_sge>() && align_of::<Sge>() == align_of::<ibv_sge>());
    assert!(std::mem::offset_of!(Sge, addr) == std::mem::offset_of!(ibv_sge, addr));
    assert!(std::mem::offset_of!(Sge, len) == std::mem::offset_of!(ibv_sge, length));
    assert!(std::mem::offset_of!(Sge, lkey) == std::mem::offset_of!(ibv_sge, lkey));
};

/// The segments of one work request, gathered on the stack.
///
/// Holds [`CAPACITY`](Self::CAPACITY) segments. Further ones are counted but not kept, and make the post fail with
/// [`TooManySegments`](crate::PostErrorKind::TooManySegments).
pub struct SgeList {
    pushed: usize,
    bytes: u64,
    viewless: bool,
    sges: [MaybeUninit<Sge>; SgeList::CAPACITY],
}

impl SgeList {
    /// Segments a list holds; more than devices in use take in one work request.
    pub const CAPACITY: usize = 32;

    /// Segments longer than this are split by [`push_bytes`](Self::push_bytes).
    const LONGEST: usize = 1 << 31;

    /// Less than that, and a number that fits into a comparison.
    const SURELY_ONE: usize = Self::LONGEST - 4096;

    /// An empty list.
    #[inline]
    pub const fn new() -> SgeList {
        SgeList {
            pushed: 0,
            bytes: 0,
            viewless: false,
            sges: [MaybeUninit::uninit(); SgeList::CAPACITY],
        }
    }

    /// Adds a segment.
    #[inline(always)]
    pub fn push(&mut self, sge: Sge) {
        if self.pushed == 0 {
            // Named by a constant: see `only`.
            self.sges[0].write(sge);
        } else if let Some(slot) = self.sges.get_mut(self.pushed) {
            slot.write(sge);
        }
        self.pushed += 1;
        self.bytes += u64::from(sge.len);
    }

    /// Adds memory of any length, as one segment up to 2 GiB, else as several.
    #[inline(always)]
    pub fn push_bytes(&mut self, addr: u64, len: usize, lkey: LKey) {
        if len <= Self::SURELY_ONE {
            self.push(Sge {
                addr,
                len: len as u32,
                lkey,
            });
        } else {
            // By value: a list that was lent to a function out of sight is one that the compiler knows nothing of any more, and what it is
            // asked for later would be read back from memory, in every post.
            *self = std::mem::take(self).with_long(addr, len, lkey);
        }
    }

    // C's calling convention, since what is called by it does not unwind: so nothing has to be kept in memory for that.
    #[allow(improper_ctypes_definitions, reason = "it is called from here only")]
    #[cold]
    #[inline(never)]
    extern "C" fn with_long(mut self, mut addr: u64, mut len: usize, lkey: LKey) -> SgeList {
        while len > 0 {
            let part = len.min(Self::LONGEST);
            self.push(Sge {
                addr,
                len: part as u32,
                lkey,
            });
            // Whoever names such memory is told by the device.
            addr = addr.wrapping_add(part as u64);
            len -= part;
        }
        self
    }

    /// Says that the processor does not find what was pushed at the addresses given: they are what the device calls memory that was registered
    /// under other addresses, or that has no view. Such a list is refused [inline](crate::Wr::inline), where the library would copy from there.
    #[inline(always)]
    pub fn without_view(&mut self) {
        self.viewless = true;
    }

    /// Whether that was said.
    #[inline]
    pub(crate) fn is_viewless(&self) -> bool {
        self.viewless
    }

    /// Segments pushed, the ones that found no room included.
    #[inline]
    pub fn len(&self) -> usize {
        self.pushed
    }

    /// Whether nothing was pushed.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.pushed == 0
    }

    /// Sum of the segments' lengths.
    #[inline]
    pub fn total_len(&self) -> u64 {
        self.bytes
    }

    /// Both of these. Asked for at once, before anything else is done: then it costs nothing where the compiler has seen what was pushed.
    #[inline(always)]
    pub(crate) fn size(&self) -> Size {
        Size {
            count: self.pushed,
            len: self.bytes,
        }
    }

    /// The segment, if it is one and has a view: as the verbs take it, outside of the list. A list of which nothing but this is used needs no memory where the
    /// compiler has seen it made.
    #[inline(always)]
    pub(crate) fn only(&self) -> Option<ibv_sge> {
        if self.pushed != 1 || self.viewless {
            return None;
        }
        // SAFETY: `push` wrote as many, from the first on.
        let Sge { addr, len, lkey } = unsafe { self.sges[0].assume_init() };
        Some(ibv_sge {
            addr,
            length: len,
            lkey: lkey.0,
        })
    }

    /// Whether more segments were pushed than the list holds.
    #[inline]
    pub fn overflowed(&self) -> bool {
        self.pushed > Self::CAPACITY
    }

    /// The segments kept.
    #[inline]
    pub fn as_slice(&self) -> &[Sge] {
        let kept = self.pushed.min(Self::CAPACITY);
        // SAFETY: `push` wrote as many entries as there is room for, from the first on.
        unsafe { std::slice::from_raw_parts(self.sges.as_ptr().cast::<Sge>(), kept) }
    }

    /// The array as the verbs take it; they read it only, and not after the call.
    #[inline]
    pub(crate) fn as_sys(&mut self) -> *mut ibv_sge {
        self.sges.as_mut_ptr().cast()
    }
}

/// What a list adds up to.
#[derive(Clone, Copy)]
pub(crate) struct Size {
    pub(crate) count: usize,
    pub(crate) len: u64,
}

impl Default for SgeList {
    fn default() -> Self {
        SgeList::new()
    }
}

impl std::fmt::Debug for SgeList {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.as_slice()).finish()
    }
}

/// Memory that a device may read while the value sits in a queue: what can be sent.
///
/// # Safety
/// From `gather` until the value is dropped:
/// * the addresses given stay valid and keep their meaning, also when the value is moved, and for ever if it is forgotten;
/// * they are addresses of memory that this process can read, unless the list is told [otherwise](SgeList::without_view);
/// * nobody writes the memory, except through cells (atomics, [`Exposed`](crate::Exposed)), and no `&mut` to it exists.
///
/// It is asked more than once: twice for a post, and again when a value that was refused is posted again. All this holds for what each answer
/// names. The answers need not be the same; what is posted, and measured against the queue's limits, is the last.
///
/// Work requests of a queue pair are checked by the device against the keys; a wrong key ends in an error completion and
/// breaks no rule.
pub unsafe trait Gather: Send + 'static {
    /// Adds the segments, in order, to `out`.
    fn gather(&self, out: &mut SgeList);
}

/// Memory that a device may write while the value sits in a queue: what can receive, or be the destination of a READ.
///
/// # Safety
/// From `scatter` until the value is dropped, or until whoever holds it has seen its completion:
/// * the addresses given stay valid and keep their meaning, also when the value is moved, and for ever if it is forgotten;
/// * no reference to the memory exists (other than to cells) that is not borrowed from the value itself.
///
/// It is asked more than once, as [`Gather`] is, and this holds for what each answer names.
///
/// Any bytes may be written: the memory must be of a type for which all bytes are valid.
pub unsafe trait Scatter: Send + 'static {
    /// Adds the segments, in order, to `out`.
    fn scatter(&mut self, out: &mut SgeList);
}

/// Receive memory that is one slice, so that a message can be shown as `&[u8]`.
pub trait Contiguous: Scatter {
    /// All of the memory that [`scatter`](Scatter::scatter) hands out.
    fn bytes(&self) -> &[u8];
}

/// Scatter memory that a queue of `T` can hold while a READ fills it.
///
/// A send queue holds one type; READ needs memory that may be written, which not every value of that type is. The argument
/// type of [`SendQueue::read`](crate::SendQueue::read) proves that it is, and `store` makes it what the queue holds.
///
/// # Safety
/// The memory named by `scatter` obeys [`Scatter`]'s contract for the life of the stored value as well.
pub unsafe trait StoredAs<T>: Scatter {
    /// Turns the memory into what the queue holds, without moving the bytes.
    fn store(self) -> T;
}

// SAFETY: the value stays what it is.
unsafe impl<T: Scatter> StoredAs<T> for T {
    #[inline]
    fn store(self) -> T {
        self
    }
}

// SAFETY: a shared reference count adds no way to write frozen memory, and the clone in the queue keeps it alive.
unsafe impl<M: crate::Memory> Gather for Arc<crate::Readable<M>> {
    #[inline]
    fn gather(&self, out: &mut SgeList) {
        (**self).gather(out);
    }
}

// SAFETY: cells may be shared; the clone in the queue keeps them alive.
unsafe impl<M: crate::MemoryMut> Gather for Arc<crate::Exposed<M>> {
    #[inline]
    fn gather(&self, out: &mut SgeList) {
        (**self).gather(out);
    }
}

// SAFETY: as above; nobody has a reference to them, other than to atomics.
unsafe impl<M: crate::MemoryMut> Scatter for Arc<crate::Exposed<M>> {
    #[inline]
    fn scatter(&mut self, out: &mut SgeList) {
        (**self).gather(out);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn overflow_is_remembered_not_written() {
        let mut list = SgeList::new();
        for i in 0..40 {
            list.push(Sge {
                addr: i,
                len: 1,
                lkey: LKey(0),
            });
        }
        assert!(list.overflowed());
        assert_eq!(
            (list.len(), list.as_slice().len(), list.total_len()),
            (40, 32, 40)
        );
    }

    proptest! {
        #[test]
        fn long_memory_is_covered_without_gap(addr in 0u64..1 << 40, len in 0usize..1 << 34) {
            let mut list = SgeList::new();
            list.push_bytes(addr, len, LKey(3));
            prop_assert_eq!(list.total_len(), len as u64);
            let mut at = addr;
            for s in list.as_slice() {
                prop_assert_eq!(s.addr, at);
                at += u64::from(s.len);
            }
            prop_assert_eq!(at, addr + len as u64);
        }
    }
}
