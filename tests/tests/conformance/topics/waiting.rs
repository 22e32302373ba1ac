//! Threads that sleep until something completes.

use crate::case::{Topic, case};
use crate::channel::Channel;
use crate::device::Bed;
use crate::memory::{ALL, LOCAL, Mem};
use crate::queue::{End, Options, RC, connected};
use crate::request::{send, write};
use crate::threads::start;
use std::sync::Arc;

pub const TOPIC: Topic = Topic {
    name: "Waiting for events",
    cases: &[
        case(
            "a thread that waits is woken by a message",
            message,
            "ibv_get_cq_event(3)",
            "asleep, then 1, arrived",
        ),
        case(
            "a thread that waits is woken by a completion of its own",
            own,
            "ibv_get_cq_event(3)",
            "asleep, then 1, done",
        ),
        case(
            "two threads that answer each other, both of which sleep",
            there_and_back,
            "ibv_get_cq_event(3)",
            "50 there, 50 back",
        ),
        case(
            "a message between the last poll and arming is found by polling again",
            between,
            "ibv_get_cq_event(3)",
            "none, then 1",
        ),
        case(
            "a channel of three queues says whose event it is",
            whose,
            "ibv_create_cq(3)",
            "1, 3",
        ),
        case(
            "of the queues of a channel those that are not armed are silent",
            silent,
            "ibv_req_notify_cq(3)",
            "2, then EAGAIN",
        ),
        case(
            "two threads that wait on one channel get an event each",
            two_threads,
            "ibv_get_cq_event(3)",
            "1, 2",
        ),
        case(
            "no event, and a channel that does not block",
            would_block,
            "ibv_get_cq_event(3)",
            "EAGAIN",
        ),
        case(
            "destroying a queue waits until its event is acknowledged",
            unacknowledged,
            "ibv_get_cq_event(3), ibv_ack_cq_events(3)",
            "waits, then 0",
        ),
        case(
            "events that are acknowledged together",
            together,
            "ibv_ack_cq_events(3)",
            "3, then 0",
        ),
        case(
            "an event that nobody has taken goes with its queue",
            untaken,
            "ibv_destroy_cq(3)",
            "0, then EAGAIN, then 2",
        ),
    ],
};

/// Two connected, the second of which completes to a queue of the channel.
fn pair_on(bed: &Bed, channel: &Channel, name: usize) -> (End, End) {
    let a = End::new(&bed.a, &RC).init();
    let b = End::on(&bed.b, &RC, None, channel.cq(64, name)).init();
    connected((a, b))
}

/// A message that has arrived when this returns.
fn arrive(a: &End, b: &End, from: &Mem, to: &Mem) {
    b.recv(2, to, 0, 8);
    send(1, from, 1).go(a);
    // It is acknowledged after it has arrived.
    assert_eq!(a.ids(1), "1");
}

fn asleep(sleeps: bool) -> &'static str {
    if sleeps { "asleep" } else { "awake" }
}

fn message(bed: &Bed) -> String {
    let channel = Arc::new(Channel::new(&bed.b));
    let (a, b) = pair_on(bed, &channel, 1);
    let (from, to) = (Mem::of(&a.side, b"x"), Mem::new(&b.side, 8, LOCAL));
    b.recv(2, &to, 0, 8);
    b.cq.arm(false);
    let waiting = channel.clone();
    let waiter = start(move || waiting.waited());
    let sleeps = waiter.sleeps();
    send(1, &from, 1).go(&a);
    let event = waiter.join();
    b.cq.acknowledge(1);
    assert_eq!((a.ids(1), b.ids(1)), ("1".into(), "2".into()));
    format!("{}, then {event}, arrived", asleep(sleeps))
}

fn own(bed: &Bed) -> String {
    let channel = Arc::new(Channel::new(&bed.a));
    let a = End::on(&bed.a, &RC, None, channel.cq(64, 1)).init();
    let (a, b) = connected((a, End::new(&bed.b, &RC).init()));
    let (from, to) = (Mem::of(&a.side, b"x"), Mem::new(&b.side, 8, ALL));
    a.cq.arm(false);
    let waiting = channel.clone();
    let waiter = start(move || waiting.waited());
    let sleeps = waiter.sleeps();
    write(1, from.sge(0, 1), &to).go(&a);
    let event = waiter.join();
    a.cq.acknowledge(1);
    assert_eq!(a.ids(1), "1");
    format!("{}, then {event}, done", asleep(sleeps))
}

const ROUNDS: u64 = 50;
/// Ids of receives; those of sends are below.
const RECEIVES: u64 = 1000;

/// Waits for the message of a round as a program does that sleeps: polls, arms, polls again, and only then waits.
fn sleep_for(end: &End, channel: &Channel, round: u64) {
    loop {
        let mut found = end.cq.poll();
        if found.is_none() {
            end.cq.arm(false);
            found = end.cq.poll();
        }
        match found {
            Some(wc) if wc.wr_id == RECEIVES + round && wc.status.0 == 0 => return,
            // That of a message of one's own.
            Some(wc) => assert!(wc.wr_id < RECEIVES && wc.status.0 == 0, "{}", wc.wr_id),
            None => {
                channel.wait().expect("an event");
                end.cq.acknowledge(1);
            }
        }
    }
}

fn there_and_back(bed: &Bed) -> String {
    let options = Options {
        depth: 2 * ROUNDS as u32,
        cqe: 4 * ROUNDS as u32,
        ..RC
    };
    let channels = [&bed.a, &bed.b].map(|side| Arc::new(Channel::new(side)));
    let [a, b] = [(&bed.a, &channels[0]), (&bed.b, &channels[1])]
        .map(|(side, channel)| End::on(side, &options, None, channel.cq(200, 1)).init());
    let (a, b) = connected((a, b));
    let play = |end: End, channel: &Arc<Channel>, begins: bool| {
        let channel = channel.clone();
        let mem = Mem::new(&end.side, 16, LOCAL);
        for round in 0..ROUNDS {
            end.recv(RECEIVES + round, &mem, 8, 8);
        }
        move || {
            for round in 0..ROUNDS {
                if begins {
                    send(round, &mem, 8).go(&end);
                }
                sleep_for(&end, &channel, round);
                if !begins {
                    send(round, &mem, 8).go(&end);
                }
            }
            // Both ends are there until the other has what it wants.
            (ROUNDS, end, mem)
        }
    };
    let (a, b) = (play(a, &channels[0], true), play(b, &channels[1], false));
    let (there, back) = (start(b), start(a));
    let (there, back) = (there.join(), back.join());
    format!("{} there, {} back", there.0, back.0)
}

fn between(bed: &Bed) -> String {
    let channel = Channel::new(&bed.b);
    channel.never_block();
    let (a, b) = pair_on(bed, &channel, 1);
    let (from, to) = (Mem::of(&a.side, b"x"), Mem::new(&b.side, 8, LOCAL));
    let seen = b.rest();
    arrive(&a, &b, &from, &to);
    // Too late: no event is to come of it.
    b.cq.arm(false);
    let found = b.rest().replace("2 SUCCESS", "1");
    let event = channel.waited();
    if event != "EAGAIN" {
        // So that the queue can be destroyed.
        b.cq.acknowledge(1);
    }
    assert_eq!(event, "EAGAIN");
    format!("{seen}, then {found}")
}

/// Three pairs on one channel.
fn three(bed: &Bed, channel: &Channel) -> [(End, End); 3] {
    [1, 2, 3].map(|name| pair_on(bed, channel, name))
}

fn memory(bed: &Bed) -> (Mem, Mem) {
    (Mem::of(&bed.a, b"x"), Mem::new(&bed.b, 8, LOCAL))
}

fn whose(bed: &Bed) -> String {
    let channel = Channel::new(&bed.b);
    let pairs = three(bed, &channel);
    let (from, to) = memory(bed);
    let mut seen = Vec::new();
    for (a, b) in pairs.iter() {
        b.cq.arm(false);
        // The second has nothing to tell.
        if pairs[1].1.qpn() != b.qpn() {
            arrive(a, b, &from, &to);
            seen.push(channel.waited());
            b.cq.acknowledge(1);
        }
    }
    seen.join(", ")
}

fn silent(bed: &Bed) -> String {
    let channel = Channel::new(&bed.b);
    let pairs = three(bed, &channel);
    let (from, to) = memory(bed);
    pairs[1].1.cq.arm(false);
    for (a, b) in &pairs {
        arrive(a, b, &from, &to);
    }
    let first = channel.waited();
    pairs[1].1.cq.acknowledge(1);
    channel.never_block();
    format!("{first}, then {}", channel.waited())
}

fn two_threads(bed: &Bed) -> String {
    let channel = Arc::new(Channel::new(&bed.b));
    let pairs = [1, 2].map(|name| pair_on(bed, &channel, name));
    let (from, to) = memory(bed);
    let waiters = [(); 2].map(|()| {
        let channel = channel.clone();
        start(move || channel.waited())
    });
    for (waiter, (_, b)) in waiters.iter().zip(&pairs) {
        assert!(waiter.sleeps());
        b.cq.arm(false);
    }
    for (a, b) in &pairs {
        arrive(a, b, &from, &to);
    }
    let mut seen = waiters.map(|waiter| waiter.join());
    seen.sort();
    pairs.iter().for_each(|(_, b)| b.cq.acknowledge(1));
    seen.join(", ")
}

fn would_block(bed: &Bed) -> String {
    let channel = Channel::new(&bed.a);
    let cq = channel.cq(8, 1);
    channel.never_block();
    cq.arm(false);
    channel.waited()
}

fn unacknowledged(bed: &Bed) -> String {
    let channel = Channel::new(&bed.b);
    let (a, mut b) = pair_on(bed, &channel, 1);
    let (from, to) = memory(bed);
    b.cq.arm(false);
    arrive(&a, &b, &from, &to);
    assert_eq!(channel.waited(), "1");
    assert_eq!(b.destroy(), 0);
    let handle = b.cq.lend();
    let destroyer = start(move || b.cq.destroy());
    let waits = if destroyer.sleeps() {
        "waits"
    } else {
        "does not wait"
    };
    handle.acknowledge(1);
    format!("{waits}, then {}", destroyer.join())
}

fn together(bed: &Bed) -> String {
    let channel = Channel::new(&bed.b);
    let (a, mut b) = pair_on(bed, &channel, 1);
    let (from, to) = memory(bed);
    for _ in 0..3 {
        b.cq.arm(false);
        arrive(&a, &b, &from, &to);
        assert_eq!((channel.waited(), b.ids(1)), ("1".into(), "2".into()));
    }
    b.cq.acknowledge(3);
    assert_eq!(b.destroy(), 0);
    format!("3, then {}", b.cq.destroy())
}

fn untaken(bed: &Bed) -> String {
    let channel = Channel::new(&bed.b);
    let (a, mut b) = pair_on(bed, &channel, 1);
    let (c, d) = pair_on(bed, &channel, 2);
    let (from, to) = memory(bed);
    b.cq.arm(false);
    arrive(&a, &b, &from, &to);
    assert_eq!(b.destroy(), 0);
    let destroyed = b.cq.destroy();
    channel.never_block();
    let nothing = channel.waited();
    d.cq.arm(false);
    arrive(&c, &d, &from, &to);
    let other = channel.waited();
    d.cq.acknowledge(1);
    format!("{destroyed}, then {nothing}, then {other}")
}
