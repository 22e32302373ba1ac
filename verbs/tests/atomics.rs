//! Atomics on a peer's words.
#![cfg(feature = "soft")]

mod common;

use std::sync::atomic::Ordering::SeqCst;

use common::*;
use verbs::{
    Access, Exposed, Gather, Pd, PostErrorKind, RcBuilder, RemoteRegion, Scatter, SgeList, WcStatus,
};

const ATOMIC: Access = Access::REMOTE_ATOMIC;

fn with_atomics(builder: RcBuilder) -> RcBuilder {
    builder.access(ATOMIC)
}

/// A counter that peers change, and what its word is now.
fn counter(pd: &Pd, start: u64) -> Exposed {
    let counter = pd.expose(4096, ATOMIC).unwrap();
    counter.atomic_u64(8).unwrap().store(start, SeqCst);
    counter
}

fn word(counter: &Exposed) -> u64 {
    counter.atomic_u64(8).unwrap().load(SeqCst)
}

fn place(counter: &Exposed) -> RemoteRegion {
    counter.remote().slice(8..16).unwrap()
}

fn old(buffer: &Buf) -> u64 {
    u64::from_ne_bytes(buffer[..].try_into().unwrap())
}

#[test]
fn compare_and_swap_stores_only_over_what_was_expected() {
    let pd = device().alloc_pd().unwrap();
    let (mut a, _b) = pair_of::<Buf, Buf>(&pd, with_atomics);
    let counter = counter(&pd, 5);
    for (compare, swap, found, then) in [(5, 6, 5, 6), (5, 7, 6, 6), (6, u64::MAX, 6, u64::MAX)] {
        a.tx.compare_and_swap(room(&pd, 8), place(&counter), compare, swap)
            .signaled()
            .post()
            .unwrap();
        assert_eq!(old(&a.sent_one()), found);
        assert_eq!(word(&counter), then);
    }
    // The words beside it are as they were.
    for at in [0, 16] {
        assert_eq!(counter.atomic_u64(at).unwrap().load(SeqCst), 0);
    }
}

#[test]
fn fetch_and_add_wraps_around_and_tells_what_was_there() {
    let pd = device().alloc_pd().unwrap();
    let (mut a, _b) = pair_of::<Buf, Buf>(&pd, with_atomics);
    let counter = counter(&pd, u64::MAX - 1);
    let mut sum = u64::MAX - 1;
    for add in [1, 1, 0, 1 << 40, 0u64.wrapping_sub(3)] {
        // Only the last of each two is signalled: the first comes back with it, and has its value too.
        a.tx.fetch_and_add(room(&pd, 8), place(&counter), add)
            .post()
            .unwrap();
        a.tx.fetch_and_add(room(&pd, 8), place(&counter), 0)
            .fence()
            .signaled()
            .post()
            .unwrap();
        let all = a.sent();
        assert!(all.iter().all(|(_, result)| result.is_ok()));
        let found: Vec<u64> = all.iter().map(|(buffer, _)| old(buffer)).collect();
        assert_eq!(found, [sum, sum.wrapping_add(add)]);
        sum = sum.wrapping_add(add);
        assert_eq!(word(&counter), sum);
    }
}

#[test]
fn two_initiators_lose_no_count() {
    const EACH: u64 = 500;
    let pd = device().alloc_pd().unwrap();
    let counter = counter(&pd, 0);
    let mut seen: Vec<u64> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..2)
            .map(|_| {
                scope.spawn(|| {
                    let (mut a, _b) = pair_of::<Buf, Buf>(&pd, with_atomics);
                    let mut buffer = room(&pd, 8);
                    let mut seen = Vec::new();
                    for _ in 0..EACH {
                        a.tx.fetch_and_add(buffer, place(&counter), 1)
                            .signaled()
                            .post()
                            .unwrap();
                        buffer = a.sent_one();
                        seen.push(old(&buffer));
                    }
                    seen
                })
            })
            .collect();
        threads
            .into_iter()
            .flat_map(|t| t.join().unwrap())
            .collect()
    });
    seen.sort_unstable();
    assert_eq!(seen, (0..2 * EACH).collect::<Vec<_>>(), "each count once");
}

/// As many segments as it has buffers.
struct Pieces(Vec<Buf>);
// SAFETY: owned registered memory.
unsafe impl Gather for Pieces {
    fn gather(&self, out: &mut SgeList) {
        for piece in &self.0 {
            piece.gather(out);
        }
    }
}
// SAFETY: as above.
unsafe impl Scatter for Pieces {
    fn scatter(&mut self, out: &mut SgeList) {
        for piece in &mut self.0 {
            piece.scatter(out);
        }
    }
}

#[test]
fn what_is_no_word_is_refused_and_handed_back() {
    let pd = device().alloc_pd().unwrap();
    let (mut a, _b) = pair_of::<Pieces, Buf>(&pd, with_atomics);
    let counter = counter(&pd, 3);
    let target = place(&counter);
    for (lens, count, len) in [
        (&[4, 4][..], 2, 8),
        (&[4], 1, 4),
        (&[16], 1, 16),
        (&[], 0, 0),
    ] {
        let pieces = |pd| Pieces(lens.iter().map(|&len| room(pd, len)).collect());
        for result in [
            a.tx.fetch_and_add(pieces(&pd), target, 1).post(),
            a.tx.compare_and_swap(pieces(&pd), target, 3, 4).post(),
        ] {
            let (kind, back) = refused(result);
            assert_eq!(kind, PostErrorKind::NotAWord { count, len });
            assert_eq!(back.0.len(), count);
        }
    }
    let word_of = |pd| Pieces(vec![room(pd, 8)]);
    let short = counter.remote().slice(8..15).unwrap();
    let (kind, _) = refused(a.tx.fetch_and_add(word_of(&pd), short, 1).post());
    assert_eq!(kind, PostErrorKind::RemoteTooSmall { len: 8, remote: 7 });
    let askew = counter.remote().slice(12..20).unwrap();
    let (kind, _) = refused(a.tx.fetch_and_add(word_of(&pd), askew, 1).post());
    assert_eq!(kind, PostErrorKind::RemoteMisaligned { addr: askew.addr });
    assert_eq!((a.tx.outstanding(), word(&counter)), (0, 3));
    // The queue is as good as before.
    a.tx.fetch_and_add(word_of(&pd), target, 1)
        .signaled()
        .post()
        .unwrap();
    assert_eq!(old(&a.sent_one().0[0]), 3);
}

#[test]
fn atomics_need_room_for_answers_on_both_sides() {
    let ctx = device();
    let pd = ctx.alloc_pd().unwrap();
    let counter = counter(&pd, 1);
    let cqs = [0; 2].map(|_| ctx.cq(256).build().unwrap());
    let [a, b] = [0, 1].map(|i| {
        let builder = with_atomics(pd.rc(&cqs[i]));
        builder.rd_atomic(i as u8).build().unwrap()
    });
    let (ea, eb) = (a.endpoint(), b.endpoint());
    for (mut tx, _rx) in [a.connect::<Buf, Buf>(&eb), b.connect(&ea)].map(Result::unwrap) {
        let (kind, back) = refused(tx.fetch_and_add(room(&pd, 8), place(&counter), 1).post());
        assert_eq!((kind, &back[..]), (PostErrorKind::NoReads, &[0xee; 8][..]));
    }
}

/// Keys that allow no atomics, and queue pairs that do not.
#[test]
fn atomics_that_were_not_granted_are_refused_by_the_peer() {
    let pd = device().alloc_pd().unwrap();
    let writable = pd.expose(64, Access::REMOTE_WRITE).unwrap();
    let atomic = pd.expose(64, ATOMIC).unwrap();
    for (access, remote, right) in [
        (ATOMIC, writable.remote(), false),
        (Access::REMOTE_WRITE, atomic.remote(), false),
        (ATOMIC, atomic.remote(), true),
    ] {
        let (mut a, _b) = pair_of::<Buf, Buf>(&pd, |q| q.access(access));
        a.tx.fetch_and_add(room(&pd, 8), remote, 1)
            .signaled()
            .post()
            .unwrap();
        let (buffer, result) = a.sent().remove(0);
        match result {
            Ok(_) => assert!(right && old(&buffer) == 0),
            Err(error) => assert!(
                !right
                    && matches!(
                        error.status,
                        WcStatus::REM_ACCESS_ERR | WcStatus::REM_INV_REQ_ERR
                    ),
                "{error}"
            ),
        }
    }
    let mut now = [0; 64];
    writable.read_at(0, &mut now).unwrap();
    assert_eq!(now, [0; 64]);
}
