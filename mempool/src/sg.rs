//! Lists of segments: one work request, gathered by the device.

use crate::buf::Buf;
use crate::error::AllocError;
use crate::pool::Pool;
use crate::segment::Segment;
use crate::shared_buf::SharedBuf;
use std::fmt;
use verbs::{Gather, Private, SgeList};

/// Up to 16 segments that make one message, in order. The natural type of a send queue: anything that can be sent becomes one.
///
/// A list is one work request, whose entries the device gathers, and nothing is copied. Only those who ask get otherwise:
/// [`coalesce`](SgList::coalesce) copies small segments together, [`into_lists`](SgList::into_lists) makes several messages of it.
///
/// The first four segments lie in the list itself, so that it stays cheap to move; further ones in one heap block,
/// which is the only allocation it makes.
///
/// ```
/// # use mempool::{Pool, sg};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let pd = verbs::Device::open_spec("soft0")?.alloc_pd()?;
/// # let pool = Pool::builder(&pd).build()?;
/// let (head, tail) = pool.alloc_zeroed(100)?.split_at(4);
/// let shared = pool.alloc_from_slice(b"the same for many")?.freeze();
/// let list = sg![head, shared.slice(..8), tail];
/// assert_eq!((list.segments().count(), list.len()), (3, 108));
/// # Ok(()) }
/// ```
#[derive(Default)]
pub struct SgList {
    bytes: usize,
    inline: [Option<Segment>; SgList::INLINE],
    spilled: Vec<Segment>,
}

/// A list has no room for one more segment, which comes back.
#[derive(Debug, thiserror::Error)]
#[error(
    "a list of segments holds {}; copy small ones together, or use several messages",
    SgList::MAX
)]
pub struct SgListFull(pub Segment);

impl SgList {
    /// How many segments a list can have.
    pub const MAX: usize = 16;
    const INLINE: usize = 4;

    /// A list of no segments: a message of 0 bytes.
    #[inline]
    pub const fn new() -> SgList {
        SgList {
            bytes: 0,
            inline: [const { None }; SgList::INLINE],
            spilled: Vec::new(),
        }
    }

    /// A list of these segments; too many are a compile error.
    ///
    /// ```compile_fail
    /// # use mempool::{Buf, Segment, SgList};
    /// SgList::from_array([const { Segment::Buf(Buf::empty()) }; 17]);
    /// ```
    #[inline]
    pub fn from_array<const N: usize>(segments: [Segment; N]) -> SgList {
        const { assert!(N <= SgList::MAX, "a list of segments holds 16") };
        let mut list = SgList::new();
        for (at, segment) in segments.into_iter().enumerate() {
            list.put(at, segment);
        }
        list
    }

    /// Adds a segment at the end.
    ///
    /// # Errors
    /// [`SgListFull`], with the segment, if there are [`MAX`](SgList::MAX) already.
    #[inline]
    pub fn push(&mut self, segment: impl Into<Segment>) -> Result<(), SgListFull> {
        let (segment, count) = (segment.into(), self.segment_count());
        if count == SgList::MAX {
            return Err(SgListFull(segment));
        }
        self.put(count, segment);
        Ok(())
    }

    #[inline]
    fn put(&mut self, at: usize, segment: Segment) {
        self.bytes += segment.as_slice().len();
        match self.inline.get_mut(at) {
            Some(slot) => *slot = Some(segment),
            None => {
                if self.spilled.capacity() == 0 {
                    self.spilled.reserve_exact(SgList::MAX - SgList::INLINE);
                }
                self.spilled.push(segment);
            }
        }
    }

    /// Sum of the segments' lengths, in bytes.
    #[inline]
    pub fn len(&self) -> usize {
        self.bytes
    }

    /// Whether there are no bytes.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// How many segments there are, empty ones included.
    #[inline]
    pub fn segment_count(&self) -> usize {
        self.inline.iter().flatten().count() + self.spilled.len()
    }

    /// The segments, in order.
    #[inline]
    pub fn segments(&self) -> impl Iterator<Item = &Segment> {
        self.inline.iter().flatten().chain(&self.spilled)
    }

    /// The segment of that number.
    pub(crate) fn segment(&self, at: usize) -> Option<&Segment> {
        match self.inline.get(at) {
            Some(slot) => slot.as_ref(),
            None => self.spilled.get(at - SgList::INLINE),
        }
    }

    /// The segment of that number. Whoever changes its length makes the list anew, which counts again.
    pub(crate) fn segment_mut(&mut self, at: usize) -> Option<&mut Segment> {
        match self.inline.get_mut(at) {
            Some(slot) => slot.as_mut(),
            None => self.spilled.get_mut(at - SgList::INLINE),
        }
    }

    /// Adds a segment, of which there are fewer than [`MAX`](SgList::MAX).
    pub(crate) fn push_within(&mut self, segment: Segment) {
        let count = self.segment_count();
        debug_assert!(count < SgList::MAX);
        self.put(count, segment);
    }

    /// Takes the list apart.
    #[inline]
    pub fn into_segments(self) -> impl Iterator<Item = Segment> {
        self.inline.into_iter().flatten().chain(self.spilled)
    }

    /// The message as one vector. Copies.
    pub fn copy_to_vec(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.len());
        for segment in self.segments() {
            out.extend_from_slice(segment.as_slice());
        }
        out
    }

    /// The message as one buffer of `pool`. Copies.
    ///
    /// # Errors
    /// As [`Pool::alloc`].
    pub fn copy_to_buf(&self, pool: &Pool) -> Result<Buf, AllocError> {
        let mut out = pool.alloc(self.len())?;
        self.copy_to_slice(&mut out);
        Ok(out)
    }

    /// Copies the message to the start of `out`.
    ///
    /// # Panics
    /// If `out` is shorter.
    pub fn copy_to_slice(&self, out: &mut [u8]) {
        let mut end = 0;
        for segment in self.segments() {
            out[end..][..segment.len()].copy_from_slice(segment.as_slice());
            end += segment.len();
        }
    }
}

impl From<Segment> for SgList {
    #[inline]
    fn from(segment: Segment) -> SgList {
        SgList::from_array([segment])
    }
}

/// An empty list.
impl From<()> for SgList {
    fn from((): ()) -> SgList {
        SgList::new()
    }
}

impl From<Buf> for SgList {
    #[inline]
    fn from(buf: Buf) -> SgList {
        Segment::from(buf).into()
    }
}

impl From<SharedBuf> for SgList {
    #[inline]
    fn from(buf: SharedBuf) -> SgList {
        Segment::from(buf).into()
    }
}

impl From<Private<Vec<u8>>> for SgList {
    fn from(region: Private<Vec<u8>>) -> SgList {
        Segment::from(region).into()
    }
}

// SAFETY: each segment is `Gather`; moving the list moves no bytes.
unsafe impl Gather for SgList {
    #[inline]
    fn gather(&self, out: &mut SgeList) {
        for segment in self.segments() {
            segment.gather(out);
        }
    }
}

impl fmt::Debug for SgList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.segments()).finish()
    }
}

/// Makes an [`SgList`] of whatever can be a [`Segment`]. More than 16 are a compile error.
#[macro_export]
macro_rules! sg {
    ($($segment:expr),* $(,)?) => {
        $crate::SgList::from_array([$($crate::Segment::from($segment)),*])
    };
}

const _: () = assert!(size_of::<SgList>() <= 168);
