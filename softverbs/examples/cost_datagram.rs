//! As `cost`, of a datagram: apart from it, so that neither changes how the other is compiled.
#![allow(clippy::undocumented_unsafe_blocks)]

#[path = "../tests/common/mod.rs"]
mod common;

use common::*;
use ibverbs_sys::ibv_wr_opcode;
use softverbs::memory::Kind;

fn main() {
    let count = std::env::args()
        .nth(1)
        .map_or(1_000_000, |n| n.parse().unwrap());
    let dev = Dev::open();
    let (a, b) = pair(&dev, &ud());
    let ah = Ah::new(&dev, 1);
    let from = Mem::file(&dev, 4096, LOCAL, Kind::Private);
    let into = Mem::file(&dev, 4096, LOCAL, Kind::Receive);
    assert_eq!(b.recv(0, &mut [into.sge(0, 40 + 64)]), 0);
    let begin = std::time::Instant::now();
    for i in 0..count {
        let mut sges = [from.sge(0, 64)];
        let mut wr = ah.to(b.qpn(), ibv_wr_opcode::IBV_WR_SEND, &mut sges);
        wr.send_flags = if i % 16 == 15 { SIGNALED } else { 0 };
        assert_eq!(a.post(&mut wr), 0);
        assert_eq!(a.poll().is_some(), i % 16 == 15);
        assert_eq!(b.poll().unwrap().status, OK);
        assert_eq!(b.recv(i, &mut [into.sge(0, 40 + 64)]), 0);
    }
    if count > 0 {
        let time = begin.elapsed().as_nanos() as f64;
        println!("datagram: {:.1} ns", time / count as f64);
    }
}
