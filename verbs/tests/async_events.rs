//! Asynchronous events of completion queues that overflow and of their queue pairs. By themselves, because the fault is the whole
//! process's.
#![cfg(feature = "soft")]

mod common;

use std::os::fd::{AsFd, AsRawFd};
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use common::*;
use softverbs::faults::{Fault, inject};
use verbs::{AsyncEvent, Context, Device, Error};

/// One test at a time.
fn alone() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(|e| e.into_inner())
}

fn readable(ctx: &Context) -> bool {
    let mut poll = libc::pollfd {
        fd: ctx.as_fd().as_raw_fd(),
        events: libc::POLLIN,
        revents: 0,
    };
    // SAFETY: one valid entry.
    unsafe { libc::poll(&mut poll, 1, 0) == 1 }
}

fn soft0() -> Context {
    Device::open_spec("soft0").unwrap()
}

/// Polls so that the queue overflows.
fn overflow<S: Send + 'static, R: Send + 'static>(end: &mut End<S, R>) {
    let _fault = inject(Fault::CqOverflow { cq: None, nth: 1 });
    assert!(matches!(end.cq.poll(), Err(Error::CqBroken { .. })));
}

#[test]
fn an_overflow_names_the_completion_queue_and_its_queue_pairs() {
    let _alone = alone();
    let ctx = soft0();
    let pd = ctx.alloc_pd().unwrap();
    let ends = [pair(&pd), pair(&pd)];
    assert_eq!(ctx.async_event(Some(Duration::ZERO)).unwrap(), None);
    assert_eq!(
        ctx.async_event(Some(Duration::from_millis(5))).unwrap(),
        None
    );
    assert!(!readable(&ctx));
    for (mut a, mut b) in ends {
        for end in [&mut b, &mut a] {
            overflow(end);
            assert!(readable(&ctx));
            let next = || ctx.async_event(Some(hang())).unwrap();
            assert_eq!(next(), Some(AsyncEvent::CqError { cq: end.cq.id() }));
            let qp_num = end.tx.qp_num();
            assert_eq!(next(), Some(AsyncEvent::QpFatal { qp_num }));
        }
        // Nothing is left to be acknowledged, or destroying would hang.
        drop((a, b));
        assert!(!readable(&ctx));
        assert_eq!(ctx.async_event(Some(Duration::ZERO)).unwrap(), None);
    }
}

#[test]
fn events_that_nobody_takes_keep_nothing_alive() {
    let _alone = alone();
    let ctx = soft0();
    let pd = ctx.alloc_pd().unwrap();
    let (mut a, b) = pair(&pd);
    overflow(&mut a);
    let qp_num = a.tx.qp_num();
    let first = ctx.async_event(Some(hang())).unwrap();
    assert_eq!(first, Some(AsyncEvent::CqError { cq: a.cq.id() }));
    let (sends, receives) = verbs::destroy(a.tx, a.rx).unwrap();
    assert!(sends.is_empty() && receives.is_empty());
    drop((a.cq, b));
    // The queue pair's went with it.
    let left = ctx.async_event(Some(Duration::ZERO)).unwrap();
    assert_eq!(left, None, "of {qp_num:#x}");
}

#[test]
fn a_thread_that_waits_is_woken() {
    let _alone = alone();
    let ctx = soft0();
    let pd = ctx.alloc_pd().unwrap();
    let (mut a, _b) = pair(&pd);
    std::thread::scope(|scope| {
        // Two that wait, two events: each gets one.
        let waiting = [0; 2].map(|_| scope.spawn(|| ctx.async_event(Some(hang())).unwrap()));
        overflow(&mut a);
        let mut got = waiting.map(|thread| thread.join().unwrap().unwrap());
        got.sort_by_key(|event| matches!(event, AsyncEvent::QpFatal { .. }));
        let qp_num = a.tx.qp_num();
        assert_eq!(
            got,
            [
                AsyncEvent::CqError { cq: a.cq.id() },
                AsyncEvent::QpFatal { qp_num }
            ]
        );
    });
}
