//! Address handles.

use super::context::{context, pd};
use super::{null, set_errno};
use crate::datagram::address::{self, Address};
use core::ffi::c_int;
use core::sync::atomic::Ordering;
use ibverbs_sys::*;
use std::io;

#[repr(C)]
struct Ah {
    ah: ibv_ah,
    address: Address,
}

/// The address behind a handle, `None` for null.
///
/// # Safety
///
/// `ah` was created here, or is null.
pub(crate) unsafe fn address(ah: *mut ibv_ah) -> Option<Address> {
    // SAFETY: by contract.
    unsafe { ah.cast::<Ah>().as_ref() }.map(|ah| ah.address)
}

pub(super) unsafe extern "C" fn create_ah(
    parent: *mut ibv_pd,
    attr: *mut ibv_ah_attr,
) -> *mut ibv_ah {
    // SAFETY: module invariant of `verbs`.
    let (pd, plain, attr) = unsafe { (pd(parent), (*parent).context, &*attr) };
    // SAFETY: as above.
    match Address::new(unsafe { context(plain) }.process, attr) {
        Err(errno) => null(&io::Error::from_raw_os_error(errno)),
        Ok(address) => {
            pd.users.fetch_add(1, Ordering::Relaxed);
            let ah = ibv_ah {
                context: plain,
                pd: parent,
                handle: 0,
            };
            Box::into_raw(Box::new(Ah { ah, address })).cast()
        }
    }
}

pub(super) unsafe extern "C" fn destroy_ah(plain: *mut ibv_ah) -> c_int {
    // SAFETY: module invariant of `verbs`. Posted work has a copy of the address.
    let ah = unsafe { Box::from_raw(plain.cast::<Ah>()) };
    // SAFETY: the domain outlives its handles (it counts them).
    unsafe { pd(ah.ah.pd) }
        .users
        .fetch_sub(1, Ordering::Release);
    0
}

pub(super) unsafe extern "C" fn init_ah_from_wc(
    plain: *mut ibv_context,
    port: u8,
    wc: *mut ibv_wc,
    grh: *mut ibv_grh,
    attr: *mut ibv_ah_attr,
) -> c_int {
    // SAFETY: module invariant of `verbs`; the header is null or points at 40 bytes, at any address.
    let answer = unsafe {
        let grh = (!grh.is_null()).then(|| grh.read_unaligned());
        address::answer(context(plain).process, port, &*wc, grh.as_ref())
    };
    match answer {
        Err(errno) => {
            set_errno(errno);
            -1
        }
        Ok(found) => {
            // SAFETY: the caller's out parameter.
            unsafe { *attr = found };
            0
        }
    }
}

pub(super) unsafe extern "C" fn create_ah_from_wc(
    parent: *mut ibv_pd,
    wc: *mut ibv_wc,
    grh: *mut ibv_grh,
    port: u8,
) -> *mut ibv_ah {
    let mut attr = ibv_ah_attr::default();
    // SAFETY: module invariant of `verbs`.
    unsafe {
        match init_ah_from_wc((*parent).context, port, wc, grh, &mut attr) {
            0 => create_ah(parent, &mut attr),
            _ => core::ptr::null_mut(),
        }
    }
}
