//! Send queues.

use std::fmt;
use std::marker::PhantomData;

use ibverbs_sys::ibv_send_wr;

use crate::batch::{Batch, Chain};
use crate::errno;
use crate::qp::{Half, Limits, Sends};
use crate::refusal::{
    check, check_mtu, check_segments, check_view, exceeds, failed, full, refuse, refuse_full,
    refuse_long, refuse_unconnected,
};
use crate::sge::Size;
use crate::template::{Segments, Template};
use crate::way::Way;
use crate::wr::{Kind, Op, OpWords, Work};
use crate::{Error, PostError, PostErrorKind, QueueId, Rc, SgeList};

/// The sending half of a queue pair. It holds the `T`s it was given until their completions.
///
/// A slot is in use from `post` until its buffer was taken, which needs the completion of this or of later signalled work. So
/// some of the work must be [`signaled`](crate::Wr::signaled); see [`free_slots`](Self::free_slots).
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
    /// How work is posted, once it is known that something can be.
    way: Option<Way>,
    template: Template<ibv_send_wr>,
    pub(crate) chain: Chain<T>,
    kind: PhantomData<fn() -> K>,
}

impl<T: Send + 'static, K> SendQueue<T, K> {
    pub(crate) fn new(half: Half<T>) -> SendQueue<T, K> {
        let limits = *half.core().limits();
        SendQueue {
            half,
            limits,
            sends: Sends::Nothing,
            way: None,
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
        let only = {
            let mut list = SgeList::new();
            // Runs code of the caller's type, and may panic: nothing is posted yet.
            work.list(&mut list);
            list.only()
        };
        let refused = match only {
            Some(segment) => {
                let len = segment.length.into();
                self.post_segments(work, op, Segments::One(segment), Size { count: 1, len })
            }
            None => self.post_list(work, op.into_words()),
        };
        match refused {
            None => Ok(()),
            Some(error) => Err(*error),
        }
    }

    /// Posts work that has no segment, or several: a list in memory, unlike that of one.
    #[inline(never)]
    fn post_list<W: Work<T>>(&mut self, mut work: W, op: OpWords) -> Option<Box<PostError<T>>> {
        let mut list = SgeList::new();
        // As above; the list asked for again is the one that counts.
        work.list(&mut list);
        let (size, op) = (list.size(), Op::from_words(op));
        let checked = check_segments(&self.limits, size, W::KIND);
        if let Err(kind) = checked.and(check_view(&list, &op)) {
            return refuse(kind, work.store());
        }
        let segments = Segments::Listed(list.as_sys(), size.count);
        self.post_segments(work, op, segments, size)
    }

    /// `segments` are the work's, of that size.
    #[inline(always)]
    fn post_segments<W: Work<T>>(
        &mut self,
        work: W,
        op: Op,
        segments: Segments,
        size: Size,
    ) -> Option<Box<PostError<T>>> {
        let operands = work.operands();
        let held = match W::KIND {
            Kind::Datagram => self.hold(0, &work, size),
            _ => Ok(()),
        };
        let value = work.store();
        if self.way.is_none() {
            self.look();
        }
        let Some(way) = self.way else {
            return refuse_unconnected(value);
        };
        if W::KIND.fetches() && self.sends == Sends::NoReads {
            return refuse(PostErrorKind::NoReads, value);
        }
        if let Err(kind) = held {
            return refuse(kind, value);
        }
        let ring = self.half.ring();
        let Some(vacant) = ring.vacant() else {
            return refuse_full(ring, value);
        };
        if W::KIND == Kind::Atomic {
            if let Err(kind) = check(&self.limits, size, &op, W::KIND) {
                return refuse(kind, value);
            }
        } else if exceeds(&self.limits, size.len, &op) {
            let (len, inline) = (size.len, op.is_inline());
            return refuse_long(&self.limits, len, op.remote_len(), inline, value);
        }
        let ready = self.template.ready(segments, |wr, list, count| {
            op.fill(wr, vacant.id(), W::KIND, operands);
            (wr.sg_list, wr.num_sge) = (list, count);
        });
        // In the ring before it is posted, so that nothing is left to do afterwards; until then it can be taken out again.
        vacant.fill(value);
        // SAFETY: the queue pair is alive. The segments are those of the value, which keep their addresses when it moves into
        // the ring, where it stays until the device is done: the contracts of `Gather`, `Scatter` and `StoredAs`.
        let ret = unsafe { way.post(ready.request, ready.bad) };
        if ret != 0 {
            // SAFETY: the template is this queue's.
            return unsafe { failed(ring, ret, ready) };
        }
        None
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
        let way = self.admit(kind)?;
        let ring = self.half.ring_ref();
        if ring.free() as usize <= flying {
            return Err(full(ring));
        }
        check_segments(&self.limits, list.size(), kind)?;
        check(&self.limits, list.size(), &op, kind)?;
        let segments = Segments::Listed(list.as_sys(), list.len());
        let ready = self.template.ready(segments, |wr, list, count| {
            op.fill(wr, wr_id, kind, operands);
            (wr.sg_list, wr.num_sge) = (list, count);
        });
        // SAFETY: the queue pair is alive; the segments are the caller's contract.
        let ret = unsafe { way.post(ready.request, ready.bad) };
        // SAFETY: the template is this queue's.
        match ret != 0 && unsafe { ready.names_refused() } {
            true => Err(PostErrorKind::Device {
                errno: errno::number(ret),
            }),
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
            (self.sends, self.way) = (Sends::Nothing, None);
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
        let size = list.size();
        let held = self.hold(self.chain.len(), &work, size);
        let value = work.store();
        let (ring, ahead) = (self.half.ring_ref(), self.chain.len());
        let (room, id) = (ring.free() as usize > ahead, ring.id_ahead(ahead));
        let admitted = self.admit(W::KIND).and(held).and_then(|()| {
            if room {
                check_segments(&self.limits, size, W::KIND)?;
                check_view(&list, &op)?;
                check(&self.limits, size, &op, W::KIND)
            } else {
                Err(full(self.half.ring_ref()))
            }
        });
        if let Err(kind) = admitted {
            return Err(PostError::new(kind, value));
        }
        let request = op.request(id, W::KIND, operands);
        self.chain.push(value, request, &list, W::KEPT);
        Ok(())
    }

    /// Refuses what the connection cannot do, for devices that take it all the same: a send before connecting is queued by some
    /// and reported as refused, a READ that there is no room for is never started.
    #[inline(always)]
    fn admit(&mut self, kind: Kind) -> Result<Way, PostErrorKind> {
        if self.way.is_none() {
            self.look();
        }
        match self.way {
            None => Err(PostErrorKind::NotConnected),
            Some(_) if kind.fetches() && self.sends == Sends::NoReads => {
                Err(PostErrorKind::NoReads)
            }
            Some(way) => Ok(way),
        }
    }

    /// The way to post a batch that is not empty.
    pub(crate) fn way(&mut self) -> Result<Way, PostErrorKind> {
        self.admit(Kind::Outgoing)
    }

    /// Of a datagram: checks its way, and keeps the handle with the slot that the work will have, after `ahead` others.
    #[inline(always)]
    fn hold<W: Work<T>>(
        &mut self,
        ahead: usize,
        work: &W,
        size: Size,
    ) -> Result<(), PostErrorKind> {
        let Some(to) = work.to() else { return Ok(()) };
        check_mtu(size, to)?;
        // A full queue is refused for that.
        match self.half.ring_ref().free() as usize > ahead {
            true => self.half.hold(ahead, to.handle()),
            false => Ok(()),
        }
    }

    // C's calling convention, since what is called by it does not unwind: so nothing has to be kept in memory for that.
    #[allow(improper_ctypes_definitions, reason = "it is called from here only")]
    #[cold]
    #[inline(never)]
    extern "C" fn look(&mut self) {
        self.sends = self.half.core().sends();
        if self.sends != Sends::Nothing {
            let (pd, extended) = (self.half.core().pd(), self.limits.extended);
            // SAFETY: the queue pair is alive, and created as the limits say.
            self.way = Some(unsafe { Way::to(pd, self.half.qp, extended) });
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

    /// Bytes that [`Wr::inline`](crate::Wr::inline) can carry, as the device granted.
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
        self.half.set_error()
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
