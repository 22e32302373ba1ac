//! The debug mode finds what `unsafe` code, devices and peers do, and nothing else.

use super::source::HeapSource;
use super::{MIB, config, pool_on};
use crate::debug::{DebugMode, Finding};
use crate::shared::Config;
use crate::{BudgetKind, Buf, Kind, Pool};
use std::cell::RefCell;
use std::sync::Arc;

thread_local!(static FOUND: RefCell<Vec<Finding>> = const { RefCell::new(Vec::new()) });

fn found() -> Vec<Finding> {
    FOUND.take()
}

fn watched(limit: u64) -> (Pool, Arc<HeapSource>) {
    let source = Arc::new(HeapSource::default());
    let mode = DebugMode::new()
        .quarantine(2)
        .report(|finding| FOUND.with_borrow_mut(|all| all.push(finding.clone())));
    let config = Config {
        debug: Some(mode),
        ..config([limit, MIB, MIB])
    };
    (pool_on(&source, config), source)
}

#[test]
fn what_is_right_is_not_reported() {
    let (pool, source) = watched(16 * MIB);
    for len in [1, 64, 100, 4096, 5000, 1 << 20, 3 << 20] {
        let mut buf = pool.alloc(len).unwrap();
        buf.fill(1);
        let (head, tail) = buf.split_at(len / 2);
        let shared = tail.freeze();
        drop((head, shared.clone()));
        drop(shared);
        drop(pool.exposed(len).unwrap());
    }
    assert_eq!(pool.findings(), 0);
    assert!(pool.live_buffers().is_empty());
    drop(pool);
    assert_eq!(found(), []);
    assert_eq!(source.live(), 0);
}

#[test]
fn a_write_beyond_the_end_is_found_when_it_is_freed() {
    let (pool, _) = watched(MIB);
    let line = line!() + 1;
    let mut buf = pool.alloc(100).unwrap();
    let start = buf.as_mut_ptr();
    // SAFETY: within the slab of 128 bytes, which nobody else has: what a segment that is too long would do.
    unsafe { start.add(101).write(1) };
    assert_eq!(pool.findings(), 0);
    drop(buf);
    let Some(Finding::Overrun {
        addr,
        len: 100,
        offset: 101,
        site,
    }) = found().pop()
    else {
        panic!("not found")
    };
    assert_eq!(
        (addr, site.file(), site.line()),
        (start.addr(), file!(), line)
    );
    assert_eq!(pool.findings(), 1);
}

#[test]
fn a_write_after_the_end_of_life_is_found_before_the_memory_is_used_again() {
    let (pool, _) = watched(MIB);
    let mut buf = pool.alloc(4096).unwrap();
    let start = buf.as_mut_ptr();
    drop(buf);
    // SAFETY: mapped still, and in nobody's hands: what a device would do that still owns it.
    unsafe { start.add(4000).write(1) };
    assert_eq!(found(), []);
    // Kept for as long as two more are freed.
    for _ in 0..2 {
        drop(pool.alloc(4096).unwrap());
    }
    assert!(matches!(
        found()[..],
        [Finding::WrittenAfterFree {
            len: 4096,
            offset: 4000,
            ..
        }]
    ));
}

#[test]
fn a_double_free_is_found_and_frees_once() {
    let (pool, source) = watched(MIB);
    let buf = pool.alloc(64).unwrap();
    // SAFETY: none. It is what is to be found; in debug mode the pool does not act on it.
    let again: Buf = unsafe { std::ptr::read(&buf) };
    drop(buf);
    drop(again);
    let all = found();
    assert!(
        matches!(all[..], [Finding::DoubleFree { site: Some(_), .. }]),
        "{all:?}"
    );
    assert!(all[0].to_string().contains("freed twice"));
    pool.findings();
    assert_eq!(pool.stats().budget(BudgetKind::User).in_use, 0);
    drop(pool);
    assert_eq!(source.live(), 0);
}

#[test]
fn what_outlives_the_pool_is_reported_with_its_place() {
    let (pool, source) = watched(16 * MIB);
    let held: Vec<Buf> = (0..3).map(|_| pool.alloc(100).unwrap()).collect();
    let live = pool.live_buffers();
    assert_eq!(live.len(), 3);
    assert!(live[0].to_string().contains("debugging.rs"), "{}", live[0]);
    drop(pool);
    let all = found();
    let [
        Finding::StillOut {
            buffers: 3,
            bytes: 300,
            posted: 0,
            site,
        },
    ] = all[..]
    else {
        panic!("{all:?}")
    };
    assert!(site.file().ends_with("debugging.rs"));
    drop(held);
    assert_eq!((found(), source.live()), (vec![], 0));
}

#[test]
fn what_was_posted_is_known_with_the_feature() {
    let (pool, _) = watched(MIB);
    let buf = pool.alloc(100).unwrap();
    verbs::Gather::gather(&buf, &mut verbs::SgeList::new());
    assert_eq!(pool.live_buffers()[0].posted, cfg!(feature = "debug"));
}

#[test]
fn what_is_kept_out_of_use_is_no_reason_to_refuse() {
    let (pool, _) = watched(2 * 65_536);
    for _ in 0..10 {
        let held = [0; 2].map(|_| pool.alloc(65_536).unwrap());
        drop(held);
    }
    let (receive, kind) = (BudgetKind::Receive, Kind::Receive);
    assert!(pool.alloc_in(receive, kind, 2 << 20).is_err());
    assert_eq!(pool.findings(), 0);
}
