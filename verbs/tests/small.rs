//! What makes small messages cheap: bytes copied while they are posted, receives posted together, buffers dropped where they are,
//! completions left as the device wrote them.
#![cfg(feature = "soft")]

mod common;

use std::sync::Arc;

use common::*;
use verbs::{Access, PostErrorKind, Scatter, Sge, SgeList, WcBatch, WcStatus};

/// What a queue holds in place of bytes that were copied.
#[derive(Debug, Clone, PartialEq)]
struct Token(u32, Arc<()>);

#[test]
fn borrowed_bytes_are_sent_and_written() {
    let pd = device().alloc_pd().unwrap();
    let access = Access::REMOTE_WRITE;
    let alive = Arc::new(());
    let token = |n| Token(n, alive.clone());
    let (mut a, mut b) = pair_of::<Token, Buf>(&pd, |q| q.access(access).max_inline(64));
    let memory = pd.expose(64, access).unwrap();
    for _ in 0..3 {
        b.rx.post(room(&pd, 64)).unwrap();
    }
    let mut bytes = *b"first";
    a.tx.send_copy(&bytes, token(1)).post().unwrap();
    // Copied: the memory is free again.
    bytes.fill(0);
    let place = memory.remote().slice(8..64).unwrap();
    let wr = a.tx.write_copy(b"second", token(2), place).imm(7);
    wr.post().unwrap();
    let wr = a.tx.send_copy(b"", token(3)).imm(8).solicited();
    wr.signaled().post().unwrap();
    assert_eq!(b.received().unwrap().bytes(), b"first");
    let second = b.received().unwrap();
    assert_eq!((second.imm(), second.byte_len()), (Some(7), 6));
    let mut there = [0; 6];
    memory.read_at(8, &mut there).unwrap();
    assert_eq!(&there, b"second");
    assert_eq!(b.received().unwrap().imm(), Some(8));
    for (n, (back, result)) in a.sent().into_iter().enumerate() {
        result.unwrap();
        assert_eq!(back, token(n as u32 + 1));
    }

    // Refused, and given back.
    let (kind, back) = refused(a.tx.send_copy(&[1; 3000], token(4)).post());
    assert!(matches!(
        kind,
        PostErrorKind::InlineTooLong { len: 3000, .. }
    ));
    assert_eq!(back, token(4));
    let short = memory.remote().slice(0..2).unwrap();
    let (kind, _) = refused(a.tx.write_copy(b"abc", token(5), short).post());
    assert_eq!(kind, PostErrorKind::RemoteTooSmall { len: 3, remote: 2 });
    drop((back, a, b));
    assert_eq!(Arc::strong_count(&alive), 1, "all are dropped");
}

/// A receive of so many segments of one byte.
#[derive(Debug)]
struct Pieces(Buf, usize);

// SAFETY: as the buffer, whose bytes the segments are, each once.
unsafe impl Scatter for Pieces {
    fn scatter(&mut self, out: &mut SgeList) {
        let mut whole = SgeList::new();
        self.0.scatter(&mut whole);
        let Sge { addr, lkey, .. } = whole.as_slice()[0];
        for at in 0..self.1 as u64 {
            out.push(Sge {
                addr: addr + at,
                len: 1,
                lkey,
            });
        }
    }
}

#[test]
fn receives_are_posted_together_in_order() {
    let pd = device().alloc_pd().unwrap();
    let (mut a, mut b) =
        pair_of::<Buf, Pieces>(&pd, |q| q.recv_depth(60).max_recv_sge(3).send_depth(60));
    // More than one chain takes, of requests and of segments.
    let pieces = |n: u8| Pieces(buf(&pd, &[n; 4]), 1 + usize::from(n % 3));
    assert_eq!(b.rx.post_many((0..50).map(pieces)).unwrap(), 50);
    assert_eq!(b.rx.post_many(None::<Pieces>).unwrap(), 0);
    for n in 0..50u8 {
        let len = 1 + usize::from(n % 3);
        let bytes = vec![100 + n; len];
        let wr = a.tx.send(buf(&pd, &bytes));
        wr.signaled().post().unwrap();
        let received = b.received().unwrap();
        let (want, got) = ([100 + n; 4], received.into_inner());
        assert_eq!(got.0[..len], want[..len]);
        assert_eq!(got.0[len..], [n; 4][len..]);
        a.sent_one();
    }
    // One that is too much: those before it are posted.
    let mut taken = 0;
    let more = (0..5).map(|n| {
        taken += 1;
        Pieces(buf(&pd, &[n; 8]), if n == 3 { 5 } else { 1 })
    });
    let error = b.rx.post_many(more).unwrap_err();
    assert_eq!((error.posted(), taken), (3, 4));
    assert_eq!(
        error.kind(),
        PostErrorKind::TooManySegments { count: 5, max: 3 }
    );
    assert!(error.to_string().contains("only 3 receives"));
    let rest = error.into_inner();
    assert_eq!(rest.iter().map(|p| p.0[0]).collect::<Vec<_>>(), [3]);
    // As many as there is room for.
    let error = b.rx.post_many((0..80).map(pieces)).unwrap_err();
    assert_eq!((error.posted(), b.rx.outstanding()), (57, 60));
    assert!(matches!(error.kind(), PostErrorKind::QueueFull { .. }));
    assert_eq!(error.into_inner().len(), 1);
}

#[test]
fn what_nobody_wants_back_is_dropped_where_it_is() {
    let pd = device().alloc_pd().unwrap();
    let alive = Arc::new(());
    let token = |n| Token(n, alive.clone());
    let (mut a, mut b) = pair_of::<Token, Buf>(&pd, |q| q.max_inline(64));
    for _ in 0..6 {
        b.rx.post(room(&pd, 8)).unwrap();
    }
    for n in 0..6 {
        let wr = a.tx.send_copy(b"x", token(n));
        if n == 4 { wr.signaled() } else { wr }.post().unwrap();
    }
    let wc = next(&mut a.cq);
    let mut done = a.tx.retire(wc).unwrap();
    a.tx.discard(&done, |token| token.0 != 3);
    assert_eq!(Arc::strong_count(&alive), 1 + 3, "three are gone");
    assert_eq!(a.tx.take(&mut done).unwrap().0.0, 3);
    a.tx.discard(&done, |_| true);
    assert_eq!(Arc::strong_count(&alive), 1 + 1, "the last is in flight");
    assert!(a.tx.take(&mut done).is_none());
    a.tx.discard(&done, |_| true);
    assert_eq!(a.tx.outstanding(), 1);

    // A failure is not dropped.
    for _ in 0..6 {
        let _ = b.received().unwrap();
    }
    drop(b);
    let wr = a.tx.send_copy(b"x", token(6)).signaled();
    wr.post().unwrap();
    let wc = next(&mut a.cq);
    assert_eq!(wc.status(), WcStatus::RETRY_EXC_ERR);
    let mut done = a.tx.retire(wc).unwrap();
    a.tx.discard(&done, |_| true);
    let (token, result) = a.tx.take(&mut done).unwrap();
    assert_eq!((token.0, result.is_err()), (6, true));
}

#[test]
fn a_batch_keeps_what_was_not_taken() {
    let pd = device().alloc_pd().unwrap();
    let (mut a, mut b) = pair(&pd);
    let mut batch = WcBatch::with_capacity(3);
    for n in 0..8 {
        b.rx.post(room(&pd, 8)).unwrap();
        a.tx.send(buf(&pd, &[n])).signaled().post().unwrap();
        a.sent_one();
    }
    let mut seen = Vec::new();
    let mut take = |batch: &mut WcBatch, b: &mut End, count| {
        for _ in 0..count {
            let wc = batch.pop().unwrap();
            seen.push(b.rx.redeem(wc).unwrap().unwrap().bytes()[0]);
        }
    };
    let fill = |batch: &mut WcBatch, b: &mut End, want: usize| {
        let mut come = 0;
        until("completions", || {
            come += b.cq.poll_into(batch).unwrap();
            (come >= want).then_some(())
        });
        assert_eq!(come, want);
    };
    fill(&mut batch, &mut b, 3);
    take(&mut batch, &mut b, 1);
    fill(&mut batch, &mut b, 1);
    assert_eq!((batch.len(), batch.capacity()), (3, 3));
    take(&mut batch, &mut b, 3);
    assert!(batch.is_empty() && batch.pop().is_none());
    fill(&mut batch, &mut b, 3);
    take(&mut batch, &mut b, 3);
    fill(&mut batch, &mut b, 1);
    take(&mut batch, &mut b, 1);
    assert_eq!(seen, (0..8).collect::<Vec<_>>());
}

#[test]
fn receives_whose_iterator_panics_stay_in_the_queue_as_lost() {
    let pd = device().alloc_pd().unwrap();
    let (mut a, mut b) = pair(&pd);
    let more = (0..3u8).map(|n| {
        assert!(n < 2, "on purpose");
        buf(&pd, &[n; 4])
    });
    let posting = std::panic::AssertUnwindSafe(|| b.rx.post_many(more));
    assert!(std::panic::catch_unwind(posting).is_err());
    assert_eq!((b.rx.outstanding(), b.rx.take_lost().is_some()), (2, false));
    // They were not posted: the message is for the next.
    b.rx.post(room(&pd, 4)).unwrap();
    a.tx.send(buf(&pd, b"here")).signaled().post().unwrap();
    assert_eq!(b.received().unwrap().bytes(), b"here");
    a.sent_one();
    let lost: Vec<_> = std::iter::from_fn(|| b.rx.take_lost()).collect();
    assert_eq!(lost.iter().map(|b| b[0]).collect::<Vec<_>>(), [0, 1]);
    assert_eq!(b.rx.free_slots(), b.rx.depth());
}
