//! Names of enumeration values, as the `ibv_*_str` functions give them.

use core::ffi::{CStr, c_char};
use ibverbs_sys::*;

fn pick(names: &'static [&'static CStr], index: u32) -> *const c_char {
    names
        .get(index as usize)
        .copied()
        .unwrap_or(c"unknown")
        .as_ptr()
}

pub(super) unsafe extern "C" fn wc_status(status: ibv_wc_status) -> *const c_char {
    pick(
        &[
            c"success",
            c"local length error",
            c"local QP operation error",
            c"local EE context operation error",
            c"local protection error",
            c"Work Request Flushed Error",
            c"memory management operation error",
            c"bad response error",
            c"local access error",
            c"remote invalid request error",
            c"remote access error",
            c"remote operation error",
            c"transport retry counter exceeded",
            c"RNR retry counter exceeded",
            c"local RDD violation error",
            c"remote invalid RD request",
            c"aborted error",
            c"invalid EE context number",
            c"invalid EE context state",
            c"fatal error",
            c"response timeout error",
            c"general error",
        ],
        status.0,
    )
}

pub(super) unsafe extern "C" fn node_type(node: ibv_node_type) -> *const c_char {
    pick(
        &[
            c"unknown",
            c"InfiniBand channel adapter",
            c"InfiniBand switch",
            c"InfiniBand router",
            c"iWARP NIC",
        ],
        node.0 as u32,
    )
}

pub(super) unsafe extern "C" fn port_state(state: ibv_port_state) -> *const c_char {
    pick(
        &[
            c"no state change (NOP)",
            c"down",
            c"init",
            c"armed",
            c"active",
            c"active deferred",
        ],
        state.0,
    )
}

pub(super) unsafe extern "C" fn event_type(event: ibv_event_type) -> *const c_char {
    pick(
        &[
            c"CQ error",
            c"local work queue catastrophic error",
            c"invalid request local work queue error",
            c"local access violation work queue error",
            c"communication established",
            c"send queue drained",
            c"path migrated",
            c"path migration request error",
            c"local catastrophic error",
            c"port active",
            c"port error",
            c"LID change",
            c"P_Key change",
            c"SM change",
            c"SRQ catastrophic error",
            c"SRQ limit reached",
            c"last WQE reached",
            c"client reregistration",
            c"GID table change",
            c"WQ fatal",
        ],
        event.0,
    )
}
