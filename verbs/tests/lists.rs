//! Lists of segments and of inline data on extended queue pairs: they are sent as they are, or, where the device's library is known to send
//! something else, there are none.
#![cfg(feature = "soft")]

mod common;

use common::*;
use verbs::{Error, PostErrorKind, RcBuilder};

/// Soft-RoCE, by the names that its devices have where these tests run.
fn soft_roce(pd: &verbs::Pd) -> bool {
    pd.context().device_name().starts_with("rxe")
}

/// An extended queue pair that is its own peer.
fn own(pd: &verbs::Pd, set: impl Fn(RcBuilder) -> RcBuilder) -> Result<End, Error> {
    let cq = pd.context().cq(64).build()?;
    let builder = pd.rc(&cq).send_depth(16).recv_depth(16);
    let ready = set(builder.extended()).build()?;
    let own = ready.endpoint();
    let (tx, rx) = ready.connect(&own).unwrap();
    Ok(End { cq, tx, rx })
}

/// The message that the next completion but the sender's is of.
fn arrived(end: &mut End) -> Vec<u8> {
    let mut bytes = None;
    while bytes.is_none() || end.tx.outstanding() > 0 {
        let wc = next(&mut end.cq);
        if wc.queue() == end.rx.id() {
            let got = end.rx.redeem(wc).unwrap().unwrap();
            bytes = Some(got.bytes().to_vec());
            continue;
        }
        let mut done = end.tx.retire(wc).unwrap();
        while let Some((_, result)) = end.tx.take(&mut done) {
            result.unwrap();
        }
    }
    bytes.unwrap()
}

#[test]
fn segments_of_different_lengths_arrive_or_are_refused() {
    let pd = device().alloc_pd().unwrap();
    let built = own(&pd, |b| b.max_send_sge(3));
    if soft_roce(&pd) {
        let e = built.err().expect("must be refused");
        assert!(matches!(e, Error::Unsupported { .. }), "{e}");
        for part in ["rxe", "max_send_sge(1)", "without extended()"] {
            assert!(e.to_string().contains(part), "{e}");
        }
        return;
    }
    let mut end = built.unwrap();
    let data = buf(&pd, b"abcdef");
    let parts = [1..3, 0..1, 3..6].map(|range| data.part(range).unwrap());
    end.rx.post(room(&pd, 16)).unwrap();
    let End { cq, tx, .. } = &mut end;
    tx.scope(cq, |s| s.send(parts).unwrap()).unwrap();
    assert_eq!(arrived(&mut end), b"bcadef");
}

#[test]
fn one_segment_arrives_whole_copied_or_not() {
    let pd = device().alloc_pd().unwrap();
    let mut end = own(&pd, |b| b).unwrap();
    for text in [&b"a"[..], b"abcdef", &[7; 64]] {
        for inline in [false, true] {
            end.rx.post(room(&pd, 64)).unwrap();
            let wr = end.tx.send(buf(&pd, text)).signaled();
            match inline {
                true => wr.inline(),
                false => wr,
            }
            .post()
            .unwrap();
            assert_eq!(arrived(&mut end), text, "inline: {inline}");
        }
    }
}

#[test]
fn without_a_word_about_segments_no_list_is_sent_wrong() {
    let pd = device().alloc_pd().unwrap();
    let mut end = own(&pd, |b| b).unwrap();
    let data = buf(&pd, b"abc");
    let two = [data.part(..2).unwrap(), data.part(2..).unwrap()];
    end.rx.post(room(&pd, 16)).unwrap();
    let End { cq, tx, .. } = &mut end;
    let posted = tx.scope(cq, |s| s.send(two)).unwrap();
    if soft_roce(&pd) {
        let many = PostErrorKind::TooManySegments { count: 2, max: 1 };
        assert_eq!(posted, Err(many));
    } else {
        posted.unwrap();
        assert_eq!(arrived(&mut end), b"abc");
    }
}
