//! Receive queues.

use std::fmt;

use ibverbs_sys::ibv_recv_wr;

use crate::errno;
use crate::qp::{Half, Limits};
use crate::send_queue::full;
use crate::{
    Completion, Grh, PostError, PostErrorKind, QueueId, Received, RecvError, Scatter, SgeList,
    Stale,
};

/// The receiving half of a queue pair. It holds the buffers posted to it until messages have arrived in them.
///
/// `Send`, and not `Sync`: it can move to another thread, and posting takes `&mut self`.
#[doc(alias = "ibv_qp")]
pub struct RecvQueue<T> {
    pub(crate) half: Half<T>,
    pub(crate) limits: Limits,
    /// Bytes before each message.
    header: u32,
}

impl<T: Send + 'static> RecvQueue<T> {
    pub(crate) fn new(half: Half<T>) -> RecvQueue<T> {
        let limits = *half.core().limits();
        let header = if limits.datagrams { Grh::LEN } else { 0 };
        RecvQueue {
            half,
            limits,
            header,
        }
    }

    pub(crate) fn into_half(self) -> Half<T> {
        self.half
    }

    /// Its identity: completions with the same belong here.
    #[inline]
    pub fn id(&self) -> QueueId {
        self.half.id
    }

    /// Number of the queue pair.
    pub fn qp_num(&self) -> u32 {
        self.half.core().qp_num()
    }

    /// Posts a buffer for a message; messages take buffers in the order posted. Allocates nothing and never blocks.
    ///
    /// # Errors
    /// [`PostError`] says why and gives the buffer back; nothing was posted then.
    #[doc(alias = "ibv_post_recv")]
    #[inline(always)]
    pub fn post(&mut self, mut buffer: T) -> Result<(), PostError<T>>
    where
        T: Scatter,
    {
        let mut list = SgeList::new();
        // Runs code of the caller's type, and may panic: nothing is posted yet.
        buffer.scatter(&mut list);
        let (qp, id) = (self.half.qp, self.half.id);
        let max = self.limits.recv_sge as usize;
        let ring = self.half.ring();
        let Some(vacant) = ring.vacant() else {
            return Err(PostError::new(full(ring), buffer));
        };
        // No queue pair is built for more segments than a list holds.
        if list.len() > max {
            let kind = PostErrorKind::TooManySegments {
                count: list.len(),
                max,
            };
            return Err(PostError::new(kind, buffer));
        }
        let mut wr = ibv_recv_wr {
            wr_id: id.wr_id(vacant.seq()),
            next: std::ptr::null_mut(),
            sg_list: list.as_sys(),
            num_sge: list.len() as i32,
        };
        let mut bad = std::ptr::null_mut();
        // SAFETY: the queue pair is alive. The segments are those of `buffer`, which keep their addresses when it moves into
        // the ring, where it stays until the device is done: the contract of `Scatter`.
        let ret = unsafe { ibverbs_sys::inline::ibv_post_recv(qp, &mut wr, &mut bad) };
        if ret != 0
            && let Some(errno) = errno::refused(ret, bad, &wr)
        {
            return Err(PostError::new(PostErrorKind::Device { errno }, buffer));
        }
        vacant.fill(buffer);
        Ok(())
    }

    /// The buffer of a completed receive, with what arrived in it; or the buffer and why nothing did.
    ///
    /// # Errors
    /// [`Stale`] when the completion does not belong to a receive in flight here; it can be had back from the error.
    #[inline(always)]
    pub fn redeem(
        &mut self,
        completion: Completion,
    ) -> Result<Result<Received<T>, RecvError<T>>, Stale> {
        let queue = self.half.id;
        if !completion.is_of(queue) {
            return Err(Stale { completion, queue });
        }
        let Some(buffer) = self.half.ring().redeem(completion.seq()) else {
            return Err(Stale { completion, queue });
        };
        Ok(match completion.outcome() {
            Ok(wc) => Ok(Received::new(buffer, wc, self.header)),
            Err(error) => Err(RecvError::new(buffer, error)),
        })
    }

    /// A buffer whose own completion was dropped instead of redeemed, once that of a later receive was redeemed. What arrived
    /// in it, if anything, is not known.
    ///
    /// Such buffers keep their slots in use until they are taken.
    pub fn take_lost(&mut self) -> Option<T> {
        self.half.ring().pop_lost()
    }

    /// Receives posted and not completed.
    #[inline]
    pub fn outstanding(&self) -> u32 {
        self.half.ring_ref().in_flight()
    }

    /// Receives that can be posted now.
    #[inline]
    pub fn free_slots(&self) -> u32 {
        self.half.ring_ref().free()
    }

    /// Slots there are.
    #[inline]
    pub fn depth(&self) -> u32 {
        self.half.ring_ref().depth()
    }
}

impl<T> fmt::Debug for RecvQueue<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ring = self.half.ring_ref();
        f.debug_struct("RecvQueue")
            .field("id", &self.half.id)
            .field("outstanding", &ring.in_flight())
            .field("depth", &ring.depth())
            .finish()
    }
}
