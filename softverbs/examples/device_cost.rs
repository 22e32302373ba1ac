//! Work requests there and back in one thread, over the raw table: for counting instructions with callgrind.
//!
//! ```sh
//! cargo build --release -p verbatim-softverbs --example device_cost
//! for n in 0 100000; do
//!     valgrind --tool=callgrind --callgrind-out-file=/dev/null target/release/examples/device_cost write_imm $n 2>&1 | grep Collected
//! done
//! ```
//!
//! The difference, divided by the number, is what one message costs both ends together: a receive posted, a message posted, and
//! two polls. Without callgrind it prints the time of one.
#![allow(clippy::undocumented_unsafe_blocks)]

#[path = "../tests/common/mod.rs"]
mod common;

use common::*;
use ibverbs_sys::*;
use softverbs::memory::Kind;

fn main() {
    let mut arguments = std::env::args().skip(1);
    let what = arguments.next().unwrap_or_else(|| "write_imm".to_owned());
    let count = arguments.next().map_or(1_000_000, |n| n.parse().unwrap());
    let (op, receives) = match &*what {
        "send" => (ibv_wr_opcode::IBV_WR_SEND, true),
        "write_imm" => (ibv_wr_opcode::IBV_WR_RDMA_WRITE_WITH_IMM, true),
        "write" => (ibv_wr_opcode::IBV_WR_RDMA_WRITE, false),
        "read" => (ibv_wr_opcode::IBV_WR_RDMA_READ, false),
        _ => panic!("send, write_imm, write or read, and a number"),
    };
    let dev = Dev::open();
    let options = Options {
        depth: 32,
        ..Options::default()
    };
    let (a, b) = pair(&dev, &options);
    let from = Mem::file(&dev, 4096, LOCAL, Kind::Private);
    let into = Mem::file(&dev, 4096, LOCAL, Kind::Receive);
    let exposed = Mem::file(&dev, 4096, LOCAL | READ | WRITE, Kind::Exposed);
    for i in 0..16 {
        assert_eq!(b.recv(i, &mut [into.sge(0, 64)]), 0);
    }
    let begin = std::time::Instant::now();
    for i in 0..count {
        let flags = if i % 16 == 15 || !receives {
            SIGNALED
        } else {
            0
        };
        let mut sges = [from.sge(0, 64)];
        let mut wr = rdma(i, op, &mut sges, flags, exposed.addr(), exposed.key());
        assert_eq!(a.post(&mut wr), 0);
        let wc = a.poll();
        assert_eq!(wc.is_some(), flags != 0);
        if receives {
            let wc = b.poll().unwrap();
            assert_eq!(wc.status, OK);
            assert_eq!(b.recv(wc.wr_id, &mut [into.sge(0, 64)]), 0);
        }
    }
    if count > 0 {
        println!(
            "{what}: {:.1} ns",
            begin.elapsed().as_nanos() as f64 / count as f64
        );
    }
}
