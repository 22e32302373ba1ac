//! Lists of buffers that a device fills.

use crate::buf::Buf;
use crate::segment::Segment;
use crate::sg::{SgList, SgListFull};
use std::fmt;
use verbs::{Private, Scatter, SgeList, StoredAs};

mod sealed {
    use super::{Buf, Private};

    pub trait Sealed {}
    impl Sealed for Buf {}
    impl Sealed for Private<Vec<u8>> {}
}

/// What a device may write to: a [`Buf`], or a vector registered on its own.
pub trait Writable: sealed::Sealed + Into<Segment> {}
impl Writable for Buf {}
impl Writable for Private<Vec<u8>> {}

/// A list has no room for one more buffer, which comes back.
#[derive(Debug, thiserror::Error)]
#[error(
    "a list of segments holds {}; use longer buffers, or several work requests",
    SgList::MAX
)]
pub struct ScatterListFull<B>(pub B);

/// Up to 16 buffers that one message, or the answer of one READ, fills in order.
///
/// A queue whose values are of type [`SgList`] holds it as one, so that READs and sends go through the same queue;
/// [`into_segments`](SgList::into_segments) and [`Segment::into_buf`] give the buffers back.
///
/// ```
/// # use mempool::{Pool, ScatterList, SgList};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let pd = verbs::Device::open_spec("soft0")?.alloc_pd()?;
/// # let pool = Pool::builder(&pd).build()?;
/// let mut pages = ScatterList::new();
/// for _ in 0..4 {
///     pages.push(pool.alloc(4096)?)?;
/// }
/// assert_eq!((pages.len(), pages.as_list().segment_count()), (16384, 4));
/// # Ok(()) }
/// ```
#[derive(Default)]
pub struct ScatterList(SgList);

impl ScatterList {
    /// A list of no buffers.
    pub const fn new() -> ScatterList {
        ScatterList(SgList::new())
    }

    /// Adds a buffer at the end.
    ///
    /// # Errors
    /// [`ScatterListFull`], with the buffer, if there are [`SgList::MAX`] already.
    pub fn push<B: Writable>(&mut self, buf: B) -> Result<(), ScatterListFull<B>> {
        if self.0.segment_count() == SgList::MAX {
            return Err(ScatterListFull(buf));
        }
        self.0.push_within(buf.into());
        Ok(())
    }

    /// Sum of the lengths, in bytes.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The buffers, to read.
    pub fn as_list(&self) -> &SgList {
        &self.0
    }

    /// The buffers, to send.
    pub fn into_list(self) -> SgList {
        self.0
    }
}

impl From<Buf> for ScatterList {
    fn from(buf: Buf) -> ScatterList {
        ScatterList(buf.into())
    }
}

impl<B: Writable> Extend<B> for ScatterList {
    /// # Panics
    /// If there is no room.
    fn extend<I: IntoIterator<Item = B>>(&mut self, bufs: I) {
        for buf in bufs {
            self.push(buf)
                .map_err(|full| SgListFull(full.0.into()))
                .expect("room");
        }
    }
}

// SAFETY: only what is `Scatter` by itself gets into the list; moving the list moves no bytes.
unsafe impl Scatter for ScatterList {
    fn scatter(&mut self, out: &mut SgeList) {
        for at in 0..self.0.segment_count() {
            match self.0.segment_mut(at) {
                Some(Segment::Buf(buf)) => buf.scatter(out),
                Some(Segment::Region(region)) => region.scatter(out),
                // Nothing else is ever put in.
                _ => {}
            }
        }
    }
}

// SAFETY: the list holds the buffers themselves, and gives no references while it is in a queue.
unsafe impl StoredAs<SgList> for ScatterList {
    fn store(self) -> SgList {
        self.0
    }
}

impl fmt::Debug for ScatterList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
