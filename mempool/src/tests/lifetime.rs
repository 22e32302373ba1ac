//! Who keeps memory, and when it is given back.
//!
//! Threads are joined by their handles: the end of a scope alone does not wait for what they do while they end.

use super::{MIB, user_pool};
use crate::{BudgetKind, Buf, Kind, Pool};
use std::cell::RefCell;
use std::mem::ManuallyDrop;
use std::sync::mpsc;
use std::thread;

fn live(pool: &Pool) -> usize {
    pool.stats().classes.iter().map(|c| c.live).sum()
}

#[test]
fn a_dropped_pool_lives_on_in_its_buffers() {
    let (pool, source) = user_pool(64 * MIB);
    let mut buf = pool.alloc(4096).unwrap();
    let shared = pool.alloc(100).unwrap().freeze();
    let large = pool.alloc(40 << 20).unwrap();
    drop(pool);
    buf.fill(7);
    drop(buf);
    assert!(source.live() > 0);
    let part = shared.slice(10..20);
    drop(shared);
    drop(large);
    assert!(source.live() > 0);
    assert_eq!(part.len(), 10);
    thread::spawn(move || drop(part)).join().unwrap();
    assert_eq!(source.live(), 0, "the last part was freed elsewhere");
}

#[test]
fn a_forgotten_buffer_keeps_the_arenas() {
    let (pool, source) = user_pool(64 * MIB);
    let (private, receive) = (Kind::Private, Kind::Receive);
    let forgotten = ManuallyDrop::new(pool.alloc(4096).unwrap());
    drop(pool.alloc_in(BudgetKind::Receive, receive, 64).unwrap());
    drop(pool.alloc_in(BudgetKind::User, private, 2 << 20).unwrap());
    let arenas = source.live();
    drop(pool);
    assert_eq!(source.live(), arenas, "arenas go together");
    drop(ManuallyDrop::into_inner(forgotten));
    assert_eq!(source.live(), 0);
}

#[test]
fn a_thread_that_ends_gives_its_stock_back() {
    let (pool, _) = user_pool(64 * MIB);
    thread::scope(|s| {
        s.spawn(|| drop(pool.alloc(4096).unwrap())).join().unwrap();
    });
    let user = *pool.stats().budget(BudgetKind::User);
    assert!(user.peak > 0);
    assert_eq!((user.in_use, user.stocked), (0, 0));
}

#[test]
fn a_buffer_freed_after_its_thread_ended_is_not_lost() {
    let (pool, source) = user_pool(64 * MIB);
    let (a, b) = thread::scope(|s| {
        s.spawn(|| (pool.alloc(4096).unwrap(), pool.alloc(3 << 20).unwrap()))
            .join()
            .unwrap()
    });
    drop((a, b));
    assert_eq!(pool.stats().budget(BudgetKind::User).in_use, 0);
    let orphan = thread::scope(|s| s.spawn(|| pool.alloc(64).unwrap()).join().unwrap());
    drop(pool);
    assert!(source.live() > 0);
    drop(orphan);
    assert_eq!(source.live(), 0);
}

#[test]
fn a_new_thread_takes_over_from_one_that_ended() {
    let (pool, _) = user_pool(64 * MIB);
    let (send, receive) = mpsc::channel::<Buf>();
    for _ in 0..50 {
        let (pool, send) = (pool.clone(), send.clone());
        thread::spawn(move || send.send(pool.alloc(4096).unwrap()).unwrap())
            .join()
            .unwrap();
    }
    drop(send);
    assert_eq!(pool.stats().kind(Kind::Private).arenas, 1);
    // Owners have ended, but their successor has not: both ways back are used.
    thread::scope(|s| {
        s.spawn(|| {
            let own = pool.alloc(64).unwrap();
            receive.into_iter().for_each(drop);
            drop(own);
        })
        .join()
        .unwrap();
    });
    assert_eq!(live(&pool), 0);
    assert_eq!(pool.stats().budget(BudgetKind::User).in_use, 0);
}

#[test]
fn a_closed_pool_takes_the_stock_of_threads_that_do_nothing() {
    let (pool, source) = user_pool(64 * MIB);
    let (other, other_source) = user_pool(64 * MIB);
    let (go, wait) = mpsc::channel::<()>();
    let (done, is_done) = mpsc::channel::<()>();
    let worker = {
        let pool = pool.clone();
        thread::spawn(move || {
            drop(pool.alloc(4096).unwrap());
            drop(pool);
            done.send(()).unwrap();
            wait.recv().unwrap();
            drop(other.alloc(64).unwrap());
            done.send(()).unwrap();
            wait.recv().unwrap();
        })
    };
    is_done.recv().unwrap();
    assert!(pool.stats().budget(BudgetKind::User).stocked > 0);
    assert_eq!(source.live(), 1);
    drop(pool);
    assert_eq!(
        source.live(),
        0,
        "though the worker has not done anything since"
    );
    // Nor is it confused.
    go.send(()).unwrap();
    is_done.recv().unwrap();
    assert_eq!(other_source.live(), 1);
    go.send(()).unwrap();
    worker.join().unwrap();
    assert_eq!(other_source.live(), 0);
}

#[test]
fn a_thread_with_stock_lets_a_closed_pool_go_with_its_next_free() {
    let (pool, source) = user_pool(64 * MIB);
    let (go, wait) = mpsc::channel::<()>();
    let (done, is_done) = mpsc::channel::<()>();
    let worker = {
        let pool = pool.clone();
        thread::spawn(move || {
            let last = pool.alloc(4096).unwrap();
            drop(pool);
            done.send(()).unwrap();
            wait.recv().unwrap();
            drop(last);
            done.send(()).unwrap();
            wait.recv().unwrap();
        })
    };
    is_done.recv().unwrap();
    drop(pool);
    assert_eq!(source.live(), 1);
    go.send(()).unwrap();
    is_done.recv().unwrap();
    assert_eq!(source.live(), 0);
    go.send(()).unwrap();
    worker.join().unwrap();
}

#[test]
fn two_pools_in_one_thread_do_not_mix() {
    let (a, source_a) = user_pool(64 * MIB);
    let (b, source_b) = user_pool(64 * MIB);
    for _ in 0..1000 {
        let (x, y) = (a.alloc(100).unwrap(), b.alloc(100).unwrap());
        drop(x);
        drop(y);
    }
    assert_eq!((live(&b), source_a.made(), source_b.made()), (0, 1, 1));
    drop(a);
    assert_eq!((source_a.live(), source_b.live()), (0, 1));
    drop(b);
    assert_eq!(source_b.live(), 0);
}

thread_local! {
    static LEFTOVER: RefCell<Option<LastWill>> = const { RefCell::new(None) };
}

/// Frees and allocates while the thread's locals are being destroyed.
struct LastWill(Pool, Option<Buf>, mpsc::Sender<usize>);

impl Drop for LastWill {
    fn drop(&mut self) {
        self.1.take();
        let buf = self.0.alloc(200).unwrap();
        self.2.send(buf.len()).unwrap();
    }
}

#[test]
fn a_thread_may_free_and_allocate_while_it_ends() {
    for pool_first in [false, true] {
        let (pool, source) = user_pool(64 * MIB);
        let (send, receive) = mpsc::channel();
        let theirs = pool.clone();
        thread::spawn(move || {
            // Destructors run in an order that depends on which was used first.
            if pool_first {
                drop(theirs.alloc(1).unwrap());
            }
            LEFTOVER.with(|l| l.borrow_mut().is_none());
            let buf = theirs.alloc(100).unwrap();
            LEFTOVER.set(Some(LastWill(theirs, Some(buf), send)));
        })
        .join()
        .unwrap();
        assert_eq!(receive.recv().unwrap(), 200);
        assert_eq!(
            pool.stats().budget(BudgetKind::User).in_use,
            0,
            "{pool_first}"
        );
        drop(pool);
        assert_eq!(source.live(), 0);
    }
}

#[test]
fn trim_gives_idle_arenas_back() {
    let (pool, source) = user_pool(1024 * MIB);
    let held: Vec<_> = (0..20).map(|_| pool.alloc(1 << 20).unwrap()).collect();
    let large = pool.alloc(100 << 20).unwrap();
    assert_eq!(pool.trim(), 0);
    drop((held, large));
    let before = source.live_bytes() as u64;
    let released = pool.trim();
    assert_eq!((released, source.live()), (before, 0));
    assert_eq!(pool.alloc(100 << 20).unwrap().len(), 100 << 20);
}

#[test]
fn a_large_arena_is_used_again_for_about_its_size() {
    let (pool, source) = user_pool(2048 * MIB);
    drop(pool.alloc(100 << 20).unwrap());
    drop(pool.alloc(90 << 20).unwrap());
    assert_eq!(source.made(), 1);
    drop(pool.alloc(50 << 20).unwrap());
    assert_eq!(
        (source.made(), source.live()),
        (2, 1),
        "the spare was given up for it"
    );
}

#[test]
fn chunks_go_back_to_the_arena_and_are_cut_anew() {
    let (pool, source) = user_pool(1024 * MIB);
    // 3 MiB of every class in turn need no more arenas than the first few do.
    for round in 0..3 {
        for len in [64, 1000, 4096, 5000, 70_000, 1 << 20, 3 << 20] {
            let held: Vec<_> = (0..(3usize << 20).div_ceil(len))
                .map(|_| pool.alloc(len).unwrap())
                .collect();
            drop(held);
        }
        if round == 0 {
            assert!(source.live_bytes() <= 28 << 20, "{}", source.live_bytes());
        }
    }
    assert!(source.live_bytes() <= 28 << 20, "{}", source.live_bytes());
}
