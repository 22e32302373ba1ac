//! Waiting for room: in order, for as long as said, and without missing any.

use super::{MIB, config, pool, pool_on};
use crate::budget::BudgetId;
use crate::ledger::Plan;
use crate::{AllocError, Budget, BudgetKind, Kind, Pool};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

/// Nothing here takes a second; a test that reaches this hangs.
fn hang() -> Instant {
    Instant::now() + Duration::from_secs(60)
}

/// Waits until so many wait.
fn until_waiting(pool: &Pool, count: usize) {
    let deadline = hang();
    while pool.shared.ledger.waiting() != count {
        assert!(Instant::now() < deadline, "nobody waits");
        thread::yield_now();
    }
}

fn user(pool: &Pool) -> crate::BudgetStats {
    *pool.stats().budget(BudgetKind::User)
}

#[test]
fn who_waits_gets_what_is_freed() {
    let (pool, _) = pool([MIB, MIB, MIB]);
    let all = pool.alloc(MIB as usize).unwrap();
    thread::scope(|s| {
        let waits = s.spawn(|| pool.alloc_deadline(4096, hang()).unwrap().len());
        until_waiting(&pool, 1);
        drop(all);
        assert_eq!(waits.join().unwrap(), 4096);
    });
    let user = user(&pool);
    assert_eq!((user.waits, user.refusals, user.peak), (1, 0, MIB));
}

#[test]
fn nobody_overtakes() {
    let (pool, _) = pool([8 * 4096, MIB, MIB]);
    let mut held: Vec<_> = (0..8).map(|_| pool.alloc(4096).unwrap()).collect();
    let (send, served) = mpsc::channel();
    thread::scope(|s| {
        // The first wants more than the others, and room for it comes bit by bit.
        for (i, len) in [4 * 4096, 4096, 64, 8192].into_iter().enumerate() {
            let (pool, send) = (&pool, send.clone());
            s.spawn(move || {
                let buf = pool.alloc_deadline(len, hang()).unwrap();
                send.send((i, buf)).unwrap();
            });
            until_waiting(pool, i + 1);
        }
        for _ in 0..3 {
            held.pop();
            let refused = pool.alloc(64).map(drop);
            assert!(
                matches!(refused, Err(AllocError::BudgetExhausted { .. })),
                "there is room, but others wait for it: {refused:?}"
            );
            assert!(served.try_recv().is_err());
        }
        // What was served is kept until the end, so that nobody is served by it.
        let mut kept = Vec::new();
        for expected in 0..4 {
            held.pop();
            if expected == 3 {
                held.clear();
                kept.clear();
            }
            let (who, buf) = served.recv_timeout(Duration::from_secs(60)).unwrap();
            assert_eq!(who, expected);
            until_waiting(&pool, 3 - expected);
            kept.push(buf);
        }
    });
}

#[test]
fn a_deadline_passes_and_those_behind_are_served() {
    let (pool, _) = pool([4 * 4096, MIB, MIB]);
    let mut held: Vec<_> = (0..3).map(|_| pool.alloc(4096).unwrap()).collect();
    let start = Instant::now();
    let wait = Duration::from_millis(20);
    let error = pool.alloc_deadline(8192, start + wait).unwrap_err();
    assert!(start.elapsed() >= wait);
    let text = error.to_string();
    assert!(
        matches!(
            error,
            AllocError::Deadline {
                name: "user",
                asked: 8192
            }
        ),
        "{text}"
    );
    held.push(pool.alloc(4096).unwrap());
    thread::scope(|s| {
        let gives_up = s.spawn(|| {
            let soon = Instant::now() + Duration::from_millis(50);
            pool.alloc_deadline(8192, soon).unwrap_err()
        });
        until_waiting(&pool, 1);
        let behind = s.spawn(|| pool.alloc_deadline(4096, hang()).unwrap().len());
        // One page is not enough for the first; when that is gone, it is for the second.
        held.pop();
        gives_up.join().unwrap();
        assert_eq!(behind.join().unwrap(), 4096);
    });
    drop(held);
    assert_eq!(user(&pool).in_use, user(&pool).stocked);
}

#[test]
fn what_can_never_be_is_not_waited_for() {
    let (pool, source) = pool([MIB, 0, MIB]);
    let long = hang() + Duration::from_secs(3600);
    let never = pool.alloc_deadline(MIB as usize + 1, long).unwrap_err();
    assert!(
        matches!(never, AllocError::BudgetExhausted { .. }),
        "{never}"
    );
    let (receive, kind) = (BudgetKind::Receive, Kind::Receive);
    let never = pool.alloc_deadline_in(receive, kind, 64, long).unwrap_err();
    assert!(
        matches!(never, AllocError::BudgetExhausted { .. }),
        "{never}"
    );
    let never = pool.alloc_deadline(usize::MAX, long).unwrap_err();
    assert!(matches!(never, AllocError::TooLarge { .. }), "{never}");
    assert!(pool.alloc_deadline(0, long).unwrap().is_empty());
    assert_eq!(source.made(), 0);
}

#[test]
fn a_pool_that_cannot_grow_says_so_at_once_and_refunds() {
    let (pool, source) = pool([MIB, MIB, MIB]);
    source
        .refuse_from
        .store(0, std::sync::atomic::Ordering::SeqCst);
    let error = pool.alloc_deadline(4096, hang()).unwrap_err();
    assert!(matches!(error, AllocError::Grow { .. }), "{error}");
    assert_eq!(user(&pool).in_use, 0);
}

#[test]
fn stock_of_threads_that_do_nothing_and_what_others_free_reach_who_waits() {
    let (pool, _) = pool([64 * 4096, MIB, MIB]);
    let (go, wait) = mpsc::channel::<()>();
    let (done, is_done) = mpsc::channel();
    thread::scope(|s| {
        // This thread owns everything, part of it as stock, and then does nothing.
        let owner = &pool;
        s.spawn(move || {
            let mut held: Vec<_> = (0..64).map(|_| owner.alloc(4096).unwrap()).collect();
            held.truncate(62);
            done.send(held).unwrap();
            wait.recv().unwrap();
        });
        let mut held = is_done.recv().unwrap();
        assert!(user(&pool).stocked > 0);
        // More than its stock: the rest is freed by another thread, to the owner's list if that were open.
        let waits = s.spawn(|| pool.alloc_deadline(4 * 4096, hang()).unwrap().len());
        until_waiting(&pool, 1);
        let two = held.split_off(60);
        s.spawn(move || drop(two));
        assert_eq!(waits.join().unwrap(), 4 * 4096);
        go.send(()).unwrap();
    });
    // Afterwards all is as before: stock is kept, lists are open.
    drop(pool.alloc(4096).unwrap());
    assert!(user(&pool).stocked > 0);
}

#[test]
fn others_go_on_while_somebody_waits() {
    let plan = Plan::new(
        &[
            Budget::user(MIB),
            Budget::named("a", BudgetKind::User, MIB / 2),
            Budget::named("b", BudgetKind::User, MIB / 2),
        ],
        u64::MAX,
    )
    .unwrap();
    let id = |name| plan.id_of(name).unwrap();
    let (a, b): (BudgetId, BudgetId) = (id("a"), id("b"));
    let source = std::sync::Arc::new(super::source::HeapSource::default());
    let pool = pool_on(
        &source,
        crate::shared::Config {
            plan,
            ..config([0; 3])
        },
    );
    assert_eq!(pool.budget_named("b"), Some(b));
    assert_eq!(pool.budget_named("c"), None);
    let held = pool.alloc_in(a, Kind::Private, 512 << 10).unwrap();
    thread::scope(|s| {
        let waits = s.spawn(|| {
            pool.alloc_deadline_in(a, Kind::Private, 64, hang())
                .unwrap()
                .len()
        });
        until_waiting(&pool, 1);
        for budget in [b, BudgetKind::User.into(), BudgetKind::Control.into()] {
            let refusals = pool.stats().budget(budget).refusals;
            drop(pool.alloc_in(budget, Kind::Private, 100_000).unwrap());
            assert_eq!(pool.stats().budget(budget).refusals, refusals);
        }
        drop(held);
        assert_eq!(waits.join().unwrap(), 64);
    });
    let stats = pool.stats();
    assert_eq!(stats.budget(a).waits, 1);
    assert!(stats.to_string().contains("waits"), "{stats}");
}

#[test]
fn many_wait_and_free_at_once_and_all_come_through() {
    const THREADS: usize = 4;
    let rounds = if cfg!(debug_assertions) { 200 } else { 2000 };
    let (pool, source) = pool([16 * 4096, 0, 0]);
    thread::scope(|s| {
        let threads: Vec<_> = (0..THREADS)
            .map(|me| {
                let pool = pool.clone();
                let (send, parcels) = mpsc::sync_channel(2);
                // Half of what is allocated is freed elsewhere.
                let frees = s.spawn(move || parcels.into_iter().for_each(drop));
                (
                    s.spawn(move || {
                        for round in 0..rounds {
                            let len = [64, 4096, 12_000, 65_536][(round + me) % 4];
                            let mut buf = pool.alloc_deadline(len, hang()).unwrap();
                            buf.fill(me as u8);
                            if usize::is_multiple_of(round, 2) {
                                send.send(buf).unwrap();
                            }
                        }
                    }),
                    frees,
                )
            })
            .collect();
        for (allocates, frees) in threads {
            allocates.join().unwrap();
            frees.join().unwrap();
        }
    });
    let user = user(&pool);
    assert_eq!(user.in_use, 0);
    assert!(user.peak <= user.limit && user.waits > 0, "{user:?}");
    drop(pool);
    assert_eq!(source.live(), 0);
}
