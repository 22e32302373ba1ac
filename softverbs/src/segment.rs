//! A view of a segment, one's own or a peer's.
//!
//! Invariant: `base` points at [`SEGMENT_LEN`] mapped bytes that stay mapped as long as the `ControlFile` beside it lives,
//! and that cannot be truncated (the file is sealed). All fields are atomics, so shared references are sound whatever the
//! owner does; a peer's mapping is read-only and is only loaded from.

use crate::layout::*;
use crate::os::memfd::ControlFile;
use core::mem::size_of;

pub(crate) struct Segment {
    base: *const u8,
    /// Keeps the mapping.
    _file: ControlFile,
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
            _file: file,
        }
    }

    fn at<T>(&self, off: usize) -> &T {
        debug_assert!(off + size_of::<T>() <= SEGMENT_LEN && off.is_multiple_of(align_of::<T>()));
        // SAFETY: in bounds and aligned by the callers below; atomics only (module invariant).
        unsafe { &*self.base.add(off).cast::<T>() }
    }

    pub fn header(&self) -> &Header {
        self.at(0)
    }

    pub fn qp(&self, index: usize) -> &QpAdvert {
        self.at(QP_OFF + (index % MAX_QP) * size_of::<QpAdvert>())
    }

    pub fn mr(&self, index: usize) -> &MrAdvert {
        self.at(MR_OFF + (index % MAX_MR) * size_of::<MrAdvert>())
    }

    pub fn arena(&self, index: usize) -> &ArenaAdvert {
        self.at(ARENA_OFF + (index % MAX_ARENA) * size_of::<ArenaAdvert>())
    }

    pub fn cq(&self, index: usize) -> &CqAdvert {
        self.at(CQ_OFF + (index % MAX_CQ) * size_of::<CqAdvert>())
    }

    pub fn channel(&self, index: usize) -> &ChannelAdvert {
        self.at(CHANNEL_OFF + (index % MAX_CHANNEL) * size_of::<ChannelAdvert>())
    }

    /// The advertised receive entry at `off` bytes into the receive area, if it lies in it.
    pub fn recv(&self, off: u64, max_sge: usize) -> Option<(&RecvHead, &[RecvSge])> {
        let len = size_of::<RecvHead>() + max_sge * size_of::<RecvSge>();
        let off = usize::try_from(off).ok()?;
        if !off.is_multiple_of(64) || off.checked_add(len)? > RECV_AREA {
            return None;
        }
        let head: &RecvHead = self.at(RECV_OFF + off);
        // SAFETY: the range was checked to lie in the receive area; RecvSge is made of atomics.
        let sges = unsafe {
            core::slice::from_raw_parts(
                self.base.add(RECV_OFF + off + size_of::<RecvHead>()).cast(),
                max_sge,
            )
        };
        Some((head, sges))
    }
}
