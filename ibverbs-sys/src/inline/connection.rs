//! The inlines of rdma_cma.h.

use libc::sockaddr;

use crate::bindings::*;

/// Local address of an id; its family is AF_UNSPEC (0) until bound.
///
/// # Safety
///
/// `id` must be alive, and is borrowed by the result.
#[inline]
pub unsafe fn rdma_get_local_addr(id: *mut rdma_cm_id) -> *mut sockaddr {
    // SAFETY: the id is alive by the caller's contract; the address is a member of it.
    unsafe { (&raw mut (*id).route.addr.__bindgen_anon_1).cast() }
}

/// Remote address of an id.
///
/// # Safety
///
/// `id` must be alive, and is borrowed by the result.
#[inline]
pub unsafe fn rdma_get_peer_addr(id: *mut rdma_cm_id) -> *mut sockaddr {
    // SAFETY: the id is alive by the caller's contract; the address is a member of it.
    unsafe { (&raw mut (*id).route.addr.__bindgen_anon_2).cast() }
}
