//! Messages into borrowed memory: done when the scope is over, whatever happened in it.
#![cfg(feature = "soft")]

mod common;

use std::panic::{AssertUnwindSafe, catch_unwind};

use common::*;
use verbs::{Access, PostErrorKind, ReceivedBy, ScopeError, WcStatus};

#[test]
fn messages_arrive_in_parts_of_one_buffer() {
    let pd = device().alloc_pd().unwrap();
    let (mut a, mut b) = pair(&pd);
    let shared = pd.expose(8, Access::REMOTE_WRITE).unwrap();
    let mut page = room(&pd, 32);
    let (tx, rx) = (&mut a.tx, &mut b.rx);
    let lens = rx.scope(&mut b.cq, |s| {
        let (first, rest) = page.part_mut(..).unwrap().split_at(8);
        let (second, third) = rest.split_at(4);
        assert_eq!(s.post(first), Ok(0));
        // Scattered over two parts.
        assert_eq!(s.post([second, third]), Ok(1));
        tx.send(buf(&pd, b"one")).post().unwrap();
        tx.send(buf(&pd, b"and two")).imm(7).post().unwrap();
        let got = [0, 1].map(|_| s.next().unwrap().unwrap());
        assert_eq!(got.each_ref().map(|m| *m.get_ref()), [0, 1]);
        assert_eq!(got.each_ref().map(|m| m.imm()), [None, Some(7)]);
        assert!(s.next().unwrap().is_none(), "no more are posted");
        got.map(|m| m.byte_len() as usize)
    });
    assert_eq!(lens.unwrap(), [3, 7]);
    assert_eq!((&page[..3], &page[8..15]), (&b"one"[..], &b"and two"[..]));
    assert_eq!(page[3..8], [0xee; 5], "nothing else was written");
    // A WRITE with immediate data uses a receive up and leaves its memory alone.
    let by = b.rx.scope(&mut b.cq, |s| {
        s.post(page.part_mut(..).unwrap()).unwrap();
        a.tx.write(buf(&pd, b"there"), shared.remote())
            .imm(1)
            .post()
            .unwrap();
        s.next().unwrap().unwrap().by()
    });
    assert_eq!(by.unwrap(), ReceivedBy::WriteWithImm);
    assert_eq!(&page[..3], b"one");
}

#[test]
fn the_end_of_the_scope_waits_for_what_nobody_asked_for() {
    let pd = device().alloc_pd().unwrap();
    let (mut a, mut b) = pair(&pd);
    let mut into = room(&pd, 8);
    b.rx.scope(&mut b.cq, |s| {
        s.post(into.part_mut(..).unwrap()).unwrap();
        a.tx.send(buf(&pd, b"late")).post().unwrap();
    })
    .unwrap();
    assert_eq!(&into[..4], b"late");
    assert!(b.cq.poll().unwrap().is_none());
}

#[test]
fn lent_and_owned_receives_are_taken_in_order_and_share_the_slots() {
    let pd = device().alloc_pd().unwrap();
    let (mut a, mut b) = pair_of::<Buf, Buf>(&pd, |q| q.recv_depth(3));
    let mut into = room(&pd, 8);
    b.rx.post(room(&pd, 8)).unwrap();
    b.rx.scope(&mut b.cq, |s| {
        let (x, rest) = into.part_mut(..).unwrap().split_at(2);
        let (y, z) = rest.split_at(2);
        s.post(x).unwrap();
        s.post(y).unwrap();
        let full = PostErrorKind::QueueFull {
            depth: 3,
            untaken: 0,
        };
        assert_eq!(s.post(&z), Err(full));
        for text in ["own", "1", "2"] {
            a.tx.send(buf(&pd, text.as_bytes())).post().unwrap();
        }
        assert_eq!(*s.next().unwrap().unwrap().get_ref(), 0);
        // There is room again; and numbers are of what was posted.
        assert_eq!(s.post(&z), Ok(2));
        a.tx.send(buf(&pd, b"3")).post().unwrap();
        s.wait().unwrap();
        assert_eq!(s.outstanding(), 0);
    })
    .unwrap();
    assert_eq!([into[0], into[2], into[4]], *b"123");
    assert_eq!(b.received().unwrap().bytes(), b"own");
}

#[test]
fn what_is_refused_is_not_posted() {
    let pd = device().alloc_pd().unwrap();
    let (a, mut b) = pair_of::<Buf, Buf>(&pd, |q| q.max_recv_sge(1));
    let mut into = room(&pd, 8);
    b.rx.scope(&mut b.cq, |s| {
        let (x, y) = into.part_mut(..).unwrap().split_at(2);
        let many = PostErrorKind::TooManySegments { count: 2, max: 1 };
        assert_eq!(s.post([x, y]), Err(many));
        assert_eq!(s.outstanding(), 0);
        assert!(s.next().unwrap().is_none());
    })
    .unwrap();
    let mut foreign = a.cq;
    let e = b.rx.scope(&mut foreign, |_| panic!("not called"));
    assert!(matches!(e, Err(ScopeError::OtherCompletionQueue)));
}

#[test]
fn room_of_no_parts_takes_a_message_of_no_bytes() {
    let pd = device().alloc_pd().unwrap();
    let (mut a, mut b) = pair(&pd);
    let len = b.rx.scope(&mut b.cq, |s| {
        s.post([]).unwrap();
        a.tx.scope(&mut a.cq, |sends| sends.send([]).unwrap())
            .unwrap();
        s.next().unwrap().unwrap().byte_len()
    });
    assert_eq!(len.unwrap(), 0);
}

#[test]
fn a_panic_ends_waiting_for_messages_that_never_come() {
    let pd = device().alloc_pd().unwrap();
    let (_a, mut b) = pair(&pd);
    let mut into = room(&pd, 8);
    b.rx.post(room(&pd, 8)).unwrap();
    let caught = catch_unwind(AssertUnwindSafe(|| {
        b.rx.scope(&mut b.cq, |s| {
            s.post(into.part_mut(..).unwrap()).unwrap();
            panic!("on purpose");
        })
    }));
    let text = caught.unwrap_err();
    assert_eq!(text.downcast_ref(), Some(&"on purpose"));
    // Nothing writes it any more.
    into.copy_from_slice(b"all mine");
    // What was owned was flushed as well, and its completion kept.
    let error = b.received().unwrap_err();
    assert_eq!(error.error().status, WcStatus::WR_FLUSH_ERR);
    assert_eq!(&into[..], b"all mine");
}

#[test]
fn waiting_can_be_given_up() {
    let pd = device().alloc_pd().unwrap();
    let (mut a, mut b) = pair(&pd);
    let mut into = room(&pd, 16);
    let e = b.rx.scope(&mut b.cq, |s| {
        let (x, y) = into.part_mut(..).unwrap().split_at(8);
        s.post(x).unwrap();
        s.post(y).unwrap();
        a.tx.send(buf(&pd, b"came")).post().unwrap();
        assert_eq!(s.next().unwrap().unwrap().byte_len(), 4);
        s.cancel().unwrap();
        match s.next().unwrap_err() {
            ScopeError::Work(e) => assert_eq!(e.status, WcStatus::WR_FLUSH_ERR),
            e => panic!("{e}"),
        }
        assert!(s.next().unwrap().is_none());
    });
    assert!(matches!(e, Err(ScopeError::Work(e)) if e.is_flush()));
    assert_eq!(&into[..4], b"came");
}

#[test]
fn a_queue_pair_that_fails_ends_the_scope() {
    let pd = device().alloc_pd().unwrap();
    let (mut a, mut b) = pair(&pd);
    let mut into = room(&pd, 12);
    // The first message is too long, and nothing comes after it.
    let e = b.rx.scope(&mut b.cq, |s| {
        let (x, y) = into.part_mut(..).unwrap().split_at(4);
        s.post(x).unwrap();
        s.post(y).unwrap();
        a.tx.send(buf(&pd, b"too long")).post().unwrap();
    });
    match e.unwrap_err() {
        ScopeError::Work(e) => assert_eq!(e.status, WcStatus::LOC_LEN_ERR),
        e => panic!("{e}"),
    }
    into.copy_from_slice(b"is mine agai");
    assert!(b.cq.poll().unwrap().is_none(), "both were waited for");
    // In the error state receives are flushed as they are posted, where devices notice; give up, for those that do not.
    let e = b.rx.scope(&mut b.cq, |s| {
        s.post(into.part_mut(..).unwrap()).unwrap();
        s.cancel().unwrap();
    });
    assert!(matches!(e, Err(ScopeError::Work(e)) if e.is_flush()));
}

#[test]
fn what_the_closure_forgets_changes_nothing() {
    let pd = device().alloc_pd().unwrap();
    let (mut a, mut b) = pair(&pd);
    let mut into = room(&pd, 8);
    b.rx.scope(&mut b.cq, |s| {
        let parts = vec![into.part_mut(..).unwrap()];
        s.post(&parts).unwrap();
        std::mem::forget(parts);
        a.tx.send(buf(&pd, b"here")).post().unwrap();
        let _ = s.next().unwrap();
    })
    .unwrap();
    assert_eq!(&into[..4], b"here");
}

#[test]
fn the_queue_pair_can_be_half_dropped_around_a_scope() {
    let pd = device().alloc_pd().unwrap();
    let (mut a, mut b) = pair(&pd);
    let mut into = room(&pd, 8);
    drop(b.tx);
    b.rx.scope(&mut b.cq, |s| {
        s.post(into.part_mut(..).unwrap()).unwrap();
        a.tx.send(buf(&pd, b"half")).signaled().post().unwrap();
        // The sender goes, once it has sent.
        drop(a.sent_one());
        drop((a.tx, a.rx, a.cq));
    })
    .unwrap();
    drop((b.rx, b.cq));
    assert_eq!(&into[..4], b"half");
}

#[test]
fn both_directions_can_be_lent_at_once() {
    let pd = device().alloc_pd().unwrap();
    let (mut a, mut b) = pair(&pd);
    let (out, mut into) = (buf(&pd, b"out"), room(&pd, 3));
    b.rx.scope(&mut b.cq, |r| {
        r.post(into.part_mut(..).unwrap()).unwrap();
        a.tx.scope(&mut a.cq, |s| s.send(out.part(..).unwrap()).unwrap())
            .unwrap();
    })
    .unwrap();
    assert_eq!(&into[..], b"out");
}

#[test]
fn cells_can_be_lent_without_being_borrowed_mutably() {
    let pd = device().alloc_pd().unwrap();
    let (mut a, mut b) = pair(&pd);
    let cells = pd.expose(8, Access::REMOTE_WRITE).unwrap();
    b.rx.scope(&mut b.cq, |s| {
        s.post(cells.part_mut(..).unwrap()).unwrap();
        a.tx.send(buf(&pd, b"in cells")).post().unwrap();
        let _ = s.next().unwrap().unwrap();
        // Nobody else writes them now.
        let mut seen = [0; 8];
        cells.read_at(0, &mut seen).unwrap();
        assert_eq!(&seen, b"in cells");
    })
    .unwrap();
}
