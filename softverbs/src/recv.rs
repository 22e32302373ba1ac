//! The receive queue and taking in what the peer's lane says.

use crate::faults::{self, Verb};
use crate::lane::{self, Consumer, Entry, Kind, Payload};
use crate::layout::QpAdvert;
use crate::os::memfd::ControlFile;
use crate::peer::{LaneSpace, Peer};
use crate::qp::{Caps, QpCore};
use crate::qp_state::State;
use crate::quiet::{self, Producing};
use crate::region::{self, LOCAL_WRITE, REMOTE};
use crate::transfer::{List, Mover, Piece};
use core::sync::atomic::{Ordering, compiler_fence, fence};
use ibverbs_sys::{
    ibv_recv_wr, ibv_sge, ibv_wc, ibv_wc_flags, ibv_wc_opcode, ibv_wc_status as Status,
};
use std::sync::Arc;

/// The lane from the peer, made by us.
pub(crate) struct InLane {
    producing: Producing,
    space: LaneSpace,
    order: u32,
    consumer: Consumer,
    published: u64,
    /// How far the queue has come in ending: after it no producer writes any more.
    closed: Closed,
    /// Something in it made no sense: nothing more is taken from it.
    spoiled: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Closed {
    Open,
    /// The error state is advertised and a barrier has run: producers see it or are seen.
    Fenced,
    /// No producer is at work.
    Quiet,
}

impl InLane {
    pub fn new(producing: Producing, space: LaneSpace, order: u32) -> InLane {
        InLane {
            producing,
            space,
            order,
            consumer: Consumer::default(),
            published: 0,
            closed: Closed::Open,
            spoiled: false,
        }
    }

    fn file(&self) -> &ControlFile {
        &self.space.file
    }

    /// The advertisement of the queue pair that writes here.
    pub fn producer(&self) -> &QpAdvert {
        self.producing.advert()
    }

    pub fn slots(&self) -> &[lane::Slot] {
        // SAFETY: the lane's room lies in the file, which stays mapped while `space` holds it. Atomics only.
        unsafe {
            core::slice::from_raw_parts(
                self.file().as_ptr().add(self.space.off).cast(),
                1 << self.order,
            )
        }
    }

    fn beside(&self, slot: usize) -> *const u8 {
        // SAFETY: as for `slots`; `slot` is below the number of slots.
        unsafe {
            self.file()
                .as_ptr()
                .add(self.space.off + lane::beside_off(self.order) + slot * lane::BESIDE)
        }
    }
}

#[derive(Clone, Copy, Default)]
struct Posted {
    wr_id: u64,
    sges: u32,
    total: u64,
}

pub(crate) struct RecvQueue {
    depth: usize,
    max_sge: usize,
    entries: Box<[Posted]>,
    sges: Box<[ibv_sge]>,
    posted: u64,
    taken: u64,
    /// As advertised, see [`crate::layout::QpAdvert::eager`].
    eager: u32,
    lane: Option<InLane>,
}

impl RecvQueue {
    pub fn new(caps: &Caps) -> RecvQueue {
        RecvQueue {
            depth: caps.recv_wr,
            max_sge: caps.recv_sge,
            entries: vec![Posted::default(); caps.recv_wr].into(),
            sges: vec![ibv_sge::default(); caps.recv_wr * caps.recv_sge].into(),
            posted: 0,
            taken: 0,
            eager: lane::BESIDE as u32,
            lane: None,
        }
    }

    /// Who may be at work on receives, if anybody is connected.
    pub fn producing(&self) -> Option<Producing> {
        self.lane.as_ref().map(|lane| lane.producing.clone())
    }

    /// Whether a posted receive that has not completed is to be placed in the region with `key`.
    pub fn names(&self, key: u32) -> bool {
        (self.taken..self.posted).any(|index| {
            let slot = self.slot(index);
            let count = self.entries[slot].sges as usize;
            let sges = &self.sges[slot * self.max_sge..][..count];
            sges.iter().any(|sge| sge.lkey == key)
        })
    }

    pub fn attach(&mut self, lane: InLane) {
        self.lane = Some(lane);
    }

    /// Forgets everything that was posted; gives the lane back.
    pub fn reset(&mut self) -> Option<(Arc<Peer>, LaneSpace)> {
        self.posted = 0;
        self.taken = 0;
        self.eager = lane::BESIDE as u32;
        self.lane
            .take()
            .map(|lane| (lane.producing.peer, lane.space))
    }

    fn slot(&self, index: u64) -> usize {
        (index % self.depth as u64) as usize
    }
}

/// `ibv_post_recv`: posts a chain; on failure `bad` is the first request that was not posted.
///
/// # Safety
///
/// The contract of ibv_post_recv(3): a well-formed chain of work requests.
pub(crate) unsafe fn post_recv(
    qp: &Arc<QpCore>,
    mut wr: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> i32 {
    let mut rq = qp.recv.lock();
    let before = rq.posted;
    let mut rc = 0;
    while !wr.is_null() {
        if let Some(errno) = faults::verb(Verb::PostRecv) {
            // SAFETY: `bad` is the caller's out parameter.
            unsafe { *bad = wr };
            rc = errno;
            break;
        }
        // SAFETY: `wr` is a valid request of the chain.
        if let Err(errno) = unsafe { post_one(qp, &mut rq, &*wr) } {
            // SAFETY: `bad` is the caller's out parameter.
            unsafe { *bad = wr };
            rc = errno;
            break;
        }
        // SAFETY: as above.
        wr = unsafe { (*wr).next };
    }
    if rq.posted != before {
        qp.advert().posted.0.store(rq.posted, Ordering::Release);
        if let Some(lane) = &rq.lane {
            let peer = &lane.producing.peer;
            if qp.process.fenced() || peer.segment.header().fence.load(Ordering::Relaxed) != 0 {
                fence(Ordering::SeqCst);
            } else {
                compiler_fence(Ordering::SeqCst);
            }
            // The producer parks, runs a barrier, and looks at `posted` again: it sees our store, or we see it parked.
            if lane.producer().word.0.parked.load(Ordering::Relaxed) != 0 {
                peer.kick();
            }
        }
        if qp.state() == State::Err {
            qp.recv_cq.wake_own(true);
        }
    }
    rc
}

unsafe fn post_one(qp: &QpCore, rq: &mut RecvQueue, wr: &ibv_recv_wr) -> Result<(), i32> {
    if qp.state() == State::Reset {
        return Err(libc::EINVAL);
    }
    let count = usize::try_from(wr.num_sge).map_err(|_| libc::EINVAL)?;
    if count > rq.max_sge {
        return Err(libc::EINVAL);
    }
    if rq.posted - rq.taken >= rq.depth as u64 {
        return Err(libc::ENOMEM);
    }
    let sges = if count == 0 {
        &[][..]
    } else {
        // SAFETY: the request holds `num_sge` elements at `sg_list`.
        unsafe { core::slice::from_raw_parts(wr.sg_list, count) }
    };
    let total = sges.iter().map(|s| u64::from(s.length)).sum();
    let slot = rq.slot(rq.posted);
    rq.entries[slot] = Posted {
        wr_id: wr.wr_id,
        sges: count as u32,
        total,
    };
    rq.sges[slot * rq.max_sge..][..count].copy_from_slice(sges);
    // The advertised ring is a power of two, our own is as deep as was asked.
    let advert = qp.advert();
    let stride = u64::from(advert.recv_stride.load(Ordering::Relaxed));
    let mask = (1u64 << advert.recv_order.load(Ordering::Relaxed)) - 1;
    let off = qp.recv_off() as u64 + (rq.posted & mask) * stride;
    let (head, out) = qp.process.segment.recv(off, count).ok_or(libc::EINVAL)?;
    head.num_sge.store(count as u32, Ordering::Relaxed);
    head.total.store(total, Ordering::Relaxed);
    for (to, sge) in out.iter().zip(sges) {
        to.addr.store(sge.addr, Ordering::Relaxed);
        to.len.store(sge.length, Ordering::Relaxed);
        to.lkey.store(sge.lkey, Ordering::Relaxed);
    }
    let eager = eager(qp, sges);
    if eager < rq.eager {
        rq.eager = eager;
        advert.eager.store(eager, Ordering::Relaxed);
    }
    rq.posted += 1;
    Ok(())
}

/// How long a send may be to ride in the lane on its way to this receive, whatever else the sender knows of it.
fn eager(qp: &QpCore, sges: &[ibv_sge]) -> u32 {
    let mut total = 0;
    for sge in sges {
        let advert = qp.process.segment.mr(region::index_of(sge.lkey));
        let ok = region::check(
            advert,
            sge.lkey,
            qp.pd,
            sge.addr,
            u64::from(sge.length),
            LOCAL_WRITE,
        );
        if ok.is_err() || advert.access.load(Ordering::Relaxed) & REMOTE != 0 {
            return 0;
        }
        total += u64::from(sge.length);
    }
    total.min(lane::BESIDE as u64) as u32
}

impl QpCore {
    /// Takes completions of the receive queue out of the lane; in the error state flushes what is left.
    pub fn take_in(self: &Arc<Self>, out: &mut [ibv_wc]) -> usize {
        let mut rq = self.recv.lock();
        let rq = &mut *rq;
        let mut filled = 0;
        // A bound on entries that make no completion: an honest peer has no more than the lane holds.
        let mut budget = rq.lane.as_ref().map_or(0, |lane| 1u64 << lane.order);
        while filled < out.len() {
            let next = rq.lane.as_mut().filter(|lane| !lane.spoiled && budget > 0);
            let next = next.and_then(|lane| {
                budget -= 1;
                // SAFETY: the slots stay mapped while the lane is held; borrowed apart from the consumer.
                let slots =
                    unsafe { core::slice::from_raw_parts(lane.slots().as_ptr(), 1 << lane.order) };
                lane.consumer.take(slots)
            });
            match next {
                Some((slot, Ok(entry))) => {
                    filled += usize::from(self.entry(rq, slot, &entry, &mut out[filled]))
                }
                // Rubbish in the lane: a peer of ours would not write it.
                Some((_, Err(()))) => self.spoil(rq),
                None if self.state() == State::Err => {
                    if !self.quiet(rq) || rq.taken == rq.posted {
                        break;
                    }
                    out[filled] = self.receive(rq, Status::IBV_WC_WR_FLUSH_ERR);
                    filled += 1;
                }
                None => break,
            }
        }
        if let Some(lane) = &mut rq.lane {
            let pos = lane.consumer.pos();
            self.publish_taken(pos);
            let lag = ((1u64 << lane.order) - self.caps.recv_wr as u64) / 2;
            if pos - lane.published >= lag.max(1) {
                lane.published = pos;
                self.advert().consumed.0.store(pos, Ordering::Release);
            }
        }
        filled
    }

    /// In the error state: whether no producer writes to the lane any more, and everything it wrote was taken.
    fn quiet(self: &Arc<Self>, rq: &mut RecvQueue) -> bool {
        let Some(lane) = &mut rq.lane else {
            return true;
        };
        if lane.closed == Closed::Open {
            // Whoever set the private state may not have come to this yet.
            let advert = &self.advert().state;
            advert.store(State::Err as u32, Ordering::Release);
            if quiet::barrier(self.process).is_err() {
                return false;
            }
            lane.closed = Closed::Fenced;
        }
        if lane.closed == Closed::Fenced {
            if lane.producing.is_busy() {
                // Somebody is in the middle of a copy: the watcher waits for it and then wakes whoever wants the flush.
                self.unquiet.store(true, Ordering::Release);
                self.process.watcher.wait_for(self);
                return false;
            }
            lane.closed = Closed::Quiet;
        }
        // What was pushed before the hazard was cleared is taken before the flush.
        lane.spoiled || !Consumer::waiting(lane.slots(), lane.consumer.pos())
    }

    /// The peer broke the rules: the queue pair fails, and nothing more of the lane is believed.
    #[cold]
    fn spoil(&self, rq: &mut RecvQueue) {
        if let Some(lane) = &mut rq.lane {
            lane.spoiled = true;
        }
        self.fail();
    }

    /// The completion of the oldest receive.
    fn receive(&self, rq: &mut RecvQueue, status: Status) -> ibv_wc {
        let slot = rq.slot(rq.taken);
        rq.taken += 1;
        ibv_wc {
            wr_id: rq.entries[slot].wr_id,
            status,
            opcode: ibv_wc_opcode::IBV_WC_RECV,
            qp_num: self.qpn,
            src_qp: self.advert().peer_qpn.load(Ordering::Relaxed),
            ..ibv_wc::default()
        }
    }

    /// One entry of the lane. Returns whether it made a completion.
    fn entry(&self, rq: &mut RecvQueue, slot: usize, entry: &Entry, wc: &mut ibv_wc) -> bool {
        match entry.kind {
            Kind::Recv | Kind::RecvImm | Kind::WriteImm => {
                let posted = rq.entries[rq.slot(rq.taken)];
                let fits =
                    entry.kind == Kind::WriteImm || u64::from(entry.byte_len) <= posted.total;
                if entry.index != rq.taken || rq.taken == rq.posted || !fits {
                    self.spoil(rq);
                    return false;
                }
                if !self.place(rq, slot, entry) {
                    *wc = self.receive(rq, Status::IBV_WC_LOC_PROT_ERR);
                    self.fail();
                    return true;
                }
                *wc = self.receive(rq, Status::IBV_WC_SUCCESS);
                wc.byte_len = entry.byte_len;
                if entry.kind != Kind::Recv {
                    wc.wc_flags = ibv_wc_flags::IBV_WC_WITH_IMM.0;
                    wc.__bindgen_anon_1.imm_data = entry.imm;
                }
                if entry.kind == Kind::WriteImm {
                    wc.opcode = ibv_wc_opcode::IBV_WC_RECV_RDMA_WITH_IMM;
                }
                true
            }
            Kind::Error => {
                if entry.index != rq.taken || rq.taken == rq.posted {
                    self.spoil(rq);
                    return false;
                }
                // Only the errors that an initiator can find here.
                let status = if entry.imm == Status::IBV_WC_LOC_LEN_ERR.0 {
                    Status::IBV_WC_LOC_LEN_ERR
                } else {
                    Status::IBV_WC_LOC_PROT_ERR
                };
                *wc = self.receive(rq, status);
                self.fail();
                true
            }
            Kind::Fatal => {
                self.fail();
                false
            }
            // Kinds that nobody sends to this kind of queue pair yet.
            Kind::ParkedDone
            | Kind::Ring
            | Kind::Invalidate
            | Kind::SharedRecv
            | Kind::Datagram
            | Kind::Atomic => {
                self.spoil(rq);
                false
            }
        }
    }

    /// Copies a payload that rode in the lane to where the receive wants it.
    fn place(&self, rq: &RecvQueue, slot: usize, entry: &Entry) -> bool {
        let words;
        let (from, room): (*const u8, usize) = match (&entry.payload, &rq.lane) {
            (Payload::Placed, _) => return true,
            (Payload::InEntry(w), _) => {
                words = *w;
                (words.as_ptr().cast(), lane::IN_ENTRY)
            }
            (Payload::Beside, Some(lane)) => (lane.beside(slot), lane::BESIDE),
            (Payload::Beside, None) => return false,
        };
        let mut left = entry.byte_len as usize;
        if left > room {
            return false;
        }
        let at = rq.slot(rq.taken);
        let sges = &rq.sges[at * rq.max_sge..][..rq.entries[at].sges as usize];
        let mut from = from;
        let mut pieces: List<Piece> = List::new();
        for sge in sges {
            let len = (sge.length as usize).min(left);
            if len == 0 {
                continue;
            }
            let advert = self.process.segment.mr(region::index_of(sge.lkey));
            let Ok(off) =
                region::check(advert, sge.lkey, self.pd, sge.addr, len as u64, LOCAL_WRITE)
            else {
                return false;
            };
            pieces.push(Piece {
                ptr: (advert.addr.load(Ordering::Relaxed) + off) as *mut u8,
                len,
            });
            left -= len;
        }
        for piece in pieces.as_slice() {
            // SAFETY: the piece lies in a region whose key was checked under the receive queue's lock, which
            // `quiet::region` takes before memory is given back; `from` has `room` bytes, of which at most `byte_len` are read.
            unsafe {
                Mover::Now.copy(piece.ptr, from, piece.len);
                from = from.add(piece.len);
            }
        }
        left == 0
    }
}
