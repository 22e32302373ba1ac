//! Datagrams, within a process and between two.
#![allow(missing_docs, clippy::undocumented_unsafe_blocks)]

mod common;
mod second;
use common::*;
use ibverbs_sys::ibv_wr_opcode as Op;
use ibverbs_sys::{ibv_ah_attr, ibv_grh, ibv_qp_attr, ibv_qp_attr_mask as Mask, ibv_wc};
use ibverbs_sys::{ibv_qp_state as State, ibv_wc_flags as Flags, ibv_wc_status as Status};
use second::{Second, pattern};
use softverbs::faults::Step;
use softverbs::memory::Kind;

const GRH: usize = 40;
const MTU: usize = 4096;

#[test]
#[ignore = "the second process of the tests in this file"]
fn second_process() {
    serve();
}

/// A queue pair that sends and receives.
fn end(dev: &Dev, o: &Options) -> End {
    let end = End::new(dev, o);
    end.connect(0, o);
    end
}

fn send(end: &End, ah: &Ah, to: u32, mem: &Mem, len: usize) {
    let mut sges = [mem.sge(0, len)];
    assert_eq!(end.post(&mut ah.to(to, Op::IBV_WR_SEND, &mut sges)), 0);
    let wc = end.next();
    assert_eq!((wc.status, wc.byte_len as usize), (OK, len));
}

fn grh(mem: &Mem) -> ibv_grh {
    let bytes: [u8; GRH] = mem.get(0, GRH).try_into().unwrap();
    unsafe { std::mem::transmute(bytes) }
}

#[test]
fn datagrams_arrive_with_a_way_back() {
    let dev = Dev::open();
    let (a, b) = (end(&dev, &ud()), end(&dev, &ud()));
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
                send(&b, &back, wc.src_qp, &to, 1);
                assert_eq!((a.next().wr_id, index), (77, 1.min(index)));
            }
        }
    }
}

/// An address handle by what arrived, made in both ways.
fn answer(dev: &Dev, wc: &mut ibv_wc, mem: &Mem) -> Ah {
    let mut attr = ibv_ah_attr::default();
    let mut header = grh(mem);
    unsafe {
        let rc = (api().ibv_init_ah_from_wc)(dev.ctx, 1, wc, &mut header, &mut attr);
        assert_eq!(rc, 0);
        assert_eq!((attr.is_global, attr.port_num), (1, 1));
        Ah((api().ibv_create_ah_from_wc)(dev.pd, wc, &mut header, 1))
    }
}

/// Whatever is wrong with where it goes, the sender succeeds, and no receive is lost.
#[test]
fn what_cannot_arrive_is_dropped() {
    let dev = Dev::open();
    let (a, b) = (end(&dev, &ud()), end(&dev, &ud()));
    let ah = Ah::new(&dev, 1);
    let from = Mem::plain(&dev, 2 * MTU, LOCAL);
    let to = Mem::plain(&dev, GRH + MTU, LOCAL);
    let nothing = |why: &str| {
        assert!(b.poll().is_none(), "{why}");
        assert_eq!([a.state(), b.state()], [State::IBV_QPS_RTS; 2], "{why}");
    };
    send(&a, &ah, b.qpn(), &from, 8);
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
    send(&a, &ah, b.qpn(), &from, MTU + 1);
    nothing("longer than the MTU");
    let rc = end(&dev, &Options::default());
    for nobody in [0, 1, 0xff_ffff, b.qpn() ^ 0x55, rc.qpn()] {
        send(&a, &ah, nobody, &from, 8);
    }
    nothing("somebody else");
    // The receive is still there.
    send(&a, &ah, b.qpn(), &from, 100);
    assert_eq!((b.next().wr_id, b.poll().is_none()), (1, true));

    // A queue pair that does not receive yet, or not any more.
    let c = End::new(&dev, &ud());
    assert_eq!(c.recv(1, &mut [to.sge(0, GRH + 8)]), 0);
    send(&a, &ah, c.qpn(), &from, 8);
    assert_eq!(c.rtr(0), 0);
    assert!(c.poll().is_none());
    send(&a, &ah, c.qpn(), &from, 8);
    assert_eq!(c.next().status, OK);
    assert_eq!(c.recv(2, &mut [to.sge(0, GRH + 8)]), 0);
    assert_eq!(c.set_state(State::IBV_QPS_ERR), 0);
    send(&a, &ah, c.qpn(), &from, 8);
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
    let a = end(&dev, &ud());
    for (room, len) in [(0, 0), (20, 0), (GRH - 1, 0), (GRH, 1), (GRH + 100, 101)] {
        let b = end(&dev, &ud());
        assert_eq!(b.recv(1, &mut [to.sge(0, GRH + 8)]), 0);
        assert_eq!(b.recv(2, &mut [to.sge(0, room)]), 0);
        assert_eq!(b.recv(3, &mut [to.sge(0, GRH + MTU)]), 0);
        for len in [8, len, 8] {
            send(&a, &ah, b.qpn(), &from, len);
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
    let (a, b) = (end(&dev, &ud()), end(&dev, &ud()));
    let ah = Ah::new(&dev, 1);
    let mem = Mem::plain(&dev, MTU, LOCAL);
    // More than the mailbox has places, in all.
    for round in 0..20 {
        let count = 1 + round % 16;
        for id in 0..count {
            assert_eq!(b.recv(id, &mut [mem.sge(1024, GRH + 16)]), 0);
        }
        for len in 0..16 {
            send(&a, &ah, b.qpn(), &mem, len);
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
            send(&a, &ah, b.qpn(), &mem, 16);
            assert_eq!(b.next().wr_id, 99);
        }
    }
}

/// From many, each to each, and to itself.
#[test]
fn many_to_one() {
    let dev = Dev::open();
    let ends: Vec<End> = (0..5).map(|_| end(&dev, &ud())).collect();
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
    let a = end(&dev, &ud());
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
    let b = end(&dev, &ud());
    let bad = Mem::plain(&dev, 64, 0);
    assert_eq!(b.recv(1, &mut [bad.sge(0, 64)]), 0);
    send(&a, &ah, b.qpn(), &mem, 8);
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
    let (a, b) = (end(&dev, &ud()), end(&dev, &ud()));
    let mem = Mem::plain(&dev, 128, LOCAL);
    let ah = Ah::new(&dev, 1);
    let mut attr = ibv_qp_attr {
        qkey: 5,
        ..Default::default()
    };
    assert_eq!(b.modify(&mut attr, Mask::IBV_QP_QKEY.0), 0);
    assert_eq!(b.recv(1, &mut [mem.sge(0, 64)]), 0);
    send(&a, &ah, b.qpn(), &mem, 8);
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
    let (a, b, c) = (end(&dev, &ud()), end(&dev, &o), end(&dev, &o));
    let mem = Mem::plain(&dev, MTU, LOCAL);
    let ah = Ah::new(&dev, 1);
    let post = |id: u64| assert_eq!(srq.recv(id, &mut [mem.sge(1024, GRH + 100)]), 0);
    send(&a, &ah, b.qpn(), &mem, 8);
    post(0);
    assert!(b.poll().is_none(), "there was none when it was sent");
    (1..4).for_each(post);
    for _ in 0..6 {
        send(&a, &ah, b.qpn(), &mem, 7);
    }
    // In the order in which they were posted.
    let ids: Vec<u64> = (0..4).map(|_| b.next().wr_id).collect();
    assert_eq!((ids, b.poll().is_none()), (vec![0, 1, 2, 3], true));
    // Two that share: each entry goes to one of them.
    assert_eq!(srq.limit(3), 0);
    (0..4).for_each(post);
    for to in [&b, &c, &b] {
        send(&a, &ah, to.qpn(), &mem, 8);
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
    send(&a, &ah, b.qpn(), &mem, 8);
    send(&a, &ah, c.qpn(), &mem, 8);
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
    let (a, b, c) = (end(&dev, &ud()), end(&dev, &o), end(&dev, &o));
    let mem = Mem::plain(&dev, MTU, LOCAL);
    let ah = Ah::new(&dev, 1);
    for (id, room) in [(1, 50), (2, 64)] {
        assert_eq!(srq.recv(id, &mut [mem.sge(1024, room)]), 0);
    }
    for len in [16, 8] {
        send(&a, &ah, b.qpn(), &mem, len);
    }
    let wc = b.next();
    assert_eq!((wc.status, wc.wr_id), (Status::IBV_WC_LOC_LEN_ERR, 1));
    assert_eq!(b.state(), State::IBV_QPS_ERR);
    assert_eq!(
        event(&dev).0,
        ibverbs_sys::ibv_event_type::IBV_EVENT_QP_LAST_WQE_REACHED
    );
    assert!(b.poll().is_none(), "what came after it");
    send(&a, &ah, c.qpn(), &mem, 8);
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
    let (a, b) = (end(&dev, &ud()), end(&dev, &ud()));
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
        send(&a, &ah, b.qpn(), &from, 8);
        assert_eq!((b.next().wr_id, b.poll().is_none()), (2, true));
        assert_eq!(b.recv(3, &mut [from.sge(0, 64)]), 0);
        send(&a, &ah, b.qpn(), &from, 8);
    }
}

/// The second process: a queue pair for datagrams, driven by lines.
fn serve() {
    if std::env::var_os("SOFTVERBS_SECOND").is_none() {
        return;
    }
    let dev = Dev::open();
    let end = end(&dev, &ud());
    let mem = Mem::plain(&dev, 2 * MTU, LOCAL);
    let ah = Ah::new(&dev, 1);
    println!("\nREADY {}", end.qpn());
    for line in std::io::stdin().lines() {
        let line = line.unwrap();
        let words: Vec<&str> = line.split(' ').collect();
        let n = |i: usize| words[i].parse::<usize>().unwrap();
        match words[0] {
            "recv" => assert_eq!(end.recv(n(1) as u64, &mut [mem.sge(0, n(2))]), 0),
            "next" => {
                let wc = end.next();
                let intact = mem.get(GRH, wc.byte_len as usize - GRH)
                    == pattern(wc.wr_id as usize, wc.byte_len as usize - GRH);
                print!("{} {} {} {intact} ", wc.status.0, wc.byte_len, wc.src_qp);
            }
            "send" => {
                mem.fill(0, &pattern(n(3), n(2)));
                send(&end, &ah, n(1) as u32, &mem, n(2));
            }
            "event" => {
                end.arm();
                println!("OK");
                end.event();
            }
            "inject" => second::inject_at(Step::ALL[n(1)], 1, words[2]),
            // As fast as it can, numbered.
            "burst" => {
                for i in 0..n(2) {
                    let len = i * 37 % (MTU + 1);
                    mem.fill(0, &pattern(i, len));
                    let mut sges = [mem.sge(0, len)];
                    let mut wr = ah.to(n(1) as u32, Op::IBV_WR_SEND_WITH_IMM, &mut sges);
                    wr.__bindgen_anon_1.imm_data = i as u32;
                    assert_eq!(end.post(&mut wr), 0);
                    assert_eq!(end.next().status, OK);
                }
            }
            // A message that it does not come back from.
            "last" => {
                println!("OK");
                send(&end, &ah, n(1) as u32, &mem, 100);
            }
            other => panic!("{other}?"),
        }
        println!("OK");
    }
}

#[test]
fn between_processes() {
    let dev = Dev::open();
    let a = end(&dev, &ud());
    let ah = Ah::new(&dev, 1);
    let (from, to) = (
        Mem::plain(&dev, MTU, LOCAL),
        Mem::plain(&dev, GRH + MTU, LOCAL),
    );
    for env in [&[][..], &[("VERBATIM_ASYNC", "9")][..]] {
        let mut second = Second::start(env);
        for len in [0, 1, 100, 3000, MTU] {
            second.ask(&format!("recv {len} {}", GRH + MTU));
            from.fill(0, &pattern(len, len));
            send(&a, &ah, second.qpn, &from, len);
            let told = second.ask("next");
            assert_eq!(told, format!("0 {} {} true", GRH + len, a.qpn()));
            assert_eq!(a.recv(1, &mut [to.sge(0, GRH + MTU)]), 0);
            second.ask(&format!("send {} {len} 3", a.qpn()));
            let mut wc = a.next();
            assert_eq!((wc.src_qp, wc.byte_len as usize), (second.qpn, GRH + len));
            assert_eq!(to.get(GRH, len), pattern(3, len));
            drop(answer(&dev, &mut wc, &to));
        }
        // One that sleeps is woken, on either side.
        second.ask(&format!("recv 7 {}", GRH + MTU));
        second.ask("event");
        from.fill(0, &pattern(7, 8));
        send(&a, &ah, second.qpn, &from, 8);
        second.answer();
        assert_eq!(second.ask("next"), format!("0 48 {} true", a.qpn()));
        assert_eq!(a.recv(1, &mut [to.sge(0, GRH + MTU)]), 0);
        a.arm();
        second.ask(&format!("send {} 8 3", a.qpn()));
        a.event();
        assert_eq!(a.next().status, OK);
        second.kill();
        // Nobody any more: as with any other datagram that is lost.
        send(&a, &ah, second.qpn, &from, 8);
    }
}

/// Processes that send as fast as they can to one that is slower: what arrives is whole, and in the order of each sender.
#[test]
fn processes_compete() {
    const COUNT: usize = 3000;
    let dev = Dev::open();
    let srq = Srq::new(&dev, 16, 1);
    let shared = Options {
        srq: srq.0,
        cqe: 64,
        ..ud()
    };
    let mem = Mem::file(&dev, 16 * 8192, LOCAL, Kind::Private);
    for o in [&ud(), &shared] {
        let to = end(&dev, o);
        let post = |id: u64| {
            let mut sges = [mem.sge(id as usize * 8192, GRH + MTU)];
            match o.srq.is_null() {
                true => assert_eq!(to.recv(id, &mut sges), 0),
                false => assert_eq!(srq.recv(id, &mut sges), 0),
            }
        };
        (0..16).for_each(post);
        let mut senders = [
            Second::start(&[]),
            Second::start(&[]),
            Second::start(&[("VERBATIM_ASYNC", "4")]),
        ];
        for sender in &mut senders {
            sender.tell(&format!("burst {} {COUNT}", to.qpn()));
        }
        let qpns: Vec<u32> = senders.iter().map(|s| s.qpn).collect();
        let mut next = [0; 3];
        let mut take = |wc: ibv_wc| {
            let imm = unsafe { wc.__bindgen_anon_1.imm_data } as usize;
            let from = qpns.iter().position(|qpn| *qpn == wc.src_qp).unwrap();
            assert!(imm >= next[from], "{imm} after {next:?}");
            next[from] = imm + 1;
            let len = imm * 37 % (MTU + 1);
            assert_eq!((wc.status, wc.byte_len as usize), (OK, GRH + len));
            let at = wc.wr_id as usize * 8192 + GRH;
            assert!(mem.get(at, len) == pattern(imm, len));
            post(wc.wr_id);
        };
        let mut taken = 0;
        // They do not wait for us: each ends, whatever is taken.
        std::thread::scope(|s| {
            let answers = s.spawn(|| senders.iter_mut().for_each(|s| drop(s.answer())));
            while !answers.is_finished() {
                while let Some(wc) = to.poll() {
                    take(wc);
                    taken += 1;
                }
                std::thread::yield_now();
            }
        });
        while let Some(wc) = to.poll() {
            take(wc);
            taken += 1;
        }
        assert!(taken >= 16, "{taken}");
        assert_eq!(senders[0].ask(&format!("send {} 70 5", to.qpn())), "");
        assert_eq!(to.next().byte_len as usize, GRH + 70);
    }
}

/// A sender is killed, or stopped, at each step: others' datagrams arrive, and no receive is lost.
#[test]
fn a_sender_ends_at_each_step() {
    let dev = Dev::open();
    let (a, b) = (end(&dev, &ud()), end(&dev, &ud()));
    let ah = Ah::new(&dev, 1);
    let mem = Mem::plain(&dev, 4 * MTU, LOCAL);
    for (at, step) in Step::ALL.into_iter().enumerate() {
        for action in ["kill", "stop"] {
            let mut second = Second::start(&[]);
            for id in 0..4 {
                assert_eq!(a.recv(id, &mut [mem.sge(0, GRH + 200)]), 0);
            }
            second.ask(&format!("inject {at} {action}"));
            second.ask(&format!("last {}", a.qpn()));
            while !second::ended(&second) {
                std::thread::yield_now();
            }
            let arrived = !matches!(step, Step::Checked | Step::Hazard | Step::Copied);
            a.arm();
            if !arrived {
                send(&b, &ah, a.qpn(), &mem, 150);
                a.event();
            }
            let len = if arrived { 100 } else { 150 };
            assert_eq!(a.next().byte_len as usize, GRH + len, "{step:?} {action}");
            for _ in 1..4 {
                send(&b, &ah, a.qpn(), &mem, 9);
            }
            for _ in 1..4 {
                let wc = a.next();
                assert_eq!((wc.status, wc.byte_len as usize), (OK, GRH + 9));
            }
            assert!(a.poll().is_none(), "{step:?} {action}");
            second.kill();
        }
    }
}
