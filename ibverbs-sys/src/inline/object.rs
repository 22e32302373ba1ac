//! Creating objects with extended attributes: queue pairs, shared receive queues, domains.

use core::ffi::c_int;

use super::{Unsupported, context_op, extended, filled, verbs_get_ctx};
use crate::Api;
use crate::bindings::*;

/// Creates a queue pair. NULL and errno on failure.
///
/// When `comp_mask` is `IBV_QP_INIT_ATTR_PD` alone this is `api.ibv_create_qp`, of which the attributes are a prefix.
///
/// # Safety
///
/// See the [module](crate::inline).
#[inline]
pub unsafe fn ibv_create_qp_ex(
    api: &Api,
    context: *mut ibv_context,
    qp_init_attr_ex: *mut ibv_qp_init_attr_ex,
) -> *mut ibv_qp {
    // SAFETY: arguments and context are as the caller's contract says.
    unsafe {
        if (*qp_init_attr_ex).comp_mask == ibv_qp_init_attr_mask::IBV_QP_INIT_ATTR_PD.0 {
            return (api.ibv_create_qp)((*qp_init_attr_ex).pd, qp_init_attr_ex.cast());
        }
        match context_op!(context, create_qp_ex) {
            Some(op) => op(context, qp_init_attr_ex),
            None => Unsupported::unsupported(),
        }
    }
}

/// Creates a shared receive queue. NULL and errno on failure.
///
/// When only a protection domain is given, and no type but `IBV_SRQT_BASIC`, this is `api.ibv_create_srq`, of which the
/// attributes are a prefix.
///
/// # Safety
///
/// See the [module](crate::inline).
#[inline]
pub unsafe fn ibv_create_srq_ex(
    api: &Api,
    context: *mut ibv_context,
    srq_init_attr_ex: *mut ibv_srq_init_attr_ex,
) -> *mut ibv_srq {
    const PD: u32 = ibv_srq_init_attr_mask::IBV_SRQ_INIT_ATTR_PD.0;
    const TYPE: u32 = ibv_srq_init_attr_mask::IBV_SRQ_INIT_ATTR_TYPE.0;
    // SAFETY: arguments and context are as the caller's contract says.
    unsafe {
        let mask = (*srq_init_attr_ex).comp_mask;
        if mask & !(PD | TYPE) == 0
            && mask & PD != 0
            && (mask & TYPE == 0 || (*srq_init_attr_ex).srq_type == ibv_srq_type::IBV_SRQT_BASIC)
        {
            return (api.ibv_create_srq)((*srq_init_attr_ex).pd, srq_init_attr_ex.cast());
        }
        match context_op!(context, create_srq_ex) {
            Some(op) => op(context, srq_init_attr_ex),
            None => Unsupported::unsupported(),
        }
    }
}

/// Closes an extended connection domain. Returns an errno.
///
/// verbs.h checks nothing here: a domain exists only where the library could open it.
///
/// # Safety
///
/// See the [module](crate::inline); `xrcd` must come from [`ibv_open_xrcd`].
#[inline]
pub unsafe fn ibv_close_xrcd(xrcd: *mut ibv_xrcd) -> c_int {
    // SAFETY: the domain was opened through the verbs_context, so that has both operations.
    unsafe { filled((*verbs_get_ctx((*xrcd).context)).close_xrcd)(xrcd) }
}

extended! {
    /// Opens a queue pair that another process shares. NULL and errno on failure.
    fn ibv_open_qp(context: *mut ibv_context, qp_open_attr: *mut ibv_qp_open_attr) -> *mut ibv_qp
        => context, open_qp;
    /// Limits the packet rate of a queue pair. Returns an errno.
    fn ibv_modify_qp_rate_limit(qp: *mut ibv_qp, attr: *mut ibv_qp_rate_limit_attr) -> c_int
        => (*qp).context, modify_qp_rate_limit;
    /// Opens an extended connection domain. NULL and errno on failure.
    fn ibv_open_xrcd(context: *mut ibv_context, xrcd_init_attr: *mut ibv_xrcd_init_attr) -> *mut ibv_xrcd
        => context, open_xrcd;
    /// Number of a shared receive queue, for XRC. Returns an errno.
    fn ibv_get_srq_num(srq: *mut ibv_srq, srq_num: *mut u32) -> c_int
        => (*srq).context, get_srq_num;
    /// Allocates a thread domain: its objects are used by one thread at a time. NULL and errno on failure.
    fn ibv_alloc_td(context: *mut ibv_context, init_attr: *mut ibv_td_init_attr) -> *mut ibv_td
        => context, alloc_td;
    /// Frees a thread domain. Returns an errno.
    fn ibv_dealloc_td(td: *mut ibv_td) -> c_int => (*td).context, dealloc_td;
    /// Allocates a protection domain over another, with a thread domain or allocators. NULL and errno on failure.
    fn ibv_alloc_parent_domain(context: *mut ibv_context, attr: *mut ibv_parent_domain_init_attr) -> *mut ibv_pd
        => context, alloc_parent_domain;
}

/// Posts tag matching operations to a shared receive queue. Returns an errno; then `*bad_op` is the first that was not
/// posted.
///
/// # Safety
///
/// See the [module](crate::inline).
#[inline]
pub unsafe fn ibv_post_srq_ops(
    srq: *mut ibv_srq,
    op: *mut ibv_ops_wr,
    bad_op: *mut *mut ibv_ops_wr,
) -> c_int {
    // SAFETY: arguments and context are as the caller's contract says.
    unsafe {
        match context_op!((*srq).context, post_srq_ops) {
            Some(post) => post(srq, op, bad_op),
            None => {
                *bad_op = op;
                libc::EOPNOTSUPP
            }
        }
    }
}

/// Whether the bits `caps` of a device allow queue pairs of type `qpt`.
#[inline]
pub const fn ibv_is_qpt_supported(caps: u32, qpt: ibv_qp_type) -> bool {
    match 1u32.checked_shl(qpt.0) {
        Some(bit) => caps & bit != 0,
        None => false,
    }
}
