//! Completion queues and channels.

use super::context::context;
use super::cq_ex::Polling;
use super::{code, fail, null, rc, set_errno};
use crate::channel::ChannelCore;
use crate::cq::CqCore;
use crate::device::MAX_CQE;
use crate::faults::Verb;
use core::ffi::{c_int, c_uint, c_void};
use core::sync::atomic::Ordering;
use ibverbs_sys::*;
use std::io;
use std::sync::Arc;

#[repr(C)]
struct Channel {
    channel: ibv_comp_channel,
    core: Arc<ChannelCore>,
}

/// Begins as the extended queue, which begins as the plain one does; only those that were asked for it are used as such.
#[repr(C)]
pub(super) struct Cq {
    pub cq: ibv_cq_ex,
    pub core: Arc<CqCore>,
    pub polling: Polling,
}

/// # Safety
///
/// `cq` was created here.
pub(super) unsafe fn core<'a>(cq: *mut ibv_cq) -> &'a Arc<CqCore> {
    // SAFETY: module invariant of `verbs`.
    unsafe { &(*cq.cast::<Cq>()).core }
}

pub(super) unsafe extern "C" fn create_comp_channel(
    plain: *mut ibv_context,
) -> *mut ibv_comp_channel {
    // SAFETY: module invariant of `verbs`.
    let process = unsafe { context(plain) }.process;
    match fail(Verb::CreateCompChannel).and_then(|()| ChannelCore::new(process)) {
        Err(error) => null(&error),
        Ok(core) => {
            let channel = ibv_comp_channel {
                context: plain,
                fd: core.fd(),
                refcnt: 0,
            };
            Box::into_raw(Box::new(Channel { channel, core })).cast()
        }
    }
}

pub(super) unsafe extern "C" fn destroy_comp_channel(plain: *mut ibv_comp_channel) -> c_int {
    // SAFETY: module invariant of `verbs`.
    if unsafe { &(*plain.cast::<Channel>()).core }
        .users
        .load(Ordering::Acquire)
        != 0
    {
        return libc::EBUSY;
    }
    // SAFETY: as above.
    drop(unsafe { Box::from_raw(plain.cast::<Channel>()) });
    0
}

pub(super) unsafe extern "C" fn create_cq(
    plain: *mut ibv_context,
    cqe: c_int,
    cq_context: *mut c_void,
    channel: *mut ibv_comp_channel,
    vector: c_int,
) -> *mut ibv_cq {
    // SAFETY: by the caller's contract.
    unsafe { create(plain, cqe, cq_context, channel, vector, |_| {}) }.cast()
}

/// Makes a queue; `extend` adds what an extended one has.
///
/// # Safety
///
/// The contract of ibv_create_cq(3).
pub(super) unsafe fn create(
    plain: *mut ibv_context,
    cqe: c_int,
    cq_context: *mut c_void,
    channel: *mut ibv_comp_channel,
    vector: c_int,
    extend: impl FnOnce(&mut Cq),
) -> *mut ibv_cq_ex {
    if !(1..=MAX_CQE).contains(&cqe) || vector != 0 {
        return null(&io::Error::from_raw_os_error(libc::EINVAL));
    }
    // SAFETY: module invariant of `verbs`.
    let (context, core) = unsafe {
        let core = (!channel.is_null()).then(|| (*channel.cast::<Channel>()).core.clone());
        (context(plain), core)
    };
    match fail(Verb::CreateCq)
        .and_then(|()| CqCore::new(context.process, core, cqe, context.events.clone()))
    {
        Err(error) => null(&error),
        Ok(core) => {
            if let Some(channel) = &core.channel {
                channel.users.fetch_add(1, Ordering::Relaxed);
            }
            let cq = ibv_cq_ex {
                context: plain,
                channel,
                cq_context,
                handle: core.index,
                cqe,
                mutex: libc::PTHREAD_MUTEX_INITIALIZER,
                cond: libc::PTHREAD_COND_INITIALIZER,
                comp_events_completed: 0,
                async_events_completed: 0,
                ..ibv_cq_ex::default()
            };
            let mut new = Box::new(Cq {
                cq,
                core: core.clone(),
                polling: Polling::default(),
            });
            extend(&mut new);
            let new = Box::into_raw(new);
            core.handle.store(new.cast(), Ordering::Release);
            new.cast::<c_void>().expose_provenance();
            new.cast()
        }
    }
}

pub(super) unsafe extern "C" fn resize_cq(plain: *mut ibv_cq, cqe: c_int) -> c_int {
    if !(1..=MAX_CQE).contains(&cqe) {
        return libc::EINVAL;
    }
    // SAFETY: module invariant of `verbs`.
    match unsafe { core(plain) }.resize(cqe) {
        Err(errno) => errno,
        Ok(()) => {
            // SAFETY: as above.
            unsafe { (*plain).cqe = cqe };
            0
        }
    }
}

pub(super) unsafe extern "C" fn destroy_cq(plain: *mut ibv_cq) -> c_int {
    // SAFETY: module invariant of `verbs`.
    let cq = unsafe { &*plain.cast::<Cq>() };
    if cq.core.users.load(Ordering::Acquire) != 0 {
        return libc::EBUSY;
    }
    cq.core.retire();
    if let Some(channel) = &cq.core.channel {
        channel.users.fetch_sub(1, Ordering::Release);
        channel.remove(cq.core.index);
    }
    // SAFETY: module invariant of `verbs`; nobody uses it any more.
    drop(unsafe { Box::from_raw(plain.cast::<Cq>()) });
    0
}

pub(super) unsafe extern "C" fn get_cq_event(
    channel: *mut ibv_comp_channel,
    cq: *mut *mut ibv_cq,
    cq_context: *mut *mut c_void,
) -> c_int {
    // SAFETY: module invariant of `verbs`.
    let core = unsafe { &(*channel.cast::<Channel>()).core };
    loop {
        match core.next_event() {
            Err(error) => {
                set_errno(code(&error));
                return -1;
            }
            // A queue that is being destroyed gives none.
            Ok(found) => {
                found.moderate();
                if let Some(handle) = found.give() {
                    let plain = handle.cast::<ibv_cq>();
                    // SAFETY: the event was handed out, so destroying the queue waits for its acknowledgement.
                    unsafe {
                        *cq = plain;
                        *cq_context = (*plain).cq_context;
                    }
                    return 0;
                }
            }
        }
    }
}

pub(super) unsafe extern "C" fn ack_cq_events(plain: *mut ibv_cq, count: c_uint) {
    // SAFETY: module invariant of `verbs`.
    unsafe { core(plain) }.ack(count);
}

pub(super) unsafe extern "C" fn poll_cq(
    plain: *mut ibv_cq,
    count: c_int,
    wc: *mut ibv_wc,
) -> c_int {
    let Ok(count) = usize::try_from(count) else {
        return -1;
    };
    if count == 0 {
        return 0;
    }
    // SAFETY: the caller's array has `count` entries; they are written before they are read, and any bits are a valid
    // `ibv_wc` anyway.
    let out = unsafe { core::slice::from_raw_parts_mut(wc, count) };
    // SAFETY: module invariant of `verbs`.
    // -1 once an overflowed queue is empty: its other completions are lost.
    unsafe { core(plain) }.poll(out).map_or(-1, |n| n as c_int)
}

pub(super) unsafe extern "C" fn req_notify_cq(plain: *mut ibv_cq, solicited_only: c_int) -> c_int {
    // SAFETY: module invariant of `verbs`.
    let cq = unsafe { core(plain) };
    rc(fail(Verb::ReqNotifyCq).and_then(|()| cq.arm(solicited_only != 0)))
}
