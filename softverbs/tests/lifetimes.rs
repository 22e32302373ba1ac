//! Queue pairs that come, fail, are reset and go while others look at them; and registrations at the edge.
#![allow(missing_docs, clippy::undocumented_unsafe_blocks)]

mod common;
use common::*;
use ibverbs_sys::ibv_wr_opcode as Op;
use ibverbs_sys::{
    ibv_qp_attr, ibv_qp_attr_mask as Mask, ibv_qp_state as State, ibv_wc_status as Status,
};
use softverbs::memory::{Kind, MemoryFile};

/// A send that waits for a receive ends when the peer's queue pair is destroyed, fails or is reset, whatever its retries.
#[test]
fn waiting_work_ends_with_its_peer() {
    let dev = Dev::open();
    let mem = Mem::plain(&dev, 64, LOCAL);
    for destroy in [true, false] {
        let (a, b) = pair(
            &dev,
            &Options {
                timeout: 0,
                ..Options::default()
            },
        );
        let mut sge = [mem.sge(0, 8)];
        assert_eq!(a.post(&mut wr(1, Op::IBV_WR_SEND, &mut sge, SIGNALED)), 0);
        assert!(a.poll().is_none());
        let _still_there = if destroy {
            drop(b);
            None
        } else {
            assert_eq!(b.set_state(State::IBV_QPS_ERR), 0);
            Some(b)
        };
        assert_eq!(a.next().status, Status::IBV_WC_RETRY_EXC_ERR);
    }
}

/// A queue pair that alone was reset and connected again does not meet the old lane of its peer, even with the same
/// sequence numbers: what it sends gets no answer.
#[test]
fn a_lane_is_attached_once() {
    let dev = Dev::open();
    let o = Options {
        timeout: 8,
        retry_cnt: 1,
        ..Options::default()
    };
    let (a, b) = pair(&dev, &o);
    let mem = Mem::plain(&dev, 8192, LOCAL);
    for i in 0..3 {
        b.recv(i, &mut [mem.sge(4096, 1000)]);
    }
    a.post(&mut wr(
        1,
        Op::IBV_WR_SEND,
        &mut [mem.sge(0, 1000)],
        SIGNALED,
    ));
    assert_eq!((a.next().status, b.next().status), (OK, OK));
    assert_eq!(a.set_state(State::IBV_QPS_RESET), 0);
    a.init(&o);
    a.connect(b.qpn(), &o);
    mem.fill(0, &[0x55; 1000]);
    mem.fill(4096, &[0; 1000]);
    a.post(&mut wr(
        2,
        Op::IBV_WR_SEND,
        &mut [mem.sge(0, 1000)],
        SIGNALED,
    ));
    assert_eq!(a.next().status, Status::IBV_WC_RETRY_EXC_ERR);
    assert!(b.poll().is_none());
    assert!(
        mem.get(4096, 1000).iter().all(|byte| *byte == 0),
        "nothing lands in a receive that is done"
    );
}

/// Room of a destroyed queue pair's lane is used again at once; what its old peer still does harms nobody.
#[test]
fn lane_room_is_used_again() {
    let dev = Dev::open();
    let o = Options::default();
    let mem = Mem::plain(&dev, 8192, LOCAL);
    for round in 0..50 {
        let (old, gone) = pair(&dev, &o);
        gone.recv(1, &mut [mem.sge(0, 8)]);
        old.post(&mut wr(1, Op::IBV_WR_SEND, &mut [mem.sge(64, 8)], SIGNALED));
        assert_eq!((old.next().status, gone.next().status), (OK, OK));
        drop(gone);
        let (a, b) = pair(&dev, &o);
        for i in 0..8 {
            b.recv(i, &mut [mem.sge(4096, 2000)]);
            let theirs = rdma(1, Op::IBV_WR_RDMA_WRITE, &mut [], SIGNALED, 0, 0);
            // The old one fails the first time and flushes from then on.
            let mut theirs = theirs;
            old.post(&mut theirs);
            a.post(&mut wr(
                i,
                Op::IBV_WR_SEND,
                &mut [mem.sge(0, 100 + 200 * i as usize)],
                SIGNALED,
            ));
            assert_ne!(old.next().status, OK);
            assert_eq!(
                (a.next().status, b.next().byte_len),
                (OK, 100 + 200 * i as u32),
                "round {round}"
            );
        }
    }
}

/// Completions that a small queue has taken in are still polled when it is made larger, or other queue pairs go.
#[test]
fn a_counting_queue_keeps_what_it_has() {
    let dev = Dev::open();
    let o = Options::default();
    let (a, b) = (
        End::new(&dev, &o),
        End::new(
            &dev,
            &Options {
                cqe: 6,
                ..Options::default()
            },
        ),
    );
    a.connect(b.qpn(), &o);
    b.connect(a.qpn(), &o);
    let mem = Mem::plain(&dev, 64, LOCAL);
    for i in 0..4 {
        b.recv(i, &mut [mem.sge(0, 8)]);
        a.post(&mut wr(i, Op::IBV_WR_SEND, &mut [mem.sge(8, 8)], SIGNALED));
        assert_eq!(a.next().status, OK);
    }
    assert_eq!(b.next().wr_id, 0);
    assert_eq!(unsafe { (api().ibv_resize_cq)(b.cq, 1000) }, 0);
    for i in 1..4 {
        assert_eq!(b.next().wr_id, i);
    }
    // To RESET drops them all, also those in the ring.
    assert_eq!(unsafe { (api().ibv_resize_cq)(b.cq, 6) }, 0);
    for i in 4..7 {
        b.recv(i, &mut [mem.sge(0, 8)]);
        a.post(&mut wr(i, Op::IBV_WR_SEND, &mut [mem.sge(8, 8)], SIGNALED));
        assert_eq!(a.next().status, OK);
    }
    assert_eq!(b.next().wr_id, 4);
    assert_eq!(b.set_state(State::IBV_QPS_RESET), 0);
    assert!(b.poll().is_none());
}

/// Access rights and the receiver's timer may also be given with the step to RTS.
#[test]
fn rights_given_at_rts_count() {
    let dev = Dev::open();
    let o = Options::default();
    let (a, b) = (
        End::new(&dev, &o),
        End::new(
            &dev,
            &Options {
                access: 0,
                ..Options::default()
            },
        ),
    );
    assert_eq!((a.rtr(b.qpn()), b.rtr(a.qpn()), a.rts(&o)), (0, 0, 0));
    let mut attr = ibv_qp_attr {
        qp_state: State::IBV_QPS_RTS,
        sq_psn: 7,
        timeout: 14,
        retry_cnt: 6,
        rnr_retry: 7,
        max_rd_atomic: 4,
        qp_access_flags: WRITE,
        ..ibv_qp_attr::default()
    };
    let mask = Mask::IBV_QP_STATE.0
        | Mask::IBV_QP_SQ_PSN.0
        | Mask::IBV_QP_TIMEOUT.0
        | Mask::IBV_QP_RETRY_CNT.0
        | Mask::IBV_QP_RNR_RETRY.0
        | Mask::IBV_QP_MAX_QP_RD_ATOMIC.0
        | Mask::IBV_QP_ACCESS_FLAGS.0;
    assert_eq!(b.modify(&mut attr, mask), 0);
    let (mine, theirs) = (
        Mem::plain(&dev, 64, LOCAL),
        Mem::plain(&dev, 64, LOCAL | WRITE),
    );
    let mut sge = [mine.sge(0, 8)];
    a.post(&mut rdma(
        1,
        Op::IBV_WR_RDMA_WRITE,
        &mut sge,
        SIGNALED,
        theirs.addr(),
        theirs.key(),
    ));
    assert_eq!(a.next().status, OK);
}

/// What registration refuses.
#[test]
fn registrations_at_the_edge() {
    let dev = Dev::open();
    let reg = |addr: usize, len: usize, access: u32| unsafe {
        let mr = (api().ibv_reg_mr)(
            dev.pd,
            std::ptr::without_provenance_mut(addr),
            len,
            access as i32,
        );
        if mr.is_null() {
            return std::io::Error::last_os_error().raw_os_error();
        }
        assert_eq!((api().ibv_dereg_mr)(mr), 0);
        None
    };
    assert_eq!(reg(4096, usize::MAX - 4096, LOCAL), Some(libc::EFAULT));
    assert_eq!(reg(usize::MAX - 10, 10, LOCAL), Some(libc::EFAULT));
    assert_eq!(reg(4096, usize::MAX, LOCAL), Some(libc::EINVAL), "wraps");
    assert_eq!(
        reg(4096, 4096, LOCAL),
        Some(libc::EFAULT),
        "nothing is mapped there"
    );
    let file = MemoryFile::create(4096, Kind::Receive).unwrap();
    let addr = file.as_ptr() as usize;
    assert_eq!(reg(addr, 4096, LOCAL), None);
    assert_eq!(reg(addr, 0, LOCAL), Some(libc::EINVAL));
    assert_eq!(
        reg(addr, 4096, WRITE),
        Some(libc::EINVAL),
        "remote write needs local write"
    );
    for remote in [READ, LOCAL | WRITE, LOCAL | ATOMIC] {
        assert_eq!(
            reg(addr, 4096, remote),
            Some(libc::EINVAL),
            "peers map it writable, so nobody gets a key"
        );
    }
}
