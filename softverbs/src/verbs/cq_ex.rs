//! Extended completion queues: completions that are read field by field.

use super::cq::{self, Cq};
use super::{null, query};
use crate::sync::RawLock;
use core::cell::UnsafeCell;
use core::ffi::{c_int, c_uint};
use ibverbs_sys::ibv_create_cq_wc_flags as Field;
use ibverbs_sys::*;
use std::io;

/// What can be asked for: the usual fields, and when.
const FIELDS: u64 = IBV_WC_STANDARD_FLAGS.0 as u64
    | Field::IBV_WC_EX_WITH_COMPLETION_TIMESTAMP.0 as u64
    | Field::IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK.0 as u64;

/// The completion that an extended queue shows, from the start of a poll to its end.
///
/// Invariant: `shown` is used by whoever has `lock`, or, if the caller has promised to use the queue in one thread, by that thread.
#[derive(Default)]
pub(super) struct Polling {
    lock: RawLock,
    single_threaded: bool,
    timed: bool,
    shown: UnsafeCell<Shown>,
}

#[derive(Clone, Copy, Default)]
struct Shown {
    wc: ibv_wc,
    /// When it was polled: what is nearest to when it completed.
    clock: u64,
    wall: u64,
}

impl Polling {
    fn acquire(&self) {
        if !self.single_threaded {
            self.lock.lock();
        }
    }

    /// # Safety
    ///
    /// The caller has acquired it.
    unsafe fn release(&self) {
        if !self.single_threaded {
            // SAFETY: by contract.
            unsafe { self.lock.unlock() };
        }
    }
}

pub(super) unsafe extern "C" fn create_cq_ex(
    plain: *mut ibv_context,
    init: *mut ibv_cq_init_attr_ex,
) -> *mut ibv_cq_ex {
    const FLAGS: u32 = ibv_cq_init_attr_mask::IBV_CQ_INIT_ATTR_MASK_FLAGS.0;
    const SINGLE: u32 = ibv_create_cq_attr_flags::IBV_CREATE_CQ_ATTR_SINGLE_THREADED.0;
    // SAFETY: the caller's structure.
    let init = unsafe { &*init };
    let flags = if init.comp_mask & FLAGS != 0 {
        init.flags
    } else {
        0
    };
    if init.wc_flags & !FIELDS != 0 || init.comp_mask & !FLAGS != 0 || flags & !SINGLE != 0 {
        return null(&io::Error::from_raw_os_error(libc::EOPNOTSUPP));
    }
    let cqe = c_int::try_from(init.cqe).unwrap_or(c_int::MAX);
    let vector = c_int::try_from(init.comp_vector).unwrap_or(c_int::MAX);
    // SAFETY: module invariant of `verbs`.
    unsafe {
        cq::create(plain, cqe, init.cq_context, init.channel, vector, |new| {
            let has = |field: Field| init.wc_flags & u64::from(field.0) != 0;
            let clock = has(Field::IBV_WC_EX_WITH_COMPLETION_TIMESTAMP);
            let wall = has(Field::IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK);
            new.polling.single_threaded = flags & SINGLE != 0;
            new.polling.timed = clock || wall;
            let cq = &mut new.cq;
            cq.start_poll = Some(start_poll);
            cq.next_poll = Some(next_poll);
            cq.end_poll = Some(end_poll);
            cq.read_opcode = Some(read_opcode);
            cq.read_vendor_err = Some(read_vendor_err);
            cq.read_wc_flags = Some(read_wc_flags);
            // The others only if they were asked for.
            cq.read_byte_len = has(Field::IBV_WC_EX_WITH_BYTE_LEN).then_some(read_byte_len as _);
            cq.read_imm_data = has(Field::IBV_WC_EX_WITH_IMM).then_some(read_imm_data as _);
            cq.read_qp_num = has(Field::IBV_WC_EX_WITH_QP_NUM).then_some(read_qp_num as _);
            cq.read_src_qp = has(Field::IBV_WC_EX_WITH_SRC_QP).then_some(read_src_qp as _);
            cq.read_slid = has(Field::IBV_WC_EX_WITH_SLID).then_some(read_slid as _);
            cq.read_sl = has(Field::IBV_WC_EX_WITH_SL).then_some(read_sl as _);
            let bits = has(Field::IBV_WC_EX_WITH_DLID_PATH_BITS);
            cq.read_dlid_path_bits = bits.then_some(read_dlid_path_bits as _);
            cq.read_completion_ts = clock.then_some(read_completion_ts as _);
            cq.read_completion_wallclock_ns = wall.then_some(read_wallclock_ns as _);
        })
    }
}

/// Shows the next completion; `ENOENT` if there is none.
///
/// # Safety
///
/// `plain` was created here, and the caller has acquired its polling.
unsafe fn show(plain: *mut ibv_cq_ex) -> c_int {
    // SAFETY: by contract.
    let cq = unsafe { &*plain.cast::<Cq>() };
    let mut wc = [ibv_wc::default()];
    match cq.core.poll(&mut wc) {
        Ok(0) => libc::ENOENT,
        // An overflowed queue that is empty.
        Err(_) => libc::EIO,
        Ok(_) => {
            let [wc] = wc;
            let (clock, wall) = match cq.polling.timed {
                true => (query::clock(), query::wall_clock()),
                false => (0, 0),
            };
            // SAFETY: by contract; the two fields are written between start and end only.
            unsafe {
                *cq.polling.shown.get() = Shown { wc, clock, wall };
                (*plain).status = wc.status;
                (*plain).wr_id = wc.wr_id;
            }
            0
        }
    }
}

unsafe extern "C" fn start_poll(plain: *mut ibv_cq_ex, attr: *mut ibv_poll_cq_attr) -> c_int {
    // SAFETY: the caller's structure.
    if unsafe { (*attr).comp_mask } != 0 {
        return libc::EINVAL;
    }
    // SAFETY: module invariant of `verbs`.
    let polling = unsafe { &(*plain.cast::<Cq>()).polling };
    polling.acquire();
    // SAFETY: as above, and acquired; a poll that finds nothing has not begun.
    unsafe {
        let rc = show(plain);
        if rc != 0 {
            polling.release();
        }
        rc
    }
}

unsafe extern "C" fn next_poll(plain: *mut ibv_cq_ex) -> c_int {
    // SAFETY: module invariant of `verbs`; the caller is between start and end.
    unsafe { show(plain) }
}

unsafe extern "C" fn end_poll(plain: *mut ibv_cq_ex) {
    // SAFETY: module invariant of `verbs`; the caller is between start and end.
    unsafe { (*plain.cast::<Cq>()).polling.release() };
}

/// # Safety
///
/// As `show`.
unsafe fn shown(plain: *mut ibv_cq_ex) -> Shown {
    // SAFETY: by contract.
    unsafe { *(*plain.cast::<Cq>()).polling.shown.get() }
}

macro_rules! readers {
    ($($name:ident: $type:ty = |$shown:ident| $value:expr;)*) => {$(
        unsafe extern "C" fn $name(plain: *mut ibv_cq_ex) -> $type {
            // SAFETY: module invariant of `verbs`; the caller is between start and end.
            let $shown = unsafe { shown(plain) };
            $value
        }
    )*};
}

readers! {
    read_opcode: ibv_wc_opcode = |shown| shown.wc.opcode;
    read_vendor_err: u32 = |shown| shown.wc.vendor_err;
    read_byte_len: u32 = |shown| shown.wc.byte_len;
    // SAFETY: of the union, both members are 32 bits.
    read_imm_data: __be32 = |shown| unsafe { shown.wc.__bindgen_anon_1.imm_data };
    read_qp_num: u32 = |shown| shown.wc.qp_num;
    read_src_qp: u32 = |shown| shown.wc.src_qp;
    read_wc_flags: c_uint = |shown| shown.wc.wc_flags;
    read_slid: u32 = |shown| shown.wc.slid.into();
    read_sl: u8 = |shown| shown.wc.sl;
    read_dlid_path_bits: u8 = |shown| shown.wc.dlid_path_bits;
    read_completion_ts: u64 = |shown| shown.clock;
    read_wallclock_ns: u64 = |shown| shown.wall;
}

/// Moderation: events are held back in `ibv_get_cq_event`; the channel's descriptor can be read before.
pub(super) unsafe extern "C" fn modify_cq(
    plain: *mut ibv_cq,
    attr: *mut ibv_modify_cq_attr,
) -> c_int {
    const MODERATE: u32 = ibv_cq_attr_mask::IBV_CQ_ATTR_MODERATE.0;
    // SAFETY: the caller's structure.
    let attr = unsafe { &*attr };
    if attr.attr_mask & !MODERATE != 0 {
        return libc::EOPNOTSUPP;
    }
    if attr.attr_mask & MODERATE != 0 {
        let ibv_moderate_cq {
            cq_count,
            cq_period,
        } = attr.moderate;
        // SAFETY: module invariant of `verbs`.
        unsafe { cq::core(plain) }.set_moderation(cq_count, cq_period);
    }
    0
}
