//! Batches that the device takes in part. By themselves, and one at a time, because the fault is the whole process's.
#![cfg(feature = "soft")]

mod common;

use std::sync::Mutex;

use common::*;
use softverbs::faults::{Fault, Verb, inject};
use verbs::PostErrorKind;

static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

#[test]
fn the_head_stays_posted_and_the_tail_comes_back() {
    let _turn = ONE_AT_A_TIME.lock();
    let pd = verbs::Device::open_spec("soft0")
        .unwrap()
        .alloc_pd()
        .unwrap();
    let (mut a, mut b) = pair_of::<Buf, Buf>(&pd, |q| q.send_depth(8));
    for _ in 0..16 {
        b.rx.post(room(&pd, 16)).unwrap();
    }
    for taken in 0..5u8 {
        let fault = inject(Fault::Verb {
            verb: Verb::PostSend,
            nth: u64::from(taken) + 1,
            errno: 5,
        });
        let mut batch = a.tx.batch();
        for n in 0..5 {
            batch.send(buf(&pd, &[n])).signaled().add().unwrap();
        }
        let error = batch.post().unwrap_err();
        drop(fault);
        assert_eq!(error.posted(), usize::from(taken));
        assert_eq!(error.kind(), PostErrorKind::Device { errno: 5 });
        let text = error.to_string();
        assert!(text.contains(&format!("only {taken} work")), "{text}");
        let rest: Vec<u8> = error.into_inner().iter().map(|b| b[0]).collect();
        assert_eq!(rest, (taken..5).collect::<Vec<_>>());
        assert_eq!(a.tx.outstanding(), u32::from(taken));
        // The queue goes on behind what was posted.
        a.tx.send(buf(&pd, &[99])).signaled().post().unwrap();
        for n in (0..taken).chain([99]) {
            assert_eq!(&a.sent_one()[..], [n]);
            let message = b.received().unwrap();
            assert_eq!(message.bytes(), [n]);
            b.rx.post(message.into_inner()).unwrap();
        }
        assert_eq!(a.tx.free_slots(), 8);
    }
}

#[test]
fn receives_that_the_device_refuses_come_back() {
    let _turn = ONE_AT_A_TIME.lock();
    let pd = verbs::Device::open_spec("soft0")
        .unwrap()
        .alloc_pd()
        .unwrap();
    let (_a, mut b) = pair_of::<Buf, Buf>(&pd, |q| q.recv_depth(8));
    for taken in 0..4u8 {
        let fault = inject(Fault::Verb {
            verb: Verb::PostRecv,
            nth: u64::from(taken) + 1,
            errno: 5,
        });
        let error = b.rx.post_many((0..4).map(|n| buf(&pd, &[n]))).unwrap_err();
        drop(fault);
        assert_eq!(error.posted(), usize::from(taken));
        assert_eq!(error.kind(), PostErrorKind::Device { errno: 5 });
        let rest: Vec<u8> = error.into_inner().iter().map(|b| b[0]).collect();
        assert_eq!(rest, (taken..4).collect::<Vec<_>>());
    }
    assert_eq!(b.rx.outstanding(), 1 + 2 + 3);
}
