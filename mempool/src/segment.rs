//! What a list of segments is made of.

use crate::buf::Buf;
use crate::shared_buf::SharedBuf;
use std::fmt;
use std::sync::Arc;
use verbs::{Gather, Memory, MemoryMut, Private, Readable, SgeList};

/// Memory that can be a segment although this crate does not know its type: registered on its own, or a region of somebody else's making.
///
/// A segment of a list can be read by the thread that holds the list, so it has bytes; memory that a peer may write has none, and is sent by itself.
pub trait ForeignSegment: Gather + Sync + fmt::Debug {
    /// What [`gather`](Gather::gather) names, in the same order.
    fn bytes(&self) -> &[u8];
}

impl<M: MemoryMut + Sync> ForeignSegment for Private<M> {
    fn bytes(&self) -> &[u8] {
        self
    }
}

impl<M: Memory + Sync> ForeignSegment for Readable<M> {
    fn bytes(&self) -> &[u8] {
        self
    }
}

impl<M: Memory + Sync> ForeignSegment for Arc<Readable<M>> {
    fn bytes(&self) -> &[u8] {
        self
    }
}

/// One segment of an [`SgList`](crate::SgList).
#[derive(Debug)]
#[non_exhaustive]
pub enum Segment {
    /// A buffer of a pool.
    Buf(Buf),
    /// A frozen buffer of a pool, or a part of one.
    SharedBuf(SharedBuf),
    /// A vector registered on its own. Boxed, as it is several times the size of the others.
    Region(Box<Private<Vec<u8>>>),
    /// Anything else that can be sent and read.
    Foreign(Box<dyn ForeignSegment>),
}

impl Segment {
    /// A segment of any memory that can be one. Allocates a box.
    ///
    /// ```
    /// # use mempool::{Pool, Segment, sg};
    /// # use std::sync::Arc;
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let pd = verbs::Device::open_spec("soft0")?.alloc_pd()?;
    /// # let pool = Pool::builder(&pd).build()?;
    /// let page = Arc::new(pd.readable(vec![7; 4096])?); // peers may READ it, and we send it
    /// let list = sg![pool.alloc_from_slice(b"page")?, Segment::foreign(page.clone())];
    /// assert_eq!(list.len(), 4100);
    /// # Ok(()) }
    /// ```
    pub fn foreign(segment: impl ForeignSegment) -> Segment {
        Segment::Foreign(Box::new(segment))
    }

    /// The bytes.
    pub fn as_slice(&self) -> &[u8] {
        match self {
            Segment::Buf(buf) => buf,
            Segment::SharedBuf(buf) => buf,
            Segment::Region(region) => region,
            Segment::Foreign(segment) => segment.bytes(),
        }
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.as_slice().len()
    }

    /// Whether there are no bytes. Such a segment takes no entry of a work request.
    pub fn is_empty(&self) -> bool {
        self.as_slice().is_empty()
    }

    /// The unique buffer, if it is one.
    ///
    /// # Errors
    /// Gives the segment back if it is none.
    pub fn into_buf(self) -> Result<Buf, Segment> {
        match self {
            Segment::Buf(buf) => Ok(buf),
            other => Err(other),
        }
    }

    /// Joins with what lies directly behind, without copying.
    ///
    /// # Errors
    /// Gives `next` back if it does not lie directly behind in the same slab, or one of the two is frozen and the other is not.
    pub(crate) fn join(&mut self, next: Segment) -> Result<(), Segment> {
        match (self, next) {
            (Segment::Buf(buf), Segment::Buf(next)) => buf.unsplit(next).map_err(Segment::Buf),
            (Segment::SharedBuf(buf), Segment::SharedBuf(next)) => {
                buf.unsplit(next).map_err(Segment::SharedBuf)
            }
            (_, next) => Err(next),
        }
    }

    /// Keeps `..at` and returns `at..`; `None`, and nothing done, if the memory is of one piece.
    pub(crate) fn split_off(&mut self, at: usize) -> Option<Segment> {
        match self {
            Segment::Buf(buf) => Some(buf.split_off(at).into()),
            Segment::SharedBuf(buf) => Some(buf.split_off(at).into()),
            Segment::Region(_) | Segment::Foreign(_) => None,
        }
    }
}

impl AsRef<[u8]> for Segment {
    fn as_ref(&self) -> &[u8] {
        self.as_slice()
    }
}

impl From<Buf> for Segment {
    #[inline]
    fn from(buf: Buf) -> Segment {
        Segment::Buf(buf)
    }
}

impl From<SharedBuf> for Segment {
    #[inline]
    fn from(buf: SharedBuf) -> Segment {
        Segment::SharedBuf(buf)
    }
}

impl From<Private<Vec<u8>>> for Segment {
    fn from(region: Private<Vec<u8>>) -> Segment {
        Segment::Region(Box::new(region))
    }
}

impl From<Box<dyn ForeignSegment>> for Segment {
    fn from(segment: Box<dyn ForeignSegment>) -> Segment {
        Segment::Foreign(segment)
    }
}

// SAFETY: each kind of segment is `Gather` by itself.
unsafe impl Gather for Segment {
    #[inline]
    fn gather(&self, out: &mut SgeList) {
        match self {
            Segment::Buf(buf) => buf.gather(out),
            Segment::SharedBuf(buf) => buf.gather(out),
            Segment::Region(region) => region.gather(out),
            Segment::Foreign(segment) => segment.gather(out),
        }
    }
}
