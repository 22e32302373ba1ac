//! Datagrams within a process.
#![allow(missing_docs, clippy::undocumented_unsafe_blocks)]

mod common;
mod second;
use common::*;
use ibverbs_sys::ibv_wr_opcode as Op;
use ibverbs_sys::{ibv_ah_attr, ibv_qp_attr, ibv_qp_attr_mask as Mask};
use ibverbs_sys::{ibv_qp_state as State, ibv_wc_flags as Flags, ibv_wc_status as Status};
use second::pattern;
use softverbs::memory::Kind;

#[test]
fn datagrams_arrive_with_a_way_back() {
    let dev = Dev::open();
    let (a, b) = (datagram_end(&dev, &ud()), datagram_end(&dev, &ud()));
    let from = Mem::plain(&dev, MTU, LOCAL);
    let to = Mem::file(&dev, GRH + MTU, LOCAL, Kind::Receive);
    for index in [0, 1] {
        let ah = Ah::new(&dev, index);
        for (round, len) in [0, 1, 8, 255, 2000, MTU].into_iter().enumerate() {
            for op in [Op::IBV_WR_SEND, Op::IBV_WR_SEND_WITH_IMM] {
                from.fill(0, &pattern(len, len));
                let id = round as u64;
                // In two pieces of which the first ends within the header.
                let mut sges = [to.sge(0, 30), to.sge(30, GRH + MTU - 30)];
                assert_eq!(b.recv(id, &mut sges), 0);
                let mut sges = [from.sge(0, len / 3), from.sge(len / 3, len - len / 3)];
                let mut wr = ah.to(b.qpn(), op, &mut sges);
                wr.__bindgen_anon_1.imm_data = 0x0102_0304;
                assert_eq!(a.post(&mut wr), 0);
                assert_eq!(a.next().status, OK);
                let mut wc = b.next();
                assert_eq!((wc.status, wc.wr_id), (OK, id));
                assert_eq!(wc.byte_len as usize, GRH + len);
                assert_eq!((wc.qp_num, wc.src_qp), (b.qpn(), a.qpn()));
                let imm = op == Op::IBV_WR_SEND_WITH_IMM;
                let expected = Flags::IBV_WC_GRH.0 | if imm { Flags::IBV_WC_WITH_IMM.0 } else { 0 };
                assert_eq!(wc.wc_flags, expected);
                assert!(!imm || unsafe { wc.__bindgen_anon_1.imm_data } == 0x0102_0304);
                assert_eq!(to.get(GRH, len), pattern(len, len));
                // The answer finds its way by what arrived.
                let back = answer(&dev, &mut wc, &to);
                assert_eq!(a.recv(77, &mut [from.sge(0, GRH + 1)]), 0);
                send_datagram(&b, &back, wc.src_qp, &to, 1);
                assert_eq!((a.next().wr_id, index), (77, 1.min(index)));
            }
        }
    }
}

/// Whatever is wrong with where it goes, the sender succeeds, and no receive is lost.
#[test]
fn what_cannot_arrive_is_dropped() {
    let dev = Dev::open();
    let (a, b) = (datagram_end(&dev, &ud()), datagram_end(&dev, &ud()));
    let ah = Ah::new(&dev, 1);
    let from = Mem::plain(&dev, 2 * MTU, LOCAL);
    let to = Mem::plain(&dev, GRH + MTU, LOCAL);
    let nothing = |why: &str| {
        assert!(b.poll().is_none(), "{why}");
        assert_eq!([a.state(), b.state()], [State::IBV_QPS_RTS; 2], "{why}");
    };
    send_datagram(&a, &ah, b.qpn(), &from, 8);
    nothing("no receive");
    // It does not wait for one either.
    assert_eq!(b.recv(1, &mut [to.sge(0, GRH + 100)]), 0);
    nothing("no receive when it was sent");
    let mut sges = [from.sge(0, 8)];
    let mut wrong = ah.to(b.qpn(), Op::IBV_WR_SEND, &mut sges);
    wrong.wr.ud.remote_qkey = QKEY ^ 1;
    assert_eq!(a.post(&mut wrong), 0);
    assert_eq!(a.next().status, OK);
    nothing("another key");
    // As with Linux's rxe, and as the specification says (C10-93.1.1): not sent, and no error.
    send_datagram(&a, &ah, b.qpn(), &from, MTU + 1);
    nothing("longer than the MTU");
    let rc = datagram_end(&dev, &Options::default());
    for nobody in [0, 1, 0xff_ffff, b.qpn() ^ 0x55, rc.qpn()] {
        send_datagram(&a, &ah, nobody, &from, 8);
    }
    nothing("somebody else");
    // The receive is still there.
    send_datagram(&a, &ah, b.qpn(), &from, 100);
    assert_eq!((b.next().wr_id, b.poll().is_none()), (1, true));

    // A queue pair that does not receive yet, or not any more.
    let c = End::new(&dev, &ud());
    assert_eq!(c.recv(1, &mut [to.sge(0, GRH + 8)]), 0);
    send_datagram(&a, &ah, c.qpn(), &from, 8);
    assert_eq!(c.rtr(0), 0);
    assert!(c.poll().is_none());
    send_datagram(&a, &ah, c.qpn(), &from, 8);
    assert_eq!(c.next().status, OK);
    assert_eq!(c.recv(2, &mut [to.sge(0, GRH + 8)]), 0);
    assert_eq!(c.set_state(State::IBV_QPS_ERR), 0);
    send_datagram(&a, &ah, c.qpn(), &from, 8);
    let wc = c.next();
    assert_eq!((wc.status, wc.wr_id), (Status::IBV_WC_WR_FLUSH_ERR, 2));
}

/// A receive without room for the message, or not even for what is before it, fails and ends its queue pair: what came after it
/// is lost, and the other receives are flushed.
#[test]
fn a_short_receive_ends_the_receiver() {
    let dev = Dev::open();
    let ah = Ah::new(&dev, 1);
    let from = Mem::plain(&dev, MTU, LOCAL);
    from.fill(0, &pattern(1, MTU));
    let to = Mem::plain(&dev, GRH + MTU, LOCAL);
    let a = datagram_end(&dev, &ud());
    for (room, len) in [(0, 0), (20, 0), (GRH - 1, 0), (GRH, 1), (GRH + 100, 101)] {
        let b = datagram_end(&dev, &ud());
        assert_eq!(b.recv(1, &mut [to.sge(0, GRH + 8)]), 0);
        assert_eq!(b.recv(2, &mut [to.sge(0, room)]), 0);
        assert_eq!(b.recv(3, &mut [to.sge(0, GRH + MTU)]), 0);
        for len in [8, len, 8] {
            send_datagram(&a, &ah, b.qpn(), &from, len);
        }
        let (first, failed) = (b.next(), b.next());
        assert_eq!((first.status, first.wr_id), (OK, 1), "{room}");
        assert_eq!(to.get(GRH, 8), pattern(1, 8));
        let expected = (Status::IBV_WC_LOC_LEN_ERR, 2);
        assert_eq!((failed.status, failed.wr_id), expected, "{room}");
        assert_eq!(b.state(), State::IBV_QPS_ERR);
        let last = b.next();
        let expected = (Status::IBV_WC_WR_FLUSH_ERR, 3);
        assert_eq!((last.status, last.wr_id), expected, "{room}");
        assert_eq!(a.state(), State::IBV_QPS_RTS);
    }
}

#[test]
fn as_many_as_there_are_receives() {
    let dev = Dev::open();
    let (a, b) = (datagram_end(&dev, &ud()), datagram_end(&dev, &ud()));
    let ah = Ah::new(&dev, 1);
    let mem = Mem::plain(&dev, MTU, LOCAL);
    // More than the mailbox has places, in all.
    for round in 0..20 {
        let count = 1 + round % 16;
        for id in 0..count {
            assert_eq!(b.recv(id, &mut [mem.sge(1024, GRH + 16)]), 0);
        }
        for len in 0..16 {
            send_datagram(&a, &ah, b.qpn(), &mem, len);
        }
        // One that is posted now is for none of these.
        let late = b.recv(99, &mut [mem.sge(1024, GRH + 16)]);
        assert_eq!(late, if count < 16 { 0 } else { libc::ENOMEM });
        for id in 0..count {
            let wc = b.next();
            assert_eq!((wc.wr_id, wc.byte_len as u64), (id, GRH as u64 + id));
        }
        assert!(b.poll().is_none());
        if late == 0 {
            send_datagram(&a, &ah, b.qpn(), &mem, 16);
            assert_eq!(b.next().wr_id, 99);
        }
    }
}

/// From many, each to each, and to itself.
#[test]
fn many_to_one() {
    let dev = Dev::open();
    let ends: Vec<End> = (0..5).map(|_| datagram_end(&dev, &ud())).collect();
    let ah = Ah::new(&dev, 0);
    let mem = Mem::plain(&dev, MTU, LOCAL);
    for to in &ends {
        for id in 0..10 {
            assert_eq!(to.recv(100 + id, &mut [mem.sge(64, 64)]), 0);
        }
        let mut froms = Vec::new();
        for from in ends.iter().chain(&ends) {
            let mut sges = [mem.sge(0, 5)];
            assert_eq!(
                from.post(&mut ah.to(to.qpn(), Op::IBV_WR_SEND, &mut sges)),
                0
            );
            // Its own completion, and that of the receive, in whatever order.
            for of in [from, to] {
                let wc = of.next();
                assert_eq!(wc.status, OK);
                if wc.wr_id >= 100 {
                    assert_eq!(wc.wr_id, 100 + froms.len() as u64);
                    froms.push(wc.src_qp);
                }
            }
        }
        let expected = ends.iter().chain(&ends).map(End::qpn);
        assert!(froms.into_iter().eq(expected));
    }
}

#[test]
fn address_handles() {
    let dev = Dev::open();
    let refused = |attr: &mut ibv_ah_attr, errno: i32| {
        let ah = unsafe { (api().ibv_create_ah)(dev.pd, attr) };
        let error = std::io::Error::last_os_error().raw_os_error();
        assert_eq!((ah.is_null(), error), (true, Some(errno)));
    };
    let attr = || Ah::attr(dev.ctx, 1);
    refused(
        &mut ibv_ah_attr {
            port_num: 2,
            ..attr()
        },
        libc::EINVAL,
    );
    refused(
        &mut ibv_ah_attr {
            is_global: 0,
            ..attr()
        },
        libc::EINVAL,
    );
    let mut far = attr();
    unsafe { far.grh.dgid.raw[15] ^= 1 };
    refused(&mut far, libc::ENETUNREACH);
    let mut mixed = attr();
    mixed.grh.sgid_index = 0;
    refused(&mut mixed, libc::EINVAL);
    mixed.grh.sgid_index = 9;
    refused(&mut mixed, libc::EINVAL);
    // It keeps its domain.
    let ah = Ah::new(&dev, 1);
    assert_eq!(unsafe { (api().ibv_dealloc_pd)(dev.pd) }, libc::EBUSY);
    drop(ah);
}

#[test]
fn what_the_local_side_gets_wrong() {
    let dev = Dev::open();
    let mem = Mem::plain(&dev, 64, LOCAL);
    let ah = Ah::new(&dev, 1);
    let a = datagram_end(&dev, &ud());
    let mut sges = [mem.sge(0, 8)];
    // Without an address.
    assert_eq!(
        a.post(&mut wr(1, Op::IBV_WR_SEND, &mut sges, 0)),
        libc::EINVAL
    );
    for op in [Op::IBV_WR_RDMA_WRITE, Op::IBV_WR_RDMA_READ] {
        assert_eq!(a.post(&mut ah.to(a.qpn(), op, &mut sges)), 0);
        assert_eq!(a.next().status, Status::IBV_WC_LOC_QP_OP_ERR);
        // The specification's state for this, which rxe does not have.
        assert_eq!(a.state(), State::IBV_QPS_SQE);
        assert_eq!(a.set_state(State::IBV_QPS_RTS), 0);
    }
    // A receive that cannot be written to ends the receiver.
    let b = datagram_end(&dev, &ud());
    let bad = Mem::plain(&dev, 64, 0);
    assert_eq!(b.recv(1, &mut [bad.sge(0, 64)]), 0);
    send_datagram(&a, &ah, b.qpn(), &mem, 8);
    let wc = b.next();
    assert_eq!((wc.status, wc.wr_id), (Status::IBV_WC_LOC_PROT_ERR, 1));
    assert_eq!(
        (a.state(), b.state()),
        (State::IBV_QPS_RTS, State::IBV_QPS_ERR)
    );
}

#[test]
fn keys_can_be_changed_and_be_the_senders_own() {
    let dev = Dev::open();
    let (a, b) = (datagram_end(&dev, &ud()), datagram_end(&dev, &ud()));
    let mem = Mem::plain(&dev, 128, LOCAL);
    let ah = Ah::new(&dev, 1);
    let mut attr = ibv_qp_attr {
        qkey: 5,
        ..Default::default()
    };
    assert_eq!(b.modify(&mut attr, Mask::IBV_QP_QKEY.0), 0);
    assert_eq!(b.recv(1, &mut [mem.sge(0, 64)]), 0);
    send_datagram(&a, &ah, b.qpn(), &mem, 8);
    assert!(b.poll().is_none());
    // With the highest bit set, the key is that of the sender's queue pair.
    assert_eq!(a.modify(&mut attr, Mask::IBV_QP_QKEY.0), 0);
    let mut sges = [mem.sge(0, 8)];
    let mut own = ah.to(b.qpn(), Op::IBV_WR_SEND, &mut sges);
    own.wr.ud.remote_qkey = 1 << 31;
    assert_eq!(a.post(&mut own), 0);
    assert_eq!((a.next().status, b.next().wr_id), (OK, 1));
}

#[test]
fn from_a_shared_queue() {
    let dev = Dev::open();
    let srq = Srq::new(&dev, 8, 1);
    let o = Options {
        srq: srq.0,
        cqe: 64,
        ..ud()
    };
    let (a, b, c) = (
        datagram_end(&dev, &ud()),
        datagram_end(&dev, &o),
        datagram_end(&dev, &o),
    );
    let mem = Mem::plain(&dev, MTU, LOCAL);
    let ah = Ah::new(&dev, 1);
    let post = |id: u64| assert_eq!(srq.recv(id, &mut [mem.sge(1024, GRH + 100)]), 0);
    send_datagram(&a, &ah, b.qpn(), &mem, 8);
    post(0);
    assert!(b.poll().is_none(), "there was none when it was sent");
    (1..4).for_each(post);
    for _ in 0..6 {
        send_datagram(&a, &ah, b.qpn(), &mem, 7);
    }
    // In the order in which they were posted.
    let ids: Vec<u64> = (0..4).map(|_| b.next().wr_id).collect();
    assert_eq!((ids, b.poll().is_none()), (vec![0, 1, 2, 3], true));
    // Two that share: each entry goes to one of them.
    assert_eq!(srq.limit(3), 0);
    (0..4).for_each(post);
    for to in [&b, &c, &b] {
        send_datagram(&a, &ah, to.qpn(), &mem, 8);
    }
    assert_eq!([b.next(), c.next(), b.next()].map(|wc| wc.status), [OK; 3]);
    assert_eq!(
        event(&dev).0,
        ibverbs_sys::ibv_event_type::IBV_EVENT_SRQ_LIMIT_REACHED
    );
    // One fails; what it did not take is the other's.
    assert_eq!(b.set_state(State::IBV_QPS_ERR), 0);
    assert_eq!(
        event(&dev).0,
        ibverbs_sys::ibv_event_type::IBV_EVENT_QP_LAST_WQE_REACHED
    );
    send_datagram(&a, &ah, b.qpn(), &mem, 8);
    send_datagram(&a, &ah, c.qpn(), &mem, 8);
    assert_eq!((c.next().status, b.poll().is_none()), (OK, true));
}

/// Posted work does not need its address handle, and memory of receives is given back with datagrams on their way to it.
/// A receive of a shared queue that is too short is used up, and its queue pair fails; the next one is for the others.
#[test]
fn a_short_receive_of_a_shared_queue() {
    let dev = Dev::open();
    let srq = Srq::new(&dev, 8, 1);
    let o = Options {
        srq: srq.0,
        cqe: 64,
        ..ud()
    };
    let (a, b, c) = (
        datagram_end(&dev, &ud()),
        datagram_end(&dev, &o),
        datagram_end(&dev, &o),
    );
    let mem = Mem::plain(&dev, MTU, LOCAL);
    let ah = Ah::new(&dev, 1);
    for (id, room) in [(1, 50), (2, 64)] {
        assert_eq!(srq.recv(id, &mut [mem.sge(1024, room)]), 0);
    }
    for len in [16, 8] {
        send_datagram(&a, &ah, b.qpn(), &mem, len);
    }
    let wc = b.next();
    assert_eq!((wc.status, wc.wr_id), (Status::IBV_WC_LOC_LEN_ERR, 1));
    assert_eq!(b.state(), State::IBV_QPS_ERR);
    assert_eq!(
        event(&dev).0,
        ibverbs_sys::ibv_event_type::IBV_EVENT_QP_LAST_WQE_REACHED
    );
    assert!(b.poll().is_none(), "what came after it");
    send_datagram(&a, &ah, c.qpn(), &mem, 8);
    let wc = c.next();
    assert_eq!((wc.status, wc.wr_id), (OK, 2));
    // Its place in the queue is free again.
    for id in 3..11 {
        assert_eq!(srq.recv(id, &mut [mem.sge(1024, 64)]), 0);
    }
}

#[test]
fn lifetimes() {
    let dev = Dev::open();
    let (a, b) = (datagram_end(&dev, &ud()), datagram_end(&dev, &ud()));
    let (from, mut to) = (Mem::plain(&dev, 64, LOCAL), Mem::plain(&dev, 64, LOCAL));
    let ah = Ah::new(&dev, 1);
    assert_eq!(b.recv(1, &mut [to.sge(0, 64)]), 0);
    assert_eq!(
        a.post(&mut ah.to(b.qpn(), Op::IBV_WR_SEND, &mut [from.sge(0, 8)])),
        0
    );
    drop(ah);
    assert_eq!(a.next().status, OK);
    to.dereg();
    assert_eq!(b.next().status, Status::IBV_WC_LOC_PROT_ERR);
    // Made anew, it has nothing of before.
    for _ in 0..3 {
        assert_eq!(b.set_state(State::IBV_QPS_RESET), 0);
        b.init(&ud());
        b.connect(0, &ud());
        let ah = Ah::new(&dev, 1);
        assert_eq!(b.recv(2, &mut [from.sge(0, 64)]), 0);
        send_datagram(&a, &ah, b.qpn(), &from, 8);
        assert_eq!((b.next().wr_id, b.poll().is_none()), (2, true));
        assert_eq!(b.recv(3, &mut [from.sge(0, 64)]), 0);
        send_datagram(&a, &ah, b.qpn(), &from, 8);
    }
}
