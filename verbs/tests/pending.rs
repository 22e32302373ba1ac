//! What the user-space device still has to do with memory.
#![cfg(feature = "soft")]

mod common;

use common::*;
use verbs::{Device, LKey};

#[test]
fn work_is_pending_until_it_is_done() {
    let ctx = Device::open_spec("soft0").unwrap();
    let pd = ctx.alloc_pd().unwrap();
    let (mut a, mut b) = pair(&pd);
    let data = room(&pd, 10_000);
    let (at, key) = (data.as_ptr(), data.lkey());
    let pending = |len| ctx.pending_work(key, at, len);
    assert_eq!(pending(10_000), None);
    // There is no receive for it.
    a.tx.send(data).signaled().post().unwrap();
    let work = pending(1).unwrap();
    let found = (work.qp_num, work.writes, work.raw_id);
    assert_eq!(found, (a.tx.qp_num(), false, None));
    let end = at.wrapping_add(10_000);
    assert_eq!(ctx.pending_work(key, end, 1), None, "directly behind");
    assert_eq!(ctx.pending_work(key, end.wrapping_sub(1), 1), Some(work));
    assert_eq!(ctx.pending_work(key, at.wrapping_sub(10), 10), None);
    assert_eq!(ctx.pending_work(LKey(key.0 ^ 1), at, 10), None);
    b.rx.post(room(&pd, 10_000)).unwrap();
    assert_eq!(b.received().unwrap().byte_len(), 10_000);
    drop(a.sent_one());
    assert_eq!(pending(10_000), None);
}

#[test]
fn receives_are_pending_until_they_are_filled_and_go_with_their_queue() {
    let ctx = Device::open_spec("soft0").unwrap();
    let pd = ctx.alloc_pd().unwrap();
    let (mut a, mut b) = pair(&pd);
    let rooms = [0; 2].map(|_| room(&pd, 64));
    let at = rooms.each_ref().map(|r| (r.lkey(), r.as_ptr()));
    let pending = |n: usize| ctx.pending_work(at[n].0, at[n].1, 64).map(|w| w.writes);
    rooms.into_iter().for_each(|r| b.rx.post(r).unwrap());
    assert_eq!([pending(0), pending(1)], [Some(true); 2]);
    a.tx.send(buf(&pd, b"first")).signaled().post().unwrap();
    let first = b.received().unwrap();
    assert_eq!([pending(0), pending(1)], [None, Some(true)]);
    drop((first, a.sent_one()));
    verbs::destroy(b.tx, b.rx).unwrap();
    assert_eq!(pending(1), None);

    let mut shared = pd.shared_recv(4).build::<Buf>().unwrap();
    let room = room(&pd, 64);
    let (key, at) = (room.lkey(), room.as_ptr());
    shared.post(room).unwrap();
    let work = ctx.pending_work(key, at, 64).unwrap();
    assert_eq!((work.qp_num, work.writes), (0, true));
    drop(shared);
    assert_eq!(ctx.pending_work(key, at, 64), None);
}
