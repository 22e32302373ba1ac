//! Reliable connections between threads of one process: states, full queues, chains, channels, overflow.
#![allow(missing_docs, clippy::undocumented_unsafe_blocks)]

mod common;
use common::*;
use ibverbs_sys::ibv_qp_state as State;
use ibverbs_sys::ibv_wc_status as Status;
use ibverbs_sys::ibv_wr_opcode as Op;

struct Shared<'a>(&'a End);
unsafe impl Send for Shared<'_> {}

/// Posting before RTS, in RESET and in ERR.
#[test]
fn posting_in_each_state() {
    let dev = Dev::open();
    let o = Options::default();
    let mem = Mem::plain(&dev, 64, LOCAL);
    let a = End::new(&dev, &o);
    let mut sge = [mem.sge(0, 8)];
    assert_eq!(
        a.post(&mut wr(1, Op::IBV_WR_SEND, &mut sge, SIGNALED)),
        libc::EINVAL
    );
    assert_eq!(a.recv(1, &mut sge), 0, "receives may be posted in INIT");
    assert_eq!(a.rtr(a.qpn()), 0);
    assert_eq!(
        a.post(&mut wr(1, Op::IBV_WR_SEND, &mut sge, SIGNALED)),
        libc::EINVAL
    );
    assert_eq!(a.rts(&o), 0);
    assert_eq!(a.set_state(State::IBV_QPS_ERR), 0);
    assert_eq!(a.post(&mut wr(2, Op::IBV_WR_SEND, &mut sge, 0)), 0);
    assert_eq!(a.recv(3, &mut sge), 0);
    let mut flushed: Vec<_> = (0..3)
        .map(|_| a.next())
        .map(|wc| (wc.status, wc.wr_id))
        .collect();
    flushed.sort_by_key(|f| f.1);
    assert_eq!(
        flushed,
        [1, 2, 3].map(|id| (Status::IBV_WC_WR_FLUSH_ERR, id))
    );
    assert_eq!(a.recv(4, &mut sge), 0);
    assert_eq!(a.set_state(State::IBV_QPS_RESET), 0);
    assert!(a.poll().is_none(), "to RESET drops everything silently");
    assert_eq!(a.recv(5, &mut sge), libc::EINVAL);
    a.init(&o);
    a.connect(a.qpn(), &o);
    assert_eq!(a.recv(6, &mut sge), 0);
    assert_eq!(
        a.post(&mut wr(7, Op::IBV_WR_SEND, &mut [mem.sge(8, 8)], SIGNALED)),
        0
    );
    let mut ids = [a.next(), a.next()].map(|wc| (wc.status, wc.wr_id));
    ids.sort_by_key(|i| i.1);
    assert_eq!(ids, [(OK, 6), (OK, 7)], "usable again, to itself");
}

/// A full queue is ENOMEM, also when nothing is signalled; only polling a later completion frees slots.
#[test]
fn full_queues() {
    let dev = Dev::open();
    let (a, b) = pair(
        &dev,
        &Options {
            depth: 4,
            ..Options::default()
        },
    );
    let mem = Mem::plain(&dev, 64, LOCAL);
    for i in 0..4 {
        assert_eq!(b.recv(i, &mut [mem.sge(0, 8)]), 0);
    }
    assert_eq!(b.recv(4, &mut [mem.sge(0, 8)]), libc::ENOMEM);
    for i in 0..4 {
        let flags = if i == 2 { SIGNALED } else { 0 };
        assert_eq!(
            a.post(&mut wr(i, Op::IBV_WR_SEND, &mut [mem.sge(8, 8)], flags)),
            0
        );
    }
    assert_eq!(
        a.post(&mut wr(4, Op::IBV_WR_SEND, &mut [mem.sge(8, 8)], 0)),
        libc::ENOMEM
    );
    for i in 0..4 {
        assert_eq!(b.next().wr_id, i);
        assert_eq!(b.recv(4 + i, &mut [mem.sge(0, 8)]), 0);
    }
    assert_eq!(a.next().wr_id, 2);
    for i in 4..7 {
        assert_eq!(
            a.post(&mut wr(i, Op::IBV_WR_SEND, &mut [mem.sge(8, 8)], 0)),
            0
        );
    }
    assert_eq!(
        a.post(&mut wr(7, Op::IBV_WR_SEND, &mut [mem.sge(8, 8)], 0)),
        libc::ENOMEM
    );
    for i in 4..7 {
        assert_eq!(b.next().wr_id, i);
    }
    assert_eq!(
        a.post(&mut wr(8, Op::IBV_WR_SEND, &mut [mem.sge(0, 1); 5], 0)),
        libc::EINVAL,
        "too many elements"
    );
}

/// A partial chain: what comes before the bad request is posted, `bad_wr` names the first that is not.
#[test]
fn partial_chain() {
    let dev = Dev::open();
    let (a, b) = pair(&dev, &Options::default());
    let mem = Mem::plain(&dev, 64, LOCAL);
    b.recv(1, &mut [mem.sge(0, 8)]);
    let mut sge = [mem.sge(8, 4)];
    let mut bad = wr(2, Op::IBV_WR_BIND_MW, &mut [], 0);
    let mut first = wr(1, Op::IBV_WR_SEND, &mut sge, SIGNALED);
    first.next = &mut bad;
    let mut at = std::ptr::null_mut();
    assert_eq!(
        unsafe { ibverbs_sys::inline::ibv_post_send(a.qp, &mut first, &mut at) },
        libc::EOPNOTSUPP
    );
    assert_eq!(at, &raw mut bad);
    assert_eq!((a.next().wr_id, b.next().byte_len), (1, 4));
}

/// An armed queue wakes its channel once; what was there before the arming is found by polling.
#[test]
fn channel_wakes() {
    let dev = Dev::open();
    let (a, b) = pair(&dev, &Options::default());
    let mem = Mem::plain(&dev, 64, LOCAL);
    for round in 0..20 {
        b.recv(round, &mut [mem.sge(0, 8)]);
        b.arm();
        assert!(b.poll().is_none());
        std::thread::scope(|s| {
            let b = Shared(&b);
            let waiter = s.spawn(move || {
                let b = b;
                b.0.event();
            });
            assert_eq!(
                a.post(&mut wr(
                    round,
                    Op::IBV_WR_SEND,
                    &mut [mem.sge(8, 8)],
                    SIGNALED
                )),
                0
            );
            waiter.join().unwrap();
        });
        assert_eq!((b.next().wr_id, a.next().wr_id), (round, round));
    }
    // One's own completions wake too.
    b.recv(1, &mut [mem.sge(0, 8)]);
    a.arm();
    a.post(&mut wr(77, Op::IBV_WR_SEND, &mut [mem.sge(8, 8)], SIGNALED));
    a.event();
    assert_eq!(a.next().wr_id, 77);
}

/// Hundreds of queue pairs may find the same queue armed one after the other: who waits for it is woken once for all of them, and again when it has
/// asked again.
#[test]
fn one_wake_for_all_queue_pairs() {
    let dev = Dev::open();
    let o = Options::default();
    let mem = Mem::plain(&dev, 64, LOCAL);
    let first = End::new(&dev, &o);
    let second = End::with(&dev, &o, |init| {
        init.recv_cq = first.cq;
        unsafe { (api().ibv_create_qp)(dev.pd, init) }
    });
    let senders = [End::new(&dev, &o), End::new(&dev, &o)];
    for (sender, receiver) in senders.iter().zip([&first, &second]) {
        sender.connect(receiver.qpn(), &o);
        receiver.connect(sender.qpn(), &o);
        for id in 0..2 {
            assert_eq!(receiver.recv(id, &mut [mem.sge(0, 8)]), 0);
        }
    }
    for _ in 0..2 {
        first.arm();
        for sender in &senders {
            let mut sge = [mem.sge(8, 8)];
            assert_eq!(sender.post(&mut wr(1, Op::IBV_WR_SEND, &mut sge, 0)), 0);
        }
        assert_eq!([first.next().status, first.next().status], [OK, OK]);
        first.event();
        let mut bytes: libc::c_int = 0;
        let fd = unsafe { (*first.channel).fd };
        assert_eq!(unsafe { libc::ioctl(fd, libc::FIONREAD, &mut bytes) }, 0);
        assert_eq!(bytes, 0, "another record for the same wait");
    }
    assert!(first.poll().is_none());
}

/// A completion queue smaller than its queues works as long as it is polled, and overflows when it is not.
#[test]
fn overflow() {
    let dev = Dev::open();
    let mem = Mem::plain(&dev, 64, LOCAL);
    let o = Options::default();
    let (a, b) = (
        End::new(&dev, &o),
        End::new(
            &dev,
            &Options {
                cqe: 4,
                ..Options::default()
            },
        ),
    );
    a.connect(b.qpn(), &o);
    b.connect(a.qpn(), &o);
    let exchange = |first: u64, count: u64| {
        for i in first..first + count {
            assert_eq!(b.recv(i, &mut [mem.sge(0, 8)]), 0);
            assert_eq!(
                a.post(&mut wr(i, Op::IBV_WR_SEND, &mut [mem.sge(8, 8)], SIGNALED)),
                0
            );
        }
        for i in first..first + count {
            assert_eq!((a.next().wr_id, a.state()), (i, State::IBV_QPS_RTS));
        }
    };
    for round in 0..10 {
        exchange(round * 4, 4);
        for i in 0..4 {
            assert_eq!(b.next().wr_id, round * 4 + i);
        }
        assert!(b.poll().is_none());
    }
    // Four fit; the fifth is lost, and with it the queue, which is told as events of it and of its queue pair.
    exchange(40, 5);
    for i in 40..44 {
        assert_eq!(b.next().wr_id, i);
    }
    let mut wc = ibverbs_sys::ibv_wc::default();
    assert_eq!(
        unsafe { ibverbs_sys::inline::ibv_poll_cq(b.cq, 1, &mut wc) },
        -1
    );
    assert_eq!(b.state(), State::IBV_QPS_ERR);
    let events: Vec<_> = (0..2).map(|_| event(&dev).0).collect();
    assert!(
        events.contains(&ibverbs_sys::ibv_event_type::IBV_EVENT_CQ_ERR),
        "{events:?}"
    );
    assert!(
        events.contains(&ibverbs_sys::ibv_event_type::IBV_EVENT_QP_FATAL),
        "{events:?}"
    );
}
