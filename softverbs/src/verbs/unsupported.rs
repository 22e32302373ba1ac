//! Verbs that this device does not have yet: each fails as its manual page says an unsupported verb fails.

use super::set_errno;
use core::ffi::{c_int, c_uint, c_void};
use ibverbs_sys::*;

fn null<T>() -> *mut T {
    set_errno(libc::EOPNOTSUPP);
    core::ptr::null_mut()
}

pub(super) unsafe extern "C" fn create_ah(_: *mut ibv_pd, _: *mut ibv_ah_attr) -> *mut ibv_ah {
    null()
}

pub(super) unsafe extern "C" fn destroy_ah(_: *mut ibv_ah) -> c_int {
    libc::EOPNOTSUPP
}

pub(super) unsafe extern "C" fn mcast(_: *mut ibv_qp, _: *const ibv_gid, _: u16) -> c_int {
    libc::EOPNOTSUPP
}

pub(super) unsafe extern "C" fn init_ah_from_wc(
    _: *mut ibv_context,
    _: u8,
    _: *mut ibv_wc,
    _: *mut ibv_grh,
    _: *mut ibv_ah_attr,
) -> c_int {
    set_errno(libc::EOPNOTSUPP);
    -1
}

pub(super) unsafe extern "C" fn create_ah_from_wc(
    _: *mut ibv_pd,
    _: *mut ibv_wc,
    _: *mut ibv_grh,
    _: u8,
) -> *mut ibv_ah {
    null()
}

/// A forked child does not inherit registered memory files, and regions of other memory are not pinned: nothing to do.
pub(super) unsafe extern "C" fn fork_init() -> c_int {
    0
}

pub(super) unsafe extern "C" fn rereg_mr(
    _: *mut ibv_mr,
    _: c_int,
    _: *mut ibv_pd,
    _: *mut c_void,
    _: usize,
    _: c_int,
) -> c_int {
    set_errno(libc::EOPNOTSUPP);
    // IBV_REREG_MR_ERR_CMD: the region is as it was.
    -3
}

pub(super) unsafe extern "C" fn get_pkey_index(
    _: *mut ibv_context,
    _port: u8,
    pkey: __be16,
) -> c_int {
    if pkey == 0xffffu16.to_be() {
        return 0;
    }
    set_errno(libc::EPROTO);
    -1
}

pub(super) unsafe extern "C" fn data_in_order(
    _: *mut ibv_qp,
    _: ibv_wr_opcode,
    _: c_uint,
) -> c_int {
    // Copies go by ascending addresses, the last aligned word last.
    1
}
