//! Completion queues that are resized and moderated.
#![cfg(feature = "soft")]

mod common;

use std::time::Duration;

use common::*;
use verbs::Error;

#[test]
fn a_resized_queue_has_room_for_more_and_keeps_what_is_in_it() {
    let ctx = device();
    let pd = ctx.alloc_pd().unwrap();
    let mut cq = ctx.cq(16).build().unwrap();
    let before = cq.depth();
    let build = |cq: &verbs::Cq| pd.rc(cq).send_depth(before).recv_depth(8).build();
    assert!(matches!(build(&cq), Err(Error::CqTooSmall { .. })));
    cq.resize(before + 8).unwrap();
    assert!(cq.depth() >= before + 8);
    let ready = build(&cq).unwrap();
    let own = ready.endpoint();
    let (mut tx, mut rx) = ready.connect::<Buf, Buf>(&own).unwrap();
    rx.post(room(&pd, 8)).unwrap();
    tx.send(buf(&pd, b"kept")).post().unwrap();
    // Smaller than its queues need is refused, and nothing changes.
    let e = cq.resize(8).unwrap_err();
    assert!(
        matches!(e, Error::CqTooSmall { depth: 8, claimed, .. } if claimed == u64::from(before) + 8),
        "{e}"
    );
    cq.resize(cq.depth() + 50).unwrap();
    let wc = next(&mut cq);
    assert_eq!(rx.redeem(wc).unwrap().unwrap().bytes(), b"kept");
    assert!(matches!(cq.resize(0), Err(Error::OutOfRange { .. })));
    assert!(matches!(cq.resize(u32::MAX), Err(Error::OutOfRange { .. })));
}

#[test]
fn events_can_be_moderated_where_the_device_can() {
    let ctx = device();
    let pd = ctx.alloc_pd().unwrap();
    let cq = ctx.cq(64).build().unwrap();
    let ready = pd.rc(&cq).send_depth(8).recv_depth(8).build().unwrap();
    let own = ready.endpoint();
    let (tx, rx) = ready.connect::<Buf, Buf>(&own).unwrap();
    let mut end = End { cq, tx, rx };
    for (count, micros) in [(8, 20), (0, 0)] {
        match end.cq.moderate(count, Duration::from_micros(micros)) {
            Ok(()) => {}
            Err(e) => assert!(matches!(e, Error::Unsupported { .. }), "{e}"),
        }
        // Polling does not wait for any of that.
        end.rx.post(room(&pd, 8)).unwrap();
        end.tx.send(buf(&pd, b"x")).post().unwrap();
        assert_eq!(end.received().unwrap().bytes(), b"x");
    }
    let too_long = end.cq.moderate(8, Duration::from_secs(1)).unwrap_err();
    assert!(matches!(too_long, Error::OutOfRange { .. }), "{too_long}");
}
