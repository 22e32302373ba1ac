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
fn a_device_without_moderation_says_so() {
    let ctx = device();
    let mut cq = ctx.cq(16).build().unwrap();
    match cq.moderate(8, Duration::from_micros(20)) {
        Ok(()) => assert_ne!(ctx.device_name(), "soft0"),
        Err(e) => {
            assert!(matches!(e, Error::Unsupported { .. }), "{e}");
            assert_eq!(e.raw_os_error(), Some(libc::EOPNOTSUPP));
            for part in [ctx.device_name(), "moderation", "ibv_modify_cq"] {
                assert!(e.to_string().contains(part), "{e}");
            }
        }
    }
    let too_long = cq.moderate(8, Duration::from_secs(1)).unwrap_err();
    assert!(matches!(too_long, Error::OutOfRange { .. }), "{too_long}");
}
