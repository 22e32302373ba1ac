//! Asynchronous events.

use super::context::context;
use super::{code, set_errno};
use core::ffi::c_int;
use ibverbs_sys::*;

pub(super) unsafe extern "C" fn get_async_event(
    plain: *mut ibv_context,
    event: *mut ibv_async_event,
) -> c_int {
    // SAFETY: module invariant of `verbs`.
    match unsafe { context(plain) }.events.next() {
        Err(error) => {
            set_errno(code(&error));
            -1
        }
        Ok(found) => {
            // SAFETY: the caller's out parameter. All pointers of the union lie at its beginning.
            unsafe {
                (*event).event_type = found.what;
                (*event).element.cq = core::ptr::with_exposed_provenance_mut(found.element);
            }
            0
        }
    }
}

pub(super) unsafe extern "C" fn ack_async_event(event: *mut ibv_async_event) {
    use ibv_event_type as E;
    // SAFETY: the event came from `get_async_event`, so its element is one of ours and, not acknowledged yet, still there.
    unsafe {
        let element = (*event).element;
        let (plain, element) = match (*event).event_type {
            E::IBV_EVENT_CQ_ERR => ((*element.cq).context, element.cq.addr()),
            E::IBV_EVENT_QP_FATAL
            | E::IBV_EVENT_QP_REQ_ERR
            | E::IBV_EVENT_QP_ACCESS_ERR
            | E::IBV_EVENT_COMM_EST
            | E::IBV_EVENT_SQ_DRAINED
            | E::IBV_EVENT_QP_LAST_WQE_REACHED => ((*element.qp).context, element.qp.addr()),
            E::IBV_EVENT_SRQ_ERR | E::IBV_EVENT_SRQ_LIMIT_REACHED => {
                ((*element.srq).context, element.srq.addr())
            }
            // Events of the port and the device name no object.
            _ => return,
        };
        context(plain).events.ack(element);
    }
}
