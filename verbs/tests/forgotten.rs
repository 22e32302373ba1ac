//! A forgotten queue leaks, and nothing worse. In a file of its own, because leak checkers rightly complain.
#![cfg(feature = "soft")]

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use common::*;
use verbs::{Gather, Scatter, SgeList};

/// A buffer that counts its drops.
struct Tracked(Buf, Arc<AtomicUsize>);
impl Drop for Tracked {
    fn drop(&mut self) {
        self.1.fetch_add(1, SeqCst);
    }
}
// SAFETY: owned registered memory.
unsafe impl Gather for Tracked {
    fn gather(&self, out: &mut SgeList) {
        self.0.gather(out);
    }
}
// SAFETY: as above.
unsafe impl Scatter for Tracked {
    fn scatter(&mut self, out: &mut SgeList) {
        self.0.scatter(out);
    }
}

fn tracked(pd: &verbs::Pd, drops: &Arc<AtomicUsize>, n: u8) -> Tracked {
    Tracked(buf(pd, &[n; 16]), drops.clone())
}

#[test]
fn a_forgotten_half_keeps_its_memory_and_harms_nobody() {
    let pd = device().alloc_pd().unwrap();
    let drops = Arc::new(AtomicUsize::new(0));
    let (mut a, mut b) = pair_of::<Tracked, Tracked>(&pd, |q| q);
    a.rx.post(tracked(&pd, &drops, 1)).unwrap();
    std::mem::forget(a.rx);
    drop(a.tx);
    drop(a.cq);
    assert_eq!(drops.load(SeqCst), 0);
    // The queue pair is still there, and still receives.
    b.tx.send(tracked(&pd, &drops, 2))
        .signaled()
        .post()
        .unwrap();
    assert_eq!(
        b.sent().remove(0).1.map_err(|e| e.status).map(|_| ()),
        Ok(())
    );
    assert_eq!(drops.load(SeqCst), 1);
}

#[test]
fn a_forgotten_shared_queue_or_queue_pair_keeps_what_was_posted() {
    let ctx = device();
    let pd = ctx.alloc_pd().unwrap();
    for forget_queue in [true, false] {
        let drops = Arc::new(AtomicUsize::new(0));
        let mut cq = ctx.cq(64).build().unwrap();
        let mut shared = pd.shared_recv(4).build::<Tracked>().unwrap();
        let builder = pd.rc(&cq).send_depth(4).shared_recv(&shared);
        let ready = builder.build().unwrap();
        let own = ready.endpoint();
        let mut tx = ready.connect::<Tracked>(&own).unwrap();
        shared.post(tracked(&pd, &drops, 1)).unwrap();
        shared.post(tracked(&pd, &drops, 2)).unwrap();
        tx.send(tracked(&pd, &drops, 3)).post().unwrap();
        drop(next(&mut cq));
        if forget_queue {
            std::mem::forget(shared);
            drop(tx);
            // Its own send, and nothing of the queue's.
            assert_eq!(drops.load(SeqCst), 1);
        } else {
            std::mem::forget(tx);
            drop(shared);
            assert_eq!(drops.load(SeqCst), 0);
        }
    }
}
