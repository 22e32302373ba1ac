//! The send queue: posting, and what waits.
//!
//! In the synchronous mode a work request is executed inside the post, straight from the caller's list. It is copied into
//! the queue only if it has to wait: behind others, for a receive entry, for the peer. Waiting work is run by the next call
//! on the queue pair, or by the process's watcher when the peer gives notice.

use crate::atomic::WORD;
use crate::datagram::{self, Outboxes};
use crate::device::MAX_MSG;
use crate::execute::{Outcome, Reason, Work, execute, execute_quickly, execute_stored};
use crate::faults::{self, Verb};
use crate::link::{Link, rnr_timer};
use crate::qp::{Caps, QpCore};
use crate::qp_state::{Service, State};
use crate::send_done::SendDone;
use crate::transfer::Mover;
use core::sync::atomic::Ordering;
use ibverbs_sys::{
    ibv_event_type, ibv_qp_attr, ibv_send_flags, ibv_send_wr, ibv_sge, ibv_wc_opcode,
    ibv_wc_status, ibv_wr_opcode,
};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How often waiting work is tried again whose peer gives no notice.
const TICK: Duration = Duration::from_millis(1);
/// And if the peer does give notice.
const IDLE: Duration = Duration::from_millis(50);

const SIGNALED: u32 = ibv_send_flags::IBV_SEND_SIGNALED.0;
const INLINE: u32 = ibv_send_flags::IBV_SEND_INLINE.0;

/// What a work request does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Op {
    Send,
    SendImm,
    Write,
    WriteImm,
    Read,
    CompareSwap,
    FetchAdd,
}

impl Op {
    fn from_verbs(op: ibv_wr_opcode) -> Option<Op> {
        Some(match op {
            ibv_wr_opcode::IBV_WR_SEND => Op::Send,
            ibv_wr_opcode::IBV_WR_SEND_WITH_IMM => Op::SendImm,
            ibv_wr_opcode::IBV_WR_RDMA_WRITE => Op::Write,
            ibv_wr_opcode::IBV_WR_RDMA_WRITE_WITH_IMM => Op::WriteImm,
            ibv_wr_opcode::IBV_WR_RDMA_READ => Op::Read,
            ibv_wr_opcode::IBV_WR_ATOMIC_CMP_AND_SWP => Op::CompareSwap,
            ibv_wr_opcode::IBV_WR_ATOMIC_FETCH_AND_ADD => Op::FetchAdd,
            _ => return None,
        })
    }

    /// Whether a request takes a receive entry of the peer's.
    #[inline]
    pub fn takes_entry(self) -> bool {
        matches!(self, Op::Send | Op::SendImm | Op::WriteImm)
    }

    /// Whether a request brings something back.
    #[inline]
    pub fn fetches(self) -> bool {
        matches!(self, Op::Read | Op::CompareSwap | Op::FetchAdd)
    }

    /// Whether it reads a word and updates it.
    #[inline]
    pub fn is_atomic(self) -> bool {
        matches!(self, Op::CompareSwap | Op::FetchAdd)
    }

    fn completion(self) -> ibv_wc_opcode {
        match self {
            Op::Send | Op::SendImm => ibv_wc_opcode::IBV_WC_SEND,
            Op::Write | Op::WriteImm => ibv_wc_opcode::IBV_WC_RDMA_WRITE,
            Op::Read => ibv_wc_opcode::IBV_WC_RDMA_READ,
            Op::CompareSwap => ibv_wc_opcode::IBV_WC_COMP_SWAP,
            Op::FetchAdd => ibv_wc_opcode::IBV_WC_FETCH_ADD,
        }
    }
}

/// What a completion tells of its request.
#[derive(Clone, Copy)]
struct Id {
    index: u64,
    wr_id: u64,
    op: Op,
    flags: u32,
}

/// A slot of the queue whose work waits.
#[derive(Clone, Copy)]
struct Stored {
    wr_id: u64,
    op: Op,
    flags: u32,
    imm: u32,
    operands: [u64; 2],
    raddr: u64,
    rkey: u32,
    sges: u32,
    /// Inline bytes, taken at the post.
    inline: u32,
}

/// A send queue that is being drained, or is drained.
#[derive(Clone, Copy)]
struct Drain {
    /// What was posted before is executed.
    until: u64,
    /// An event tells once that it is.
    notify: bool,
}

/// Why the first waiting request waits, and until when.
#[derive(Clone, Copy)]
struct Waiting {
    reason: Reason,
    until: Option<Instant>,
}

impl Stored {
    fn id(&self, index: u64) -> Id {
        Id {
            index,
            wr_id: self.wr_id,
            op: self.op,
            flags: self.flags,
        }
    }
}

pub(crate) struct SendQueue {
    depth: usize,
    max_sge: usize,
    max_inline: usize,
    /// Next slot.
    head: u64,
    /// First slot whose work was not executed.
    next: u64,
    stored: Box<[Option<Stored>]>,
    sges: Box<[ibv_sge]>,
    inline: Box<[u8]>,
    waiting: Option<Waiting>,
    drain: Option<Drain>,
    pub link: Option<Link>,
    /// Where datagrams go.
    outboxes: Outboxes,
    /// The lane attached last, over RESET: see [`Link`].
    pub attached: u64,
    timeout: Option<Duration>,
    rnr_retry: u8,
}

impl SendQueue {
    pub fn new(caps: &Caps) -> SendQueue {
        SendQueue {
            depth: caps.send_wr,
            max_sge: caps.send_sge,
            max_inline: caps.inline,
            head: 0,
            next: 0,
            stored: vec![None; caps.send_wr].into(),
            sges: vec![ibv_sge::default(); caps.send_wr * caps.send_sge].into(),
            inline: vec![0; caps.send_wr * caps.inline].into(),
            waiting: None,
            drain: None,
            link: None,
            outboxes: Outboxes::default(),
            attached: 0,
            timeout: None,
            rnr_retry: 0,
        }
    }

    pub fn head(&self) -> u64 {
        self.head
    }

    /// Takes over what RTS sets. 4.096 us * 2^timeout per try; 0 waits for ever (IBTA 9.9.2.1.1, ibv_modify_qp(3)).
    pub fn configure(&mut self, attr: &ibv_qp_attr) {
        let tries = u64::from(attr.retry_cnt) + 1;
        self.timeout = (attr.timeout != 0)
            .then(|| Duration::from_nanos((4096u64 << attr.timeout).saturating_mul(tries)));
        self.rnr_retry = attr.rnr_retry;
        if let Some(link) = &mut self.link {
            link.sq_psn = attr.sq_psn;
            link.reads = attr.max_rd_atomic;
        }
    }

    /// Forgets everything that was posted.
    pub fn reset(&mut self) {
        self.next = self.head;
        self.waiting = None;
        self.drain = None;
        self.outboxes = Outboxes::default();
        if let Some(link) = self.link.take() {
            self.attached = link.attached();
        }
    }

    /// Whether posted work has not been executed.
    pub fn is_pending(&self) -> bool {
        self.next != self.head
    }

    /// Whether posted work can be executed, as far as draining is concerned.
    fn may_go_on(&self) -> bool {
        self.is_pending() && self.drain.is_none_or(|drain| self.next < drain.until)
    }

    /// Whether work from before draining began has not been executed.
    pub fn is_draining(&self) -> bool {
        self.drain.is_some_and(|drain| self.next < drain.until)
    }

    /// From here on only what was posted is executed; `notify`: an event tells when it is.
    pub fn drain(&mut self, notify: bool) {
        let until = self.head;
        self.drain = Some(Drain { until, notify });
    }

    /// No longer.
    pub fn resume(&mut self) {
        self.drain = None;
    }

    fn tell_drained(&mut self, qp: &QpCore) {
        if !self.is_draining()
            && qp.state() == State::Sqd
            && let Some(drain) = &mut self.drain
            && core::mem::take(&mut drain.notify)
        {
            qp.send_cq
                .tell(ibv_event_type::IBV_EVENT_SQ_DRAINED, &qp.handle);
        }
    }

    /// When the waiting work fails, if it does not get on.
    pub fn deadline(&self) -> Option<Instant> {
        self.waiting.and_then(|w| w.until)
    }

    fn store(&mut self, work: &Work<'_>) {
        let slot = (self.head % self.depth as u64) as usize;
        let mut inline = 0;
        if work.flags & INLINE != 0 {
            for sge in work.sges {
                let to = &mut self.inline[slot * self.max_inline + inline..][..sge.length as usize];
                // SAFETY: ibv_post_send's contract: inline data is readable during the call; the lengths were checked.
                unsafe {
                    core::ptr::copy_nonoverlapping(sge.addr as *const u8, to.as_mut_ptr(), to.len())
                };
                inline += to.len();
            }
        } else {
            self.sges[slot * self.max_sge..][..work.sges.len()].copy_from_slice(work.sges);
        }
        self.stored[slot] = Some(Stored {
            wr_id: work.wr_id,
            op: work.op,
            flags: work.flags,
            imm: work.imm,
            operands: work.operands,
            raddr: work.raddr,
            rkey: work.rkey,
            sges: if work.flags & INLINE != 0 {
                u32::from(inline > 0)
            } else {
                work.sges.len() as u32
            },
            inline: inline as u32,
        });
        self.head += 1;
    }

    #[inline]
    fn complete(&self, qp: &QpCore, id: Id, status: ibv_wc_status, len: u32) {
        let Id {
            index,
            wr_id,
            op,
            flags,
        } = id;
        if status == ibv_wc_status::IBV_WC_SUCCESS && flags & SIGNALED == 0 && !qp.sig_all {
            return;
        }
        let done = SendDone {
            wr_id,
            index,
            status: status.0,
            opcode: op.completion().0,
            byte_len: len,
        };
        // SAFETY: the caller holds the send queue's lock (`&self` is inside it), and each slot of the queue completes once.
        unsafe { qp.send_dones.push(done) };
        qp.send_cq.wake_own(status != ibv_wc_status::IBV_WC_SUCCESS);
    }

    /// Runs waiting work in order until one has to wait, at most `limit` requests. Returns whether more could run at once.
    pub fn progress(&mut self, qp: &Arc<QpCore>, mover: &mut Mover<'_>, limit: usize) -> bool {
        let more = self.execute(qp, mover, limit);
        self.tell_drained(qp);
        more
    }

    fn execute(&mut self, qp: &Arc<QpCore>, mover: &mut Mover<'_>, limit: usize) -> bool {
        for _ in 0..limit {
            if !self.is_pending() {
                break;
            }
            match qp.state() {
                State::Rts => {}
                State::Sqd if self.may_go_on() => {}
                State::Err | State::Sqe => {
                    self.flush(qp);
                    break;
                }
                _ => return false,
            }
            let slot = (self.next % self.depth as u64) as usize;
            let Some(stored) = self.stored[slot] else {
                break;
            };
            let inline = [ibv_sge {
                addr: self.inline[(slot * self.max_inline).min(self.inline.len())..].as_ptr()
                    as u64,
                length: stored.inline,
                lkey: 0,
            }];
            let sges = if stored.flags & INLINE != 0 {
                &inline[..]
            } else {
                &self.sges[slot * self.max_sge..]
            };
            let work = Work {
                index: self.next,
                wr_id: stored.wr_id,
                op: stored.op,
                flags: stored.flags,
                imm: stored.imm,
                operands: stored.operands,
                raddr: stored.raddr,
                rkey: stored.rkey,
                sges: &sges[..stored.sges as usize],
            };
            let outcome = match qp.service {
                Service::Ud => datagram::execute(qp, &mut self.outboxes, &work, mover),
                _ => execute_stored(qp, self.link.as_mut(), &work, mover),
            };
            match outcome {
                Outcome::Done(status, len) => {
                    self.waiting = None;
                    let index = self.next;
                    self.next += 1;
                    self.complete(qp, stored.id(index), status, len);
                    if status != ibv_wc_status::IBV_WC_SUCCESS {
                        qp.fail_sends();
                    }
                }
                Outcome::Wait(reason) => {
                    if let Some(status) = self.wait(qp, reason) {
                        let index = self.next;
                        self.next += 1;
                        self.waiting = None;
                        self.complete(qp, stored.id(index), status, 0);
                        qp.fail_sends();
                        continue;
                    }
                    return false;
                }
            }
        }
        qp.attention.store(self.is_pending(), Ordering::Release);
        self.may_go_on()
    }

    /// Notes that the first request waits. `Some`: it has waited long enough, or may not wait at all.
    fn wait(&mut self, qp: &Arc<QpCore>, reason: Reason) -> Option<ibv_wc_status> {
        let (limit, failure) = match reason {
            Reason::Receiver { timer } => (
                match self.rnr_retry {
                    7 => None,
                    n => Some(rnr_timer(timer.into()) * u32::from(n)),
                },
                ibv_wc_status::IBV_WC_RNR_RETRY_EXC_ERR,
            ),
            Reason::Peer => (self.timeout, ibv_wc_status::IBV_WC_RETRY_EXC_ERR),
            Reason::Delayed => (None, ibv_wc_status::IBV_WC_RETRY_EXC_ERR),
        };
        if limit == Some(Duration::ZERO) {
            return Some(failure);
        }
        let same = self.waiting.is_some_and(|w| {
            core::mem::discriminant(&w.reason) == core::mem::discriminant(&reason)
        });
        if !same {
            self.waiting = Some(Waiting {
                reason,
                until: limit.map(|d| Instant::now() + d),
            });
            qp.attention.store(true, Ordering::Release);
            qp.process.watcher.wait_for(qp);
        } else if self.deadline().is_some_and(|until| Instant::now() >= until) {
            return Some(failure);
        }
        None
    }

    /// Completes everything that waits as flushed.
    fn flush(&mut self, qp: &QpCore) {
        self.waiting = None;
        while self.is_pending() {
            let slot = (self.next % self.depth as u64) as usize;
            let index = self.next;
            self.next += 1;
            if let Some(s) = self.stored[slot] {
                self.complete(qp, s.id(index), ibv_wc_status::IBV_WC_WR_FLUSH_ERR, 0);
            }
        }
        qp.attention.store(false, Ordering::Release);
    }
}

/// `ibv_post_send`: posts a chain; on failure `bad` is the first request that was not posted.
///
/// # Safety
///
/// The contract of ibv_post_send(3): a well-formed chain of work requests.
pub(crate) unsafe fn post_send(
    qp: &Arc<QpCore>,
    wr: *mut ibv_send_wr,
    bad: *mut *mut ibv_send_wr,
) -> i32 {
    let mut sq = qp.send.lock_often();
    // SAFETY: by contract.
    match unsafe { post_chain(qp, &mut sq, wr, true) } {
        Ok(()) => 0,
        Err((errno, refused)) => {
            // SAFETY: `bad` is the caller's out parameter.
            unsafe { *bad = refused };
            errno
        }
    }
}

/// Posts all of a chain of `count` requests, or none.
///
/// # Safety
///
/// As [`post_send`].
pub(crate) unsafe fn post_all(qp: &Arc<QpCore>, first: *mut ibv_send_wr, count: usize) -> i32 {
    let mut sq = qp.send.lock_often();
    let mut wr = first;
    while !wr.is_null() {
        // SAFETY: `wr` is a valid request of the chain.
        let request = unsafe { &*wr };
        // SAFETY: as above.
        let checked = unsafe { check(qp, &sq, qp.state(), request) };
        if let Some(errno) = faults::verb(Verb::PostSend).or(checked.err()) {
            return errno;
        }
        wr = request.next;
    }
    if sq.head + count as u64 - qp.sent.load(Ordering::Acquire) > sq.depth as u64 {
        return libc::ENOMEM;
    }
    // What could be refused was looked at, under the lock.
    // SAFETY: by contract.
    unsafe { post_chain(qp, &mut sq, first, false) }.map_or_else(|(errno, _)| errno, |()| 0)
}

/// Posts a chain; on failure tells why, and the first request that was not posted. `may_fail`: by injection, too.
///
/// # Safety
///
/// As [`post_send`].
#[inline(always)]
unsafe fn post_chain(
    qp: &Arc<QpCore>,
    sq: &mut SendQueue,
    mut wr: *mut ibv_send_wr,
    may_fail: bool,
) -> Result<(), (i32, *mut ibv_send_wr)> {
    while !wr.is_null() {
        // SAFETY: `wr` is a valid request of the chain.
        let request = unsafe { &*wr };
        // SAFETY: as above.
        if !unsafe { post_quickly(qp, sq, request) } {
            let injected = if may_fail {
                faults::verb(Verb::PostSend)
            } else {
                None
            };
            let posted = match injected {
                Some(errno) => Err(errno),
                // SAFETY: as above.
                None => unsafe { post_one(qp, sq, request) },
            };
            posted.map_err(|errno| (errno, wr))?;
        }
        wr = request.next;
    }
    Ok(())
}

/// The short way of a request, if it can take it.
///
/// # Safety
///
/// As [`post_send`], for this request.
#[inline(always)]
unsafe fn post_quickly(qp: &QpCore, sq: &mut SendQueue, wr: &ibv_send_wr) -> bool {
    if qp.state() != State::Rts
        || sq.next != sq.head
        || qp.helper.is_some()
        || sq.head - qp.sent.load(Ordering::Acquire) >= sq.depth as u64
        || qp.peer_says_fatal()
    {
        return false;
    }
    let Some(link) = &mut sq.link else {
        return false;
    };
    // SAFETY: by contract; the queue's lock is held, the state was looked at, and nothing waits.
    let Some(len) = (unsafe { execute_quickly(qp, link, wr, sq.max_inline) }) else {
        return false;
    };
    let index = sq.head;
    sq.head += 1;
    sq.next = sq.head;
    let wanted = wr.send_flags & SIGNALED != 0 || qp.sig_all;
    if wanted && let Some(op) = Op::from_verbs(wr.opcode) {
        let (wr_id, flags) = (wr.wr_id, wr.send_flags);
        let id = Id {
            index,
            wr_id,
            op,
            flags,
        };
        sq.complete(qp, id, ibv_wc_status::IBV_WC_SUCCESS, len);
    }
    true
}

/// Whether a request can be posted, if there is room: what it does, with which elements, and how it is addressed.
///
/// # Safety
///
/// As [`post_send`], for this request.
unsafe fn check<'a>(
    qp: &QpCore,
    sq: &SendQueue,
    state: State,
    wr: &'a ibv_send_wr,
) -> Result<(Op, &'a [ibv_sge], u64), i32> {
    if matches!(state, State::Reset | State::Init | State::Rtr) {
        return Err(libc::EINVAL);
    }
    let op = Op::from_verbs(wr.opcode).ok_or(libc::EOPNOTSUPP)?;
    let count = usize::try_from(wr.num_sge).map_err(|_| libc::EINVAL)?;
    if count > sq.max_sge {
        return Err(libc::EINVAL);
    }
    let sges = if count == 0 {
        &[][..]
    } else {
        // SAFETY: the request holds `num_sge` elements at `sg_list`.
        unsafe { core::slice::from_raw_parts(wr.sg_list, count) }
    };
    let total: u64 = sges.iter().map(|s| u64::from(s.length)).sum();
    let inline = wr.send_flags & INLINE != 0;
    if total > MAX_MSG || inline && (total > sq.max_inline as u64 || op.fetches()) {
        return Err(libc::EINVAL);
    }
    if op.is_atomic() && total < WORD as u64 {
        return Err(libc::EINVAL);
    }
    if faults::no_immediate() && matches!(op, Op::SendImm | Op::WriteImm) {
        return Err(libc::EOPNOTSUPP);
    }
    if qp.service != Service::Ud {
        return Ok((op, sges, 0));
    }
    // SAFETY: of the union, datagrams use this; the address handle is alive.
    let address = unsafe { crate::verbs::address(wr.wr.ud.ah) };
    Ok((op, sges, address.ok_or(libc::EINVAL)?.pack()))
}

#[inline(never)]
unsafe fn post_one(qp: &Arc<QpCore>, sq: &mut SendQueue, wr: &ibv_send_wr) -> Result<(), i32> {
    let state = qp.state();
    let flags = wr.send_flags;
    // SAFETY: by the caller's contract.
    let (op, sges, address) = unsafe { check(qp, sq, state, wr) }?;
    if sq.head - qp.sent.load(Ordering::Acquire) >= sq.depth as u64 {
        return Err(libc::ENOMEM);
    }
    // SAFETY: the unions' members are plain integers, valid whatever was written.
    let (raddr, rkey, operands, imm) = unsafe {
        let imm = wr.__bindgen_anon_1.imm_data;
        if qp.service == Service::Ud {
            let ud = wr.wr.ud;
            (u64::from(ud.remote_qpn), ud.remote_qkey, [address, 0], imm)
        } else if op.is_atomic() {
            let a = wr.wr.atomic;
            (a.remote_addr, a.rkey, [a.compare_add, a.swap], imm)
        } else {
            (wr.wr.rdma.remote_addr, wr.wr.rdma.rkey, [0; 2], imm)
        }
    };
    let work = Work {
        index: sq.head,
        operands,
        wr_id: wr.wr_id,
        op,
        flags,
        imm,
        raddr,
        rkey,
        sges,
    };
    if state == State::Sqe {
        sq.store(&work);
        sq.flush(qp);
        return Ok(());
    }
    if state == State::Err || qp.peer_says_fatal() {
        qp.fail();
        sq.store(&work);
        sq.flush(qp);
        return Ok(());
    }
    if let Some(helper) = &qp.helper {
        sq.store(&work);
        qp.attention.store(true, Ordering::Release);
        helper.enqueue(qp);
        return Ok(());
    }
    if sq.is_pending() || state == State::Sqd {
        sq.store(&work);
        sq.progress(qp, &mut Mover::Now, usize::MAX);
        return Ok(());
    }
    let outcome = match qp.service {
        Service::Ud => datagram::execute(qp, &mut sq.outboxes, &work, &mut Mover::Now),
        _ => execute(qp, sq.link.as_mut(), &work, &mut Mover::Now),
    };
    match outcome {
        Outcome::Done(status, len) => {
            let index = sq.head;
            sq.head += 1;
            sq.next = sq.head;
            sq.complete(
                qp,
                Id {
                    index,
                    wr_id: work.wr_id,
                    op,
                    flags,
                },
                status,
                len,
            );
            if status != ibv_wc_status::IBV_WC_SUCCESS {
                qp.fail_sends();
            }
        }
        Outcome::Wait(_) => {
            sq.store(&work);
            sq.progress(qp, &mut Mover::Now, usize::MAX);
        }
    }
    Ok(())
}

impl QpCore {
    /// Looks after waiting work: called by polls, and by the watcher.
    pub fn attend(self: &Arc<Self>) {
        if let Some(mut sq) = self.send.try_lock() {
            self.attend_locked(&mut sq);
        }
    }

    /// As [`attend`](Self::attend), and tells after how long to look again; `None` if nothing waits.
    pub fn attend_and_wait(self: &Arc<Self>) -> Option<Duration> {
        let waiting = {
            let mut sq = self.send.lock();
            self.attend_locked(&mut sq);
            (sq.is_pending() && self.state().sends())
                .then_some(sq.waiting)
                .flatten()
        };
        if self.unquiet.load(Ordering::Acquire) {
            let producing = self.producing();
            if producing.is_some_and(|p| p.is_busy()) {
                return Some(TICK);
            }
            self.unquiet.store(false, Ordering::Release);
            self.recv_cq.wake_own(true);
        }
        if !self.attend_shared() || self.mail_is_blocked() {
            return Some(TICK);
        }
        let waiting = waiting?;
        let left = waiting.until.map_or(IDLE, |until| {
            until
                .saturating_duration_since(Instant::now())
                .max(Duration::from_micros(10))
        });
        Some(
            if matches!(waiting.reason, Reason::Peer | Reason::Delayed) {
                left.min(TICK)
            } else {
                left
            },
        )
    }

    pub(crate) fn attend_locked(self: &Arc<Self>, sq: &mut SendQueue) {
        if self.peer_says_fatal() && self.state().sends() {
            self.fail();
        }
        let Some(helper) = self.helper.as_ref().filter(|_| self.state().sends()) else {
            sq.progress(self, &mut Mover::Now, usize::MAX);
            return;
        };
        // Work that has not been begun is the helper's; what waits is tried here, where deadlines are looked at.
        if sq.waiting.is_some() {
            sq.progress(self, &mut Mover::Now, 1);
        }
        if sq.may_go_on() && sq.waiting.is_none() {
            helper.enqueue(self);
        }
        sq.tell_drained(self);
    }
}
