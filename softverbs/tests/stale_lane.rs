//! A queue pair that was reset and connected anew is not to be reached over its old connection, also when the new peer is gone
//! before it was there.
#![allow(clippy::undocumented_unsafe_blocks)]

mod common;

use common::*;
use ibverbs_sys::*;
use softverbs::memory::Kind;

/// A number in a slot that no process has.
const NOBODY: u32 = 1022 << 14 | 5;

#[test]
fn the_old_peer_does_not_reach_a_queue_pair_that_waits_for_one_that_is_gone() {
    let dev = Dev::open();
    let options = Options {
        timeout: 10,
        retry_cnt: 1,
        ..Options::default()
    };
    let (a, b) = pair(&dev, &options);
    let from = Mem::file(&dev, 64, LOCAL, Kind::Private);
    let exposed = Mem::file(&dev, 64, LOCAL | WRITE, Kind::Exposed);
    from.fill(0, &[1; 64]);
    let write = |wr_id| {
        let mut sges = [from.sge(0, 64)];
        let op = ibv_wr_opcode::IBV_WR_RDMA_WRITE;
        let mut wr = rdma(
            wr_id,
            op,
            &mut sges,
            SIGNALED,
            exposed.addr(),
            exposed.key(),
        );
        assert_eq!(b.post(&mut wr), 0);
        b.next()
    };
    assert_eq!(write(1).status, OK);
    assert_eq!(exposed.get(0, 64), [1; 64]);

    assert_eq!(a.set_state(ibv_qp_state::IBV_QPS_RESET), 0);
    a.init(&options);
    assert_eq!(a.rtr(NOBODY), 0);
    exposed.fill(0, &[0; 64]);
    let wc = write(2);
    assert_eq!(
        (wc.wr_id, wc.status),
        (2, ibv_wc_status::IBV_WC_RETRY_EXC_ERR)
    );
    assert_eq!(exposed.get(0, 64), [0; 64]);
}
