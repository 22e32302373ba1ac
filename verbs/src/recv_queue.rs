//! Receive queues.

use std::fmt;

use ibverbs_sys::ibv_recv_wr;

use crate::completion::Words;
use crate::errno;
use crate::qp::{Half, Limits};
use crate::refusal::{failed, full, refuse, refuse_full};
use crate::template::{Segments, Template};
use crate::{
    Completion, Error, Grh, PostError, PostErrorKind, QueueId, Received, RecvError, Scatter,
    SgeList, Stale,
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
    template: Template<ibv_recv_wr>,
}

impl<T: Send + 'static> RecvQueue<T> {
    pub(crate) fn new(mut half: Half<T>) -> RecvQueue<T> {
        half.ring().in_order();
        let limits = *half.core().limits();
        let header = if limits.datagrams { Grh::LEN } else { 0 };
        RecvQueue {
            half,
            limits,
            header,
            template: Template::new(),
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
        let only = {
            let mut list = SgeList::new();
            // Runs code of the caller's type, and may panic: nothing is posted yet.
            buffer.scatter(&mut list);
            list.only()
        };
        let refused = match only {
            Some(segment) => self.post_segments(buffer, Segments::One(segment)),
            None => self.post_list(buffer),
        };
        match refused {
            None => Ok(()),
            Some(error) => Err(*error),
        }
    }

    /// Posts a buffer of no segment, or of several: a list in memory, unlike that of one.
    #[inline(never)]
    fn post_list(&mut self, mut buffer: T) -> Option<Box<PostError<T>>>
    where
        T: Scatter,
    {
        let mut list = SgeList::new();
        // As above; the list asked for again is the one that counts.
        buffer.scatter(&mut list);
        let (count, max) = (list.len(), self.limits.recv_sge as usize);
        // No queue pair is built for less than one segment, nor for more than a list holds.
        if count > 1 && count > max {
            let kind = PostErrorKind::TooManySegments { count, max };
            return refuse(kind, buffer);
        }
        self.post_segments(buffer, Segments::Listed(list.as_sys(), count))
    }

    /// `segments` are the buffer's.
    #[inline(always)]
    fn post_segments(&mut self, buffer: T, segments: Segments) -> Option<Box<PostError<T>>> {
        let qp = self.half.qp;
        let ring = self.half.ring();
        let Some(vacant) = ring.vacant() else {
            return refuse_full(ring, buffer);
        };
        let ready = self.template.ready(segments, |wr, list, count| {
            (wr.wr_id, wr.sg_list, wr.num_sge) = (vacant.id(), list, count);
        });
        // In the ring before it is posted, so that nothing is left to do afterwards; until then it can be taken out again.
        vacant.fill(buffer);
        // SAFETY: the queue pair is alive. The segments are those of the buffer, which keep their addresses when it moves into
        // the ring, where it stays until the device is done: the contract of `Scatter`.
        let ret = unsafe { ibverbs_sys::inline::ibv_post_recv(qp, ready.request, ready.bad) };
        if ret != 0 {
            // SAFETY: the template is this queue's.
            return unsafe { failed(ring, ret, ready) };
        }
        None
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
        // All that is usual in one condition, and all else in one place, far away: so what of the completion is only looked at there is
        // not even read here.
        let (cq, header) = (self.half.cq, self.header);
        let ring = self.half.ring();
        let unusual =
            completion.differs_from_success_on(cq) | ring.differs_from_next(completion.wr_id());
        // Looked for before it is taken: until something is written, nothing has to be read for the other way.
        if unusual == 0
            && ring.has_oldest()
            && let Some(buffer) = ring.redeem_next()
        {
            return Ok(Ok(Received::new(buffer, completion.success(), header)));
        }
        match self.redeem_other(completion.into_words()) {
            Other::Received(received) => Ok(Ok(received)),
            Other::Failed(error) => Ok(Err(error)),
            Other::Stale(stale) => Err(stale),
        }
    }

    /// A failure, or not the oldest, or not of this queue, or of nothing that was posted.
    #[cold]
    #[inline(never)]
    fn redeem_other(&mut self, completion: Words) -> Other<T> {
        let completion = Completion::from_words(completion);
        let queue = self.half.id;
        if completion.cq() != self.half.cq {
            return Other::Stale(Stale { completion, queue });
        }
        match self.half.ring().redeem(completion.wr_id()) {
            None => Other::Stale(Stale { completion, queue }),
            Some(buffer) => match Received::of(buffer, &completion, self.header) {
                Ok(received) => Other::Received(received),
                Err(error) => Other::Failed(error),
            },
        }
    }

    /// Posts a receive that no slot holds, beside `flying` others of that kind.
    ///
    /// # Safety
    /// Nobody has a reference to the memory, other than to cells, until the device is done with it.
    pub(crate) unsafe fn post_scoped(
        &mut self,
        list: &mut SgeList,
        wr_id: u64,
        flying: usize,
    ) -> Result<(), PostErrorKind> {
        let (count, max) = (list.len(), self.limits.recv_sge as usize);
        if count > max {
            return Err(PostErrorKind::TooManySegments { count, max });
        }
        let ring = self.half.ring_ref();
        if ring.free() as usize <= flying {
            return Err(full(ring));
        }
        let segments = Segments::Listed(list.as_sys(), count);
        let ready = self.template.ready(segments, |wr, list, count| {
            (wr.wr_id, wr.sg_list, wr.num_sge) = (wr_id, list, count);
        });
        let qp = self.half.qp;
        // SAFETY: the queue pair is alive; the segments are the caller's contract.
        let ret = unsafe { ibverbs_sys::inline::ibv_post_recv(qp, ready.request, ready.bad) };
        // SAFETY: the template is this queue's.
        match ret != 0 && unsafe { ready.names_refused() } {
            true => Err(PostErrorKind::Device {
                errno: errno::number(ret),
            }),
            false => Ok(()),
        }
    }

    /// Drives the queue pair to the error state: as [`SendQueue::set_error`](crate::SendQueue::set_error), for who has this half.
    ///
    /// # Errors
    /// When the device refuses.
    #[doc(alias = "IBV_QPS_ERR")]
    pub fn set_error(&mut self) -> Result<(), Error> {
        self.half.set_error()
    }

    /// Bytes before each message.
    pub(crate) fn header(&self) -> u32 {
        self.header
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

/// What has become of a receive, where that is not the usual. A type of its own, so that the usual result needs no place in memory.
enum Other<T> {
    Received(Received<T>),
    Failed(RecvError<T>),
    Stale(Stale),
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
