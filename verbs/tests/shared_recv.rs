//! Shared receive queues: one supply for several queue pairs, and what becomes of it.
#![cfg(feature = "soft")]

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use common::*;
use verbs::{
    AsyncEvent, Cq, DestroyError, Error, Pd, PostErrorKind, Scatter, SendQueue, SgeList,
    SharedRecvQueue,
};

/// A sender, and the queue pair behind it that takes from `shared`.
struct Link {
    cq: Cq,
    tx: SendQueue<Buf>,
    _rx: verbs::RecvQueue<Buf>,
    peer: SendQueue<Buf>,
}

fn link<T: Send + 'static>(pd: &Pd, shared: &SharedRecvQueue<T>, recv_cq: &Cq) -> Link {
    let cq = pd.context().cq(64).build().unwrap();
    let a = pd.rc(&cq).send_depth(16).recv_depth(0).build().unwrap();
    let b = pd
        .rc(recv_cq)
        .send_depth(16)
        .shared_recv(shared)
        .build()
        .unwrap();
    let (ea, eb) = (a.endpoint(), b.endpoint());
    let (tx, rx) = a.connect(&eb).unwrap();
    let peer = b.connect(&ea).unwrap();
    Link {
        cq,
        tx,
        _rx: rx,
        peer,
    }
}

impl Link {
    fn send(&mut self, pd: &Pd, bytes: &[u8]) {
        self.tx.send(buf(pd, bytes)).signaled().post().unwrap();
        let wc = next(&mut self.cq);
        let mut done = self.tx.retire(wc).unwrap();
        self.tx.take(&mut done).unwrap().1.unwrap();
    }
}

#[test]
fn several_queue_pairs_take_from_it_and_complete_where_they_do() {
    let ctx = device();
    let pd = ctx.alloc_pd().unwrap();
    let mut shared = pd.shared_recv(8).build::<Buf>().unwrap();
    let [mut one, mut two] = [0; 2].map(|_| ctx.cq(256).build().unwrap());
    let mut links = [
        link(&pd, &shared, &one),
        link(&pd, &shared, &one),
        link(&pd, &shared, &two),
    ];
    let mut posted = 0;
    for round in 0..20u8 {
        while shared.free_slots() > 0 {
            shared.post(room(&pd, 16)).unwrap();
            posted += 1;
        }
        for (at, link) in links.iter_mut().enumerate() {
            link.send(&pd, &[at as u8, round]);
        }
        // Redeemed in another order than they came.
        let mut found = [next(&mut two), next(&mut one), next(&mut one)];
        if round % 2 == 0 {
            found.reverse();
        }
        for wc in found {
            assert_eq!(wc.queue(), shared.id());
            let qp_num = wc.qp_num();
            let message = shared.redeem(wc).unwrap().unwrap();
            let from = usize::from(message.bytes()[0]);
            assert_eq!(
                (message.bytes()[1], links[from].peer.qp_num()),
                (round, qp_num)
            );
        }
    }
    assert_eq!(
        (posted, shared.outstanding(), shared.free_slots()),
        (65, 5, 3)
    );
}

#[test]
fn an_unreliable_queue_pair_takes_from_it_too() {
    let pd = device().alloc_pd().unwrap();
    let mut cq = pd.context().cq(64).build().unwrap();
    let mut shared = pd.shared_recv(4).build::<Buf>().unwrap();
    let ready = pd
        .uc(&cq)
        .send_depth(4)
        .shared_recv(&shared)
        .build()
        .unwrap();
    let own = ready.endpoint();
    let mut tx = ready.connect::<Buf>(&own).unwrap();
    shared.post(room(&pd, 8)).unwrap();
    tx.send(buf(&pd, b"self")).post().unwrap();
    let wc = next(&mut cq);
    assert_eq!(shared.redeem(wc).unwrap().unwrap().bytes(), b"self");
}

#[test]
fn a_completion_belongs_to_one_shared_queue() {
    let ctx = device();
    let pd = ctx.alloc_pd().unwrap();
    let mut cq = ctx.cq(128).build().unwrap();
    let [mut one, mut two] = [0; 2].map(|_| pd.shared_recv(4).build::<Buf>().unwrap());
    assert_ne!(one.id(), two.id());
    let (mut to_one, mut plain) = (link(&pd, &one, &cq), pair(&pd).0);
    one.post(room(&pd, 8)).unwrap();
    two.post(room(&pd, 8)).unwrap();
    to_one.send(&pd, b"x");
    let wc = next(&mut cq);
    let wc = two.redeem(wc).unwrap_err().into_completion();
    let wc = plain.rx.redeem(wc).unwrap_err().into_completion();
    let wc = plain.tx.retire(wc).unwrap_err().into_completion();
    assert_eq!(one.redeem(wc).unwrap().unwrap().bytes(), b"x");
    assert_eq!((one.outstanding(), two.outstanding()), (0, 1));
}

#[test]
fn it_refuses_what_it_was_not_built_for() {
    let ctx = device();
    let pd = ctx.alloc_pd().unwrap();
    let dev = ctx.query_device();
    for (builder, name) in [
        (pd.shared_recv(0), "depth of a shared receive queue"),
        (
            pd.shared_recv(dev.max_srq_wr + 1),
            "depth of a shared receive queue",
        ),
        (pd.shared_recv(4).max_sge(0), "max_sge"),
        (pd.shared_recv(4).max_sge(33), "max_sge"),
        (pd.shared_recv(4).limit(5), "limit"),
    ] {
        let text = builder.build::<Buf>().unwrap_err().to_string();
        assert!(text.starts_with(name) && text.contains(" to "), "{text}");
    }
    let mut shared = pd.shared_recv(2).max_sge(1).build::<Two>().unwrap();
    let (kind, Two(a, _)) = refused(shared.post(Two(room(&pd, 8), room(&pd, 8))));
    assert_eq!(kind, PostErrorKind::TooManySegments { count: 2, max: 1 });
    assert_eq!(a.len(), 8);
    let mut shared = pd.shared_recv(2).build::<Buf>().unwrap();
    assert_eq!((shared.depth(), shared.free_slots()), (2, 2));
    shared.post(room(&pd, 8)).unwrap();
    shared.post(room(&pd, 8)).unwrap();
    let (kind, _) = refused(shared.post(room(&pd, 8)));
    let full = PostErrorKind::QueueFull {
        depth: 2,
        untaken: 0,
    };
    assert_eq!(kind, full);
    assert!(shared.arm_limit(3).is_err());
    // Of another open device.
    let other = device();
    let cq = other.cq(64).build().unwrap();
    let foreign = other
        .alloc_pd()
        .unwrap()
        .rc(&cq)
        .shared_recv(&shared)
        .build();
    assert!(matches!(foreign, Err(Error::OtherDevice { .. })));
}

struct Two(Buf, Buf);
// SAFETY: owned registered memory.
unsafe impl Scatter for Two {
    fn scatter(&mut self, out: &mut SgeList) {
        self.0.scatter(out);
        self.1.scatter(out);
    }
}

#[test]
fn a_completion_queue_has_room_for_it_once() {
    let ctx = device();
    let pd = ctx.alloc_pd().unwrap();
    let mut cq = ctx.cq(100).build().unwrap();
    let depth = cq.depth();
    let shared = pd.shared_recv(depth - 8).build::<Buf>().unwrap();
    let build = || pd.rc(&cq).send_depth(4).shared_recv(&shared).build();
    let (one, two) = (build().unwrap(), build().unwrap());
    let e = build().unwrap_err();
    assert!(
        matches!(e, Error::CqTooSmall { claimed, leftover: 0, .. } if claimed == u64::from(depth) + 4),
        "{e}"
    );
    drop((one, two));
    // What they had taken may have left completions.
    assert!(matches!(build(), Err(Error::CqTooSmall { .. })));
    assert!(cq.poll().unwrap().is_none());
    drop(
        pd.rc(&cq)
            .send_depth(4)
            .shared_recv(&shared)
            .build()
            .unwrap(),
    );
}

#[test]
fn the_limit_is_told_once_each_time_it_is_armed() {
    let ctx = device();
    let pd = ctx.alloc_pd().unwrap();
    let mut cq = ctx.cq(64).build().unwrap();
    let mut shared = pd.shared_recv(8).build::<Buf>().unwrap();
    let mut link = link(&pd, &shared, &cq);
    for _ in 0..6 {
        shared.post(room(&pd, 8)).unwrap();
    }
    shared.arm_limit(4).unwrap();
    let mut take = |shared: &mut SharedRecvQueue<Buf>| {
        link.send(&pd, b"x");
        let wc = next(&mut cq);
        let _ = shared.redeem(wc).unwrap().unwrap();
    };
    take(&mut shared);
    take(&mut shared);
    assert_eq!(ctx.async_event(Some(Duration::ZERO)).unwrap(), None);
    let want = AsyncEvent::SharedLimit { queue: shared.id() };
    for _ in 0..2 {
        take(&mut shared);
        assert_eq!(ctx.async_event(Some(hang())).unwrap(), Some(want));
        take(&mut shared);
        assert_eq!(ctx.async_event(Some(Duration::ZERO)).unwrap(), None);
        shared.post(room(&pd, 8)).unwrap();
        shared.post(room(&pd, 8)).unwrap();
        shared.arm_limit(4).unwrap();
    }
}

#[test]
fn it_can_be_resized_where_the_device_can() {
    let pd = device().alloc_pd().unwrap();
    let mut cq = pd.context().cq(64).build().unwrap();
    let mut shared = pd.shared_recv(8).build::<Buf>().unwrap();
    let mut link = link(&pd, &shared, &cq);
    for _ in 0..6 {
        shared.post(room(&pd, 8)).unwrap();
    }
    let depth = match shared.resize(16) {
        Ok(()) => 16,
        Err(e) => {
            assert!(matches!(e, Error::Unsupported { .. }), "{e}");
            8
        }
    };
    assert_eq!((shared.depth(), shared.free_slots()), (depth, depth - 6));
    while shared.free_slots() > 0 {
        shared.post(room(&pd, 8)).unwrap();
    }
    for n in 0..depth as u8 {
        link.send(&pd, &[n]);
        let wc = next(&mut cq);
        assert_eq!(shared.redeem(wc).unwrap().unwrap().bytes(), [n]);
    }
    assert_eq!(shared.outstanding(), 0);
    assert!(matches!(shared.resize(0), Err(Error::OutOfRange { .. })));
}

#[test]
fn a_completion_queue_that_none_of_its_queue_pairs_uses_any_more_is_in_no_resize_s_way() {
    let pd = device().alloc_pd().unwrap();
    let [mut once, now] = [0, 1].map(|_| pd.context().cq(64).build().unwrap());
    let mut shared = pd.shared_recv(8).build::<Buf>().unwrap();
    drop(link(&pd, &shared, &once));
    let _link = link(&pd, &shared, &now);
    while once.poll().unwrap().is_some() {}
    let all = pd.rc(&once).send_depth(once.depth() - 1).recv_depth(1);
    let _all = all.build().unwrap();
    match shared.resize(16) {
        Ok(()) => assert_eq!(shared.depth(), 16),
        Err(e) => assert!(matches!(e, Error::Unsupported { .. }), "{e}"),
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
unsafe impl Scatter for Tracked {
    fn scatter(&mut self, out: &mut SgeList) {
        self.0.scatter(out);
    }
}

/// Three receives posted, one of them taken.
fn used(pd: &Pd, cq: &mut Cq) -> (SharedRecvQueue<Tracked>, Link, Arc<AtomicUsize>) {
    let drops = Arc::new(AtomicUsize::new(0));
    let mut shared = pd.shared_recv(8).build::<Tracked>().unwrap();
    let mut link = link(pd, &shared, cq);
    for _ in 0..3 {
        shared.post(Tracked(room(pd, 8), drops.clone())).unwrap();
    }
    link.send(pd, b"x");
    (shared, link, drops)
}

#[test]
fn buffers_live_until_the_last_of_queue_and_queue_pairs_is_dropped() {
    let ctx = device();
    for handle_first in [true, false] {
        let pd = ctx.alloc_pd().unwrap();
        let mut cq = ctx.cq(64).build().unwrap();
        let (shared, link, drops) = used(&pd, &mut cq);
        let Link { tx, _rx, peer, .. } = link;
        drop((tx, _rx));
        if handle_first {
            drop(shared);
            assert_eq!(drops.load(SeqCst), 0);
            drop(peer);
        } else {
            drop(peer);
            assert_eq!(drops.load(SeqCst), 0);
            drop(shared);
        }
        assert_eq!(drops.load(SeqCst), 3);
    }
}

#[test]
fn destroying_a_queue_pair_gives_its_sends_back_and_leaves_the_queue_as_it_is() {
    let ctx = device();
    let pd = ctx.alloc_pd().unwrap();
    let mut cq = ctx.cq(64).build().unwrap();
    let (mut shared, mut one, drops) = used(&pd, &mut cq);
    one.peer.set_error().unwrap();
    one.peer.send(buf(&pd, b"late")).post().unwrap();
    assert_eq!(&one.peer.destroy().unwrap()[0][..], b"late");
    assert_eq!((drops.load(SeqCst), shared.outstanding()), (0, 3));
    // Whether the completion of the dead queue pair is still there or not, the queue serves others.
    while let Some(wc) = cq.poll().unwrap() {
        let _ = shared.redeem(wc);
    }
    let mut two = link(&pd, &shared, &cq);
    two.send(&pd, b"next");
    let wc = next(&mut cq);
    let Ok(message) = shared.redeem(wc).unwrap() else {
        panic!("a message");
    };
    assert_eq!(&message.get_ref().0[..4], b"next");
}

#[test]
fn a_queue_pair_with_a_receive_queue_is_not_destroyed_without_it() {
    let pd = device().alloc_pd().unwrap();
    let (a, _b) = pair(&pd);
    let want = a.tx.qp_num();
    let e = a.tx.destroy().unwrap_err();
    assert!(
        matches!(e, DestroyError::NotShared { qp_num } if qp_num == want),
        "{e}"
    );
    drop(a.rx);
}

#[test]
fn the_queue_can_move_to_another_thread() {
    let ctx = device();
    let pd = ctx.alloc_pd().unwrap();
    let mut cq = ctx.cq(64).build().unwrap();
    let mut shared = pd.shared_recv(4).build::<Buf>().unwrap();
    let mut link = link(&pd, &shared, &cq);
    shared.post(room(&pd, 8)).unwrap();
    link.send(&pd, b"over");
    let bytes = std::thread::spawn(move || {
        let wc = next(&mut cq);
        shared.redeem(wc).unwrap().unwrap().bytes().to_vec()
    });
    assert_eq!(bytes.join().unwrap(), b"over");
}
