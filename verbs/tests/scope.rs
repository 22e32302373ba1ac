//! Borrowed memory posted within a scope: done when the scope is over, whatever happened in it.
#![cfg(feature = "soft")]

mod common;

use std::panic::{AssertUnwindSafe, catch_unwind};

use common::*;
use verbs::{Access, PostErrorKind, ScopeError, WcStatus};

fn both() -> Access {
    Access::REMOTE_READ | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC
}

#[test]
fn all_kinds_of_work_are_done_when_the_scope_is_over() {
    let pd = device().alloc_pd().unwrap();
    let (mut a, mut b) = pair_of::<Buf, Buf>(&pd, |q| q.access(both()));
    let shared = pd.expose(64, both()).unwrap();
    let remote = shared.remote();
    let (head, tail) = (buf(&pd, b"head"), buf(&pd, b"and tail"));
    let (mut back, mut old) = (room(&pd, 12), room(&pd, 8));
    b.rx.post(room(&pd, 16)).unwrap();
    b.rx.post(room(&pd, 16)).unwrap();
    let words = remote.slice(32..).unwrap();
    let sum =
        a.tx.scope(&mut a.cq, |s| {
            s.send([head.part(..).unwrap(), tail.part(3..).unwrap()])
                .unwrap();
            s.write([head.part(..).unwrap(), tail.part(..).unwrap()], remote)
                .unwrap();
            s.read(back.part_mut(..).unwrap(), remote).unwrap();
            s.fetch_and_add(old.part_mut(..).unwrap(), words, 5)
                .unwrap();
            s.write_imm(head.part(..2).unwrap(), remote.slice(16..).unwrap(), 9)
                .unwrap();
            assert!(s.outstanding() <= 5);
            s.wait().unwrap();
            assert_eq!(s.outstanding(), 0);
            2 + 2
        })
        .unwrap();
    assert_eq!(sum, 4);
    assert_eq!(&back[..], b"headand tail");
    assert_eq!(&old[..], [0; 8]);
    assert_eq!(b.received().unwrap().bytes(), b"head tail");
    assert_eq!(b.received().unwrap().imm(), Some(9));
    // The buffers are as private as before.
    drop((head, tail));
}

#[test]
fn the_completions_of_others_are_kept_for_them_in_order() {
    let pd = device().alloc_pd().unwrap();
    let cq = pd.context().cq(256).build().unwrap();
    let ready = pd.rc(&cq).build().unwrap();
    let own = ready.endpoint();
    let (tx, rx) = ready.connect::<Buf, Buf>(&own).unwrap();
    let mut end = End { cq, tx, rx };
    let lent = buf(&pd, b"lent");
    for _ in 0..3 {
        end.rx.post(room(&pd, 8)).unwrap();
    }
    end.tx.send(buf(&pd, b"owned")).signaled().post().unwrap();
    end.tx
        .scope(&mut end.cq, |s| {
            s.send(lent.part(..).unwrap()).unwrap();
            s.send(lent.part(1..).unwrap()).unwrap();
        })
        .unwrap();
    let (mut sent, mut received) = (0, Vec::new());
    while sent < 1 || received.len() < 3 {
        let wc = next(&mut end.cq);
        if wc.queue() == end.rx.id() {
            received.push(end.rx.redeem(wc).unwrap().unwrap().bytes().to_vec());
        } else {
            let mut done = end.tx.retire(wc).unwrap();
            assert_eq!(&end.tx.take(&mut done).unwrap().0[..], b"owned");
            sent += 1;
        }
    }
    assert_eq!(received, [&b"owned"[..], b"lent", b"ent"]);
    assert_eq!(end.tx.free_slots(), end.tx.depth());
}

#[test]
fn lent_and_owned_work_share_the_slots() {
    let pd = device().alloc_pd().unwrap();
    let (mut a, _b) = pair_of::<Buf, Buf>(&pd, |q| q.send_depth(4));
    let shared = pd.expose(8, Access::REMOTE_WRITE).unwrap();
    let lent = buf(&pd, b"lent");
    a.tx.write(buf(&pd, b"own"), shared.remote())
        .post()
        .unwrap();
    let done = a.tx.scope(&mut a.cq, |s| {
        let post = || s.write(lent.part(..).unwrap(), shared.remote());
        (0..3).for_each(|_| post().unwrap());
        let full = PostErrorKind::QueueFull {
            depth: 4,
            untaken: 0,
        };
        assert_eq!(post(), Err(full));
        s.wait().unwrap();
        (0..3).for_each(|_| post().unwrap());
        assert_eq!(post(), Err(full));
    });
    done.unwrap();
    a.tx.write(buf(&pd, b"own"), shared.remote())
        .signaled()
        .post()
        .unwrap();
    assert_eq!(a.sent().len(), 2);
}

#[test]
fn what_is_refused_is_not_posted() {
    let pd = device().alloc_pd().unwrap();
    let (mut a, b) = pair_of::<Buf, Buf>(&pd, |q| q.max_send_sge(2).rd_atomic(0));
    let shared = pd.expose(8, both()).unwrap();
    let lent = buf(&pd, b"lent");
    let mut word = room(&pd, 8);
    let (small, three) = (
        shared.remote().slice(..3).unwrap(),
        [lent.part(..).unwrap(); 3],
    );
    a.tx.scope(&mut a.cq, |s| {
        let many = PostErrorKind::TooManySegments { count: 3, max: 2 };
        assert_eq!(s.send(three), Err(many));
        assert!(matches!(
            s.write(lent.part(..).unwrap(), small),
            Err(PostErrorKind::RemoteTooSmall { .. })
        ));
        assert_eq!(
            s.read(word.part_mut(..).unwrap(), shared.remote()),
            Err(PostErrorKind::NoReads)
        );
        assert_eq!(s.outstanding(), 0);
    })
    .unwrap();
    let mut foreign = b.cq;
    let e =
        a.tx.scope(&mut foreign, |_| panic!("not called"))
            .unwrap_err();
    assert!(matches!(e, ScopeError::OtherCompletionQueue), "{e}");
    let e = lent.part(2..9).unwrap_err();
    assert_eq!((e.offset, e.len, e.region_len), (2, 7, 4));
    assert!(lent.part(5..).is_err());
    #[allow(clippy::reversed_empty_ranges)]
    let reversed = lent.part(3..2);
    assert!(reversed.is_err());
}

#[test]
fn nothing_and_empty_parts_can_be_sent() {
    let pd = device().alloc_pd().unwrap();
    let (mut a, mut b) = pair(&pd);
    let lent = buf(&pd, b"lent");
    b.rx.post(room(&pd, 8)).unwrap();
    b.rx.post(room(&pd, 8)).unwrap();
    a.tx.scope(&mut a.cq, |s| {
        s.send([]).unwrap();
        s.send(lent.part(4..).unwrap()).unwrap();
    })
    .unwrap();
    assert_eq!(b.received().unwrap().byte_len(), 0);
    assert_eq!(b.received().unwrap().byte_len(), 0);
}

#[test]
fn a_failure_is_the_scopes_error_and_everything_is_over() {
    let pd = device().alloc_pd().unwrap();
    let (mut a, _b) = pair(&pd);
    let shared = pd.expose(8, Access::REMOTE_WRITE).unwrap();
    let lent = buf(&pd, b"lent");
    let bad = verbs::RemoteRegion {
        rkey: verbs::RKey(0xbad),
        ..shared.remote()
    };
    let e = a.tx.scope(&mut a.cq, |s| {
        s.write(lent.part(..).unwrap(), bad).unwrap();
        s.write(lent.part(..).unwrap(), shared.remote()).unwrap();
    });
    match e.unwrap_err() {
        ScopeError::Work(e) => assert_eq!(e.status, WcStatus::REM_ACCESS_ERR),
        e => panic!("{e}"),
    }
    assert!(a.cq.poll().unwrap().is_none(), "both were waited for");
    let mut seen = [0; 4];
    shared.read_at(0, &mut seen).unwrap();
    assert_eq!(seen, [0; 4]);
}

#[test]
fn a_panic_ends_work_that_would_never_end() {
    let pd = device().alloc_pd().unwrap();
    // Endless retries, and no receive.
    let (mut a, mut b) = pair(&pd);
    let mut lent = buf(&pd, b"lent");
    let caught = catch_unwind(AssertUnwindSafe(|| {
        a.tx.scope(&mut a.cq, |s| {
            s.send(lent.part(..).unwrap()).unwrap();
            panic!("on purpose");
        })
    }));
    let text = caught.unwrap_err();
    assert_eq!(text.downcast_ref(), Some(&"on purpose"));
    // Nothing reads it any more: what arrives later is nothing.
    lent.copy_from_slice(b"mine");
    b.rx.post(room(&pd, 8)).unwrap();
    assert!(b.cq.poll().unwrap().is_none());
}

#[test]
fn work_that_would_never_end_can_be_given_up() {
    let pd = device().alloc_pd().unwrap();
    let (mut a, _b) = pair(&pd);
    let lent = buf(&pd, b"lent");
    let e = a.tx.scope(&mut a.cq, |s| {
        s.send(lent.part(..).unwrap()).unwrap();
        s.cancel().unwrap();
    });
    match e.unwrap_err() {
        ScopeError::Work(e) => assert_eq!(e.status, WcStatus::WR_FLUSH_ERR),
        e => panic!("{e}"),
    }
}

#[test]
fn what_the_closure_forgets_changes_nothing() {
    let pd = device().alloc_pd().unwrap();
    let (mut a, mut b) = pair(&pd);
    let mut into = room(&pd, 4);
    let from = pd.readable(b"read".to_vec()).unwrap();
    let lent = buf(&pd, b"lent");
    b.rx.post(room(&pd, 8)).unwrap();
    a.tx.scope(&mut a.cq, |s| {
        let parts = vec![into.part_mut(..).unwrap()];
        s.read(&parts, from.remote()).unwrap();
        std::mem::forget(parts);
        let parts = vec![lent.part(..).unwrap()];
        s.send(&parts).unwrap();
        std::mem::forget(parts);
    })
    .unwrap();
    assert_eq!(&into[..], b"read");
    assert_eq!(b.received().unwrap().bytes(), b"lent");
}

#[test]
fn an_unreliable_connection_has_scopes_too() {
    let pd = device().alloc_pd().unwrap();
    let mut cq = pd.context().cq(64).build().unwrap();
    let ready = pd.uc(&cq).send_depth(4).recv_depth(4).build().unwrap();
    let own = ready.endpoint();
    let (mut tx, mut rx) = ready.connect::<Buf, Buf>(&own).unwrap();
    rx.post(room(&pd, 8)).unwrap();
    let lent = buf(&pd, b"lent");
    tx.scope(&mut cq, |s| s.send_imm(lent.part(..).unwrap(), 3))
        .unwrap()
        .unwrap();
    let wc = next(&mut cq);
    let got = rx.redeem(wc).unwrap().unwrap();
    assert_eq!((got.bytes(), got.imm()), (&b"lent"[..], Some(3)));
}
