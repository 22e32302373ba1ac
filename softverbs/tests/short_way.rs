//! Ordinary requests take a short way through the device. It does what the long way does: both run the same work here, and
//! everything that can be seen of it is compared.
#![allow(clippy::undocumented_unsafe_blocks)]

mod common;

use common::*;
use ibverbs_sys::*;
use proptest::prelude::*;
use softverbs::faults::{Fault, inject};
use softverbs::memory::Kind;
use std::time::Duration;

const ROOM: usize = 1024;

/// One request.
#[derive(Clone, Copy, Debug)]
struct Request {
    op: usize,
    len: usize,
    offset: usize,
    inline: bool,
    signaled: bool,
    wrong: bool,
}

const OPS: [ibv_wr_opcode; 5] = [
    ibv_wr_opcode::IBV_WR_SEND,
    ibv_wr_opcode::IBV_WR_SEND_WITH_IMM,
    ibv_wr_opcode::IBV_WR_RDMA_WRITE,
    ibv_wr_opcode::IBV_WR_RDMA_WRITE_WITH_IMM,
    ibv_wr_opcode::IBV_WR_RDMA_READ,
];

fn request() -> impl Strategy<Value = Request> {
    let lens = prop_oneof![0usize..80, Just(255), Just(256), Just(257), 0usize..400];
    let bits = (any::<bool>(), any::<bool>(), 0u8..12);
    (0..OPS.len(), lens, 0usize..64, bits).prop_map(|(op, len, offset, bits)| {
        let (inline, signaled, wrong) = bits;
        Request {
            op,
            len,
            offset,
            inline: inline && len <= 64 && OPS[op] != ibv_wr_opcode::IBV_WR_RDMA_READ,
            signaled,
            wrong: wrong == 0,
        }
    })
}

/// What can be seen of a completion.
type Seen = (u64, u32, u32, u32, u32, u32);

fn seen(end: &End) -> Vec<Seen> {
    let mut all = Vec::new();
    while let Some(wc) = end.poll() {
        let ok = wc.status == OK;
        let arrived = ok && wc.opcode.0 & ibv_wc_opcode::IBV_WC_RECV.0 != 0;
        all.push((
            wc.wr_id,
            wc.status.0,
            if ok { wc.opcode.0 } else { 0 },
            if arrived { wc.byte_len } else { 0 },
            if ok { wc.wc_flags } else { 0 },
            if arrived && wc.wc_flags != 0 {
                unsafe { wc.__bindgen_anon_1.imm_data }
            } else {
                0
            },
        ));
    }
    all
}

/// Runs the requests and says what each end saw, and what is in its memory.
fn run(requests: &[Request], kind: Kind, shared: bool) -> (Vec<Seen>, Vec<Seen>, Vec<Vec<u8>>) {
    let dev = Dev::open();
    let options = Options {
        depth: 64,
        ..Options::default()
    };
    let (a, b) = pair(&dev, &options);
    let local = Mem::file(&dev, ROOM, LOCAL, Kind::Private);
    let into = match shared {
        // Memory to which a peer has a key: what is sent there cannot wait in the lane.
        true => Mem::file(&dev, 64 * ROOM, LOCAL | WRITE, Kind::Exposed),
        false => Mem::file(&dev, 64 * ROOM, LOCAL, Kind::Receive),
    };
    let remote = match kind {
        Kind::Private => Mem::plain(&dev, ROOM, LOCAL | READ | WRITE),
        kind => Mem::file(&dev, ROOM, LOCAL | READ | WRITE, kind),
    };
    let pattern: Vec<u8> = (0..ROOM).map(|i| (i * 7 + 3) as u8).collect();
    local.fill(0, &pattern);
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for i in 0..requests.len() as u64 {
        assert_eq!(b.recv(i, &mut [into.sge(i as usize * ROOM, ROOM)]), 0);
    }
    for (i, r) in requests.iter().enumerate() {
        let mut flags = if r.signaled { SIGNALED } else { 0 };
        if r.inline {
            flags |= INLINE;
        }
        let key = remote.key() ^ u32::from(r.wrong);
        let mut sges = [local.sge(r.offset, r.len)];
        let (op, at) = (OPS[r.op], remote.addr() + r.offset as u64);
        let mut wr = rdma(1000 + i as u64, op, &mut sges, flags, at, key);
        wr.__bindgen_anon_1.imm_data = i as u32;
        ours.push((a.post(&mut wr) as u64, 0, 0, 0, 0, 0));
        ours.extend(seen(&a));
        theirs.extend(seen(&b));
    }
    ours.extend(seen(&a));
    theirs.extend(seen(&b));
    let memory = vec![
        local.get(0, ROOM),
        remote.get(0, ROOM),
        into.get(0, requests.len() * ROOM),
    ];
    (ours, theirs, memory)
}

#[test]
fn both_ways_do_the_same() {
    if std::env::var_os("VERBATIM_ASYNC").is_some() {
        // There is only the long way there, and what is seen when depends on time.
        return;
    }
    let mut runner = proptest::test_runner::TestRunner::new(ProptestConfig {
        cases: 48,
        failure_persistence: None,
        ..ProptestConfig::default()
    });
    let work = (
        proptest::collection::vec(request(), 1..24),
        prop_oneof![Just(Kind::Exposed), Just(Kind::Private)],
        any::<bool>(),
    );
    runner
        .run(&work, |(requests, kind, shared)| {
            let short = run(&requests, kind, shared);
            let long = {
                // It concerns no queue pair that there is; but while any fault is in force, the long way is taken.
                let _nothing = inject(Fault::Delay {
                    qp: Some(u32::MAX),
                    by: Duration::ZERO,
                });
                run(&requests, kind, shared)
            };
            prop_assert_eq!(short, long);
            Ok(())
        })
        .unwrap();
}
