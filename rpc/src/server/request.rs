//! Requests, as handlers see them.

use crate::deadline::Deadline;
use crate::destination::too_large;
use crate::names::Method;
use mempool::{AllocError, Buf, Pool};
use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

/// A request. Its bytes are in memory that no key lets a peer write.
pub struct Request<'a> {
    pub(super) method: Method,
    pub(super) bytes: Bytes<'a>,
    pub(super) inline_limit: u32,
    pub(super) deadline: Deadline,
    pub(super) peer: &'a SocketAddr,
    pub(super) pool: &'a Pool,
}

pub(super) enum Bytes<'a> {
    /// In the receive entry it arrived in.
    Inline(&'a [u8]),
    /// In a buffer that it was READ into.
    Buf(Buf),
    /// In several, because there are so many.
    Chunks(Vec<Buf>),
}

impl Request<'_> {
    /// What is asked for.
    #[inline]
    pub fn method(&self) -> Method {
        self.method
    }

    /// All bytes of the request. Of more than [`CHUNK_MAX`](crate::CHUNK_MAX), which only come if the server has allowed them by
    /// [`max_message`](crate::Server::max_message), the first so many: see [`chunks`](Self::chunks).
    #[inline]
    pub fn body(&self) -> &[u8] {
        match &self.bytes {
            Bytes::Inline(bytes) => bytes,
            Bytes::Buf(buf) => buf,
            Bytes::Chunks(bufs) => bufs.first().map_or(&[], |buf| buf),
        }
    }

    /// Length of the request in bytes.
    pub fn len(&self) -> usize {
        self.chunks().map(<[u8]>::len).sum()
    }

    /// Whether the request has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// All bytes of the request, in pieces of at most [`CHUNK_MAX`](crate::CHUNK_MAX): mostly in one.
    pub fn chunks(&self) -> impl Iterator<Item = &[u8]> {
        let (first, rest) = match &self.bytes {
            Bytes::Chunks(bufs) => (None, bufs.as_slice()),
            _ => (Some(self.body()), Default::default()),
        };
        let first = first.filter(|bytes| !bytes.is_empty());
        first.into_iter().chain(rest.iter().map(|buf| &buf[..]))
    }

    /// The first bytes, at most as many as the connection's inline limit.
    pub fn head(&self) -> &[u8] {
        let body = self.body();
        &body[..body.len().min(self.inline_limit as usize)]
    }

    /// The bytes as a buffer to keep. Large ones (above the inline limit) are given as they are,
    /// small ones are copied.
    ///
    /// # Errors
    /// When the pool has no memory for the copy, and [`AllocError::TooLarge`] for more than [`CHUNK_MAX`](crate::CHUNK_MAX).
    pub fn take_body(self) -> Result<Buf, AllocError> {
        match self.bytes {
            Bytes::Inline(bytes) => self.pool.alloc_from_slice(bytes),
            Bytes::Buf(buf) => Ok(buf),
            Bytes::Chunks(bufs) => Err(too_large(&bufs)),
        }
    }

    /// Like [`take_body`](Self::take_body), for requests of any length: each buffer but the last has [`CHUNK_MAX`](crate::CHUNK_MAX) bytes.
    ///
    /// # Errors
    /// When the pool has no memory for the copy of a small one.
    pub fn take_chunks(self) -> Result<Vec<Buf>, AllocError> {
        match self.bytes {
            Bytes::Chunks(bufs) => Ok(bufs),
            _ => self.take_body().map(|buf| vec![buf]),
        }
    }

    /// The server's pool, for replies.
    pub fn pool(&self) -> &Pool {
        self.pool
    }

    /// When the caller stops waiting, on this end's clock; what the request took to get here is not
    /// known and not subtracted.
    pub fn deadline(&self) -> Deadline {
        self.deadline
    }

    /// Time the caller still waits; `None` without a limit.
    pub fn remaining(&self) -> Option<Duration> {
        self.deadline.remaining()
    }

    /// The client's address.
    pub fn peer(&self) -> SocketAddr {
        *self.peer
    }
}

impl fmt::Debug for Request<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Request")
            .field("method", &self.method)
            .field("len", &self.len())
            .field("peer", &self.peer)
            .finish_non_exhaustive()
    }
}
