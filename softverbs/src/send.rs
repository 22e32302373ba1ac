//! The send queue: posting, and what waits.
//!
//! In the synchronous mode a work request is executed inside the post, straight from the caller's list. It is copied into
//! the queue only if it has to wait: behind others, for a receive entry, for the peer. Waiting work is run by the next call
//! on the queue pair, or by the process's watcher when the peer gives notice.

mod attend;
mod op;
mod post;

pub(crate) use op::Op;
pub(crate) use post::{post_all, post_send};

use crate::copy::copy;
use crate::datagram::{self, Outboxes};
use crate::execute::{Outcome, Reason, Work, execute_stored};
use crate::link::{Link, rnr_timer};
use crate::pending::Named;
use crate::qp::{Caps, QpCore};
use crate::qp_state::{Service, State};
use crate::send_done::SendDone;
use crate::transfer::Mover;
use core::sync::atomic::Ordering;
use ibverbs_sys::{ibv_event_type, ibv_qp_attr, ibv_send_flags, ibv_sge, ibv_wc_status};
use std::sync::Arc;
use std::time::{Duration, Instant};

const SIGNALED: u32 = ibv_send_flags::IBV_SEND_SIGNALED.0;
const INLINE: u32 = ibv_send_flags::IBV_SEND_INLINE.0;

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
    /// What waits; without any room before something had to. Most queue pairs never need it, and of hundreds it would keep what they do
    /// need apart.
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
            stored: Box::default(),
            sges: Box::default(),
            inline: Box::default(),
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

    /// Takes over what RTS sets. 4.096 us * 2^timeout per try; 0 waits for ever (IBTA C9-140 to C9-142, ibv_modify_qp(3)).
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

    /// The first request that has not been executed and names this memory: its id, and whether it is to write there.
    pub fn find(&self, named: Named) -> Option<(u64, bool)> {
        (self.next..self.head).find_map(|index| {
            let slot = (index % self.depth as u64) as usize;
            let stored = self.stored[slot].filter(|stored| stored.flags & INLINE == 0)?;
            let sges = &self.sges[slot * self.max_sge..][..stored.sges as usize];
            let writes = matches!(stored.op, Op::Read | Op::CompareSwap | Op::FetchAdd);
            named.is_in(sges).then_some((stored.wr_id, writes))
        })
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

    /// Makes room for what waits.
    #[cold]
    fn make_room(&mut self) {
        self.stored = vec![None; self.depth].into();
        self.sges = vec![ibv_sge::default(); self.depth * self.max_sge].into();
        self.inline = vec![0; self.depth * self.max_inline].into();
    }

    fn store(&mut self, work: &Work<'_>) {
        if self.stored.is_empty() {
            self.make_room();
        }
        let slot = (self.head % self.depth as u64) as usize;
        let mut inline = 0;
        if work.flags & INLINE != 0 {
            for sge in work.sges {
                let to = &mut self.inline[slot * self.max_inline + inline..][..sge.length as usize];
                // As all that the device reads: the caller's, and may be memory that others write.
                // SAFETY: ibv_post_send's contract: inline data is readable during the call; the lengths were checked.
                unsafe { copy(to.as_mut_ptr(), sge.addr as *const u8, to.len()) };
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
        qp.send_cq.note(qp.index());
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
        match self.is_pending() {
            true => qp.needs_attention(),
            false => qp.attention.store(false, Ordering::Release),
        }
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
            qp.needs_attention();
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
