//! When address handles are destroyed: the user-space device with the functions for that replaced, since the device itself copies
//! addresses when work is posted, and would not tell.

use std::cell::Cell;
use std::ffi::c_int;
use std::sync::OnceLock;

use ibverbs_sys::{Api, ibv_ah, ibv_qp};

use crate::*;

type Buf = Private<Vec<u8>>;

thread_local! {
    static DESTROYED: Cell<usize> = const { Cell::new(0) };
    static REFUSE: Cell<bool> = const { Cell::new(false) };
}

unsafe extern "C" fn destroy_ah(ah: *mut ibv_ah) -> c_int {
    DESTROYED.set(DESTROYED.get() + 1);
    // SAFETY: passed on.
    unsafe { (softverbs::api().ibv_destroy_ah)(ah) }
}

unsafe extern "C" fn destroy_qp(qp: *mut ibv_qp) -> c_int {
    match REFUSE.get() {
        true => libc::EBUSY,
        // SAFETY: passed on.
        false => unsafe { (softverbs::api().ibv_destroy_qp)(qp) },
    }
}

fn started(depth: u32) -> (Pd, Cq, Endpoint, SendQueue<Buf, Ud>, RecvQueue<Buf>) {
    static TABLE: OnceLock<Api> = OnceLock::new();
    let api = TABLE.get_or_init(|| Api {
        ibv_destroy_ah: destroy_ah,
        ibv_destroy_qp: destroy_qp,
        ..*softverbs::api()
    });
    let pd = list::of(api)[0].open().unwrap().alloc_pd().unwrap();
    let cq = pd.context().cq(256).build().unwrap();
    let ready = pd.ud(&cq).send_depth(depth).build().unwrap();
    let own = ready.endpoint();
    let (tx, rx) = ready.start().unwrap();
    DESTROYED.set(0);
    (pd, cq, own, tx, rx)
}

fn send(pd: &Pd, tx: &mut SendQueue<Buf, Ud>, to: &Destination) {
    let work = pd.register(vec![7]).unwrap();
    tx.send_to(work, to).signaled().post().unwrap();
}

/// Retires and takes one.
fn finish(cq: &mut Cq, tx: &mut SendQueue<Buf, Ud>) {
    let wc = loop {
        match cq.poll().unwrap() {
            Some(wc) => break wc,
            None => std::thread::yield_now(),
        }
    };
    let mut done = tx.retire(wc).unwrap();
    assert!(tx.take(&mut done).is_some());
}

#[test]
fn a_handle_is_kept_for_the_work_that_names_it() {
    let (pd, mut cq, own, mut tx, rx) = started(2);
    let destination = || pd.destination(&own, 1).unwrap();
    send(&pd, &mut tx, &destination());
    send(&pd, &mut tx, &destination());
    assert_eq!(DESTROYED.get(), 0, "both are dropped, and in flight");
    finish(&mut cq, &mut tx);
    let third = destination();
    send(&pd, &mut tx, &third);
    assert_eq!(DESTROYED.get(), 1, "the first one's slot is used again");
    finish(&mut cq, &mut tx);
    send(&pd, &mut tx, &third);
    assert_eq!(DESTROYED.get(), 2);
    drop(third);
    finish(&mut cq, &mut tx);
    // A batch that is not posted leaves its handles where others are kept.
    let mut batch = tx.batch();
    let work = pd.register(vec![7]).unwrap();
    batch.send_to(work, &destination()).add().unwrap();
    drop(batch);
    drop(tx);
    assert_eq!(DESTROYED.get(), 2, "the other half keeps the queue pair");
    drop(rx);
    assert_eq!(DESTROYED.get(), 4);
}

#[test]
fn a_handle_is_leaked_with_a_queue_pair_that_cannot_be_destroyed() {
    let (pd, _cq, own, mut tx, rx) = started(4);
    send(&pd, &mut tx, &pd.destination(&own, 1).unwrap());
    REFUSE.set(true);
    drop((tx, rx));
    REFUSE.set(false);
    assert_eq!(DESTROYED.get(), 0);
}
