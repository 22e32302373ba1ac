//! Writing into a buffer through `std::io`.

use crate::buf::Buf;
use std::io;

/// A buffer being filled from its start. Made by [`Buf::into_writer`].
///
/// A write that does not fit writes what fits; `write_all` then fails with [`io::ErrorKind::WriteZero`].
///
/// ```
/// # use std::io::Write;
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let pd = verbs::Device::open_spec("soft0")?.alloc_pd()?;
/// # let pool = mempool::Pool::builder(&pd).build()?;
/// let mut writer = pool.alloc(100)?.into_writer();
/// write!(writer, "{} bytes left", writer.remaining())?;
/// let text = writer.finish();
/// assert_eq!(&text[..], b"100 bytes left");
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct Writer {
    buf: Buf,
    written: usize,
}

impl Writer {
    pub(crate) fn new(buf: Buf) -> Writer {
        Writer { buf, written: 0 }
    }

    /// Bytes written so far.
    pub fn written(&self) -> &[u8] {
        &self.buf[..self.written]
    }

    /// How many more bytes fit.
    pub fn remaining(&self) -> usize {
        self.buf.len() - self.written
    }

    /// The buffer, shortened to what was written.
    pub fn finish(mut self) -> Buf {
        self.buf.truncate(self.written);
        self.buf
    }

    /// The buffer in its full length.
    pub fn into_inner(self) -> Buf {
        self.buf
    }
}

impl io::Write for Writer {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let n = bytes.len().min(self.remaining());
        self.buf[self.written..][..n].copy_from_slice(&bytes[..n]);
        self.written += n;
        Ok(n)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
