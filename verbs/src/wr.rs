//! A work request on its way to the send queue.

use ibverbs_sys::{ibv_send_flags, ibv_send_wr, ibv_wr_opcode};

use std::marker::PhantomData;

use crate::{
    Batch, Destination, Gather, PostError, RKey, RemoteRegion, SendQueue, SgeList, StoredAs,
};

/// Memory that the device will read: a send or WRITE.
pub struct Outgoing<T>(pub(crate) T);
/// Memory that the device will write: a READ.
pub struct Incoming<S>(pub(crate) S);
/// A word that the device will write: an atomic's old value.
pub struct Word<S> {
    into: S,
    /// What is added, or compared and swapped in.
    operands: [u64; 2],
}

impl<S> Word<S> {
    #[inline(always)]
    pub(crate) fn new(into: S, operands: [u64; 2]) -> Word<S> {
        Word { into, operands }
    }
}

/// What a work request does with its memory.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// The device reads it.
    Outgoing,
    /// A READ.
    Read,
    /// An atomic.
    Atomic,
    /// The device reads it, and sends it where the operands say.
    Datagram,
}

impl Kind {
    /// Whether something comes back: there must be room for that on both sides.
    #[inline(always)]
    pub(crate) fn fetches(self) -> bool {
        matches!(self, Kind::Read | Kind::Atomic)
    }
}

/// What a work request carries, and how the queue holds it.
pub trait Work<T> {
    /// Known to the compiler, so that a send pays for no check of a READ.
    const KIND: Kind;
    /// Whether the segments lie in what a batch keeps, and their addresses count from its start.
    const KEPT: bool = false;
    /// Adds the segments.
    fn list(&mut self, out: &mut SgeList);
    /// Of an atomic or a datagram.
    #[inline(always)]
    fn operands(&self) -> [u64; 2] {
        [0; 2]
    }
    /// Of a datagram.
    #[inline(always)]
    fn to(&self) -> Option<&Destination> {
        None
    }
    /// Becomes what the queue holds, without moving the bytes.
    fn store(self) -> T;
}

impl<T: Gather> Work<T> for Outgoing<T> {
    const KIND: Kind = Kind::Outgoing;
    #[inline(always)]
    fn list(&mut self, out: &mut SgeList) {
        self.0.gather(out);
    }
    #[inline(always)]
    fn store(self) -> T {
        self.0
    }
}

impl<T, S: StoredAs<T>> Work<T> for Incoming<S> {
    const KIND: Kind = Kind::Read;
    #[inline(always)]
    fn list(&mut self, out: &mut SgeList) {
        self.0.scatter(out);
    }
    #[inline(always)]
    fn store(self) -> T {
        self.0.store()
    }
}

impl<T, S: StoredAs<T>> Work<T> for Word<S> {
    const KIND: Kind = Kind::Atomic;
    #[inline(always)]
    fn list(&mut self, out: &mut SgeList) {
        self.into.scatter(out);
    }
    #[inline(always)]
    fn operands(&self) -> [u64; 2] {
        self.operands
    }
    #[inline(always)]
    fn store(self) -> T {
        self.into.store()
    }
}

/// Work that takes bytes to the peer, so that immediate data can go with it.
pub trait Carries {}

impl<T: Gather> Carries for Outgoing<T> {}

/// An [`Op`] on its way to what is seldom needed.
pub(crate) struct OpWords([u64; 5]);

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
    /// Bytes that an atomic works on.
    pub(crate) const WORD: u64 = 8;

    #[inline(always)]
    pub(crate) fn new(opcode: ibv_wr_opcode, remote: Option<RemoteRegion>) -> Op {
        Op {
            opcode,
            flags: 0,
            imm: 0,
            remote,
        }
    }

    /// In words, for a call of what is seldom needed: see [`Completion::into_words`](crate::Completion::into_words).
    #[inline(always)]
    pub(crate) fn into_words(self) -> OpWords {
        let both = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
        let remote = self.remote.unwrap_or(RemoteRegion {
            addr: 0,
            len: 0,
            rkey: RKey(0),
        });
        OpWords([
            both(self.opcode.0, self.flags),
            both(self.imm, self.remote.is_some().into()),
            remote.addr,
            remote.len,
            remote.rkey.0.into(),
        ])
    }

    /// The reverse of [`into_words`](Self::into_words).
    pub(crate) fn from_words(words: OpWords) -> Op {
        let [how, imm, addr, len, rkey] = words.0;
        let remote = RemoteRegion {
            addr,
            len,
            rkey: RKey(rkey as u32),
        };
        Op {
            opcode: ibv_wr_opcode(how as u32),
            flags: (how >> 32) as u32,
            imm: imm as u32,
            remote: (imm >> 32 != 0).then_some(remote),
        }
    }

    /// With a completion of its own.
    #[inline(always)]
    pub(crate) fn signaled(mut self) -> Op {
        self.flags |= ibv_send_flags::IBV_SEND_SIGNALED.0;
        self
    }

    /// Bytes there are at the other end, where it says.
    #[inline(always)]
    pub(crate) fn remote_len(&self) -> u64 {
        self.remote.map_or(u64::MAX, |remote| remote.len)
    }

    #[inline(always)]
    pub(crate) fn is_inline(&self) -> bool {
        self.flags & ibv_send_flags::IBV_SEND_INLINE.0 != 0
    }

    /// The request as the verbs take it; the segments are the list's.
    #[inline(always)]
    pub(crate) fn request(&self, wr_id: u64, kind: Kind, operands: [u64; 2]) -> ibv_send_wr {
        let mut wr = ibv_send_wr::default();
        self.fill(&mut wr, wr_id, kind, operands);
        wr
    }

    /// Writes all that devices read of a request of this kind, but for the segments.
    #[inline(always)]
    pub(crate) fn fill(&self, wr: &mut ibv_send_wr, wr_id: u64, kind: Kind, operands: [u64; 2]) {
        (wr.wr_id, wr.opcode, wr.send_flags) = (wr_id, self.opcode, self.flags);
        wr.__bindgen_anon_1.imm_data = self.imm;
        if kind == Kind::Datagram {
            let [ah, to] = operands;
            wr.wr.ud.ah = std::ptr::with_exposed_provenance_mut(ah as usize);
            (wr.wr.ud.remote_qpn, wr.wr.ud.remote_qkey) = ((to >> 32) as u32, to as u32);
        } else if let Some(remote) = self.remote {
            if kind == Kind::Atomic {
                wr.wr.atomic.remote_addr = remote.addr;
                wr.wr.atomic.compare_add = operands[0];
                wr.wr.atomic.swap = operands[1];
                wr.wr.atomic.rkey = remote.rkey.0;
            } else {
                wr.wr.rdma.remote_addr = remote.addr;
                wr.wr.rdma.rkey = remote.rkey.0;
            }
        }
    }
}

/// A work request that is not posted yet: made by [`SendQueue::send`], [`write`](SendQueue::write), [`read`](SendQueue::read),
/// [`compare_and_swap`](SendQueue::compare_and_swap) and [`fetch_and_add`](SendQueue::fetch_and_add), finished by [`post`](Self::post); or by those of
/// the same names of a [`Batch`], finished by [`add`](Self::add). Dropping it drops the buffer.
#[doc(alias = "ibv_send_wr")]
#[must_use = "nothing is posted before .post(), or .add() to a batch"]
pub struct Wr<'q, T, W = Outgoing<T>, Q = SendQueue<T>> {
    queue: &'q mut Q,
    work: W,
    op: Op,
    holds: PhantomData<T>,
}

// As the methods of the same names of queues and batches.

impl<'q, T: Gather, Q> Wr<'q, T, Outgoing<T>, Q> {
    #[inline(always)]
    pub(crate) fn send(queue: &'q mut Q, work: T) -> Self {
        Wr::new(
            queue,
            Outgoing(work),
            Op::new(ibv_wr_opcode::IBV_WR_SEND, None),
        )
    }

    #[inline(always)]
    pub(crate) fn write(queue: &'q mut Q, work: T, remote: RemoteRegion) -> Self {
        let op = Op::new(ibv_wr_opcode::IBV_WR_RDMA_WRITE, Some(remote));
        Wr::new(queue, Outgoing(work), op)
    }
}

impl<'q, T: Send + 'static, S: StoredAs<T>, Q> Wr<'q, T, Incoming<S>, Q> {
    #[inline(always)]
    pub(crate) fn read(queue: &'q mut Q, into: S, remote: RemoteRegion) -> Self {
        let op = Op::new(ibv_wr_opcode::IBV_WR_RDMA_READ, Some(remote));
        Wr::new(queue, Incoming(into), op)
    }
}

impl<'q, T: Send + 'static, S: StoredAs<T>, Q> Wr<'q, T, Word<S>, Q> {
    pub(crate) fn compare_and_swap(
        queue: &'q mut Q,
        into: S,
        remote: RemoteRegion,
        operands: [u64; 2],
    ) -> Self {
        let op = Op::new(ibv_wr_opcode::IBV_WR_ATOMIC_CMP_AND_SWP, Some(remote));
        Wr::new(queue, Word::new(into, operands), op)
    }

    pub(crate) fn fetch_and_add(queue: &'q mut Q, into: S, remote: RemoteRegion, add: u64) -> Self {
        let op = Op::new(ibv_wr_opcode::IBV_WR_ATOMIC_FETCH_AND_ADD, Some(remote));
        Wr::new(queue, Word::new(into, [add, 0]), op)
    }
}

impl<'q, T: Send + 'static, W: Work<T>, Q> Wr<'q, T, W, Q> {
    #[inline(always)]
    pub(crate) fn new(queue: &'q mut Q, work: W, op: Op) -> Wr<'q, T, W, Q> {
        Wr {
            queue,
            work,
            op,
            holds: PhantomData,
        }
    }

    /// Asks for a completion. Work without one comes back with the next that has one; a queue filled with such work only
    /// never drains.
    #[doc(alias = "IBV_SEND_SIGNALED")]
    #[inline(always)]
    pub fn signaled(mut self) -> Self {
        self.op = self.op.signaled();
        self
    }

    /// Starts only when all READs and atomics before it are done.
    #[doc(alias = "IBV_SEND_FENCE")]
    #[inline]
    pub fn fence(mut self) -> Self {
        self.op.flags |= ibv_send_flags::IBV_SEND_FENCE.0;
        self
    }
}

impl<T: Send + 'static, W: Work<T>, K> Wr<'_, T, W, SendQueue<T, K>> {
    /// Posts it: the buffer belongs to the queue until its completion, or that of later work, is retired and the buffer taken.
    ///
    /// Allocates nothing and never blocks.
    ///
    /// # Errors
    /// [`PostError`] says why and gives the buffer back; nothing was posted then.
    #[doc(alias = "ibv_post_send")]
    #[inline(always)]
    pub fn post(self) -> Result<(), PostError<T>> {
        self.queue.post(self.work, self.op)
    }
}

impl<T: Send + 'static, W: Work<T>, K> Wr<'_, T, W, Batch<'_, T, K>> {
    /// Adds it to the batch, which posts it.
    ///
    /// Allocates nothing unless the batch becomes longer than any before on its queue, see
    /// [`SendQueue::reserve_batch`].
    ///
    /// # Errors
    /// [`PostError`] says why and gives the buffer back; the batch is as it was then.
    #[inline(always)]
    pub fn add(self) -> Result<(), PostError<T>> {
        self.queue.add(self.work, self.op)
    }
}

impl<T, W: Carries, Q> Wr<'_, T, W, Q> {
    /// Immediate data: 32 bits that the receiver finds in its completion. Makes a WRITE consume a receive of the peer.
    /// Not for devices that have none: [`Context::has_immediate_data`](crate::Context::has_immediate_data).
    #[doc(alias = "IBV_WR_SEND_WITH_IMM")]
    #[doc(alias = "IBV_WR_RDMA_WRITE_WITH_IMM")]
    #[inline(always)]
    pub fn imm(mut self, imm: u32) -> Self {
        self.op.imm = imm.to_be();
        self.op.opcode = if self.op.remote.is_some() {
            ibv_wr_opcode::IBV_WR_RDMA_WRITE_WITH_IMM
        } else {
            ibv_wr_opcode::IBV_WR_SEND_WITH_IMM
        };
        self
    }

    /// Wakes a receiver that armed its completion queue for solicited completions only.
    #[doc(alias = "IBV_SEND_SOLICITED")]
    #[inline]
    pub fn solicited(mut self) -> Self {
        self.op.flags |= ibv_send_flags::IBV_SEND_SOLICITED.0;
        self
    }

    /// Lets the device copy the bytes while posting: quicker for small messages, up to
    /// [`RcBuilder::max_inline`](crate::RcBuilder::max_inline).
    #[doc(alias = "IBV_SEND_INLINE")]
    #[inline(always)]
    pub fn inline(mut self) -> Self {
        self.op.flags |= ibv_send_flags::IBV_SEND_INLINE.0;
        self
    }
}

impl<T, W, Q: std::fmt::Debug> std::fmt::Debug for Wr<'_, T, W, Q> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Wr")
            .field("queue", &self.queue)
            .field("opcode", &self.op.opcode)
            .finish_non_exhaustive()
    }
}
