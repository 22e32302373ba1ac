//! Datagrams: what arrives, with a way back, and what does not, without a word.
#![cfg(feature = "soft")]

mod common;

use common::*;
use verbs::{
    Cq, Destination, Endpoint, Error, Grh, Pd, PostErrorKind, RecvQueue, SendQueue,
    SharedRecvQueue, Ud, UdBuilder, WcStatus,
};

const QKEY: u32 = 0x1234;
const HEADER: usize = Grh::LEN as usize;

struct UdEnd {
    cq: Cq,
    tx: SendQueue<Buf, Ud>,
    rx: RecvQueue<Buf>,
    endpoint: Endpoint,
}

fn end_with(pd: &Pd, set: impl FnOnce(UdBuilder) -> UdBuilder) -> UdEnd {
    let cq = pd.context().cq(256).build().unwrap();
    let ready = set(pd.ud(&cq).qkey(QKEY)).build().unwrap();
    let endpoint = ready.endpoint();
    let (tx, rx) = ready.start().unwrap();
    UdEnd {
        cq,
        tx,
        rx,
        endpoint,
    }
}

fn end(pd: &Pd) -> UdEnd {
    end_with(pd, |b| b)
}

impl UdEnd {
    fn at(&self, pd: &Pd) -> Destination {
        pd.destination(&self.endpoint, QKEY).unwrap()
    }

    fn send(&mut self, data: Buf, to: &Destination) -> Buf {
        self.tx.send_to(data, to).signaled().post().unwrap();
        self.sent()
    }

    fn sent(&mut self) -> Buf {
        let wc = next(&mut self.cq);
        let mut done = self.tx.retire(wc).unwrap();
        let (buffer, result) = self.tx.take(&mut done).unwrap();
        result.unwrap();
        buffer
    }

    fn received(&mut self) -> verbs::Received<Buf> {
        let wc = next(&mut self.cq);
        self.rx.redeem(wc).unwrap().unwrap()
    }
}

#[test]
fn a_message_arrives_behind_its_header_and_finds_the_way_back() {
    let pd = device().alloc_pd().unwrap();
    let (mut a, mut b) = (end(&pd), end(&pd));
    let (to_b, mtu) = (b.at(&pd), pd.context().port().mtu.bytes() as usize);
    for len in [1, 8, 300, mtu] {
        let text: Vec<u8> = (0..len).map(|i| i as u8).collect();
        b.rx.post(room(&pd, HEADER + mtu)).unwrap();
        a.tx.send_to(buf(&pd, &text), &to_b)
            .imm(len as u32)
            .signaled()
            .post()
            .unwrap();
        a.sent();
        let got = b.received();
        assert_eq!(got.bytes(), text);
        assert_eq!((got.byte_len(), got.header_len()), (len as u32, Grh::LEN));
        assert_eq!(got.imm(), Some(len as u32));
        assert_eq!(got.source_qpn(), Some(a.endpoint.qpn()));
        let grh = got.grh().unwrap();
        assert_eq!(grh.source(), Some(a.endpoint.gid()));
        assert_eq!(grh.destination(), Some(b.endpoint.gid()));
        assert_eq!(grh.as_bytes()[..], got.get_ref()[..HEADER]);

        let back = got.sender(&pd).unwrap().at(got.source_qpn().unwrap(), QKEY);
        a.rx.post(room(&pd, HEADER + 8)).unwrap();
        b.send(buf(&pd, b"back"), &back);
        assert_eq!(a.received().bytes(), b"back");
    }
}

#[test]
fn inline_batches_and_scopes_take_addresses() {
    let pd = device().alloc_pd().unwrap();
    let (mut a, mut b, mut c) = (end(&pd), end(&pd), end(&pd));
    let (to_b, to_c) = (b.at(&pd), c.at(&pd));
    for rx in [&mut b.rx, &mut c.rx] {
        for _ in 0..4 {
            rx.post(room(&pd, HEADER + 8)).unwrap();
        }
    }
    a.tx.send_to(buf(&pd, b"inline"), &to_b)
        .inline()
        .post()
        .unwrap();
    let mut batch = a.tx.batch();
    batch.send_to(buf(&pd, b"1"), &to_c).add().unwrap();
    batch
        .send_to(buf(&pd, b"2"), &to_b)
        .signaled()
        .add()
        .unwrap();
    batch.post().unwrap();
    let wc = next(&mut a.cq);
    let mut done = a.tx.retire(wc).unwrap();
    assert_eq!(
        std::iter::from_fn(|| a.tx.take(&mut done)).count(),
        3,
        "all that the last implies"
    );
    let token = buf(&pd, b"not this");
    a.tx.send_copy_to(b"copied", token, &to_b)
        .signaled()
        .post()
        .unwrap();
    assert_eq!(&a.sent()[..], b"not this");
    let lent = buf(&pd, b"lent");
    a.tx.scope(&mut a.cq, |s| {
        s.send_to([lent.part(..).unwrap()], &to_b).unwrap();
        s.send_to([lent.part(1..).unwrap()], &to_c).unwrap();
    })
    .unwrap();
    for (end, texts) in [
        (
            &mut b,
            &[b"inline".as_slice(), b"2", b"copied", b"lent"][..],
        ),
        (&mut c, &[b"1", b"ent"]),
    ] {
        for text in texts {
            assert_eq!(end.received().bytes(), *text);
        }
    }
}

#[test]
fn what_has_the_wrong_key_or_no_receive_is_dropped_and_both_go_on() {
    let pd = device().alloc_pd().unwrap();
    let (mut a, mut b) = (end(&pd), end(&pd));
    let right = b.at(&pd);
    a.send(buf(&pd, b"no receive"), &right);
    b.rx.post(room(&pd, HEADER + 4)).unwrap();
    let wrong = right.handle().at(right.qpn(), QKEY ^ 1);
    assert_eq!((wrong.qpn(), wrong.qkey()), (b.endpoint.qpn(), QKEY ^ 1));
    a.send(buf(&pd, b"key"), &wrong);
    let nobody = right.handle().at(0xff_fffe, QKEY);
    a.send(buf(&pd, b"who"), &nobody);
    assert!(b.cq.poll().unwrap().is_none());
    a.send(buf(&pd, b"fits"), &right);
    assert_eq!(b.received().bytes(), b"fits");
}

#[test]
fn a_receive_that_is_too_short_fails_and_ends_its_queue_pair() {
    let pd = device().alloc_pd().unwrap();
    // Not even the header fits; all but the last byte.
    for len in [HEADER - 1, HEADER + 3] {
        let (mut a, mut b) = (end(&pd), end(&pd));
        let to = b.at(&pd);
        b.rx.post(room(&pd, len)).unwrap();
        b.rx.post(room(&pd, 100)).unwrap();
        a.send(buf(&pd, b"long"), &to);
        let wc = next(&mut b.cq);
        let failed = b.rx.redeem(wc).unwrap().unwrap_err();
        let status = failed.error().status;
        let rxe = is_rxe(pd.context()) && status == WcStatus::LOC_QP_OP_ERR;
        assert!(status == WcStatus::LOC_LEN_ERR || rxe, "{status:?}");
        let wc = next(&mut b.cq);
        let flushed = b.rx.redeem(wc).unwrap().unwrap_err();
        assert!(flushed.error().is_flush());
    }
}

#[test]
fn what_cannot_go_is_refused_before_it_is_posted() {
    let ctx = device();
    let (pd, other) = (ctx.alloc_pd().unwrap(), ctx.alloc_pd().unwrap());
    let mut cq = ctx.cq(256).build().unwrap();
    let (setup, mut tx, _rx) = pd
        .ud(&cq)
        .send_depth(1)
        .build()
        .unwrap()
        .split::<Buf, Buf>();
    let to = pd.destination(&setup.endpoint(), QKEY).unwrap();
    let (kind, work) = refused(tx.send_to(buf(&pd, b"early"), &to).post());
    assert_eq!(
        (kind, &work[..]),
        (PostErrorKind::NotConnected, &b"early"[..])
    );
    setup.start().unwrap();

    let mtu = to.handle().mtu().bytes();
    let long = room(&pd, mtu as usize + 1);
    let (kind, long) = refused(tx.send_to(long, &to).post());
    let len = u64::from(mtu) + 1;
    assert_eq!(kind, PostErrorKind::LongerThanMtu { len, mtu });
    assert!(kind.to_string().contains("one packet"), "{kind}");
    let (kind, long) = refused(tx.batch().send_to(long, &to).add());
    assert_eq!(kind, PostErrorKind::LongerThanMtu { len, mtu });
    tx.scope(&mut cq, |s| {
        let kind = s.send_to([long.part(..).unwrap()], &to).unwrap_err();
        assert_eq!(kind, PostErrorKind::LongerThanMtu { len, mtu });
    })
    .unwrap();

    let foreign = other.destination(&end(&pd).endpoint, QKEY).unwrap();
    let (kind, _) = refused(tx.send_to(buf(&pd, b"x"), &foreign).post());
    assert_eq!(kind, PostErrorKind::OtherDomain);
    let (kind, _) = refused(tx.batch().send_to(buf(&pd, b"x"), &foreign).add());
    assert_eq!(kind, PostErrorKind::OtherDomain);
    let lent = buf(&pd, b"x");
    tx.scope(&mut cq, |s| {
        let kind = s.send_to([lent.part(..).unwrap()], &foreign).unwrap_err();
        assert_eq!(kind, PostErrorKind::OtherDomain);
    })
    .unwrap();

    tx.send_to(buf(&pd, b"one"), &to).post().unwrap();
    let (kind, _) = refused(tx.send_to(buf(&pd, b"two"), &to).post());
    assert!(matches!(kind, PostErrorKind::QueueFull { depth: 1, .. }));
}

#[test]
fn a_port_that_is_not_there_has_no_address() {
    let pd = device().alloc_pd().unwrap();
    let nowhere = verbs::Gid(
        "2001:db8::77"
            .parse::<std::net::Ipv6Addr>()
            .unwrap()
            .octets(),
    );
    let e = pd.address_of(nowhere).unwrap_err();
    assert!(e.raw_os_error().is_some(), "{e}");
    for part in ["ibv_create_ah", "2001:db8::77"] {
        assert!(e.to_string().contains(part), "{e}");
    }
    let e = pd.address_of(verbs::Gid::default()).unwrap_err();
    assert!(e.to_string().contains("the peer has no GID"), "{e}");
    // A handle keeps its domain, and is equal to no other.
    let handle = pd.address_of(pd.context().port().gid).unwrap();
    assert_eq!(handle.pd(), &pd);
}

#[test]
fn messages_of_connections_have_no_sender() {
    let pd = device().alloc_pd().unwrap();
    let (mut a, mut b) = pair(&pd);
    b.rx.post(room(&pd, 64)).unwrap();
    a.tx.send(buf(&pd, &[0x60; 64])).post().unwrap();
    let got = b.received().unwrap();
    assert_eq!((got.header_len(), got.source_qpn()), (0, None));
    assert!(got.grh().is_none());
    assert!(matches!(got.sender(&pd), Err(Error::NoSource { .. })));
    assert_eq!(got.bytes(), [0x60; 64]);
}

#[test]
fn handles_live_as_long_as_work_needs_them() {
    let pd = device().alloc_pd().unwrap();
    let (mut a, mut b) = (end_with(&pd, |q| q.send_depth(4)), end(&pd));
    for round in 0..20u8 {
        b.rx.post(room(&pd, HEADER + 8)).unwrap();
        // A new one each time, which is dropped while the message may still be on its way.
        let to = b.at(&pd);
        let work = a.tx.send_to(buf(&pd, &[round]), &to).signaled();
        work.post().unwrap();
        drop(to);
        a.sent();
        assert_eq!(b.received().bytes(), [round]);
    }
    // With the send queue gone too, and the other half there.
    let to = b.at(&pd);
    for _ in 0..4 {
        b.rx.post(room(&pd, HEADER + 8)).unwrap();
        a.tx.send_to(buf(&pd, b"last"), &to).post().unwrap();
    }
    drop((to, a.tx));
    for _ in 0..4 {
        assert_eq!(b.received().bytes(), b"last");
    }
    drop((a.rx, a.cq, b));
    // Nothing holds the domain any more, else the device would be busy.
    drop(pd);
}

#[test]
fn a_shared_queue_serves_datagrams_or_connections() {
    let pd = device().alloc_pd().unwrap();
    let cq = || pd.context().cq(256).build().unwrap();
    let (mut cq_b, mut cq_c) = (cq(), cq());
    let mut shared: SharedRecvQueue<Buf> = pd.shared_recv(8).datagrams().build().unwrap();
    let [b, c] =
        [&cq_b, &cq_c].map(|cq| pd.ud(cq).qkey(QKEY).shared_recv(&shared).build().unwrap());
    let to = [&b, &c].map(|ready| pd.destination(&ready.endpoint(), QKEY).unwrap());
    let (tx_b, tx_c) = (b.start::<Buf>().unwrap(), c.start::<Buf>().unwrap());
    let mut a = end(&pd);
    for (cq, to, text) in [(&mut cq_b, &to[0], b"to b"), (&mut cq_c, &to[1], b"to c")] {
        shared.post(room(&pd, HEADER + 8)).unwrap();
        a.send(buf(&pd, text), to);
        let wc = next(cq);
        assert_eq!(wc.queue(), shared.id());
        let got = shared.redeem(wc).unwrap().unwrap();
        assert_eq!(got.bytes(), text);
        assert_eq!(got.source_qpn(), Some(a.endpoint.qpn()));
        assert!(got.grh().is_some());
    }
    drop((tx_b, tx_c));
    let refused = pd.rc(&cq_b).shared_recv(&shared).build().unwrap_err();
    assert!(matches!(refused, Error::OtherService { datagrams: false }));
    let plain = pd.shared_recv(8).build::<Buf>().unwrap();
    let refused = pd.ud(&cq_b).shared_recv(&plain).build().unwrap_err();
    assert!(matches!(refused, Error::OtherService { datagrams: true }));
    assert!(refused.to_string().contains("SharedRecvBuilder::datagrams"));
}

#[test]
fn the_error_state_gives_everything_back() {
    let pd = device().alloc_pd().unwrap();
    let (mut a, b) = (end(&pd), end(&pd));
    a.rx.post(room(&pd, 64)).unwrap();
    a.tx.send_to(buf(&pd, b"sent"), &b.at(&pd)).post().unwrap();
    a.tx.set_error().unwrap();
    let (sends, receives) = verbs::destroy(a.tx, a.rx).unwrap();
    assert_eq!((sends.len(), receives.len()), (1, 1));
}

const PEER: &str = "VERBS_TEST_PEER";

#[test]
#[ignore = "the second process of the test below"]
fn second_process() {
    let hex = std::env::var(PEER).unwrap();
    let bytes: Vec<u8> = (0..hex.len())
        .step_by(2)
        .map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap())
        .collect();
    let peer = Endpoint::from_bytes(&bytes).unwrap();
    let pd = device().alloc_pd().unwrap();
    let mut own = end(&pd);
    own.rx.post(room(&pd, HEADER + 16)).unwrap();
    let to = pd.destination(&peer, QKEY).unwrap();
    own.send(buf(&pd, b"from afar"), &to);
    assert_eq!(own.received().bytes(), b"heard you");
}

#[test]
fn between_processes() {
    let pd = device().alloc_pd().unwrap();
    let mut own = end(&pd);
    own.rx.post(room(&pd, HEADER + 16)).unwrap();
    let hex: String = own
        .endpoint
        .to_bytes()
        .iter()
        .map(|b| format!("{b:02x}"))
        .collect();
    let mut second = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "second_process", "--ignored"])
        .env(PEER, hex)
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap();
    let got = own.received();
    assert_eq!(got.bytes(), b"from afar");
    let qpn = got.source_qpn().unwrap();
    let back = got.sender(&pd).unwrap().at(qpn, QKEY);
    own.send(buf(&pd, b"heard you"), &back);
    assert!(second.wait().unwrap().success());
}
