//! The table of functions.

use super::{ah, context, cq, events, mr, names, qp, qp_ex, srq, unsupported};
use ibverbs_sys::Api;

static API: Api = Api {
    ibv_get_device_list: context::get_device_list,
    ibv_free_device_list: context::free_device_list,
    ibv_get_device_name: context::get_device_name,
    ibv_get_device_guid: context::get_device_guid,
    ibv_open_device: context::open_device,
    ibv_close_device: context::close_device,
    ibv_get_async_event: events::get_async_event,
    ibv_ack_async_event: events::ack_async_event,
    ibv_query_device: context::query_device,
    ibv_query_port: context::query_port,
    ibv_query_gid: context::query_gid,
    ibv_query_pkey: context::query_pkey,
    ibv_alloc_pd: context::alloc_pd,
    ibv_dealloc_pd: context::dealloc_pd,
    ibv_reg_mr: mr::reg_mr,
    ibv_dereg_mr: mr::dereg_mr,
    ibv_create_comp_channel: cq::create_comp_channel,
    ibv_destroy_comp_channel: cq::destroy_comp_channel,
    ibv_create_cq: cq::create_cq,
    ibv_resize_cq: cq::resize_cq,
    ibv_destroy_cq: cq::destroy_cq,
    ibv_get_cq_event: cq::get_cq_event,
    ibv_ack_cq_events: cq::ack_cq_events,
    ibv_create_srq: srq::create_srq,
    ibv_modify_srq: srq::modify_srq,
    ibv_query_srq: srq::query_srq,
    ibv_destroy_srq: srq::destroy_srq,
    ibv_create_qp: qp::create_qp,
    ibv_query_qp: qp::query_qp,
    ibv_modify_qp: qp::modify_qp,
    ibv_destroy_qp: qp::destroy_qp,
    ibv_create_ah: ah::create_ah,
    ibv_destroy_ah: ah::destroy_ah,
    ibv_attach_mcast: unsupported::mcast,
    ibv_detach_mcast: unsupported::mcast,
    ibv_init_ah_from_wc: ah::init_ah_from_wc,
    ibv_create_ah_from_wc: ah::create_ah_from_wc,
    ibv_fork_init: unsupported::fork_init,
    ibv_node_type_str: names::node_type,
    ibv_port_state_str: names::port_state,
    ibv_event_type_str: names::event_type,
    ibv_wc_status_str: names::wc_status,
    ibv_reg_mr_iova: Some(mr::reg_mr_iova),
    ibv_reg_mr_iova2: Some(mr::reg_mr_iova2),
    ibv_rereg_mr: Some(unsupported::rereg_mr),
    ibv_reg_dmabuf_mr: Some(mr::reg_dmabuf_mr),
    ibv_get_device_index: Some(context::get_device_index),
    ibv_get_pkey_index: Some(unsupported::get_pkey_index),
    ibv_is_fork_initialized: Some(unsupported::is_fork_initialized),
    ibv_import_device: None,
    ibv_import_mr: None,
    ibv_unimport_mr: None,
    ibv_import_pd: None,
    ibv_unimport_pd: None,
    ibv_query_ece: None,
    ibv_set_ece: None,
    ibv_qp_to_qp_ex: Some(qp_ex::qp_to_qp_ex),
    _ibv_query_gid_ex: Some(context::query_gid_ex),
    _ibv_query_gid_table: Some(context::query_gid_table),
    ibv_query_qp_data_in_order: Some(unsupported::data_in_order),
};

/// The user-space device as the table of functions that libibverbs would be: one device, `soft0`, whose objects are real
/// `ibv_context`, `ibv_qp`, ... so that the inlines of verbs.h work on them.
///
/// ```
/// let api = softverbs::api();
/// let mut count = 0;
/// // SAFETY: the list is freed with the same table, and not used afterwards.
/// unsafe {
///     let list = (api.ibv_get_device_list)(&mut count);
///     assert_eq!(core::ffi::CStr::from_ptr((api.ibv_get_device_name)(*list)), c"soft0");
///     (api.ibv_free_device_list)(list);
/// }
/// assert_eq!(count, 1);
/// ```
pub fn api() -> &'static Api {
    &API
}
