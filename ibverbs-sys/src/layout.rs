//! Layouts that the data path relies on, checked when this crate compiles.
//!
//! bindgen's own assertions, in the generated files, come from the same parse as the types. These numbers were written down
//! from the C headers, so that types and assertions cannot go wrong together. A third check, against a C compiler, is a test.

use core::mem::{align_of, offset_of, size_of};

use crate::bindings::*;

/// `layout!(Type: size, { field: offset, ... })`; 8 is the alignment unless given.
macro_rules! layout {
    ($type:ty: $size:expr, align $align:literal, { $($field:ident: $offset:expr),* $(,)? }) => {
        const _: () = {
            assert!(size_of::<$type>() == $size, concat!("size of ", stringify!($type)));
            assert!(align_of::<$type>() == $align, concat!("alignment of ", stringify!($type)));
            $( assert!(
                offset_of!($type, $field) == $offset,
                concat!("offset of ", stringify!($type), "::", stringify!($field))
            ); )*
        };
    };
    ($type:ty: $size:expr, { $($fields:tt)* }) => { layout!($type: $size, align 8, { $($fields)* }); };
}

/// `pthread_mutex_t` is 40 bytes on x86_64 and 48 on aarch64; all that follows one is shifted.
const MUTEX: usize = if cfg!(target_arch = "aarch64") {
    48
} else {
    40
};
/// A mutex, a condition variable and a counter, padded: the tail of CQs, SRQs and QPs.
const MUTEX_AND_COND: usize = MUTEX + 48;

layout!(ibv_sge: 16, { addr: 0, length: 8, lkey: 12 });
layout!(ibv_wc: 48, {
    wr_id: 0, status: 8, opcode: 12, vendor_err: 16, byte_len: 20, qp_num: 28, src_qp: 32, wc_flags: 36, pkey_index: 40,
    slid: 42, sl: 44, dlid_path_bits: 45,
});
layout!(ibv_recv_wr: 32, { wr_id: 0, next: 8, sg_list: 16, num_sge: 24 });
layout!(ibv_send_wr: 128, {
    wr_id: 0, next: 8, sg_list: 16, num_sge: 24, opcode: 28, send_flags: 32, wr: 40, qp_type: 72,
});
layout!(ibv_gid: 16, { raw: 0, global: 0 });
layout!(ibv_global_route: 24, { dgid: 0, flow_label: 16, sgid_index: 20, hop_limit: 21, traffic_class: 22 });
layout!(ibv_ah_attr: 32, { grh: 0, dlid: 24, sl: 26, src_path_bits: 27, static_rate: 28, is_global: 29, port_num: 30 });
layout!(ibv_qp_cap: 20, align 4, {
    max_send_wr: 0, max_recv_wr: 4, max_send_sge: 8, max_recv_sge: 12, max_inline_data: 16,
});
layout!(ibv_qp_attr: 144, {
    qp_state: 0, cur_qp_state: 4, path_mtu: 8, path_mig_state: 12, qkey: 16, rq_psn: 20, sq_psn: 24, dest_qp_num: 28,
    qp_access_flags: 32, cap: 36, ah_attr: 56, alt_ah_attr: 88, pkey_index: 120, alt_pkey_index: 122,
    en_sqd_async_notify: 124, sq_draining: 125, max_rd_atomic: 126, max_dest_rd_atomic: 127, min_rnr_timer: 128,
    port_num: 129, timeout: 130, retry_cnt: 131, rnr_retry: 132, alt_port_num: 133, alt_timeout: 134, rate_limit: 136,
});
// Newer headers add to this one, and the device is told how much is known.
#[cfg(not(feature = "bindgen"))]
layout!(ibv_port_attr: 52, align 4, {
    state: 0, max_mtu: 4, active_mtu: 8, gid_tbl_len: 12, port_cap_flags: 16, max_msg_sz: 20, bad_pkey_cntr: 24,
    qkey_viol_cntr: 28, pkey_tbl_len: 32, lid: 34, sm_lid: 36, lmc: 38, max_vl_num: 39, sm_sl: 40, subnet_timeout: 41,
    init_type_reply: 42, active_width: 43, active_speed: 44, phys_state: 45, link_layer: 46, flags: 47,
    port_cap_flags2: 48,
});
layout!(ibv_qp_init_attr: 64, {
    qp_context: 0, send_cq: 8, recv_cq: 16, srq: 24, cap: 32, qp_type: 52, sq_sig_all: 56,
});
layout!(ibv_mr: 48, { context: 0, pd: 8, addr: 16, length: 24, handle: 32, lkey: 36, rkey: 40 });
layout!(ibv_pd: 16, { context: 0, handle: 8 });
layout!(ibv_comp_channel: 16, { context: 0, fd: 8, refcnt: 12 });
layout!(ibv_context_ops: 256, { alloc_mw: 56, poll_cq: 88, req_notify_cq: 96, post_srq_recv: 160, post_send: 200, post_recv: 208 });
layout!(ibv_context: 280 + MUTEX + 8, {
    device: 0, ops: 8, cmd_fd: 264, async_fd: 268, num_comp_vectors: 272, mutex: 280, abi_compat: 280 + MUTEX,
});
layout!(ibv_cq: 32 + MUTEX_AND_COND + 8, {
    context: 0, channel: 8, cq_context: 16, handle: 24, cqe: 28, mutex: 32, cond: 32 + MUTEX,
    comp_events_completed: 32 + MUTEX_AND_COND, async_events_completed: 36 + MUTEX_AND_COND,
});
layout!(ibv_cq_ex: 56 + MUTEX_AND_COND + 18 * 8, {
    context: 0, comp_mask: 40 + MUTEX_AND_COND, status: 44 + MUTEX_AND_COND, wr_id: 48 + MUTEX_AND_COND,
    start_poll: 56 + MUTEX_AND_COND, read_completion_wallclock_ns: 56 + MUTEX_AND_COND + 17 * 8,
});
layout!(ibv_qp: 64 + MUTEX_AND_COND + 8, {
    context: 0, qp_context: 8, pd: 16, send_cq: 24, recv_cq: 32, srq: 40, handle: 48, qp_num: 52, state: 56, qp_type: 60,
    mutex: 64, cond: 64 + MUTEX, events_completed: 64 + MUTEX_AND_COND,
});
layout!(ibv_srq: 32 + MUTEX_AND_COND + 8, {
    context: 0, srq_context: 8, pd: 16, handle: 24, mutex: 32, events_completed: 32 + MUTEX_AND_COND,
});

/// `verbs_context` grows at its front: what is fixed is the distance of a field from the end.
const fn from_end(offset: usize) -> usize {
    size_of::<verbs_context>() - size_of::<ibv_context>() - offset
}

const _: () = {
    assert!(from_end(offset_of!(verbs_context, context)) == 0);
    assert!(from_end(offset_of!(verbs_context, sz)) == 8);
    assert!(from_end(offset_of!(verbs_context, close_xrcd)) == 24);
    assert!(from_end(offset_of!(verbs_context, create_srq_ex)) == 40);
    assert!(from_end(offset_of!(verbs_context, create_qp_ex)) == 56);
    assert!(from_end(offset_of!(verbs_context, query_device_ex)) == 104);
    assert!(from_end(offset_of!(verbs_context, create_cq_ex)) == 120);
    assert!(from_end(offset_of!(verbs_context, alloc_td)) == 192);
    assert!(from_end(offset_of!(verbs_context, query_port)) == 320);
};
