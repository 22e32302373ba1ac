//! Counting what a process asks of a device: the functions that a context has for it are replaced by ones that count and call them.

use ibverbs_sys::{ibv_context, ibv_cq, ibv_qp, ibv_recv_wr, ibv_send_wr, ibv_wc};
use ibverbs_sys::{ibv_wc_opcode, ibv_wr_opcode};
use std::ffi::c_int;
use std::ops::Sub;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use verbs::Context;

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// What is counted of a context.
        #[derive(Debug, Clone, Copy, Default)]
        pub struct Counts {
            $($(#[$doc])* pub $name: u64,)*
        }

        impl Sub for Counts {
            type Output = Counts;

            fn sub(self, before: Counts) -> Counts {
                Counts { $($name: self.$name - before.$name,)* }
            }
        }

        /// Where it is counted.
        #[derive(Default)]
        struct Counters {
            $($name: AtomicU64,)*
        }

        impl Counters {
            fn load(&self) -> Counts {
                Counts { $($name: self.$name.load(Ordering::Relaxed),)* }
            }
        }
    };
}

counters! {
    /// Work requests by kind.
    sends,
    writes,
    writes_with_imm,
    reads,
    /// Calls that posted them: each rings a doorbell.
    doorbells,
    /// Receive entries, and the calls that posted them.
    receives,
    receive_doorbells,
    /// Completions of sends and of receives.
    sent,
    received,
}

fn one_more(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

type PostSend = unsafe extern "C" fn(*mut ibv_qp, *mut ibv_send_wr, *mut *mut ibv_send_wr) -> c_int;
type PostRecv = unsafe extern "C" fn(*mut ibv_qp, *mut ibv_recv_wr, *mut *mut ibv_recv_wr) -> c_int;
type PollCq = unsafe extern "C" fn(*mut ibv_cq, c_int, *mut ibv_wc) -> c_int;

/// The counters of a context, and its own functions.
struct Tally {
    context: usize,
    post_send: PostSend,
    post_recv: PostRecv,
    poll_cq: PollCq,
    counted: Counters,
}

/// Contexts that are counted: one for each end.
static TALLIES: [OnceLock<Tally>; 2] = [const { OnceLock::new() }; 2];

impl Tally {
    fn of(context: *mut ibv_context) -> &'static Tally {
        let tallies = TALLIES.iter().filter_map(OnceLock::get);
        let mut found = tallies.filter(|tally| tally.context == context as usize);
        found.next().expect("only counted contexts call this")
    }
}

/// Has a context counted, which nobody uses yet. It is never closed.
pub fn count(end: usize, context: &Context) {
    let raw = context.as_raw();
    std::mem::forget(context.clone());
    // SAFETY: the context is open, for ever now, and nobody else uses it meanwhile.
    let ops = unsafe { &mut (*raw).ops };
    let tally = Tally {
        context: raw as usize,
        post_send: ops.post_send.expect("every device has it"),
        post_recv: ops.post_recv.expect("every device has it"),
        poll_cq: ops.poll_cq.expect("every device has it"),
        counted: Counters::default(),
    };
    assert!(TALLIES[end].set(tally).is_ok(), "one context for each end");
    ops.post_send = Some(post_send);
    ops.post_recv = Some(post_recv);
    ops.poll_cq = Some(poll_cq);
}

/// What has been counted of an end.
pub fn counts(end: usize) -> Counts {
    TALLIES[end].get().expect("counted").counted.load()
}

unsafe extern "C" fn post_send(
    qp: *mut ibv_qp,
    first: *mut ibv_send_wr,
    bad: *mut *mut ibv_send_wr,
) -> c_int {
    // SAFETY: as for `ibv_post_send`: a queue pair, and a chain of requests.
    unsafe {
        let tally = Tally::of((*qp).context);
        let counted = &tally.counted;
        let mut at = first;
        while let Some(wr) = at.as_ref() {
            one_more(match wr.opcode {
                ibv_wr_opcode::IBV_WR_SEND | ibv_wr_opcode::IBV_WR_SEND_WITH_IMM => &counted.sends,
                ibv_wr_opcode::IBV_WR_RDMA_WRITE => &counted.writes,
                ibv_wr_opcode::IBV_WR_RDMA_WRITE_WITH_IMM => &counted.writes_with_imm,
                ibv_wr_opcode::IBV_WR_RDMA_READ => &counted.reads,
                other => panic!("rpc posts no {other:?}"),
            });
            at = wr.next;
        }
        one_more(&counted.doorbells);
        (tally.post_send)(qp, first, bad)
    }
}

unsafe extern "C" fn post_recv(
    qp: *mut ibv_qp,
    first: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: as for `ibv_post_recv`: a queue pair, and a chain of requests.
    unsafe {
        let tally = Tally::of((*qp).context);
        let counted = &tally.counted;
        let mut at = first;
        while let Some(wr) = at.as_ref() {
            one_more(&counted.receives);
            at = wr.next;
        }
        one_more(&counted.receive_doorbells);
        (tally.post_recv)(qp, first, bad)
    }
}

unsafe extern "C" fn poll_cq(cq: *mut ibv_cq, most: c_int, wc: *mut ibv_wc) -> c_int {
    // SAFETY: as for `ibv_poll_cq`: a completion queue, and room for `most` completions, of which the first have been filled in.
    unsafe {
        let tally = Tally::of((*cq).context);
        let counted = &tally.counted;
        let found = (tally.poll_cq)(cq, most, wc);
        for at in 0..usize::try_from(found).unwrap_or(0) {
            let received = (*wc.add(at)).opcode.0 & ibv_wc_opcode::IBV_WC_RECV.0 != 0;
            one_more(if received {
                &counted.received
            } else {
                &counted.sent
            });
        }
        found
    }
}
