//! Verbs that this device does not have yet: each fails as its manual page says an unsupported verb fails.

use super::set_errno;
use core::ffi::{c_int, c_uint, c_void};
use ibverbs_sys::*;

pub(super) unsafe extern "C" fn mcast(_: *mut ibv_qp, _: *const ibv_gid, _: u16) -> c_int {
    libc::EOPNOTSUPP
}

/// A forked child does not inherit registered memory files, and regions of other memory are not pinned: nothing to do.
pub(super) unsafe extern "C" fn fork_init() -> c_int {
    0
}

pub(super) unsafe extern "C" fn is_fork_initialized() -> ibv_fork_status {
    ibv_fork_status::IBV_FORK_UNNEEDED
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
    // The code for which ibv_rereg_mr(3) says that the region is as it was; after a failed command it would not be usable.
    ibv_rereg_mr_err_code::IBV_REREG_MR_ERR_INPUT.0
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

#[cfg(test)]
mod tests {
    use super::*;
    use core::ptr::null_mut;

    #[test]
    fn a_region_that_cannot_be_changed_is_said_to_be_as_it_was() {
        // SAFETY: its arguments are not looked at.
        let code = unsafe { rereg_mr(null_mut(), 0, null_mut(), null_mut(), 0, 0) };
        let errno = std::io::Error::last_os_error().raw_os_error();
        assert_eq!((code, errno), (-1, Some(libc::EOPNOTSUPP)));
    }
}
