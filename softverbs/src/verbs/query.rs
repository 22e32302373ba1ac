//! Extended queries: what the device is beyond the first attributes, and its clock.

use super::context::context;
use crate::device;
use core::ffi::c_int;
use ibverbs_sys::*;

fn nanoseconds(clock: libc::clockid_t) -> u64 {
    let mut now = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: fills the structure; it cannot fail for the clocks that are named here.
    unsafe { libc::clock_gettime(clock, &mut now) };
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// The device's clock: nanoseconds, as `CLOCK_MONOTONIC`.
pub(super) fn clock() -> u64 {
    nanoseconds(libc::CLOCK_MONOTONIC)
}

/// Nanoseconds since 1970.
pub(super) fn wall_clock() -> u64 {
    nanoseconds(libc::CLOCK_REALTIME)
}

/// The full structure, cut to what the caller knows of it.
pub(super) unsafe extern "C" fn query_device_ex(
    plain: *mut ibv_context,
    input: *const ibv_query_device_ex_input,
    attr: *mut ibv_device_attr_ex,
    len: usize,
) -> c_int {
    // SAFETY: null, or the caller's structure.
    if unsafe { input.as_ref() }.is_some_and(|input| input.comp_mask != 0) {
        return libc::EINVAL;
    }
    // SAFETY: module invariant of `verbs`.
    let orig_attr = device::attr(unsafe { context(plain) }.process);
    let have = ibv_device_attr_ex {
        orig_attr,
        completion_timestamp_mask: u64::MAX,
        // In kHz.
        hca_core_clock: 1_000_000,
        device_cap_flags_ex: orig_attr.device_cap_flags.into(),
        cq_mod_caps: ibv_cq_moderation_caps {
            max_cq_count: u16::MAX,
            max_cq_period: u16::MAX,
        },
        phys_port_cnt_ex: 1,
        ..ibv_device_attr_ex::default()
    };
    let from = core::ptr::from_ref(&have).cast::<u8>();
    // SAFETY: the caller's structure holds `len` bytes.
    unsafe {
        core::ptr::copy_nonoverlapping(from, attr.cast(), len.min(size_of::<ibv_device_attr_ex>()))
    };
    0
}

pub(super) unsafe extern "C" fn query_rt_values(
    _plain: *mut ibv_context,
    values: *mut ibv_values_ex,
) -> c_int {
    const CLOCK: u32 = ibv_values_mask::IBV_VALUES_MASK_RAW_CLOCK.0;
    // SAFETY: the caller's structure.
    let values = unsafe { &mut *values };
    let asked = core::mem::replace(&mut values.comp_mask, 0);
    if asked & CLOCK != 0 {
        values.comp_mask = CLOCK;
        // Ticks, of which a nanosecond has one, and no seconds: what completions are stamped with.
        (values.raw_clock.tv_sec, values.raw_clock.tv_nsec) = (0, clock() as _);
    }
    0
}
