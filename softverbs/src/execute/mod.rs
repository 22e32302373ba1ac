//! Executing one work request: what the adapter of the initiator and that of the target would do, done by whoever posts.
//!
//! The order within a request: local keys, the peer's state, a receive entry, the remote key, the copy, the lane entry,
//! the wake-up. The hazard word is set before the peer's state is read and cleared after the last access.
//!
//! What every message passes is inlined into one function; everything else is kept out of it.

mod atomics;
mod job;
mod quick;
mod reach;
mod shared;
mod target;

use crate::atomic::WORD;
use crate::faults::{self, Step};
use crate::link::{Link, answers, any_posted, more_posted, wake};
use crate::qp::QpCore;
use crate::qp_state::Service;
use crate::quiet;
use crate::region::{self, LOCAL_WRITE};
use crate::send::Op;
use crate::transfer::{List, Mover, Piece};
use core::sync::atomic::Ordering;
use ibverbs_sys::{ibv_send_flags, ibv_sge, ibv_wc_status as Status};
use job::{Job, Stop};
use shared::Missed;

pub(crate) use quick::execute_quickly;

const INLINE: u32 = ibv_send_flags::IBV_SEND_INLINE.0;
const SOLICITED: u32 = ibv_send_flags::IBV_SEND_SOLICITED.0;

/// What an injected "receiver not ready" says to wait, as a timer code: 1.28 ms.
const INJECTED_TIMER: u8 = 14;

/// One work request, wherever it is stored.
pub(crate) struct Work<'a> {
    /// Position in the send queue.
    pub index: u64,
    pub wr_id: u64,
    pub op: Op,
    pub flags: u32,
    pub imm: u32,
    /// Compare (or add) and swap of an atomic.
    pub operands: [u64; 2],
    pub raddr: u64,
    pub rkey: u32,
    pub sges: &'a [ibv_sge],
}

/// Why a request cannot be executed now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Reason {
    /// The target has no receive entry; its timer (encoded as in the verbs) says how long to wait before each retry.
    Receiver { timer: u8 },
    /// The target does not answer (yet).
    Peer,
    /// An injected delay, or a target that is slow to take what was sent.
    Delayed,
}

pub(crate) enum Outcome {
    /// Status and bytes.
    Done(Status, u32),
    Wait(Reason),
}

/// Executes a request, or says why it has to wait; then nothing has happened.
#[inline(always)]
pub(crate) fn execute(
    qp: &QpCore,
    link: Option<&mut Link>,
    work: &Work<'_>,
    mover: &mut Mover<'_>,
) -> Outcome {
    let outcome = attempt(qp, link, work, mover);
    match qp.service {
        Service::Rc => outcome,
        Service::Uc | Service::Ud => unreliable(work, outcome),
    }
}

/// What becomes of an outcome if nobody answers for the message: what would have to wait for the peer, or finds that there is
/// none, is lost, and that is a success.
#[inline(never)]
fn unreliable(work: &Work<'_>, outcome: Outcome) -> Outcome {
    match outcome {
        Outcome::Wait(Reason::Peer | Reason::Receiver { .. })
        | Outcome::Done(Status::IBV_WC_RETRY_EXC_ERR, _) => {}
        outcome => return outcome,
    }
    let total = work.sges.iter().map(|sge| sge.length).sum();
    Outcome::Done(Status::IBV_WC_SUCCESS, total)
}

#[inline(always)]
fn attempt(
    qp: &QpCore,
    link: Option<&mut Link>,
    work: &Work<'_>,
    mover: &mut Mover<'_>,
) -> Outcome {
    let reliable = qp.service == Service::Rc;
    if !reliable && work.op.fetches() {
        // There is no answer that could bring anything back.
        return Outcome::Done(Status::IBV_WC_LOC_QP_OP_ERR, 0);
    }
    let mut local = List::new();
    let mut total = match local_pieces(qp, work, &mut local) {
        Ok(total) => total,
        Err(region::Refused) => return Outcome::Done(Status::IBV_WC_LOC_PROT_ERR, 0),
    };
    if work.op.is_atomic() {
        // Its segments have room for a word at least; what comes after that is left alone.
        total = WORD as u64;
        local.cut(WORD);
    }
    let Some(link) = link else {
        return Outcome::Wait(Reason::Peer);
    };
    let takes_entry = work.op.takes_entry();
    if let Some(hindrance) = faults::hinders(qp.qpn, work.index, takes_entry) {
        return Outcome::Wait(match hindrance {
            faults::Hindrance::Delay => Reason::Delayed,
            faults::Hindrance::ReceiverNotReady => Reason::Receiver {
                timer: INJECTED_TIMER,
            },
        });
    }
    if link.peer.dead.load(Ordering::Relaxed) {
        return Outcome::Done(Status::IBV_WC_RETRY_EXC_ERR, 0);
    }
    if !reliable {
        link.let_go_of_old();
    }
    if link.lane.is_none() && link.attach(qp).is_none() {
        return unanswered(link);
    }
    let dest = link.dest;
    let Some(out) = &mut link.lane else {
        return Outcome::Wait(Reason::Peer);
    };
    out.prune(&link.peer);
    if takes_entry {
        if !out.has_room() {
            // Lanes of shared queues have no room for all that can be received; the others have.
            let reason = match out.shared {
                Some(_) if reliable => Reason::Delayed,
                _ => Reason::Peer,
            };
            return hindered(link, reason);
        }
        let more = if reliable { more_posted } else { any_posted };
        if out.shared.is_none() && out.claimed >= out.posted && !more(out) {
            let timer = out.advert.min_rnr_timer.load(Ordering::Relaxed) as u8;
            return hindered(link, Reason::Receiver { timer });
        }
    } else if work.op.fetches()
        && (link.reads == 0 || out.advert.reads.load(Ordering::Relaxed) == 0)
    {
        // No READ or atomic can ever be outstanding.
        return Outcome::Done(Status::IBV_WC_LOC_QP_OP_ERR, 0);
    }
    if let Some(status) = faults::step(qp.qpn, Step::Checked) {
        return Outcome::Done(Status(status), 0);
    }
    let name = match work.op {
        Op::Send | Op::SendImm => quiet::RECV,
        _ => work.rkey & !quiet::RECV,
    };
    out.op = out.op.wrapping_add(1);
    // A READ needs the full fence anyway: what this queue pair stored before is visible before it takes place.
    let fenced = out.fenced || work.op.fetches();
    let mut index = out.claimed;
    if takes_entry && out.shared.is_some() {
        match shared::enter(out, &link.peer, dest, name, reliable) {
            Ok(claimed) => index = claimed,
            Err(Missed::Gone) => return unanswered(link),
            Err(Missed::Empty) => {
                let timer = out.advert.min_rnr_timer.load(Ordering::Relaxed) as u8;
                return hindered(link, Reason::Receiver { timer });
            }
        }
    } else {
        quiet::enter(&out.own, out.op | 1 << 31, name, fenced);
        if !answers(&out.advert, dest)
            || out.advert.lane_generation.load(Ordering::Relaxed) != out.generation
        {
            quiet::leave(&out.own);
            return unanswered(link);
        }
    }
    let mut job = Job {
        qp,
        peer: &link.peer,
        out,
        work,
        local: local.as_slice(),
        total,
        index,
    };
    let ran = job.run(mover);
    quiet::leave(&job.out.own);
    let (status, told) = match ran {
        Ok(told) => (Status::IBV_WC_SUCCESS, told),
        Err(Stop::Fail { status, told }) => (status, told),
        Err(Stop::Wait) => return Outcome::Wait(Reason::Peer),
    };
    let injected = faults::step(qp.qpn, Step::Left);
    if told {
        let solicited = work.flags & SOLICITED != 0 || status != Status::IBV_WC_SUCCESS;
        wake(&link.peer, job.out, solicited);
    }
    let status = match injected.or(faults::step(qp.qpn, Step::Woken)) {
        Some(injected) => Status(injected),
        None => status,
    };
    Outcome::Done(status, total as u32)
}

/// As [`execute`], for what was stored: not on the way of a post.
#[inline(never)]
pub(crate) fn execute_stored(
    qp: &QpCore,
    link: Option<&mut Link>,
    work: &Work<'_>,
    mover: &mut Mover<'_>,
) -> Outcome {
    execute(qp, link, work, mover)
}

/// The outcome when something has to wait for the peer's queue pair, if it is still there.
#[cold]
fn hindered(link: &Link, reason: Reason) -> Outcome {
    // One that is gone posts no receives any more.
    let here = link.lane.as_ref().is_some_and(|out| {
        answers(&out.advert, link.dest)
            && out.advert.lane_generation.load(Ordering::Relaxed) == out.generation
    });
    if here && !link.peer.check_dead() {
        Outcome::Wait(reason)
    } else {
        unanswered(link)
    }
}

/// The outcome when the peer's queue pair takes no requests.
#[cold]
fn unanswered(link: &Link) -> Outcome {
    if link.is_gone() {
        Outcome::Done(Status::IBV_WC_RETRY_EXC_ERR, 0)
    } else {
        Outcome::Wait(Reason::Peer)
    }
}

/// The caller's scatter/gather list, checked against the process's own regions. Elements without bytes need no key.
#[inline(always)]
pub(crate) fn local_pieces(
    qp: &QpCore,
    work: &Work<'_>,
    pieces: &mut List<Piece>,
) -> Result<u64, region::Refused> {
    let need = if work.op.fetches() { LOCAL_WRITE } else { 0 };
    let mut total = 0;
    for sge in work.sges {
        let len = u64::from(sge.length);
        if len == 0 {
            continue;
        }
        let addr = if work.flags & INLINE != 0 {
            sge.addr
        } else {
            let advert = qp.process.segment.mr(region::index_of(sge.lkey));
            let off = region::check(advert, sge.lkey, qp.pd, sge.addr, len, need)?;
            advert.addr.load(Ordering::Relaxed) + off
        };
        pieces.push(Piece {
            ptr: addr as *mut u8,
            len: len as usize,
        });
        total += len;
    }
    Ok(total)
}
