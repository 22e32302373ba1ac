//! Completion channels.
#![cfg(feature = "soft")]

mod common;

use std::os::fd::{AsFd, AsRawFd};
use std::time::{Duration, Instant};

use common::*;
use verbs::{Channel, Context, Cq, Pd};

/// Two sides whose completion queues are on the channels given.
fn waiting_pair(pd: &Pd, channels: [&Channel; 2]) -> (End, End) {
    let cqs = channels.map(|c| pd.context().cq(256).channel(c).build().unwrap());
    let [a, b] = [0, 1].map(|i| pd.rc(&cqs[i]).build().unwrap());
    let (ea, eb) = (a.endpoint(), b.endpoint());
    let [cq_a, cq_b] = cqs;
    let (tx, rx) = a.connect(&eb).unwrap();
    let one = End { cq: cq_a, tx, rx };
    let (tx, rx) = b.connect(&ea).unwrap();
    (one, End { cq: cq_b, tx, rx })
}

fn opened() -> (Context, Pd) {
    let ctx = device();
    let pd = ctx.alloc_pd().unwrap();
    (ctx, pd)
}

fn wait(cq: &mut Cq) {
    assert!(cq.wait(Some(hang())).unwrap(), "hangs");
}

#[test]
fn what_is_there_already_is_found_without_sleeping() {
    let (ctx, pd) = opened();
    let channel = ctx.channel().unwrap();
    let (mut a, mut b) = waiting_pair(&pd, [&channel, &channel]);
    for n in 0..10u8 {
        b.rx.post(room(&pd, 8)).unwrap();
        a.tx.send(buf(&pd, &[n])).post().unwrap();
        wait(&mut b.cq);
        wait(&mut b.cq);
        assert_eq!(
            b.received().unwrap().bytes(),
            [n],
            "waiting takes nothing away"
        );
    }
    assert!(!b.cq.wait(Some(Duration::ZERO)).unwrap());
}

#[test]
fn time_runs_out_not_too_early() {
    let (ctx, _pd) = opened();
    let mut cq = ctx.cq(8).channel(&ctx.channel().unwrap()).build().unwrap();
    let start = Instant::now();
    assert!(!cq.wait(Some(Duration::from_millis(30))).unwrap());
    assert!(start.elapsed() >= Duration::from_millis(30));
    let mut bare = ctx.cq(8).build().unwrap();
    assert!(matches!(bare.wait(None), Err(verbs::Error::NoChannel)));
    assert!(matches!(bare.arm(false), Err(verbs::Error::NoChannel)));
}

/// Sleeps until a message has arrived; what was sent meanwhile is taken back.
fn receive(end: &mut End) -> Vec<u8> {
    until("a message", || {
        wait(&mut end.cq);
        let wc = end.cq.poll().unwrap()?;
        if wc.queue() == end.rx.id() {
            return Some(end.rx.redeem(wc).unwrap().unwrap().bytes().to_vec());
        }
        let mut done = end.tx.retire(wc).unwrap();
        while let Some((_, result)) = end.tx.take(&mut done) {
            result.unwrap();
        }
        None
    })
}

/// Sends one message back for each that arrives.
fn echo(mut end: End, pd: &Pd, rounds: u32) -> End {
    for _ in 0..rounds {
        let text = receive(&mut end);
        end.rx.post(room(pd, 8)).unwrap();
        end.tx.send(buf(pd, &text)).signaled().post().unwrap();
    }
    end
}

/// Sends `rounds` messages and waits for the answer to each; falls asleep in between now and then.
fn ask(mut end: End, pd: &Pd, rounds: u32, pause: u32) -> End {
    for n in 0..rounds {
        end.rx.post(room(pd, 8)).unwrap();
        if n % pause == 0 {
            // Lets the peer fall asleep first; correct without.
            let _ = end.cq.wait(Some(Duration::from_millis(1))).unwrap();
        }
        end.tx
            .send(buf(pd, &n.to_le_bytes()))
            .signaled()
            .post()
            .unwrap();
        assert_eq!(receive(&mut end), n.to_le_bytes());
    }
    end
}

#[test]
fn a_sleeper_is_woken() {
    let (ctx, pd) = opened();
    let [ca, cb] = [0; 2].map(|_| ctx.channel().unwrap());
    let (a, mut b) = waiting_pair(&pd, [&ca, &cb]);
    b.rx.post(room(&pd, 8)).unwrap();
    let sleeper = std::thread::spawn({
        let pd = pd.clone();
        move || echo(b, &pd, 300)
    });
    let a = ask(a, &pd, 300, 10);
    drop((a, sleeper.join().unwrap()));
}

#[test]
fn several_threads_sleep_on_one_channel() {
    let (ctx, pd) = opened();
    let channel = ctx.channel().unwrap();
    let threads: Vec<_> = (0..4)
        .flat_map(|_| {
            let (a, mut b) = waiting_pair(&pd, [&channel, &channel]);
            b.rx.post(room(&pd, 8)).unwrap();
            let (pd_a, pd_b) = (pd.clone(), pd.clone());
            [
                std::thread::spawn(move || echo(b, &pd_b, 200)),
                std::thread::spawn(move || ask(a, &pd_a, 200, 50)),
            ]
        })
        .collect();
    // All ends live until all have finished: destroying one would cancel what it has posted last.
    let ends: Vec<End> = threads.into_iter().map(|t| t.join().unwrap()).collect();
    drop(ends);
}

#[test]
fn events_are_named_and_the_descriptor_is_readable() {
    let (ctx, pd) = opened();
    let channel = ctx.channel().unwrap();
    let (mut a, mut b) = waiting_pair(&pd, [&channel, &channel]);
    assert_eq!(channel.wait(Some(Duration::ZERO)).unwrap(), None);
    b.cq.arm(false).unwrap();
    b.rx.post(room(&pd, 8)).unwrap();
    a.tx.send(buf(&pd, b"x")).post().unwrap();
    until("a readable descriptor", || readable(&channel).then_some(()));
    assert_eq!(channel.wait(Some(hang())).unwrap(), Some(b.cq.id()));
    assert!(!readable(&channel));
    assert_eq!(channel.wait(Some(Duration::ZERO)).unwrap(), None);
    assert_eq!(b.received().unwrap().bytes(), b"x");
    // Not armed again: no event.
    b.rx.post(room(&pd, 8)).unwrap();
    a.tx.send(buf(&pd, b"y")).post().unwrap();
    assert_eq!(b.received().unwrap().bytes(), b"y");
    assert!(!readable(&channel));
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
fn solicited_arming_ignores_the_rest() {
    let (ctx, pd) = opened();
    let channel = ctx.channel().unwrap();
    let (mut a, mut b) = waiting_pair(&pd, [&channel, &channel]);
    b.cq.arm(true).unwrap();
    for _ in 0..2 {
        b.rx.post(room(&pd, 8)).unwrap();
    }
    a.tx.send(buf(&pd, b"quiet")).post().unwrap();
    assert_eq!(b.received().unwrap().bytes(), b"quiet");
    assert!(!readable(&channel));
    a.tx.send(buf(&pd, b"loud")).solicited().post().unwrap();
    assert_eq!(channel.wait(Some(hang())).unwrap(), Some(b.cq.id()));
    assert_eq!(b.received().unwrap().bytes(), b"loud");
}

#[test]
fn unread_events_do_not_keep_a_queue_alive() {
    let (ctx, pd) = opened();
    let channel = ctx.channel().unwrap();
    for take in [true, false] {
        let (mut a, mut b) = waiting_pair(&pd, [&channel, &channel]);
        b.cq.arm(false).unwrap();
        b.rx.post(room(&pd, 8)).unwrap();
        a.tx.send(buf(&pd, b"x")).post().unwrap();
        until("a readable descriptor", || readable(&channel).then_some(()));
        if take {
            channel.wait(Some(hang())).unwrap();
        }
        drop((a, b));
    }
    // And what is left of it disturbs nobody.
    let mut cq = ctx.cq(8).channel(&channel).build().unwrap();
    assert!(!cq.wait(Some(Duration::from_millis(5))).unwrap());
}

#[test]
fn queues_come_and_go_on_a_channel_that_others_read() {
    let (ctx, pd) = opened();
    let channel = ctx.channel().unwrap();
    let mut idle = ctx.cq(8).channel(&channel).build().unwrap();
    let reader = std::thread::spawn(move || {
        for _ in 0..200 {
            assert!(!idle.wait(Some(Duration::from_millis(1))).unwrap());
        }
    });
    while !reader.is_finished() {
        let (mut a, mut b) = waiting_pair(&pd, [&channel, &channel]);
        b.cq.arm(false).unwrap();
        b.rx.post(room(&pd, 8)).unwrap();
        a.tx.send(buf(&pd, b"x")).post().unwrap();
        assert_eq!(b.received().unwrap().bytes(), b"x");
    }
    reader.join().unwrap();
}
