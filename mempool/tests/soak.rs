//! Two threads that allocate, pass on and free, for long.
//!
//! ```sh
//! cargo test --release -p verbatim-mempool --test soak -- --ignored       # 100 million operations, a minute or so
//! ```
#![cfg(not(loom))]

use mempool::{Budget, BudgetKind, Buf, Kind, Pool};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;
use verbs::Device;

const LIMIT: u64 = 32 << 20;
/// Buffers that each thread holds.
const HELD: usize = 64;

/// xorshift64.
struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % n as u64) as usize
    }
}

/// A buffer marked at both ends.
fn marked(mut buf: Buf, mark: u8) -> Buf {
    let end = buf.len() - 1;
    (buf[0], buf[end]) = (mark, mark);
    buf
}

fn check(buf: Buf) {
    assert_eq!(buf[0], buf[buf.len() - 1], "a byte of another buffer");
}

/// Allocates and frees `operations` times altogether; some of it is passed to the other thread.
fn work(pool: &Pool, operations: u64, seed: u64, to: SyncSender<Buf>, from: Receiver<Buf>) {
    let mut random = Random(seed);
    let mut held: Vec<Option<Buf>> = (0..HELD).map(|_| None).collect();
    let (mut done, mut refused) = (0u64, 0u64);
    while done < operations {
        let slot = random.below(HELD);
        let len = match random.below(64) {
            0 => 100_000,
            1..8 => 5000,
            n => 1 + n * 16,
        };
        let (budget, kind) = match random.below(4) {
            0 => (BudgetKind::Receive, Kind::Receive),
            _ => (BudgetKind::User, Kind::Private),
        };
        let new = pool.alloc_in(budget, kind, len);
        refused += u64::from(new.is_err());
        let new = new.ok().map(|buf| marked(buf, done as u8));
        let old = std::mem::replace(&mut held[slot], new);
        done += 2;
        match old {
            Some(old) if random.below(8) == 0 => {
                // If the other is behind, it is freed here.
                if let Err(e) = to.try_send(old) {
                    let (std::sync::mpsc::TrySendError::Full(old)
                    | std::sync::mpsc::TrySendError::Disconnected(old)) = e;
                    check(old);
                }
            }
            old => old.into_iter().for_each(check),
        }
        if done.is_multiple_of(256) {
            from.try_iter().for_each(check);
        }
    }
    assert_eq!(refused, 0, "the budgets are large enough");
    held.into_iter().flatten().for_each(check);
    drop(to);
    from.into_iter().for_each(check);
}

fn soak(operations: u64) {
    let pd = Device::open_spec("soft0").unwrap().alloc_pd().unwrap();
    let pool = Pool::builder(&pd)
        .budget(Budget::user(LIMIT))
        .budget(Budget::receive(LIMIT))
        .build()
        .unwrap();
    let (to_a, from_b) = sync_channel(1024);
    let (to_b, from_a) = sync_channel(1024);
    thread::scope(|s| {
        let threads = [
            s.spawn(|| work(&pool, operations / 2, 1, to_b, from_b)),
            s.spawn(|| work(&pool, operations / 2, 2, to_a, from_a)),
        ];
        for thread in threads {
            thread.join().unwrap();
        }
    });
    assert_eq!(pool.findings(), 0);
    let stats = pool.stats();
    for budget in &stats.budgets {
        assert_eq!(budget.in_use, 0, "{stats}");
    }
    assert!(
        stats.classes.iter().all(|c| c.live + c.stocked == 0),
        "{stats}"
    );
    assert!(pool.trim() > 0);
    assert_eq!(
        pool.stats().kinds.iter().map(|k| k.arenas).sum::<usize>(),
        0
    );
}

#[test]
fn two_threads_and_a_million_operations() {
    soak(1_000_000);
}

#[test]
#[ignore = "takes a minute; see the head of this file"]
fn two_threads_and_a_hundred_million_operations() {
    soak(100_000_000);
}
