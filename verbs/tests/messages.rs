//! Sends and receives.
#![cfg(feature = "soft")]

mod common;

use common::*;
use verbs::{Gather, PostErrorKind, ReceivedBy, Scatter, SgeList, WcBatch, WcStatus};

#[test]
fn a_message_arrives_and_both_buffers_come_back() {
    let pd = device().alloc_pd().unwrap();
    let (mut a, mut b) = pair(&pd);
    b.rx.post(room(&pd, 64)).unwrap();
    a.tx.send(buf(&pd, b"hello")).signaled().post().unwrap();
    assert_eq!(a.tx.outstanding(), 1);

    let got = b.received().unwrap();
    assert_eq!(
        (got.bytes(), got.byte_len(), got.imm(), got.by()),
        (&b"hello"[..], 5, None, ReceivedBy::Send)
    );
    assert_eq!(
        &got.into_inner()[5..],
        [0xee; 59],
        "the rest of the buffer is as it was"
    );
    assert_eq!(&a.sent_one()[..], b"hello");
    assert_eq!((a.tx.outstanding(), b.rx.outstanding()), (0, 0));
}

#[test]
fn messages_arrive_in_order_both_ways() {
    let pd = device().alloc_pd().unwrap();
    let (mut a, mut b) = pair(&pd);
    for round in 0..500u32 {
        for (from, to) in [(0, 1), (1, 0)] {
            let ends = [&mut a, &mut b];
            ends[to].rx.post(room(&pd, 8)).unwrap();
            let bytes = (round * 2 + from as u32).to_le_bytes();
            ends[from]
                .tx
                .send(buf(&pd, &bytes))
                .signaled()
                .post()
                .unwrap();
            assert_eq!(ends[to].received().unwrap().bytes(), bytes);
            ends[from].sent_one();
        }
    }
}

#[test]
fn immediate_data_and_empty_messages() {
    let pd = device().alloc_pd().unwrap();
    let (mut a, mut b) = pair_of::<Nothing, Buf>(&pd, |b| b);
    for _ in 0..2 {
        b.rx.post(room(&pd, 16)).unwrap();
    }
    a.tx.send(Nothing).imm(0xdead_beef).post().unwrap();
    a.tx.send(Nothing).signaled().post().unwrap();
    let first = b.received().unwrap();
    assert_eq!(
        (first.imm(), first.byte_len(), first.bytes()),
        (Some(0xdead_beef), 0, &b""[..])
    );
    let second = b.received().unwrap();
    assert_eq!((second.imm(), second.byte_len()), (None, 0));
    assert_eq!(a.sent().len(), 2);
}

/// A message without segments.
struct Nothing;
// SAFETY: names no memory.
unsafe impl Gather for Nothing {
    fn gather(&self, _: &mut SgeList) {}
}

/// Several buffers as one message.
struct Many(Vec<Buf>);
// SAFETY: owned registered memory, which does not move with the vector.
unsafe impl Gather for Many {
    fn gather(&self, out: &mut SgeList) {
        self.0.iter().for_each(|b| b.gather(out));
    }
}
// SAFETY: as above.
unsafe impl Scatter for Many {
    fn scatter(&mut self, out: &mut SgeList) {
        self.0.iter_mut().for_each(|b| b.scatter(out));
    }
}

#[test]
fn segments_are_gathered_and_scattered() {
    let pd = device().alloc_pd().unwrap();
    let (mut a, mut b) = pair_of::<Many, Many>(&pd, |b| b);
    b.rx.post(Many(vec![room(&pd, 3), room(&pd, 1), room(&pd, 20)]))
        .unwrap();
    let parts = [&b"ab"[..], b"cdef", b"", b"ghi"];
    a.tx.send(Many(parts.iter().map(|p| buf_or_one(&pd, p)).collect()))
        .signaled()
        .post()
        .unwrap();
    let got = b.received().unwrap();
    let want = b"abcdef-ghi";
    assert_eq!(got.byte_len(), want.len() as u32);
    let all = got
        .into_inner()
        .0
        .iter()
        .flat_map(|b| b.to_vec())
        .collect::<Vec<_>>();
    assert_eq!(&all[..want.len()], want);
    assert_eq!(a.sent_one().0.len(), 4);
}

/// Registered memory is never empty: the empty part is a dash.
fn buf_or_one(pd: &verbs::Pd, bytes: &[u8]) -> Buf {
    buf(pd, if bytes.is_empty() { b"-" } else { bytes })
}

#[test]
fn too_many_segments_are_refused_and_come_back() {
    let pd = device().alloc_pd().unwrap();
    let (mut a, mut b) = pair_of::<Many, Many>(&pd, |b| b.max_send_sge(2).max_recv_sge(1));
    let many = |n| Many((0..n).map(|_| buf(&pd, b"x")).collect());
    let (kind, back) = refused(a.tx.send(many(3)).post());
    assert_eq!(
        (kind, back.0.len()),
        (PostErrorKind::TooManySegments { count: 3, max: 2 }, 3)
    );
    let (kind, back) = refused(b.rx.post(many(2)));
    assert_eq!(
        (kind, back.0.len()),
        (PostErrorKind::TooManySegments { count: 2, max: 1 }, 2)
    );
    let (kind, _) = refused(a.tx.send(many(40)).post());
    assert_eq!(kind, PostErrorKind::TooManySegments { count: 40, max: 2 });
    b.rx.post(many(1)).unwrap();
    a.tx.send(many(1)).signaled().post().unwrap();
    assert_eq!(b.received().unwrap().byte_len(), 1);
    a.sent_one();
}

#[test]
fn inline_data_is_checked_against_what_was_granted() {
    let pd = device().alloc_pd().unwrap();
    let (mut a, mut b) = pair_of::<Buf, Buf>(&pd, |b| b.max_inline(100));
    let max = a.tx.max_inline() as usize;
    assert!(max >= 100);
    b.rx.post(room(&pd, 4096)).unwrap();
    a.tx.send(buf(&pd, &vec![7; max]))
        .inline()
        .signaled()
        .post()
        .unwrap();
    assert_eq!(b.received().unwrap().bytes(), vec![7; max]);
    a.sent_one();
    let (kind, back) = refused(a.tx.send(buf(&pd, &vec![7; max + 1])).inline().post());
    assert_eq!(
        kind,
        PostErrorKind::InlineTooLong {
            len: max as u64 + 1,
            max: max as u64
        }
    );
    assert_eq!(back.len(), max + 1);
}

#[test]
fn a_message_longer_than_the_receive_fails_on_both_sides() {
    let pd = device().alloc_pd().unwrap();
    let (mut a, mut b) = pair(&pd);
    b.rx.post(room(&pd, 4)).unwrap();
    a.tx.send(buf(&pd, b"hello")).signaled().post().unwrap();
    // InfiniBand Architecture Specification, volume 1, chapter 11, as soft0 has it: local length error, and the sender learns of an
    // invalid request. Soft-RoCE reports its inability to go on instead, at both ends.
    let (here, there) = if is_rxe(pd.context()) {
        (WcStatus::LOC_QP_OP_ERR, WcStatus::REM_OP_ERR)
    } else {
        (WcStatus::LOC_LEN_ERR, WcStatus::REM_INV_REQ_ERR)
    };
    let e = b.received().unwrap_err();
    assert_eq!(e.error().status, here);
    assert_eq!(e.into_inner().len(), 4);
    let (back, result) = a.sent().remove(0);
    assert_eq!(&back[..], b"hello");
    assert_eq!(result.unwrap_err().status, there);
}

#[test]
fn batches_take_what_fits_and_the_rest_stays() {
    let pd = device().alloc_pd().unwrap();
    let (mut a, mut b) = pair(&pd);
    for i in 0..50u8 {
        b.rx.post(room(&pd, 4)).unwrap();
        a.tx.send(buf(&pd, &[i])).signaled().post().unwrap();
    }
    let mut batch = WcBatch::with_capacity(7);
    let mut want = 0;
    until("50 messages", || {
        let (room, before) = (7 - batch.len(), batch.len());
        let got = b.cq.poll_into(&mut batch).unwrap();
        assert!(got <= room && batch.len() == before + got);
        // One stays in the batch, so that it is filled up while not empty.
        while batch.len() > 1 || (want == 49 && !batch.is_empty()) {
            let msg = b.rx.redeem(batch.pop().unwrap()).unwrap().unwrap();
            assert_eq!(msg.bytes(), [want]);
            want += 1;
        }
        (want == 50).then_some(())
    });
    assert_eq!(b.rx.outstanding(), 0);
}

#[test]
fn a_connection_to_itself() {
    let ctx = device();
    let pd = ctx.alloc_pd().unwrap();
    let cq = ctx.cq(128).build().unwrap();
    let ready = pd.rc(&cq).build().unwrap();
    let own = ready.endpoint();
    let (tx, rx) = ready.connect::<Buf, Buf>(&own).unwrap();
    let mut me = End { cq, tx, rx };
    me.rx.post(room(&pd, 8)).unwrap();
    me.tx.send(buf(&pd, b"me")).post().unwrap();
    assert_eq!(me.received().unwrap().bytes(), b"me");
}

#[test]
fn queues_move_to_other_threads() {
    let pd = device().alloc_pd().unwrap();
    let (mut a, mut b) = pair(&pd);
    let count = 2000u32;
    for _ in 0..32 {
        b.rx.post(room(&pd, 8)).unwrap();
    }
    let sender = std::thread::spawn({
        let pd = pd.clone();
        move || {
            for i in 0..count {
                a.tx.send(buf(&pd, &i.to_le_bytes()))
                    .signaled()
                    .post()
                    .unwrap();
                a.sent_one();
            }
            a
        }
    });
    for i in 0..count {
        let got = b.received().unwrap();
        assert_eq!(got.bytes(), i.to_le_bytes());
        b.rx.post(got.into_inner()).unwrap();
    }
    sender.join().unwrap();
}
