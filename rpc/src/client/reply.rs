//! Replies.

use super::small_reply::SmallReply;
use crate::destination::{Room, too_large};
use crate::error::Buffers;
use crate::kept::Kept;
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
    /// In what they were copied to when they arrived.
    Kept(Kept),
    /// In a buffer of the pool.
    Buf(Buf),
    /// In several, because there are so many.
    Chunks(Vec<Buf>),
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
    #[inline]
    pub fn len(&self) -> usize {
        match &self.bytes {
            Bytes::Empty => 0,
            Bytes::Small(small) => small.bytes().len(),
            Bytes::Kept(kept) => kept.bytes().len(),
            Bytes::Buf(buf) => buf.len(),
            Bytes::Chunks(bufs) => bufs.iter().map(|buf| buf.len()).sum(),
            Bytes::Heap(bytes) => bytes.len(),
            Bytes::Destination(len) => *len,
        }
    }

    /// Whether the reply has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// All bytes of the reply; empty when they are in the caller's destination. Of more than [`CHUNK_MAX`](crate::CHUNK_MAX), which only come if
    /// the client has asked for [`max_message`](crate::ClientBuilder::max_message), the first so many: see [`chunks`](Self::chunks).
    #[inline]
    pub fn bytes(&self) -> &[u8] {
        match &self.bytes {
            Bytes::Empty | Bytes::Destination(_) => &[],
            Bytes::Small(small) => small.bytes(),
            Bytes::Kept(kept) => kept.bytes(),
            Bytes::Buf(buf) => buf,
            Bytes::Chunks(bufs) => bufs.first().map_or(&[], |buf| buf),
            Bytes::Heap(bytes) => bytes,
        }
    }

    /// All bytes of the reply, in pieces of at most [`CHUNK_MAX`](crate::CHUNK_MAX): mostly in one. None when they are in the caller's destination.
    pub fn chunks(&self) -> impl Iterator<Item = &[u8]> {
        let (first, rest) = match &self.bytes {
            Bytes::Chunks(bufs) => (None, bufs.as_slice()),
            _ => (Some(self.bytes()), Default::default()),
        };
        let first = first.filter(|bytes| !bytes.is_empty());
        first.into_iter().chain(rest.iter().map(|buf| &buf[..]))
    }

    /// The first bytes, at most as many as the connection's inline limit.
    pub fn head(&self) -> &[u8] {
        let bytes = self.bytes();
        &bytes[..bytes.len().min(self.inline_limit as usize)]
    }

    /// The bytes as a buffer of a pool, usually of [`Client::pool`](crate::Client::pool): large ones as they are, small ones copied.
    ///
    /// # Errors
    /// When the pool has no memory for the copy, and [`AllocError::TooLarge`] for more than [`CHUNK_MAX`](crate::CHUNK_MAX).
    pub fn into_buf(self, pool: &Pool) -> Result<Buf, AllocError> {
        match self.bytes {
            Bytes::Empty | Bytes::Destination(_) => Ok(Buf::default()),
            Bytes::Buf(buf) => Ok(buf),
            Bytes::Chunks(bufs) => Err(too_large(&bufs)),
            Bytes::Small(small) => pool.alloc_from_slice(small.bytes()),
            Bytes::Kept(kept) => pool.alloc_from_slice(kept.bytes()),
            Bytes::Heap(bytes) => pool.alloc_from_slice(&bytes),
        }
    }

    /// Like [`into_buf`](Self::into_buf), for replies of any length: each buffer but the last has [`CHUNK_MAX`](crate::CHUNK_MAX) bytes.
    ///
    /// # Errors
    /// When the pool has no memory for the copy of a small one.
    pub fn into_chunks(self, pool: &Pool) -> Result<Vec<Buf>, AllocError> {
        match self.bytes {
            Bytes::Chunks(bufs) => Ok(bufs),
            _ => self.into_buf(pool).map(|buf| vec![buf]),
        }
    }

    /// Takes back the segments that were sent, in order. Plain bytes, which are sent by copy, are
    /// not among them.
    pub fn take_segments(&mut self) -> SgList {
        self.buffers.take_segments()
    }

    /// Takes back the destination that came with the call, if it was a buffer.
    pub fn take_destination(&mut self) -> Option<Buf> {
        self.buffers.take_destination()
    }

    /// Takes back the destination that came with the call, also if it was several buffers.
    pub fn take_destinations(&mut self) -> Vec<Buf> {
        self.buffers.take_destinations()
    }

    pub(crate) fn take_room(&mut self) -> Option<Room> {
        self.buffers.take_room()
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
