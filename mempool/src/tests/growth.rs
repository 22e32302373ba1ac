//! Growth ahead of use, and giving back what nobody uses.

use super::source::HeapSource;
use super::{MIB, config, pool_on, user_pool};
use crate::grower::{Growth, Unused};
use crate::shared::Config;
use crate::{AllocError, BudgetKind, Kind, Pool};
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::thread;
use std::time::{Duration, Instant};

/// Waits for what the pool's thread is to do; a test that reaches the end hangs.
fn until(mut f: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !f() {
        assert!(Instant::now() < deadline, "it never happens");
        thread::yield_now();
    }
}

fn ready(pool: &Pool, size: usize) -> usize {
    let stats = pool.stats();
    let class = stats.classes.iter().find(|c| c.slab_size == size);
    class.map_or(0, |c| c.ready)
}

#[test]
fn what_is_reserved_is_there_without_growth() {
    let (pool, source) = user_pool(256 * MIB);
    for (len, count) in [(100, 5000), (4096, 1000), (1 << 20, 20)] {
        let user = BudgetKind::User;
        pool.reserve(user, Kind::Private, len, count).unwrap();
        let (made, account) = (source.made(), *pool.stats().budget(user));
        assert_eq!(account.in_use, account.stocked, "nothing is charged");
        let held: Vec<_> = (0..count).map(|_| pool.try_alloc(len).unwrap()).collect();
        assert_eq!(source.made(), made);
        drop(held);
    }
}

#[test]
fn large_ones_are_reserved_as_chunks() {
    let (pool, source) = user_pool(256 * MIB);
    pool.reserve(BudgetKind::User, Kind::Private, 3 << 20, 5)
        .unwrap();
    let made = source.made();
    let _held: Vec<_> = (0..5).map(|_| pool.alloc(3 << 20).unwrap()).collect();
    assert_eq!(source.made(), made);
    let stats = pool.stats();
    assert_eq!(stats.budget(BudgetKind::User).in_use, 15 * MIB);
    assert_eq!(stats.kind(Kind::Private).large, 5);
}

#[test]
fn a_reserve_is_refused_or_fails_as_an_allocation_would() {
    let (pool, source) = user_pool(MIB);
    let reserve = |len, count| pool.reserve(BudgetKind::User, Kind::Private, len, count);
    assert!(matches!(
        reserve(4096, 257),
        Err(AllocError::BudgetExhausted { .. })
    ));
    assert!(matches!(
        reserve(usize::MAX, 1),
        Err(AllocError::TooLarge { .. })
    ));
    reserve(0, 1).unwrap();
    reserve(1, 0).unwrap();
    assert_eq!(source.made(), 0);
    source.refuse_from.store(0, SeqCst);
    assert!(matches!(reserve(4096, 1), Err(AllocError::Grow { .. })));
    source.refuse_from.store(u32::MAX, SeqCst);
    reserve(4096, 256).unwrap();
    assert_eq!(ready(&pool, 4096), 256);
}

fn growing(growth: Growth) -> (Pool, Arc<HeapSource>) {
    let source = Arc::new(HeapSource::default());
    let config = Config {
        growth,
        ..config([256 * MIB, MIB, MIB])
    };
    (pool_on(&source, config), source)
}

#[test]
fn a_thread_of_the_pool_keeps_stock_ready() {
    const READY: u64 = MIB;
    let (pool, source) = growing(Growth {
        ready: READY,
        unused_for: None,
    });
    let pages = READY as usize / 4096;
    let mut held = vec![pool.alloc(4096).unwrap()];
    until(|| ready(&pool, 4096) >= pages);
    // Arenas too, before they are needed: what is free is never less for long.
    let free = || pool.stats().kind(Kind::Private).free_chunks;
    for _ in 0..16 {
        for _ in 0..pages / 2 {
            held.push(pool.try_alloc(4096).expect("somebody saw to it"));
        }
        until(|| ready(&pool, 4096) >= pages / 2 && free() > 0);
    }
    // The thread ends with the pool.
    drop((held, pool));
    assert_eq!(source.live(), 0);
}

#[test]
fn to_give_back_after_longer_than_a_clock_holds_is_never() {
    let (pool, _) = growing(Growth {
        ready: MIB,
        unused_for: Some(Duration::MAX),
    });
    let _held = pool.alloc(4096).unwrap();
    until(|| ready(&pool, 4096) >= MIB as usize / 4096);
}

#[test]
fn growth_that_fails_ahead_of_use_hurts_nobody() {
    let (pool, source) = growing(Growth {
        ready: MIB,
        unused_for: None,
    });
    source.refuse_from.store(1, SeqCst);
    let held: Vec<_> = (0..1024).map(|_| pool.alloc(4096).unwrap()).collect();
    until(|| pool.stats().kind(Kind::Private).arenas_failed > 0);
    assert!(matches!(pool.alloc(4096), Err(AllocError::Grow { .. })));
    drop(held);
    pool.alloc(4096).unwrap();
}

#[test]
fn what_nobody_uses_is_given_back_and_what_is_used_stays() {
    let (pool, source) = user_pool(256 * MIB);
    let held: Vec<_> = (0..30).map(|_| pool.alloc(1 << 20).unwrap()).collect();
    let one = pool.alloc(4096).unwrap();
    let (arenas, mut unused) = (source.live(), Unused::default());
    assert!(arenas > 2);
    let mut look = |keep| pool.shared.release_unused(keep, &mut unused);
    assert_eq!(
        (look(0), look(0), source.live()),
        (0, 0, arenas),
        "all in use"
    );
    drop(held);
    let before = source.live_bytes() as u64;
    assert_eq!((look(0), source.live()), (0, arenas), "used a moment ago");
    // The second takes the stock, the third sees what is idle then, the fourth gives it back.
    let released: u64 = (0..4).map(|_| look(0)).sum();
    assert_eq!(source.live(), 1, "that of the page");
    assert_eq!(released, before - source.live_bytes() as u64);
    drop(one);
    for _ in 0..4 {
        assert_eq!((look(MIB), source.live()), (0, 1), "kept");
    }
    let last = source.live_bytes() as u64;
    assert_eq!(look(0), last);
    assert_eq!(source.live(), 0);
    drop(pool.alloc(4096).unwrap());
}

#[test]
fn stock_of_a_thread_that_does_nothing_is_taken_by_the_second_look() {
    let (pool, _) = user_pool(64 * MIB);
    let mut unused = Unused::default();
    drop(pool.alloc(4096).unwrap());
    let stocked = || pool.stats().budget(BudgetKind::User).stocked;
    let before = stocked();
    assert!(before > 0);
    pool.shared.release_unused(0, &mut unused);
    assert_eq!(stocked(), before);
    pool.shared.release_unused(0, &mut unused);
    assert_eq!(stocked(), 0);
    drop(pool.alloc(4096).unwrap());
    assert!(stocked() > 0);
}

#[test]
fn the_thread_looks_by_itself() {
    let (pool, source) = growing(Growth {
        ready: 0,
        unused_for: Some(Duration::from_millis(1)),
    });
    drop(pool.alloc(4096).unwrap());
    until(|| source.live() == 0);
    drop(pool.alloc(3 << 20).unwrap());
    until(|| source.live() == 0);
    assert_eq!(source.made(), 2);
}
