//! One list as several.

use crate::segment::Segment;
use crate::sg::SgList;

/// A list cannot be parted at a byte that is amid memory of one piece.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "segment {segment} is registered on its own and cannot be parted {within} bytes from its start; part the list where it begins or ends, or copy it into a buffer of the pool"
)]
pub struct CannotPart {
    /// Number of the segment in the list.
    pub segment: usize,
    /// How many of its bytes lie before.
    pub within: usize,
}

impl SgList {
    /// Keeps `..at` and returns `at..`, in bytes, without copying.
    ///
    /// # Errors
    /// [`CannotPart`] if that is amid memory that is not the pool's. The list is as it was then.
    ///
    /// # Panics
    /// If `at` is greater than the length.
    ///
    /// ```
    /// # use mempool::{Pool, sg};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let pd = verbs::Device::open_spec("soft0")?.alloc_pd()?;
    /// # let pool = Pool::builder(&pd).build()?;
    /// let mut list = sg![pool.alloc_from_slice(b"header")?, pool.alloc_from_slice(b"body")?];
    /// let rest = list.split_off(8)?;
    /// assert_eq!((list.copy_to_vec(), rest.copy_to_vec()), (b"headerbo".to_vec(), b"dy".to_vec()));
    /// # Ok(()) }
    /// ```
    pub fn split_off(&mut self, at: usize) -> Result<SgList, CannotPart> {
        assert!(at <= self.len(), "split at {at} of {} bytes", self.len());
        // The segment with the first byte of the rest, and how many of its bytes stay.
        let mut within = at;
        let Some(segment) = self.segments().position(|segment| {
            let before = within < segment.len();
            if !before {
                within -= segment.len();
            }
            before
        }) else {
            return Ok(SgList::new());
        };
        let first = match within {
            0 => None,
            _ => {
                let parted = self.segment_mut(segment).and_then(|s| s.split_off(within));
                Some(parted.ok_or(CannotPart { segment, within })?)
            }
        };
        let (mut head, mut tail) = (SgList::new(), SgList::new());
        let keep = segment + usize::from(first.is_some());
        let mut segments = std::mem::take(self).into_segments();
        segments
            .by_ref()
            .take(keep)
            .for_each(|s| head.push_within(s));
        // As many as before at most, since one at least has stayed if one was parted.
        first
            .into_iter()
            .chain(segments)
            .for_each(|s| tail.push_within(s));
        *self = head;
        Ok(tail)
    }

    /// Several lists of at most `max_segments` segments each, in order: for devices whose work requests take fewer than this list has. Empty
    /// segments are dropped; a list of no bytes stays one list.
    ///
    /// Each list is a message of its own for the peer. Nothing does this unasked; [`coalesce`](SgList::coalesce) often makes it needless.
    ///
    /// # Panics
    /// If `max_segments` is 0.
    pub fn into_lists(self, max_segments: usize) -> impl Iterator<Item = SgList> {
        assert!(max_segments > 0, "lists of no segments carry no bytes");
        let mut segments = self.into_segments().filter(|s| !s.is_empty()).peekable();
        let mut first = true;
        std::iter::from_fn(move || {
            if segments.peek().is_none() && !std::mem::take(&mut first) {
                return None;
            }
            first = false;
            let mut list = SgList::new();
            let part = segments.by_ref().take(max_segments.min(SgList::MAX));
            part.for_each(|segment: Segment| list.push_within(segment));
            Some(list)
        })
    }
}
