//! Unreliable connections: what arrives does so as on reliable ones, what cannot is lost without a word.
#![cfg(feature = "soft")]

mod common;

use common::*;
use verbs::{Access, Cq, Pd, PostErrorKind, RecvQueue, SendQueue, Uc, UcBuilder, WcStatus};

struct UcEnd {
    cq: Cq,
    tx: SendQueue<Buf, Uc>,
    rx: RecvQueue<Buf>,
}

fn uc_pair(pd: &Pd, set: impl Fn(UcBuilder) -> UcBuilder) -> (UcEnd, UcEnd) {
    let cqs = [0, 1].map(|_| pd.context().cq(256).build().unwrap());
    let [a, b] = [0, 1].map(|i| set(pd.uc(&cqs[i])).build().unwrap());
    let (ea, eb) = (a.endpoint(), b.endpoint());
    assert_eq!((ea.rd_atomic(), eb.rd_atomic()), (0, 0));
    let [cq_a, cq_b] = cqs;
    let (tx, rx) = a.connect(&eb).unwrap();
    let a = UcEnd { cq: cq_a, tx, rx };
    let (tx, rx) = b.connect(&ea).unwrap();
    (a, UcEnd { cq: cq_b, tx, rx })
}

impl UcEnd {
    fn sent(&mut self) -> Buf {
        let wc = next(&mut self.cq);
        let mut done = self.tx.retire(wc).unwrap();
        let (buffer, result) = self.tx.take(&mut done).unwrap();
        result.unwrap();
        buffer
    }
}

#[test]
fn messages_and_writes_arrive() {
    let pd = device().alloc_pd().unwrap();
    let (mut a, mut b) = uc_pair(&pd, |q| q.send_depth(8).recv_depth(8));
    let shared = pd.expose(64, Access::REMOTE_WRITE).unwrap();
    for len in [0, 1, 40, 4000] {
        b.rx.post(room(&pd, 5000)).unwrap();
        let data = buf(&pd, &vec![7; 5000]);
        let mut message = data.into_inner().unwrap();
        message.truncate(len.max(1));
        a.tx.send(pd.register(message.clone()).unwrap())
            .imm(len as u32)
            .signaled()
            .post()
            .unwrap();
        a.sent();
        let wc = next(&mut b.cq);
        let got = b.rx.redeem(wc).unwrap().unwrap();
        assert_eq!((got.bytes(), got.imm()), (&message[..], Some(len as u32)));
    }
    a.tx.write(buf(&pd, b"written"), shared.remote())
        .signaled()
        .post()
        .unwrap();
    a.sent();
    let mut copy = [0; 7];
    until("the bytes", || {
        shared.read_at(0, &mut copy).unwrap();
        (&copy == b"written").then_some(())
    });
    let mut batch = a.tx.batch();
    batch.send(buf(&pd, b"1")).add().unwrap();
    batch.send(buf(&pd, b"2")).signaled().add().unwrap();
    b.rx.post(room(&pd, 8)).unwrap();
    b.rx.post(room(&pd, 8)).unwrap();
    batch.post().unwrap();
    for want in [b"1", b"2"] {
        let wc = next(&mut b.cq);
        assert_eq!(b.rx.redeem(wc).unwrap().unwrap().bytes(), want);
    }
}

#[test]
fn what_cannot_arrive_is_lost_and_both_go_on() {
    let pd = device().alloc_pd().unwrap();
    let (mut a, mut b) = uc_pair(&pd, |q| q);
    a.tx.send(buf(&pd, b"nobody waits"))
        .signaled()
        .post()
        .unwrap();
    assert_eq!(&a.sent()[..], b"nobody waits");
    let private = pd.expose(8, Access::REMOTE_READ).unwrap();
    a.tx.write(buf(&pd, b"no right"), private.remote())
        .signaled()
        .post()
        .unwrap();
    a.sent();
    b.rx.post(room(&pd, 8)).unwrap();
    a.tx.send(buf(&pd, b"heard")).signaled().post().unwrap();
    a.sent();
    let wc = next(&mut b.cq);
    assert_eq!(b.rx.redeem(wc).unwrap().unwrap().bytes(), b"heard");
    assert_eq!(
        private
            .atomic_u64(0)
            .unwrap()
            .load(std::sync::atomic::Ordering::Relaxed),
        0
    );
}

#[test]
fn a_peer_that_is_not_to_write_does_not() {
    let pd = device().alloc_pd().unwrap();
    let (mut a, b) = uc_pair(&pd, |q| q.remote_write(false));
    let shared = pd.expose(8, Access::REMOTE_WRITE).unwrap();
    a.tx.write(buf(&pd, b"unwanted"), shared.remote())
        .signaled()
        .post()
        .unwrap();
    a.sent();
    let mut copy = [0; 8];
    shared.read_at(0, &mut copy).unwrap();
    assert_eq!(copy, [0; 8]);
    drop(b);
}

#[test]
fn it_is_refused_what_reliable_ones_are() {
    let pd = device().alloc_pd().unwrap();
    let cq = pd.context().cq(64).build().unwrap();
    let (setup, mut tx, rx) = pd
        .uc(&cq)
        .send_depth(1)
        .recv_depth(1)
        .build()
        .unwrap()
        .split::<Buf, Buf>();
    let (kind, _) = refused(tx.send(buf(&pd, b"early")).post());
    assert_eq!(kind, PostErrorKind::NotConnected);
    let own = setup.endpoint();
    setup.connect(&own).unwrap();
    tx.send(buf(&pd, b"one")).post().unwrap();
    let (kind, _) = refused(tx.send(buf(&pd, b"two")).post());
    assert!(matches!(kind, PostErrorKind::QueueFull { depth: 1, .. }));
    tx.set_error().unwrap();
    assert_eq!(verbs::destroy(tx, rx).unwrap().0.len(), 1);
}

#[test]
fn the_error_state_flushes() {
    let pd = device().alloc_pd().unwrap();
    let (mut a, _b) = uc_pair(&pd, |q| q);
    a.rx.post(room(&pd, 8)).unwrap();
    a.tx.set_error().unwrap();
    let wc = next(&mut a.cq);
    let error = a.rx.redeem(wc).unwrap().unwrap_err();
    assert_eq!(error.error().status, WcStatus::WR_FLUSH_ERR);
}

/// A send with the key of another domain, which fails here, on each kind of queue pair that outlives that.
#[test]
fn a_send_queue_that_failed_is_recovered() {
    let ctx = device();
    let (pd, other) = (ctx.alloc_pd().unwrap(), ctx.alloc_pd().unwrap());
    let (mut a, mut b) = uc_pair(&pd, |q| q);
    let e = a.tx.recover().unwrap_err();
    assert!(e.to_string().contains("SQE to RTS"), "{e}");
    for _ in 0..2 {
        b.rx.post(room(&pd, 8)).unwrap();
        a.rx.post(room(&pd, 8)).unwrap();
        let mut statuses = Vec::new();
        for data in [buf(&other, b"no key"), buf(&pd, b"behind")] {
            a.tx.send(data).signaled().post().unwrap();
            let wc = next(&mut a.cq);
            let mut done = a.tx.retire(wc).unwrap();
            let (_, result) = a.tx.take(&mut done).unwrap();
            let error = result.unwrap_err();
            statuses.push((error.status, error.is_flush()));
        }
        let expected = [
            (WcStatus::LOC_PROT_ERR, false),
            (WcStatus::WR_FLUSH_ERR, true),
        ];
        assert_eq!(statuses, expected);
        // It still receives.
        b.tx.send(buf(&pd, b"heard")).signaled().post().unwrap();
        b.sent();
        let wc = next(&mut a.cq);
        assert_eq!(a.rx.redeem(wc).unwrap().unwrap().bytes(), b"heard");
        a.tx.recover().unwrap();
        a.tx.send(buf(&pd, b"again")).signaled().post().unwrap();
        a.sent();
        let wc = next(&mut b.cq);
        assert_eq!(b.rx.redeem(wc).unwrap().unwrap().bytes(), b"again");
    }
    a.tx.set_error().unwrap();
    assert!(a.tx.recover().is_err());
}
