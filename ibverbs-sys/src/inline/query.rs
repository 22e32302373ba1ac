//! Queries whose layout grew: device, port, GIDs, clock.

use core::ffi::c_int;
use core::mem::size_of;

use super::{context_op, extended};
use crate::Api;
use crate::bindings::*;

/// Attributes of port `port_num` in the current layout. Returns an errno.
///
/// A library too old to know the layout fills in the shorter old one, by `api.ibv_query_port`; what it does not know is zero.
///
/// # Safety
///
/// See the [module](crate::inline).
#[doc(alias = "___ibv_query_port")]
#[inline]
pub unsafe fn ibv_query_port(
    api: &Api,
    context: *mut ibv_context,
    port_num: u8,
    port_attr: *mut ibv_port_attr,
) -> c_int {
    // SAFETY: arguments and context are as the caller's contract says; the old layout is a prefix of the new one.
    unsafe {
        match context_op!(context, query_port) {
            Some(op) => op(context, port_num, port_attr, size_of::<ibv_port_attr>()),
            None => {
                port_attr.write_bytes(0, 1);
                (api.ibv_query_port)(context, port_num, port_attr.cast())
            }
        }
    }
}

/// Extended attributes of the device. Returns an errno: EINVAL when `input` has bits in `comp_mask`.
///
/// A library or kernel that does not know them fills in `orig_attr` alone, by `api.ibv_query_device`; the rest is zero.
/// `input` may be NULL.
///
/// # Safety
///
/// See the [module](crate::inline).
#[inline]
pub unsafe fn ibv_query_device_ex(
    api: &Api,
    context: *mut ibv_context,
    input: *const ibv_query_device_ex_input,
    attr: *mut ibv_device_attr_ex,
) -> c_int {
    // SAFETY: arguments and context are as the caller's contract says.
    unsafe {
        if !input.is_null() && (*input).comp_mask != 0 {
            return libc::EINVAL;
        }
        if let Some(op) = context_op!(context, query_device_ex) {
            let ret = op(context, input, attr, size_of::<ibv_device_attr_ex>());
            if ret != libc::EOPNOTSUPP && ret != libc::ENOSYS {
                return ret;
            }
        }
        attr.write_bytes(0, 1);
        (api.ibv_query_device)(context, &raw mut (*attr).orig_attr)
    }
}

/// Entry `gid_index` of the GID table of port `port_num`, with type and network interface. Returns an errno: ENODATA for an
/// empty entry. EOPNOTSUPP when the library has no such function (rdma-core before 32), where C would fail to link.
///
/// # Safety
///
/// See the [module](crate::inline).
#[inline]
pub unsafe fn ibv_query_gid_ex(
    api: &Api,
    context: *mut ibv_context,
    port_num: u32,
    gid_index: u32,
    entry: *mut ibv_gid_entry,
    flags: u32,
) -> c_int {
    let Some(query) = api._ibv_query_gid_ex else {
        return libc::EOPNOTSUPP;
    };
    // SAFETY: arguments and context are as the caller's contract says.
    unsafe {
        query(
            context,
            port_num,
            gid_index,
            entry,
            flags,
            size_of::<ibv_gid_entry>(),
        )
    }
}

/// All valid GIDs of all ports, up to `max_entries`. Their number, or a negated errno: -EOPNOTSUPP when the library has no
/// such function (rdma-core before 32), where C would fail to link.
///
/// # Safety
///
/// See the [module](crate::inline).
#[inline]
pub unsafe fn ibv_query_gid_table(
    api: &Api,
    context: *mut ibv_context,
    entries: *mut ibv_gid_entry,
    max_entries: usize,
    flags: u32,
) -> isize {
    let Some(query) = api._ibv_query_gid_table else {
        return -(libc::EOPNOTSUPP as isize);
    };
    // SAFETY: arguments and context are as the caller's contract says.
    unsafe {
        query(
            context,
            entries,
            max_entries,
            flags,
            size_of::<ibv_gid_entry>(),
        )
    }
}

extended! {
    /// Values of the device that change, such as its clock; `comp_mask` says which. Returns an errno.
    fn ibv_query_rt_values_ex(context: *mut ibv_context, values: *mut ibv_values_ex) -> c_int
        => context, query_rt_values;
}
