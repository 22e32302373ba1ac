//! What can be tested without C headers: the limits of `verbs_context`, and libraries older than a function. The rest is
//! compared with the C inlines.

use core::mem::{offset_of, size_of};
use core::ptr::null_mut;

use super::*;
use crate::Api;

/// A table without optional functions, whose mandatory ones end the process.
fn old_library() -> Api {
    extern "C" fn unexpected() -> ! {
        std::process::abort()
    }
    const WORDS: usize = size_of::<Api>() / size_of::<usize>();
    let filler: extern "C" fn() -> ! = unexpected;
    // SAFETY: every field is a function pointer or an optional one, of one size, and the filler never returns.
    let mut api =
        unsafe { core::mem::transmute::<[extern "C" fn() -> !; WORDS], Api>([filler; WORDS]) };
    api.ibv_reg_mr_iova = None;
    api.ibv_reg_mr_iova2 = None;
    api._ibv_query_gid_ex = None;
    api._ibv_query_gid_table = None;
    api
}

fn errno() -> c_int {
    // SAFETY: this thread's own errno.
    unsafe { *libc::__errno_location() }
}

#[test]
fn an_old_library_never_sees_optional_access_flags() {
    unsafe extern "C" fn reg_mr(
        _: *mut ibv_pd,
        _: *mut c_void,
        _: usize,
        access: c_int,
    ) -> *mut ibv_mr {
        core::ptr::without_provenance_mut(0x1000 + access as usize)
    }
    let mut api = old_library();
    api.ibv_reg_mr = reg_mr;
    let flags = ibv_access_flags::IBV_ACCESS_RELAXED_ORDERING.0 | 3;
    // SAFETY: the recorder looks at `access` only.
    let mr = unsafe { ibv_reg_mr(&api, null_mut(), null_mut(), 0, flags) };
    assert_eq!(mr.addr(), 0x1003);
    // SAFETY: nothing is called.
    let mr = unsafe { ibv_reg_mr_iova(&api, null_mut(), null_mut(), 0, 0, flags) };
    assert!(mr.is_null());
    assert_eq!(errno(), libc::EOPNOTSUPP);
}

#[test]
fn an_old_library_has_no_extended_gids() {
    let api = old_library();
    // SAFETY: nothing is called.
    unsafe {
        assert_eq!(
            ibv_query_gid_ex(&api, null_mut(), 1, 0, null_mut(), 0),
            libc::EOPNOTSUPP
        );
        assert_eq!(
            ibv_query_gid_table(&api, null_mut(), null_mut(), 0, 0),
            -(libc::EOPNOTSUPP as isize)
        );
    }
}

#[test]
fn the_context_finds_what_surrounds_it() {
    let outer: *mut verbs_context = Box::into_raw(Box::default());
    // SAFETY: the box is alive; the inner pointer is derived from the outer one.
    unsafe {
        let ctx = &raw mut (*outer).context;
        assert!(verbs_get_ctx(ctx).is_null());
        (*ctx).abi_compat = VERBS_ABI_IS_EXTENDED;
        assert_eq!(verbs_get_ctx(ctx), outer);
        drop(Box::from_raw(outer));
    }
}

#[test]
fn an_operation_is_used_only_within_the_size_and_when_set() {
    unsafe extern "C" fn alloc_td(_: *mut ibv_context, _: *mut ibv_td_init_attr) -> *mut ibv_td {
        core::ptr::without_provenance_mut(0x99)
    }
    let reaching = size_of::<verbs_context>() - offset_of!(verbs_context, alloc_td);
    let cases = [
        (true, reaching, true, 0x99),
        (true, size_of::<verbs_context>(), true, 0x99),
        (true, reaching - 1, true, 0),
        (true, 0, true, 0),
        (true, reaching, false, 0),
        (false, reaching, true, 0),
    ];
    for (extended, sz, set, expected) in cases {
        let outer: *mut verbs_context = Box::into_raw(Box::default());
        // SAFETY: as above; the operation ignores its arguments.
        unsafe {
            (*outer).sz = sz;
            (*outer).alloc_td = set.then_some(alloc_td);
            let ctx = &raw mut (*outer).context;
            if extended {
                (*ctx).abi_compat = VERBS_ABI_IS_EXTENDED;
            }
            set_errno(0);
            let td = ibv_alloc_td(ctx, null_mut());
            assert_eq!(
                td.addr(),
                expected,
                "extended {extended}, sz {sz}, set {set}"
            );
            assert_eq!(errno() == libc::EOPNOTSUPP, expected == 0);
            drop(Box::from_raw(outer));
        }
    }
}

#[test]
fn an_rkey_counts_in_its_lowest_byte() {
    assert_eq!(ibv_inc_rkey(0x1234_56ff), 0x1234_5600);
    assert_eq!(ibv_inc_rkey(0x1234_5600), 0x1234_5601);
    assert_eq!(ibv_inc_rkey(u32::MAX), 0xffff_ff00);
}

#[test]
fn a_type_beyond_the_bits_is_not_supported() {
    assert!(ibv_is_qpt_supported(1 << 2, ibv_qp_type::IBV_QPT_RC));
    assert!(!ibv_is_qpt_supported(1 << 2, ibv_qp_type::IBV_QPT_UD));
    assert!(!ibv_is_qpt_supported(u32::MAX, ibv_qp_type::IBV_QPT_DRIVER));
}
