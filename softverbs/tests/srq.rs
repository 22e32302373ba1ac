//! Shared receive queues between threads of one process: what each verb does and refuses.
#![allow(missing_docs, clippy::undocumented_unsafe_blocks)]

mod common;
use common::*;
use ibverbs_sys::ibv_wr_opcode as Op;
use ibverbs_sys::{ibv_event_type as Event, ibv_qp_state as State};
use ibverbs_sys::{ibv_srq_init_attr, ibv_wc_opcode as Wc, ibv_wc_status as Status};
use softverbs::memory::Kind;
use std::ptr::null_mut;

/// Ends that send, each to one that takes its receives from the shared queue.
fn pairs(dev: &Dev, srq: &Srq, count: usize, o: &Options) -> Vec<(End, End)> {
    (0..count)
        .map(|_| {
            let (a, b) = (End::new(dev, o), End::new(dev, &srq.options()));
            a.connect(b.qpn(), o);
            b.connect(a.qpn(), &srq.options());
            (a, b)
        })
        .collect()
}

fn send(end: &End, id: u64, mem: &Mem, off: usize, len: usize) {
    let mut sges = [mem.sge(off, len)];
    assert_eq!(
        end.post(&mut wr(id, Op::IBV_WR_SEND, &mut sges, SIGNALED)),
        0
    );
}

/// Messages of all sizes to several queue pairs take entries in the order in which they are posted, whatever memory it is.
#[test]
fn several_queue_pairs_take_from_one_queue() {
    let dev = Dev::open();
    let srq = Srq::new(&dev, 8, 2);
    let pairs = pairs(&dev, &srq, 3, &Options::default());
    let from = Mem::plain(&dev, 1 << 20, LOCAL);
    let into = [
        Mem::plain(&dev, 1 << 20, LOCAL),
        Mem::file(&dev, 1 << 20, LOCAL, Kind::Receive),
        Mem::file(&dev, 1 << 20, LOCAL | WRITE, Kind::Exposed),
        Mem::file(&dev, 1 << 20, LOCAL, Kind::Private),
    ];
    let mut id = 0;
    for len in [0, 1, 32, 33, 256, 257, 5000, 1 << 20] {
        for to in &into {
            for (a, b) in &pairs {
                id += 1;
                let data: Vec<u8> = (0..len).map(|k| (k as u64 * 7 + id) as u8).collect();
                from.fill(0, &data);
                let cut = len / 3;
                let mut sges = [to.sge(0, cut), to.sge(cut, (1 << 20) - cut)];
                assert_eq!(srq.recv(id, &mut sges), 0);
                send(a, 5, &from, 0, len);
                let wc = b.next();
                assert_eq!(
                    (wc.status, wc.wr_id, wc.byte_len as usize, wc.qp_num),
                    (OK, id, len, b.qpn())
                );
                assert_eq!((wc.opcode, wc.src_qp), (Wc::IBV_WC_RECV, a.qpn()));
                assert_eq!(to.get(0, len), data, "{len} bytes");
                assert_eq!(a.next().status, OK);
            }
        }
    }
    // Entries are taken as they were posted, and complete where they were taken.
    for i in 0..6 {
        assert_eq!(srq.recv(1000 + i, &mut [into[0].sge(0, 64)]), 0);
    }
    for (i, pair) in [2, 0, 1, 1, 2, 0].into_iter().enumerate() {
        send(&pairs[pair].0, i as u64, &from, 0, 8);
        assert_eq!(pairs[pair].0.next().status, OK);
    }
    for (pair, ids) in [(0, [1001, 1005]), (1, [1002, 1003]), (2, [1000, 1004])] {
        assert_eq!(
            [pairs[pair].1.next().wr_id, pairs[pair].1.next().wr_id],
            ids
        );
    }
}

/// A WRITE with immediate data takes an entry too.
#[test]
fn write_with_immediate() {
    let dev = Dev::open();
    let srq = Srq::new(&dev, 4, 1);
    let pairs = pairs(&dev, &srq, 1, &Options::default());
    let (a, b) = &pairs[0];
    let (from, to) = (
        Mem::plain(&dev, 64, LOCAL),
        Mem::plain(&dev, 64, LOCAL | WRITE),
    );
    from.fill(0, b"immediate");
    let op = Op::IBV_WR_RDMA_WRITE_WITH_IMM;
    assert_eq!(srq.recv(3, &mut []), 0);
    let mut sges = [from.sge(0, 9)];
    let mut write = rdma(1, op, &mut sges, SIGNALED, to.addr(), to.key());
    write.__bindgen_anon_1.imm_data = 99;
    assert_eq!(a.post(&mut write), 0);
    let wc = b.next();
    assert_eq!(
        (wc.status, wc.wr_id, wc.opcode, wc.byte_len),
        (OK, 3, Wc::IBV_WC_RECV_RDMA_WITH_IMM, 9)
    );
    assert_eq!(unsafe { wc.__bindgen_anon_1.imm_data }, 99);
    assert_eq!((a.next().status, to.get(0, 9)), (OK, b"immediate".to_vec()));
    // Refused, it ends the receive that it took.
    assert_eq!(srq.recv(4, &mut []), 0);
    let mut sges = [from.sge(0, 9)];
    a.post(&mut rdma(2, op, &mut sges, 0, to.addr(), to.key() ^ 1));
    assert_eq!(a.next().status, Status::IBV_WC_REM_ACCESS_ERR);
    let wc = b.next();
    assert_eq!((wc.status, wc.wr_id), (Status::IBV_WC_REM_ACCESS_ERR, 4));
}

/// What the verbs refuse, and what they say.
#[test]
fn refusals() {
    let dev = Dev::open();
    let mut attr = ibverbs_sys::ibv_device_attr::default();
    assert_eq!(unsafe { (api().ibv_query_device)(dev.ctx, &mut attr) }, 0);
    let (max, max_wr, max_sge) = (
        attr.max_srq,
        attr.max_srq_wr as u32,
        attr.max_srq_sge as u32,
    );
    assert!(max > 0 && max_wr > 0 && max_sge > 0);
    for (wr, sge, limit) in [
        (0, 1, 0),
        (max_wr + 1, 1, 0),
        (4, max_sge + 1, 0),
        (4, 1, 5),
    ] {
        let mut init = ibv_srq_init_attr::default();
        (init.attr.max_wr, init.attr.max_sge, init.attr.srq_limit) = (wr, sge, limit);
        let srq = unsafe { (api().ibv_create_srq)(dev.pd, &mut init) };
        let errno = std::io::Error::last_os_error().raw_os_error();
        assert_eq!((srq, errno), (null_mut(), Some(libc::EINVAL)));
    }
    let srq = Srq::new(&dev, 3, 2);
    let got = srq.query();
    assert_eq!((got.max_wr, got.max_sge, got.srq_limit), (3, 2, 0));
    assert_eq!((srq.limit(4), srq.limit(2)), (libc::EINVAL, 0));
    assert_eq!(srq.query().srq_limit, 2);
    for (to, errno) in [
        (0, libc::EINVAL),
        (max_wr + 1, libc::EINVAL),
        (1, libc::EINVAL),
    ] {
        assert_eq!(srq.resize(to), errno, "{to}: the limit is 2");
    }
    assert_eq!(
        srq.resize(max_wr),
        libc::ENOMEM,
        "more than there is room for"
    );
    let mem = Mem::plain(&dev, 64, LOCAL);
    assert_eq!(srq.recv(1, &mut [mem.sge(0, 1); 3]), libc::EINVAL);
    for i in 0..3 {
        assert_eq!(srq.recv(i, &mut [mem.sge(0, 8)]), 0);
    }
    assert_eq!(srq.recv(3, &mut [mem.sge(0, 8)]), libc::ENOMEM);
    assert_eq!(unsafe { (api().ibv_dealloc_pd)(dev.pd) }, libc::EBUSY);
    let end = End::new(&dev, &srq.options());
    assert_eq!(end.recv(1, &mut []), libc::EINVAL, "it has none of its own");
    assert_eq!(unsafe { (api().ibv_destroy_srq)(srq.0) }, libc::EBUSY);
}

/// Larger, with what is outstanding and what arrives meanwhile; smaller, as far as what is outstanding allows.
#[test]
fn resized() {
    let dev = Dev::open();
    let srq = Srq::new(&dev, 2, 1);
    // A completion queue that is large enough at first, and then counts.
    let o = Options {
        cqe: 20,
        ..srq.options()
    };
    let (a, b) = (End::new(&dev, &Options::default()), End::new(&dev, &o));
    a.connect(b.qpn(), &Options::default());
    b.connect(a.qpn(), &o);
    let mem = Mem::plain(&dev, 64, LOCAL);
    let post = |id: u64| srq.recv(id, &mut [mem.sge(0, 8)]);
    assert_eq!([post(0), post(1), post(2)], [0, 0, libc::ENOMEM]);
    assert_eq!((srq.resize(9), srq.query().max_wr), (0, 9));
    (2..9).for_each(|id| assert_eq!(post(id), 0));
    assert_eq!(post(9), libc::ENOMEM);
    assert_eq!((srq.resize(8), srq.query().max_wr), (libc::EINVAL, 9));
    for id in 0..9 {
        send(&a, id, &mem, 8, 8);
        assert_eq!((a.next().status, b.next().wr_id), (OK, id));
    }
    assert_eq!((post(0), srq.resize(1), post(1)), (0, 0, libc::ENOMEM));
    send(&a, 9, &mem, 8, 8);
    assert_eq!((a.next().status, b.next().wr_id), (OK, 0));
    // And back; each slot is there once.
    for size in [3, 2, 7, 5, 16] {
        assert_eq!(srq.resize(size), 0);
        (0..size.into()).for_each(|id| assert_eq!(post(id), 0));
        assert_eq!(post(99), libc::ENOMEM);
        for id in 0..size.into() {
            send(&a, id, &mem, 8, 8);
            assert_eq!((a.next().status, b.next().wr_id), (OK, id));
        }
    }
    assert_eq!(srq.limit(5), 0);
    assert_eq!((srq.resize(4), srq.resize(5)), (libc::EINVAL, 0));
    assert_eq!(srq.limit(0), 0);
}

/// An empty queue: no retry fails at once; 7 waits for an entry, and those who wait share what is posted.
#[test]
fn receiver_not_ready() {
    let dev = Dev::open();
    let srq = Srq::new(&dev, 8, 1);
    let mem = Mem::plain(&dev, 4096, LOCAL);
    for rnr_retry in [0, 1] {
        let o = Options {
            rnr_retry,
            ..Options::default()
        };
        let two = pairs(&dev, &srq, 2, &o);
        // One entry, two messages, none polled: the second finds none.
        assert_eq!(srq.recv(1, &mut [mem.sge(0, 8)]), 0);
        send(&two[0].0, 1, &mem, 8, 8);
        assert_eq!(two[0].0.next().status, OK);
        send(&two[1].0, 1, &mem, 8, 8);
        assert_eq!(
            (two[1].0.next().status, two[1].1.state()),
            (Status::IBV_WC_RNR_RETRY_EXC_ERR, State::IBV_QPS_RTS)
        );
        assert_eq!(two[0].1.next().wr_id, 1);
    }
    let three = pairs(&dev, &srq, 3, &Options::default());
    for round in 0..20 {
        for (a, _) in &three {
            for i in 0..2 {
                send(a, i, &mem, 2048, 1000 + i as usize);
            }
        }
        assert!(
            three
                .iter()
                .all(|(a, b)| a.poll().is_none() && b.poll().is_none())
        );
        for i in 0..6 {
            assert_eq!(srq.recv(round * 6 + i, &mut [mem.sge(0, 2048)]), 0);
        }
        // Senders make no call, and each message arrives in its turn.
        let mut ids = Vec::new();
        for (a, b) in &three {
            for i in 0..2 {
                let wc = b.next();
                assert_eq!((wc.status, wc.byte_len), (OK, 1000 + i));
                ids.push(wc.wr_id);
                assert_eq!(a.next().wr_id, u64::from(i));
            }
        }
        ids.sort();
        assert!(ids.into_iter().eq(round * 6..round * 6 + 6));
    }
}

/// The limit is told once for each time it is armed, when taking gets below it.
#[test]
fn limit() {
    let dev = Dev::open();
    let srq = Srq::new(&dev, 16, 1);
    let pairs = pairs(&dev, &srq, 1, &Options::default());
    let (a, b) = &pairs[0];
    let mem = Mem::plain(&dev, 64, LOCAL);
    for round in 0..5 {
        for i in 0..6 {
            assert_eq!(srq.recv(i, &mut [mem.sge(0, 8)]), 0);
        }
        assert_eq!(srq.limit(3), 0);
        for i in 0..3 {
            send(a, i, &mem, 8, 8);
            assert_eq!((a.next().status, b.next().wr_id), (OK, i));
        }
        assert!(no_event(&dev), "three are not below three");
        assert_eq!(srq.query().srq_limit, 3);
        for i in 3..6 {
            send(a, i, &mem, 8, 8);
            if i == 3 {
                // Told without a poll.
                assert_eq!(
                    event(&dev),
                    (Event::IBV_EVENT_SRQ_LIMIT_REACHED, srq.0.addr()),
                    "round {round}"
                );
                assert_eq!(srq.query().srq_limit, 0, "disarmed");
            }
            assert_eq!((a.next().status, b.next().wr_id), (OK, i));
        }
        assert!(no_event(&dev));
    }
    // Armed above what is there: told by the next that is taken.
    assert_eq!(srq.recv(7, &mut [mem.sge(0, 8)]), 0);
    assert_eq!(srq.recv(8, &mut [mem.sge(0, 8)]), 0);
    assert_eq!(srq.limit(10), 0);
    send(a, 7, &mem, 8, 8);
    assert_eq!(event(&dev).0, Event::IBV_EVENT_SRQ_LIMIT_REACHED);
    assert_eq!((a.next().wr_id, b.next().wr_id), (7, 7));
}

/// A queue pair that fails says when it takes nothing any more; the entries stay for the others.
#[test]
fn the_queue_survives_an_error_of_a_queue_pair() {
    let dev = Dev::open();
    let srq = Srq::new(&dev, 4, 1);
    let pairs = pairs(&dev, &srq, 2, &Options::default());
    let mem = Mem::plain(&dev, 4096, LOCAL);
    for i in 0..4 {
        assert_eq!(srq.recv(i, &mut [mem.sge(0, 64)]), 0);
    }
    let [(a, b), (c, d)] = &pairs[..] else {
        unreachable!()
    };
    send(a, 1, &mem, 64, 8);
    assert_eq!(a.next().status, OK);
    assert_eq!(b.set_state(State::IBV_QPS_ERR), 0);
    assert_eq!(
        event(&dev),
        (Event::IBV_EVENT_QP_LAST_WQE_REACHED, b.qp.addr())
    );
    // What arrived before is there; the rest is not flushed.
    assert_eq!((b.next().wr_id, b.poll().is_none()), (0, true));
    send(a, 2, &mem, 64, 8);
    assert_eq!(a.next().status, Status::IBV_WC_RETRY_EXC_ERR);
    for i in 1..4 {
        send(c, 3, &mem, 64, 8);
        assert_eq!((c.next().status, d.next().wr_id), (OK, i));
    }
    assert!(no_event(&dev), "told once");
}

/// A message that is too long, or an entry with a bad key, ends that entry and the queue pair, not the queue.
#[test]
fn bad_entries() {
    let dev = Dev::open();
    let other = Dev::open();
    let srq = Srq::new(&dev, 4, 1);
    let mem = Mem::plain(&dev, 4096, LOCAL);
    let readonly = Mem::plain(&dev, 64, 0);
    let foreign = Mem::plain(&other, 64, LOCAL);
    let short = Status::IBV_WC_LOC_LEN_ERR;
    let protection = Status::IBV_WC_LOC_PROT_ERR;
    for (id, entry, theirs, ours) in [
        (1, mem.sge(0, 7), short, Status::IBV_WC_REM_INV_REQ_ERR),
        (
            2,
            readonly.sge(0, 64),
            protection,
            Status::IBV_WC_REM_OP_ERR,
        ),
        (3, foreign.sge(0, 64), protection, Status::IBV_WC_REM_OP_ERR),
    ] {
        let pairs = pairs(&dev, &srq, 2, &Options::default());
        assert_eq!(srq.recv(id, &mut [entry]), 0);
        assert_eq!(srq.recv(10, &mut [mem.sge(0, 64)]), 0);
        send(&pairs[0].0, 1, &mem, 64, 8);
        assert_eq!(pairs[0].0.next().status, ours);
        let wc = pairs[0].1.next();
        assert_eq!((wc.status, wc.wr_id), (theirs, id));
        send(&pairs[1].0, 1, &mem, 64, 8);
        assert_eq!(
            (pairs[1].0.next().status, pairs[1].1.next().wr_id),
            (OK, 10)
        );
    }
}

/// A queue pair of another protection domain may use the queue: its entries' keys are of the queue's domain.
#[test]
fn the_queues_domain_counts() {
    let (dev, other) = (Dev::open(), Dev::open());
    let srq = Srq::new(&dev, 4, 1);
    let (mine, into) = (
        Mem::plain(&other, 8192, LOCAL),
        Mem::plain(&dev, 8192, LOCAL),
    );
    let (a, b) = (
        End::new(&other, &Options::default()),
        End::new(&other, &srq.options()),
    );
    a.connect(b.qpn(), &Options::default());
    b.connect(a.qpn(), &srq.options());
    for len in [8, 100, 5000] {
        mine.fill(0, &vec![len as u8; len]);
        assert_eq!(srq.recv(1, &mut [into.sge(0, 8192)]), 0);
        send(&a, 1, &mine, 0, len);
        assert_eq!((a.next().status, b.next().status), (OK, OK));
        assert_eq!(into.get(0, len), vec![len as u8; len]);
    }
}

/// What a reset queue pair took and nobody polled is gone, with its entries; others' are not.
#[test]
fn reset_drops_what_it_took() {
    let dev = Dev::open();
    let srq = Srq::new(&dev, 4, 1);
    let two = pairs(&dev, &srq, 2, &Options::default());
    let mem = Mem::plain(&dev, 4096, LOCAL);
    for round in 0..10 {
        for i in 0..4 {
            assert_eq!(srq.recv(i, &mut [mem.sge(0, 64)]), 0, "round {round}");
        }
        let (a, b) = &pairs(&dev, &srq, 1, &Options::default())[0];
        for i in 0..3 {
            send(a, i, &mem, 64, 8);
            assert_eq!(a.next().status, OK);
        }
        assert_eq!(b.set_state(State::IBV_QPS_RESET), 0);
        assert!(b.poll().is_none());
        send(&two[0].0, 1, &mem, 64, 8);
        assert_eq!((two[0].0.next().status, two[0].1.next().wr_id), (OK, 3));
    }
}

/// One queue pair is sent more than its lane holds, and nobody polls: the rest waits for polls, not for receives, and arrives.
#[test]
fn more_than_a_lane_holds() {
    const COUNT: u64 = 3000;
    let dev = Dev::open();
    let srq = Srq::new(&dev, COUNT as u32, 1);
    let o = Options {
        depth: COUNT as u32,
        timeout: 1,
        retry_cnt: 0,
        rnr_retry: 0,
        ..Options::default()
    };
    let theirs = Options {
        cqe: 4096,
        ..srq.options()
    };
    let (a, b) = (End::new(&dev, &o), End::new(&dev, &theirs));
    a.connect(b.qpn(), &o);
    b.connect(a.qpn(), &o);
    let mem = Mem::plain(&dev, 64, LOCAL);
    for i in 0..COUNT {
        assert_eq!(srq.recv(i, &mut [mem.sge(0, 8)]), 0);
        send(&a, i, &mem, 8, 8);
    }
    for i in 0..COUNT {
        assert_eq!((b.next().wr_id, a.next().status), (i, OK));
    }
}

/// A completion queue of receives needs room for what the shared queue holds, however many queue pairs take from it.
#[test]
fn a_small_completion_queue() {
    let dev = Dev::open();
    let srq = Srq::new(&dev, 8, 1);
    let mem = Mem::plain(&dev, 64, LOCAL);
    let o = Options::default();
    let small = Options {
        cqe: 4,
        ..srq.options()
    };
    let (a, b) = (End::new(&dev, &o), End::new(&dev, &small));
    a.connect(b.qpn(), &o);
    b.connect(a.qpn(), &o);
    for i in 0..8 {
        assert_eq!(srq.recv(i, &mut [mem.sge(0, 8)]), 0);
    }
    for round in 0..3 {
        for i in 0..4 {
            send(&a, i, &mem, 8, 8);
            assert_eq!(a.next().status, OK, "round {round}");
        }
        for _ in 0..4 {
            let wc = b.next();
            assert_eq!(
                (wc.status, srq.recv(wc.wr_id, &mut [mem.sge(0, 8)])),
                (OK, 0)
            );
        }
    }
    // Five unpolled are one too many.
    for i in 0..5 {
        send(&a, i, &mem, 8, 8);
        assert_eq!(a.next().status, OK);
    }
    for _ in 0..4 {
        assert_eq!(b.next().status, OK);
    }
    let mut wc = ibverbs_sys::ibv_wc::default();
    assert_eq!(
        unsafe { ibverbs_sys::inline::ibv_poll_cq(b.cq, 1, &mut wc) },
        -1
    );
    assert_eq!(b.state(), State::IBV_QPS_ERR);
}

struct Shared<T>(T);
unsafe impl<T> Send for Shared<T> {}

/// Threads send through several queue pairs at once, more than the queue holds; every message arrives once and in order.
#[test]
fn threads_compete() {
    const EACH: u64 = 1500;
    let dev = Dev::open();
    let srq = Srq::new(&dev, 8, 1);
    let pairs = pairs(&dev, &srq, 3, &Options::default());
    let into = Mem::plain(&dev, 8 * 1024, LOCAL);
    for i in 0..8 {
        assert_eq!(srq.recv(i, &mut [into.sge(i as usize * 1024, 1024)]), 0);
    }
    std::thread::scope(|s| {
        for (a, _) in &pairs {
            let shared = Shared((a, &dev));
            s.spawn(move || {
                let shared = shared;
                let (a, dev) = shared.0;
                let mem = Mem::plain(dev, 1024, LOCAL);
                for i in 0..EACH {
                    mem.fill(0, &i.to_le_bytes());
                    send(a, i, &mem, 0, 8 + (i as usize * 37) % 1000);
                    assert_eq!(a.next().status, OK);
                }
            });
        }
        let mut got = [0u64; 3];
        let begin = std::time::Instant::now();
        while got != [EACH; 3] {
            for ((_, b), got) in pairs.iter().zip(&mut got) {
                while let Some(wc) = b.poll() {
                    let at = wc.wr_id as usize * 1024;
                    assert_eq!(
                        (wc.status, wc.byte_len as u64),
                        (OK, 8 + (*got * 37) % 1000)
                    );
                    assert_eq!(into.get(at, 8), got.to_le_bytes());
                    *got += 1;
                    assert_eq!(srq.recv(wc.wr_id, &mut [into.sge(at, 1024)]), 0);
                }
            }
            assert!(begin.elapsed() < HANG, "{got:?}");
            std::thread::yield_now();
        }
    });
}
