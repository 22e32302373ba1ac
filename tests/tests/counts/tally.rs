//! Counting what a process asks of a device: the functions that a context has for it are replaced by ones that count and call them.

use ibverbs_sys::{ibv_context, ibv_cq, ibv_qp, ibv_recv_wr, ibv_send_wr, ibv_wc};
use ibverbs_sys::{ibv_wc_opcode, ibv_wr_opcode};
use std::ffi::c_int;
use std::ops::Sub;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use verbs::Context;

/// What is counted of a context.
#[derive(Debug, Clone, Copy, Default)]
pub struct Counts {
    /// Work requests by kind.
    pub sends: u64,
    pub writes: u64,
    pub writes_with_imm: u64,
    pub reads: u64,
    /// Calls that posted them: each rings a doorbell.
    pub doorbells: u64,
    /// Receive entries, and the calls that posted them.
    pub receives: u64,
    pub receive_doorbells: u64,
    /// Completions of sends and of receives.
    pub sent: u64,
    pub received: u64,
}

impl Sub for Counts {
    type Output = Counts;

    fn sub(self, before: Counts) -> Counts {
        Counts {
            sends: self.sends - before.sends,
            writes: self.writes - before.writes,
            writes_with_imm: self.writes_with_imm - before.writes_with_imm,
            reads: self.reads - before.reads,
            doorbells: self.doorbells - before.doorbells,
            receives: self.receives - before.receives,
            receive_doorbells: self.receive_doorbells - before.receive_doorbells,
            sent: self.sent - before.sent,
            received: self.received - before.received,
        }
    }
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
    counters: [AtomicU64; 9],
}

/// Contexts that are counted: one for each end.
static TALLIES: [OnceLock<Tally>; 2] = [const { OnceLock::new() }; 2];

const SENDS: usize = 0;
const WRITES: usize = 1;
const WRITES_WITH_IMM: usize = 2;
const READS: usize = 3;
const DOORBELLS: usize = 4;
const RECEIVES: usize = 5;
const RECEIVE_DOORBELLS: usize = 6;
const SENT: usize = 7;
const RECEIVED: usize = 8;

impl Tally {
    fn of(context: *mut ibv_context) -> &'static Tally {
        let tallies = TALLIES.iter().filter_map(OnceLock::get);
        let mut found = tallies.filter(|tally| tally.context == context as usize);
        found.next().expect("only counted contexts call this")
    }

    fn add(&self, which: usize, count: u64) {
        self.counters[which].fetch_add(count, Ordering::Relaxed);
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
        counters: [const { AtomicU64::new(0) }; 9],
    };
    assert!(TALLIES[end].set(tally).is_ok(), "one context for each end");
    ops.post_send = Some(post_send);
    ops.post_recv = Some(post_recv);
    ops.poll_cq = Some(poll_cq);
}

/// What has been counted of an end.
pub fn counts(end: usize) -> Counts {
    let tally = TALLIES[end].get().expect("counted");
    let [a, b, c, d, e, f, g, h, i] = tally.counters.each_ref();
    let [
        sends,
        writes,
        writes_with_imm,
        reads,
        doorbells,
        receives,
        receive_doorbells,
        sent,
        received,
    ] = [a, b, c, d, e, f, g, h, i].map(|counter| counter.load(Ordering::Relaxed));
    Counts {
        sends,
        writes,
        writes_with_imm,
        reads,
        doorbells,
        receives,
        receive_doorbells,
        sent,
        received,
    }
}

unsafe extern "C" fn post_send(
    qp: *mut ibv_qp,
    first: *mut ibv_send_wr,
    bad: *mut *mut ibv_send_wr,
) -> c_int {
    // SAFETY: as for `ibv_post_send`: a queue pair, and a chain of requests.
    unsafe {
        let tally = Tally::of((*qp).context);
        let mut at = first;
        while let Some(wr) = at.as_ref() {
            tally.add(
                match wr.opcode {
                    ibv_wr_opcode::IBV_WR_SEND | ibv_wr_opcode::IBV_WR_SEND_WITH_IMM => SENDS,
                    ibv_wr_opcode::IBV_WR_RDMA_WRITE => WRITES,
                    ibv_wr_opcode::IBV_WR_RDMA_WRITE_WITH_IMM => WRITES_WITH_IMM,
                    ibv_wr_opcode::IBV_WR_RDMA_READ => READS,
                    other => panic!("rpc posts no {other:?}"),
                },
                1,
            );
            at = wr.next;
        }
        tally.add(DOORBELLS, 1);
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
        let mut at = first;
        while let Some(wr) = at.as_ref() {
            tally.add(RECEIVES, 1);
            at = wr.next;
        }
        tally.add(RECEIVE_DOORBELLS, 1);
        (tally.post_recv)(qp, first, bad)
    }
}

unsafe extern "C" fn poll_cq(cq: *mut ibv_cq, most: c_int, wc: *mut ibv_wc) -> c_int {
    // SAFETY: as for `ibv_poll_cq`: a completion queue, and room for `most` completions, of which the first have been filled in.
    unsafe {
        let tally = Tally::of((*cq).context);
        let found = (tally.poll_cq)(cq, most, wc);
        for at in 0..usize::try_from(found).unwrap_or(0) {
            let received = (*wc.add(at)).opcode.0 & ibv_wc_opcode::IBV_WC_RECV.0 != 0;
            tally.add(if received { RECEIVED } else { SENT }, 1);
        }
        found
    }
}
