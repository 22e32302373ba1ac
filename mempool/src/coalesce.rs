//! Fewer segments for the same message: by joining, and by copying small ones together.

use crate::buf::Buf;
use crate::error::AllocError;
use crate::pool::Pool;
use crate::segment::Segment;
use crate::sg::SgList;

/// Segments from `start` to before `end` that are copied into one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Run {
    start: usize,
    end: usize,
    bytes: usize,
}

/// A run is copied if at least so many of its segments have bytes.
const WORTH: usize = 2;

/// The runs of neighbours that are each shorter than `below`; only those with a segment to spare.
fn runs(lengths: impl Iterator<Item = usize>, below: usize) -> impl Iterator<Item = Run> {
    let mut lengths = lengths.enumerate().peekable();
    std::iter::from_fn(move || {
        loop {
            let (start, first) = lengths.find(|(_, len)| *len < below)?;
            let mut run = Run {
                start,
                end: start + 1,
                bytes: first,
            };
            let mut filled = usize::from(first > 0);
            while let Some((_, len)) = lengths.next_if(|(_, len)| *len < below) {
                run.end += 1;
                run.bytes += len;
                filled += usize::from(len > 0);
            }
            if filled >= WORTH {
                return Some(run);
            }
        }
    })
}

impl SgList {
    /// Joins segments that lie directly behind each other in the same slab, without copying, and drops empty ones. How many segments
    /// fewer there are.
    ///
    /// ```
    /// # use mempool::{Pool, sg};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let pd = verbs::Device::open_spec("soft0")?.alloc_pd()?;
    /// # let pool = Pool::builder(&pd).build()?;
    /// let (head, tail) = pool.alloc_zeroed(100)?.split_at(4);
    /// let mut list = sg![head, tail];
    /// assert_eq!((list.join_neighbours(), list.segment_count()), (1, 1));
    /// # Ok(()) }
    /// ```
    pub fn join_neighbours(&mut self) -> usize {
        let before = self.segment_count();
        let mut joined = SgList::new();
        let mut last: Option<Segment> = None;
        for segment in std::mem::take(self).into_segments() {
            if segment.is_empty() {
                continue;
            }
            let Some(previous) = &mut last else {
                last = Some(segment);
                continue;
            };
            if let Err(apart) = previous.join(segment) {
                joined.push_within(std::mem::replace(previous, apart));
            }
        }
        if let Some(segment) = last {
            joined.push_within(segment);
        }
        *self = joined;
        before - self.segment_count()
    }

    /// Copies neighbours that are each shorter than `below` into one buffer of `pool`, so that the message takes fewer entries of a work
    /// request. How many bytes were copied.
    ///
    /// The rest stays where it is, in its place. For a device each entry is one more read over the bus; copying some hundred bytes costs
    /// less. `usize::MAX` makes it one segment.
    ///
    /// # Errors
    /// As [`Pool::alloc`]; the list is as it was then.
    ///
    /// ```
    /// # use mempool::{Pool, sg};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let pd = verbs::Device::open_spec("soft0")?.alloc_pd()?;
    /// # let pool = Pool::builder(&pd).build()?;
    /// let (header, name) = (pool.alloc_from_slice(b"head")?, pool.alloc_from_slice(b"name")?);
    /// let mut list = sg![header, name, pool.alloc_zeroed(4096)?];
    /// assert_eq!(list.coalesce(&pool, 256)?, 8);
    /// assert_eq!((list.segment_count(), list.len()), (2, 4104));
    /// # Ok(()) }
    /// ```
    pub fn coalesce(&mut self, pool: &Pool, below: usize) -> Result<usize, AllocError> {
        let mut plan: [Option<(Run, Buf)>; SgList::MAX / WORTH] = [const { None }; _];
        let lengths = self.segments().map(Segment::len);
        for (place, run) in plan.iter_mut().zip(runs(lengths, below)) {
            *place = Some((run, pool.alloc(run.bytes)?));
        }
        let mut copied = 0;
        let mut plan = plan.into_iter().flatten().peekable();
        if plan.peek().is_none() {
            return Ok(0);
        }
        let mut segments = std::mem::take(self).into_segments().enumerate();
        while let Some((at, segment)) = segments.next() {
            let Some((run, mut buf)) = plan.next_if(|(run, _)| run.start == at) else {
                self.push_within(segment);
                continue;
            };
            let mut end = 0;
            let rest = segments.by_ref().take(run.end - run.start - 1);
            for segment in std::iter::once(segment).chain(rest.map(|(_, s)| s)) {
                buf[end..][..segment.len()].copy_from_slice(segment.as_slice());
                end += segment.len();
            }
            copied += run.bytes;
            self.push_within(buf.into());
        }
        Ok(copied)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_maximal_and_worth_it() {
        let of = |lengths: &[usize], below| {
            runs(lengths.iter().copied(), below)
                .map(|r| (r.start, r.end, r.bytes))
                .collect::<Vec<_>>()
        };
        assert_eq!(
            of(&[1, 2, 100, 3, 100, 4, 5, 6], 100),
            [(0, 2, 3), (5, 8, 15)]
        );
        assert_eq!(of(&[1, 0, 0, 100], 100), []);
        assert_eq!(of(&[0, 1, 0, 1], 100), [(0, 4, 2)]);
        assert_eq!(of(&[100, 100], 100), []);
        assert_eq!(of(&[100, 100], 101), [(0, 2, 200)]);
        assert_eq!(of(&[1, 1], 0), []);
        assert_eq!(of(&[], 9), []);
    }
}
