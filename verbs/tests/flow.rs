//! Slots, completions and their tokens, and receivers that are not ready.
#![cfg(feature = "soft")]

mod common;

use common::*;
use verbs::{Access, Cq, PostErrorKind, WcStatus};

#[test]
fn a_full_queue_refuses_and_only_a_completion_makes_room() {
    let pd = device().alloc_pd().unwrap();
    let (mut a, mut b) = pair_of::<Buf, Buf>(&pd, |q| q.send_depth(4).recv_depth(8));
    for _ in 0..8 {
        b.rx.post(room(&pd, 8)).unwrap();
    }
    let (kind, _) = refused(b.rx.post(room(&pd, 8)));
    assert_eq!(
        kind,
        PostErrorKind::QueueFull {
            depth: 8,
            untaken: 0
        }
    );

    for i in 0..3u8 {
        a.tx.send(buf(&pd, &[i])).post().unwrap();
    }
    a.tx.send(buf(&pd, &[3])).signaled().post().unwrap();
    assert_eq!(a.tx.free_slots(), 0);
    let (kind, back) = refused(a.tx.send(buf(&pd, &[4])).post());
    assert_eq!(
        (kind, &back[..]),
        (
            PostErrorKind::QueueFull {
                depth: 4,
                untaken: 0
            },
            &[4u8][..]
        )
    );
    for i in 0..4u8 {
        assert_eq!(b.received().unwrap().bytes(), [i]);
    }
    // All have arrived, and still the slots are in use, until the completion is retired and its buffers taken.
    assert!(a.tx.send(back).post().unwrap_err().is_full());
    let wc = next(&mut a.cq);
    let mut done = a.tx.retire(wc).unwrap();
    let (kind, back) = refused(a.tx.send(buf(&pd, &[4])).post());
    assert_eq!(
        kind,
        PostErrorKind::QueueFull {
            depth: 4,
            untaken: 4
        }
    );
    // The queue can be used while buffers are taken.
    let (first, result) = a.tx.take(&mut done).unwrap();
    assert!(!result.unwrap().signaled());
    assert_eq!(&first[..], [0]);
    a.tx.send(back).signaled().post().unwrap();
    let rest: Vec<_> = std::iter::from_fn(|| a.tx.take(&mut done))
        .map(|(b, r)| (b[0], r.unwrap().signaled()))
        .collect();
    assert_eq!(
        rest,
        [(1, false), (2, false), (3, true)],
        "the new work is not covered"
    );
    assert_eq!(&a.sent_one()[..], [4]);
}

#[test]
fn a_thousand_times_round_the_ring_with_one_signal_in_eight() {
    let pd = device().alloc_pd().unwrap();
    let (mut a, mut b) = pair_of::<Buf, Buf>(&pd, |q| q.send_depth(16).recv_depth(16));
    let mut free: Vec<_> = (0..16).map(|_| buf(&pd, &[0; 4])).collect();
    for _ in 0..16 {
        b.rx.post(room(&pd, 4)).unwrap();
    }
    for i in 0..16_000u32 {
        let mut out = free.pop().unwrap_or_else(|| panic!("no buffer at {i}"));
        out.copy_from_slice(&i.to_le_bytes());
        let wr = a.tx.send(out);
        if i % 8 == 7 { wr.signaled() } else { wr }.post().unwrap();
        let got = b.received().unwrap();
        assert_eq!(got.bytes(), i.to_le_bytes());
        b.rx.post(got.into_inner()).unwrap();
        if i % 8 == 7 {
            let back = a.sent();
            assert_eq!(back.len(), 8);
            free.extend(back.into_iter().map(|(b, r)| r.map(|_| b).unwrap()));
        }
    }
    assert_eq!(free.len(), 16);
}

#[test]
fn completions_belong_to_one_queue_and_are_redeemed_once() {
    let pd = device().alloc_pd().unwrap();
    let (mut a, mut b) = pair(&pd);
    let (mut c, mut d) = pair(&pd);
    for end in [&mut b, &mut d] {
        end.rx.post(room(&pd, 8)).unwrap();
    }
    a.tx.send(buf(&pd, b"a")).signaled().post().unwrap();
    c.tx.send(buf(&pd, b"c")).signaled().post().unwrap();
    let wc = next(&mut a.cq);
    // The same tag and sequence number, on another completion queue.
    let stale = c.tx.retire(wc).unwrap_err();
    assert!(stale.to_string().contains("not in flight"));
    let wc = stale.into_completion();
    let stale = a.rx.redeem(wc).unwrap_err();
    let mut done = a.tx.retire(stale.into_completion()).unwrap();
    assert!(c.tx.take(&mut done).is_none(), "a token of another queue");
    assert_eq!(c.tx.outstanding(), 1);
    assert_eq!(&a.tx.take(&mut done).unwrap().0[..], b"a");
    assert!(a.tx.take(&mut done).is_none());
    assert_eq!(b.received().unwrap().bytes(), b"a");
    assert_eq!(d.received().unwrap().bytes(), b"c");
}

#[test]
fn a_late_completion_is_stale_and_an_old_token_yields_nothing() {
    let pd = device().alloc_pd().unwrap();
    let (mut a, mut b) = pair(&pd);
    for i in 0..3u8 {
        b.rx.post(room(&pd, 8)).unwrap();
        a.tx.send(buf(&pd, &[i])).signaled().post().unwrap();
    }
    let [first, second, third] = [0; 3].map(|_| next(&mut a.cq));
    let mut old = a.tx.retire(first).unwrap();
    let mut new = a.tx.retire(third).unwrap();
    assert!(a.tx.retire(second).is_err(), "retired by the third");
    assert_eq!(std::iter::from_fn(|| a.tx.take(&mut new)).count(), 3);
    a.tx.send(buf(&pd, b"in flight")).post().unwrap();
    assert!(a.tx.take(&mut old).is_none());
    assert!(a.tx.take(&mut new).is_none());
    assert_eq!(a.tx.outstanding(), 1);
}

#[test]
fn receives_whose_completion_was_dropped_are_lost_not_leaked() {
    let pd = device().alloc_pd().unwrap();
    let (mut a, mut b) = pair_of::<Buf, Buf>(&pd, |q| q.recv_depth(3));
    for i in 0..3u8 {
        b.rx.post(room(&pd, 8)).unwrap();
        a.tx.send(buf(&pd, &[i])).post().unwrap();
    }
    drop(next(&mut b.cq));
    drop(next(&mut b.cq));
    assert!(b.rx.take_lost().is_none(), "not known yet");
    assert_eq!(b.received().unwrap().bytes(), [2]);
    assert_eq!((b.rx.outstanding(), b.rx.free_slots()), (0, 0));
    let (kind, _) = refused(b.rx.post(room(&pd, 8)));
    assert_eq!(
        kind,
        PostErrorKind::QueueFull {
            depth: 3,
            untaken: 3
        }
    );
    assert!(b.rx.take_lost().is_some() && b.rx.take_lost().is_some() && b.rx.take_lost().is_none());
    assert_eq!(b.rx.free_slots(), 3);
}

#[test]
fn without_a_receive_and_without_retries_a_send_fails() {
    let pd = device().alloc_pd().unwrap();
    let (mut a, mut b) = pair_of::<Buf, Buf>(&pd, |q| q.rnr_retry(0));
    a.tx.send(buf(&pd, b"too early")).signaled().post().unwrap();
    let (back, result) = a.sent().remove(0);
    assert_eq!(&back[..], b"too early");
    assert_eq!(result.unwrap_err().status, WcStatus::RNR_RETRY_EXC_ERR);
    // Nothing arrives late.
    b.rx.post(room(&pd, 16)).unwrap();
    assert!(b.cq.poll().unwrap().is_none());
}

#[test]
fn with_endless_retries_a_send_waits_for_its_receive() {
    let pd = device().alloc_pd().unwrap();
    let (mut a, mut b) = pair(&pd);
    for i in 0..5u8 {
        a.tx.send(buf(&pd, &[i])).signaled().post().unwrap();
    }
    assert!(a.cq.poll().unwrap().is_none());
    for i in 0..5u8 {
        b.rx.post(room(&pd, 16)).unwrap();
        assert_eq!(&a.sent_one()[..], [i]);
        assert_eq!(b.received().unwrap().bytes(), [i]);
    }
}

#[test]
fn a_failure_is_seen_by_every_piece_of_work_after_it() {
    let pd = device().alloc_pd().unwrap();
    let (mut a, _b) = pair(&pd);
    let shared = pd.expose(64, Access::REMOTE_WRITE).unwrap();
    let bad = verbs::RemoteRegion {
        rkey: verbs::RKey(0xbad),
        ..shared.remote()
    };
    a.tx.write(buf(&pd, b"good"), shared.remote())
        .post()
        .unwrap();
    a.tx.write(buf(&pd, b"evil"), bad).post().unwrap();
    a.tx.write(buf(&pd, b"late"), shared.remote().slice(32..).unwrap())
        .post()
        .unwrap();
    let mut seen = Vec::new();
    while seen.len() < 3 {
        seen.extend(
            a.sent()
                .into_iter()
                .map(|(b, r)| (b.to_vec(), r.map_err(|e| e.status).map(|_| ()))),
        );
    }
    let want = [
        (b"good".to_vec(), Ok(())),
        (b"evil".to_vec(), Err(WcStatus::REM_ACCESS_ERR)),
        (b"late".to_vec(), Err(WcStatus::WR_FLUSH_ERR)),
    ];
    assert_eq!(seen, want);
    let mut after = [0; 4];
    shared.read_at(32, &mut after).unwrap();
    assert_eq!(after, [0; 4]);
}

#[test]
fn a_completion_queue_that_could_overflow_is_refused() {
    let ctx = device();
    let pd = ctx.alloc_pd().unwrap();
    let cq = ctx.cq(100).build().unwrap();
    let room = cq.depth();
    let build = |n| pd.rc(&cq).send_depth(n).recv_depth(1);
    let first = build(room - 2).build().unwrap();
    let e = build(2).build().unwrap_err();
    assert!(
        matches!(e, verbs::Error::CqTooSmall { depth, claimed, leftover: 0 } if depth == room.into() && claimed > depth),
        "{e}"
    );
    build(2).overcommit_cq(true).build().unwrap();
    drop(first);
    build(room - 2).build().unwrap();
}

#[test]
fn what_a_destroyed_queue_pair_may_have_left_takes_room_until_the_queue_was_empty() {
    let ctx = device();
    let pd = ctx.alloc_pd().unwrap();
    let mut cq = ctx.cq(60).build().unwrap();
    let depth = cq.depth();
    let build = |cq: &Cq| pd.rc(cq).send_depth(depth - 40).recv_depth(40).build();
    let posted = |cq: &Cq, count: u8| {
        let ready = build(cq).unwrap();
        let own = ready.endpoint();
        let (tx, mut rx) = ready.connect::<Buf, Buf>(&own).unwrap();
        for _ in 0..count {
            rx.post(room(&pd, 8)).unwrap();
        }
        (tx, rx)
    };
    // Nothing in flight, nothing left.
    let (tx, rx) = posted(&cq, 0);
    verbs::destroy(tx, rx).unwrap();
    let (tx, rx) = posted(&cq, 40);
    verbs::destroy(tx, rx).unwrap();
    let e = build(&cq).unwrap_err();
    assert!(
        matches!(e, verbs::Error::CqTooSmall { claimed, leftover: 40, .. } if claimed == u64::from(depth) + 40),
        "{e}"
    );
    assert!(
        e.to_string().contains("40 of them left by destroyed ones"),
        "{e}"
    );
    // What fits beside it does.
    drop(pd.rc(&cq).send_depth(1).recv_depth(1).build().unwrap());
    while cq.poll().unwrap().is_some() {}

    // All that was taken note of has left the queue, too.
    let (mut tx, rx) = posted(&cq, 20);
    for n in 0..20 {
        let wr = tx.send(buf(&pd, &[n]));
        if n == 19 { wr.signaled() } else { wr }.post().unwrap();
    }
    let mut end = End { cq, tx, rx };
    let (mut sent, mut received) = (0, 0);
    while sent + received < 40 {
        let wc = next(&mut end.cq);
        if wc.queue() == end.tx.id() {
            let mut done = end.tx.retire(wc).unwrap();
            sent += std::iter::from_fn(|| end.tx.take(&mut done)).count();
        } else {
            let _ = end.rx.redeem(wc).unwrap().unwrap();
            received += 1;
        }
    }
    verbs::destroy(end.tx, end.rx).unwrap();
    build(&end.cq).unwrap();
}

#[test]
fn attributes_out_of_range_are_named() {
    let ctx = device();
    let pd = ctx.alloc_pd().unwrap();
    let cq = ctx.cq(100).build().unwrap();
    let cases = [
        (pd.rc(&cq).send_depth(0), "send_depth"),
        (pd.rc(&cq).send_depth(1 << 30), "send_depth"),
        (pd.rc(&cq).recv_depth(1 << 30), "recv_depth"),
        (pd.rc(&cq).max_send_sge(0), "max_send_sge"),
        (pd.rc(&cq).max_send_sge(33), "max_send_sge"),
        (pd.rc(&cq).max_recv_sge(33), "max_recv_sge"),
        (pd.rc(&cq).rnr_retry(8), "rnr_retry"),
        (pd.rc(&cq).retry_cnt(8), "retry_cnt"),
        (pd.rc(&cq).timeout(32), "timeout"),
        (pd.rc(&cq).min_rnr_timer(32), "min_rnr_timer"),
    ];
    for (builder, name) in cases {
        let text = builder.build().unwrap_err().to_string();
        assert!(text.starts_with(name) && text.contains(" to "), "{text}");
    }
    assert!(ctx.cq(0).build().is_err());
    assert!(
        ctx.cq(u32::MAX)
            .build()
            .unwrap_err()
            .to_string()
            .contains("must be 1 to")
    );
}
