//! The receive queue: posting. Taking in what arrives is [`crate::take_in`]'s.
//!
//! The entries lie in the segment, where initiators look at them, and only there; what no peer needs is beside. It is a
//! ring of one producer (whoever holds the receive lock) and one consumer (whoever holds the lock of the completion
//! queue): entries `taken..posted` are the consumer's, the others the producer's.

use crate::faults::{self, Verb};
use crate::lane;
use crate::layout::{self, QpAdvert, RecvHead, RecvSge};
use crate::process::Process;
use crate::qp::{Caps, QpCore};
use crate::qp_state::State;
use crate::quiet::Producing;
use crate::region::{self, LOCAL_WRITE, REMOTE};
use crate::segment::Segment;
use core::sync::atomic::{AtomicU64, Ordering, compiler_fence, fence};
use ibverbs_sys::{ibv_recv_wr, ibv_sge};
use std::io;
use std::sync::Arc;

/// The receive entries of a queue pair.
pub(crate) struct Entries {
    segment: &'static Segment,
    /// Where they lie in the segment's receive area, and how much room they have.
    pub off: usize,
    pub len: usize,
    stride: usize,
    order: u32,
    max_sge: usize,
    wr_ids: Box<[AtomicU64]>,
    /// Entries ever taken.
    taken: AtomicU64,
}

impl Entries {
    /// Room for the entries of a new queue pair.
    ///
    /// # Errors
    ///
    /// `ENOMEM`: there is none left.
    pub fn new(process: &'static Process, caps: &Caps) -> io::Result<Entries> {
        let stride = layout::recv_stride(caps.recv_sge);
        let order = caps.recv_wr.max(1).next_power_of_two().trailing_zeros();
        let len = stride << order;
        let off = process.take_recv(len);
        Ok(Entries {
            segment: &process.segment,
            off: off.ok_or_else(|| io::Error::from_raw_os_error(libc::ENOMEM))?,
            len,
            stride,
            order,
            max_sge: caps.recv_sge,
            wr_ids: (0..1 << order).map(|_| AtomicU64::new(0)).collect(),
            taken: AtomicU64::new(0),
        })
    }

    /// Log2 of how many there is room for.
    pub fn order(&self) -> u32 {
        self.order
    }

    /// How many there is room for.
    pub fn count(&self) -> usize {
        1 << self.order
    }

    /// Tells peers where they are.
    pub fn advertise(&self, advert: &QpAdvert) {
        advert.recv_order.store(self.order, Ordering::Relaxed);
        advert.recv_off.store(self.off as u64, Ordering::Relaxed);
        let stride = self.stride as u32;
        advert.recv_stride.store(stride, Ordering::Relaxed);
    }

    #[inline]
    fn slot(&self, index: u64) -> usize {
        index as usize & (self.wr_ids.len() - 1)
    }

    /// An entry, with all scatter elements that it has room for.
    #[inline]
    fn whole(&self, index: u64) -> (&RecvHead, &[RecvSge]) {
        let off = self.off + self.slot(index) * self.stride;
        self.segment.recv_entry(off, self.max_sge)
    }

    /// An entry with its scatter elements. For the consumer, an index below `posted`.
    #[inline]
    pub fn get(&self, index: u64) -> (&RecvHead, &[RecvSge]) {
        let (head, sges) = self.whole(index);
        let count = head.num_sge.load(Ordering::Relaxed) as usize;
        (head, sges.get(..count).unwrap_or(sges))
    }

    #[inline]
    pub fn wr_id(&self, index: u64) -> u64 {
        self.wr_ids[self.slot(index)].load(Ordering::Relaxed)
    }

    /// Where that lies.
    #[inline]
    pub fn wr_id_of(&self, index: u64) -> *const u8 {
        self.wr_ids.as_ptr().wrapping_add(self.slot(index)).cast()
    }

    #[inline]
    pub fn taken(&self) -> u64 {
        self.taken.load(Ordering::Acquire)
    }

    /// Whether a posted receive that has not completed is to be placed in the region with `key`.
    pub fn name(&self, advert: &QpAdvert, key: u32) -> bool {
        (self.taken()..advert.posted.0.load(Ordering::Acquire)).any(|index| self.names(index, key))
    }

    /// Whether an entry is to be placed in the region with `key`.
    pub fn names(&self, index: u64, key: u32) -> bool {
        let (_, sges) = self.get(index);
        let mut keys = sges.iter().map(|sge| sge.lkey.load(Ordering::Relaxed));
        keys.any(|lkey| lkey == key)
    }

    /// Writes an entry. For the producer, who has checked that it has room for the request's elements. Gives the elements and
    /// the sum of their lengths.
    ///
    /// # Safety
    ///
    /// The request holds `num_sge` elements at `sg_list`.
    #[inline(always)]
    pub unsafe fn write<'a>(&self, index: u64, wr: &'a ibv_recv_wr) -> (&'a [ibv_sge], u64) {
        let sges = if wr.num_sge == 0 {
            &[][..]
        } else {
            // SAFETY: by contract.
            unsafe { core::slice::from_raw_parts(wr.sg_list, wr.num_sge as usize) }
        };
        self.wr_ids[self.slot(index)].store(wr.wr_id, Ordering::Relaxed);
        let (head, out) = self.whole(index);
        if sges.is_empty() {
            // As for a write with immediate data, where it is most of the work.
            head.num_sge.store(0, Ordering::Relaxed);
            head.total.store(0, Ordering::Relaxed);
            return (sges, 0);
        }
        let mut total = 0;
        for (to, sge) in out.iter().zip(sges) {
            to.addr.store(sge.addr, Ordering::Relaxed);
            to.len.store(sge.length, Ordering::Relaxed);
            to.lkey.store(sge.lkey, Ordering::Relaxed);
            total += u64::from(sge.length);
        }
        head.num_sge.store(sges.len() as u32, Ordering::Relaxed);
        head.total.store(total, Ordering::Relaxed);
        (sges, total)
    }

    /// The consumer is done with the entries before this one.
    #[inline]
    pub fn set_taken(&self, taken: u64) {
        self.taken.store(taken, Ordering::Release);
    }
}

/// The producer's side of a receive queue.
pub(crate) struct RecvQueue {
    depth: u64,
    max_sge: usize,
    posted: u64,
    /// As advertised, see [`crate::layout::QpAdvert::eager`].
    eager: u32,
    /// Who is told that there are receives, if anybody is connected.
    producing: Option<Producing>,
}

impl RecvQueue {
    pub fn new(caps: &Caps) -> RecvQueue {
        RecvQueue {
            depth: caps.recv_wr as u64,
            max_sge: caps.recv_sge,
            posted: 0,
            eager: lane::BESIDE as u32,
            producing: None,
        }
    }

    pub fn connect(&mut self, producing: Producing) {
        self.producing = Some(producing);
    }

    /// Forgets everything that was posted. The completion queue's lock is held.
    pub fn reset(&mut self, entries: &Entries) {
        self.posted = 0;
        entries.set_taken(0);
        self.eager = lane::BESIDE as u32;
        self.producing = None;
    }
}

/// `ibv_post_recv`: posts a chain; on failure `bad` is the first request that was not posted.
///
/// # Safety
///
/// The contract of ibv_post_recv(3): a well-formed chain of work requests.
#[inline]
pub(crate) unsafe fn post_recv(
    qp: &Arc<QpCore>,
    mut wr: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> i32 {
    let mut rq = qp.recv.lock_often();
    let before = rq.posted;
    let mut rc = 0;
    let state = qp.state();
    while !wr.is_null() {
        let refused = match faults::verb(Verb::PostRecv) {
            Some(errno) => Err(errno),
            // SAFETY: `wr` is a valid request of the chain.
            None => unsafe { post_one(qp, &mut rq, state, &*wr) },
        };
        if let Err(errno) = refused {
            // SAFETY: `bad` is the caller's out parameter.
            unsafe { *bad = wr };
            rc = errno;
            break;
        }
        // SAFETY: as above.
        wr = unsafe { (*wr).next };
    }
    if rq.posted != before {
        qp.own.posted.0.store(rq.posted, Ordering::Release);
        if let Some(producing) = &rq.producing {
            let fenced = |segment: &Segment| segment.header().fence.load(Ordering::Relaxed) != 0;
            if fenced(&qp.process.segment) || fenced(&producing.peer.segment) {
                fence(Ordering::SeqCst);
            } else {
                compiler_fence(Ordering::SeqCst);
            }
            // The producer parks, runs a barrier, and looks at `posted` again: it sees our store, or we see it parked.
            if producing.advert().word.0.parked.load(Ordering::Relaxed) != 0 {
                producing.peer.kick();
            }
        }
        if state == State::Err {
            qp.recv_cq.wake_own(true);
        }
    }
    rc
}

/// Why there is no room for a receive.
#[cold]
fn full(qp: &QpCore) -> i32 {
    if qp.srq.is_some() {
        // Its receives come from the shared queue.
        libc::EINVAL
    } else {
        libc::ENOMEM
    }
}

#[inline(always)]
unsafe fn post_one(
    qp: &QpCore,
    rq: &mut RecvQueue,
    state: State,
    wr: &ibv_recv_wr,
) -> Result<(), i32> {
    if state == State::Reset {
        return Err(libc::EINVAL);
    }
    let count = usize::try_from(wr.num_sge).map_err(|_| libc::EINVAL)?;
    if count > rq.max_sge {
        return Err(libc::EINVAL);
    }
    if rq.posted - qp.entries.taken() >= rq.depth {
        return Err(full(qp));
    }
    // SAFETY: by the caller's contract; they fit.
    let (sges, total) = unsafe { qp.entries.write(rq.posted, wr) };
    // It only falls, so that a sender that read it before this post is right too.
    if rq.eager > 0 {
        let eager = eager(qp, sges, total);
        if eager < rq.eager {
            rq.eager = eager;
            qp.own.eager.store(eager, Ordering::Relaxed);
        }
    }
    rq.posted += 1;
    Ok(())
}

/// How long a send may be to ride in the lane on its way to this receive, whatever else the sender knows of it.
#[inline]
fn eager(qp: &QpCore, sges: &[ibv_sge], total: u64) -> u32 {
    for sge in sges {
        let advert = qp.process.segment.mr(region::index_of(sge.lkey));
        let len = u64::from(sge.length);
        let ok = region::check(advert, sge.lkey, qp.pd, sge.addr, len, LOCAL_WRITE);
        if ok.is_err() || advert.access.load(Ordering::Relaxed) & REMOTE != 0 {
            return 0;
        }
    }
    total.min(lane::BESIDE as u64) as u32
}
