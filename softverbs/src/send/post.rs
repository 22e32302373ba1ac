//! Posting: requests are looked at and, if nothing is in their way, executed at once.

use super::{INLINE, Id, Op, SIGNALED, SendQueue};
use crate::atomic::WORD;
use crate::datagram;
use crate::device::MAX_MSG;
use crate::execute::{Outcome, Work, execute, execute_quickly};
use crate::faults::{self, Verb};
use crate::qp::QpCore;
use crate::qp_state::{Service, State};
use crate::transfer::Mover;
use core::sync::atomic::Ordering;
use ibverbs_sys::{ibv_send_wr, ibv_sge, ibv_wc_status};
use std::sync::Arc;

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
            if faults::reversed()
                // SAFETY: as above.
                && let Some((ahead, last)) = unsafe { exchanged(qp, sq, request) }
            {
                // What could be refused was looked at, under the lock.
                // SAFETY: as above: requests of the chain, under each other's names.
                let posted = unsafe { post_one(qp, sq, &ahead) };
                // SAFETY: as above.
                let posted = posted.and_then(|()| unsafe { post_one(qp, sq, &last) });
                return posted.map_err(|errno| (errno, wr));
            }
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

/// Two WRITEs that are the rest of a chain, the other way round, if they can be posted so.
///
/// Each has the other's name, so that they complete in the order in which they were posted, and nothing is said to be done before both are: who posted
/// them frees their memory then. So it is left alone where the first would have a completion.
///
/// # Safety
///
/// As [`post_send`], for `first`.
#[cold]
unsafe fn exchanged(
    qp: &QpCore,
    sq: &SendQueue,
    first: &ibv_send_wr,
) -> Option<(ibv_send_wr, ibv_send_wr)> {
    // SAFETY: a request of the chain, or null.
    let second = unsafe { first.next.as_ref() }?;
    let write = |wr: &ibv_send_wr| {
        // SAFETY: by contract, a request of the chain.
        let checked = unsafe { check(qp, sq, qp.state(), wr) };
        matches!(checked, Ok((Op::Write, ..)))
    };
    let room = sq.head + 2 - qp.sent.load(Ordering::Acquire) <= sq.depth as u64;
    if !room
        || qp.sig_all
        || first.send_flags & SIGNALED != 0
        || !second.next.is_null()
        || !(write(first) && write(second))
    {
        return None;
    }
    let named = |wr: &ibv_send_wr, name: &ibv_send_wr| ibv_send_wr {
        wr_id: name.wr_id,
        next: core::ptr::null_mut(),
        send_flags: wr.send_flags & !SIGNALED | name.send_flags & SIGNALED,
        ..*wr
    };
    Some((named(second, first), named(first, second)))
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
        qp.needs_attention();
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
