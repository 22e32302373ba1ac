//! What lives how long, and what comes back at the end.
#![cfg(feature = "soft")]

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use common::*;
use verbs::{ConnectError, DestroyError, Gather, Scatter, SgeList, WcStatus};

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

fn tracked(pd: &verbs::Pd, drops: &Arc<AtomicUsize>, n: u8) -> Tracked {
    Tracked(buf(pd, &[n; 16]), drops.clone())
}

#[test]
fn buffers_in_flight_live_until_the_last_half_is_dropped() {
    let pd = device().alloc_pd().unwrap();
    let drops = Arc::new(AtomicUsize::new(0));
    for tx_first in [true, false] {
        drops.store(0, SeqCst);
        let (mut a, b) = pair_of::<Tracked, Tracked>(&pd, |q| q);
        for n in 0..3 {
            a.rx.post(tracked(&pd, &drops, n)).unwrap();
            a.tx.send(tracked(&pd, &drops, n)).post().unwrap();
        }
        let End { cq, tx, rx } = a;
        drop(cq);
        if tx_first {
            drop(tx);
            assert_eq!(drops.load(SeqCst), 0);
            drop(rx);
        } else {
            drop(rx);
            assert_eq!(drops.load(SeqCst), 0);
            drop(tx);
        }
        assert_eq!(drops.load(SeqCst), 6);
        drop(b);
    }
}

#[test]
fn destroy_hands_back_everything_in_order() {
    let pd = device().alloc_pd().unwrap();
    let (mut a, mut b) = pair(&pd);
    for n in 0..3u8 {
        a.rx.post(buf(&pd, &[n])).unwrap();
    }
    b.rx.post(room(&pd, 8)).unwrap();
    a.tx.send(buf(&pd, &[10])).signaled().post().unwrap();
    a.tx.send(buf(&pd, &[11])).post().unwrap();
    assert_eq!(b.received().unwrap().bytes(), [10]);
    // Retired and not taken counts as well.
    let wc = next(&mut a.cq);
    let mut done = a.tx.retire(wc).unwrap();
    let End { mut cq, tx, rx } = a;
    let (sends, receives) = verbs::destroy(tx, rx).unwrap();
    let firsts = |v: &[Buf]| v.iter().map(|b| b[0]).collect::<Vec<_>>();
    assert_eq!(
        (firsts(&sends), firsts(&receives)),
        (vec![10, 11], vec![0, 1, 2])
    );
    // The buffers are private again, and the queue's completions stale.
    let mut plain = sends.into_iter().next().unwrap().into_inner().unwrap();
    plain[0] = 1;
    let ready = pd.rc(&cq).build().unwrap();
    let (_setup, mut tx, _rx) = ready.split::<Buf, Buf>();
    while let Some(wc) = cq.poll().unwrap() {
        assert!(tx.retire(wc).is_err());
    }
    assert!(tx.take(&mut done).is_none());
}

#[test]
fn halves_that_do_not_belong_together_are_not_destroyed_together() {
    let pd = device().alloc_pd().unwrap();
    let (a, b) = pair(&pd);
    let (want_a, want_b) = (a.tx.qp_num(), b.rx.qp_num());
    let e = verbs::destroy(a.tx, b.rx).unwrap_err();
    assert!(
        matches!(e, DestroyError::DifferentQueuePairs { send, recv } if send == want_a && recv == want_b),
        "{e}"
    );
}

#[test]
fn the_error_state_flushes_both_queues() {
    let pd = device().alloc_pd().unwrap();
    let (mut a, _b) = pair(&pd);
    a.rx.post(room(&pd, 8)).unwrap();
    a.tx.send(buf(&pd, b"waits for a receive")).post().unwrap();
    a.tx.set_error().unwrap();
    // Posted in the error state, it completes with a flush error, too: specification, volume 1, C10-42, as soft0 has it. Soft-RoCE's
    // library tells the kernel nothing of a receive, so there it takes another event.
    a.rx.post(room(&pd, 8)).unwrap();
    if is_rxe(pd.context()) {
        a.tx.set_error().unwrap();
    }
    let mut flushed = (0, 0);
    until("three flushed", || {
        let wc = a.cq.poll().unwrap()?;
        assert_eq!(wc.status(), WcStatus::WR_FLUSH_ERR);
        if wc.queue() == a.tx.id() {
            let mut done = a.tx.retire(wc).unwrap();
            assert!(a.tx.take(&mut done).unwrap().1.is_err());
            flushed.0 += 1;
        } else {
            a.rx.redeem(wc).unwrap().unwrap_err();
            flushed.1 += 1;
        }
        (flushed == (1, 2)).then_some(())
    });
    assert_eq!((a.tx.outstanding(), a.rx.outstanding()), (0, 0));
}

#[test]
fn any_order_of_dropping_is_fine() {
    for order in 0..24 {
        let ctx = device();
        let pd = ctx.alloc_pd().unwrap();
        let channel = ctx.channel().unwrap();
        let cq = ctx.cq(128).channel(&channel).build().unwrap();
        let ready = pd.rc(&cq).build().unwrap();
        let own = ready.endpoint();
        let (mut tx, mut rx) = ready.connect::<Buf, Buf>(&own).unwrap();
        rx.post(room(&pd, 8)).unwrap();
        tx.send(buf(&pd, b"x")).signaled().post().unwrap();
        let mut things: Vec<Box<dyn std::any::Any>> = vec![
            Box::new((ctx, pd)),
            Box::new(channel),
            Box::new(cq),
            Box::new((tx, rx)),
        ];
        let mut order = order;
        while !things.is_empty() {
            let at = order % things.len();
            order /= things.len();
            drop(things.swap_remove(at));
        }
    }
}

#[test]
fn tags_are_used_again_and_old_completions_do_not_fit() {
    let ctx = device();
    let pd = ctx.alloc_pd().unwrap();
    let mut cq = ctx.cq(64).build().unwrap();
    let mut old = Vec::new();
    let mut ids = std::collections::HashSet::new();
    for _ in 0..20 {
        // Makes sure that the last one's are all out of the queue, which the device need not have emptied.
        while let Some(wc) = cq.poll().unwrap() {
            old.push(wc);
        }
        let ready = pd.rc(&cq).send_depth(4).recv_depth(4).build().unwrap();
        let own = ready.endpoint();
        let (mut tx, mut rx) = ready.connect::<Buf, Buf>(&own).unwrap();
        ids.insert(tx.id());
        for wc in std::mem::take(&mut old) {
            let wc = tx.retire(wc).unwrap_err().into_completion();
            assert!(rx.redeem(wc).is_err());
        }
        for _ in 0..2 {
            rx.post(room(&pd, 8)).unwrap();
            tx.send(buf(&pd, b"x")).signaled().post().unwrap();
        }
        old.extend([0; 4].map(|_| next(&mut cq)));
    }
    assert!(ids.len() < 20, "the tags of destroyed queues come back");
}

#[test]
fn receives_can_be_posted_before_connecting() {
    let ctx = device();
    let pd = ctx.alloc_pd().unwrap();
    let [mut cq_a, cq_b] = [0; 2].map(|_| ctx.cq(128).build().unwrap());
    let (a, b) = (
        pd.rc(&cq_a).rnr_retry(0).build().unwrap(),
        pd.rc(&cq_b).rnr_retry(0).build().unwrap(),
    );
    let (setup_a, mut tx, mut rx_a) = a.split::<Buf, Buf>();
    let (setup_b, _tx, mut rx) = b.split::<Buf, Buf>();
    rx.post(room(&pd, 16)).unwrap();
    let (kind, back) = refused(tx.send(buf(&pd, b"early")).post());
    assert_eq!(
        (kind, &back[..]),
        (verbs::PostErrorKind::NotConnected, &b"early"[..])
    );
    assert_eq!((tx.outstanding(), tx.free_slots()), (0, tx.depth()));
    let (ea, eb) = (setup_a.endpoint(), setup_b.endpoint());
    setup_b.connect(&ea).unwrap();
    setup_a.connect(&eb).unwrap();
    tx.send(back).signaled().post().unwrap();
    let mut end = End {
        cq: cq_b,
        tx: _tx,
        rx,
    };
    assert_eq!(end.received().unwrap().bytes(), b"early");
    let wc = next(&mut cq_a);
    assert!(rx_a.redeem(wc).is_err());
}

#[test]
fn a_destroyed_queue_pair_cannot_be_connected() {
    let ctx = device();
    let pd = ctx.alloc_pd().unwrap();
    let cq = ctx.cq(128).build().unwrap();
    let (setup, tx, mut rx) = pd.rc(&cq).build().unwrap().split::<Buf, Buf>();
    rx.post(room(&pd, 8)).unwrap();
    let own = setup.endpoint();
    assert_eq!(verbs::destroy(tx, rx).unwrap().1.len(), 1);
    assert!(matches!(setup.connect(&own), Err(ConnectError::Destroyed)));
}

#[test]
fn connecting_to_nobody_says_what_was_tried() {
    let ctx = device();
    let pd = ctx.alloc_pd().unwrap();
    let cq = ctx.cq(128).build().unwrap();
    let ready = pd.rc(&cq).build().unwrap();
    let own = ready.endpoint();
    let zero = verbs::Endpoint::new(own.qpn(), 0, 0, verbs::Gid::default(), own.mtu(), 1).unwrap();
    let e = ready.connect::<Buf, Buf>(&zero).unwrap_err();
    assert!(matches!(e, ConnectError::Unreachable { .. }), "{e}");
    let local = format!(
        "{} port {} GID {}",
        ctx.device_name(),
        ctx.port().port_num,
        ctx.port().gid_index
    );
    assert!(e.to_string().contains(&local), "{e}");
}

#[test]
fn sends_stay_refused_after_connecting_failed() {
    let ctx = device();
    let pd = ctx.alloc_pd().unwrap();
    let cq = ctx.cq(128).build().unwrap();
    let (setup, mut tx, mut rx) = pd.rc(&cq).build().unwrap().split::<Buf, Buf>();
    let own = setup.endpoint();
    let zero = verbs::Endpoint::new(own.qpn(), 0, 0, verbs::Gid::default(), own.mtu(), 1).unwrap();
    setup.connect(&zero).unwrap_err();
    rx.post(room(&pd, 8)).unwrap();
    let remote = pd.readable(vec![1u8; 8]).unwrap().remote();
    for wr in [
        tx.send(buf(&pd, b"a")).post(),
        tx.write(buf(&pd, b"b"), remote).post(),
        tx.read(room(&pd, 1), remote).post(),
    ] {
        let (kind, back) = refused(wr);
        assert_eq!((kind, back.len()), (verbs::PostErrorKind::NotConnected, 1));
    }
    let (sends, receives) = verbs::destroy(tx, rx).unwrap();
    assert_eq!((sends.len(), receives.len()), (0, 1));
}

#[test]
fn objects_of_another_device_are_refused() {
    let (one, two) = (device(), device());
    let pd = one.alloc_pd().unwrap();
    let foreign = two.cq(64).build().unwrap();
    assert!(matches!(
        pd.rc(&foreign).build(),
        Err(verbs::Error::OtherDevice { .. })
    ));
    let channel = two.channel().unwrap();
    assert!(matches!(
        one.cq(64).channel(&channel).build(),
        Err(verbs::Error::OtherDevice { .. })
    ));
}

#[test]
fn a_panicking_buffer_is_not_posted() {
    struct Panics(#[allow(dead_code)] Buf);
    // SAFETY: names no memory.
    unsafe impl Scatter for Panics {
        fn scatter(&mut self, _: &mut SgeList) {
            panic!("on purpose");
        }
    }
    let pd = device().alloc_pd().unwrap();
    let (mut a, _b) = pair_of::<Buf, Panics>(&pd, |q| q);
    let panics = Panics(buf(&pd, b"x"));
    let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| a.rx.post(panics)));
    assert!(caught.is_err());
    assert_eq!((a.rx.outstanding(), a.rx.free_slots()), (0, 64));
}
