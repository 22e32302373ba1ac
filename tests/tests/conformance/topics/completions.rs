//! Completion queues, and their events.

use crate::case::{Topic, case};
use crate::device::{Bed, HANG, Kind};
use crate::memory::{ALL, LOCAL, Mem};
use crate::names::errno;
use crate::queue::{Options, RC};
use crate::request::{read, send, write};
use crate::sundry::{Cq, becomes};
use ibverbs_sys::ibv_qp_state as State;

pub const TOPIC: Topic = Topic {
    name: "Completion queues and events",
    cases: &[
        case(
            "the capacity of a completion queue",
            capacity,
            "ibv_create_cq(3)",
            "as asked, or more",
        ),
        case("resizing to more", grow, "ibv_resize_cq(3)", "OK, 1, 2"),
        case(
            "resizing to fewer than wait",
            shrink,
            "ibv_resize_cq(3)",
            "EINVAL, 1, 2",
        ),
        case("resizing to none", to_none, "ibv_resize_cq(3)", "EINVAL"),
        case(
            "a completion after arming",
            armed,
            "ibv_req_notify_cq(3)",
            "event",
        ),
        case(
            "a completion without arming",
            unarmed,
            "ibv_req_notify_cq(3)",
            "no event",
        ),
        case(
            "a completion that was there before",
            before,
            "ibv_req_notify_cq(3), IBTA 11.4.2.2",
            "no event, then event",
        ),
        case(
            "one event for one arming",
            once,
            "ibv_req_notify_cq(3)",
            "event, then no event",
        ),
        case(
            "arming for solicited only, a message that is not",
            unsolicited,
            "ibv_req_notify_cq(3)",
            "no event",
        ),
        case(
            "arming for solicited only, one that is",
            solicited,
            "ibv_req_notify_cq(3)",
            "event",
        ),
        case(
            "arming for solicited only, a WRITE with immediate data that is",
            solicited_write,
            "ibv_req_notify_cq(3)",
            "event",
        ),
        case(
            "arming for solicited only, a flushed receive",
            solicited_flush,
            "ibv_req_notify_cq(3)",
            "event",
        ),
        case(
            "arming for solicited only, a failed send",
            solicited_failure,
            "ibv_req_notify_cq(3)",
            "event",
        )
        .but(
            Kind::Rxe,
            "no event",
            "it looks at the flag of the request only",
        ),
        case(
            "arming for all and then for solicited only",
            weaker,
            "IBTA 11.4.2.2",
            "event",
        ),
        case(
            "a silent request that succeeds, after arming",
            silent,
            "ibv_req_notify_cq(3)",
            "no event",
        ),
        case(
            "a completion queue that overflows",
            overflow,
            "IBTA chapter 11",
            "fewer, CQ_ERR, ERR",
        )
        .but(
            Kind::Rxe,
            "fewer, CQ_ERR, RTS",
            "it tells of the completion queue, and leaves the queue pair as it is",
        ),
    ],
};

fn capacity(bed: &Bed) -> String {
    let cq = Cq::new(&bed.a, 100);
    match cq.capacity() {
        100.. => "as asked, or more".to_owned(),
        other => other.to_string(),
    }
}

/// Two completions wait, and the queue is resized.
fn resized(bed: &Bed, cqe: i32) -> String {
    let (a, b) = bed.pair(&RC);
    let (from, to) = (Mem::new(&a.side, 8, LOCAL), Mem::new(&b.side, 8, ALL));
    a.cq.arm(false);
    write(1, from.sge(0, 8), &to).go(&a);
    a.cq.event();
    a.cq.arm(false);
    write(2, from.sge(0, 8), &to).go(&a);
    a.cq.event();
    let result = a.cq.resize(cqe);
    format!("{}, {}", errno(result), a.ids(2))
}

fn grow(bed: &Bed) -> String {
    resized(bed, 200)
}

fn shrink(bed: &Bed) -> String {
    resized(bed, 1)
}

fn to_none(bed: &Bed) -> String {
    errno(Cq::new(&bed.a, 4).resize(0))
}

fn armed(bed: &Bed) -> String {
    let (a, b) = bed.pair(&RC);
    let (from, to) = (Mem::new(&a.side, 8, LOCAL), Mem::new(&b.side, 8, ALL));
    a.cq.arm(false);
    write(1, from.sge(0, 8), &to).go(&a);
    a.cq.event().to_owned()
}

fn unarmed(bed: &Bed) -> String {
    let (a, b) = bed.pair(&RC);
    let (from, to) = (Mem::new(&a.side, 8, LOCAL), Mem::new(&b.side, 8, ALL));
    write(1, from.sge(0, 8), &to).go(&a);
    assert_eq!(a.ids(1), "1");
    a.cq.event_now().to_owned()
}

fn before(bed: &Bed) -> String {
    let (a, b) = bed.pair(&RC);
    let (from, to) = (Mem::new(&a.side, 8, LOCAL), Mem::new(&b.side, 8, ALL));
    a.cq.arm(false);
    write(1, from.sge(0, 8), &to).go(&a);
    a.cq.event();
    // It is there, and not polled.
    a.cq.arm(false);
    let seen = a.cq.event_now();
    write(2, from.sge(0, 8), &to).go(&a);
    format!(
        "{seen}, then {}",
        if seen == "event" { "-" } else { a.cq.event() }
    )
}

fn once(bed: &Bed) -> String {
    let (a, b) = bed.pair(&RC);
    let (from, to) = (Mem::new(&a.side, 8, LOCAL), Mem::new(&b.side, 8, ALL));
    a.cq.arm(false);
    write(1, from.sge(0, 8), &to).go(&a);
    write(2, from.sge(0, 8), &to).go(&a);
    let first = a.cq.event();
    assert_eq!(a.ids(2), "1, 2");
    format!("{first}, then {}", a.cq.event_now())
}

fn soliciting(bed: &Bed, solicited: bool, imm: bool) -> String {
    let (a, b) = bed.pair(&RC);
    let (from, to) = (Mem::new(&a.side, 8, LOCAL), Mem::new(&b.side, 8, ALL));
    b.recv(2, &to, 0, 8);
    b.cq.arm(true);
    let request = match imm {
        true => write(1, from.sge(0, 8), &to).imm(1),
        false => send(1, &from, 8),
    };
    if solicited {
        request.solicited()
    } else {
        request
    }
    .go(&a);
    assert_eq!((a.ids(1), b.ids(1)), ("1".into(), "2".into()));
    if solicited {
        b.cq.event()
    } else {
        b.cq.event_now()
    }
    .to_owned()
}

fn unsolicited(bed: &Bed) -> String {
    soliciting(bed, false, false)
}

fn solicited(bed: &Bed) -> String {
    soliciting(bed, true, false)
}

fn solicited_write(bed: &Bed) -> String {
    soliciting(bed, true, true)
}

fn solicited_flush(bed: &Bed) -> String {
    let (a, _b) = bed.pair(&RC);
    let mem = Mem::new(&a.side, 8, LOCAL);
    a.recv(2, &mem, 0, 8);
    a.cq.arm(true);
    assert_eq!(a.set(State::IBV_QPS_ERR), 0);
    assert_eq!(a.status(), "WR_FLUSH_ERR");
    a.cq.event_soon().to_owned()
}

fn solicited_failure(bed: &Bed) -> String {
    let (a, b) = bed.pair(&RC);
    let (from, to) = (Mem::new(&a.side, 8, LOCAL), Mem::new(&b.side, 8, ALL));
    a.cq.arm(true);
    write(1, from.sge(0, 8), &to)
        .remote(4096, 0x7fff_ff01)
        .go(&a);
    assert_eq!(a.status(), "REM_ACCESS_ERR");
    a.cq.event_soon().to_owned()
}

fn weaker(bed: &Bed) -> String {
    let (a, b) = bed.pair(&RC);
    let (from, to) = (Mem::new(&a.side, 8, LOCAL), Mem::new(&b.side, 8, ALL));
    a.cq.arm(false);
    a.cq.arm(true);
    write(1, from.sge(0, 8), &to).go(&a);
    assert_eq!(a.ids(1), "1");
    a.cq.event_soon().to_owned()
}

fn silent(bed: &Bed) -> String {
    let (a, b) = bed.pair(&RC);
    let (from, to) = (Mem::of(&a.side, b"new"), Mem::new(&b.side, 8, ALL));
    let back = Mem::new(&a.side, 8, LOCAL);
    a.cq.arm(false);
    write(1, from.sge(0, 3), &to).silent().go(&a);
    read(2, back.sge(0, 3), &to).silent().go(&a);
    // What was read is there when both are done, or about to be.
    assert!(becomes(|| back.text(0, 3) == "new"));
    a.cq.event_now().to_owned()
}

fn overflow(bed: &Bed) -> String {
    let (a, b) = bed.pair(&Options {
        depth: 128,
        cqe: 2,
        ..RC
    });
    let (from, to) = (Mem::of(&a.side, b"x"), Mem::new(&b.side, 8, ALL));
    let last = a.cq.capacity() as usize + 2;
    for id in 1..last {
        write(id as u64, from.sge(0, 0), &to).go(&a);
    }
    write(last as u64, from.sge(0, 1), &to).go(&a);
    // The last has been executed, so those before it have completed. A device may notice when it is polled.
    becomes(|| to.text(0, 1) == "x");
    let polled = a.cq.drain();
    let lost = if polled < last { "fewer" } else { "all" };
    let event = a.side.event_within(HANG / 6);
    let event = event.as_deref().unwrap_or("none");
    format!("{lost}, {event}, {}", a.state())
}
