//! Replies.

use crate::error::Buffers;
use mempool::{AllocError, Buf, Pool, SgList};
use std::fmt;

/// A reply. It owns its bytes, which are in memory of this process alone.
pub struct Reply {
    bytes: Bytes,
    inline_limit: u32,
    buffers: Buffers,
}

/// Where the bytes of a reply are.
pub(super) enum Bytes {
    Empty,
    /// In a buffer of the pool.
    Buf(Buf),
    /// On the heap, because the pool had none left.
    Heap(Box<[u8]>, Pool),
    /// In the destination that came with the call; so many.
    Destination(usize),
}

impl Bytes {
    /// Copies a small reply.
    pub fn copy(bytes: &[u8], pool: &Pool) -> Bytes {
        if bytes.is_empty() {
            return Bytes::Empty;
        }
        match pool.alloc_from_slice(bytes) {
            Ok(buf) => Bytes::Buf(buf),
            Err(_) => Bytes::Heap(bytes.into(), pool.clone()),
        }
    }
}

impl Reply {
    pub(super) fn new(bytes: Bytes, inline_limit: u32, buffers: Buffers) -> Reply {
        Reply {
            bytes,
            inline_limit,
            buffers,
        }
    }

    /// Length of the reply in bytes, also when it is in the caller's destination.
    pub fn len(&self) -> usize {
        match &self.bytes {
            Bytes::Empty => 0,
            Bytes::Buf(buf) => buf.len(),
            Bytes::Heap(bytes, _) => bytes.len(),
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
            Bytes::Buf(buf) => buf,
            Bytes::Heap(bytes, _) => bytes,
        }
    }

    /// The first bytes, at most as many as the connection's inline limit.
    pub fn head(&self) -> &[u8] {
        let bytes = self.bytes();
        &bytes[..bytes.len().min(self.inline_limit as usize)]
    }

    /// The bytes as a buffer of the pool.
    ///
    /// No copy is made, except of a small reply that arrived while the pool had no memory.
    ///
    /// # Errors
    /// When in that case it still has none.
    pub fn into_buf(self) -> Result<Buf, AllocError> {
        match self.bytes {
            Bytes::Empty | Bytes::Destination(_) => Ok(Buf::default()),
            Bytes::Buf(buf) => Ok(buf),
            Bytes::Heap(bytes, pool) => pool.alloc_from_slice(&bytes),
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
