//! Reliable connections between threads of one process: what each verb does and refuses.
#![allow(missing_docs, clippy::undocumented_unsafe_blocks)]

mod common;
use common::*;
use ibverbs_sys::ibv_wr_opcode as Op;
use ibverbs_sys::{ibv_qp_state as State, ibv_wc_opcode as Wc, ibv_wc_status as Status};
use softverbs::memory::Kind;

/// SEND of every interesting size arrives, whatever kind of memory both sides have.
#[test]
fn send_of_all_sizes() {
    let dev = Dev::open();
    let o = Options::default();
    let (a, b) = pair(&dev, &o);
    let from = [
        Mem::plain(&dev, 1 << 20, LOCAL),
        Mem::file(&dev, 1 << 20, LOCAL, Kind::Private),
    ];
    let to = [
        Mem::plain(&dev, 1 << 20, LOCAL),
        Mem::file(&dev, 1 << 20, LOCAL, Kind::Receive),
        Mem::file(&dev, 1 << 20, LOCAL | WRITE, Kind::Exposed),
        Mem::file(&dev, 1 << 20, LOCAL, Kind::Private),
    ];
    for (i, len) in [0, 1, 31, 32, 33, 255, 256, 257, 4096, 100_000, 1 << 20]
        .into_iter()
        .enumerate()
    {
        for from in &from {
            for to in &to {
                let data: Vec<u8> = (0..len).map(|k| (k * 7 + i) as u8).collect();
                from.fill(0, &data);
                assert_eq!(b.recv(9, &mut [to.sge(0, 1 << 20)]), 0);
                assert_eq!(
                    a.post(&mut wr(
                        5,
                        Op::IBV_WR_SEND,
                        &mut [from.sge(0, len)],
                        SIGNALED
                    )),
                    0
                );
                let wc = b.next();
                assert_eq!(
                    (wc.status, wc.wr_id, wc.byte_len, wc.opcode, wc.qp_num),
                    (OK, 9, len as u32, Wc::IBV_WC_RECV, b.qpn())
                );
                assert_eq!(to.get(0, len), data, "{len} bytes");
                let wc = a.next();
                assert_eq!((wc.status, wc.wr_id, wc.opcode), (OK, 5, Wc::IBV_WC_SEND));
            }
        }
    }
}

/// Lists on both sides are cut at different places, and immediate data comes along.
#[test]
fn gather_and_scatter_with_immediate() {
    let dev = Dev::open();
    let (a, b) = pair(&dev, &Options::default());
    let (from, to) = (Mem::plain(&dev, 4096, LOCAL), Mem::plain(&dev, 4096, LOCAL));
    let data: Vec<u8> = (0..1000u32).map(|k| k as u8).collect();
    from.fill(0, &data[..300]);
    from.fill(2000, &data[300..1000]);
    for _ in 0..3 {
        b.recv(
            1,
            &mut [
                to.sge(0, 10),
                to.sge(500, 0),
                to.sge(1000, 400),
                to.sge(2000, 1000),
            ],
        );
        let mut sges = [from.sge(0, 300), from.sge(2000, 700)];
        let mut send = wr(2, Op::IBV_WR_SEND_WITH_IMM, &mut sges, SIGNALED);
        send.__bindgen_anon_1.imm_data = 0x01020304u32.to_be();
        assert_eq!(a.post(&mut send), 0);
        let wc = b.next();
        assert_eq!((wc.status, wc.byte_len), (OK, 1000));
        assert_eq!(
            unsafe { wc.__bindgen_anon_1.imm_data },
            0x01020304u32.to_be()
        );
        let got = [to.get(0, 10), to.get(1000, 400), to.get(2000, 590)].concat();
        assert_eq!(got, data);
        a.next();
    }
}

/// WRITE is silent at the target, WRITE_WITH_IMM takes a receive, READ fetches.
#[test]
fn one_sided() {
    let dev = Dev::open();
    let (a, b) = pair(&dev, &Options::default());
    let mine = Mem::plain(&dev, 8192, LOCAL);
    for theirs in [
        Mem::plain(&dev, 8192, LOCAL | READ | WRITE),
        Mem::file(&dev, 8192, LOCAL | READ | WRITE, Kind::Exposed),
    ] {
        mine.fill(0, b"hello one-sided world");
        a.post(&mut rdma(
            1,
            Op::IBV_WR_RDMA_WRITE,
            &mut [mine.sge(0, 21)],
            SIGNALED,
            theirs.addr() + 100,
            theirs.key(),
        ));
        assert_eq!(
            (a.next().opcode, b.poll().is_none()),
            (Wc::IBV_WC_RDMA_WRITE, true)
        );
        assert_eq!(theirs.get(100, 21), b"hello one-sided world");

        b.recv(3, &mut []);
        let mut sges = [mine.sge(6, 9)];
        let mut send = rdma(
            2,
            Op::IBV_WR_RDMA_WRITE_WITH_IMM,
            &mut sges,
            SIGNALED,
            theirs.addr(),
            theirs.key(),
        );
        send.__bindgen_anon_1.imm_data = 77;
        a.post(&mut send);
        let wc = b.next();
        assert_eq!(
            (wc.status, wc.opcode, wc.byte_len, wc.wr_id),
            (OK, Wc::IBV_WC_RECV_RDMA_WITH_IMM, 9, 3)
        );
        assert_eq!(
            (a.next().status, theirs.get(0, 9)),
            (OK, b"one-sided".to_vec())
        );

        a.post(&mut rdma(
            4,
            Op::IBV_WR_RDMA_READ,
            &mut [mine.sge(4000, 5), mine.sge(5000, 16)],
            SIGNALED,
            theirs.addr() + 100,
            theirs.key(),
        ));
        let wc = a.next();
        assert_eq!(
            (wc.status, wc.opcode, wc.byte_len),
            (OK, Wc::IBV_WC_RDMA_READ, 21)
        );
        assert_eq!(
            [mine.get(4000, 5), mine.get(5000, 16)].concat(),
            b"hello one-sided world"
        );
    }
}

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
        assert_eq!(
            (b.next().status, b.state()),
            (Status::IBV_WC_WR_FLUSH_ERR, State::IBV_QPS_ERR),
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

/// Inline data is taken at the post and needs no key.
#[test]
fn inline_data() {
    let dev = Dev::open();
    let (a, b) = pair(&dev, &Options::default());
    let to = Mem::plain(&dev, 64, LOCAL);
    let mut bytes = *b"inline bytes";
    let mut sge = [ibverbs_sys::ibv_sge {
        addr: bytes.as_ptr() as u64,
        length: 12,
        lkey: 0,
    }];
    assert_eq!(
        a.post(&mut wr(1, Op::IBV_WR_SEND, &mut sge, SIGNALED | INLINE)),
        0
    );
    bytes.fill(b'x');
    assert_eq!(&bytes, b"xxxxxxxxxxxx");
    b.recv(1, &mut [to.sge(0, 64)]);
    assert_eq!(
        (b.next().byte_len, to.get(0, 12)),
        (12, b"inline bytes".to_vec())
    );
    let mut big = [ibverbs_sys::ibv_sge {
        addr: to.addr(),
        length: 65,
        lkey: 0,
    }];
    assert_eq!(
        a.post(&mut wr(1, Op::IBV_WR_SEND, &mut big, INLINE)),
        libc::EINVAL
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

struct Shared<'a>(&'a End);
unsafe impl Send for Shared<'_> {}

/// Threads post on both ends of several pairs at once; every byte arrives, in order.
#[test]
fn threads_stream_both_ways() {
    let dev = Dev::open();
    let o = Options {
        depth: 32,
        ..Options::default()
    };
    let pairs: Vec<_> = (0..3).map(|_| pair(&dev, &o)).collect();
    std::thread::scope(|s| {
        for (a, b) in &pairs {
            for (tx, rx) in [(a, b), (b, a)] {
                let (tx, dev) = (Shared(tx), Sync_(&dev));
                s.spawn(move || {
                    let (tx, dev) = (tx, dev);
                    stream(tx.0, dev.0);
                });
                let _ = rx;
            }
        }
    });
}

struct Sync_<'a>(&'a Dev);
unsafe impl Send for Sync_<'_> {}

/// Sends 2,000 numbered messages and receives as many on the same end.
fn stream(end: &End, dev: &Dev) {
    let mem = Mem::plain(dev, 64 * 1024, LOCAL);
    let mut posted = 0u64;
    let (mut sent, mut got, mut free) = (0u64, 0u64, 32u64);
    let begin = std::time::Instant::now();
    while got < 2000 || sent < 2000 || free < 32 {
        while posted < 2000 && posted - got < 32 {
            end.recv(
                posted,
                &mut [mem.sge(32 * 1024 + (posted % 32) as usize * 512, 512)],
            );
            posted += 1;
        }
        if sent < 2000 && free > 0 {
            let at = (sent % 32) as usize * 512;
            let len = 8 + (sent as usize * 37) % 500;
            mem.fill(at, &sent.to_le_bytes());
            assert_eq!(
                end.post(&mut wr(
                    sent,
                    Op::IBV_WR_SEND,
                    &mut [mem.sge(at, len)],
                    SIGNALED
                )),
                0
            );
            sent += 1;
            free -= 1;
        }
        while let Some(wc) = end.poll() {
            assert_eq!(wc.status, OK);
            if wc.opcode == Wc::IBV_WC_RECV {
                assert_eq!(
                    (wc.wr_id, wc.byte_len as usize),
                    (got, 8 + (got as usize * 37) % 500)
                );
                assert_eq!(
                    mem.get(32 * 1024 + (got % 32) as usize * 512, 8),
                    got.to_le_bytes()
                );
                got += 1;
            } else {
                free += 1;
            }
        }
        assert!(begin.elapsed() < HANG, "sent {sent} got {got} free {free}");
        std::thread::yield_now();
    }
}

/// Memory is given back while a peer works on it; afterwards the key is refused and nothing lands, and nothing is read.
#[test]
fn dereg_under_fire() {
    let dev = Dev::open();
    for round in 0..40 {
        let (op, access) = [
            (Op::IBV_WR_RDMA_WRITE, LOCAL | WRITE),
            (Op::IBV_WR_RDMA_READ, READ),
        ][round % 2];
        let (a, _b) = pair(
            &dev,
            &Options {
                depth: 64,
                ..Options::default()
            },
        );
        let mine = Mem::plain(&dev, 4096, LOCAL);
        mine.fill(0, &[0xaa; 4096]);
        let mut theirs = Mem::plain(&dev, 4096, access);
        theirs.fill(0, &[0xaa; 4096]);
        let (addr, key) = (theirs.addr(), theirs.key());
        std::thread::scope(|s| {
            let a = Shared(&a);
            let mine = &mine;
            let sge = mine.sge(0, 4096);
            let worker = s.spawn(move || {
                let a = a;
                loop {
                    assert_eq!(
                        a.0.post(&mut rdma(1, op, &mut [{ sge }], SIGNALED, addr, key)),
                        0
                    );
                    let status = a.0.next().status;
                    if status != OK {
                        return status;
                    }
                }
            });
            for _ in 0..round * 1000 {
                std::hint::spin_loop();
            }
            theirs.dereg();
            theirs.fill(0, &[0; 4096]);
            assert_eq!(worker.join().unwrap(), Status::IBV_WC_REM_ACCESS_ERR);
            assert!(
                theirs.get(0, 4096).iter().all(|b| *b == 0),
                "a byte landed after dereg"
            );
            assert!(
                mine.get(0, 4096).iter().all(|b| *b == 0xaa),
                "a byte was read after dereg"
            );
        });
    }
}

/// Compare-and-swap and fetch-and-add return what was there; misaligned words and missing rights are refused.
#[test]
fn atomics() {
    let dev = Dev::open();
    let mine = Mem::plain(&dev, 64, LOCAL);
    let kinds = [
        Mem::plain(&dev, 64, LOCAL | ATOMIC),
        Mem::file(&dev, 64, LOCAL | ATOMIC, Kind::Exposed),
    ];
    for theirs in &kinds {
        let (a, b) = pair(&dev, &Options::default());
        theirs.fill(8, &100u64.to_ne_bytes());
        let word = |mem: &Mem, at| u64::from_ne_bytes(mem.get(at, 8).try_into().unwrap());
        let cases = [
            (Op::IBV_WR_ATOMIC_FETCH_AND_ADD, [5, 0], 100, 105),
            (Op::IBV_WR_ATOMIC_FETCH_AND_ADD, [u64::MAX, 0], 105, 104),
            (Op::IBV_WR_ATOMIC_CMP_AND_SWP, [104, 7], 104, 7),
            (Op::IBV_WR_ATOMIC_CMP_AND_SWP, [104, 9], 7, 7),
        ];
        for (op, operands, before, after) in cases {
            assert_eq!(
                a.post(&mut atomic(
                    1,
                    op,
                    &mut [mine.sge(0, 8)],
                    theirs.addr() + 8,
                    theirs.key(),
                    operands
                )),
                0
            );
            let wc = a.next();
            let opcode = if op == Op::IBV_WR_ATOMIC_CMP_AND_SWP {
                Wc::IBV_WC_COMP_SWAP
            } else {
                Wc::IBV_WC_FETCH_ADD
            };
            assert_eq!(
                (wc.status, wc.opcode, word(&mine, 0), word(theirs, 8)),
                (OK, opcode, before, after)
            );
        }
        assert_eq!(
            a.post(&mut atomic(
                1,
                Op::IBV_WR_ATOMIC_FETCH_AND_ADD,
                &mut [mine.sge(0, 4)],
                theirs.addr(),
                theirs.key(),
                [1, 0]
            )),
            libc::EINVAL
        );
        a.post(&mut atomic(
            1,
            Op::IBV_WR_ATOMIC_FETCH_AND_ADD,
            &mut [mine.sge(0, 8)],
            theirs.addr() + 4,
            theirs.key(),
            [1, 0],
        ));
        assert_eq!(
            (a.next().status, b.state()),
            (Status::IBV_WC_REM_INV_REQ_ERR, State::IBV_QPS_ERR)
        );
        let (a, _b) = pair(
            &dev,
            &Options {
                access: READ | WRITE,
                ..Options::default()
            },
        );
        a.post(&mut atomic(
            1,
            Op::IBV_WR_ATOMIC_FETCH_AND_ADD,
            &mut [mine.sge(0, 8)],
            theirs.addr(),
            theirs.key(),
            [1, 0],
        ));
        assert_eq!(a.next().status, Status::IBV_WC_REM_INV_REQ_ERR);
    }
    let plain = Mem::plain(&dev, 64, LOCAL | READ | WRITE);
    let (a, _b) = pair(&dev, &Options::default());
    a.post(&mut atomic(
        1,
        Op::IBV_WR_ATOMIC_FETCH_AND_ADD,
        &mut [mine.sge(0, 8)],
        plain.addr(),
        plain.key(),
        [1, 0],
    ));
    assert_eq!(a.next().status, Status::IBV_WC_REM_ACCESS_ERR);
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
    let events: Vec<_> = (0..2).map(|_| event(&dev)).collect();
    assert!(
        events.contains(&ibverbs_sys::ibv_event_type::IBV_EVENT_CQ_ERR),
        "{events:?}"
    );
    assert!(
        events.contains(&ibverbs_sys::ibv_event_type::IBV_EVENT_QP_FATAL),
        "{events:?}"
    );
}

/// Takes and acknowledges an asynchronous event.
fn event(dev: &Dev) -> ibverbs_sys::ibv_event_type {
    let mut event = unsafe { std::mem::zeroed::<ibverbs_sys::ibv_async_event>() };
    assert_eq!(
        unsafe { (api().ibv_get_async_event)(dev.ctx, &mut event) },
        0
    );
    unsafe { (api().ibv_ack_async_event)(&mut event) };
    event.event_type
}
