//! Unreliable connections: what arrives is as on reliable ones, what cannot arrive is lost without a word.
#![allow(missing_docs, clippy::undocumented_unsafe_blocks)]

mod common;
mod second;
use common::*;
use ibverbs_sys::ibv_qp_type as Type;
use ibverbs_sys::ibv_wr_opcode as Op;
use ibverbs_sys::{ibv_qp_state as State, ibv_wc_opcode as Wc, ibv_wc_status as Status};
use second::*;
use softverbs::memory::Kind;

#[test]
#[ignore = "the second process of the tests in this file"]
fn second_process() {
    serve();
}

fn uc() -> Options {
    Options {
        qp_type: Type::IBV_QPT_UC,
        ..Options::default()
    }
}

fn send(end: &End, id: u64, mem: &Mem, len: usize) {
    let mut sges = [mem.sge(0, len)];
    assert_eq!(
        end.post(&mut wr(id, Op::IBV_WR_SEND, &mut sges, SIGNALED)),
        0
    );
}

#[test]
fn messages_arrive() {
    let dev = Dev::open();
    let (a, b) = pair(&dev, &uc());
    let from = Mem::plain(&dev, 1 << 20, LOCAL);
    for to in [
        Mem::plain(&dev, 1 << 20, LOCAL | WRITE),
        Mem::file(&dev, 1 << 20, LOCAL | WRITE, Kind::Exposed),
        Mem::file(&dev, 1 << 20, LOCAL | WRITE, Kind::Private),
    ] {
        for len in [0, 1, 32, 33, 256, 257, 5000, 1 << 20] {
            from.fill(0, &pattern(len, len));
            assert_eq!(b.recv(3, &mut [to.sge(0, 1 << 20)]), 0);
            send(&a, 1, &from, len);
            assert_eq!((a.next().status, b.next().byte_len as usize), (OK, len));
            assert_eq!(to.get(0, len), pattern(len, len));

            to.fill(0, &vec![0; len]);
            assert_eq!(b.recv(4, &mut []), 0);
            let op = Op::IBV_WR_RDMA_WRITE_WITH_IMM;
            let mut sges = [from.sge(0, len)];
            let mut write = rdma(2, op, &mut sges, SIGNALED, to.addr(), to.key());
            write.__bindgen_anon_1.imm_data = 7;
            assert_eq!(a.post(&mut write), 0);
            let wc = b.next();
            assert_eq!(
                (a.next().status, wc.opcode, wc.wr_id),
                (OK, Wc::IBV_WC_RECV_RDMA_WITH_IMM, 4)
            );
            assert_eq!(to.get(0, len), pattern(len, len));
        }
    }
}

/// Without a receive, or with a bad key, the message is lost: the sender succeeds, both go on.
#[test]
fn what_cannot_arrive_is_lost() {
    let dev = Dev::open();
    let (a, b) = pair(&dev, &uc());
    let from = Mem::plain(&dev, 4096, LOCAL);
    let to = Mem::plain(&dev, 4096, LOCAL | WRITE);
    from.fill(0, &[1; 4096]);
    let unharmed = |what: &str| {
        assert!(b.poll().is_none(), "{what}");
        assert_eq!([a.state(), b.state()], [State::IBV_QPS_RTS; 2], "{what}");
        assert_eq!(to.get(0, 4096), [0; 4096], "{what}");
    };
    for len in [0, 8, 4096] {
        send(&a, 1, &from, len);
        let wc = a.next();
        assert_eq!((wc.status, wc.byte_len as usize), (OK, len));
        unharmed("no receive");
    }
    assert_eq!(b.recv(1, &mut [to.sge(0, 10)]), 0);
    for op in [Op::IBV_WR_RDMA_WRITE, Op::IBV_WR_RDMA_WRITE_WITH_IMM] {
        for (addr, key) in [(to.addr(), to.key() ^ 1), (to.addr() + 1, to.key())] {
            let mut sges = [from.sge(0, 4096)];
            a.post(&mut rdma(1, op, &mut sges, SIGNALED, addr, key));
            assert_eq!(a.next().status, OK);
            unharmed("bad key");
        }
    }
    // The receive was not taken by any of them.
    send(&a, 1, &from, 10);
    assert_eq!((a.next().status, b.next().wr_id), (OK, 1));
    assert_eq!(to.get(0, 11), [[1; 10].as_slice(), &[0]].concat());
}

/// A receive that cannot be used is the receiver's error; the sender learns nothing.
#[test]
fn a_bad_receive_ends_the_receiver() {
    let dev = Dev::open();
    let (a, b) = pair(&dev, &uc());
    let mem = Mem::plain(&dev, 64, 0);
    assert_eq!(b.recv(1, &mut [mem.sge(0, 64)]), 0);
    for _ in 0..2 {
        send(&a, 1, &mem, 8);
        assert_eq!((a.next().status, a.state()), (OK, State::IBV_QPS_RTS));
    }
    let wc = b.next();
    assert_eq!((wc.status, wc.wr_id), (Status::IBV_WC_LOC_PROT_ERR, 1));
    assert_eq!(b.state(), State::IBV_QPS_ERR);
}

/// So is one that is too short, whether the message would ride in the lane or not; the receives after it are flushed.
#[test]
fn a_short_receive_ends_the_receiver() {
    let dev = Dev::open();
    let from = Mem::plain(&dev, 4096, LOCAL);
    from.fill(0, &[1; 4096]);
    for len in [11, 300, 4096] {
        let (a, b) = pair(&dev, &uc());
        let to = Mem::plain(&dev, 4096, LOCAL);
        assert_eq!(b.recv(1, &mut [to.sge(0, 10)]), 0);
        assert_eq!(b.recv(2, &mut [to.sge(0, 4096)]), 0);
        send(&a, 1, &from, len);
        assert_eq!(a.next().status, OK);
        let wc = b.next();
        assert_eq!((wc.status, wc.wr_id), (Status::IBV_WC_LOC_LEN_ERR, 1));
        assert_eq!(b.state(), State::IBV_QPS_ERR);
        let wc = b.next();
        assert_eq!((wc.status, wc.wr_id), (Status::IBV_WC_WR_FLUSH_ERR, 2));
        // The sender goes on, into nothing.
        send(&a, 2, &from, 8);
        assert_eq!((a.next().status, a.state()), (OK, State::IBV_QPS_RTS));
        assert_eq!((b.poll().is_none(), to.get(0, 4096)), (true, vec![0; 4096]));
    }
}

/// Nothing can be brought back.
#[test]
fn no_reads_and_no_atomics() {
    let dev = Dev::open();
    let mem = Mem::plain(&dev, 64, LOCAL | READ | ATOMIC);
    let (a, _b) = pair(&dev, &uc());
    let mut sges = [mem.sge(0, 8)];
    let mut read = rdma(1, Op::IBV_WR_RDMA_READ, &mut sges, 0, mem.addr(), mem.key());
    assert_eq!(a.post(&mut read), 0);
    assert_eq!(a.next().status, Status::IBV_WC_LOC_QP_OP_ERR);
    let (a, _b) = pair(&dev, &uc());
    let op = Op::IBV_WR_ATOMIC_FETCH_AND_ADD;
    let mut sges = [mem.sge(0, 8)];
    let mut add = atomic(1, op, &mut sges, mem.addr(), mem.key(), [1, 0]);
    assert_eq!(a.post(&mut add), 0);
    assert_eq!(a.next().status, Status::IBV_WC_LOC_QP_OP_ERR);
    // A bad local key is an error here, too.
    let (a, _b) = pair(&dev, &uc());
    let mut sges = [ibverbs_sys::ibv_sge {
        lkey: mem.key() ^ 1,
        ..mem.sge(0, 8)
    }];
    assert_eq!(a.post(&mut wr(1, Op::IBV_WR_SEND, &mut sges, 0)), 0);
    assert_eq!(a.next().status, Status::IBV_WC_LOC_PROT_ERR);
}

/// Messages to a peer that is not there are lost; one that comes back gets them again.
#[test]
fn a_peer_that_comes_back() {
    let dev = Dev::open();
    let o = uc();
    let (a, b) = (End::new(&dev, &o), End::new(&dev, &o));
    let mem = Mem::plain(&dev, 64, LOCAL);
    a.connect(b.qpn(), &o);
    for round in 0..5 {
        send(&a, 1, &mem, 8);
        assert_eq!(a.next().status, OK, "before");
        b.connect(a.qpn(), &o);
        assert_eq!(b.recv(round, &mut [mem.sge(0, 8)]), 0);
        send(&a, 2, &mem, 8);
        assert_eq!((a.next().status, b.next().wr_id), (OK, round));
        assert_eq!(b.set_state(State::IBV_QPS_ERR), 0);
        send(&a, 3, &mem, 8);
        assert_eq!(a.next().status, OK, "failed");
        assert_eq!(b.set_state(State::IBV_QPS_RESET), 0);
        b.init(&o);
    }
    // A reliable one is no peer for it.
    let c = End::new(&dev, &Options::default());
    c.connect(a.qpn(), &Options::default());
    assert_eq!(c.recv(1, &mut [mem.sge(0, 8)]), 0);
    let d = End::new(&dev, &o);
    d.connect(c.qpn(), &o);
    send(&d, 1, &mem, 8);
    assert_eq!((d.next().status, c.poll().is_none()), (OK, true));
}

/// From a shared queue: what was taken completes, if only with an error.
#[test]
fn a_shared_queue() {
    let dev = Dev::open();
    let srq = Srq::new(&dev, 4, 1);
    let o = Options {
        srq: srq.0,
        cqe: 64,
        ..uc()
    };
    let (a, b) = pair(&dev, &o);
    let mem = Mem::plain(&dev, 4096, LOCAL);
    send(&a, 1, &mem, 8);
    assert_eq!((a.next().status, b.poll().is_none()), (OK, true));
    for (id, len) in [(1, 8), (2, 2000)] {
        assert_eq!(srq.recv(id, &mut [mem.sge(2048, 2048)]), 0);
        send(&a, 1, &mem, len);
        assert_eq!((a.next().status, b.next().wr_id), (OK, id));
    }
    assert_eq!(srq.recv(3, &mut [mem.sge(2048, 8)]), 0);
    send(&a, 1, &mem, 9);
    let wc = b.next();
    assert_eq!(
        (a.next().status, wc.status, wc.wr_id),
        (OK, Status::IBV_WC_LOC_LEN_ERR, 3)
    );
}

/// A peer in another process is killed: messages to it are lost, and nobody is told.
#[test]
fn a_killed_peer() {
    let dev = Dev::open();
    let o = uc();
    for env in [&[][..], &[("VERBATIM_ASYNC", "3")][..]] {
        let mut second = Second::start(&[env, &[("SOFTVERBS_UC", "1")]].concat());
        let end = End::new(&dev, &o);
        second.ask(&format!("connect {}", end.qpn()));
        end.connect(second.qpn, &o);
        let mem = Mem::file(&dev, SIZE, LOCAL, Kind::Private);
        for (kind, len) in [0, 1, 2, 4]
            .into_iter()
            .flat_map(|k| [8, 300, SIZE].map(|l| (k, l)))
        {
            mem.fill(0, &pattern(len, len));
            second.ask(&format!("recv 5 {kind} {SIZE}"));
            send(&end, 1, &mem, len);
            assert_eq!(end.next().status, OK);
            assert_eq!(second.ask("next"), format!("0 5 {len}"));
            assert_eq!(second.ask(&format!("check {kind} {len} {len}")), "true");
            assert_eq!(end.recv(6, &mut [mem.sge(0, SIZE)]), 0);
            second.ask(&format!("fill {kind} {len} 9"));
            assert_eq!(second.ask(&format!("send {kind} {len}")), "0");
            assert_eq!(end.next().byte_len as usize, len);
            assert_eq!(mem.get(0, len), pattern(9, len));
        }
        second.ask("recv 5 0 8");
        second.kill();
        for len in [8, 300, SIZE] {
            send(&end, 1, &mem, len);
            assert_eq!((end.next().status, end.state()), (OK, State::IBV_QPS_RTS));
        }
    }
}
