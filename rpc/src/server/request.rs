//! Requests, as handlers see them.

use crate::deadline::Deadline;
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
}

impl Request<'_> {
    /// What is asked for.
    pub fn method(&self) -> Method {
        self.method
    }

    /// All bytes of the request.
    pub fn body(&self) -> &[u8] {
        match &self.bytes {
            Bytes::Inline(bytes) => bytes,
            Bytes::Buf(buf) => buf,
        }
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
    /// When the pool has no memory for the copy.
    pub fn take_body(self) -> Result<Buf, AllocError> {
        match self.bytes {
            Bytes::Inline(bytes) => self.pool.alloc_from_slice(bytes),
            Bytes::Buf(buf) => Ok(buf),
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
            .field("len", &self.body().len())
            .field("peer", &self.peer)
            .finish_non_exhaustive()
    }
}
