//! Completion queues.
//!
//! A completion queue stores nothing: polling visits the queue pairs that complete to it, takes what waits in their private
//! send rings and in their lanes, and goes on next time where it stopped. An entry that nobody polls stays where it is,
//! and as each takes a slot of its own queue, nothing can overflow as long as the completion queue is as large as the sum of
//! its queues. A smaller one counts.
//!
//! Lock order: completion queue, then a queue pair's receive queue, then its send queue.

use crate::channel::{ChannelCore, Record};
use crate::events::AsyncEvents;
use crate::faults;
use crate::layout::{ARM_ANY, ARM_NONE, ARM_SOLICITED};
use crate::lock::Lock;
use crate::process::Process;
use crate::qp::QpCore;
use crate::quiet;
use core::ffi::c_void;
use core::sync::atomic::{
    AtomicI32, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering, compiler_fence, fence,
};
use ibverbs_sys::{ibv_event_type, ibv_wc, ibv_wc_opcode, ibv_wc_status};
use parking_lot::{Condvar, Mutex};
use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How often a thread that holds an event back looks whether it is time.
const MODERATION_STEP: Duration = Duration::from_micros(20);

struct Members {
    list: Vec<Arc<QpCore>>,
    /// Where the next poll begins.
    next: usize,
    /// Sum of the depths of the queues that complete here. If it is larger than the queue, completions are counted: polls
    /// first move what waits into `ring`, and what finds no room there is an overflow.
    sum: usize,
    ring: VecDeque<Counted>,
    /// It has overflowed; what is in the ring can still be polled.
    broken: bool,
}

/// A completion in the ring of a queue that counts.
struct Counted {
    wc: ibv_wc,
    /// Polling it frees the send queue up to here.
    frees: Option<(Arc<QpCore>, u64)>,
}

/// Completion events: handed out by `ibv_get_cq_event`, acknowledged by `ibv_ack_cq_events`.
#[derive(Default)]
struct Given {
    given: u64,
    acked: u64,
    /// The queue is being destroyed: no event is handed out any more.
    gone: bool,
}

/// A completion queue that has overflowed and is empty.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Overflow;

pub(crate) struct CqCore {
    process: &'static Process,
    pub index: u32,
    pub channel: Option<Arc<ChannelCore>>,
    members: Lock<Members>,
    /// Last generation that was delivered as an event.
    delivered: AtomicU64,
    /// Generation for which this process has already woken it.
    own_woken: AtomicU64,
    /// Queue pairs and handles that name this queue: while there are any, destroying it is EBUSY.
    pub users: AtomicUsize,
    pub cqe: AtomicI32,
    /// Events are held back until so many completions wait, or so many microseconds are over: in the upper and the lower half.
    moderation: AtomicU32,
    /// The `ibv_cq` that callers hold.
    pub handle: AtomicPtr<c_void>,
    events: Arc<AsyncEvents>,
    /// Completion events handed out and acknowledged.
    given: Mutex<Given>,
    acked: Condvar,
}

impl CqCore {
    pub fn new(
        process: &'static Process,
        channel: Option<Arc<ChannelCore>>,
        cqe: i32,
        events: Arc<AsyncEvents>,
    ) -> io::Result<Arc<CqCore>> {
        let index = process.take_cq().ok_or(io::ErrorKind::OutOfMemory)? as u32;
        let advert = process.segment.cq(index as usize);
        let generation = advert.armed.load(Ordering::Relaxed) >> 2;
        advert
            .armed
            .store(generation << 2 | ARM_NONE, Ordering::Relaxed);
        advert.channel.store(
            channel.as_ref().map_or(0, |c| c.index + 1),
            Ordering::Release,
        );
        let cq = Arc::new(CqCore {
            process,
            index,
            channel,
            members: Lock::new(Members {
                list: Vec::new(),
                next: 0,
                sum: 0,
                ring: VecDeque::new(),
                broken: false,
            }),
            delivered: AtomicU64::new(generation),
            own_woken: AtomicU64::new(generation),
            users: AtomicUsize::new(0),
            cqe: AtomicI32::new(cqe),
            moderation: AtomicU32::new(0),
            handle: AtomicPtr::default(),
            events,
            given: Mutex::default(),
            acked: Condvar::new(),
        });
        if let Some(channel) = &cq.channel {
            channel.add(&cq);
        }
        Ok(cq)
    }

    pub fn add(&self, qp: &Arc<QpCore>) {
        let mut members = self.members.lock();
        if !members.list.iter().any(|m| Arc::ptr_eq(m, qp)) {
            members.list.push(qp.clone());
            members.sum = self.sum_of(&members.list);
        }
    }

    /// The depth of a queue that completes here has changed.
    pub fn sum_anew(&self) {
        let mut members = self.members.lock();
        members.sum = self.sum_of(&members.list);
    }

    /// Completions that queue pairs can have here at once. An entry of a shared receive queue completes once, whoever takes it.
    fn sum_of(&self, list: &[Arc<QpCore>]) -> usize {
        let mut shared = Vec::new();
        let mut sum = 0;
        for qp in list {
            if self.is(&qp.send_cq) {
                sum += qp.caps.send_wr;
            }
            if self.is(&qp.recv_cq) {
                sum += qp.caps.recv_wr;
                if let Some(srq) = &qp.srq
                    && !shared.contains(&Arc::as_ptr(srq))
                {
                    shared.push(Arc::as_ptr(srq));
                    sum += srq.max_wr();
                }
            }
        }
        sum
    }

    /// Removes a queue pair with all its completions that were not polled.
    pub fn remove(&self, qp: &QpCore) {
        let mut members = self.members.lock();
        members.list.retain(|m| !std::ptr::eq(&**m, qp));
        members.sum = self.sum_of(&members.list);
        members.next = 0;
    }

    /// Runs `f` while nobody polls either queue of a queue pair, and drops what it has in their rings. The queue with the
    /// lower index is locked first.
    pub fn exclude(qp: &QpCore, f: impl FnOnce()) {
        let (a, b) = (&qp.send_cq, &qp.recv_cq);
        let (first, second) = if a.index <= b.index { (a, b) } else { (b, a) };
        let mut first_members = first.members.lock();
        let mut second_members = (first.index != second.index).then(|| second.members.lock());
        f();
        let mine = |counted: &Counted| counted.wc.qp_num != qp.qpn;
        first_members.ring.retain(mine);
        if let Some(members) = &mut second_members {
            members.ring.retain(mine);
        }
    }

    /// Runs `f` while nobody polls.
    pub fn exclusively<T>(&self, f: impl FnOnce() -> T) -> T {
        let _members = self.members.lock();
        f()
    }

    #[inline]
    fn is(&self, cq: &Arc<CqCore>) -> bool {
        std::ptr::eq(Arc::as_ptr(cq), self)
    }

    /// Waits until no poll is under way that began before; see [`Lock::pass`].
    pub fn pass(&self, fenced: &mut bool) {
        self.members.pass(fenced);
    }

    /// Whether there is anything to poll.
    pub fn has_something(&self) -> bool {
        let members = self.members.lock();
        !members.ring.is_empty()
            || members.broken
            || members.list.iter().any(|qp| {
                // SAFETY: this is the completion queue of its receives, and we hold its lock.
                let arrived = || self.is(&qp.recv_cq) && unsafe { qp.recv_waiting() };
                self.is(&qp.send_cq) && qp.send_dones.waiting() || arrived()
            })
    }

    /// `ibv_modify_cq`: holds events back until `count` completions wait, or for `period` microseconds.
    pub fn set_moderation(&self, count: u16, period: u16) {
        let word = u32::from(count) << 16 | u32::from(period);
        self.moderation.store(word, Ordering::Relaxed);
    }

    /// Holds an event back as long as was asked for. It is the receiver who waits: whoever completes something has no timer, and
    /// knows nothing of what others have completed.
    pub fn moderate(&self) {
        let word = self.moderation.load(Ordering::Relaxed);
        let (count, period) = ((word >> 16) as usize, u64::from(word & 0xffff));
        let until = Instant::now() + Duration::from_micros(period);
        while count > 1 && self.count_waiting() < count {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            std::thread::sleep(left.min(MODERATION_STEP));
        }
    }

    /// How many completions can be polled; of those that are made by polling, as of a queue pair that has failed, without end.
    fn count_waiting(&self) -> usize {
        let members = self.members.lock();
        if members.broken {
            return usize::MAX;
        }
        let of_members = members.list.iter().map(|qp| {
            let sent = match self.is(&qp.send_cq) {
                true => qp.send_dones.len(),
                false => 0,
            };
            let received = match self.is(&qp.recv_cq) {
                // SAFETY: this is the completion queue of its receives, and we hold its lock.
                true => unsafe { qp.count_received() },
                false => 0,
            };
            sent.saturating_add(received)
        });
        of_members.fold(members.ring.len(), usize::saturating_add)
    }

    /// `ibv_poll_cq`: fills `out` from the front and returns how many.
    #[inline]
    pub fn poll(&self, out: &mut [ibv_wc]) -> Result<usize, Overflow> {
        let mut members = self.members.lock_often();
        let plain = members.ring.is_empty()
            && members.sum <= self.cqe.load(Ordering::Relaxed) as usize
            && !members.broken
            && !faults::active();
        if !plain {
            return self.poll_unusual(&mut members, out);
        }
        let frees = |qp: &Arc<QpCore>, index| qp.sent.store(index, Ordering::Release);
        let filled = match &members.list[..] {
            [qp] => self.poll_member(qp, out, frees),
            _ => self.poll_members(&mut members, out, frees),
        };
        // Outside, where others who want the lock find the queue's poller mostly.
        drop(members);
        if filled == 0 {
            // Whoever polls an empty queue spins: tell the core (15 to 35 % of a round trip).
            core::hint::spin_loop();
        }
        Ok(filled)
    }

    #[cold]
    fn poll_unusual(&self, members: &mut Members, out: &mut [ibv_wc]) -> Result<usize, Overflow> {
        if faults::overflows(self.index) {
            self.overflow(members);
        }
        if members.broken
            || !members.ring.is_empty()
            || members.sum > self.cqe.load(Ordering::Relaxed) as usize
        {
            return self.poll_counted(members, out);
        }
        let frees = |qp: &Arc<QpCore>, index| qp.sent.store(index, Ordering::Release);
        Ok(self.poll_members(members, out, frees))
    }

    /// Queues an asynchronous event of an object, unless it is only being made.
    pub fn tell(&self, what: ibv_event_type, handle: &AtomicPtr<c_void>) {
        let handle = handle.load(Ordering::Acquire);
        if !handle.is_null() {
            self.events.push(what, handle.addr());
        }
    }

    /// Visits the members in turn until `out` is full or none has anything. `frees` learns which send slots are done with.
    #[inline(never)]
    fn poll_members(
        &self,
        members: &mut Members,
        out: &mut [ibv_wc],
        mut frees: impl FnMut(&Arc<QpCore>, u64),
    ) -> usize {
        let count = members.list.len();
        let mut filled = 0;
        for _ in 0..count {
            let at = members.next;
            members.next = if at + 1 == count { 0 } else { at + 1 };
            filled += self.poll_member(&members.list[at], &mut out[filled..], &mut frees);
            if filled == out.len() {
                // There may be more here, but it is the others' turn.
                break;
            }
        }
        filled
    }

    /// Polls through the ring, which holds as much as the completion queue is large.
    #[cold]
    fn poll_counted(&self, members: &mut Members, out: &mut [ibv_wc]) -> Result<usize, Overflow> {
        let capacity = self.cqe.load(Ordering::Relaxed) as usize;
        // If not, the ring has what was counted before the queue became larger.
        let counts = members.sum > capacity;
        while !members.broken && counts {
            let Some(counted) = self.next_of(members) else {
                break;
            };
            if members.ring.len() >= capacity {
                self.overflow(members);
            } else {
                members.ring.push_back(counted);
            }
        }
        if members.ring.is_empty() && members.broken {
            return Err(Overflow);
        }
        let mut filled = 0;
        while filled < out.len()
            && let Some(Counted { wc, frees }) = members.ring.pop_front()
        {
            out[filled] = wc;
            filled += 1;
            if let Some((qp, index)) = frees {
                qp.sent.store(index, Ordering::Release);
            }
        }
        if filled < out.len() && !counts && !members.broken {
            let frees = |qp: &Arc<QpCore>, index| qp.sent.store(index, Ordering::Release);
            filled += self.poll_members(members, &mut out[filled..], frees);
        }
        Ok(filled)
    }

    /// The next completion, for the ring.
    fn next_of(&self, members: &mut Members) -> Option<Counted> {
        let mut wc = [ibv_wc::default()];
        let mut frees = None;
        let polled = self.poll_members(members, &mut wc, |qp, index| {
            frees = Some((qp.clone(), index))
        });
        let [wc] = wc;
        (polled != 0).then_some(Counted { wc, frees })
    }

    /// `ibv_resize_cq`; `EINVAL` if more completions wait than that.
    pub fn resize(&self, cqe: i32) -> Result<(), i32> {
        let mut members = self.members.lock();
        let old = self.cqe.load(Ordering::Relaxed) as usize;
        if (cqe as usize) < members.sum {
            // Counted from now on, and there may be more than fit.
            while !members.broken
                && members.ring.len() < old
                && let Some(counted) = self.next_of(&mut members)
            {
                members.ring.push_back(counted);
            }
            if members.ring.len() > cqe as usize {
                return Err(libc::EINVAL);
            }
        }
        self.cqe.store(cqe, Ordering::Relaxed);
        Ok(())
    }

    /// The queue is lost, and the queue pairs that complete to it with it (IBTA 11.6.3.1).
    #[cold]
    fn overflow(&self, members: &mut Members) {
        if core::mem::replace(&mut members.broken, true) {
            return;
        }
        self.tell(ibv_event_type::IBV_EVENT_CQ_ERR, &self.handle);
        for qp in &members.list {
            qp.fail();
            self.tell(ibv_event_type::IBV_EVENT_QP_FATAL, &qp.handle);
        }
    }

    #[inline(always)]
    fn poll_member(
        &self,
        qp: &Arc<QpCore>,
        out: &mut [ibv_wc],
        mut frees: impl FnMut(&Arc<QpCore>, u64),
    ) -> usize {
        let mut filled = 0;
        if qp.attention() {
            qp.attend();
        }
        if self.is(&qp.send_cq) {
            while filled < out.len() {
                // SAFETY: this completion queue is the send ring's, and we hold its lock.
                let Some(done) = (unsafe { qp.send_dones.pop() }) else {
                    break;
                };
                frees(qp, done.index + 1);
                let wc = &mut out[filled];
                *wc = ibv_wc {
                    wr_id: done.wr_id,
                    status: ibv_wc_status(done.status),
                    opcode: ibv_wc_opcode(done.opcode),
                    byte_len: done.byte_len,
                    qp_num: qp.qpn,
                    ..ibv_wc::default()
                };
                filled += 1;
            }
        }
        if filled < out.len() && self.is(&qp.recv_cq) {
            // SAFETY: this completion queue is the receives', and we hold its lock.
            filled += unsafe { qp.take_in(&mut out[filled..]) };
        }
        filled
    }

    /// `ibv_req_notify_cq`.
    pub fn arm(&self, solicited_only: bool) -> io::Result<()> {
        let advert = self.process.segment.cq(self.index as usize);
        let mode = if solicited_only {
            ARM_SOLICITED
        } else {
            ARM_ANY
        };
        let mut now = advert.armed.load(Ordering::Relaxed);
        loop {
            // Arming for any completion wins over an earlier arming for solicited ones, never the other way round.
            let stronger = now & 3 == ARM_ANY && !self.was_delivered(now >> 2);
            let new = ((now >> 2) + 1) << 2 | if stronger { ARM_ANY } else { mode };
            match advert
                .armed
                .compare_exchange(now, new, Ordering::Relaxed, Ordering::Relaxed)
            {
                Ok(_) => break,
                Err(other) => now = other,
            }
        }
        // Producers push and then look whether we are armed, without a fence between; this barrier is that fence. So what
        // they pushed before they could see the arming, the caller's next poll sees.
        quiet::barrier(self.process)
    }

    fn was_delivered(&self, generation: u64) -> bool {
        self.delivered.load(Ordering::Relaxed) >= generation
    }

    /// Whether a record of this generation is an event that was not delivered before; if so it is now.
    pub fn deliver(&self, low: u32) -> bool {
        let advert = self.process.segment.cq(self.index as usize);
        loop {
            let armed = advert.armed.load(Ordering::Relaxed);
            let delivered = self.delivered.load(Ordering::Relaxed);
            // Generations fit into 62 bits; the record's low half is completed from the current one.
            let behind = ((armed >> 2) as u32).wrapping_sub(low);
            let Some(generation) = (armed >> 2).checked_sub(u64::from(behind)) else {
                return false;
            };
            if generation <= delivered {
                return false;
            }
            if self
                .delivered
                .compare_exchange(delivered, generation, Ordering::Relaxed, Ordering::Relaxed)
                .is_ok()
            {
                if generation == armed >> 2 {
                    let none = generation << 2 | ARM_NONE;
                    // A concurrent arming has a newer generation and stays.
                    let _ = advert.armed.compare_exchange(
                        armed,
                        none,
                        Ordering::Relaxed,
                        Ordering::Relaxed,
                    );
                }
                return true;
            }
        }
    }

    /// Delivers the current generation if it is armed.
    pub fn deliver_armed(&self) -> bool {
        let armed = self
            .process
            .segment
            .cq(self.index as usize)
            .armed
            .load(Ordering::Relaxed);
        armed & 3 != ARM_NONE && self.deliver((armed >> 2) as u32)
    }

    /// Hands out an event: the handle, unless the queue is being destroyed. Destroying it waits for the acknowledgement.
    pub fn give(&self) -> Option<*mut c_void> {
        let mut given = self.given.lock();
        (!given.gone).then(|| {
            given.given += 1;
            self.handle.load(Ordering::Acquire)
        })
    }

    /// Acknowledges events.
    pub fn ack(&self, count: u32) {
        self.given.lock().acked += u64::from(count);
        self.acked.notify_all();
    }

    /// No event is handed out from here on; waits until all that were are acknowledged (ibv_destroy_cq(3)).
    pub fn retire(&self) {
        let mut given = self.given.lock();
        given.gone = true;
        while given.given != given.acked {
            self.acked.wait(&mut given);
        }
        drop(given);
        self.events
            .retire(self.handle.load(Ordering::Acquire).addr());
    }

    /// Wakes whoever waits for this queue, for something that this process completed itself.
    #[inline]
    pub fn wake_own(&self, solicited: bool) {
        let Some(channel) = &self.channel else {
            return;
        };
        if self.process.fenced() {
            fence(Ordering::SeqCst);
        } else {
            compiler_fence(Ordering::SeqCst);
        }
        let advert = self.process.segment.cq(self.index as usize);
        let armed = advert.armed.load(Ordering::Relaxed);
        if wants(armed, solicited) && self.own_woken.load(Ordering::Relaxed) != armed >> 2 {
            let record = Record {
                cq: self.index,
                generation: (armed >> 2) as u32,
            };
            if record.send(&channel.write) {
                self.own_woken.store(armed >> 2, Ordering::Relaxed);
            }
        }
    }
}

/// Whether an armed word asks to be woken.
#[inline]
pub(crate) fn wants(armed: u64, solicited: bool) -> bool {
    match armed & 3 {
        ARM_NONE => false,
        ARM_SOLICITED => solicited,
        _ => true,
    }
}

impl Drop for CqCore {
    fn drop(&mut self) {
        if let Some(channel) = &self.channel {
            channel.remove(self.index);
        }
        let advert = self.process.segment.cq(self.index as usize);
        let generation = advert.armed.load(Ordering::Relaxed) >> 2;
        advert
            .armed
            .store(generation << 2 | ARM_NONE, Ordering::Relaxed);
        self.process.give_cq(self.index as usize);
    }
}
