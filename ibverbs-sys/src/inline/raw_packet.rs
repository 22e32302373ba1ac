//! What raw packet queue pairs use: flow rules, counters, work queues and indirection tables.

use core::ffi::c_int;

use super::{Unsupported, context_op, direct, extended};
use crate::bindings::*;

extended! {
    /// Adds a flow rule that steers packets to the queue pair. NULL and errno on failure.
    fn ibv_create_flow(qp: *mut ibv_qp, flow: *mut ibv_flow_attr) -> *mut ibv_flow
        => (*qp).context, ibv_create_flow;
    /// Removes it. Returns an errno.
    fn ibv_destroy_flow(flow_id: *mut ibv_flow) -> c_int
        => (*flow_id).context, ibv_destroy_flow;
    /// Creates an IPsec ESP action for flow rules. NULL and errno on failure.
    fn ibv_create_flow_action_esp(ctx: *mut ibv_context, esp: *mut ibv_flow_action_esp_attr) -> *mut ibv_flow_action
        => ctx, create_flow_action_esp;
    /// Changes it. Returns an errno.
    fn ibv_modify_flow_action_esp(action: *mut ibv_flow_action, esp: *mut ibv_flow_action_esp_attr) -> c_int
        => (*action).context, modify_flow_action_esp;
    /// Destroys it. Returns an errno.
    fn ibv_destroy_flow_action(action: *mut ibv_flow_action) -> c_int
        => (*action).context, destroy_flow_action;

    /// Creates a set of counters. NULL and errno on failure.
    fn ibv_create_counters(context: *mut ibv_context, init_attr: *mut ibv_counters_init_attr) -> *mut ibv_counters
        => context, create_counters;
    /// Destroys it. Returns an errno.
    fn ibv_destroy_counters(counters: *mut ibv_counters) -> c_int
        => (*counters).context, destroy_counters;
    /// Counts what a flow rule matches. Returns an errno.
    fn ibv_attach_counters_point_flow(
        counters: *mut ibv_counters,
        attr: *mut ibv_counter_attach_attr,
        flow: *mut ibv_flow,
    ) -> c_int => (*counters).context, attach_counters_point_flow;
    /// Reads counters. Returns an errno.
    fn ibv_read_counters(
        counters: *mut ibv_counters,
        counters_value: *mut u64,
        ncounters: u32,
        flags: u32,
    ) -> c_int => (*counters).context, read_counters;

    /// Changes a work queue. Returns an errno.
    fn ibv_modify_wq(wq: *mut ibv_wq, wq_attr: *mut ibv_wq_attr) -> c_int
        => (*wq).context, modify_wq;
    /// Destroys it. Returns an errno.
    fn ibv_destroy_wq(wq: *mut ibv_wq) -> c_int => (*wq).context, destroy_wq;
    /// Creates an indirection table over work queues. NULL and errno on failure.
    fn ibv_create_rwq_ind_table(
        context: *mut ibv_context,
        init_attr: *mut ibv_rwq_ind_table_init_attr,
    ) -> *mut ibv_rwq_ind_table => context, create_rwq_ind_table;
    /// Destroys it. Returns an errno.
    fn ibv_destroy_rwq_ind_table(rwq_ind_table: *mut ibv_rwq_ind_table) -> c_int
        => (*rwq_ind_table).context, destroy_rwq_ind_table;
}

direct! {
    /// Posts receive work requests to a work queue. Returns an errno; then `*bad_recv_wr` is the first that was not posted.
    fn ibv_post_wq_recv(
        wq: *mut ibv_wq,
        recv_wr: *mut ibv_recv_wr,
        bad_recv_wr: *mut *mut ibv_recv_wr,
    ) -> c_int => (*wq).post_recv;
}

/// Creates a work queue; the granted sizes are written back. NULL and errno on failure.
///
/// # Safety
///
/// See the [module](crate::inline).
pub unsafe fn ibv_create_wq(
    context: *mut ibv_context,
    wq_init_attr: *mut ibv_wq_init_attr,
) -> *mut ibv_wq {
    // SAFETY: arguments and context are as the caller's contract says; the new queue is not yet known to anyone else.
    unsafe {
        let Some(create) = context_op!(context, create_wq) else {
            return Unsupported::unsupported();
        };
        let wq = create(context, wq_init_attr);
        if !wq.is_null() {
            (*wq).wq_context = (*wq_init_attr).wq_context;
            (*wq).events_completed = 0;
            libc::pthread_mutex_init(&raw mut (*wq).mutex, core::ptr::null());
            libc::pthread_cond_init(&raw mut (*wq).cond, core::ptr::null());
        }
        wq
    }
}

/// UDP source port for a flow label (RoCE v2), in 0xc000..=0xffff.
#[inline]
pub const fn ibv_flow_label_to_udp_sport(fl: u32) -> u16 {
    let low = (fl & 0x3fff) ^ ((fl & 0xf_c000) >> 14);
    (low | 0xc000) as u16
}
