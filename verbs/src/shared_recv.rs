//! Shared receive queues: one supply of buffers for many queue pairs.

use std::cell::Cell;
use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use ibverbs_sys::{ibv_recv_wr, ibv_srq_attr, ibv_srq_attr_mask as mask, ibv_srq_init_attr};

use crate::errno;
use crate::shared_core::{KeepShared, SharedCore, SharedQueue};
use crate::slots::{MAX_SLOTS, SLOT_BITS, Slots};
use crate::{
    Completion, Error, Grh, Pd, PostError, PostErrorKind, QueueId, Received, RecvError, Scatter,
    SgeList, Stale,
};

/// A queue of receives that several queue pairs take from: those built with
/// [`QpBuilder::shared_recv`](crate::QpBuilder::shared_recv). It holds the buffers posted to it until messages have arrived in them.
///
/// A receive completes on the completion queue of the queue pair that took it, with this queue's [`id`](Self::id), and is
/// redeemed here; [`Completion::qp_num`] says which queue pair it was. Receives complete in any order.
///
/// A slot is in use until its completion was redeemed. A completion that is dropped instead, or that never comes because its queue
/// pair was destroyed, keeps slot and buffer in use until the queue itself ends: when this handle and all its queue pairs are
/// dropped.
///
/// `Send`, and not `Sync`: threads that poll different queue pairs share it by a lock.
///
/// ```
/// # use verbs::{Device, Private};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # type Buf = Private<Vec<u8>>;
/// let ctx = Device::open_spec("soft0")?;
/// let pd = ctx.alloc_pd()?;
/// let mut cq = ctx.cq(64).build()?;
/// let mut shared = pd.shared_recv(16).build::<Buf>()?;
/// let (a, b) = (pd.rc(&cq).send_depth(8).recv_depth(0).build()?, pd.rc(&cq).send_depth(8).shared_recv(&shared).build()?);
/// let (ea, eb) = (a.endpoint(), b.endpoint());
/// let (mut tx, _) = a.connect::<Buf, Buf>(&eb)?;
/// let _tx = b.connect::<Buf>(&ea)?; // a send queue only
///
/// shared.post(pd.register(vec![0; 64])?)?;
/// tx.send(pd.register(b"hello".to_vec())?).post()?;
/// let wc = loop { if let Some(wc) = cq.poll()? { break wc } };
/// assert_eq!(wc.queue(), shared.id());
/// assert_eq!(shared.redeem(wc)??.bytes(), b"hello");
/// # Ok(()) }
/// ```
#[doc(alias = "ibv_srq")]
pub struct SharedRecvQueue<T> {
    queue: Arc<SharedQueue<T>>,
    id: QueueId,
    max_sge: u32,
    /// Bytes before each message.
    header: u32,
    not_sync: PhantomData<Cell<()>>,
}

/// Builds a [`SharedRecvQueue`]; made by [`Pd::shared_recv`].
///
/// Source: `ibv_create_srq(3)`.
#[derive(Clone, Debug)]
#[must_use = "nothing is created before .build()"]
pub struct SharedRecvBuilder {
    pd: Pd,
    depth: u32,
    max_sge: Option<u32>,
    limit: u32,
    datagrams: bool,
}

/// The device and what it does not do, for errors.
const RESIZING: &str = "other sizes of a shared receive queue (ibv_modify_srq)";

impl SharedRecvBuilder {
    pub(crate) fn new(pd: &Pd, depth: u32) -> SharedRecvBuilder {
        SharedRecvBuilder {
            pd: pd.clone(),
            depth,
            max_sge: None,
            limit: 0,
            datagrams: false,
        }
    }

    /// Segments in one receive, at most 32. Default 4, or what the device has if that is less.
    pub fn max_sge(mut self, count: u32) -> Self {
        self.max_sge = Some(count);
        self
    }

    /// For datagrams ([`Ud`](crate::Ud)) instead of connections: the first 40 bytes of each buffer are for the network header.
    pub fn datagrams(mut self) -> Self {
        self.datagrams = true;
        self
    }

    /// Asks for one [event](crate::AsyncEvent::SharedLimit) when fewer receives than this are posted. Default 0: none.
    ///
    /// A new queue is empty, and devices may say so at once: it can be better to fill it and then
    /// [`arm`](SharedRecvQueue::arm_limit) it.
    pub fn limit(mut self, limit: u32) -> Self {
        self.limit = limit;
        self
    }

    /// Creates the queue, for buffers of the type `T`.
    ///
    /// # Errors
    /// When an attribute is out of range, or the device refuses.
    #[doc(alias = "ibv_create_srq")]
    pub fn build<T: Send + 'static>(self) -> Result<SharedRecvQueue<T>, Error> {
        let dev = self.pd.context().query_device();
        let check = |what, value: u32, min: u32, max: u32| {
            Error::in_range(what, value.into(), min.into(), max.into())
        };
        let sge_max = dev.max_srq_sge.clamp(1, SgeList::CAPACITY as u32);
        let max_sge = self.max_sge.unwrap_or(sge_max.min(4));
        if dev.max_srq == 0 || dev.max_srq_wr == 0 {
            return Err(Error::Unsupported {
                what: "shared receive queues",
                device: self.pd.context().device_name().to_owned(),
                source: std::io::Error::from_raw_os_error(libc::EOPNOTSUPP),
            });
        }
        check(
            "depth of a shared receive queue",
            self.depth,
            1,
            dev.max_srq_wr.min(MAX_SLOTS),
        )?;
        check("max_sge", max_sge, 1, sge_max)?;
        check("limit", self.limit, 0, self.depth)?;
        let number = next_number()?;
        let id = QueueId::shared(number);
        let mut init = ibv_srq_init_attr {
            // The identity comes back with events; it is never followed.
            srq_context: std::ptr::without_provenance_mut(id.0 as usize),
            attr: ibv_srq_attr {
                max_wr: self.depth,
                max_sge,
                // Not looked at here, says ibv_create_srq(3).
                srq_limit: 0,
            },
        };
        let create = self.pd.api().ibv_create_srq;
        // SAFETY: the domain is alive and the attributes are complete.
        let srq = errno::object(unsafe { create(self.pd.raw(), &mut init) }).map_err(|e| {
            let hint = format!("{} receives of {max_sge} segments", self.depth);
            Error::hinted("ibv_create_srq", e, hint)
        })?;
        let core = SharedCore::new(srq, number, self.depth, self.datagrams, self.pd);
        let mut queue = SharedRecvQueue {
            queue: Arc::new(SharedQueue::new(core, Slots::new(self.depth))),
            id,
            max_sge,
            header: if self.datagrams { Grh::LEN } else { 0 },
            not_sync: PhantomData,
        };
        if self.limit > 0 {
            queue.arm_limit(self.limit)?;
        }
        Ok(queue)
    }
}

/// The number of a new queue: 28 bits, none used twice.
fn next_number() -> Result<u32, Error> {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    const LAST: u32 = (1 << (crate::ring::SEQ_BITS - SLOT_BITS)) - 1;
    NEXT.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| {
        (n < LAST).then_some(n + 1)
    })
    .map_err(|_| Error::TooManyQueues)
}

impl<T: Send + 'static> SharedRecvQueue<T> {
    /// Its identity: completions with the same belong here, whatever completion queue they came from.
    #[inline]
    pub fn id(&self) -> QueueId {
        self.id
    }

    /// The protection domain of the memory posted to it.
    pub fn pd(&self) -> &Pd {
        self.queue.core.pd()
    }

    pub(crate) fn keep(&self) -> Arc<dyn KeepShared> {
        self.queue.clone()
    }

    #[inline(always)]
    fn slots(&mut self) -> &mut Slots<T> {
        // SAFETY: this is the one handle, and it is borrowed mutably.
        unsafe { self.queue.slots() }
    }

    #[inline(always)]
    fn slots_ref(&self) -> &Slots<T> {
        // SAFETY: this is the one handle; while it is borrowed there is no other reference than shared ones from here.
        unsafe { self.queue.slots_ref() }
    }

    /// Posts a buffer for a message to any of the queue pairs. Allocates nothing and never blocks.
    ///
    /// # Errors
    /// [`PostError`] says why and gives the buffer back; nothing was posted then.
    #[doc(alias = "ibv_post_srq_recv")]
    #[inline(always)]
    pub fn post(&mut self, mut buffer: T) -> Result<(), PostError<T>>
    where
        T: Scatter,
    {
        let mut list = SgeList::new();
        // Runs code of the caller's type, and may panic: nothing is posted yet.
        buffer.scatter(&mut list);
        let (srq, id, max) = (self.queue.core.raw(), self.id, self.max_sge as usize);
        let slots = self.slots();
        let depth = slots.depth();
        let Some(vacant) = slots.vacant() else {
            let kind = PostErrorKind::QueueFull { depth, untaken: 0 };
            return Err(PostError::new(kind, buffer));
        };
        // No queue is built for more segments than a list holds.
        if list.len() > max {
            let count = list.len();
            return Err(PostError::new(
                PostErrorKind::TooManySegments { count, max },
                buffer,
            ));
        }
        let mut wr = ibv_recv_wr {
            wr_id: id.shared_wr_id(vacant.slot()),
            next: std::ptr::null_mut(),
            sg_list: list.as_sys(),
            num_sge: list.len() as i32,
        };
        let mut bad = std::ptr::null_mut();
        // SAFETY: the queue is alive. The segments are those of `buffer`, which keep their addresses when it moves into the slot,
        // where it stays until the device is done: the contract of `Scatter`.
        let ret = unsafe { ibverbs_sys::inline::ibv_post_srq_recv(srq, &mut wr, &mut bad) };
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
    /// [`Stale`] when the completion does not belong here; it can be had back from the error.
    #[inline(always)]
    pub fn redeem(
        &mut self,
        completion: Completion,
    ) -> Result<Result<Received<T>, RecvError<T>>, Stale> {
        let queue = self.id;
        if completion.queue() != queue {
            return Err(Stale { completion, queue });
        }
        let Some(buffer) = self.slots().redeem(completion.slot()) else {
            return Err(Stale { completion, queue });
        };
        Ok(Received::of(buffer, &completion, self.header))
    }

    /// Asks for one [event](crate::AsyncEvent::SharedLimit) when fewer than `limit` receives are left in the device; 0 takes it
    /// back. The event comes once; arm again for another.
    ///
    /// # Errors
    /// When the limit is above the depth, or the device refuses.
    #[doc(alias = "ibv_modify_srq")]
    pub fn arm_limit(&mut self, limit: u32) -> Result<(), Error> {
        Error::in_range("limit", limit.into(), 0, self.depth().into())?;
        let mut attr = ibv_srq_attr {
            srq_limit: limit,
            ..Default::default()
        };
        self.modify(&mut attr, mask::IBV_SRQ_LIMIT).map_err(|e| {
            self.refused(
                "limits of a shared receive queue (ibv_modify_srq)",
                e,
                limit,
            )
        })
    }

    /// Changes the number of receives it can hold; what is posted stays.
    ///
    /// # Errors
    /// When the device cannot ([`Error::Unsupported`]), has fewer, or has more than `depth` receives posted; or when a completion queue
    /// of one of its queue pairs has no room for so many. Nothing has changed then.
    #[doc(alias = "ibv_modify_srq")]
    pub fn resize(&mut self, depth: u32) -> Result<(), Error> {
        let max = self.pd().context().query_device().max_srq_wr;
        let what = "depth of a shared receive queue";
        Error::in_range(what, depth.into(), 1, max.min(MAX_SLOTS).into())?;
        self.queue.core.resize(depth, || {
            let mut attr = ibv_srq_attr {
                max_wr: depth,
                ..Default::default()
            };
            self.modify(&mut attr, mask::IBV_SRQ_MAX_WR)
                .map_err(|e| self.refused(RESIZING, e, depth))
        })?;
        self.slots().resize(depth);
        Ok(())
    }

    fn modify(&self, attr: &mut ibv_srq_attr, what: mask) -> std::io::Result<()> {
        let core = &self.queue.core;
        // SAFETY: the queue is alive, and the attributes that `what` names are set.
        errno::check(unsafe { (core.pd().api().ibv_modify_srq)(core.raw(), attr, what.0 as i32) })
    }

    fn refused(&self, what: &'static str, e: std::io::Error, asked: u32) -> Error {
        let device = self.pd().context().device_name();
        let hint = format!("asked for {asked}; {} are posted", self.outstanding());
        Error::unless_unsupported(device, what, "ibv_modify_srq", e, hint)
    }

    /// Receives posted and not redeemed.
    pub fn outstanding(&self) -> u32 {
        self.slots_ref().in_flight()
    }

    /// Receives that can be posted now.
    #[inline]
    pub fn free_slots(&self) -> u32 {
        self.slots_ref().free()
    }

    /// Slots there are.
    #[inline]
    pub fn depth(&self) -> u32 {
        self.slots_ref().depth()
    }
}

impl<T> fmt::Debug for SharedRecvQueue<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedRecvQueue")
            .field("id", &self.id)
            .finish_non_exhaustive()
    }
}
