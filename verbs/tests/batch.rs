//! Several work requests posted together.
#![cfg(feature = "soft")]

mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use common::*;
use verbs::{Access, Pd, PostErrorKind, ReceivedBy, SendQueue};

/// Counts what each thread allocates.
struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<usize> = const { Cell::new(0) };
}

// SAFETY: passed on.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: the caller's contract.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: the caller's contract.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

#[test]
fn all_kinds_of_work_in_one_batch_are_done_in_order() {
    let pd = device().alloc_pd().unwrap();
    let access = Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC;
    let (mut a, mut b) = pair_of::<Buf, Buf>(&pd, |q| q.access(access));
    let shared = pd.expose(64, access).unwrap();
    for _ in 0..3 {
        b.rx.post(room(&pd, 16)).unwrap();
    }
    let (word, rest) = (
        shared.remote().slice(..8).unwrap(),
        shared.remote().slice(8..).unwrap(),
    );
    let mut batch = a.tx.batch();
    assert!(batch.is_empty());
    batch.write(buf(&pd, &[7; 8]), word).add().unwrap();
    batch.send(buf(&pd, b"one")).add().unwrap();
    batch.fetch_and_add(room(&pd, 8), word, 1).add().unwrap();
    batch.write(buf(&pd, b"tail"), rest).imm(9).add().unwrap();
    batch
        .compare_and_swap(room(&pd, 8), word, 0x0707_0707_0707_0708, 1)
        .add()
        .unwrap();
    batch
        .read(room(&pd, 12), shared.remote())
        .fence()
        .add()
        .unwrap();
    batch
        .send(buf(&pd, b"last"))
        .inline()
        .signaled()
        .add()
        .unwrap();
    assert_eq!(batch.len(), 7);
    batch.post().unwrap();
    assert_eq!((a.tx.outstanding(), a.tx.free_slots()), (7, 57));

    assert_eq!(b.received().unwrap().bytes(), b"one");
    let written = b.received().unwrap();
    assert_eq!(
        (written.by(), written.imm(), written.byte_len()),
        (ReceivedBy::WriteWithImm, Some(9), 4)
    );
    assert_eq!(b.received().unwrap().bytes(), b"last");
    let done = a.sent();
    let bytes: Vec<&[u8]> = done
        .iter()
        .map(|(buffer, result)| {
            result.unwrap();
            &buffer[..]
        })
        .collect();
    let swapped = 0x0707_0707_0707_0708u64.to_ne_bytes();
    assert_eq!(bytes[..2], [&[7; 8][..], b"one"]);
    assert_eq!(bytes[2..5], [&[7; 8][..], b"tail", &swapped]);
    let mut read = [0; 12];
    read[..8].copy_from_slice(&1u64.to_ne_bytes());
    read[8..].copy_from_slice(b"tail");
    assert_eq!(bytes[5..], [&read[..], b"last"]);
}

/// What is to be copied is copied when it is added: its memory can be used again, and grows in the meantime.
#[test]
fn bytes_are_copied_when_they_are_added() {
    const COUNT: u8 = 30;
    let pd = device().alloc_pd().unwrap();
    let access = Access::REMOTE_WRITE;
    let (mut a, mut b) = pair_of::<Buf, Buf>(&pd, |q| q.access(access).max_inline(64));
    let shared = pd.expose(64 * usize::from(COUNT), access).unwrap();
    // Devices grant more than was asked for.
    let too_long = vec![1; a.tx.max_inline() as usize + 1];
    for round in 0..3 {
        for _ in 0..COUNT {
            b.rx.post(room(&pd, 64)).unwrap();
        }
        let mut batch = a.tx.batch();
        let mut bytes = [0; 40];
        // Nothing of this one stays.
        drop(batch.send_copy(&[99; 64], buf(&pd, b"dropped")));
        for n in 0..COUNT {
            bytes.fill(n + round);
            let token = buf(&pd, &[n]);
            if n % 2 == 0 {
                let wr = batch.send_copy(&bytes, token);
                if n + 2 >= COUNT { wr.signaled() } else { wr }
                    .add()
                    .unwrap();
            } else {
                let place = shared
                    .remote()
                    .slice(64 * u64::from(n)..64 * u64::from(n) + 40);
                let wr = batch
                    .write_copy(&bytes, token, place.unwrap())
                    .imm(n.into());
                if n + 1 == COUNT { wr.signaled() } else { wr }
                    .add()
                    .unwrap();
            }
            bytes.fill(0xff);
        }
        let refused = batch.send_copy(&too_long, buf(&pd, b"long")).add();
        let refused = refused.map_err(|error| error.into_inner()[..] == *b"long");
        assert!(matches!(refused, Err(true)));
        batch.post().unwrap();
        for n in 0..COUNT {
            let received = b.received().unwrap();
            assert_eq!(received.byte_len(), 40);
            let mut there = [0; 40];
            match n % 2 {
                0 => there.copy_from_slice(received.bytes()),
                _ => shared.read_at(64 * usize::from(n), &mut there).unwrap(),
            }
            assert_eq!(there, [n + round; 40]);
        }
        let mut tokens = Vec::new();
        while tokens.len() < usize::from(COUNT) {
            for (token, result) in a.sent() {
                result.unwrap();
                tokens.push(token[0]);
            }
        }
        assert_eq!(tokens, (0..COUNT).collect::<Vec<_>>());
    }
}

#[test]
fn a_batch_that_is_not_posted_is_as_if_it_had_not_been() {
    let pd = device().alloc_pd().unwrap();
    let (mut a, mut b) = pair(&pd);
    b.rx.post(room(&pd, 16)).unwrap();
    a.tx.batch().post().unwrap();
    let mut dropped = a.tx.batch();
    dropped.send(buf(&pd, b"dropped")).signaled().add().unwrap();
    drop(dropped);
    let mut forgotten = a.tx.batch();
    forgotten.send(buf(&pd, b"lost")).signaled().add().unwrap();
    std::mem::forget(forgotten);
    assert_eq!((a.tx.outstanding(), a.tx.free_slots()), (0, 64));
    a.tx.send(buf(&pd, b"single")).post().unwrap();
    let mut batch = a.tx.batch();
    assert!(batch.is_empty());
    batch.send(buf(&pd, b"after")).signaled().add().unwrap();
    batch.post().unwrap();
    assert_eq!(b.received().unwrap().bytes(), b"single");
    b.rx.post(room(&pd, 16)).unwrap();
    assert_eq!(b.received().unwrap().bytes(), b"after");
    assert_eq!(a.sent().len(), 2);
}

#[test]
fn what_cannot_be_posted_is_not_added() {
    let pd = device().alloc_pd().unwrap();
    let (mut a, mut b) = pair_of::<Buf, Buf>(&pd, |q| q.send_depth(4).rd_atomic(0));
    for _ in 0..8 {
        b.rx.post(room(&pd, 16)).unwrap();
    }
    let remote = pd.readable(vec![1u8; 8]).unwrap().remote();
    a.tx.send(buf(&pd, &[0])).post().unwrap();
    let mut batch = a.tx.batch();
    batch.send(buf(&pd, &[1])).add().unwrap();
    let (kind, back) = refused(batch.read(room(&pd, 8), remote).add());
    assert_eq!((kind, back.len()), (PostErrorKind::NoReads, 8));
    let (kind, _) = refused(batch.write(buf(&pd, &[9; 9]), remote).add());
    assert_eq!(kind, PostErrorKind::RemoteTooSmall { len: 9, remote: 8 });
    for n in [2, 3] {
        batch.send(buf(&pd, &[n])).signaled().add().unwrap();
    }
    let (kind, back) = refused(batch.send(buf(&pd, &[4])).add());
    let full = PostErrorKind::QueueFull {
        depth: 4,
        untaken: 0,
    };
    assert_eq!((kind, &back[..]), (full, &[4][..]));
    batch.post().unwrap();
    assert_eq!(a.tx.free_slots(), 0);
    for n in 0..4 {
        assert_eq!(b.received().unwrap().bytes(), [n]);
    }
    assert_eq!((a.sent().len(), a.sent().len()), (3, 1));
    assert_eq!(a.tx.free_slots(), 4);
}

#[test]
fn nothing_is_added_before_connecting() {
    let ctx = device();
    let pd = ctx.alloc_pd().unwrap();
    let cq = ctx.cq(128).build().unwrap();
    let (_setup, mut tx, _rx) = pd.rc(&cq).build().unwrap().split::<Buf, Buf>();
    let mut batch = tx.batch();
    let (kind, back) = refused(batch.send(buf(&pd, b"early")).add());
    assert_eq!(
        (kind, &back[..]),
        (PostErrorKind::NotConnected, &b"early"[..])
    );
    batch.post().unwrap();
    assert_eq!(tx.outstanding(), 0);
}

/// Posts a batch, and says how often memory was allocated for it.
fn allocated(pd: &Pd, tx: &mut SendQueue<Buf>, len: usize) -> usize {
    let mut bufs: Vec<Buf> = (0..len).map(|n| buf(pd, &[n as u8])).collect();
    let before = ALLOCATIONS.get();
    let mut batch = tx.batch();
    while let Some(next) = bufs.pop() {
        batch.send(next).signaled().add().unwrap();
    }
    batch.post().unwrap();
    ALLOCATIONS.get() - before
}

#[test]
fn batches_reuse_their_memory() {
    let pd = device().alloc_pd().unwrap();
    let (mut a, mut b) = pair(&pd);
    for _ in 0..32 {
        b.rx.post(room(&pd, 16)).unwrap();
    }
    // Once around what the device itself allocates when it is first used.
    allocated(&pd, &mut a.tx, 1);
    assert!(allocated(&pd, &mut a.tx, 5) > 0);
    assert_eq!(allocated(&pd, &mut a.tx, 5), 0);
    a.tx.reserve_batch(16, 16);
    assert_eq!(allocated(&pd, &mut a.tx, 16), 0);
    for _ in 0..27 {
        drop(b.received().unwrap());
        a.sent_one();
    }
}
