//! Posting, polling and arming: `ibv_post_*`, `ibv_poll_cq`, `ibv_req_notify_cq`.

use core::ffi::c_int;

use super::direct;
use crate::bindings::*;

direct! {
    /// Takes up to `num_entries` completions into `wc`. Their number, or a negative value on failure; fewer than
    /// `num_entries` means that the queue was empty.
    fn ibv_poll_cq(cq: *mut ibv_cq, num_entries: c_int, wc: *mut ibv_wc) -> c_int
        => (*(*cq).context).ops.poll_cq;

    /// Asks for one event on the queue's channel when the next completion arrives, or the next solicited or failed one.
    /// Completions already there cause none: poll once more after arming. Returns an errno.
    fn ibv_req_notify_cq(cq: *mut ibv_cq, solicited_only: c_int) -> c_int
        => (*(*cq).context).ops.req_notify_cq;

    /// Posts a list of send work requests. Returns an errno; then `*bad_wr` is the first request that was *not* posted, and
    /// those before it were.
    fn ibv_post_send(qp: *mut ibv_qp, wr: *mut ibv_send_wr, bad_wr: *mut *mut ibv_send_wr) -> c_int
        => (*(*qp).context).ops.post_send;

    /// Posts a list of receive work requests. Returns an errno; then `*bad_wr` is the first that was not posted.
    fn ibv_post_recv(qp: *mut ibv_qp, wr: *mut ibv_recv_wr, bad_wr: *mut *mut ibv_recv_wr) -> c_int
        => (*(*qp).context).ops.post_recv;

    /// Posts a list of receive work requests to a shared receive queue. Returns an errno; then `*bad_recv_wr` is the first
    /// that was not posted.
    fn ibv_post_srq_recv(
        srq: *mut ibv_srq,
        recv_wr: *mut ibv_recv_wr,
        bad_recv_wr: *mut *mut ibv_recv_wr,
    ) -> c_int => (*(*srq).context).ops.post_srq_recv;
}
