//! Reliable connections between threads of one process: many threads at once.
#![allow(missing_docs, clippy::undocumented_unsafe_blocks)]

mod common;
use common::*;
use ibverbs_sys::ibv_wc_opcode as Wc;
use ibverbs_sys::ibv_wc_status as Status;
use ibverbs_sys::ibv_wr_opcode as Op;

struct Shared<'a>(&'a End);
unsafe impl Send for Shared<'_> {}

struct Sync_<'a>(&'a Dev);
unsafe impl Send for Sync_<'_> {}

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
