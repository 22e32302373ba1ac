//! Extended completion queues: `ibv_start_poll`, `ibv_wc_read_*` and what goes with them.
//!
//! Between a successful `ibv_start_poll` and `ibv_end_poll` the queue shows one completion: `status` and `wr_id` are fields
//! of `ibv_cq_ex`, the rest is read by function. A reader exists only for what the queue was created with
//! (`ibv_cq_init_attr_ex::wc_flags`); the others may be NULL.

use core::ffi::{c_int, c_uint};

use super::{direct, extended};
use crate::bindings::*;

/// The same queue as a plain one: `ibv_cq_ex` begins as `ibv_cq` does.
#[inline]
pub const fn ibv_cq_ex_to_cq(cq: *mut ibv_cq_ex) -> *mut ibv_cq {
    cq.cast()
}

extended! {
    /// Creates an extended completion queue. NULL and errno on failure.
    fn ibv_create_cq_ex(context: *mut ibv_context, cq_attr: *mut ibv_cq_init_attr_ex) -> *mut ibv_cq_ex
        => context, create_cq_ex;

    /// Changes the moderation of a completion queue. Returns an errno.
    fn ibv_modify_cq(cq: *mut ibv_cq, attr: *mut ibv_modify_cq_attr) -> c_int
        => (*cq).context, modify_cq;
}

direct! {
    /// Begins a batch at the oldest completion. 0; ENOENT when the queue is empty, another errno on failure, and in both
    /// cases `ibv_end_poll` must *not* be called.
    fn ibv_start_poll(cq: *mut ibv_cq_ex, attr: *mut ibv_poll_cq_attr) -> c_int => (*cq).start_poll;
    /// Steps to the next completion. 0; ENOENT when there is none, another errno on failure; `ibv_end_poll` must be called
    /// in any case.
    fn ibv_next_poll(cq: *mut ibv_cq_ex) -> c_int => (*cq).next_poll;
    /// Ends the batch.
    fn ibv_end_poll(cq: *mut ibv_cq_ex) -> () => (*cq).end_poll;
    /// Operation of the current completion.
    fn ibv_wc_read_opcode(cq: *mut ibv_cq_ex) -> ibv_wc_opcode => (*cq).read_opcode;
    /// Vendor's error code of a failed one.
    fn ibv_wc_read_vendor_err(cq: *mut ibv_cq_ex) -> u32 => (*cq).read_vendor_err;
    /// Bytes transferred (`IBV_WC_EX_WITH_BYTE_LEN`).
    fn ibv_wc_read_byte_len(cq: *mut ibv_cq_ex) -> u32 => (*cq).read_byte_len;
    /// Immediate data in network byte order (`IBV_WC_EX_WITH_IMM`).
    fn ibv_wc_read_imm_data(cq: *mut ibv_cq_ex) -> __be32 => (*cq).read_imm_data;
    /// The key that the peer invalidated (`IBV_WC_EX_WITH_IMM`), in host byte order.
    fn ibv_wc_read_invalidated_rkey(cq: *mut ibv_cq_ex) -> u32 => (*cq).read_imm_data;
    /// Local queue pair number (`IBV_WC_EX_WITH_QP_NUM`).
    fn ibv_wc_read_qp_num(cq: *mut ibv_cq_ex) -> u32 => (*cq).read_qp_num;
    /// Sender's queue pair number (`IBV_WC_EX_WITH_SRC_QP`).
    fn ibv_wc_read_src_qp(cq: *mut ibv_cq_ex) -> u32 => (*cq).read_src_qp;
    /// Bits of `ibv_wc_flags`.
    fn ibv_wc_read_wc_flags(cq: *mut ibv_cq_ex) -> c_uint => (*cq).read_wc_flags;
    /// Sender's LID (`IBV_WC_EX_WITH_SLID`).
    fn ibv_wc_read_slid(cq: *mut ibv_cq_ex) -> u32 => (*cq).read_slid;
    /// Service level (`IBV_WC_EX_WITH_SL`).
    fn ibv_wc_read_sl(cq: *mut ibv_cq_ex) -> u8 => (*cq).read_sl;
    /// Path bits of the destination LID (`IBV_WC_EX_WITH_DLID_PATH_BITS`).
    fn ibv_wc_read_dlid_path_bits(cq: *mut ibv_cq_ex) -> u8 => (*cq).read_dlid_path_bits;
    /// Device clock at completion (`IBV_WC_EX_WITH_COMPLETION_TIMESTAMP`).
    fn ibv_wc_read_completion_ts(cq: *mut ibv_cq_ex) -> u64 => (*cq).read_completion_ts;
    /// Wall clock at completion in ns (`IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK`).
    fn ibv_wc_read_completion_wallclock_ns(cq: *mut ibv_cq_ex) -> u64
        => (*cq).read_completion_wallclock_ns;
    /// VLAN tag (`IBV_WC_EX_WITH_CVLAN`).
    fn ibv_wc_read_cvlan(cq: *mut ibv_cq_ex) -> u16 => (*cq).read_cvlan;
    /// Tag of the flow rule (`IBV_WC_EX_WITH_FLOW_TAG`).
    fn ibv_wc_read_flow_tag(cq: *mut ibv_cq_ex) -> u32 => (*cq).read_flow_tag;
    /// Tag matching header (`IBV_WC_EX_WITH_TM_INFO`).
    fn ibv_wc_read_tm_info(cq: *mut ibv_cq_ex, tm_info: *mut ibv_wc_tm_info) -> ()
        => (*cq).read_tm_info;
}
