//! Limits: kept exactly, apart from each other, and given back whole.

use super::{MIB, pool};
use std::thread;

use crate::{AllocError, BudgetKind, Buf, Kind, Pool};

/// Allocates until refused.
fn fill(pool: &Pool, budget: BudgetKind, kind: Kind, len: usize) -> (Vec<Buf>, AllocError) {
    let mut held = Vec::new();
    loop {
        match pool.alloc_in(budget, kind, len) {
            Ok(buf) => held.push(buf),
            Err(e) => return (held, e),
        }
    }
}

#[test]
fn one_exhausted_budget_leaves_the_others_whole() {
    let (pool, _) = pool([MIB, 2 * MIB, MIB / 2]);
    let mut all = Vec::new();
    for (budget, kind, limit) in [
        (BudgetKind::User, Kind::Private, MIB),
        (BudgetKind::Receive, Kind::Receive, 2 * MIB),
        (BudgetKind::Control, Kind::Private, MIB / 2),
    ] {
        let (held, error) = fill(&pool, budget, kind, 4096);
        assert_eq!(held.len() as u64, limit / 4096, "{budget}");
        match error {
            AllocError::BudgetExhausted {
                budget: b,
                limit: l,
                in_use,
                asked,
                ..
            } => {
                assert_eq!((b, l, in_use, asked), (budget, limit, limit, 4096));
            }
            other => panic!("{other}"),
        }
        assert_eq!(pool.stats().budget(budget).refusals, 1);
        all.push(held);
    }
    drop(all);
    for (budget, limit) in [(BudgetKind::User, MIB), (BudgetKind::Control, MIB / 2)] {
        let (held, _) = fill(&pool, budget, Kind::Private, 65536);
        assert_eq!(
            held.len() as u64,
            limit / 65536,
            "stock of 4 KiB slabs counts no more"
        );
    }
}

#[test]
fn a_limit_of_zero_forbids() {
    let (pool, source) = pool([MIB, 0, MIB]);
    let (held, error) = fill(&pool, BudgetKind::Receive, Kind::Receive, 1);
    assert!(held.is_empty() && source.made() == 0);
    assert!(
        error
            .to_string()
            .contains("the receive budget is exhausted: 0 of 0 bytes"),
        "{error}"
    );
}

#[test]
fn large_buffers_are_charged_by_the_page() {
    let (pool, _) = pool([8 * MIB, MIB, MIB]);
    let len = (3 << 20) + 1;
    let (held, error) = fill(&pool, BudgetKind::User, Kind::Private, len);
    assert_eq!(held.len(), 2);
    assert!(
        matches!(error, AllocError::BudgetExhausted { in_use, asked, .. }
        if asked == (3 << 20) + 4096 && in_use == 2 * asked)
    );
    drop(held);
    assert_eq!(pool.stats().budget(BudgetKind::User).in_use, 0);
}

#[test]
fn exhaustion_takes_back_what_lies_on_remote_lists() {
    let (pool, _) = pool([64 * 4096, MIB, MIB]);
    let (held, _) = fill(&pool, BudgetKind::User, Kind::Private, 4096);
    assert_eq!(held.len(), 64);
    let other = pool.clone();
    // Freed by a thread that is not the owner, then wanted by that thread, while the owner does nothing.
    let count = thread::spawn(move || {
        drop(held);
        fill(&other, BudgetKind::User, Kind::Private, 4096).0.len()
    })
    .join()
    .unwrap();
    assert_eq!(count, 64);
}

#[test]
fn exhaustion_takes_the_stock_of_threads_that_do_nothing() {
    let (pool, _) = pool([64 * 4096, MIB, MIB]);
    // One buffer out, and a stock beside it.
    let first = pool.alloc(4096).unwrap();
    let kept = pool.stats().budget(BudgetKind::User).stocked / 4096;
    assert!(kept > 0);
    thread::scope(|s| {
        let all_but_one = || fill(&pool, BudgetKind::User, Kind::Private, 4096).0;
        let held = s.spawn(all_but_one).join().unwrap();
        assert_eq!(held.len(), 63, "all but what is out");
        assert_eq!(pool.stats().budget(BudgetKind::User).stocked, 0);
    });
    // The owner goes on as if nothing had been, and keeps stock again.
    drop(first);
    let (held, _) = fill(&pool, BudgetKind::User, Kind::Private, 4096);
    assert_eq!(held.len(), 64);
    drop(held);
    assert!(pool.stats().budget(BudgetKind::User).stocked > 0);
}

#[test]
fn try_alloc_leaves_other_threads_their_stock() {
    let (pool, _) = pool([64 * 4096, MIB, MIB]);
    drop(pool.alloc(4096).unwrap());
    let kept = pool.stats().budget(BudgetKind::User).stocked / 4096;
    thread::scope(|s| {
        let count = s.spawn(|| {
            let _rest = fill(&pool, BudgetKind::Control, Kind::Private, 4096);
            let mut held = Vec::new();
            pool.reserve(BudgetKind::User, Kind::Private, 4096, 64)
                .unwrap();
            while let Ok(buf) = pool.try_alloc(4096) {
                held.push(buf);
            }
            held.len() as u64
        });
        assert_eq!(count.join().unwrap(), 64 - kept);
    });
    assert_eq!(pool.stats().budget(BudgetKind::User).stocked, kept * 4096);
}
