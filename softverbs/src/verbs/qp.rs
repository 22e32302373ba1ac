//! Queue pairs.

use super::context::{context, pd};
use super::qp_ex::Building;
use super::{cq, fail, null, rc, srq};
use crate::device::{MAX_INLINE, MAX_QP_WR};
use crate::faults::{self, Verb};
use crate::qp::{Caps, Plan, QpCore};
use crate::qp_state::Service;
use crate::transfer::MAX_SGE;
use crate::{recv, send};
use core::ffi::{c_int, c_void};
use core::sync::atomic::Ordering;
use ibverbs_sys::*;
use std::io;
use std::sync::Arc;

/// Begins as the extended queue pair, which begins with the plain one; only those that were asked for it are used as such.
#[repr(C)]
pub(super) struct Qp {
    pub qp: ibv_qp_ex,
    pub core: Arc<QpCore>,
    init: ibv_qp_init_attr,
    /// Requests that are being built, if the queue pair is an extended one.
    pub building: Option<Building>,
}

/// The capacities that are granted, or `EINVAL`. With a shared receive queue there are no receives of its own.
fn grant(cap: &mut ibv_qp_cap, shared: bool) -> Option<Caps> {
    if shared {
        (cap.max_recv_wr, cap.max_recv_sge) = (0, 0);
    }
    let fits = |n: u32, max: usize| (n as usize <= max).then_some(n as usize);
    let caps = Caps {
        send_wr: fits(cap.max_send_wr, MAX_QP_WR)?.max(1),
        recv_wr: fits(cap.max_recv_wr, MAX_QP_WR)?.max(usize::from(!shared)),
        send_sge: fits(cap.max_send_sge, MAX_SGE)?.max(1),
        recv_sge: fits(cap.max_recv_sge, MAX_SGE)?.max(usize::from(!shared)),
        inline: fits(cap.max_inline_data, MAX_INLINE)?,
    };
    cap.max_send_wr = caps.send_wr as u32;
    cap.max_recv_wr = caps.recv_wr as u32;
    cap.max_send_sge = caps.send_sge as u32;
    cap.max_recv_sge = caps.recv_sge as u32;
    Some(caps)
}

pub(super) unsafe extern "C" fn create_qp(
    parent: *mut ibv_pd,
    init: *mut ibv_qp_init_attr,
) -> *mut ibv_qp {
    // SAFETY: by the caller's contract.
    unsafe { create(parent, &mut *init, |_, _| Ok(())) }
}

/// Makes a queue pair; `extend` adds what an extended one has, or refuses.
///
/// # Safety
///
/// The contract of ibv_create_qp(3).
pub(super) unsafe fn create(
    parent: *mut ibv_pd,
    init: &mut ibv_qp_init_attr,
    extend: impl FnOnce(&mut Qp, Service) -> Result<(), i32>,
) -> *mut ibv_qp {
    let refuse = |errno| null(&io::Error::from_raw_os_error(errno));
    // SAFETY: module invariant of `verbs`.
    let (pd, plain) = unsafe { (pd(parent), (*parent).context) };
    if init.send_cq.is_null() || init.recv_cq.is_null() {
        return refuse(libc::EINVAL);
    }
    let Some(service) = Service::from_verbs(init.qp_type) else {
        return refuse(libc::EOPNOTSUPP);
    };
    let shared = !init.srq.is_null();
    let Some(caps) = grant(&mut init.cap, shared) else {
        return refuse(libc::EINVAL);
    };
    // SAFETY: module invariant of `verbs`.
    let (context, send_cq, recv_cq) = unsafe {
        (
            context(plain),
            cq::core(init.send_cq),
            cq::core(init.recv_cq),
        )
    };
    // SAFETY: as above, if it is not null.
    let shared = shared.then(|| unsafe { srq::core(init.srq) });
    let made = fail(Verb::CreateQp).and_then(|()| {
        QpCore::new(
            context.process,
            Plan {
                service,
                pd: pd.id,
                caps,
                sig_all: init.sq_sig_all != 0,
                send_cq: send_cq.clone(),
                recv_cq: recv_cq.clone(),
                srq: shared.cloned(),
            },
            context.helper.clone(),
        )
    });
    match made {
        Err(error) => null(&error),
        Ok(core) => {
            let qp = ibv_qp {
                context: plain,
                qp_context: init.qp_context,
                pd: parent,
                send_cq: init.send_cq,
                recv_cq: init.recv_cq,
                srq: init.srq,
                handle: core.qpn,
                qp_num: core.qpn,
                state: ibv_qp_state::IBV_QPS_RESET,
                qp_type: init.qp_type,
                mutex: libc::PTHREAD_MUTEX_INITIALIZER,
                cond: libc::PTHREAD_COND_INITIALIZER,
                events_completed: 0,
            };
            let mut new = Box::new(Qp {
                qp: ibv_qp_ex {
                    qp_base: qp,
                    ..ibv_qp_ex::default()
                },
                core: core.clone(),
                init: *init,
                building: None,
            });
            if let Err(errno) = extend(&mut new, service) {
                // Nobody knows of it yet, so nobody can be at work on it.
                let _ = core.destroy();
                return refuse(errno);
            }
            pd.users.fetch_add(1, Ordering::Relaxed);
            send_cq.users.fetch_add(1, Ordering::Relaxed);
            recv_cq.users.fetch_add(1, Ordering::Relaxed);
            if let Some(srq) = shared {
                srq.users.fetch_add(1, Ordering::Relaxed);
            }
            let new = Box::into_raw(new);
            core.handle.store(new.cast(), Ordering::Release);
            new.cast::<c_void>().expose_provenance();
            new.cast()
        }
    }
}

unsafe fn core<'a>(qp: *mut ibv_qp) -> &'a Arc<QpCore> {
    // SAFETY: module invariant of `verbs`.
    unsafe { &(*qp.cast::<Qp>()).core }
}

pub(super) unsafe extern "C" fn modify_qp(
    plain: *mut ibv_qp,
    attr: *mut ibv_qp_attr,
    mask: c_int,
) -> c_int {
    if let Some(errno) = faults::verb(Verb::ModifyQp) {
        return errno;
    }
    // SAFETY: module invariant of `verbs`.
    let (core, attr) = unsafe { (core(plain), &*attr) };
    match core.modify(attr, mask as u32) {
        Err(errno) => errno,
        Ok(()) => {
            // SAFETY: as above.
            unsafe { (*plain).state = ibv_qp_state(core.state() as u32) };
            0
        }
    }
}

pub(super) unsafe extern "C" fn query_qp(
    plain: *mut ibv_qp,
    attr: *mut ibv_qp_attr,
    _mask: c_int,
    init: *mut ibv_qp_init_attr,
) -> c_int {
    // SAFETY: module invariant of `verbs`.
    unsafe {
        let qp = &*plain.cast::<Qp>();
        *attr = qp.core.query();
        (*attr).cap = qp.init.cap;
        *init = qp.init;
        (*plain).state = (*attr).qp_state;
    }
    0
}

pub(super) unsafe extern "C" fn destroy_qp(plain: *mut ibv_qp) -> c_int {
    if let Some(errno) = faults::verb(Verb::DestroyQp) {
        return errno;
    }
    // SAFETY: module invariant of `verbs`.
    let core = unsafe { core(plain) };
    if let Err(error) = core.destroy() {
        return rc(Err(error));
    }
    // SAFETY: module invariant of `verbs`.
    unsafe { context((*plain).context) }
        .events
        .retire(plain.addr());
    core.send_cq.users.fetch_sub(1, Ordering::Release);
    core.recv_cq.users.fetch_sub(1, Ordering::Release);
    if let Some(srq) = &core.srq {
        srq.users.fetch_sub(1, Ordering::Release);
    }
    // SAFETY: the domain outlives its queue pairs (it counts them).
    unsafe { pd((*plain).pd) }
        .users
        .fetch_sub(1, Ordering::Release);
    // SAFETY: module invariant of `verbs`; nothing touches it any more.
    drop(unsafe { Box::from_raw(plain.cast::<Qp>()) });
    0
}

pub(super) unsafe extern "C" fn post_send(
    qp: *mut ibv_qp,
    wr: *mut ibv_send_wr,
    bad: *mut *mut ibv_send_wr,
) -> c_int {
    // SAFETY: the caller's chain is well-formed, as ibv_post_send(3) asks.
    unsafe { send::post_send(core(qp), wr, bad) }
}

pub(super) unsafe extern "C" fn post_recv(
    qp: *mut ibv_qp,
    wr: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: the caller's chain is well-formed, as ibv_post_recv(3) asks.
    unsafe { recv::post_recv(core(qp), wr, bad) }
}
