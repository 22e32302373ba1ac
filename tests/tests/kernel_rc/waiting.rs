//! Completion channels.

use super::ends::{End, pair_on};
use std::os::fd::{AsFd, AsRawFd};
use std::time::Duration;
use verbatim_tests::HANG;
use verbs::{Access, Channel, RKey, RemoteRegion, WcStatus as Is};

/// Ends on channels of their own, and the channel of the second.
fn pair() -> (End, End, Channel) {
    let channels = std::cell::RefCell::new(Vec::new());
    let (a, b) = pair_on(
        |_, builder| builder,
        |ctx| {
            let channel = ctx.channel().expect("a completion channel");
            channels.borrow_mut().push(channel.clone());
            Some(channel)
        },
    );
    let channel = channels.into_inner().pop().expect("two were made");
    (a, b, channel)
}

fn readable(channel: &Channel) -> bool {
    let mut poll = libc::pollfd {
        fd: channel.as_fd().as_raw_fd(),
        events: libc::POLLIN,
        revents: 0,
    };
    // SAFETY: one valid entry.
    unsafe { libc::poll(&mut poll, 1, 0) == 1 }
}

#[test]
fn a_sleeper_is_woken_by_each_message() {
    let (mut a, mut b, _) = pair();
    b.post(&[8]);
    let sleeper = std::thread::spawn(move || {
        for round in 0..100u8 {
            let message = loop {
                assert!(b.cq.wait(Some(HANG)).unwrap(), "hangs in round {round}");
                let Some(completion) = b.cq.poll().unwrap() else {
                    continue;
                };
                if completion.queue() == b.rx.id() {
                    break b.rx.redeem(completion).unwrap().unwrap();
                }
                let mut done = b.tx.retire(completion).unwrap();
                b.tx.take(&mut done).unwrap().1.unwrap();
            };
            assert_eq!(message.into_inner().concat()[0], round);
            b.post(&[8]);
            b.tx.send(b.side.bytes(&[round])).signaled().post().unwrap();
        }
        b
    });
    for round in 0..100u8 {
        a.post(&[8]);
        a.tx.send(a.side.bytes(&[round])).signaled().post().unwrap();
        assert_eq!(a.ends(1, 1), (vec![Is::SUCCESS], vec![Is::SUCCESS]));
    }
    drop(sleeper.join().unwrap());
}

#[test]
fn one_event_per_arming() {
    let (mut a, mut b, channel) = pair();
    b.post(&[8; 4]);
    b.cq.arm(false).unwrap();
    for _ in 0..2 {
        a.tx.send(a.side.bytes(b"x")).signaled().post().unwrap();
        a.sent().unwrap();
        let _ = b.received().unwrap();
    }
    assert_eq!(channel.wait(Some(HANG)).unwrap(), Some(b.cq.id()));
    assert!(!readable(&channel), "the second found the queue unarmed");
}

/// The event is for the next completion, not for one that is there already: hence one polls once more after arming.
#[test]
fn arming_is_for_completions_to_come() {
    let (mut a, mut b, channel) = pair();
    b.post(&[8; 2]);
    a.tx.send(a.side.bytes(b"x")).signaled().post().unwrap();
    // The acknowledgement proves that the message has arrived.
    a.sent().unwrap();
    b.cq.arm(false).unwrap();
    assert!(!readable(&channel));
    a.tx.send(a.side.bytes(b"y")).signaled().post().unwrap();
    assert_eq!(channel.wait(Some(HANG)).unwrap(), Some(b.cq.id()));
    assert_eq!(b.ends(0, 2).1, [Is::SUCCESS; 2]);
}

#[test]
fn solicited_events_come_with_solicited_messages() {
    let (mut a, mut b, channel) = pair();
    b.post(&[8; 4]);
    let shared = b.side.pd.expose(8, Access::REMOTE_WRITE).unwrap();
    b.cq.arm(true).unwrap();
    a.tx.send(a.side.bytes(b"quiet")).signaled().post().unwrap();
    a.sent().unwrap();
    let _ = b.received().unwrap();
    assert!(!readable(&channel));
    a.tx.send(a.side.bytes(b"loud"))
        .solicited()
        .signaled()
        .post()
        .unwrap();
    assert_eq!(channel.wait(Some(HANG)).unwrap(), Some(b.cq.id()));
    let _ = b.received().unwrap();
    a.sent().unwrap();
    b.cq.arm(true).unwrap();
    a.tx.write(a.side.bytes(b"loud"), shared.remote())
        .imm(1)
        .solicited()
        .signaled()
        .post()
        .unwrap();
    assert_eq!(channel.wait(Some(HANG)).unwrap(), Some(b.cq.id()));
    let _ = b.received().unwrap();
}

/// A failure wakes also those who wait for solicited completions only (`ibv_req_notify_cq(3)`).
#[test]
fn a_failed_receive_counts_as_solicited() {
    let (mut a, mut b, channel) = pair();
    b.post(&[8]);
    b.cq.arm(true).unwrap();
    let nowhere = RemoteRegion {
        addr: 4096,
        len: 4,
        rkey: RKey(1),
    };
    a.tx.write(a.side.bytes(b"evil"), nowhere)
        .signaled()
        .post()
        .unwrap();
    assert_eq!(a.sent().err(), Some(Is::REM_ACCESS_ERR));
    assert_eq!(channel.wait(Some(HANG)).unwrap(), Some(b.cq.id()));
    assert_eq!(b.ends(0, 1).1, [Is::WR_FLUSH_ERR]);
}

/// As above for a send. Soft-RoCE does not wake anybody for it.
#[test]
fn a_failed_send_counts_as_solicited() {
    let (_a, mut b, channel) = pair();
    b.cq.arm(true).unwrap();
    let nowhere = RemoteRegion {
        addr: 4096,
        len: 4,
        rkey: RKey(1),
    };
    b.tx.write(b.side.bytes(b"evil"), nowhere)
        .signaled()
        .post()
        .unwrap();
    if b.side.says(true, false) {
        assert_eq!(channel.wait(Some(HANG)).unwrap(), Some(b.cq.id()));
    }
    assert_eq!(b.sent().err(), Some(Is::REM_ACCESS_ERR));
    assert!(!readable(&channel));
}

#[test]
fn time_runs_out_when_nothing_comes() {
    let (_a, mut b, _) = pair();
    assert!(!b.cq.wait(Some(Duration::from_millis(20))).unwrap());
}
