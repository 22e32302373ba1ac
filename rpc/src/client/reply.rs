//! Replies.

use super::small_reply::SmallReply;
use crate::error::Buffers;
use mempool::{AllocError, Buf, Pool, SgList};
use std::fmt;

/// A reply, or a part of one. It owns its bytes, which are in memory of this process alone.
pub struct Reply {
    bytes: Bytes,
    inline_limit: u32,
    more: bool,
    buffers: Buffers,
}

/// Where the bytes of a reply are.
pub(super) enum Bytes {
    Empty,
    /// Few.
    Small(SmallReply),
    /// In a buffer of the pool.
    Buf(Buf),
    /// On the heap, because the pool had none left.
    Heap(Box<[u8]>),
    /// In the destination that came with the call; so many.
    Destination(usize),
}

impl Bytes {
    /// Copies a small reply.
    #[inline(always)]
    pub fn copy(bytes: &[u8], pool: &Pool) -> Bytes {
        if bytes.is_empty() {
            return Bytes::Empty;
        }
        match pool.alloc_from_slice(bytes) {
            Ok(buf) => Bytes::Buf(buf),
            Err(_) => Bytes::Heap(bytes.into()),
        }
    }
}

impl Reply {
    pub(super) fn new(bytes: Bytes, inline_limit: u32, buffers: Buffers) -> Reply {
        Reply {
            bytes,
            inline_limit,
            more: false,
            buffers,
        }
    }

    /// The same, as a part with more to come.
    pub(super) fn with_more(mut self, more: bool) -> Reply {
        self.more = more;
        self
    }

    /// Whether this is a part with more to come.
    pub(super) fn has_more(&self) -> bool {
        self.more
    }

    /// A small reply, for which nothing is held.
    #[inline(always)]
    pub(super) fn small(bytes: SmallReply, inline_limit: u32) -> Reply {
        Reply {
            bytes: Bytes::Small(bytes),
            inline_limit,
            more: false,
            buffers: Buffers::default(),
        }
    }

    /// Length of the reply in bytes, also when it is in the caller's destination.
    pub fn len(&self) -> usize {
        match &self.bytes {
            Bytes::Empty => 0,
            Bytes::Small(small) => small.bytes().len(),
            Bytes::Buf(buf) => buf.len(),
            Bytes::Heap(bytes) => bytes.len(),
            Bytes::Destination(len) => *len,
        }
    }

    /// Whether the reply has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// All bytes of the reply; empty when they are in the caller's destination.
    pub fn bytes(&self) -> &[u8] {
        match &self.bytes {
            Bytes::Empty | Bytes::Destination(_) => &[],
            Bytes::Small(small) => small.bytes(),
            Bytes::Buf(buf) => buf,
            Bytes::Heap(bytes) => bytes,
        }
    }

    /// The first bytes, at most as many as the connection's inline limit.
    pub fn head(&self) -> &[u8] {
        let bytes = self.bytes();
        &bytes[..bytes.len().min(self.inline_limit as usize)]
    }

    /// The bytes as a buffer of a pool, usually of [`Client::pool`](crate::Client::pool): large ones as they are, small ones copied.
    ///
    /// # Errors
    /// When the pool has no memory for the copy.
    pub fn into_buf(self, pool: &Pool) -> Result<Buf, AllocError> {
        match self.bytes {
            Bytes::Empty | Bytes::Destination(_) => Ok(Buf::default()),
            Bytes::Buf(buf) => Ok(buf),
            Bytes::Small(small) => pool.alloc_from_slice(small.bytes()),
            Bytes::Heap(bytes) => pool.alloc_from_slice(&bytes),
        }
    }

    /// Takes back the segments that were sent, in order. Plain bytes, which are sent by copy, are
    /// not among them.
    pub fn take_segments(&mut self) -> SgList {
        self.buffers.take_segments()
    }

    /// Takes back the destination that came with the call.
    pub fn take_destination(&mut self) -> Option<Buf> {
        self.buffers.take_destination()
    }
}

impl AsRef<[u8]> for Reply {
    fn as_ref(&self) -> &[u8] {
        self.bytes()
    }
}

impl fmt::Debug for Reply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Reply({} bytes)", self.len())
    }
}
