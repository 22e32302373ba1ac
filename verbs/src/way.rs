//! The two ways of posting sends.

use std::ffi::c_int;

use ibverbs_sys::{ibv_qp, ibv_qp_ex, ibv_send_wr};

use crate::{Pd, extended_qp};

type Post = unsafe extern "C" fn(*mut ibv_qp, *mut ibv_send_wr, *mut *mut ibv_send_wr) -> c_int;

/// The function that posts to a queue pair, and what it takes. Found once, so that a post neither looks for it nor chooses.
#[derive(Clone, Copy)]
pub(crate) struct Way {
    post: Post,
    /// The queue pair; of an extended one, that with the calls.
    to: *mut ibv_qp,
}

// SAFETY: the queue pair that the queue itself has, and as that.
unsafe impl Send for Way {}

impl Way {
    /// # Safety
    /// The queue pair is alive, and an extended one if `extended` says so.
    pub(crate) unsafe fn to(pd: &Pd, qp: *mut ibv_qp, extended: bool) -> Way {
        let calls = match extended {
            true => extended_qp::extended(pd, qp),
            false => None,
        };
        match calls {
            Some(calls) => Way {
                post: by_calls,
                to: calls.as_ptr().cast(),
            },
            None => Way {
                // SAFETY: the caller's contract.
                post: unsafe { (*(*qp).context).ops.post_send }.unwrap_or(nothing),
                to: qp,
            },
        }
    }

    /// Posts a chain: 0, or an errno, with the first request that was not posted in `bad`.
    ///
    /// # Safety
    /// As of `ibv_post_send`, to the queue pair that this was made for.
    #[inline(always)]
    pub(crate) unsafe fn post(self, first: *mut ibv_send_wr, bad: *mut *mut ibv_send_wr) -> c_int {
        // SAFETY: the caller's contract.
        unsafe { (self.post)(self.to, first, bad) }
    }
}

/// # Safety
/// As of `ibv_post_send`.
unsafe extern "C" fn nothing(
    _: *mut ibv_qp,
    first: *mut ibv_send_wr,
    bad: *mut *mut ibv_send_wr,
) -> c_int {
    // SAFETY: the caller's contract.
    unsafe { *bad = first };
    libc::EOPNOTSUPP
}

/// # Safety
/// As of `ibv_post_send`, but that the queue pair is an extended one's.
unsafe extern "C" fn by_calls(
    to: *mut ibv_qp,
    first: *mut ibv_send_wr,
    bad: *mut *mut ibv_send_wr,
) -> c_int {
    let calls: *mut ibv_qp_ex = to.cast();
    // SAFETY: the caller's contract.
    unsafe { extended_qp::post(calls, first, bad) }
}
