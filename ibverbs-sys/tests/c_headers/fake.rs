//! A device made of recorders: contexts and objects whose every operation only notes that it was called.

use core::ffi::c_void;
use core::mem::{offset_of, size_of};

use ibverbs_sys::*;

use crate::words::*;

/// Everything that an inline may read or write, in one block that can be compared as bytes. All zero is a valid value of it.
#[repr(C)]
pub struct World {
    pub vctx: verbs_context,
    pub pd: ibv_pd,
    pub other_pd: ibv_pd,
    pub cq: ibv_cq,
    pub cq_ex: ibv_cq_ex,
    pub qp: ibv_qp,
    pub qp_ex: ibv_qp_ex,
    pub srq: ibv_srq,
    pub wq: ibv_wq,
    pub mr: ibv_mr,
    pub mw: ibv_mw,
    pub dm: ibv_dm,
    pub td: ibv_td,
    pub xrcd: ibv_xrcd,
    pub flow: ibv_flow,
    pub flow_action: ibv_flow_action,
    pub counters: ibv_counters,
    pub rwq_ind_table: ibv_rwq_ind_table,
    pub cm_id: rdma_cm_id,
    pub mw_bind: ibv_mw_bind,
    pub query_device_ex_input: ibv_query_device_ex_input,
    pub qp_init_attr_ex: ibv_qp_init_attr_ex,
    pub srq_init_attr_ex: ibv_srq_init_attr_ex,
    pub wq_init_attr: ibv_wq_init_attr,
    pub port_attr: ibv_port_attr,
    pub device_attr_ex: ibv_device_attr_ex,
    /// Stands for any structure that is only passed on.
    pub opaque: [u64; 8],
    pub bad: [*mut c_void; 2],
}

/// How the provider looks.
#[derive(Debug, Clone, Copy)]
pub struct Config {
    /// Whether there is a `verbs_context`.
    pub extended: bool,
    /// Its `sz`.
    pub sz: usize,
    /// Whether its optional operations are NULL.
    pub null: bool,
    /// What every operation returns.
    pub result: u64,
}

/// Fields of the structure `$ty` at `$at` become recorders, numbered from `$base` by offset.
macro_rules! record {
    ($at:expr, $ty:ident, $base:expr; $($field:ident: $recorder:ident),* $(,)?) => { $(
        (*$at).$field = Some(record!(@cast $recorder $base, $ty, $field));
    )* };
    (@cast rec1 $($id:tt)*) => { rec1::<{ id!($($id)*) }, _, _> as unsafe extern "C" fn(_) -> _ };
    (@cast rec2 $($id:tt)*) => { rec2::<{ id!($($id)*) }, _, _, _> as unsafe extern "C" fn(_, _) -> _ };
    (@cast rec3 $($id:tt)*) => { rec3::<{ id!($($id)*) }, _, _, _, _> as unsafe extern "C" fn(_, _, _) -> _ };
    (@cast rec4 $($id:tt)*) => { rec4::<{ id!($($id)*) }, _, _, _, _, _> as unsafe extern "C" fn(_, _, _, _) -> _ };
    (@cast rec5 $($id:tt)*) => { rec5::<{ id!($($id)*) }, _, _, _, _, _, _> as unsafe extern "C" fn(_, _, _, _, _) -> _ };
}
macro_rules! id {
    ($base:expr, $ty:ident, $field:ident) => {
        $base + offset_of!($ty, $field)
    };
}

const VERBS_CONTEXT: usize = 0x1000;
const OPS: usize = 0x2000;
const QP_EX: usize = 0x3000;
const CQ_EX: usize = 0x4000;
const OTHERS: usize = 0x5000;
/// Fallbacks are numbered from here.
pub const FALLBACKS: usize = 0x6000;

/// The world of `config`, built anew at `world`.
///
/// # Safety
///
/// `world` must be valid for writes.
pub unsafe fn build(world: *mut World, config: Config) {
    // SAFETY: zero bytes are a valid World, and every field that follows is inside it.
    unsafe {
        world.write_bytes(0, 1);
        let ctx = &raw mut (*world).vctx.context;
        (*ctx).abi_compat = if config.extended {
            inline::VERBS_ABI_IS_EXTENDED
        } else {
            core::ptr::null_mut()
        };
        (*world).vctx.sz = config.sz;
        context_ops(&raw mut (*ctx).ops, config.null);
        // Not checked by verbs.h, so never NULL where there is a verbs_context.
        record!(&raw mut (*world).vctx, verbs_context, VERBS_CONTEXT; close_xrcd: rec1);
        if !config.null {
            verbs_context_ops(&raw mut (*world).vctx);
        }
        qp_ex_ops(&raw mut (*world).qp_ex);
        cq_ex_ops(&raw mut (*world).cq_ex);
        record!(&raw mut (*world).wq, ibv_wq, OTHERS; post_recv: rec3);
        record!(&raw mut (*world).dm, ibv_dm, OTHERS + 0x800; memcpy_to_dm: rec4, memcpy_from_dm: rec4);

        (*world).pd.context = ctx;
        (*world).other_pd.context = ctx;
        (*world).cq.context = ctx;
        (*world).cq_ex.context = ctx;
        (*world).qp.context = ctx;
        (*world).qp_ex.qp_base.context = ctx;
        (*world).srq.context = ctx;
        (*world).wq.context = ctx;
        (*world).mr.context = ctx;
        (*world).mr.pd = &raw mut (*world).pd;
        (*world).mw.context = ctx;
        (*world).mw.pd = &raw mut (*world).pd;
        (*world).mw.type_ = ibv_mw_type::IBV_MW_TYPE_1;
        (*world).dm.context = ctx;
        (*world).td.context = ctx;
        (*world).xrcd.context = ctx;
        (*world).flow.context = ctx;
        (*world).flow_action.context = ctx;
        (*world).counters.context = ctx;
        (*world).rwq_ind_table.context = ctx;
        (*world).wq_init_attr.wq_context = core::ptr::without_provenance_mut(0x77);
        // What was there before must not matter to what is filled in.
        (&raw mut (*world).port_attr).write_bytes(0xaa, 1);
        (&raw mut (*world).device_attr_ex).write_bytes(0xaa, 1);
        (*world).wq.events_completed = 0xaaaa;
    }
}

/// # Safety
///
/// `ops` must be valid for writes.
unsafe fn context_ops(ops: *mut ibv_context_ops, null: bool) {
    // SAFETY: the caller's contract.
    unsafe {
        record!(ops, ibv_context_ops, OPS;
            bind_mw: rec3, dealloc_mw: rec1, poll_cq: rec3, req_notify_cq: rec2, post_srq_recv: rec3, post_send: rec3,
            post_recv: rec3);
        if !null {
            record!(ops, ibv_context_ops, OPS; alloc_mw: rec2);
        }
    }
}

/// # Safety
///
/// `vctx` must be valid for writes.
unsafe fn verbs_context_ops(vctx: *mut verbs_context) {
    // SAFETY: the caller's contract.
    unsafe {
        record!(vctx, verbs_context, VERBS_CONTEXT;
            query_port: rec4, advise_mr: rec5, alloc_null_mr: rec1, read_counters: rec4,
            attach_counters_point_flow: rec3, create_counters: rec2, destroy_counters: rec1, reg_dm_mr: rec5,
            alloc_dm: rec2, free_dm: rec1, modify_flow_action_esp: rec2, destroy_flow_action: rec1,
            create_flow_action_esp: rec2, modify_qp_rate_limit: rec2, alloc_parent_domain: rec2, dealloc_td: rec1,
            alloc_td: rec2, modify_cq: rec2, post_srq_ops: rec3, destroy_rwq_ind_table: rec1,
            create_rwq_ind_table: rec2, destroy_wq: rec1, modify_wq: rec2, create_wq: rec2, query_rt_values: rec2,
            create_cq_ex: rec2, query_device_ex: rec4, ibv_destroy_flow: rec1, ibv_create_flow: rec2, open_qp: rec2,
            create_qp_ex: rec2, get_srq_num: rec2, create_srq_ex: rec2, open_xrcd: rec2);
    }
}

/// # Safety
///
/// `qp` must be valid for writes.
unsafe fn qp_ex_ops(qp: *mut ibv_qp_ex) {
    // SAFETY: the caller's contract.
    unsafe {
        record!(qp, ibv_qp_ex, QP_EX;
            wr_atomic_cmp_swp: rec5, wr_atomic_fetch_add: rec4, wr_bind_mw: rec4, wr_local_inv: rec2,
            wr_rdma_read: rec3, wr_rdma_write: rec3, wr_rdma_write_imm: rec4, wr_send: rec1, wr_send_imm: rec2,
            wr_send_inv: rec2, wr_send_tso: rec4, wr_set_ud_addr: rec4, wr_set_xrc_srqn: rec2,
            wr_set_inline_data: rec3, wr_set_inline_data_list: rec3, wr_set_sge: rec4, wr_set_sge_list: rec3,
            wr_start: rec1, wr_complete: rec1, wr_abort: rec1, wr_atomic_write: rec4);
    }
}

/// # Safety
///
/// `cq` must be valid for writes.
unsafe fn cq_ex_ops(cq: *mut ibv_cq_ex) {
    // SAFETY: the caller's contract.
    unsafe {
        record!(cq, ibv_cq_ex, CQ_EX;
            start_poll: rec2, next_poll: rec1, end_poll: rec1, read_opcode: rec1, read_vendor_err: rec1,
            read_byte_len: rec1, read_imm_data: rec1, read_qp_num: rec1, read_src_qp: rec1, read_wc_flags: rec1,
            read_slid: rec1, read_sl: rec1, read_dlid_path_bits: rec1, read_completion_ts: rec1, read_cvlan: rec1,
            read_flow_tag: rec1, read_tm_info: rec2, read_completion_wallclock_ns: rec1);
    }
}

/// What the shim's stand-ins for exported functions call; the same order as in the shim.
#[repr(C)]
pub struct Fallbacks {
    words: [*const c_void; 9],
}

/// A table whose fallbacks are recorders; any other function ends the process.
pub fn api() -> (Api, Fallbacks) {
    extern "C" fn unexpected() -> ! {
        std::process::abort()
    }
    const WORDS: usize = size_of::<Api>() / size_of::<usize>();
    let filler: extern "C" fn() -> ! = unexpected;
    // SAFETY: every field is a function pointer or an optional one, of one size, and none of the fillers returns.
    let mut api =
        unsafe { core::mem::transmute::<[extern "C" fn() -> !; WORDS], Api>([filler; WORDS]) };
    api.ibv_query_port = rec3::<FALLBACKS, _, _, _, _>;
    api.ibv_query_device = rec2::<{ FALLBACKS + 1 }, _, _, _>;
    api.ibv_create_qp = rec2::<{ FALLBACKS + 2 }, _, _, _>;
    api.ibv_create_srq = rec2::<{ FALLBACKS + 3 }, _, _, _>;
    api.ibv_reg_mr = rec4::<{ FALLBACKS + 4 }, _, _, _, _, _>;
    api.ibv_reg_mr_iova = Some(rec5::<{ FALLBACKS + 5 }, _, _, _, _, _, _>);
    api.ibv_reg_mr_iova2 = Some(rec5::<{ FALLBACKS + 6 }, _, _, _, _, _, _>);
    api._ibv_query_gid_ex = Some(rec6::<{ FALLBACKS + 7 }, _, _, _, _, _, _, _>);
    api._ibv_query_gid_table = Some(rec5::<{ FALLBACKS + 8 }, _, _, _, _, _, _>);
    let words = [
        api.ibv_query_port as *const c_void,
        api.ibv_query_device as *const c_void,
        api.ibv_create_qp as *const c_void,
        api.ibv_create_srq as *const c_void,
        api.ibv_reg_mr as *const c_void,
        api.ibv_reg_mr_iova
            .map_or(core::ptr::null(), |f| f as *const c_void),
        api.ibv_reg_mr_iova2
            .map_or(core::ptr::null(), |f| f as *const c_void),
        api._ibv_query_gid_ex
            .map_or(core::ptr::null(), |f| f as *const c_void),
        api._ibv_query_gid_table
            .map_or(core::ptr::null(), |f| f as *const c_void),
    ];
    (api, Fallbacks { words })
}
