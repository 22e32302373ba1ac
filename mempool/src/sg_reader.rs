//! Reading a list of segments as one stream.

use crate::segment::Segment;
use crate::sg::SgList;
use std::io::{self, BufRead, Read};

/// Reads the bytes of a list from the first on, as [`Read`] and [`BufRead`]. Made by [`SgList::reader`].
#[derive(Debug, Clone)]
pub struct SgReader<'a> {
    list: &'a SgList,
    /// Number of the segment being read, and what was read of it.
    segment: usize,
    at: usize,
    left: usize,
}

impl<'a> SgReader<'a> {
    /// How many bytes are left.
    pub fn remaining(&self) -> usize {
        self.left
    }

    /// The next bytes that lie together; none at the end only.
    pub fn chunk(&self) -> &'a [u8] {
        let mut at = self.at;
        for segment in self.list.segments().skip(self.segment) {
            match &segment.as_slice()[at..] {
                [] => at = 0,
                chunk => return chunk,
            }
        }
        &[]
    }

    /// The next bytes, piece by piece.
    #[cfg(feature = "bytes")]
    pub(crate) fn chunks(&self) -> impl Iterator<Item = &'a [u8]> {
        let rest = self.list.segments().skip(self.segment).enumerate();
        let at = self.at;
        rest.map(move |(n, segment)| &segment.as_slice()[if n == 0 { at } else { 0 }..])
            .filter(|chunk| !chunk.is_empty())
    }

    /// Goes on by `count` bytes.
    ///
    /// # Panics
    /// If there are fewer left.
    pub fn advance(&mut self, mut count: usize) {
        assert!(count <= self.left, "{count} of {} bytes", self.left);
        self.left -= count;
        while count > 0 {
            let rest = self.segment_len() - self.at;
            if count < rest {
                self.at += count;
                return;
            }
            count -= rest;
            self.segment += 1;
            self.at = 0;
        }
    }

    fn segment_len(&self) -> usize {
        self.list.segment(self.segment).map_or(0, Segment::len)
    }
}

impl Read for SgReader<'_> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let mut filled = 0;
        while filled < out.len() && self.left > 0 {
            let chunk = self.chunk();
            let count = chunk.len().min(out.len() - filled);
            out[filled..][..count].copy_from_slice(&chunk[..count]);
            self.advance(count);
            filled += count;
        }
        Ok(filled)
    }
}

impl BufRead for SgReader<'_> {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        Ok(self.chunk())
    }

    fn consume(&mut self, count: usize) {
        self.advance(count);
    }
}

impl SgList {
    /// Reads the message from its start, as [`Read`] and [`BufRead`].
    ///
    /// ```
    /// # use mempool::{Pool, sg};
    /// # use std::io::BufRead;
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let pd = verbs::Device::open_spec("soft0")?.alloc_pd()?;
    /// # let pool = Pool::builder(&pd).build()?;
    /// let list = sg![pool.alloc_from_slice(b"one li")?, pool.alloc_from_slice(b"ne\nanother")?];
    /// let lines: Result<Vec<_>, _> = list.reader().lines().collect();
    /// assert_eq!(lines?, ["one line", "another"]);
    /// # Ok(()) }
    /// ```
    pub fn reader(&self) -> SgReader<'_> {
        SgReader {
            list: self,
            segment: 0,
            at: 0,
            left: self.len(),
        }
    }
}
