//! Completion queues.
//!
//! A completion queue stores nothing: polling visits the queue pairs that complete to it (of many, those that have something, see [`crowd`]), takes what waits in their private
//! send rings and in their lanes, and goes on next time where it stopped. An entry that nobody polls stays where it is,
//! and as each takes a slot of its own queue, nothing can overflow as long as the completion queue is as large as the sum of
//! its queues. A smaller one counts.
//!
//! Lock order: completion queue, then a queue pair's receive queue, then its send queue.

mod crowd;
mod notify;
mod poll;

pub(crate) use notify::wants;

use crate::channel::ChannelCore;
use crate::events::AsyncEvents;
use crate::layout::ARM_NONE;
use crate::lock::Lock;
use crate::process::Process;
use crate::qp::QpCore;
use crate::sync::{Condvar, Mutex};
use core::ffi::c_void;
use core::sync::atomic::{
    AtomicBool, AtomicI32, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering,
};
use crowd::Crowd;
use ibverbs_sys::{ibv_event_type, ibv_wc};
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
    crowd: Crowd,
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
    /// Whether its members are a [`Crowd`].
    crowded: AtomicBool,
    /// This process has noted something of a member.
    noted: AtomicBool,
    /// All members of a crowd are to be visited once.
    unsure: AtomicBool,
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
        advert.crowded.store(0, Ordering::Relaxed);
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
                crowd: Crowd::default(),
                ring: VecDeque::new(),
                broken: false,
            }),
            delivered: AtomicU64::new(generation),
            own_woken: AtomicU64::new(generation),
            crowded: AtomicBool::new(false),
            noted: AtomicBool::new(false),
            unsure: AtomicBool::new(false),
            users: AtomicUsize::new(0),
            cqe: AtomicI32::new(cqe),
            moderation: AtomicU32::new(0),
            handle: AtomicPtr::default(),
            events,
            given: Mutex::default(),
            acked: Condvar::default(),
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
            self.count_anew(&mut members);
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
        self.count_anew(&mut members);
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

    /// Queues an asynchronous event of an object, unless it is only being made.
    pub fn tell(&self, what: ibv_event_type, handle: &AtomicPtr<c_void>) {
        let handle = handle.load(Ordering::Acquire);
        if !handle.is_null() {
            self.events.push(what, handle.addr());
        }
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
