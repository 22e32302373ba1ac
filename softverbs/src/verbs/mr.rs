//! Memory regions.

use super::context::{Pd, context, pd};
use super::{fail, null, rc};
use crate::faults::{self, Verb};
use crate::region::RegionCore;
use core::ffi::{c_int, c_uint, c_void};
use core::sync::atomic::Ordering;
use ibverbs_sys::*;

#[repr(C)]
struct Mr {
    mr: ibv_mr,
    region: RegionCore,
}

unsafe fn register(
    parent: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: u32,
) -> *mut ibv_mr {
    // SAFETY: module invariant of `verbs`.
    let (context, pd): (_, &Pd) = unsafe { (context((*parent).context), pd(parent)) };
    let made = fail(Verb::RegMr).and_then(|()| {
        RegionCore::register(
            context.process,
            pd.id,
            addr as u64,
            length as u64,
            iova,
            access,
        )
    });
    match made {
        Err(error) => null(&error),
        Ok(region) => {
            pd.users.fetch_add(1, Ordering::Relaxed);
            let mr = ibv_mr {
                // SAFETY: module invariant of `verbs`.
                context: unsafe { (*parent).context },
                pd: parent,
                addr,
                length,
                handle: region.key >> 8,
                lkey: region.key,
                rkey: region.key,
            };
            Box::into_raw(Box::new(Mr { mr, region })).cast()
        }
    }
}

pub(super) unsafe extern "C" fn reg_mr(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    access: c_int,
) -> *mut ibv_mr {
    // SAFETY: module invariant of `verbs`.
    unsafe { register(pd, addr, length, addr as u64, access as u32) }
}

pub(super) unsafe extern "C" fn reg_mr_iova(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: c_int,
) -> *mut ibv_mr {
    // SAFETY: module invariant of `verbs`.
    unsafe { register(pd, addr, length, iova, access as u32) }
}

pub(super) unsafe extern "C" fn reg_mr_iova2(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: c_uint,
) -> *mut ibv_mr {
    // SAFETY: module invariant of `verbs`.
    unsafe { register(pd, addr, length, iova, access) }
}

pub(super) unsafe extern "C" fn dereg_mr(plain: *mut ibv_mr) -> c_int {
    if let Some(errno) = faults::verb(Verb::DeregMr) {
        return errno;
    }
    // SAFETY: module invariant of `verbs`.
    if let Err(error) = unsafe { &(*plain.cast::<Mr>()).region }.invalidate() {
        return rc(Err(error));
    }
    // SAFETY: as above; nothing touches the memory any more.
    let mr = unsafe { Box::from_raw(plain.cast::<Mr>()) };
    // SAFETY: the domain outlives its regions (it counts them).
    unsafe { pd(mr.mr.pd) }
        .users
        .fetch_sub(1, Ordering::Release);
    mr.region.release();
    0
}
