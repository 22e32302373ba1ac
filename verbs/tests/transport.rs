//! What a device says it speaks, and does. By itself, because the fault is the whole process's.
#![cfg(feature = "soft")]

mod common;

use common::*;
use softverbs::faults::{Fault, inject};
use verbs::{Device, PostErrorKind, Transport};

#[test]
fn a_device_tells_whether_it_has_immediate_data_and_is_right() {
    for has in [true, false] {
        let fault = (!has).then(|| inject(Fault::NoImmediate));
        let ctx = Device::open_spec("soft0").unwrap();
        assert_eq!(ctx.has_immediate_data(), has);
        let expected = match has {
            true => Transport::InfiniBand,
            false => Transport::Iwarp,
        };
        assert_eq!(ctx.transport(), expected);
        let pd = ctx.alloc_pd().unwrap();
        let (mut a, mut b) = pair(&pd);
        b.rx.post(room(&pd, 8)).unwrap();
        let posted = a.tx.send(buf(&pd, b"imm")).imm(1).post();
        assert_eq!(posted.is_ok(), has);
        if let Err(error) = posted {
            assert!(matches!(error.kind(), PostErrorKind::Device { .. }));
            a.tx.send(error.into_inner()).post().unwrap();
        }
        let message = b.received().unwrap();
        assert_eq!(
            (message.bytes(), message.imm()),
            (&b"imm"[..], has.then_some(1))
        );
        drop(fault);
    }
}
