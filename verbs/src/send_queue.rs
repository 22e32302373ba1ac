//! Send queues.

use std::fmt;
use std::marker::PhantomData;
use std::ptr::NonNull;

use ibverbs_sys::{ibv_qp, ibv_qp_ex, ibv_send_flags, ibv_send_wr, ibv_wr_opcode};

use crate::batch::{Batch, Chain};
use crate::errno;
use crate::extended_qp;
use crate::qp::{Half, Limits, Sends};
use crate::ring::Ring;
use crate::wr::{Incoming, Kind, Op, Outgoing, Template, Word, Work};
use crate::{
    Completion, Connected, Destination, Error, Gather, PostError, PostErrorKind, QueueId, Rc,
    RemoteRegion, SgeList, Stale, StoredAs, Wc, WcError, Wr,
};

/// The sending half of a queue pair. It holds the `T`s it was given until their completions.
///
/// A slot is in use from `post` until its buffer was taken, which needs the completion of this or of later signalled work. So
/// some of the work must be [`signaled`](Wr::signaled); see [`free_slots`](Self::free_slots).
///
/// `Send`, and not `Sync`: it can move to another thread, and posting takes `&mut self`.
///
/// ```
/// # use verbs::{Device, Private};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let ctx = Device::open_spec("soft0")?;
/// let pd = ctx.alloc_pd()?;
/// let mut cq = ctx.cq(64).build()?;
/// let (a, b) = (pd.rc(&cq).send_depth(8).recv_depth(8).build()?, pd.rc(&cq).send_depth(8).recv_depth(8).build()?);
/// let (ea, eb) = (a.endpoint(), b.endpoint());
/// let (mut tx, _) = a.connect::<Private<Vec<u8>>, Private<Vec<u8>>>(&eb)?;
/// let (_tx, mut rx) = b.connect::<Private<Vec<u8>>, Private<Vec<u8>>>(&ea)?;
///
/// rx.post(pd.register(vec![0; 64])?)?;
/// tx.send(pd.register(b"hello".to_vec())?).signaled().post()?;
/// let mut seen = 0;
/// while seen < 2 {
///     let Some(wc) = cq.poll()? else { continue };
///     seen += 1;
///     if wc.queue() == rx.id() {
///         assert_eq!(rx.redeem(wc)??.bytes(), b"hello");
///     } else {
///         let mut done = tx.retire(wc)?;
///         while let Some((buffer, result)) = tx.take(&mut done) {
///             result?;
///             assert_eq!(&buffer[..], b"hello");
///         }
///     }
/// }
/// # Ok(()) }
/// ```
#[doc(alias = "ibv_qp")]
pub struct SendQueue<T, K = Rc> {
    pub(crate) half: Half<T>,
    limits: Limits,
    /// What was found last; looked at again while it is nothing.
    sends: Sends,
    /// If work is posted by calls: the queue pair, with them.
    pub(crate) calls: Calls,
    template: Template,
    pub(crate) chain: Chain<T>,
    kind: PhantomData<fn() -> K>,
}

/// The way that work is posted.
#[derive(Clone, Copy)]
pub(crate) struct Calls(Option<NonNull<ibv_qp_ex>>);

// SAFETY: the queue pair that the queue itself has, and as that.
unsafe impl Send for Calls {}

impl Calls {
    /// Posts a chain: 0, or an errno, with the first request that was not posted in `bad`.
    ///
    /// # Safety
    /// As of `ibv_post_send`, to the queue pair of this queue.
    #[inline(always)]
    pub(crate) unsafe fn submit(
        self,
        qp: *mut ibv_qp,
        first: *mut ibv_send_wr,
        bad: &mut *mut ibv_send_wr,
    ) -> i32 {
        // SAFETY: the caller's contract.
        unsafe {
            match self.0 {
                None => ibverbs_sys::inline::ibv_post_send(qp, first, bad),
                Some(calls) => extended_qp::post(calls, first, bad),
            }
        }
    }
}

/// The right to take the buffers that a completion retired, with [`SendQueue::take`].
///
/// Not bound to the queue by a borrow, so that the queue can be used while taking. What an old token could take may have been
/// taken with a newer one; it then yields nothing.
#[derive(Debug)]
#[must_use = "take the buffers with SendQueue::take: until then their slots are in use"]
pub struct Done {
    queue: QueueId,
    /// The position in the ring behind the last.
    end: u64,
}

impl<T: Send + 'static, K> SendQueue<T, K> {
    pub(crate) fn new(half: Half<T>) -> SendQueue<T, K> {
        let limits = *half.core().limits();
        let calls = Calls(match limits.extended {
            true => extended_qp::extended(half.core().pd(), half.qp),
            false => None,
        });
        SendQueue {
            half,
            limits,
            calls,
            sends: Sends::Nothing,
            template: Template::new(),
            chain: Chain::new(),
            kind: PhantomData,
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

    #[inline(always)]
    pub(crate) fn post<W: Work<T>>(&mut self, mut work: W, op: Op) -> Result<(), PostError<T>> {
        let mut list = SgeList::new();
        // These run code of the caller's types, and may panic: nothing is posted yet.
        work.list(&mut list);
        let operands = work.operands();
        let held = self.hold(0, &work, &list);
        let value = work.store();
        if let Err(kind) = self.admit(W::KIND).and(held) {
            return Err(PostError::new(kind, value));
        }
        let (qp, id, calls) = (self.half.qp, self.half.id, self.calls);
        let ring = self.half.ring();
        let Some(vacant) = ring.vacant() else {
            return Err(PostError::new(full(ring), value));
        };
        if let Err(kind) = check(&self.limits, &list, &op, W::KIND) {
            return Err(PostError::new(kind, value));
        }
        let wr = self.template.get();
        op.fill(wr, id.wr_id(vacant.seq()), W::KIND, operands);
        (wr.sg_list, wr.num_sge) = (list.as_sys(), list.len() as i32);
        let wr: *mut _ = wr;
        let mut bad = std::ptr::null_mut();
        // SAFETY: the queue pair is alive. The segments are those of `value`, which keep their addresses when it moves into
        // the ring, where it stays until the device is done: the contracts of `Gather`, `Scatter` and `StoredAs`.
        let ret = unsafe { calls.submit(qp, wr, &mut bad) };
        if ret != 0
            && let Some(errno) = errno::refused(ret, bad, wr)
        {
            return Err(PostError::new(PostErrorKind::Device { errno }, value));
        }
        vacant.fill(value);
        Ok(())
    }

    /// Posts work that no slot holds, beside `flying` others of that kind.
    ///
    /// # Safety
    /// The memory stays as it is, in the way that `kind` needs, until the device is done with it.
    pub(crate) unsafe fn post_scoped(
        &mut self,
        kind: Kind,
        list: &mut SgeList,
        op: Op,
        operands: [u64; 2],
        wr_id: u64,
        flying: usize,
    ) -> Result<(), PostErrorKind> {
        self.admit(kind)?;
        let ring = self.half.ring_ref();
        if ring.free() as usize <= flying {
            return Err(full(ring));
        }
        check(&self.limits, list, &op, kind)?;
        let wr = self.template.get();
        op.fill(wr, wr_id, kind, operands);
        (wr.sg_list, wr.num_sge) = (list.as_sys(), list.len() as i32);
        let (wr, mut bad): (*mut _, _) = (wr, std::ptr::null_mut());
        // SAFETY: the queue pair is alive; the segments are the caller's contract.
        let ret = unsafe { self.calls.submit(self.half.qp, wr, &mut bad) };
        match ret != 0 {
            true => match errno::refused(ret, bad, wr) {
                Some(errno) => Err(PostErrorKind::Device { errno }),
                None => Ok(()),
            },
            false => Ok(()),
        }
    }

    /// Takes the queue pair down at once: the device lets go of all work, without completions. Whether it did.
    ///
    /// What is in the queues stays there until the queue pair is destroyed; nothing can be sent any more.
    pub(crate) fn reset(&mut self) -> bool {
        let core = self.half.core();
        let done = core.reset(self.half.qp).is_ok();
        if done {
            self.sends = Sends::Nothing;
        }
        done
    }

    /// Starts a batch: work requests that are posted with one call of the device.
    #[inline]
    pub fn batch(&mut self) -> Batch<'_, T, K> {
        Batch::new(self)
    }

    /// Makes room for batches of so many work requests, of so many segments together, so that adding to them does not allocate.
    pub fn reserve_batch(&mut self, requests: usize, segments: usize) {
        self.chain.clear();
        self.chain.reserve(requests, segments);
    }

    /// Adds to the batch that is being made.
    #[inline(always)]
    pub(crate) fn add<W: Work<T>>(&mut self, mut work: W, op: Op) -> Result<(), PostError<T>> {
        let mut list = SgeList::new();
        // These run code of the caller's types, and may panic: nothing is added yet.
        work.list(&mut list);
        let operands = work.operands();
        let held = self.hold(self.chain.len(), &work, &list);
        let value = work.store();
        let (ring, ahead) = (self.half.ring_ref(), self.chain.len());
        let (room, seq) = (ring.free() as usize > ahead, ring.seq_ahead(ahead));
        let admitted = self.admit(W::KIND).and(held).and_then(|()| {
            if room {
                check(&self.limits, &list, &op, W::KIND)
            } else {
                Err(full(self.half.ring_ref()))
            }
        });
        if let Err(kind) = admitted {
            return Err(PostError::new(kind, value));
        }
        let request = op.request(self.half.id.wr_id(seq), W::KIND, operands);
        self.chain.push(value, request, &list);
        Ok(())
    }

    /// Refuses what the connection cannot do, for devices that take it all the same: a send before connecting is queued by some
    /// and reported as refused, a READ that there is no room for is never started.
    #[inline(always)]
    fn admit(&mut self, kind: Kind) -> Result<(), PostErrorKind> {
        if self.sends == Sends::Nothing {
            self.look();
        }
        match self.sends {
            Sends::Nothing => Err(PostErrorKind::NotConnected),
            Sends::NoReads if !matches!(kind, Kind::Outgoing | Kind::Datagram) => {
                Err(PostErrorKind::NoReads)
            }
            _ => Ok(()),
        }
    }

    /// Of a datagram: checks its way, and keeps the handle with the slot that the work will have, after `ahead` others.
    #[inline(always)]
    fn hold<W: Work<T>>(
        &mut self,
        ahead: usize,
        work: &W,
        list: &SgeList,
    ) -> Result<(), PostErrorKind> {
        let Some(to) = work.to() else { return Ok(()) };
        check_mtu(list, to)?;
        // A full queue is refused for that.
        match self.half.ring_ref().free() as usize > ahead {
            true => self.half.hold(ahead, to.handle()),
            false => Ok(()),
        }
    }

    #[cold]
    fn look(&mut self) {
        self.sends = self.half.core().sends();
    }

    /// Takes note of a completion: its work and all older work of this queue is done. The buffers are then taken with
    /// [`take`](Self::take).
    ///
    /// # Errors
    /// [`Stale`] when the completion does not belong to work in flight here; it can be had back from the error.
    #[inline(always)]
    pub fn retire(&mut self, completion: Completion) -> Result<Done, Stale> {
        let queue = self.half.id;
        if completion.is_of(queue)
            && let Some(end) = self
                .half
                .ring()
                .retire(completion.seq(), completion.report())
        {
            return Ok(Done { queue, end });
        }
        Err(Stale { completion, queue })
    }

    /// The next buffer that `done` covers, oldest first, and how its work ended; `None` when there is no more.
    ///
    /// Older work that was not signalled succeeded, since failures have completions of their own. But when the completion said
    /// [`WR_FLUSH_ERR`](crate::WcStatus::WR_FLUSH_ERR), something before it had failed or the queue pair was given up, and if the completion
    /// that told was dropped, nobody knows what it was: older work without a completion then ends like this one.
    #[inline(always)]
    pub fn take(&mut self, done: &mut Done) -> Option<(T, Result<Wc, WcError>)> {
        if done.queue != self.half.id {
            return None;
        }
        let (value, report) = self.half.ring().pop(done.end)?;
        Some((value, report.map_or(Ok(Wc::IMPLIED), |r| r.outcome())))
    }

    /// Drops what `done` covers, oldest first, up to the first buffer that `which` does not name, or whose work has not succeeded. Quicker
    /// than [taking](Self::take) what nobody wants back.
    #[inline(always)]
    pub fn discard(&mut self, done: &Done, which: impl Fn(&T) -> bool) {
        if done.queue == self.half.id {
            self.half.ring().discard(done.end, |value, report| {
                report.is_none_or(|report| report.outcome().is_ok()) && which(value)
            });
        }
    }

    /// Work requests that can be posted now.
    #[inline]
    pub fn free_slots(&self) -> u32 {
        self.half.ring_ref().free()
    }

    /// Work requests that the device may still be working on.
    #[inline]
    pub fn outstanding(&self) -> u32 {
        self.half.ring_ref().in_flight()
    }

    /// Slots there are.
    #[inline]
    pub fn depth(&self) -> u32 {
        self.half.ring_ref().depth()
    }

    /// Bytes that [`Wr::inline`] can carry, as the device granted.
    pub fn max_inline(&self) -> u32 {
        self.limits.inline
    }

    /// Drives the queue pair to the error state: everything in both queues completes, what was not done with
    /// [`WcStatus::WR_FLUSH_ERR`](crate::WcStatus::WR_FLUSH_ERR), and the connection is over.
    ///
    /// Do not wait for what is posted later: by the specification it completes in the same way, but devices whose library posts
    /// receives without telling the kernel (Soft-RoCE) do not notice a receive before something else happens to the queue pair.
    /// [`destroy`](crate::destroy) gives it back in any case.
    ///
    /// # Errors
    /// When the device refuses.
    #[doc(alias = "IBV_QPS_ERR")]
    pub fn set_error(&mut self) -> Result<(), Error> {
        self.half
            .core()
            .set_error(self.half.qp)
            .map_err(|e| Error::hinted("ibv_modify_qp", e, "to the error state"))
    }
}

/// What all connections do.
impl<T: Send + 'static, K: Connected> SendQueue<T, K> {
    /// A message for the peer's next posted receive.
    #[doc(alias = "IBV_WR_SEND")]
    #[inline]
    pub fn send(&mut self, work: impl Into<T>) -> Wr<'_, T, Outgoing<T>, Self>
    where
        T: Gather,
    {
        Wr::new(
            self,
            Outgoing(work.into()),
            Op::new(ibv_wr_opcode::IBV_WR_SEND, None),
        )
    }

    /// Writes into the peer's memory, from the start of `remote`.
    #[doc(alias = "IBV_WR_RDMA_WRITE")]
    #[inline]
    pub fn write(
        &mut self,
        work: impl Into<T>,
        remote: RemoteRegion,
    ) -> Wr<'_, T, Outgoing<T>, Self>
    where
        T: Gather,
    {
        Wr::new(
            self,
            Outgoing(work.into()),
            Op::new(ibv_wr_opcode::IBV_WR_RDMA_WRITE, Some(remote)),
        )
    }
}

/// What only reliable connections do.
impl<T: Send + 'static> SendQueue<T, Rc> {
    /// Reads from the peer's memory, from the start of `remote`, as much as `into` has room for.
    ///
    /// Needs [`RcBuilder::rd_atomic`](crate::RcBuilder::rd_atomic) of at least 1 on both sides, else posting it is
    /// [refused](PostErrorKind::NoReads).
    #[doc(alias = "IBV_WR_RDMA_READ")]
    #[inline]
    pub fn read<S: StoredAs<T>>(
        &mut self,
        into: S,
        remote: RemoteRegion,
    ) -> Wr<'_, T, Incoming<S>> {
        Wr::new(
            self,
            Incoming(into),
            Op::new(ibv_wr_opcode::IBV_WR_RDMA_READ, Some(remote)),
        )
    }

    /// Stores `swap` in the peer's word at the start of `remote` if it is `compare`, in one step; what it was is written to `into`.
    ///
    /// The word is a `u64` in the byte order of the peer's machine, at an address that is a multiple of 8; `into` is one segment of
    /// 8 bytes, and the old value is in it in this machine's byte order when the buffer comes back.
    ///
    /// Needs [`RcBuilder::rd_atomic`](crate::RcBuilder::rd_atomic) of at least 1 on both sides, and
    /// [`Access::REMOTE_ATOMIC`](crate::Access::REMOTE_ATOMIC) of the peer's queue pair ([`RcBuilder::access`](crate::RcBuilder::access))
    /// and memory.
    ///
    /// ```
    /// # use verbs::{Access, Device, Private};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let ctx = Device::open_spec("soft0")?;
    /// # let pd = ctx.alloc_pd()?;
    /// # let mut cq = ctx.cq(64).build()?;
    /// let ready = pd.rc(&cq).send_depth(8).recv_depth(8).access(Access::REMOTE_ATOMIC).build()?;
    /// # let own = ready.endpoint();
    /// # let (mut tx, _rx) = ready.connect::<Private<Vec<u8>>, Private<Vec<u8>>>(&own)?;
    /// let counter = pd.expose(8, Access::REMOTE_ATOMIC)?;
    /// let old = pd.register(vec![0; 8])?;
    /// tx.compare_and_swap(old, counter.remote(), 0, 7).signaled().post()?;
    /// # let wc = loop { if let Some(wc) = cq.poll()? { break wc } };
    /// let mut done = tx.retire(wc)?;
    /// let (old, result) = tx.take(&mut done).ok_or("the buffer")?;
    /// result?;
    /// assert_eq!(u64::from_ne_bytes(old[..].try_into()?), 0);
    /// # Ok(()) }
    /// ```
    #[doc(alias = "IBV_WR_ATOMIC_CMP_AND_SWP")]
    #[inline]
    pub fn compare_and_swap<S: StoredAs<T>>(
        &mut self,
        into: S,
        remote: RemoteRegion,
        compare: u64,
        swap: u64,
    ) -> Wr<'_, T, Word<S>> {
        Wr::new(
            self,
            Word::new(into, [compare, swap]),
            Op::new(ibv_wr_opcode::IBV_WR_ATOMIC_CMP_AND_SWP, Some(remote)),
        )
    }

    /// Adds to the peer's word at the start of `remote`, wrapping around, in one step; what it was before is written to `into`.
    ///
    /// Words, buffers and needs are those of [`compare_and_swap`](Self::compare_and_swap).
    #[doc(alias = "IBV_WR_ATOMIC_FETCH_AND_ADD")]
    #[inline]
    pub fn fetch_and_add<S: StoredAs<T>>(
        &mut self,
        into: S,
        remote: RemoteRegion,
        add: u64,
    ) -> Wr<'_, T, Word<S>> {
        Wr::new(
            self,
            Word::new(into, [add, 0]),
            Op::new(ibv_wr_opcode::IBV_WR_ATOMIC_FETCH_AND_ADD, Some(remote)),
        )
    }
}

/// Why there is no vacant slot.
#[cold]
pub(crate) fn full<T, O>(ring: &Ring<T, O>) -> PostErrorKind {
    PostErrorKind::QueueFull {
        depth: ring.depth(),
        untaken: ring.retired_untaken(),
    }
}

/// What the device would refuse, or worse, would not.
#[inline(always)]
fn check(limits: &Limits, list: &SgeList, op: &Op, kind: Kind) -> Result<(), PostErrorKind> {
    let max_sge = match kind {
        Kind::Outgoing | Kind::Datagram => limits.send_sge,
        Kind::Read => limits.read_sge,
        Kind::Atomic => return check_atomic(limits, list, op),
    } as usize;
    // No queue pair is built for more segments than a list holds.
    if list.len() > max_sge {
        return Err(PostErrorKind::TooManySegments {
            count: list.len(),
            max: max_sge,
        });
    }
    let len = list.total_len();
    if let Some(remote) = &op.remote
        && len > remote.len
    {
        return Err(PostErrorKind::RemoteTooSmall {
            len,
            remote: remote.len,
        });
    }
    if len > limits.message.into() {
        return Err(PostErrorKind::TooLong {
            len,
            max: limits.message.into(),
        });
    }
    if op.flags & ibv_send_flags::IBV_SEND_INLINE.0 != 0 && len > limits.inline.into() {
        return Err(PostErrorKind::InlineTooLong {
            len,
            max: limits.inline.into(),
        });
    }
    Ok(())
}

/// A datagram is one packet.
pub(crate) fn check_mtu(list: &SgeList, to: &Destination) -> Result<(), PostErrorKind> {
    let (len, mtu) = (list.total_len(), to.handle().mtu().bytes());
    match len > mtu.into() {
        true => Err(PostErrorKind::LongerThanMtu { len, mtu }),
        false => Ok(()),
    }
}

/// A word here, and an aligned one there.
fn check_atomic(limits: &Limits, list: &SgeList, op: &Op) -> Result<(), PostErrorKind> {
    if !limits.atomics {
        return Err(PostErrorKind::NoAtomics);
    }
    if (list.len(), list.total_len()) != (1, Op::WORD) {
        return Err(PostErrorKind::NotAWord {
            count: list.len(),
            len: list.total_len(),
        });
    }
    match op.remote {
        Some(remote) if remote.len < Op::WORD => Err(PostErrorKind::RemoteTooSmall {
            len: Op::WORD,
            remote: remote.len,
        }),
        Some(remote) if !remote.addr.is_multiple_of(Op::WORD) => {
            Err(PostErrorKind::RemoteMisaligned { addr: remote.addr })
        }
        _ => Ok(()),
    }
}

impl<T, K> fmt::Debug for SendQueue<T, K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ring = self.half.ring_ref();
        f.debug_struct("SendQueue")
            .field("id", &self.half.id)
            .field("outstanding", &ring.in_flight())
            .field("depth", &ring.depth())
            .finish()
    }
}
