//! A view of a segment, one's own or a peer's.
//!
//! Invariant: `base` points at [`SEGMENT_LEN`] mapped bytes that stay mapped as long as the `ControlFile` beside it lives,
//! and that cannot be truncated (the file is sealed). All fields are atomics, so shared references are sound whatever the
//! owner does; a peer's mapping is read-only and is only loaded from.

use crate::layout::*;
use crate::os::memfd::ControlFile;
use crate::os::pull::FileId;
use core::mem::size_of;
use core::ops::Deref;
use core::ptr::NonNull;
use core::sync::atomic::AtomicU32;
use std::sync::Arc;

pub(crate) struct Segment {
    base: *const u8,
    /// Keeps the mapping.
    file: ControlFile,
}

// SAFETY: the mapping is shared memory accessed through atomics only.
unsafe impl Send for Segment {}
// SAFETY: as above.
unsafe impl Sync for Segment {}

impl Segment {
    /// `file` is at least [`SEGMENT_LEN`] long.
    pub fn new(file: ControlFile) -> Segment {
        Segment {
            base: file.as_ptr(),
            file,
        }
    }

    /// Which file it is.
    pub fn id(&self) -> FileId {
        self.file.id()
    }

    #[inline]
    fn at<T>(&self, off: usize) -> &T {
        debug_assert!(off + size_of::<T>() <= SEGMENT_LEN && off.is_multiple_of(align_of::<T>()));
        // SAFETY: in bounds and aligned by the callers below; atomics only (module invariant).
        unsafe { &*self.base.add(off).cast::<T>() }
    }

    #[inline]
    pub fn header(&self) -> &Header {
        self.at(0)
    }

    #[inline]
    pub fn qp(&self, index: usize) -> &QpAdvert {
        self.at(QP_OFF + (index % MAX_QP) * size_of::<QpAdvert>())
    }

    #[inline]
    pub fn mr(&self, index: usize) -> &MrAdvert {
        self.at(MR_OFF + (index % MAX_MR) * size_of::<MrAdvert>())
    }

    #[inline]
    pub fn arena(&self, index: usize) -> &ArenaAdvert {
        self.at(ARENA_OFF + (index % MAX_ARENA) * size_of::<ArenaAdvert>())
    }

    #[inline]
    pub fn cq(&self, index: usize) -> &CqAdvert {
        self.at(CQ_OFF + (index % MAX_CQ) * size_of::<CqAdvert>())
    }

    #[inline]
    pub fn channel(&self, index: usize) -> &ChannelAdvert {
        self.at(CHANNEL_OFF + (index % MAX_CHANNEL) * size_of::<ChannelAdvert>())
    }

    #[inline]
    pub fn srq(&self, index: usize) -> &SrqAdvert {
        self.at(SRQ_OFF + (index % MAX_SRQ) * size_of::<SrqAdvert>())
    }

    /// Numbers in the receive area, if they lie in it.
    pub fn ring(&self, off: u64, count: usize) -> Option<&[AtomicU32]> {
        let off = usize::try_from(off).ok()?;
        if !off.is_multiple_of(64) || off.checked_add(count.checked_mul(4)?)? > RECV_AREA {
            return None;
        }
        // SAFETY: the range lies in the receive area; atomics only.
        Some(unsafe { core::slice::from_raw_parts(self.base.add(RECV_OFF + off).cast(), count) })
    }

    /// A part of the segment, to be kept.
    pub fn share<T>(self: &Arc<Segment>, part: impl FnOnce(&Segment) -> &T) -> Shared<T> {
        Shared {
            part: NonNull::from(part(self)),
            _segment: self.clone(),
        }
    }

    /// The advertised receive entry at `off` bytes into the receive area, if it lies in it.
    pub fn recv(&self, off: u64, max_sge: usize) -> Option<(&RecvHead, &[RecvSge])> {
        let len = size_of::<RecvHead>() + max_sge * size_of::<RecvSge>();
        let off = usize::try_from(off).ok()?;
        if !off.is_multiple_of(64) || off.checked_add(len)? > RECV_AREA {
            return None;
        }
        Some(self.recv_entry(off, max_sge))
    }

    /// The same, of which the caller knows that it is aligned and lies in the area.
    #[inline]
    pub fn recv_entry(&self, off: usize, max_sge: usize) -> (&RecvHead, &[RecvSge]) {
        let len = size_of::<RecvHead>() + max_sge * size_of::<RecvSge>();
        assert!(off.is_multiple_of(64) && off <= RECV_AREA - len);
        let head: &RecvHead = self.at(RECV_OFF + off);
        // SAFETY: the range lies in the receive area; RecvSge is made of atomics.
        let sges = unsafe {
            core::slice::from_raw_parts(
                self.base.add(RECV_OFF + off + size_of::<RecvHead>()).cast(),
                max_sge,
            )
        };
        (head, sges)
    }
}

/// A part of a segment that keeps the segment: what the data path looks at all the time is one step away.
pub(crate) struct Shared<T> {
    part: NonNull<T>,
    _segment: Arc<Segment>,
}

// SAFETY: as a reference to `T` beside an `Arc` of the segment, which is both.
unsafe impl<T: Sync> Send for Shared<T> {}
// SAFETY: as above.
unsafe impl<T: Sync> Sync for Shared<T> {}

impl<T> Deref for Shared<T> {
    type Target = T;
    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: borrowed from the segment, whose mapping does not move and stays as long as `_segment` does.
        unsafe { self.part.as_ref() }
    }
}
