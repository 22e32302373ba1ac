//! The traits of the `bytes` crate, and its `Bytes` without a copy.

use crate::buf::Buf;
use crate::sg_reader::SgReader;
use crate::shared_buf::SharedBuf;
use bytes::Bytes;
use std::io::IoSlice;

/// Reads from the front: what was read is given up.
impl bytes::Buf for Buf {
    #[inline]
    fn remaining(&self) -> usize {
        self.len()
    }

    #[inline]
    fn chunk(&self) -> &[u8] {
        self
    }

    #[inline]
    fn advance(&mut self, count: usize) {
        Buf::advance(self, count);
    }

    /// Without copying, as all of it keeps the slab.
    fn copy_to_bytes(&mut self, len: usize) -> Bytes {
        self.split_to(len).freeze().into()
    }
}

/// Reads from the front: what was read is given up.
impl bytes::Buf for SharedBuf {
    #[inline]
    fn remaining(&self) -> usize {
        self.len()
    }

    #[inline]
    fn chunk(&self) -> &[u8] {
        self
    }

    #[inline]
    fn advance(&mut self, count: usize) {
        SharedBuf::advance(self, count);
    }

    /// Without copying, as all of it keeps the slab.
    fn copy_to_bytes(&mut self, len: usize) -> Bytes {
        self.split_to(len).into()
    }
}

impl bytes::Buf for SgReader<'_> {
    fn remaining(&self) -> usize {
        SgReader::remaining(self)
    }

    fn chunk(&self) -> &[u8] {
        SgReader::chunk(self)
    }

    fn chunks_vectored<'a>(&'a self, out: &mut [IoSlice<'a>]) -> usize {
        let places = out.iter_mut().zip(self.chunks());
        places
            .map(|(place, chunk)| *place = IoSlice::new(chunk))
            .count()
    }

    fn advance(&mut self, count: usize) {
        SgReader::advance(self, count);
    }
}

/// Without copying: the slab goes back to the pool with the last clone or slice. Allocates a header, once.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let pd = verbs::Device::open_spec("soft0")?.alloc_pd()?;
/// # let pool = mempool::Pool::builder(&pd).build()?;
/// let shared = pool.alloc_from_slice(b"the same bytes")?.freeze();
/// let bytes = bytes::Bytes::from(shared.clone()); // to a web server, say
/// assert_eq!(bytes.as_ptr(), shared.as_ptr());
/// # Ok(()) }
/// ```
impl From<SharedBuf> for Bytes {
    fn from(buf: SharedBuf) -> Bytes {
        if buf.is_empty() {
            return Bytes::new();
        }
        Bytes::from_owner(buf)
    }
}

/// Without copying, as [`SharedBuf`].
impl From<Buf> for Bytes {
    fn from(buf: Buf) -> Bytes {
        buf.freeze().into()
    }
}
