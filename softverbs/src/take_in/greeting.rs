//! The event of a connection whose peer sends before this end has gone to RTS (IBTA chapter 11, communication established): there a program learns that the
//! peer is ready, also if what was to tell it is lost.

use crate::qp::QpCore;
use crate::qp_state::Service;
use core::sync::atomic::Ordering;
use ibverbs_sys::ibv_event_type;

impl QpCore {
    /// A message has come before RTS: an event tells so, once for each connection.
    ///
    /// It is the owner who finds that out, when it polls or goes to RTS: whoever sends has no way to queue an event here.
    #[cold]
    pub fn established(&self) {
        if self.service != Service::Ud && !self.greeted.swap(true, Ordering::Relaxed) {
            let event = ibv_event_type::IBV_EVENT_COMM_EST;
            self.recv_cq.tell(event, &self.handle);
        }
    }

    /// On the way to RTS: what has come and was not polled has come before.
    pub fn look_for_greeting(&self) {
        // SAFETY: under the lock of the receives' completion queue.
        let came = self.recv_cq.exclusively(|| unsafe { self.recv_waiting() });
        if came {
            self.established();
        }
    }
}
