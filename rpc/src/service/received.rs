//! Replies, as typed clients see them.

use super::encoding::Encoding;
use super::error::DecodeError;
use super::frame::Frame;
use crate::client::Reply;
use mempool::{AllocError, Buf, Pool, SgList};
use std::fmt;

/// A reply: its header, and the raw bytes behind it.
pub struct Received<E: Encoding> {
    reply: Reply,
    /// The bytes, if they are in the caller's destination.
    destination: Option<Buf>,
    frame: Frame,
    held: E::Held,
    /// Whether the first of the segments that come back is a header.
    header_sent: bool,
}

impl<E: Encoding> Received<E> {
    pub(super) fn new(
        reply: Reply,
        destination: Option<Buf>,
        version: u16,
        header_sent: bool,
    ) -> Result<Received<E>, DecodeError> {
        let mut destination = destination;
        if let Some(buf) = &mut destination {
            // The rest is as the caller left it.
            buf.truncate(reply.len());
        }
        let bytes = bytes(&reply, &destination);
        let frame = Frame::parse(bytes)?;
        if frame.version != version {
            return Err(DecodeError::Version {
                version: frame.version,
                expected: version,
            });
        }
        let held = frame.decode::<E>(bytes)?;
        Ok(Received {
            reply,
            destination,
            frame,
            held,
            header_sent,
        })
    }

    /// The header.
    pub fn header(&self) -> &E::Value {
        let bytes = bytes(&self.reply, &self.destination);
        E::get(&self.held, &bytes[self.frame.header()])
    }

    /// The bytes behind the header. Of a reply above [`CHUNK_MAX`](crate::CHUNK_MAX), those in its first chunk: see
    /// [`rest_chunks`](Self::rest_chunks).
    pub fn rest(&self) -> &[u8] {
        &bytes(&self.reply, &self.destination)[self.frame.header().end..]
    }

    /// The bytes behind the header, in pieces of at most [`CHUNK_MAX`](crate::CHUNK_MAX).
    pub fn rest_chunks(&self) -> impl Iterator<Item = &[u8]> {
        let others = self.reply.chunks().skip(1);
        std::iter::once(self.rest()).chain(others)
    }

    /// The bytes behind the header as a buffer, which is the caller's destination if the reply has been put there. Large ones are not copied.
    ///
    /// # Errors
    /// When the pool has no memory for the copy of small ones, and [`AllocError::TooLarge`] above [`CHUNK_MAX`](crate::CHUNK_MAX).
    pub fn into_rest(self, pool: &Pool) -> Result<Buf, AllocError> {
        let mut buf = match self.destination {
            Some(buf) => buf,
            None => self.reply.into_buf(pool)?,
        };
        buf.advance(self.frame.header().end);
        Ok(buf)
    }

    /// Like [`into_rest`](Self::into_rest), for replies of any length.
    ///
    /// # Errors
    /// When the pool has no memory for the copy of small ones.
    pub fn into_rest_chunks(self, pool: &Pool) -> Result<Vec<Buf>, AllocError> {
        let mut bufs = match self.destination {
            Some(buf) => vec![buf],
            None => self.reply.into_chunks(pool)?,
        };
        if let Some(first) = bufs.first_mut() {
            first.advance(self.frame.header().end);
        }
        Ok(bufs)
    }

    /// Takes back the segments that were sent behind the request's header, in order.
    pub fn take_segments(&mut self) -> SgList {
        let segments = self.reply.take_segments();
        if self.header_sent {
            without_first(segments)
        } else {
            segments
        }
    }
}

/// What has been decoded, where that is more than the bytes.
impl<E: Encoding<Held = <E as Encoding>::Value>> Received<E> {
    /// The header by value.
    pub fn into_header(self) -> E::Value {
        self.held
    }
}

fn bytes<'a>(reply: &'a Reply, destination: &'a Option<Buf>) -> &'a [u8] {
    match destination {
        Some(buf) => buf,
        None => reply.bytes(),
    }
}

/// A list without its first segment.
pub(super) fn without_first(list: SgList) -> SgList {
    let mut rest = SgList::new();
    for segment in list.into_segments().skip(1) {
        // Fewer than there were.
        let _ = rest.push(segment);
    }
    rest
}

impl<E: Encoding<Value: fmt::Debug>> fmt::Debug for Received<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Received")
            .field("header", self.header())
            .field("rest", &self.rest().len())
            .finish()
    }
}
