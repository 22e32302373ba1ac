//! Bad input and bad manners: each is an error or a leak.
#![cfg(feature = "soft")]

mod common;

use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use common::*;
use verbs::{Access, Context, Error, Gather, PostErrorKind, Scatter, SgeList, WcStatus};

/// Memory in so many segments, or none.
struct Parts(Vec<Buf>);
// SAFETY: owned registered memory.
unsafe impl Gather for Parts {
    fn gather(&self, out: &mut SgeList) {
        self.0.iter().for_each(|part| part.gather(out));
    }
}
// SAFETY: as above.
unsafe impl Scatter for Parts {
    fn scatter(&mut self, out: &mut SgeList) {
        self.0.iter_mut().for_each(|part| part.scatter(out));
    }
}

fn parts(pd: &verbs::Pd, count: usize) -> Parts {
    Parts((0..count).map(|n| buf(pd, &[n as u8])).collect())
}

#[test]
fn lists_of_no_segments_are_messages_of_no_bytes() {
    let pd = device().alloc_pd().unwrap();
    let (mut a, mut b) = pair_of::<Parts, Parts>(&pd, |q| q);
    let shared = pd
        .expose(8, Access::REMOTE_WRITE | Access::REMOTE_READ)
        .unwrap();
    let nowhere = shared.remote().slice(8..).unwrap();
    b.rx.post(parts(&pd, 0)).unwrap();
    b.rx.post(parts(&pd, 0)).unwrap();
    a.tx.send(parts(&pd, 0)).signaled().post().unwrap();
    a.sent_one();
    a.tx.write(parts(&pd, 0), nowhere)
        .imm(1)
        .signaled()
        .post()
        .unwrap();
    a.sent_one();
    a.tx.read(parts(&pd, 0), nowhere).signaled().post().unwrap();
    a.sent_one();
    let mut batch = a.tx.batch();
    batch
        .write(parts(&pd, 0), nowhere)
        .signaled()
        .add()
        .unwrap();
    batch.post().unwrap();
    a.sent_one();
    assert_eq!(b.received().unwrap().byte_len(), 0);
    assert_eq!(b.received().unwrap().imm(), Some(1));
    let (kind, _) = refused(a.tx.fetch_and_add(parts(&pd, 0), shared.remote(), 1).post());
    assert_eq!(kind, PostErrorKind::NotAWord { count: 0, len: 0 });
    // A message for no segments is too long.
    b.rx.post(parts(&pd, 0)).unwrap();
    a.tx.send(parts(&pd, 1)).signaled().post().unwrap();
    let error = b.received().unwrap_err();
    // Soft-RoCE takes any trouble with a receive for one of the queue pair.
    let expected = match is_rxe(pd.context()) {
        true => WcStatus::LOC_QP_OP_ERR,
        false => WcStatus::LOC_LEN_ERR,
    };
    assert_eq!(error.error().status, expected);
}

#[test]
fn more_segments_than_a_list_holds_are_counted_and_refused_everywhere() {
    let pd = device().alloc_pd().unwrap();
    let (mut a, mut b) = pair_of::<Parts, Parts>(&pd, |q| q.max_send_sge(3).max_recv_sge(2));
    let shared = pd.expose(64, Access::REMOTE_WRITE).unwrap();
    for (count, max) in [
        (4, 3),
        (SgeList::CAPACITY + 1, 3),
        (3 * SgeList::CAPACITY, 3),
    ] {
        let many = PostErrorKind::TooManySegments { count, max };
        let refusals = [
            refused(a.tx.send(parts(&pd, count)).post()),
            refused(a.tx.write(parts(&pd, count), shared.remote()).post()),
            refused(a.tx.read(parts(&pd, count), shared.remote()).post()),
            refused(a.tx.batch().send(parts(&pd, count)).add()),
        ];
        for (kind, back) in refusals {
            assert_eq!((kind, back.0.len()), (many, count));
        }
        let (kind, back) = refused(b.rx.post(parts(&pd, count)));
        assert_eq!(kind, PostErrorKind::TooManySegments { count, max: 2 });
        assert_eq!(back.0.len(), count);
    }
    assert_eq!((a.tx.outstanding(), b.rx.outstanding()), (0, 0));
}

#[test]
fn work_posted_in_the_error_state_is_flushed_or_comes_back() {
    let pd = device().alloc_pd().unwrap();
    let (mut a, _b) = pair_of::<Parts, Parts>(&pd, |q| q);
    let shared = pd
        .expose(8, Access::REMOTE_WRITE | Access::REMOTE_READ)
        .unwrap();
    a.tx.set_error().unwrap();
    a.tx.set_error().unwrap();
    a.tx.send(parts(&pd, 1)).signaled().post().unwrap();
    a.tx.write(parts(&pd, 1), shared.remote()).post().unwrap();
    a.tx.read(parts(&pd, 1), shared.remote())
        .signaled()
        .post()
        .unwrap();
    let mut batch = a.tx.batch();
    batch.send(parts(&pd, 1)).signaled().add().unwrap();
    batch.post().unwrap();
    let mut flushed = Vec::new();
    while flushed.len() < 4 {
        flushed.extend(a.sent().into_iter().map(|(_, r)| r.unwrap_err().status));
    }
    assert_eq!(flushed, [WcStatus::WR_FLUSH_ERR; 4]);
    a.tx.send(parts(&pd, 1)).post().unwrap();
    a.rx.post(parts(&pd, 1)).unwrap();
    let (sends, receives) = verbs::destroy(a.tx, a.rx).unwrap();
    assert_eq!((sends.len(), receives.len()), (1, 1));
}

#[test]
fn work_older_than_a_flush_is_not_called_a_success_when_the_failure_was_dropped() {
    let pd = device().alloc_pd().unwrap();
    let (mut a, _b) = pair(&pd);
    let shared = pd.expose(8, Access::REMOTE_WRITE).unwrap();
    let bad = verbs::RemoteRegion {
        rkey: verbs::RKey(0xbad),
        ..shared.remote()
    };
    a.tx.write(buf(&pd, b"evil"), bad).post().unwrap();
    a.tx.write(buf(&pd, b"late"), shared.remote())
        .post()
        .unwrap();
    a.tx.write(buf(&pd, b"last"), shared.remote())
        .post()
        .unwrap();
    let failure = next(&mut a.cq);
    assert_eq!(failure.status(), WcStatus::REM_ACCESS_ERR);
    drop(failure);
    drop(next(&mut a.cq));
    let all: Vec<_> = a.sent().into_iter().map(|(b, r)| (b.to_vec(), r)).collect();
    assert_eq!(all.len(), 3);
    for (bytes, result) in all {
        let status = result.unwrap_err().status;
        assert_eq!(status, WcStatus::WR_FLUSH_ERR, "{bytes:?}");
    }
}

#[test]
fn a_completion_queue_smaller_than_its_queues_is_refused_for_every_kind() {
    let ctx = device();
    let pd = ctx.alloc_pd().unwrap();
    let (small, large) = (ctx.cq(8).build().unwrap(), ctx.cq(256).build().unwrap());
    let depth = small.depth();
    let shared = pd.shared_recv(depth + 1).build::<Buf>().unwrap();
    let too_small = |result: Result<(), Error>| {
        let e = result.unwrap_err();
        assert!(
            matches!(e, Error::CqTooSmall { depth: d, .. } if d == u64::from(depth)),
            "{e}"
        );
    };
    too_small(
        pd.rc(&small)
            .send_depth(depth)
            .recv_depth(1)
            .build()
            .map(drop),
    );
    too_small(
        pd.uc(&small)
            .send_depth(depth)
            .recv_depth(1)
            .build()
            .map(drop),
    );
    let on_two = pd.rc(&large).recv_cq(&small).recv_depth(depth + 1);
    too_small(on_two.build().map(drop));
    let to_shared = pd.rc(&large).recv_cq(&small).shared_recv(&shared);
    too_small(to_shared.clone().build().map(drop));
    // Nothing of the refused ones is left.
    pd.rc(&small)
        .send_depth(depth)
        .recv_depth(0)
        .build()
        .unwrap();
    to_shared.overcommit_cq(true).build().map(drop).unwrap();
}

#[test]
fn a_full_queue_gives_back_what_finds_no_room() {
    let pd = device().alloc_pd().unwrap();
    let (mut a, _b) = pair_of::<Buf, Buf>(&pd, |q| q.send_depth(1).recv_depth(1));
    let shared = pd
        .expose(8, Access::REMOTE_WRITE | Access::REMOTE_READ)
        .unwrap();
    a.rx.post(room(&pd, 8)).unwrap();
    a.tx.send(buf(&pd, b"waits")).post().unwrap();
    for refusal in [
        refused(a.rx.post(buf(&pd, b"back"))),
        refused(a.tx.send(buf(&pd, b"back")).post()),
        refused(a.tx.read(buf(&pd, b"back"), shared.remote()).post()),
        refused(a.tx.batch().send(buf(&pd, b"back")).add()),
    ] {
        let full = PostErrorKind::QueueFull {
            depth: 1,
            untaken: 0,
        };
        assert_eq!((refusal.0, &refusal.1[..]), (full, &b"back"[..]));
    }
}

/// A buffer that counts its drops.
struct Tracked(Buf, Arc<AtomicUsize>);
impl Drop for Tracked {
    fn drop(&mut self) {
        self.1.fetch_add(1, SeqCst);
    }
}
// SAFETY: owned registered memory.
unsafe impl Gather for Tracked {
    fn gather(&self, out: &mut SgeList) {
        self.0.gather(out);
    }
}
// SAFETY: as above.
unsafe impl Scatter for Tracked {
    fn scatter(&mut self, out: &mut SgeList) {
        self.0.scatter(out);
    }
}

const HANDLES: usize = 6;

/// One of each handle, with work in flight in all queues; five buffers count their drops.
fn one_of_each(ctx: &Context, drops: &Arc<AtomicUsize>) -> [Option<Box<dyn Any>>; HANDLES] {
    let pd = ctx.alloc_pd().unwrap();
    let tracked = || Tracked(buf(&pd, &[1; 8]), drops.clone());
    let channel = ctx.channel().unwrap();
    let cq = ctx.cq(64).channel(&channel).build().unwrap();
    let mut shared = pd.shared_recv(4).build::<Tracked>().unwrap();
    let ready = pd.rc(&cq).send_depth(8).recv_depth(8).build().unwrap();
    let own = ready.endpoint();
    let (mut tx, mut rx) = ready.connect::<Tracked, Tracked>(&own).unwrap();
    let from_shared = pd
        .rc(&cq)
        .send_depth(8)
        .shared_recv(&shared)
        .build()
        .unwrap();
    let own = from_shared.endpoint();
    let mut to_shared = from_shared.connect::<Tracked>(&own).unwrap();
    rx.post(tracked()).unwrap();
    shared.post(tracked()).unwrap();
    tx.send(tracked()).signaled().post().unwrap();
    to_shared.send(tracked()).signaled().post().unwrap();
    // For which there is no receive.
    to_shared.send(tracked()).post().unwrap();
    [
        Some(Box::new((pd, channel))),
        Some(Box::new(cq)),
        Some(Box::new(tx)),
        Some(Box::new(rx)),
        Some(Box::new(shared)),
        Some(Box::new(to_shared)),
    ]
}

/// All orders of so many things.
fn orders(count: usize) -> Vec<Vec<usize>> {
    let mut all = vec![vec![]];
    for next in 0..count {
        all = all
            .into_iter()
            .flat_map(|order: Vec<usize>| {
                (0..=order.len()).map(move |at| {
                    let mut longer = order.clone();
                    longer.insert(at, next);
                    longer
                })
            })
            .collect();
    }
    all
}

#[test]
fn handles_can_be_dropped_in_every_order() {
    let ctx = device();
    let all = orders(HANDLES);
    assert_eq!(all.len(), 720);
    for order in all {
        let drops = Arc::new(AtomicUsize::new(0));
        let mut things = one_of_each(&ctx, &drops);
        for at in &order {
            drop(things[*at].take());
        }
        assert_eq!(drops.load(SeqCst), 5, "{order:?}");
    }
}

#[test]
fn whatever_is_forgotten_keeps_what_depends_on_it() {
    let [tx, rx, shared, to_shared] = [2, 3, 4, 5];
    let ctx = device();
    for forgotten in 0..1 << HANDLES {
        let drops = Arc::new(AtomicUsize::new(0));
        let things = one_of_each(&ctx, &drops);
        let is_forgotten = |at: usize| forgotten & 1 << at != 0;
        for (at, thing) in things.into_iter().enumerate() {
            if is_forgotten(at) {
                std::mem::forget(thing);
            } else {
                drop(thing);
            }
        }
        // Rings end with both halves; the shared queue's slots with it and its queue pair.
        let mut want = 0;
        if !is_forgotten(tx) && !is_forgotten(rx) {
            want += 2;
        }
        if !is_forgotten(to_shared) {
            want += 2;
        }
        if !is_forgotten(to_shared) && !is_forgotten(shared) {
            want += 1;
        }
        assert_eq!(drops.load(SeqCst), want, "{forgotten:#b}");
    }
    // Who comes afterwards is not disturbed.
    let pd = ctx.alloc_pd().unwrap();
    let (mut a, mut b) = pair(&pd);
    b.rx.post(room(&pd, 8)).unwrap();
    a.tx.send(buf(&pd, b"well")).signaled().post().unwrap();
    a.sent_one();
    assert_eq!(b.received().unwrap().bytes(), b"well");
}
