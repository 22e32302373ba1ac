//! What arrived.

use std::fmt;

use ibverbs_sys::ibv_wc_opcode;

use crate::exclusive::Exclusive;
use crate::{Contiguous, Wc, WcError};

/// How a receive was used up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ReceivedBy {
    /// By a send: the message is in the buffer.
    Send,
    /// By a WRITE with immediate data: the bytes are where the peer wrote them, and the buffer is as it was.
    WriteWithImm,
}

/// A completed receive.
#[must_use]
pub struct Received<T> {
    buffer: T,
    wc: Wc,
}

impl<T> Received<T> {
    pub(crate) fn new(buffer: T, wc: Wc) -> Received<T> {
        Received { buffer, wc }
    }

    /// Length of the message, or of what was written.
    #[inline]
    pub fn byte_len(&self) -> u32 {
        self.wc.byte_len()
    }

    /// The peer's immediate data, if it sent some.
    #[inline]
    pub fn imm(&self) -> Option<u32> {
        self.wc.imm()
    }

    /// What used the receive up.
    #[inline]
    pub fn by(&self) -> ReceivedBy {
        if self.wc.opcode == ibv_wc_opcode::IBV_WC_RECV_RDMA_WITH_IMM {
            ReceivedBy::WriteWithImm
        } else {
            ReceivedBy::Send
        }
    }

    /// The message: the first [`byte_len`](Self::byte_len) bytes of the buffer and no more. Empty after a WRITE.
    #[inline]
    pub fn bytes(&self) -> &[u8]
    where
        T: Contiguous,
    {
        let all = self.buffer.bytes();
        match self.by() {
            ReceivedBy::Send => &all[..all.len().min(self.byte_len() as usize)],
            ReceivedBy::WriteWithImm => &[],
        }
    }

    /// The buffer, to look at.
    pub fn get_ref(&self) -> &T {
        &self.buffer
    }

    /// The buffer, all of it.
    pub fn into_inner(self) -> T {
        self.buffer
    }
}

impl<T> fmt::Debug for Received<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Received")
            .field("byte_len", &self.byte_len())
            .field("imm", &self.imm())
            .field("by", &self.by())
            .finish_non_exhaustive()
    }
}

/// A receive failed; the buffer comes back with [`into_inner`](Self::into_inner), its contents undefined.
///
/// `Send + Sync`, whatever `T` is. Making one allocates.
pub struct RecvError<T> {
    error: WcError,
    buffer: Exclusive<Box<T>>,
}

impl<T> RecvError<T> {
    #[cold]
    pub(crate) fn new(buffer: T, error: WcError) -> RecvError<T> {
        RecvError {
            error,
            buffer: Exclusive::new(Box::new(buffer)),
        }
    }

    /// What happened.
    pub fn error(&self) -> WcError {
        self.error
    }

    /// The buffer.
    pub fn into_inner(self) -> T {
        *self.buffer.into_inner()
    }
}

impl<T> fmt::Display for RecvError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "receive failed: {}", self.error)
    }
}

impl<T> fmt::Debug for RecvError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RecvError")
            .field("error", &self.error)
            .finish_non_exhaustive()
    }
}

impl<T> std::error::Error for RecvError<T> {}
