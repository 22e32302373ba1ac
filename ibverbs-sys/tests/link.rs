//! The feature `link`: the linker binds the same functions that the table finds.
#![cfg(feature = "link")]

use ibverbs_sys::{Api, CmApi, link};

#[test]
fn linked_and_loaded_functions_are_the_same() {
    let api = Api::system().expect("linked, so installed");
    let cm = CmApi::system().expect("linked, so installed");
    // These have an old version too, with another structure behind the same name.
    assert!(core::ptr::fn_addr_eq(
        api.ibv_query_port,
        link::ibv_query_port as unsafe extern "C" fn(_, _, _) -> _
    ));
    assert!(core::ptr::fn_addr_eq(
        api.ibv_reg_mr,
        link::ibv_reg_mr as unsafe extern "C" fn(_, _, _, _) -> _
    ));
    assert!(core::ptr::fn_addr_eq(
        api.ibv_create_qp,
        link::ibv_create_qp as unsafe extern "C" fn(_, _) -> _
    ));
    assert!(core::ptr::fn_addr_eq(
        cm.rdma_connect,
        link::rdma_connect as unsafe extern "C" fn(_, _) -> _
    ));
    let newest = api
        .ibv_query_qp_data_in_order
        .expect("rdma-core 36 or newer");
    assert!(core::ptr::fn_addr_eq(
        newest,
        link::ibv_query_qp_data_in_order as unsafe extern "C" fn(_, _, _) -> _
    ));
}

#[test]
fn a_list_of_devices_can_be_had() {
    let api = Api::system().expect("linked, so installed");
    let mut n = -1;
    // SAFETY: `n` is valid for writes; the list is freed by its maker.
    unsafe {
        let list = link::ibv_get_device_list(&mut n);
        // Without the kernel's modules this is NULL and ENOSYS; with them, a list.
        if !list.is_null() {
            assert!(n >= 0);
            (api.ibv_free_device_list)(list);
        }
    }
}
