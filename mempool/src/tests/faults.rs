//! Memory that cannot be had.

use super::{MIB, user_pool};
use crate::{AllocError, BudgetKind, Buf, Kind};
use std::sync::atomic::Ordering::SeqCst;

#[test]
fn failure_at_the_nth_arena_is_an_error_and_nothing_is_lost() {
    for n in 0..4 {
        let (pool, source) = user_pool(1024 * MIB);
        source.refuse_from.store(n, SeqCst);
        let mut held: Vec<Buf> = Vec::new();
        let error = loop {
            match pool.alloc(1 << 20) {
                Ok(buf) => held.push(buf),
                Err(e) => break e,
            }
        };
        let room: u64 = (0..n).map(|i| (4 * MIB) << i).sum();
        assert_eq!(
            held.len() as u64 * MIB,
            room,
            "arenas of 4 MiB and doubling"
        );
        let AllocError::Grow {
            kind: Kind::Private,
            source: ref cause,
            ..
        } = error
        else {
            panic!("{error}")
        };
        assert!(cause.to_string().contains("memory file"), "{cause}");
        let user = *pool.stats().budget(BudgetKind::User);
        assert_eq!(user.in_use, room, "what failed is not charged");
        // The rest goes on working, and so does growth once there is memory again.
        drop(held.pop());
        assert_eq!(pool.alloc(1 << 20).is_ok(), n > 0);
        source.refuse_from.store(u32::MAX, SeqCst);
        held.push(pool.alloc(1 << 20).unwrap());
        drop((held, pool));
        assert_eq!(source.live(), 0);
    }
}

#[test]
fn a_refused_arena_is_tried_smaller() {
    let (pool, source) = user_pool(1024 * MIB);
    source.refuse_above.store(4 << 20, SeqCst);
    let held: Vec<_> = (0..12).map(|_| pool.alloc(1 << 20).unwrap()).collect();
    assert_eq!((held.len(), source.made()), (12, 3));
    let kind = *pool.stats().kind(Kind::Private);
    assert!(kind.arenas_failed > 0 && kind.arenas_made == 3);
    assert!(
        matches!(pool.alloc(5 << 20), Err(AllocError::Grow { len, .. }) if len == 6 << 20),
        "three chunks, and no less"
    );
    assert_eq!(pool.stats().budget(BudgetKind::User).in_use, 12 * MIB);
}

#[test]
fn no_memory_behind_an_arena_is_an_error_not_a_signal() {
    let (pool, source) = user_pool(1024 * MIB);
    source.refuse_populate.store(true, SeqCst);
    for len in [64, 1 << 20, 3 << 20, 100 << 20] {
        let error = pool.alloc(len).unwrap_err();
        assert!(
            error.to_string().contains("no memory behind the arena"),
            "{error}"
        );
    }
    assert_eq!(pool.stats().budget(BudgetKind::User).in_use, 0);
    assert_eq!(pool.stats().kind(Kind::Private).spare_bytes, 0);
    source.refuse_populate.store(false, SeqCst);
    for len in [64, 1 << 20, 3 << 20, 100 << 20] {
        assert_eq!(pool.alloc(len).unwrap().len(), len);
    }
}

#[test]
fn before_failing_the_pool_uses_what_other_classes_left() {
    let (pool, source) = user_pool(1024 * MIB);
    // Two chunks, both cut for small slabs, then all of them free again.
    let held: Vec<_> = (0..2 << 20 >> 11)
        .map(|_| pool.alloc(4096).unwrap())
        .collect();
    source.refuse_from.store(source.made(), SeqCst);
    drop(held);
    let _held = [pool.alloc(1 << 20).unwrap(), pool.alloc(1 << 20).unwrap()];
}

#[test]
fn try_alloc_never_grows() {
    let (pool, source) = user_pool(64 * MIB);
    assert!(matches!(pool.try_alloc(100), Err(AllocError::NotReady)));
    assert!(matches!(pool.try_alloc(2 << 20), Err(AllocError::NotReady)));
    assert_eq!(
        (source.made(), pool.stats().budget(BudgetKind::User).in_use),
        (0, 0)
    );
    drop(pool.alloc(100).unwrap());
    assert_eq!(pool.try_alloc(100).unwrap().len(), 100);
}
