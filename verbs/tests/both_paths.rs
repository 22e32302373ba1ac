//! The classic way of posting and polling, the extended one, and mixtures of them, by one body of tests.
#![cfg(feature = "soft")]

mod common;

use common::*;
use verbs::{
    Access, Context, Cq, Pd, PostErrorKind, QpBuilder, QpKind, RecvQueue, SendQueue,
    SharedRecvQueue, Uc, Ud, WcBatch, WcFields, WcStatus,
};

/// Which of the two are extended.
#[derive(Clone, Copy)]
struct Path {
    post: bool,
    poll: bool,
}

impl Path {
    fn cq(self, ctx: &Context) -> Cq {
        let builder = ctx.cq(256);
        match self.poll {
            true => builder.extended(WcFields::SOURCE),
            false => builder,
        }
        .build()
        .unwrap()
    }

    fn set<K: QpKind, R>(self, builder: QpBuilder<K, R>) -> QpBuilder<K, R> {
        match self.post {
            true => builder.extended(),
            false => builder,
        }
    }

    fn pair(self, pd: &Pd, set: impl Fn(verbs::RcBuilder) -> verbs::RcBuilder) -> (End, End) {
        let cqs = [0, 1].map(|_| self.cq(pd.context()));
        let [a, b] = [0, 1].map(|i| self.set(set(pd.rc(&cqs[i]))).build().unwrap());
        let (ea, eb) = (a.endpoint(), b.endpoint());
        let [cq_a, cq_b] = cqs;
        let (tx, rx) = a.connect(&eb).unwrap();
        let end_a = End { cq: cq_a, tx, rx };
        let (tx, rx) = b.connect(&ea).unwrap();
        (end_a, End { cq: cq_b, tx, rx })
    }
}

fn messages(path: Path) {
    let pd = device().alloc_pd().unwrap();
    let (mut a, mut b) = path.pair(&pd, |q| q);
    for len in [0, 1, 64, 65, 5000] {
        let text: Vec<u8> = (0..len).map(|i| i as u8).collect();
        for imm in [None, Some(0x0102_0304)] {
            b.rx.post(room(&pd, 6000)).unwrap();
            let data = buf(&pd, if len == 0 { b"?" } else { &text });
            let part = data.len().min(len);
            if len == 0 {
                // Nothing at all can only be lent.
                a.tx.scope(&mut a.cq, |s| match imm {
                    None => s.send([]),
                    Some(imm) => s.send_imm([], imm),
                })
                .unwrap()
                .unwrap();
            } else {
                let wr = a.tx.send(data).signaled();
                match imm {
                    None => wr.post(),
                    Some(imm) => wr.imm(imm).post(),
                }
                .unwrap();
                a.sent_one();
            }
            let got = b.received().unwrap();
            assert_eq!((got.bytes(), got.imm()), (&text[..part], imm));
        }
    }
    b.rx.post(room(&pd, 64)).unwrap();
    a.tx.send(buf(&pd, b"inline"))
        .inline()
        .signaled()
        .post()
        .unwrap();
    a.sent_one();
    assert_eq!(b.received().unwrap().bytes(), b"inline");
    b.rx.post(room(&pd, 64)).unwrap();
    a.tx.send_copy(b"copied", buf(&pd, b"?"))
        .signaled()
        .post()
        .unwrap();
    a.sent_one();
    assert_eq!(b.received().unwrap().bytes(), b"copied");
}

fn one_sided(path: Path) {
    let pd = device().alloc_pd().unwrap();
    let all = Access::REMOTE_READ | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
    let (mut a, mut b) = path.pair(&pd, |q| q.access(all));
    let shared = pd.expose(64, all).unwrap();
    a.tx.write(buf(&pd, &[7; 16]), shared.remote())
        .signaled()
        .post()
        .unwrap();
    a.sent_one();
    b.rx.post(room(&pd, 0x10)).unwrap();
    let half = shared.remote().slice(8..16).unwrap();
    a.tx.write(buf(&pd, &[9; 8]), half)
        .imm(5)
        .signaled()
        .post()
        .unwrap();
    a.sent_one();
    let got = b.received().unwrap();
    assert_eq!(
        (got.byte_len(), got.imm(), got.bytes()),
        (8, Some(5), &[][..])
    );
    a.tx.read(room(&pd, 16), shared.remote())
        .signaled()
        .post()
        .unwrap();
    let (read, wc) = a.sent().remove(0);
    assert_eq!(&read[..], [[7; 8], [9; 8]].as_flattened());
    assert_eq!(wc.unwrap().byte_len(), 16);
    let word = shared.remote().slice(32..40).unwrap();
    let old = |a: &mut End| u64::from_ne_bytes(a.sent_one()[..].try_into().unwrap());
    a.tx.fetch_and_add(room(&pd, 8), word, 5)
        .signaled()
        .post()
        .unwrap();
    assert_eq!(old(&mut a), 0);
    a.tx.compare_and_swap(room(&pd, 8), word, 5, 77)
        .signaled()
        .post()
        .unwrap();
    assert_eq!(old(&mut a), 5);
    a.tx.compare_and_swap(room(&pd, 8), word, 5, 78)
        .signaled()
        .fence()
        .post()
        .unwrap();
    assert_eq!(old(&mut a), 77);
}

fn batches_and_scopes(path: Path) {
    let pd = device().alloc_pd().unwrap();
    let (mut a, mut b) = path.pair(&pd, |q| q.send_depth(8));
    let shared = pd
        .expose(16, Access::REMOTE_WRITE | Access::REMOTE_READ)
        .unwrap();
    for _ in 0..4 {
        b.rx.post(room(&pd, 64)).unwrap();
    }
    let mut batch = a.tx.batch();
    batch
        .write(buf(&pd, b"written"), shared.remote())
        .add()
        .unwrap();
    batch.send(buf(&pd, b"1")).add().unwrap();
    batch.send(buf(&pd, b"2")).inline().imm(2).add().unwrap();
    batch
        .read(room(&pd, 7), shared.remote())
        .signaled()
        .add()
        .unwrap();
    batch.post().unwrap();
    let all = a.sent();
    assert_eq!(all.len(), 4);
    assert_eq!(&all[3].0[..], b"written");
    let (header, body) = (buf(&pd, b"head"), buf(&pd, b"body"));
    a.tx.send(buf(&pd, b"own")).signaled().post().unwrap();
    a.tx.scope(&mut a.cq, |s| {
        s.send([header.part(..).unwrap(), body.part(1..).unwrap()])
            .unwrap();
    })
    .unwrap();
    // What was met on the way.
    assert_eq!(&a.sent_one()[..], b"own");
    let mut taken = WcBatch::with_capacity(3);
    let mut texts = Vec::new();
    until("four messages", || {
        b.cq.poll_into(&mut taken).unwrap();
        while let Some(wc) = taken.pop() {
            let got = b.rx.redeem(wc).unwrap().unwrap();
            texts.push(got.bytes().to_vec());
        }
        (texts.len() == 4).then_some(())
    });
    assert_eq!(texts, [&b"1"[..], b"2", b"own", b"headody"]);
}

fn failures(path: Path) {
    let pd = device().alloc_pd().unwrap();
    let (mut a, mut b) = path.pair(&pd, |q| q.send_depth(2));
    let long = room(&pd, a.tx.max_inline() as usize + 1);
    let (kind, _) = refused(a.tx.send(long).inline().post());
    assert!(matches!(kind, PostErrorKind::InlineTooLong { .. }));
    let shared = pd.expose(8, Access::REMOTE_READ).unwrap();
    a.tx.write(buf(&pd, b"no right"), shared.remote())
        .signaled()
        .post()
        .unwrap();
    a.tx.send(buf(&pd, b"flushed")).signaled().post().unwrap();
    let (kind, _) = refused(a.tx.send(buf(&pd, b"full")).post());
    assert!(matches!(kind, PostErrorKind::QueueFull { depth: 2, .. }));
    let (work, result) = a.sent().remove(0);
    let error = result.unwrap_err();
    assert_eq!(
        (&work[..], error.status),
        (&b"no right"[..], WcStatus::REM_ACCESS_ERR)
    );
    assert_eq!(error.qp_num, a.tx.qp_num());
    let (work, result) = a.sent().remove(0);
    assert_eq!(
        (&work[..], result.unwrap_err().status),
        (&b"flushed"[..], WcStatus::WR_FLUSH_ERR)
    );
    b.rx.post(room(&pd, 8)).unwrap();
    b.tx.set_error().unwrap();
    assert_eq!(
        b.received().unwrap_err().error().status,
        WcStatus::WR_FLUSH_ERR
    );
    let (sends, _) = verbs::destroy(a.tx, a.rx).unwrap();
    assert!(sends.is_empty());
}

fn unreliable_and_shared(path: Path) {
    let pd = device().alloc_pd().unwrap();
    let mut cq = path.cq(pd.context());
    let mut shared: SharedRecvQueue<Buf> = pd.shared_recv(4).build().unwrap();
    let ready = path.set(pd.uc(&cq).shared_recv(&shared)).build().unwrap();
    let own = ready.endpoint();
    let mut tx: SendQueue<Buf, Uc> = ready.connect(&own).unwrap();
    shared.post(room(&pd, 8)).unwrap();
    tx.send(buf(&pd, b"uc")).imm(3).post().unwrap();
    let got = shared.redeem(next(&mut cq)).unwrap().unwrap();
    assert_eq!((got.bytes(), got.imm()), (&b"uc"[..], Some(3)));
    let memory = pd.expose(8, Access::REMOTE_WRITE).unwrap();
    tx.write(buf(&pd, b"write"), memory.remote())
        .signaled()
        .post()
        .unwrap();
    let mut done = tx.retire(next(&mut cq)).unwrap();
    assert_eq!(std::iter::from_fn(|| tx.take(&mut done)).count(), 2);
}

fn datagrams(path: Path) {
    let pd = device().alloc_pd().unwrap();
    let mut cq = path.cq(pd.context());
    let ready = path.set(pd.ud(&cq).qkey(9)).build().unwrap();
    let own = ready.endpoint();
    let to = pd.destination(&own, 9).unwrap();
    let (mut tx, mut rx): (SendQueue<Buf, Ud>, RecvQueue<Buf>) = ready.start().unwrap();
    for (text, inline) in [(b"in place", false), (b"as bytes", true)] {
        rx.post(room(&pd, 40 + 8)).unwrap();
        match inline {
            false => tx.send_to(buf(&pd, text), &to).imm(4).post().unwrap(),
            true => tx
                .send_copy_to(text, buf(&pd, b"?"), &to)
                .imm(4)
                .post()
                .unwrap(),
        }
        let got = rx.redeem(next(&mut cq)).unwrap().unwrap();
        assert_eq!((got.bytes(), got.imm()), (&text[..], Some(4)));
        assert_eq!(got.source_qpn(), Some(own.qpn()));
        assert_eq!(got.grh().unwrap().source(), Some(own.gid()));
        assert!(got.sender(&pd).is_ok());
    }
    // One that a scope meets and keeps, and a batch takes up, has lost nothing.
    rx.post(room(&pd, 40 + 8)).unwrap();
    tx.send_to(buf(&pd, b"kept"), &to).post().unwrap();
    let lent = buf(&pd, b"lent");
    rx.post(room(&pd, 40 + 8)).unwrap();
    tx.scope(&mut cq, |s| s.send_to(lent.part(..).unwrap(), &to).unwrap())
        .unwrap();
    let mut batch = WcBatch::with_capacity(8);
    let mut seen = 0;
    until("both", || {
        cq.poll_into(&mut batch).unwrap();
        while let Some(wc) = batch.pop() {
            let got = rx.redeem(wc).unwrap().unwrap();
            assert_eq!(got.source_qpn(), Some(own.qpn()));
            assert!(got.sender(&pd).is_ok());
            seen += 1;
        }
        (seen == 2).then_some(())
    });
}

macro_rules! paths {
    ($($name:ident: $post:literal, $poll:literal;)*) => {$(
        mod $name {
            use super::Path;
            const PATH: Path = Path { post: $post, poll: $poll };
            #[test]
            fn messages() {
                super::messages(PATH);
            }
            #[test]
            fn one_sided() {
                super::one_sided(PATH);
            }
            #[test]
            fn batches_and_scopes() {
                super::batches_and_scopes(PATH);
            }
            #[test]
            fn failures() {
                super::failures(PATH);
            }
            #[test]
            fn unreliable_and_shared() {
                super::unreliable_and_shared(PATH);
            }
            #[test]
            fn datagrams() {
                super::datagrams(PATH);
            }
        }
    )*};
}

paths! {
    classic: false, false;
    posted_by_calls: true, false;
    polled_by_fields: false, true;
    extended: true, true;
}
