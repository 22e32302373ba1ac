//! What arrived.

use std::fmt;

use ibverbs_sys::ibv_wc_opcode;

use crate::exclusive::Exclusive;
use crate::{AddressHandle, Completion, Contiguous, Error, Grh, Pd, RKey, Wc, WcError};

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
    /// Bytes before the message.
    header: u32,
}

impl<T> Received<T> {
    pub(crate) fn new(buffer: T, wc: Wc, header: u32) -> Received<T> {
        Received { buffer, wc, header }
    }

    /// What has become of a receive whose completion this is.
    #[inline(always)]
    pub(crate) fn of(
        buffer: T,
        completion: &Completion,
        header: u32,
    ) -> Result<Received<T>, RecvError<T>> {
        match completion.outcome() {
            Ok(wc) => Ok(Received::new(buffer, wc, header)),
            Err(error) => Err(RecvError::new(buffer, error)),
        }
    }

    /// Length of the message, or of what was written. Without the header of a datagram.
    #[inline]
    pub fn byte_len(&self) -> u32 {
        self.wc.byte_len().saturating_sub(self.header)
    }

    /// Where in the buffer the message begins: at 40 in that of a datagram, else at 0.
    #[inline]
    pub fn header_len(&self) -> u32 {
        self.header
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

    /// The key that the peer invalidated, if it did.
    pub fn invalidated(&self) -> Option<RKey> {
        self.wc.invalidated()
    }

    /// Number of the queue pair that sent the datagram; `None` on connections.
    pub fn source_qpn(&self) -> Option<u32> {
        self.wc.source_qpn().filter(|_| self.header > 0)
    }

    /// The network header of the datagram; `None` on connections, and where there is none, within a subnet of InfiniBand.
    pub fn grh(&self) -> Option<Grh>
    where
        T: Contiguous,
    {
        let has = self.header > 0 && self.wc.has_grh();
        Grh::from_bytes(self.buffer.bytes()).filter(|_| has)
    }

    /// The way back to who sent the datagram, for queue pairs of `pd`.
    ///
    /// What the header says is the sender's word: whoever can send packets can have answers sent to others.
    ///
    /// # Errors
    /// [`Error::NoSource`] on connections; else as [`Pd::address`].
    #[doc(alias = "ibv_init_ah_from_wc")]
    #[doc(alias = "ibv_create_ah_from_wc")]
    pub fn sender(&self, pd: &Pd) -> Result<AddressHandle, Error>
    where
        T: Contiguous,
    {
        if self.header == 0 {
            return Err(Error::NoSource {
                why: "it came on a connection, whose peer is always the same",
            });
        }
        AddressHandle::answer(pd, &mut self.wc.to_sys(), self.grh().as_ref())
    }

    /// The message: [`byte_len`](Self::byte_len) bytes from [`header_len`](Self::header_len) on and no more. Empty after a WRITE.
    #[inline]
    pub fn bytes(&self) -> &[u8]
    where
        T: Contiguous,
    {
        let all = self.buffer.bytes();
        match self.by() {
            ReceivedBy::Send => {
                let end = all.len().min(self.wc.byte_len() as usize);
                &all[end.min(self.header as usize)..end]
            }
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
