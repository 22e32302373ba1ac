//! Taking in what the peer's lane says: the consumer's side of a receive queue. Everything here runs under the lock of the
//! receive queue's completion queue.

mod greeting;
mod shared;

use crate::copy::will_read;
use crate::datagram::Inbox;
use crate::lane::{self, Consumer, Kind, Payload, Taken};
use crate::layout::{QpAdvert, RecvSge};
use crate::peer::{LaneSpace, Peer};
use crate::qp::QpCore;
use crate::qp_state::State;
use crate::quiet::{self, Producing};
use crate::region::{self, LOCAL_WRITE};
use crate::transfer::{List, Mover, Piece};
use core::sync::atomic::Ordering;
use ibverbs_sys::{ibv_wc, ibv_wc_flags, ibv_wc_opcode, ibv_wc_status as Status};
use std::collections::HashSet;
use std::sync::Arc;

/// The lane from the peer, made by us.
pub(crate) struct InLane {
    producing: Producing,
    ring: Ring,
    consumer: Consumer,
    /// How far the peer knows us to be, and after how many entries it is told anew.
    published: u64,
    lag: u64,
    /// How far the queue has come in ending: after it no producer writes any more.
    closed: Closed,
    /// Something in it made no sense: nothing more is taken from it.
    spoiled: bool,
}

/// Its room.
struct Ring {
    space: LaneSpace,
    slots: *const lane::Slot,
    order: u32,
}

// SAFETY: `slots` points into the shared mapping that `space` holds, and is good in any thread.
unsafe impl Send for Ring {}

impl Ring {
    #[inline]
    fn slots(&self) -> &[lane::Slot] {
        // SAFETY: the lane's room lies in the file, which stays mapped while `space` holds it. Atomics only.
        unsafe { core::slice::from_raw_parts(self.slots, 1 << self.order) }
    }

    fn beside(&self, slot: usize) -> *const u8 {
        // SAFETY: as for `slots`; `slot` is below the number of slots.
        unsafe {
            self.slots
                .cast::<u8>()
                .add(lane::beside_off(self.order) + slot * lane::BESIDE)
        }
    }
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
    /// A lane in `space`, which is empty, for a receive queue of `depth` entries.
    pub fn new(producing: Producing, space: LaneSpace, order: u32, depth: usize) -> InLane {
        InLane {
            producing,
            ring: Ring {
                // SAFETY: the lane's room lies in the file.
                slots: unsafe { space.file.as_ptr().add(space.off) }.cast(),
                space,
                order,
            },
            consumer: Consumer::default(),
            published: 0,
            lag: (((1u64 << order) - depth as u64) / 2).max(1),
            closed: Closed::Open,
            spoiled: false,
        }
    }

    /// Gives the room back.
    pub fn into_space(self) -> (Arc<Peer>, LaneSpace) {
        (self.producing.peer, self.ring.space)
    }

    /// The advertisement of the queue pair that writes here.
    pub fn producer(&self) -> &QpAdvert {
        self.producing.advert()
    }

    /// The receive entries that waiting entries name, as far as they would be taken.
    pub fn named(&self) -> HashSet<u64> {
        if self.spoiled {
            return HashSet::new();
        }
        self.consumer.named(self.ring.slots()).collect()
    }

    /// Whether the process that writes here is gone.
    pub fn is_dead(&self) -> bool {
        self.producing.peer.check_dead()
    }

    /// Whether an entry waits that would be taken.
    #[inline]
    pub fn waiting(&self) -> bool {
        self.consumer.waiting(self.ring.slots()) && !self.spoiled
    }

    /// Where the next entry will be, or is.
    #[inline]
    fn next(&self) -> &lane::Slot {
        self.consumer.next(self.ring.slots())
    }

    /// How many entries wait.
    pub fn count(&self) -> usize {
        match self.spoiled {
            true => 0,
            false => self.consumer.named(self.ring.slots()).count(),
        }
    }

    /// Tells the peer now and then how much room it has.
    #[inline]
    fn publish(&mut self, advert: &QpAdvert) {
        let pos = self.consumer.pos();
        if pos - self.published >= self.lag {
            self.published = pos;
            advert.consumed.0.store(pos, Ordering::Release);
        }
    }
}

/// The consumer's side.
#[derive(Default)]
pub(crate) struct Arrivals {
    pub lane: Option<InLane>,
    /// In place of a lane, if the queue pair is for datagrams.
    pub mail: Option<Box<Inbox>>,
    /// Receive entries ever taken.
    taken: u64,
    /// With a shared receive queue: this queue pair has failed, and takes nothing from it any more.
    pub(super) ended: bool,
}

impl Arrivals {
    /// Forgets everything; gives the lane back.
    pub fn reset(&mut self) -> Option<InLane> {
        self.taken = 0;
        self.ended = false;
        self.mail = None;
        self.lane.take()
    }
}

/// What a receive fails with: only the errors that an initiator can find.
fn status_of(error: &Taken<'_>) -> Status {
    [Status::IBV_WC_LOC_LEN_ERR, Status::IBV_WC_REM_ACCESS_ERR]
        .into_iter()
        .find(|status| status.0 == error.imm)
        .unwrap_or(Status::IBV_WC_LOC_PROT_ERR)
}

impl QpCore {
    /// Whether there is something to take in.
    ///
    /// # Safety
    ///
    /// The caller holds the lock of the receive queue's completion queue.
    #[inline]
    pub unsafe fn recv_waiting(&self) -> bool {
        // SAFETY: by contract; shared for the moment.
        let arrivals = unsafe { &*self.arrivals.get() };
        arrivals.lane.as_ref().is_some_and(InLane::waiting)
            || arrivals.mail.as_ref().is_some_and(|mail| mail.waiting())
            || self.state() == State::Err && self.srq.is_none()
    }

    /// The peer is gone. What it told still counts, but it may have come to its end before it woke who waits for that, or said so on the board.
    pub fn wake_for_dead(&self) {
        // SAFETY: under the lock of the completion queue.
        let told = self.recv_cq.exclusively(|| unsafe { self.recv_waiting() });
        if told {
            self.recv_cq.doubt();
            self.recv_cq.wake_own(true);
        }
    }

    /// The queue pair is about to be polled: what of it is looked at then may come meanwhile.
    #[inline(always)]
    pub fn will_poll(&self) {
        will_read(core::ptr::from_ref(&self.attention).cast());
        let arrivals = self.arrivals.get().cast::<u8>().cast_const();
        will_read(arrivals);
        will_read(arrivals.wrapping_add(64));
        will_read(core::ptr::from_ref(&self.send_dones).cast());
        will_read(core::ptr::from_ref(&self.entries).cast());
    }

    /// As [`will_poll`](Self::will_poll), a step further: what messages that wait are told by. `receives`: if there may be any.
    ///
    /// # Safety
    ///
    /// With `receives`, the caller holds the lock of the receive queue's completion queue.
    #[inline(always)]
    pub unsafe fn will_take_in(&self, receives: bool) {
        if !receives {
            return;
        }
        // SAFETY: by contract; shared for the moment.
        let arrivals = unsafe { &*self.arrivals.get() };
        if let Some(lane) = &arrivals.lane {
            will_read(core::ptr::from_ref(lane.next()).cast());
            will_read(core::ptr::from_ref(&self.own.qpn).cast());
            will_read(core::ptr::from_ref(&self.own.posted).cast());
            will_read(self.entries.wr_id_of(arrivals.taken));
        }
    }

    /// How many messages wait; in the error state, without end.
    ///
    /// # Safety
    ///
    /// As [`recv_waiting`](Self::recv_waiting).
    pub unsafe fn count_received(&self) -> usize {
        // SAFETY: by contract; shared for the moment.
        let arrivals = unsafe { &*self.arrivals.get() };
        if self.state() == State::Err {
            return usize::MAX;
        }
        let lane = arrivals.lane.as_ref().map_or(0, InLane::count);
        lane + arrivals.mail.as_ref().map_or(0, |mail| mail.count())
    }

    /// Takes completions of the receive queue out of the lane; in the error state flushes what is left.
    ///
    /// # Safety
    ///
    /// The caller holds the lock of the receive queue's completion queue.
    #[inline(always)]
    pub unsafe fn take_in(self: &Arc<Self>, out: &mut [ibv_wc]) -> usize {
        // SAFETY: by contract, nobody else uses it now.
        let Arrivals {
            lane, mail, taken, ..
        } = unsafe { &mut *self.arrivals.get() };
        let mut filled = 0;
        match lane {
            Some(lane) if lane.waiting() => filled = self.take_from(lane, taken, out),
            Some(_) => {}
            None => {
                if let Some(mail) = mail {
                    filled = self.take_mail(mail, taken, out);
                }
            }
        }
        if self.state() != State::Rts {
            filled += self.take_in_elsewhere(lane, taken, out, filled);
        }
        filled
    }

    /// What is more to do in a state that is not the usual one. `filled` entries were made already; says how many more.
    #[cold]
    fn take_in_elsewhere(
        self: &Arc<Self>,
        lane: &mut Option<InLane>,
        taken: &mut u64,
        out: &mut [ibv_wc],
        filled: usize,
    ) -> usize {
        match self.state() {
            State::Err => return self.flush_receives(lane, taken, &mut out[filled..]),
            State::Rtr if filled != 0 => self.established(),
            _ => {}
        }
        0
    }

    #[inline]
    fn take_from(&self, lane: &mut InLane, taken: &mut u64, out: &mut [ibv_wc]) -> usize {
        if let Some(srq) = &self.srq {
            return self.take_shared(srq, lane, out);
        }
        let mut filled = 0;
        // A bound on entries that make no completion: an honest peer has no more than the lane holds.
        let mut budget = lane.ring.slots().len();
        let before = *taken;
        while filled < out.len() && budget > 0 {
            let Some((at, entry)) = lane.consumer.take(lane.ring.slots()) else {
                break;
            };
            budget -= 1;
            let wc = &mut out[filled];
            match entry.and_then(|entry| self.entry(&lane.ring, taken, at, &entry, wc)) {
                Some(made) => filled += usize::from(made),
                // Rubbish, which a peer of ours would not write: nothing more of the lane is believed.
                None => {
                    lane.spoiled = true;
                    self.fail();
                    break;
                }
            }
        }
        lane.publish(self.own);
        if *taken != before {
            self.entries.set_taken(*taken);
        }
        filled
    }

    /// In the error state: completes what is left, once nobody writes to the lane any more.
    #[cold]
    fn flush_receives(
        self: &Arc<Self>,
        lane: &mut Option<InLane>,
        taken: &mut u64,
        out: &mut [ibv_wc],
    ) -> usize {
        // Entries of a shared queue are not this queue pair's to flush.
        if out.is_empty() || self.srq.is_some() || !self.quiet(lane) {
            return 0;
        }
        let mut filled = 0;
        while filled < out.len() && *taken != self.own.posted.0.load(Ordering::Acquire) {
            self.receive(taken, Status::IBV_WC_WR_FLUSH_ERR, &mut out[filled]);
            filled += 1;
        }
        self.entries.set_taken(*taken);
        filled
    }

    /// In the error state: whether no producer writes to the lane any more, and everything it wrote was taken.
    fn quiet(self: &Arc<Self>, lane: &mut Option<InLane>) -> bool {
        // What was pushed before the hazard was cleared is taken before the flush.
        lane.as_mut()
            .is_none_or(|lane| self.close(lane) && !lane.waiting())
    }

    /// In the error state: whether no producer writes to the lane any more.
    pub(super) fn close(self: &Arc<Self>, lane: &mut InLane) -> bool {
        if lane.closed == Closed::Open {
            // Whoever set the private state may not have come to this yet.
            self.own.state.store(State::Err as u32, Ordering::Release);
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
        true
    }

    /// The completion of the oldest receive.
    #[inline(always)]
    fn receive(&self, taken: &mut u64, status: Status, wc: &mut ibv_wc) {
        self.completed(self.entries.wr_id(*taken), status, wc);
        *taken += 1;
    }

    /// The completion of a receive.
    #[inline(always)]
    pub(crate) fn completed(&self, wr_id: u64, status: Status, wc: &mut ibv_wc) {
        *wc = ibv_wc {
            wr_id,
            status,
            opcode: ibv_wc_opcode::IBV_WC_RECV,
            qp_num: self.qpn,
            src_qp: self.own.peer_qpn.load(Ordering::Relaxed),
            ..ibv_wc::default()
        };
    }

    /// What a completion tells of the message.
    #[inline(always)]
    fn describe(entry: &Taken<'_>, wc: &mut ibv_wc) {
        wc.byte_len = entry.byte_len;
        if entry.kind != Kind::Recv {
            wc.wc_flags = ibv_wc_flags::IBV_WC_WITH_IMM.0;
            wc.__bindgen_anon_1.imm_data = entry.imm;
        }
        if entry.kind == Kind::WriteImm {
            wc.opcode = ibv_wc_opcode::IBV_WC_RECV_RDMA_WITH_IMM;
        }
    }

    /// One entry of the lane. Returns whether it made a completion, `None` if it makes no sense.
    #[inline(always)]
    fn entry(
        &self,
        ring: &Ring,
        taken: &mut u64,
        at: usize,
        entry: &Taken<'_>,
        wc: &mut ibv_wc,
    ) -> Option<bool> {
        let kind = entry.kind;
        if !matches!(kind, Kind::Recv | Kind::RecvImm | Kind::WriteImm) {
            return self.unusual(taken, entry, wc);
        }
        // The caller will look at the bytes next; let them come meanwhile.
        match entry.payload() {
            Payload::Written(at) => {
                let at = at as *const u8;
                will_read(at);
                if entry.byte_len > 64 {
                    will_read(at.wrapping_add(64));
                }
            }
            Payload::Beside => will_read(ring.beside(at)),
            Payload::Placed | Payload::InEntry(_) => {}
        }
        if !self.is_next(*taken, entry) {
            return None;
        }
        if kind != Kind::WriteImm {
            let (head, sges) = self.entries.get(*taken);
            if u64::from(entry.byte_len) > head.total.load(Ordering::Relaxed) {
                return None;
            }
            if !self.place(ring, at, entry, sges, self.pd) {
                self.receive(taken, Status::IBV_WC_LOC_PROT_ERR, wc);
                self.fail();
                return Some(true);
            }
        }
        self.receive(taken, Status::IBV_WC_SUCCESS, wc);
        Self::describe(entry, wc);
        Some(true)
    }

    /// Whether an entry is about the oldest receive, which was posted.
    #[inline(always)]
    fn is_next(&self, taken: u64, entry: &Taken<'_>) -> bool {
        entry.index == taken && taken != self.own.posted.0.load(Ordering::Acquire)
    }

    #[cold]
    fn unusual(&self, taken: &mut u64, entry: &Taken<'_>, wc: &mut ibv_wc) -> Option<bool> {
        match entry.kind {
            Kind::Error if self.is_next(*taken, entry) => {
                self.receive(taken, status_of(entry), wc);
                self.fail();
                Some(true)
            }
            Kind::Fatal => {
                self.fail();
                Some(false)
            }
            // Kinds that nobody sends to this kind of queue pair yet, and receives that there are none of.
            _ => None,
        }
    }

    /// Copies a payload that rode in the lane to where the receive wants it.
    #[inline]
    fn place(&self, ring: &Ring, at: usize, entry: &Taken<'_>, sges: &[RecvSge], pd: u32) -> bool {
        let words;
        let (mut from, room): (*const u8, usize) = match entry.payload() {
            Payload::Placed | Payload::Written(_) => return true,
            Payload::InEntry(w) => {
                words = w;
                (words.as_ptr().cast(), lane::IN_ENTRY)
            }
            Payload::Beside => (ring.beside(at), lane::BESIDE),
        };
        let left = entry.byte_len as usize;
        if left > room {
            return false;
        }
        let mut pieces: List<Piece> = List::new();
        if !self.pieces(sges, pd, left, &mut pieces) {
            return false;
        }
        for piece in pieces.as_slice() {
            // SAFETY: the piece lies in a region whose key was checked under the completion queue's lock, which
            // `quiet::region` takes before memory is given back; `from` has `room` bytes, of which at most `byte_len` are read.
            unsafe {
                Mover::Now.copy(piece.ptr, from, piece.len);
                from = from.add(piece.len);
            }
        }
        true
    }

    /// Where the first `left` bytes of a receive's memory lie. Returns whether they all are there, and may be written to.
    #[inline(always)]
    fn pieces(&self, sges: &[RecvSge], pd: u32, mut left: usize, pieces: &mut List<Piece>) -> bool {
        for sge in sges {
            let len = (sge.len.load(Ordering::Relaxed) as usize).min(left);
            if len == 0 {
                continue;
            }
            let (addr, lkey) = (
                sge.addr.load(Ordering::Relaxed),
                sge.lkey.load(Ordering::Relaxed),
            );
            let advert = self.process.segment.mr(region::index_of(lkey));
            let Ok(off) = region::check(advert, lkey, pd, addr, len as u64, LOCAL_WRITE) else {
                return false;
            };
            pieces.push(Piece {
                ptr: (advert.addr.load(Ordering::Relaxed) + off) as *mut u8,
                len,
            });
            left -= len;
        }
        left == 0
    }

    /// Copies `parts`, one after the other, to where a receive wants them. Returns whether they went there.
    ///
    /// # Safety
    ///
    /// Each part can be read; the lock of the receives' completion queue is held.
    pub(crate) unsafe fn scatter(
        &self,
        parts: &[(*const u8, usize)],
        sges: &[RecvSge],
        pd: u32,
    ) -> bool {
        let total = parts.iter().map(|part| part.1).sum();
        let mut pieces: List<Piece> = List::new();
        if !self.pieces(sges, pd, total, &mut pieces) {
            return false;
        }
        let mut to = pieces.as_slice().iter();
        let (mut ptr, mut room) = (core::ptr::null_mut(), 0);
        for &(mut from, mut len) in parts {
            while len > 0 {
                if room == 0 {
                    let Some(piece) = to.next() else {
                        return false;
                    };
                    (ptr, room) = (piece.ptr, piece.len);
                }
                let n = len.min(room);
                // SAFETY: as in `place`: checked under the lock; the part can be read by contract.
                unsafe {
                    Mover::Now.copy(ptr, from, n);
                    (ptr, from) = (ptr.add(n), from.add(n));
                }
                (room, len) = (room - n, len - n);
            }
        }
        true
    }
}
