//! Each inline, in C and in Rust, against the same fake device: same calls with the same arguments, same result, same errno,
//! same memory afterwards.

// Arguments of the macros below are expanded inside their unsafe blocks.
#![allow(unused_unsafe)]

use core::ffi::{c_int, c_uint, c_void};
use core::mem::{offset_of, size_of};
use std::collections::BTreeSet;
use std::sync::OnceLock;

use ibverbs_sys::*;

use crate::compile::{self, Object};
use crate::fake::{self, Config, World};
use crate::words::*;

/// The Rust side, with the table filled in where C needs none.
mod rust {
    use super::*;
    pub use ibverbs_sys::inline::*;

    pub static API: OnceLock<Api> = OnceLock::new();

    fn api() -> &'static Api {
        API.get().expect("set at the start")
    }

    macro_rules! with_table {
        ($($name:ident($($arg:ident: $ty:ty),*) -> $ret:ty;)*) => { $(
            pub unsafe fn $name($($arg: $ty),*) -> $ret {
                // SAFETY: as the caller's.
                unsafe { ibverbs_sys::inline::$name(api(), $($arg),*) }
            }
        )* };
    }
    with_table! {
        ibv_query_port(a: *mut ibv_context, b: u8, c: *mut ibv_port_attr) -> c_int;
        ibv_query_device_ex(a: *mut ibv_context, b: *const ibv_query_device_ex_input, c: *mut ibv_device_attr_ex) -> c_int;
        ibv_query_gid_ex(a: *mut ibv_context, b: u32, c: u32, d: *mut ibv_gid_entry, e: u32) -> c_int;
        ibv_query_gid_table(a: *mut ibv_context, b: *mut ibv_gid_entry, c: usize, d: u32) -> isize;
        ibv_create_qp_ex(a: *mut ibv_context, b: *mut ibv_qp_init_attr_ex) -> *mut ibv_qp;
        ibv_create_srq_ex(a: *mut ibv_context, b: *mut ibv_srq_init_attr_ex) -> *mut ibv_srq;
        ibv_reg_mr(a: *mut ibv_pd, b: *mut c_void, c: usize, d: c_uint) -> *mut ibv_mr;
        ibv_reg_mr_iova(a: *mut ibv_pd, b: *mut c_void, c: usize, d: u64, e: c_uint) -> *mut ibv_mr;
    }

    pub fn ibv_is_qpt_supported(caps: u32, qpt: ibv_qp_type) -> c_int {
        c_int::from(ibverbs_sys::inline::ibv_is_qpt_supported(caps, qpt))
    }
}

/// What a call did.
#[derive(Debug, PartialEq)]
struct Outcome {
    result: u64,
    errno: c_int,
    calls: Vec<Call>,
    memory: Vec<u8>,
}

/// One fake device under comparison.
struct Bench {
    object: Object,
    world: *mut World,
    config: Config,
}

impl Bench {
    fn memory(&self) -> Vec<u8> {
        // SAFETY: the world was zeroed as a whole before its fields were set.
        unsafe { core::slice::from_raw_parts(self.world.cast::<u8>(), size_of::<World>()) }.to_vec()
    }

    fn observe(&self, call: impl FnOnce() -> u64) -> Outcome {
        script(self.config.result);
        take_calls();
        // SAFETY: this thread's own errno.
        unsafe { *libc::__errno_location() = 0 };
        let result = call();
        // SAFETY: as above.
        let errno = unsafe { *libc::__errno_location() };
        Outcome {
            result,
            errno,
            calls: take_calls(),
            memory: self.memory(),
        }
    }

    /// Fails when both sides differ; else the calls that reached the device.
    fn compare(
        &self,
        name: &str,
        in_rust: impl FnOnce() -> u64,
        in_c: impl FnOnce() -> u64,
    ) -> Vec<Call> {
        let before = self.memory();
        let restore = || {
            // SAFETY: the same bytes as before.
            unsafe {
                self.world
                    .cast::<u8>()
                    .copy_from(before.as_ptr(), before.len())
            }
        };
        let ours = self.observe(in_rust);
        restore();
        let theirs = self.observe(in_c);
        restore();
        let say = |o: &Outcome| {
            format!(
                "result {:#x} errno {} calls {:x?}",
                o.result, o.errno, o.calls
            )
        };
        assert!(
            ours == theirs,
            "{name} with {:?}\n  Rust: {}\n  C:    {}\n  memory {}",
            self.config,
            say(&ours),
            say(&theirs),
            if ours.memory == theirs.memory {
                "equal"
            } else {
                "differs"
            }
        );
        ours.calls
    }
}

macro_rules! any {
    ($arg:expr) => {
        _
    };
}

/// Calls an inline on both sides. The value is the list of calls that reached the device.
macro_rules! both {
    ($bench:expr, $name:ident($($arg:expr),* $(,)?)) => {{
        let bench: &Bench = $bench;
        let rust: unsafe fn($(any!($arg)),*) -> _ = rust::$name;
        // SAFETY: the shim has a function of this signature.
        let c = unsafe { rust.bind(bench.object.symbol(concat!("c_", stringify!($name)))) };
        bench.compare(
            stringify!($name),
            // SAFETY: all arguments point into the world, or are only passed on.
            || unsafe { rust($($arg),*) }.word(),
            // SAFETY: as above.
            || unsafe { c($($arg),*) }.word(),
        )
    }};
}

/// Inlines that must call exactly one operation, whatever the configuration.
macro_rules! direct {
    ($bench:expr; $($name:ident($($arg:expr),*);)*) => { $(
        let calls = both!($bench, $name($($arg),*));
        assert_eq!(calls.len(), 1, "{} did not reach the device", stringify!($name));
    )* };
}

/// Inlines that must call an operation when all is there, and none when there is no verbs_context.
macro_rules! extended {
    ($bench:expr; $($name:ident($($arg:expr),*);)*) => { $(
        let calls = both!($bench, $name($($arg),*));
        let config = $bench.config;
        if config.extended && !config.null && config.sz >= size_of::<verbs_context>() {
            assert_eq!(calls.len(), 1, "{} did not reach the device", stringify!($name));
        }
        if !config.extended || config.null || config.sz == 0 {
            assert!(calls.is_empty(), "{} reached an operation that is not there", stringify!($name));
        }
    )* };
}

/// Every size at which one more operation comes into view, and one byte less.
fn sizes() -> BTreeSet<usize> {
    let whole = size_of::<verbs_context>();
    let ops = (0..offset_of!(verbs_context, context)).step_by(size_of::<usize>());
    ops.flat_map(|offset| [whole - offset, whole - offset - 1])
        .chain([0, whole + 64])
        .collect()
}

/// Runs `test` for every configuration, or not at all where there are no headers.
fn on_every_device(name: &str, test: impl Fn(&Bench)) {
    let shim = compile::crate_dir().join("tests/c_headers/shim.c");
    let source = std::fs::read_to_string(shim).expect("the shim is part of the crate");
    let Some(object) = compile::object(name, &source) else {
        return;
    };
    let (api, fallbacks) = fake::api();
    // The recorders are the same in every test, so it does not matter whose table is kept.
    rust::API.get_or_init(|| api);
    // SAFETY: the shim's function of this signature.
    unsafe {
        let set: unsafe extern "C" fn(*const fake::Fallbacks) =
            core::mem::transmute(object.symbol("c_set_fallbacks"));
        set(&raw const fallbacks);
    }
    // SAFETY: zero bytes are a valid World.
    let world: Box<World> = unsafe { Box::new_zeroed().assume_init() };
    let mut bench = Bench {
        object,
        world: Box::into_raw(world),
        config: Config {
            extended: true,
            sz: 0,
            null: false,
            result: 0,
        },
    };
    let results = [
        0,
        1,
        libc::EINVAL as u64,
        libc::EOPNOTSUPP as u64,
        libc::ENOSYS as u64,
        u64::MAX,
    ];
    for extended in [true, false] {
        for null in [false, true] {
            for sz in sizes() {
                for result in results {
                    bench.config = Config {
                        extended,
                        sz,
                        null,
                        result,
                    };
                    // SAFETY: the bench owns the world.
                    unsafe { fake::build(bench.world, bench.config) };
                    test(&bench);
                }
            }
        }
    }
    // SAFETY: from Box::into_raw above.
    drop(unsafe { Box::from_raw(bench.world) });
}

/// A pointer to a member of the world.
macro_rules! at {
    ($bench:expr, $($field:tt)+) => {
        // SAFETY: inside the world.
        unsafe { &raw mut (*$bench.world).$($field)+ }
    };
}

/// A pointer to memory that is only passed on.
fn opaque<T>(bench: &Bench) -> *mut T {
    at!(bench, opaque).cast()
}

#[test]
fn data_path() {
    on_every_device("data_path", |b| {
        let bad = at!(b, bad);
        direct! { b;
            ibv_poll_cq(at!(b, cq), 7, opaque(b));
            ibv_req_notify_cq(at!(b, cq), 1);
            ibv_post_send(at!(b, qp), opaque(b), bad.cast());
            ibv_post_recv(at!(b, qp), opaque(b), bad.cast());
            ibv_post_srq_recv(at!(b, srq), opaque(b), bad.cast());
            ibv_post_wq_recv(at!(b, wq), opaque(b), bad.cast());
            ibv_dealloc_mw(at!(b, mw));
            ibv_memcpy_to_dm(at!(b, dm), 3, opaque(b), 5);
            ibv_memcpy_from_dm(opaque(b), at!(b, dm), 3, 5);
        }
    });
}

#[test]
fn extended_completion_queues() {
    on_every_device("extended_completion_queues", |b| {
        let cq = at!(b, cq_ex);
        direct! { b;
            ibv_start_poll(cq, opaque(b));
            ibv_next_poll(cq);
            ibv_end_poll(cq);
            ibv_wc_read_opcode(cq);
            ibv_wc_read_vendor_err(cq);
            ibv_wc_read_byte_len(cq);
            ibv_wc_read_imm_data(cq);
            ibv_wc_read_invalidated_rkey(cq);
            ibv_wc_read_qp_num(cq);
            ibv_wc_read_src_qp(cq);
            ibv_wc_read_wc_flags(cq);
            ibv_wc_read_slid(cq);
            ibv_wc_read_sl(cq);
            ibv_wc_read_dlid_path_bits(cq);
            ibv_wc_read_completion_ts(cq);
            ibv_wc_read_completion_wallclock_ns(cq);
            ibv_wc_read_cvlan(cq);
            ibv_wc_read_flow_tag(cq);
            ibv_wc_read_tm_info(cq, opaque(b));
        }
        both!(b, ibv_cq_ex_to_cq(cq));
        extended! { b;
            ibv_create_cq_ex(at!(b, vctx.context), opaque(b));
            ibv_modify_cq(at!(b, cq), opaque(b));
        }
    });
}

#[test]
fn work_request_builders() {
    on_every_device("work_request_builders", |b| {
        let qp = at!(b, qp_ex);
        direct! { b;
            ibv_wr_start(qp);
            ibv_wr_complete(qp);
            ibv_wr_abort(qp);
            ibv_wr_send(qp);
            ibv_wr_send_imm(qp, 0x1122_3344);
            ibv_wr_send_inv(qp, 0x5566_7788);
            ibv_wr_send_tso(qp, opaque(b), 54, 1460);
            ibv_wr_rdma_write(qp, 11, 1 << 40);
            ibv_wr_rdma_write_imm(qp, 11, 1 << 40, 0x1122_3344);
            ibv_wr_rdma_read(qp, 11, 1 << 40);
            ibv_wr_atomic_write(qp, 11, 1 << 40, opaque(b));
            ibv_wr_atomic_cmp_swp(qp, 11, 1 << 40, 12, 13);
            ibv_wr_atomic_fetch_add(qp, 11, 1 << 40, 12);
            ibv_wr_bind_mw(qp, at!(b, mw), 11, opaque(b));
            ibv_wr_local_inv(qp, 11);
            ibv_wr_set_ud_addr(qp, opaque(b), 11, 12);
            ibv_wr_set_xrc_srqn(qp, 11);
            ibv_wr_set_inline_data(qp, opaque(b), 12);
            ibv_wr_set_inline_data_list(qp, 2, opaque(b));
            ibv_wr_set_sge(qp, 11, 1 << 40, 12);
            ibv_wr_set_sge_list(qp, 2, opaque(b));
        }
    });
}

#[test]
fn operations_of_verbs_context() {
    on_every_device("operations_of_verbs_context", |b| {
        let ctx = at!(b, vctx.context);
        both!(b, verbs_get_ctx(ctx));
        extended! { b;
            ibv_query_rt_values_ex(ctx, opaque(b));
            ibv_open_qp(ctx, opaque(b));
            ibv_modify_qp_rate_limit(at!(b, qp), opaque(b));
            ibv_open_xrcd(ctx, opaque(b));
            ibv_get_srq_num(at!(b, srq), opaque(b));
            ibv_alloc_td(ctx, opaque(b));
            ibv_dealloc_td(at!(b, td));
            ibv_alloc_parent_domain(ctx, opaque(b));
            ibv_post_srq_ops(at!(b, srq), opaque(b), at!(b, bad).cast());
            ibv_advise_mr(at!(b, pd), IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE, 1, opaque(b), 2);
            ibv_alloc_dm(ctx, opaque(b));
            ibv_free_dm(at!(b, dm));
            ibv_alloc_null_mr(at!(b, pd));
            ibv_reg_dm_mr(at!(b, pd), at!(b, dm), 4, 5, 6);
            ibv_create_flow(at!(b, qp), opaque(b));
            ibv_destroy_flow(at!(b, flow));
            ibv_create_flow_action_esp(ctx, opaque(b));
            ibv_modify_flow_action_esp(at!(b, flow_action), opaque(b));
            ibv_destroy_flow_action(at!(b, flow_action));
            ibv_create_counters(ctx, opaque(b));
            ibv_destroy_counters(at!(b, counters));
            ibv_attach_counters_point_flow(at!(b, counters), opaque(b), at!(b, flow));
            ibv_read_counters(at!(b, counters), opaque(b), 3, 4);
            ibv_modify_wq(at!(b, wq), opaque(b));
            ibv_destroy_wq(at!(b, wq));
            ibv_create_rwq_ind_table(ctx, opaque(b));
            ibv_destroy_rwq_ind_table(at!(b, rwq_ind_table));
        }
        if b.config.extended {
            direct! { b; ibv_close_xrcd(at!(b, xrcd)); }
        }
        // The result is written to, so it is a work queue or NULL.
        for result in [at!(b, wq).word(), 0] {
            let b = &Bench {
                object: b.object.clone(),
                world: b.world,
                config: Config { result, ..b.config },
            };
            extended! { b; ibv_create_wq(ctx, at!(b, wq_init_attr)); }
        }
    });
}

#[test]
fn queries_with_a_fallback() {
    on_every_device("queries_with_a_fallback", |b| {
        let ctx = at!(b, vctx.context);
        let calls = both!(b, ibv_query_port(ctx, 1, at!(b, port_attr)));
        assert_eq!(calls.len(), 1);
        for comp_mask in [0, 1] {
            // SAFETY: inside the world.
            unsafe { (*b.world).query_device_ex_input.comp_mask = comp_mask };
            let input = at!(b, query_device_ex_input).cast_const();
            let calls = both!(b, ibv_query_device_ex(ctx, input, at!(b, device_attr_ex)));
            assert_eq!(calls.is_empty(), comp_mask != 0);
        }
        let calls = both!(
            b,
            ibv_query_device_ex(ctx, core::ptr::null(), at!(b, device_attr_ex))
        );
        assert!(!calls.is_empty());
        both!(b, ibv_query_gid_ex(ctx, 1, 2, opaque(b), 3));
        both!(b, ibv_query_gid_table(ctx, opaque(b), 5, 0));
    });
}

#[test]
fn creation_with_a_fallback() {
    on_every_device("creation_with_a_fallback", |b| {
        let ctx = at!(b, vctx.context);
        // SAFETY: inside the world.
        unsafe {
            (*b.world).qp_init_attr_ex.pd = at!(b, pd);
            (*b.world).srq_init_attr_ex.pd = at!(b, pd);
        }
        let mut fell_back = 0;
        for comp_mask in [0, 1, 2, 3, 1 << 5] {
            // SAFETY: inside the world.
            unsafe { (*b.world).qp_init_attr_ex.comp_mask = comp_mask };
            let calls = both!(b, ibv_create_qp_ex(ctx, at!(b, qp_init_attr_ex)));
            fell_back += calls
                .iter()
                .filter(|(id, _)| *id >= fake::FALLBACKS)
                .count();
        }
        assert_eq!(fell_back, 1);
        fell_back = 0;
        for comp_mask in 0..16 {
            for srq_type in [ibv_srq_type::IBV_SRQT_BASIC, ibv_srq_type::IBV_SRQT_XRC] {
                // SAFETY: inside the world.
                unsafe {
                    (*b.world).srq_init_attr_ex.comp_mask = comp_mask;
                    (*b.world).srq_init_attr_ex.srq_type = srq_type;
                }
                let calls = both!(b, ibv_create_srq_ex(ctx, at!(b, srq_init_attr_ex)));
                fell_back += calls
                    .iter()
                    .filter(|(id, _)| *id >= fake::FALLBACKS)
                    .count();
            }
        }
        assert_eq!(fell_back, 3);
    });
}

#[test]
fn memory_regions_and_windows() {
    on_every_device("memory_regions_and_windows", |b| {
        // Bit 30 lies beyond the optional range; the Rust side drops nothing of it.
        for access in [0, 7, 1 << 20, 1 << 29 | 1, 1 << 30] {
            both!(b, ibv_reg_mr(at!(b, pd), opaque(b), 4096, access));
            both!(
                b,
                ibv_reg_mr_iova(at!(b, pd), opaque(b), 4096, 1 << 40, access)
            );
        }
        for mw_type in [ibv_mw_type::IBV_MW_TYPE_1, ibv_mw_type::IBV_MW_TYPE_2] {
            let calls = both!(b, ibv_alloc_mw(at!(b, pd), mw_type));
            assert_eq!(calls.is_empty(), b.config.null);
            for mr in [at!(b, mr), core::ptr::null_mut()] {
                for mw_pd in [at!(b, pd), at!(b, other_pd)] {
                    for (addr, length) in [(0, 0), (1, 0), (0, 1)] {
                        // SAFETY: inside the world.
                        unsafe {
                            (*b.world).mw.type_ = mw_type;
                            (*b.world).mw.pd = mw_pd;
                            (*b.world).mw_bind.bind_info = ibv_mw_bind_info {
                                mr,
                                addr,
                                length,
                                mw_access_flags: 0,
                            };
                        }
                        both!(b, ibv_bind_mw(at!(b, qp), at!(b, mw), at!(b, mw_bind)));
                    }
                }
            }
        }
    });
}

#[test]
fn arithmetic_and_addresses() {
    on_every_device("arithmetic_and_addresses", |b| {
        for value in [
            0,
            1,
            0xff,
            0x100,
            0x12_34ff,
            0x3fff,
            0x4000,
            0xf_c000,
            0xf_ffff,
            u32::MAX,
        ] {
            both!(b, ibv_inc_rkey(value));
            both!(b, ibv_flow_label_to_udp_sport(value));
            for qp_type in [
                ibv_qp_type::IBV_QPT_RC,
                ibv_qp_type::IBV_QPT_UD,
                ibv_qp_type::IBV_QPT_RAW_PACKET,
            ] {
                both!(b, ibv_is_qpt_supported(value, qp_type));
            }
        }
        both!(b, rdma_get_local_addr(at!(b, cm_id)));
        both!(b, rdma_get_peer_addr(at!(b, cm_id)));
    });
}
