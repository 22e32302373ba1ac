//! Writing into a buffer through `std::io`.

use crate::buf::Buf;
use std::io::{self, Seek, SeekFrom, Write};

/// A buffer being filled from its start. Made by [`Buf::into_writer`].
///
/// A write that does not fit writes what fits; `write_all` then fails with [`io::ErrorKind::WriteZero`]. One can seek, to fill in what is
/// known only afterwards; what is skipped by seeking beyond the end of what was written becomes zero with the next write.
///
/// ```
/// # use std::io::{Seek, SeekFrom, Write};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let pd = verbs::Device::open_spec("soft0")?.alloc_pd()?;
/// # let pool = mempool::Pool::builder(&pd).build()?;
/// let mut writer = pool.alloc(100)?.into_writer();
/// writer.seek(SeekFrom::Start(1))?;
/// write!(writer, "{} bytes left", writer.remaining())?;
/// let len = writer.written().len();
/// writer.rewind()?;
/// writer.write_all(&[len as u8])?;
/// let text = writer.finish();
/// assert_eq!((text[0], &text[1..]), (14, &b"99 bytes left"[..]));
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct Writer {
    buf: Buf,
    /// Where the next byte goes; may lie beyond the buffer.
    at: usize,
    /// Bytes from the start that were written.
    end: usize,
}

impl Writer {
    pub(crate) fn new(buf: Buf) -> Writer {
        Writer { buf, at: 0, end: 0 }
    }

    /// What was written so far, from the start of the buffer.
    pub fn written(&self) -> &[u8] {
        &self.buf[..self.end]
    }

    /// How many more bytes fit behind the current position.
    pub fn remaining(&self) -> usize {
        self.buf.len().saturating_sub(self.at)
    }

    /// The buffer, shortened to what was written.
    pub fn finish(mut self) -> Buf {
        self.buf.truncate(self.end);
        self.buf
    }

    /// The buffer in its full length.
    pub fn into_inner(self) -> Buf {
        self.buf
    }

    /// Room for the next bytes. What was skipped is zeroed, since it may hold what earlier buffers left.
    fn room(&mut self) -> &mut [u8] {
        let start = self.at.min(self.buf.len());
        if self.end < start {
            self.buf[self.end..start].fill(0);
            self.end = start;
        }
        &mut self.buf[start..]
    }

    /// The start of [`room`](Writer::room) was filled.
    fn filled(&mut self, count: usize) {
        self.at += count;
        self.end = self.end.max(self.at);
    }
}

impl Write for Writer {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let count = bytes.len().min(self.remaining());
        if count > 0 {
            self.room()[..count].copy_from_slice(&bytes[..count]);
            self.filled(count);
        }
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The end is that of what was written.
impl Seek for Writer {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let at = match to {
            SeekFrom::Start(at) => Some(at),
            SeekFrom::Current(by) => (self.at as u64).checked_add_signed(by),
            SeekFrom::End(by) => (self.end as u64).checked_add_signed(by),
        };
        let at = at.and_then(|at| usize::try_from(at).ok()).ok_or_else(|| {
            io::Error::new(
                io::ErrorKind::InvalidInput,
                "seek to before the start, or beyond what can be counted",
            )
        })?;
        self.at = at;
        Ok(at as u64)
    }
}

#[cfg(feature = "bytes")]
mod bytes_mut {
    use super::Writer;
    use bytes::buf::UninitSlice;

    // SAFETY: `chunk_mut` always gives the bytes from the current position to the end of the buffer, and `advance_mut` goes on by as many
    // as were initialised of them; all are initialised in any case.
    unsafe impl bytes::BufMut for Writer {
        fn remaining_mut(&self) -> usize {
            self.remaining()
        }

        unsafe fn advance_mut(&mut self, count: usize) {
            assert!(
                count <= self.remaining(),
                "{count} of {} bytes",
                self.remaining()
            );
            if count > 0 {
                self.filled(count);
            }
        }

        fn chunk_mut(&mut self) -> &mut UninitSlice {
            UninitSlice::new(self.room())
        }
    }
}
