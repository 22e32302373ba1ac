//! Polling with a cursor.
#![cfg(feature = "soft")]

mod common;

use std::time::{Duration, SystemTime};

use common::*;
use verbs::{Cq, Error, Pd, RecvQueue, SendQueue, WcFields, WcStatus};

const ALL: WcFields = WcFields::all();

/// A queue pair that is its own peer.
fn own(fields: WcFields) -> (Pd, Cq, SendQueue<Buf>, RecvQueue<Buf>) {
    let ctx = device();
    let pd = ctx.alloc_pd().unwrap();
    let cq = ctx.cq(256).extended(fields).build().unwrap();
    let ready = pd.rc(&cq).build().unwrap();
    let own = ready.endpoint();
    let (tx, rx) = ready.connect(&own).unwrap();
    (pd, cq, tx, rx)
}

fn send(pd: &Pd, tx: &mut SendQueue<Buf>, rx: &mut RecvQueue<Buf>, imm: u32) {
    rx.post(room(pd, 8)).unwrap();
    let wr = tx.send(buf(pd, b"hello")).imm(imm).signaled();
    wr.post().unwrap();
}

#[test]
fn it_tells_what_was_asked_for_and_its_completions_are_redeemed() {
    let (pd, mut cq, mut tx, mut rx) = own(ALL);
    let before = SystemTime::now();
    let (mut ticks, mut seen) = (0, [0, 0]);
    for imm in 0..3 {
        send(&pd, &mut tx, &mut rx, imm);
    }
    until("six completions", || {
        let mut poll = cq.start_poll().unwrap();
        while let Some(c) = poll.next() {
            assert!((c.is_ok(), c.status()) == (true, WcStatus::SUCCESS));
            assert_eq!(c.qp_num(), tx.qp_num());
            assert!(c.completion_ticks().unwrap() >= ticks);
            ticks = c.completion_ticks().unwrap();
            let wall = c.wall_clock().unwrap();
            // The clock can be set back meanwhile, but not by much.
            assert!(wall + Duration::from_secs(60) > before);
            assert!(wall < SystemTime::now() + Duration::from_secs(60));
            if c.queue() == rx.id() {
                assert_eq!((c.byte_len(), c.imm()), (5, Some(seen[0])));
                assert!(c.source_qpn().is_some());
                let got = rx.redeem(c.into_completion()).unwrap().unwrap();
                assert_eq!((got.bytes(), got.imm()), (&b"hello"[..], Some(seen[0])));
                seen[0] += 1;
            } else {
                assert_eq!((c.byte_len(), c.imm(), c.source_qpn()), (0, None, None));
                let mut done = tx.retire(c.into_completion()).unwrap();
                assert!(tx.take(&mut done).unwrap().1.unwrap().signaled());
                seen[1] += 1;
            }
        }
        assert!(!poll.is_ready() && poll.next().is_none());
        (seen == [3, 3]).then_some(())
    });
    assert!(ticks > 0);
}

#[test]
fn what_was_not_asked_for_is_not_told() {
    let (pd, mut cq, mut tx, mut rx) = own(WcFields::empty());
    send(&pd, &mut tx, &mut rx, 7);
    let mut left = 2;
    until("both completions", || {
        let mut poll = cq.start_poll().unwrap();
        while let Some(c) = poll.next() {
            assert!(c.completion_ticks().is_none() && c.wall_clock().is_none());
            assert!(c.source_qpn().is_none());
            assert_eq!(c.outcome().unwrap().imm().is_some(), c.queue() == rx.id());
            left -= 1;
        }
        (left == 0).then_some(())
    });
    // They were dropped: their buffers come back with later work, as always.
    assert_eq!((tx.outstanding(), rx.outstanding()), (1, 1));
}

#[test]
fn what_was_shown_to_nobody_is_there_for_the_next_poll() {
    let (pd, mut cq, mut tx, mut rx) = own(ALL);
    send(&pd, &mut tx, &mut rx, 1);
    until("a completion", || {
        cq.start_poll().unwrap().is_ready().then_some(())
    });
    for _ in 0..3 {
        assert!(cq.start_poll().unwrap().is_ready());
    }
    let mut poll = cq.start_poll().unwrap();
    let first = poll.next().unwrap();
    assert!(first.completion_ticks().is_some() && first.wall_clock().is_some());
    assert_eq!(first.qp_num(), rx.qp_num());
    let first = first.into_completion();
    drop(poll);
    let second = next(&mut cq);
    assert!(cq.poll().unwrap().is_none(), "each of them once");
    let (sent, received) = match first.queue() == tx.id() {
        true => (first, second),
        false => (second, first),
    };
    assert_eq!(rx.redeem(received).unwrap().unwrap().bytes(), b"hello");
    assert!(tx.retire(sent).is_ok());
}

#[test]
fn what_a_scope_or_a_wait_met_comes_first() {
    let ctx = device();
    let (pd, channel) = (ctx.alloc_pd().unwrap(), ctx.channel().unwrap());
    let builder = ctx.cq(256).channel(&channel).extended(ALL);
    let mut cq = builder.build().unwrap();
    let ready = pd.rc(&cq).build().unwrap();
    let endpoint = ready.endpoint();
    let (mut tx, mut rx) = ready.connect::<Buf, Buf>(&endpoint).unwrap();
    send(&pd, &mut tx, &mut rx, 1);
    assert!(cq.wait(Some(hang())).unwrap());
    let mut poll = cq.start_poll().unwrap();
    assert!(poll.next().unwrap().completion_ticks().is_some());
    drop(poll);
    let mut left = 1;
    until("the other", || {
        left -= i32::from(cq.poll().unwrap().is_some());
        (left == 0).then_some(())
    });
    let lent = buf(&pd, b"lent");
    rx.post(room(&pd, 8)).unwrap();
    tx.send(buf(&pd, b"own")).signaled().post().unwrap();
    rx.post(room(&pd, 8)).unwrap();
    tx.scope(&mut cq, |s| s.send(lent.part(..).unwrap()).unwrap())
        .unwrap();
    let mut poll = cq.start_poll().unwrap();
    let first = poll.next().unwrap();
    // With its times, though the scope was not interested in them.
    assert!(first.completion_ticks().is_some() && first.wall_clock().is_some());
    assert!(first.is_ok());
}

#[test]
fn a_cursor_that_was_forgotten_is_in_nobodys_way() {
    let (pd, mut cq, mut tx, mut rx) = own(ALL);
    send(&pd, &mut tx, &mut rx, 1);
    until("both", || {
        let mut poll = cq.start_poll().unwrap();
        let ready = poll.next().is_some();
        std::mem::forget(poll);
        ready.then_some(())
    });
    send(&pd, &mut tx, &mut rx, 2);
    let mut last = next(&mut cq);
    while let Some(wc) = cq.poll().unwrap() {
        last = wc;
    }
    assert!(last.is_ok());
    std::mem::forget(cq.start_poll().unwrap());
    drop((tx, rx, cq));
}

#[test]
fn a_cursor_that_another_thread_forgot_is_an_error() {
    let (pd, mut cq, mut tx, mut rx) = own(ALL);
    send(&pd, &mut tx, &mut rx, 1);
    let mut cq = std::thread::spawn(move || {
        until("a completion", || {
            let poll = cq.start_poll().unwrap();
            let ready = poll.is_ready();
            std::mem::forget(poll);
            ready.then_some(())
        });
        cq
    })
    .join()
    .unwrap();
    assert!(matches!(cq.poll(), Err(Error::CqBroken { .. })));
    assert!(matches!(cq.start_poll(), Err(Error::CqBroken { .. })));
    drop(cq);
    drop((tx, rx));
}

#[test]
fn failed_work_says_how() {
    let (pd, mut cq, mut tx, mut rx) = own(ALL);
    rx.post(room(&pd, 8)).unwrap();
    tx.set_error().unwrap();
    until("the receive", || {
        let mut poll = cq.start_poll().unwrap();
        let c = poll.next()?;
        assert_eq!((c.is_ok(), c.status()), (false, WcStatus::WR_FLUSH_ERR));
        assert_eq!((c.byte_len(), c.imm(), c.source_qpn()), (0, None, None));
        assert_eq!(c.outcome().unwrap_err().qp_num, rx.qp_num());
        let failed = rx.redeem(c.into_completion()).unwrap().unwrap_err();
        assert_eq!(failed.error().status, WcStatus::WR_FLUSH_ERR);
        Some(())
    });
}

#[test]
fn what_does_not_fit_is_refused() {
    let ctx = device();
    let pd = ctx.alloc_pd().unwrap();
    let mut plain = ctx.cq(256).build().unwrap();
    let e = plain.start_poll().map(drop).unwrap_err();
    assert!(matches!(e, Error::NotExtended), "{e}");
    assert!(e.to_string().contains("CqBuilder::extended"), "{e}");
    let silent = ctx.cq(256).extended(WcFields::empty()).build().unwrap();
    let e = pd.ud(&silent).build().unwrap_err();
    assert!(matches!(e, Error::SourceUntold), "{e}");
    assert!(e.to_string().contains("WcFields::SOURCE"), "{e}");
    // Where it only sends, nothing is missing.
    assert!(pd.ud(&silent).recv_cq(&plain).build().is_ok());
}
