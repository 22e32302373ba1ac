//! Peers in another process, and what becomes of the others when it is stopped or dies.

use crate::case::{Topic, case};
use crate::device::Bed;
use crate::memory::{ALL, LOCAL, Mem};
use crate::peer;
use crate::queue::{QKEY, RC, works};
use crate::request::{Request, add, read, send, write};
use crate::sundry::{Ah, becomes};
use crate::threads::start;
use ibverbs_sys::ibv_qp_state as State;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

pub const TOPIC: Topic = Topic {
    name: "Other processes",
    cases: &[
        case(
            "a message to another process",
            message,
            "ibv_post_send(3)",
            "SUCCESS, there 5, hello",
        ),
        case(
            "a WRITE to memory of another process, and a READ of it",
            one_sided,
            "ibv_post_send(3)",
            "SUCCESS, there hello, SUCCESS, hello",
        ),
        case(
            "atomics of two processes on one word",
            atomics,
            "IBTA chapter 9",
            "100",
        ),
        case(
            "a datagram to another process",
            datagram,
            "ibv_post_send(3)",
            "SUCCESS, there 5",
        ),
        case(
            "WRITE and READ while the other process is stopped",
            stopped_one_sided,
            "IBTA chapter 9",
            "SUCCESS, SUCCESS, new",
        ),
        case(
            "a message while the other process is stopped",
            stopped_message,
            "IBTA chapter 9",
            "SUCCESS, there 5, hello",
        ),
        case(
            "a message without a receive while the other process is stopped",
            stopped_unready,
            "IBTA chapter 9",
            "none, then SUCCESS, there 5",
        ),
        case(
            "the peer is killed while a message waits for its receive",
            killed_waiting,
            "IBTA chapter 9",
            "1 RETRY_EXC_ERR, ERR",
        ),
        case(
            "what is posted behind it, and receives, when the peer is killed",
            killed_queue,
            "IBTA chapter 9, 10.3.1",
            "1 RETRY_EXC_ERR, 2 WR_FLUSH_ERR, 3 WR_FLUSH_ERR, 11 WR_FLUSH_ERR",
        ),
        case(
            "a message after the peer was killed",
            killed_message,
            "IBTA chapter 9",
            "1 RETRY_EXC_ERR, ERR",
        ),
        case(
            "a WRITE after the peer was killed",
            killed_write,
            "IBTA chapter 9",
            "1 RETRY_EXC_ERR, ERR",
        ),
        case(
            "a READ after the peer was killed",
            killed_read,
            "IBTA chapter 9",
            "1 RETRY_EXC_ERR, ERR",
        ),
        case(
            "an atomic after the peer was killed",
            killed_atomic,
            "IBTA chapter 9",
            "1 RETRY_EXC_ERR, ERR",
        ),
        case(
            "a message after the peer has ended without destroying anything",
            left,
            "IBTA chapter 9",
            "1 RETRY_EXC_ERR, ERR",
        ),
        case(
            "who has posted nothing hears nothing of the peer's death",
            killed_idle,
            "IBTA chapter 9",
            "none, RTS, none",
        ),
        case(
            "what a killed peer has sent is there",
            killed_sender,
            "IBTA chapter 9",
            "11, hello",
        ),
        case(
            "a thread that sleeps is woken by the failure",
            killed_asleep,
            "ibv_get_cq_event(3)",
            "event, 1 RETRY_EXC_ERR",
        ),
        case(
            "a message over UC after the peer was killed",
            killed_uc,
            "IBTA chapter 9",
            "1, RTS",
        ),
        case(
            "a datagram after the peer was killed",
            killed_ud,
            "IBTA chapter 9",
            "1, RTS",
        ),
        case(
            "other connections when a peer is killed",
            killed_others,
            "IBTA chapter 9",
            "works, works",
        ),
        case(
            "the queue pair is connected anew after its peer was killed",
            killed_again,
            "IBTA 10.3.1",
            "works",
        ),
    ],
};

fn message(bed: &Bed) -> String {
    let (a, mut b) = peer::connected(bed, "rc");
    let from = Mem::of(&a.side, b"hello");
    b.tell("recv 5");
    send(1, &from, 5).go(&a);
    format!(
        "{}, there {}, {}",
        a.status(),
        b.tell("next"),
        b.tell("text 5")
    )
}

fn one_sided(bed: &Bed) -> String {
    let (a, mut b) = peer::connected(bed, "rc");
    let (from, to) = (Mem::of(&a.side, b"hello"), Mem::new(&a.side, 8, LOCAL));
    b.remote(write(1, from.sge(0, 5), &from)).go(&a);
    let (written, there) = (a.status(), b.tell("text 5"));
    b.remote(read(2, to.sge(0, 5), &from)).go(&a);
    format!(
        "{written}, there {there}, {}, {}",
        a.status(),
        to.text(0, 5)
    )
}

fn atomics(bed: &Bed) -> String {
    /// Atomics of the other process.
    const PEERS: u64 = 100;
    let (a, mut b) = peer::connected(bed, "rc");
    // A third queue pair, whose peer is in this process, is at work on the same word.
    let (c, d) = bed.pair(&RC);
    let (old, word) = (Mem::new(&a.side, 8, LOCAL), Mem::new(&a.side, 8, ALL));
    let (mine, own) = (Mem::new(&d.side, 8, LOCAL), word.rkey());
    let done = Arc::new(AtomicBool::new(false));
    let there = {
        let (addr, done) = (word.addr(), done.clone());
        start(move || {
            let answer = b.tell(&format!("add {PEERS} {addr} {own}"));
            done.store(true, Ordering::Release);
            (answer, b)
        })
    };
    // As long as the other is at it.
    let mut here = 0;
    while here < PEERS || !done.load(Ordering::Acquire) {
        add(here, &mine, &word, 1).at(word.addr()).key(own).go(&d);
        assert_eq!(d.ids(1), here.to_string());
        here += 1;
    }
    assert_eq!(there.join().0, "done");
    drop((c, old));
    // None of either has been lost.
    (word.word() - here).to_string()
}

fn datagram(bed: &Bed) -> String {
    let (a, mut b) = peer::connected(bed, "ud");
    let (from, ah) = (Mem::of(&a.side, b"hello"), Ah::new(&a.side, &bed.b));
    b.tell("recv 5");
    send(1, &from, 5).ud(&ah, b.qpn, QKEY).go(&a);
    format!("{}, there {}", a.status(), b.tell("next"))
}

fn stopped_one_sided(bed: &Bed) -> String {
    let (a, b) = peer::connected(bed, "rc");
    let (from, to) = (Mem::of(&a.side, b"new"), Mem::new(&a.side, 8, LOCAL));
    b.stop();
    b.remote(write(1, from.sge(0, 3), &from)).go(&a);
    let written = a.status();
    b.remote(read(2, to.sge(0, 3), &from)).go(&a);
    format!("{written}, {}, {}", a.status(), to.text(0, 3))
}

fn stopped_message(bed: &Bed) -> String {
    let (a, mut b) = peer::connected(bed, "rc");
    let from = Mem::of(&a.side, b"hello");
    b.tell("recv 5");
    b.stop();
    send(1, &from, 5).go(&a);
    let sent = a.status();
    b.resume();
    format!("{sent}, there {}, {}", b.tell("next"), b.tell("text 5"))
}

fn stopped_unready(bed: &Bed) -> String {
    let (a, mut b) = peer::connected(bed, "rc");
    let from = Mem::of(&a.side, b"hello");
    b.stop();
    send(1, &from, 5).go(&a);
    let waits = a.rest();
    b.resume();
    b.tell("recv 5");
    format!("{waits}, then {}, there {}", a.status(), b.tell("next"))
}

fn killed_waiting(bed: &Bed) -> String {
    let (a, mut b) = peer::connected(bed, "impatient");
    let from = Mem::of(&a.side, b"x");
    send(1, &from, 1).go(&a);
    b.kill();
    format!("{}, {}", a.ids(1), a.settles(State::IBV_QPS_ERR))
}

fn killed_queue(bed: &Bed) -> String {
    let (a, mut b) = peer::connected(bed, "impatient");
    let mem = Mem::of(&a.side, b"x");
    a.recv(11, &mem, 0, 1);
    for id in 1..4 {
        send(id, &mem, 1).go(&a);
    }
    b.kill();
    let seen = a.ids(4);
    // Those of sends before those of receives, each in its order.
    let (sends, receives): (Vec<_>, Vec<_>) =
        seen.split(", ").partition(|id| !id.starts_with("11"));
    [sends, receives].concat().join(", ")
}

/// A request to a peer that was killed.
fn unheard(bed: &Bed, request: impl FnOnce(&Mem) -> Request) -> String {
    let (a, mut b) = peer::connected(bed, "impatient");
    let mem = Mem::new(&a.side, 8, LOCAL);
    b.tell("recv 5");
    b.kill();
    b.remote(request(&mem)).go(&a);
    format!("{}, {}", a.ids(1), a.settles(State::IBV_QPS_ERR))
}

fn killed_message(bed: &Bed) -> String {
    unheard(bed, |mem| send(1, mem, 1))
}

fn killed_write(bed: &Bed) -> String {
    unheard(bed, |mem| write(1, mem.sge(0, 1), mem))
}

fn killed_read(bed: &Bed) -> String {
    unheard(bed, |mem| read(1, mem.sge(0, 1), mem))
}

fn killed_atomic(bed: &Bed) -> String {
    let (a, mut b) = peer::connected(bed, "impatient");
    let old = Mem::new(&a.side, 8, LOCAL);
    b.kill();
    add(1, &old, &old, 1).at(b.addr).key(b.rkey).go(&a);
    format!("{}, {}", a.ids(1), a.settles(State::IBV_QPS_ERR))
}

fn left(bed: &Bed) -> String {
    let (a, mut b) = peer::connected(bed, "impatient");
    let from = Mem::of(&a.side, b"x");
    b.tell("recv 5");
    b.leave();
    send(1, &from, 1).go(&a);
    format!("{}, {}", a.ids(1), a.settles(State::IBV_QPS_ERR))
}

fn killed_idle(bed: &Bed) -> String {
    let (a, mut b) = peer::connected(bed, "impatient");
    let mem = Mem::new(&a.side, 8, LOCAL);
    a.recv(11, &mem, 0, 8);
    b.kill();
    // It would be told before another, which has sent something, is.
    let (c, mut d) = peer::connected(bed, "impatient");
    d.kill();
    send(1, &mem, 1).go(&c);
    assert_eq!(c.status(), "RETRY_EXC_ERR");
    format!("{}, {}, {}", a.rest(), a.state(), bed.a.event_now())
}

fn killed_sender(bed: &Bed) -> String {
    let (a, mut b) = peer::connected(bed, "rc");
    let to = Mem::new(&a.side, 8, LOCAL);
    a.recv(11, &to, 0, 8);
    b.tell("fill hello");
    b.tell("send 1 5");
    assert_eq!(b.tell("next"), "1");
    b.kill();
    format!("{}, {}", a.ids(1), to.text(0, 5))
}

fn killed_asleep(bed: &Bed) -> String {
    let (a, mut b) = peer::connected(bed, "impatient");
    let from = Mem::of(&a.side, b"x");
    a.cq.arm(false);
    send(1, &from, 1).go(&a);
    b.kill();
    format!("{}, {}", a.cq.event(), a.ids(1))
}

fn killed_uc(bed: &Bed) -> String {
    let (a, mut b) = peer::connected(bed, "uc");
    let from = Mem::of(&a.side, b"x");
    b.tell("recv 5");
    b.kill();
    send(1, &from, 1).go(&a);
    format!("{}, {}", a.ids(1), a.state())
}

fn killed_ud(bed: &Bed) -> String {
    let (a, mut b) = peer::connected(bed, "ud");
    let (from, ah) = (Mem::of(&a.side, b"x"), Ah::new(&a.side, &bed.b));
    b.tell("recv 5");
    b.kill();
    send(1, &from, 1).ud(&ah, b.qpn, QKEY).go(&a);
    format!("{}, {}", a.ids(1), a.state())
}

fn killed_others(bed: &Bed) -> String {
    let (a, mut b) = peer::connected(bed, "impatient");
    let (c, d) = bed.pair(&RC);
    let from = Mem::of(&a.side, b"x");
    send(1, &from, 1).go(&a);
    b.kill();
    let before = works(&c, &d);
    assert_eq!(a.status(), "RETRY_EXC_ERR");
    format!("{before}, {}", works(&d, &c))
}

fn killed_again(bed: &Bed) -> String {
    let (a, mut b) = peer::connected(bed, "impatient");
    let from = Mem::of(&a.side, b"x");
    send(1, &from, 1).go(&a);
    b.kill();
    assert_eq!(a.status(), "RETRY_EXC_ERR");
    assert!(becomes(|| a.state() == "ERR"));
    assert_eq!(a.set(State::IBV_QPS_RESET), 0);
    assert_eq!(a.modify(a.to_init()), 0);
    let other = crate::queue::End::new(&bed.b, &RC).init();
    let (a, other) = crate::queue::connected((a, other));
    works(&a, &other).to_owned()
}
