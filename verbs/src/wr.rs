//! A work request on its way to the send queue.

use ibverbs_sys::{ibv_send_flags, ibv_wr_opcode};

use crate::{Gather, PostError, RemoteRegion, SendQueue, SgeList, StoredAs};

/// Memory that the device will read: a send or WRITE.
pub struct Outgoing<T>(pub(crate) T);
/// Memory that the device will write: a READ.
pub struct Incoming<S>(pub(crate) S);

/// What a work request carries, and how the queue holds it.
pub trait Work<T> {
    /// Adds the segments.
    fn list(&mut self, out: &mut SgeList);
    /// Becomes what the queue holds, without moving the bytes.
    fn store(self) -> T;
}

impl<T: Gather> Work<T> for Outgoing<T> {
    #[inline]
    fn list(&mut self, out: &mut SgeList) {
        self.0.gather(out);
    }
    #[inline]
    fn store(self) -> T {
        self.0
    }
}

impl<T, S: StoredAs<T>> Work<T> for Incoming<S> {
    #[inline]
    fn list(&mut self, out: &mut SgeList) {
        self.0.scatter(out);
    }
    #[inline]
    fn store(self) -> T {
        self.0.store()
    }
}

/// The parts of a work request that do not depend on its memory.
#[derive(Clone, Copy)]
pub(crate) struct Op {
    pub(crate) opcode: ibv_wr_opcode,
    pub(crate) flags: u32,
    /// In network byte order.
    pub(crate) imm: u32,
    pub(crate) remote: Option<RemoteRegion>,
}

impl Op {
    pub(crate) fn new(opcode: ibv_wr_opcode, remote: Option<RemoteRegion>) -> Op {
        Op {
            opcode,
            flags: 0,
            imm: 0,
            remote,
        }
    }
}

/// A work request that is not posted yet: made by [`SendQueue::send`], [`write`](SendQueue::write) and
/// [`read`](SendQueue::read), finished by [`post`](Self::post). Dropping it drops the buffer.
#[doc(alias = "ibv_send_wr")]
#[must_use = "nothing is posted before .post()"]
pub struct Wr<'q, T, W = Outgoing<T>> {
    queue: &'q mut SendQueue<T>,
    work: W,
    op: Op,
}

impl<'q, T: Send + 'static, W: Work<T>> Wr<'q, T, W> {
    #[inline]
    pub(crate) fn new(queue: &'q mut SendQueue<T>, work: W, op: Op) -> Wr<'q, T, W> {
        Wr { queue, work, op }
    }

    /// Asks for a completion. Work without one comes back with the next that has one; a queue filled with such work only
    /// never drains.
    #[doc(alias = "IBV_SEND_SIGNALED")]
    #[inline]
    pub fn signaled(mut self) -> Self {
        self.op.flags |= ibv_send_flags::IBV_SEND_SIGNALED.0;
        self
    }

    /// Starts only when all READs and atomics before it are done.
    #[doc(alias = "IBV_SEND_FENCE")]
    #[inline]
    pub fn fence(mut self) -> Self {
        self.op.flags |= ibv_send_flags::IBV_SEND_FENCE.0;
        self
    }

    /// Posts it: the buffer belongs to the queue until its completion, or that of later work, is retired and the buffer taken.
    ///
    /// Allocates nothing and never blocks.
    ///
    /// # Errors
    /// [`PostError`] says why and gives the buffer back; nothing was posted then.
    #[doc(alias = "ibv_post_send")]
    #[inline(always)]
    pub fn post(self) -> Result<(), PostError<T>> {
        let Wr {
            queue,
            mut work,
            op,
        } = self;
        let mut list = SgeList::new();
        // Both run code of the caller's types, and may panic: nothing is posted yet.
        work.list(&mut list);
        let value = work.store();
        queue.post(value, &mut list, op)
    }
}

impl<T: Gather> Wr<'_, T> {
    /// Immediate data: 32 bits that the receiver finds in its completion. Makes a WRITE consume a receive of the peer.
    #[doc(alias = "IBV_WR_SEND_WITH_IMM")]
    #[doc(alias = "IBV_WR_RDMA_WRITE_WITH_IMM")]
    #[inline]
    pub fn imm(mut self, imm: u32) -> Self {
        self.op.imm = imm.to_be();
        self.op.opcode = if self.op.remote.is_some() {
            ibv_wr_opcode::IBV_WR_RDMA_WRITE_WITH_IMM
        } else {
            ibv_wr_opcode::IBV_WR_SEND_WITH_IMM
        };
        self
    }

    /// Lets the device copy the bytes while posting: quicker for small messages, up to
    /// [`RcBuilder::max_inline`](crate::RcBuilder::max_inline).
    #[doc(alias = "IBV_SEND_INLINE")]
    #[inline]
    pub fn inline(mut self) -> Self {
        self.op.flags |= ibv_send_flags::IBV_SEND_INLINE.0;
        self
    }

    /// Wakes a receiver that armed its completion queue for solicited completions only.
    #[doc(alias = "IBV_SEND_SOLICITED")]
    #[inline]
    pub fn solicited(mut self) -> Self {
        self.op.flags |= ibv_send_flags::IBV_SEND_SOLICITED.0;
        self
    }
}

impl<T, W> std::fmt::Debug for Wr<'_, T, W> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Wr")
            .field("queue", &self.queue)
            .field("opcode", &self.op.opcode)
            .finish_non_exhaustive()
    }
}
