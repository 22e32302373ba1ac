//! Reliable connections between threads of one process: what is refused, and how both ends learn of it.
#![allow(missing_docs, clippy::undocumented_unsafe_blocks)]

mod common;
use common::*;
use ibverbs_sys::ibv_qp_state as State;
use ibverbs_sys::ibv_qp_type as Type;
use ibverbs_sys::ibv_wc_status as Status;
use ibverbs_sys::ibv_wr_opcode as Op;

/// What keys refuse, and that both queue pairs fail then.
#[test]
fn access_is_checked() {
    type Case = (&'static str, fn(&Dev, &Dev) -> (Mem, u32), u64, usize, Op);
    let cases: [Case; 8] = [
        (
            "past the end",
            |d, _| (Mem::plain(d, 64, LOCAL | WRITE), 0),
            32,
            64,
            Op::IBV_WR_RDMA_WRITE,
        ),
        (
            "before the beginning",
            |d, _| (Mem::plain(d, 64, LOCAL | WRITE), 0),
            u64::MAX,
            8,
            Op::IBV_WR_RDMA_WRITE,
        ),
        (
            "wraps",
            |d, _| (Mem::plain(d, 64, LOCAL | WRITE), 0),
            u64::MAX - 100,
            200,
            Op::IBV_WR_RDMA_WRITE,
        ),
        (
            "no write right",
            |d, _| (Mem::plain(d, 64, LOCAL | READ), 0),
            0,
            8,
            Op::IBV_WR_RDMA_WRITE,
        ),
        (
            "no read right",
            |d, _| (Mem::plain(d, 64, LOCAL | WRITE), 0),
            0,
            8,
            Op::IBV_WR_RDMA_READ,
        ),
        (
            "stale key",
            |d, _| (Mem::plain(d, 64, LOCAL | WRITE), 0x100),
            0,
            8,
            Op::IBV_WR_RDMA_WRITE,
        ),
        (
            "other tag",
            |d, _| (Mem::plain(d, 64, LOCAL | WRITE), 1),
            0,
            8,
            Op::IBV_WR_RDMA_WRITE_WITH_IMM,
        ),
        (
            "other domain",
            |_, e| (Mem::plain(e, 64, LOCAL | WRITE), 0),
            0,
            8,
            Op::IBV_WR_RDMA_WRITE,
        ),
    ];
    for (name, make, off, len, op) in cases {
        let (dev, other) = (Dev::open(), Dev::open());
        let (a, b) = pair(&dev, &Options::default());
        let mine = Mem::plain(&dev, 4096, LOCAL);
        let (theirs, flip) = make(&dev, &other);
        b.recv(1, &mut [mine.sge(0, 64)]);
        a.post(&mut rdma(
            1,
            op,
            &mut [mine.sge(0, len)],
            0,
            theirs.addr().wrapping_add(off),
            theirs.key() ^ flip,
        ));
        a.post(&mut rdma(
            2,
            op,
            &mut [mine.sge(0, len)],
            SIGNALED,
            theirs.addr(),
            theirs.key(),
        ));
        let wc = a.next();
        assert_eq!(
            (wc.status, wc.wr_id),
            (Status::IBV_WC_REM_ACCESS_ERR, 1),
            "{name}"
        );
        assert_eq!(
            (a.next().status, a.state()),
            (Status::IBV_WC_WR_FLUSH_ERR, State::IBV_QPS_ERR),
            "{name}"
        );
        // What takes a receive takes it with it, as on rxe.
        let theirs = if op == Op::IBV_WR_RDMA_WRITE_WITH_IMM {
            Status::IBV_WC_REM_ACCESS_ERR
        } else {
            Status::IBV_WC_WR_FLUSH_ERR
        };
        assert_eq!(
            (b.next().status, b.state()),
            (theirs, State::IBV_QPS_ERR),
            "{name}"
        );
    }
}

/// Rights of the queue pair count too.
#[test]
fn queue_pair_access_flags() {
    let dev = Dev::open();
    let (a, b) = (
        End::new(&dev, &Options::default()),
        End::new(
            &dev,
            &Options {
                access: READ,
                ..Options::default()
            },
        ),
    );
    a.connect(b.qpn(), &Options::default());
    b.connect(a.qpn(), &Options::default());
    let (mine, theirs) = (
        Mem::plain(&dev, 64, LOCAL),
        Mem::plain(&dev, 64, LOCAL | READ | WRITE),
    );
    a.post(&mut rdma(
        1,
        Op::IBV_WR_RDMA_READ,
        &mut [mine.sge(0, 8)],
        SIGNALED,
        theirs.addr(),
        theirs.key(),
    ));
    assert_eq!(a.next().status, OK);
    a.post(&mut rdma(
        1,
        Op::IBV_WR_RDMA_WRITE,
        &mut [mine.sge(0, 8)],
        SIGNALED,
        theirs.addr(),
        theirs.key(),
    ));
    assert_eq!(a.next().status, Status::IBV_WC_REM_INV_REQ_ERR);
}

/// A bad local key is a local error and does not reach the peer.
#[test]
fn local_protection() {
    let dev = Dev::open();
    let (a, b) = pair(&dev, &Options::default());
    let mut mine = Mem::plain(&dev, 64, LOCAL);
    b.recv(1, &mut [mine.sge(0, 64)]);
    let sge = mine.sge(0, 8);
    mine.dereg();
    a.post(&mut wr(1, Op::IBV_WR_SEND, &mut [sge], SIGNALED));
    assert_eq!(a.next().status, Status::IBV_WC_LOC_PROT_ERR);
    assert_eq!((b.poll().is_none(), b.state()), (true, State::IBV_QPS_RTS));
    // No bytes need no key.
    let (a, b) = pair(&dev, &Options::default());
    b.recv(1, &mut []);
    a.post(&mut wr(
        1,
        Op::IBV_WR_SEND,
        &mut [ibverbs_sys::ibv_sge {
            addr: 1,
            length: 0,
            lkey: 99,
        }],
        SIGNALED,
    ));
    assert_eq!((a.next().status, b.next().byte_len), (OK, 0));
}

/// A message longer than the receive fails at both ends.
#[test]
fn short_receive() {
    let dev = Dev::open();
    let (a, b) = pair(&dev, &Options::default());
    let mine = Mem::plain(&dev, 8192, LOCAL);
    b.recv(1, &mut [mine.sge(0, 10), mine.sge(20, 10)]);
    b.recv(2, &mut [mine.sge(0, 10)]);
    a.post(&mut wr(1, Op::IBV_WR_SEND, &mut [mine.sge(0, 21)], 0));
    assert_eq!(a.next().status, Status::IBV_WC_REM_INV_REQ_ERR);
    let wc = b.next();
    assert_eq!((wc.status, wc.wr_id), (Status::IBV_WC_LOC_LEN_ERR, 1));
    assert_eq!(
        (b.next().status, a.state(), b.state()),
        (
            Status::IBV_WC_WR_FLUSH_ERR,
            State::IBV_QPS_ERR,
            State::IBV_QPS_ERR
        )
    );
}

/// A receive with a bad key fails at both ends.
#[test]
fn bad_receive_key() {
    let dev = Dev::open();
    let (a, b) = pair(&dev, &Options::default());
    let mine = Mem::plain(&dev, 8192, LOCAL);
    let readonly = Mem::plain(&dev, 8192, 0);
    b.recv(1, &mut [readonly.sge(0, 100)]);
    a.post(&mut wr(1, Op::IBV_WR_SEND, &mut [mine.sge(0, 21)], 0));
    assert_eq!(a.next().status, Status::IBV_WC_REM_OP_ERR);
    assert_eq!(b.next().status, Status::IBV_WC_LOC_PROT_ERR);
}

/// Receiver not ready: no retry fails at once, a finite number after its time, 7 waits for the receive.
#[test]
fn receiver_not_ready() {
    let dev = Dev::open();
    let mine = Mem::plain(&dev, 64, LOCAL);
    for retry in [0, 1] {
        let (a, b) = pair(
            &dev,
            &Options {
                rnr_retry: retry,
                ..Options::default()
            },
        );
        a.post(&mut wr(1, Op::IBV_WR_SEND, &mut [mine.sge(0, 8)], 0));
        assert_eq!(a.next().status, Status::IBV_WC_RNR_RETRY_EXC_ERR);
        assert_eq!(
            (a.state(), b.state()),
            (State::IBV_QPS_ERR, State::IBV_QPS_RTS)
        );
    }
    let (a, b) = pair(&dev, &Options::default());
    mine.fill(0, b"parked!!");
    for i in 0..4 {
        assert_eq!(
            a.post(&mut wr(
                i,
                Op::IBV_WR_SEND,
                &mut [mine.sge(i as usize, 2)],
                SIGNALED
            )),
            0
        );
    }
    let to = Mem::plain(&dev, 64, LOCAL);
    for i in 0..4 {
        assert!(b.poll().is_none());
        b.recv(i, &mut [to.sge(0, 64)]);
        // The sender makes no call at all: its work goes on nevertheless.
        let wc = b.next();
        assert_eq!(
            (wc.status, wc.wr_id, to.get(0, 2)),
            (OK, i, b"parked!!"[i as usize..][..2].to_vec())
        );
    }
    for i in 0..4 {
        assert_eq!((a.next().wr_id, b.poll().is_none()), (i, true));
    }
}

/// Memory that is mapped read-only can be registered for reading, not for the device to write to; what is not mapped, not at all.
#[test]
fn registering_memory_of_less_rights() {
    let dev = Dev::open();
    const PAGE: usize = 4096;
    let at = unsafe {
        let (prot, flags) = (
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
        );
        libc::mmap(std::ptr::null_mut(), 3 * PAGE, prot, flags, -1, 0)
    };
    assert_ne!(at, libc::MAP_FAILED);
    let page = |n: usize| unsafe { at.byte_add(n * PAGE) };
    unsafe {
        assert_eq!(libc::mprotect(page(1), PAGE, libc::PROT_READ), 0);
        assert_eq!(libc::munmap(page(2), PAGE), 0);
    }
    for (first, pages, access, fine) in [
        (0, 1, LOCAL, true),
        (0, 1, LOCAL | WRITE, true),
        (1, 1, READ, true),
        (0, 2, READ, true),
        (1, 1, LOCAL, false),
        (0, 2, LOCAL | READ, false),
        (1, 2, READ, false),
    ] {
        let mr = unsafe { (api().ibv_reg_mr)(dev.pd, page(first), pages * PAGE, access as i32) };
        let errno = std::io::Error::last_os_error().raw_os_error();
        assert_eq!(
            !mr.is_null(),
            fine,
            "pages {first}, {pages}, access {access}"
        );
        if fine {
            assert_eq!(unsafe { (api().ibv_dereg_mr)(mr) }, 0);
        } else {
            assert_eq!(errno, Some(libc::EFAULT));
        }
    }
    assert_eq!(unsafe { libc::munmap(at, 2 * PAGE) }, 0);
}

/// The path to a peer: by a GID of this device, as with RoCE.
#[test]
fn paths() {
    let dev = Dev::open();
    let path = |o: &Options, global: bool, index: u8, dgid: ibverbs_sys::ibv_gid, port: u8| {
        let end = End::new(&dev, o);
        let mut attr = end.rtr_attr(end.qpn());
        attr.ah_attr.is_global = u8::from(global);
        attr.ah_attr.grh.sgid_index = index;
        attr.ah_attr.grh.dgid = dgid;
        attr.ah_attr.port_num = port;
        let rc = end.modify(&mut attr, end.rtr_mask());
        let after = match rc {
            0 => State::IBV_QPS_RTR,
            _ => State::IBV_QPS_INIT,
        };
        assert_eq!(end.state(), after);
        rc
    };
    let mut gid = ibverbs_sys::ibv_gid { raw: [0; 16] };
    assert_eq!(unsafe { (api().ibv_query_gid)(dev.ctx, 1, 1, &mut gid) }, 0);
    let nobodys = ibverbs_sys::ibv_gid { raw: [7; 16] };
    for qp_type in [Type::IBV_QPT_RC, Type::IBV_QPT_UC] {
        let o = Options {
            qp_type,
            ..Options::default()
        };
        assert_eq!(path(&o, true, 1, gid, 1), 0);
        assert_eq!(path(&o, false, 1, gid, 1), libc::EINVAL);
        assert_eq!(path(&o, true, 1, nobodys, 1), libc::ENETUNREACH);
        assert_eq!(path(&o, true, 9, gid, 1), libc::EINVAL);
        assert_eq!(path(&o, true, 1, gid, 2), libc::EINVAL);
    }
}
