//! Shared receive queues.

use super::context::{context, pd};
use super::null;
use crate::device::MAX_QP_WR;
use crate::srq::SrqCore;
use crate::transfer::MAX_SGE;
use core::ffi::{c_int, c_void};
use core::sync::atomic::Ordering;
use ibverbs_sys::*;
use std::io;
use std::sync::Arc;

#[repr(C)]
struct Srq {
    srq: ibv_srq,
    core: Arc<SrqCore>,
}

/// # Safety
///
/// `srq` was created here.
pub(super) unsafe fn core<'a>(srq: *mut ibv_srq) -> &'a Arc<SrqCore> {
    // SAFETY: module invariant of `verbs`.
    unsafe { &(*srq.cast::<Srq>()).core }
}

pub(super) unsafe extern "C" fn create_srq(
    parent: *mut ibv_pd,
    init: *mut ibv_srq_init_attr,
) -> *mut ibv_srq {
    // SAFETY: module invariant of `verbs`.
    let (init, pd, plain) = unsafe { (&mut *init, pd(parent), (*parent).context) };
    let attr = &mut init.attr;
    let (max_wr, max_sge) = (attr.max_wr as usize, attr.max_sge as usize);
    if !(1..=MAX_QP_WR).contains(&max_wr) || max_sge > MAX_SGE || attr.srq_limit > attr.max_wr {
        return null(&io::Error::from_raw_os_error(libc::EINVAL));
    }
    // SAFETY: module invariant of `verbs`.
    let context = unsafe { context(plain) };
    let events = context.events.clone();
    match SrqCore::new(context.process, pd.id, max_wr, max_sge.max(1), events) {
        Err(error) => null(&error),
        Ok(core) => {
            attr.max_sge = core.max_sge as u32;
            pd.users.fetch_add(1, Ordering::Relaxed);
            let srq = ibv_srq {
                context: plain,
                srq_context: init.srq_context,
                pd: parent,
                handle: 0,
                mutex: libc::PTHREAD_MUTEX_INITIALIZER,
                cond: libc::PTHREAD_COND_INITIALIZER,
                events_completed: 0,
            };
            let new = Box::into_raw(Box::new(Srq {
                srq,
                core: core.clone(),
            }));
            core.handle.store(new.cast(), Ordering::Release);
            new.cast::<c_void>().expose_provenance();
            core.set_limit(attr.srq_limit);
            new.cast()
        }
    }
}

pub(super) unsafe extern "C" fn modify_srq(
    plain: *mut ibv_srq,
    attr: *mut ibv_srq_attr,
    mask: c_int,
) -> c_int {
    // SAFETY: module invariant of `verbs`.
    let (core, attr) = unsafe { (core(plain), &*attr) };
    let has = |bit: ibv_srq_attr_mask| mask as u32 & bit.0 != 0;
    if has(ibv_srq_attr_mask::IBV_SRQ_MAX_WR) {
        if !(1..=MAX_QP_WR).contains(&(attr.max_wr as usize)) {
            return libc::EINVAL;
        }
        if let Err(errno) = core.resize(attr.max_wr as usize) {
            return errno;
        }
    }
    if has(ibv_srq_attr_mask::IBV_SRQ_LIMIT) {
        if attr.srq_limit as usize > core.max_wr() {
            return libc::EINVAL;
        }
        core.set_limit(attr.srq_limit);
    }
    0
}

pub(super) unsafe extern "C" fn query_srq(plain: *mut ibv_srq, attr: *mut ibv_srq_attr) -> c_int {
    // SAFETY: module invariant of `verbs`.
    unsafe {
        let core = core(plain);
        *attr = ibv_srq_attr {
            max_wr: core.max_wr() as u32,
            max_sge: core.max_sge as u32,
            srq_limit: core.limit(),
        };
    }
    0
}

pub(super) unsafe extern "C" fn destroy_srq(plain: *mut ibv_srq) -> c_int {
    // SAFETY: module invariant of `verbs`.
    let core = unsafe { core(plain) };
    if core.users.load(Ordering::Acquire) != 0 {
        return libc::EBUSY;
    }
    core.destroy();
    // SAFETY: the domain outlives its queues (it counts them).
    unsafe { pd((*plain).pd) }
        .users
        .fetch_sub(1, Ordering::Release);
    // SAFETY: module invariant of `verbs`; nothing uses it any more.
    drop(unsafe { Box::from_raw(plain.cast::<Srq>()) });
    0
}

pub(super) unsafe extern "C" fn post_srq_recv(
    srq: *mut ibv_srq,
    wr: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: the caller's chain is well-formed, as ibv_post_srq_recv(3) asks.
    unsafe { core(srq).post(wr, bad) }
}
