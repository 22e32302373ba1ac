//! Memory: registration with optional flags, windows, device memory.

use core::ffi::{c_int, c_uint, c_void};

use super::{Unsupported, direct, extended, filled};
use crate::Api;
use crate::alias::*;
use crate::bindings::*;

/// Registers memory for `access` (bits of `ibv_access_flags`). NULL and errno on failure.
///
/// With optional flags this is `ibv_reg_mr_iova2`, as in verbs.h; a library without it (rdma-core before 28) never sees them.
///
/// # Safety
///
/// See the [module](crate::inline). The memory must stay mapped until deregistered; whoever has the keys can use it so long.
#[doc(alias = "__ibv_reg_mr")]
#[inline]
pub unsafe fn ibv_reg_mr(
    api: &Api,
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    access: c_uint,
) -> *mut ibv_mr {
    // SAFETY: arguments are as the caller's contract says.
    unsafe {
        match api.ibv_reg_mr_iova2 {
            Some(reg) if access & IBV_ACCESS_OPTIONAL_RANGE != 0 => {
                reg(pd, addr, length, addr.addr() as u64, access)
            }
            _ => (api.ibv_reg_mr)(pd, addr, length, mandatory(access)),
        }
    }
}

/// As [`ibv_reg_mr`], with the address that work requests use given as `iova`.
///
/// With optional flags this is `ibv_reg_mr_iova2`, as in verbs.h; EOPNOTSUPP when the library has neither that nor
/// `ibv_reg_mr_iova` (rdma-core before 25), where C would fail to link.
///
/// # Safety
///
/// As [`ibv_reg_mr`].
#[doc(alias = "__ibv_reg_mr_iova")]
#[inline]
pub unsafe fn ibv_reg_mr_iova(
    api: &Api,
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: c_uint,
) -> *mut ibv_mr {
    // SAFETY: arguments are as the caller's contract says.
    unsafe {
        match (api.ibv_reg_mr_iova2, api.ibv_reg_mr_iova) {
            (Some(reg), _) if access & IBV_ACCESS_OPTIONAL_RANGE != 0 => {
                reg(pd, addr, length, iova, access)
            }
            (_, Some(reg)) => reg(pd, addr, length, iova, mandatory(access)),
            _ => Unsupported::unsupported(),
        }
    }
}

/// `access` as the functions from before optional flags take it.
const fn mandatory(access: c_uint) -> c_int {
    (access & !IBV_ACCESS_OPTIONAL_RANGE) as c_int
}

/// Allocates a memory window. NULL and errno on failure: EOPNOTSUPP when the provider has none.
///
/// # Safety
///
/// See the [module](crate::inline).
#[inline]
pub unsafe fn ibv_alloc_mw(pd: *mut ibv_pd, type_: ibv_mw_type) -> *mut ibv_mw {
    // SAFETY: `pd` and its context are live by the caller's contract.
    unsafe {
        match (*(*pd).context).ops.alloc_mw {
            Some(op) => op(pd, type_),
            None => Unsupported::unsupported(),
        }
    }
}

/// Binds a type 1 window by a work request of the queue pair. Returns an errno: EINVAL for another type, or for a range
/// without a region; EPERM when window and region are in different protection domains.
///
/// # Safety
///
/// See the [module](crate::inline).
#[inline]
pub unsafe fn ibv_bind_mw(qp: *mut ibv_qp, mw: *mut ibv_mw, mw_bind: *mut ibv_mw_bind) -> c_int {
    // SAFETY: arguments are as the caller's contract says; a window exists only where the provider can bind it.
    unsafe {
        let info = &raw const (*mw_bind).bind_info;
        if (*mw).type_ != ibv_mw_type::IBV_MW_TYPE_1 {
            return libc::EINVAL;
        }
        if (*info).mr.is_null() {
            if (*info).addr != 0 || (*info).length != 0 {
                return libc::EINVAL;
            }
        } else if (*mw).pd != (*(*info).mr).pd {
            return libc::EPERM;
        }
        filled((*(*mw).context).ops.bind_mw)(qp, mw, mw_bind)
    }
}

/// The key with its lowest byte, the part that the owner chooses, counted up by one.
#[inline]
pub const fn ibv_inc_rkey(rkey: u32) -> u32 {
    (rkey & !0xff) | (rkey.wrapping_add(1) & 0xff)
}

direct! {
    /// Frees a memory window. Returns an errno.
    fn ibv_dealloc_mw(mw: *mut ibv_mw) -> c_int => (*(*mw).context).ops.dealloc_mw;
    /// Copies to device memory. Returns an errno.
    fn ibv_memcpy_to_dm(dm: *mut ibv_dm, dm_offset: u64, host_addr: *const c_void, length: usize) -> c_int
        => (*dm).memcpy_to_dm;
    /// Copies from device memory. Returns an errno.
    fn ibv_memcpy_from_dm(host_addr: *mut c_void, dm: *mut ibv_dm, dm_offset: u64, length: usize) -> c_int
        => (*dm).memcpy_from_dm;
}

extended! {
    /// Advice about ranges of registered memory, such as to prefetch them. Returns an errno.
    fn ibv_advise_mr(
        pd: *mut ibv_pd,
        advice: ibv_advise_mr_advice,
        flags: u32,
        sg_list: *mut ibv_sge,
        num_sge: u32,
    ) -> c_int => (*pd).context, advise_mr;
    /// Allocates device memory. NULL and errno on failure.
    fn ibv_alloc_dm(context: *mut ibv_context, attr: *mut ibv_alloc_dm_attr) -> *mut ibv_dm
        => context, alloc_dm;
    /// Frees device memory. Returns an errno.
    fn ibv_free_dm(dm: *mut ibv_dm) -> c_int => (*dm).context, free_dm;
    /// A region whose writes go nowhere and whose reads are zero. NULL and errno on failure.
    fn ibv_alloc_null_mr(pd: *mut ibv_pd) -> *mut ibv_mr => (*pd).context, alloc_null_mr;
    /// Registers a range of device memory. NULL and errno on failure.
    fn ibv_reg_dm_mr(
        pd: *mut ibv_pd,
        dm: *mut ibv_dm,
        dm_offset: u64,
        length: usize,
        access: c_uint,
    ) -> *mut ibv_mr => (*pd).context, reg_dm_mr;
}
