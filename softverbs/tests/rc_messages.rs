//! Reliable connections between threads of one process: messages arrive.
#![allow(missing_docs, clippy::undocumented_unsafe_blocks)]

mod common;
use common::*;
use ibverbs_sys::ibv_qp_state as State;
use ibverbs_sys::ibv_wc_opcode as Wc;
use ibverbs_sys::ibv_wc_status as Status;
use ibverbs_sys::ibv_wr_opcode as Op;
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
        // More room than a word has: what comes after the word is left alone.
        for lists in [
            &mut [mine.sge(16, 40)][..],
            &mut [mine.sge(16, 3), mine.sge(19, 5), mine.sge(24, 32)],
            &mut [mine.sge(16, 3), mine.sge(19, 30)],
        ] {
            theirs.fill(8, &7u64.to_ne_bytes());
            mine.fill(16, &[9; 48]);
            let add = Op::IBV_WR_ATOMIC_FETCH_AND_ADD;
            let mut add = atomic(1, add, lists, theirs.addr() + 8, theirs.key(), [5, 0]);
            assert_eq!(a.post(&mut add), 0);
            let wc = a.next();
            assert_eq!((wc.status, wc.byte_len), (OK, 8));
            assert_eq!((word(&mine, 16), word(theirs, 8)), (7, 12));
            assert_eq!(mine.get(24, 40), [9; 40]);
        }
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
