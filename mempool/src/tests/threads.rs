//! Many threads at once: every byte stays its buffer's.

use super::{MIB, pool};
use crate::stats::Stock;
use crate::{BudgetKind, Buf, Kind, PoolStats, SharedBuf};
use std::sync::mpsc;
use std::thread;

/// A small generator, so that runs can be repeated.
struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % n as u64) as usize
    }
}

enum Parcel {
    Unique(Buf, u8),
    Shared(SharedBuf, u8),
}

fn check(parcel: Parcel) {
    let (bytes, mark): (&[u8], u8) = match &parcel {
        Parcel::Unique(b, mark) => (b, *mark),
        Parcel::Shared(b, mark) => (b, *mark),
    };
    assert!(bytes.iter().all(|b| *b == mark), "a byte of another buffer");
}

#[test]
fn buffers_passed_between_threads_keep_their_bytes() {
    const THREADS: usize = 4;
    let rounds = if cfg!(debug_assertions) {
        20_000
    } else {
        100_000
    };
    let (pool, source) = pool([64 * MIB, 64 * MIB, MIB]);
    let (senders, receivers): (Vec<_>, Vec<_>) = (0..THREADS)
        .map(|_| mpsc::sync_channel::<Parcel>(64))
        .unzip();
    thread::scope(|s| {
        let mut threads = Vec::new();
        for (me, receiver) in receivers.into_iter().enumerate() {
            let (pool, senders) = (pool.clone(), senders.clone());
            threads.push(s.spawn(move || {
                let mut random = Random(0x9e37_79b9_7f4a_7c15 ^ (me as u64 + 1));
                let mut held: Vec<Parcel> = Vec::new();
                for round in 0..rounds {
                    let len = 1 << random.below(15);
                    let (budget, kind) = match random.below(2) {
                        0 => (BudgetKind::User, Kind::Private),
                        _ => (BudgetKind::Receive, Kind::Receive),
                    };
                    let mark = (round + me) as u8;
                    if let Ok(mut buf) = pool.alloc_in(budget, kind, len) {
                        buf.fill(mark);
                        match random.below(3) {
                            0 => {
                                let (a, b) = buf.split_at(len / 3);
                                held.push(Parcel::Unique(a, mark));
                                held.push(Parcel::Unique(b, mark));
                            }
                            1 => {
                                let shared = buf.freeze();
                                held.push(Parcel::Shared(shared.slice(len / 2..), mark));
                                held.push(Parcel::Shared(shared, mark));
                            }
                            _ => held.push(Parcel::Unique(buf, mark)),
                        }
                    }
                    // Never waits, so no two threads can wait for each other.
                    while let Ok(parcel) = receiver.try_recv() {
                        check(parcel);
                    }
                    while held.len() > 64 {
                        let parcel = held.swap_remove(random.below(held.len()));
                        match senders[random.below(THREADS)].try_send(parcel) {
                            Ok(()) => {}
                            Err(
                                mpsc::TrySendError::Full(p) | mpsc::TrySendError::Disconnected(p),
                            ) => {
                                check(p);
                            }
                        }
                    }
                }
                held.into_iter().for_each(check);
                drop(senders);
                // What is still on its way is freed after most owners have ended.
                receiver.into_iter().for_each(check);
            }));
        }
        drop(senders);
        threads.into_iter().for_each(|t| t.join().unwrap());
    });
    let stats = pool.stats();
    for budget in &stats.budgets {
        assert_eq!(budget.in_use, 0, "{stats}");
        assert!(budget.peak <= budget.limit);
    }
    assert!(
        stats.classes.iter().all(|c| c.live + c.stocked == 0),
        "{stats}"
    );
    drop(pool);
    assert_eq!(source.live(), 0);
}

#[test]
fn one_allocates_and_another_frees() {
    let (pool, _) = pool([8 * MIB, 0, 0]);
    let (send, receive) = mpsc::sync_channel::<Buf>(100);
    thread::scope(|s| {
        s.spawn(|| {
            receive
                .into_iter()
                .for_each(|buf| assert_eq!(buf[0], buf[4095]))
        });
        for i in 0..20_000 {
            let mut buf = pool.alloc(4096).unwrap();
            (buf[0], buf[4095]) = (i as u8, i as u8);
            send.send(buf).unwrap();
        }
        drop(send);
    });
    let class = pool.stats().classes[0];
    assert!(class.slabs <= 512, "the same slabs go round: {class:?}");
}

#[test]
fn threads_that_exhaust_a_budget_together_lose_nothing() {
    const THREADS: usize = 3;
    let rounds = if cfg!(debug_assertions) { 300 } else { 3000 };
    let (pool, _) = pool([64 * 4096, 0, 0]);
    thread::scope(|s| {
        let threads: Vec<_> = (0..THREADS)
            .map(|me| {
                let pool = pool.clone();
                s.spawn(move || {
                    let mut random = Random(me as u64 + 1);
                    for _ in 0..rounds {
                        let mut held = Vec::new();
                        let len = [64, 4096, 8192][random.below(3)];
                        // Each refusal asks the other threads for their stock, at any point of what they do.
                        while let Ok(buf) = pool.alloc(len) {
                            held.push(buf);
                        }
                        held.truncate(random.below(held.len() + 1));
                    }
                })
            })
            .collect();
        threads.into_iter().for_each(|t| t.join().unwrap());
    });
    let user = *pool.stats().budget(BudgetKind::User);
    assert_eq!(user.in_use, 0);
    assert!(user.peak <= user.limit && user.refusals > 0);
    let held: Vec<_> = (0..64).map(|_| pool.alloc(4096).unwrap()).collect();
    assert!(pool.alloc(1).is_err());
    drop(held);
}

#[test]
fn a_stock_that_is_brought_back_meanwhile_is_never_more_than_what_is_in_use() {
    let (pool, _) = pool([8 * MIB, 0, 0]);
    let held = pool.alloc(4096).unwrap();
    let stock = thread::scope(|s| {
        let keeps = || {
            drop(pool.alloc(4096).unwrap());
            Stock::of(&pool.shared)
        };
        // Its stock is brought back as it ends.
        s.spawn(keeps).join().unwrap()
    });
    let user = *PoolStats::with(&stock, &pool.shared).budget(BudgetKind::User);
    assert_eq!(user.stocked, user.in_use);
    drop(held);
}
