//! Shared receive queues.

use crate::case::{Topic, case};
use crate::device::{Bed, HANG, Kind};
use crate::memory::{LOCAL, Mem};
use crate::names::{errno, status};
use crate::queue::{End, Options, RC, UD, connected};
use crate::request::{Request, send};
use crate::sundry::{Ah, Srq};
use ibverbs_sys::ibv_qp_state as State;

pub const TOPIC: Topic = Topic {
    name: "Shared receive queues",
    cases: &[
        case(
            "two queue pairs with one receive queue",
            two,
            "ibv_create_srq(3)",
            "11 of the first, 12 of the second",
        ),
        case(
            "a receive to a queue pair that has a shared queue",
            own,
            "ibv_post_recv(3)",
            "EINVAL",
        ),
        case(
            "what is asked of it",
            query,
            "ibv_query_srq(3)",
            "as asked, or more, limit 0",
        ),
        case(
            "more segments than it has",
            segments,
            "ibv_post_srq_recv(3)",
            "refused",
        ),
        case("one that is full", full, "ibv_post_srq_recv(3)", "ENOMEM"),
        case(
            "the limit is reached",
            limit,
            "ibv_modify_srq(3)",
            "none, then SRQ_LIMIT_REACHED, then none, limit 0",
        ),
        case(
            "a limit set above what waits",
            high,
            "ibv_modify_srq(3), IBTA chapter 10",
            "OK",
        ),
        case(
            "a limit above its size",
            above,
            "ibv_modify_srq(3)",
            "EINVAL",
        ),
        case("resizing to more", grow, "ibv_modify_srq(3)", "OK, more"),
        case(
            "resizing beyond the device's largest",
            beyond,
            "ibv_modify_srq(3)",
            "EINVAL",
        ),
        case(
            "resizing to fewer than wait",
            shrink,
            "ibv_modify_srq(3)",
            "EINVAL",
        ),
        case(
            "a queue pair that fails leaves it alone",
            survives,
            "IBTA 10.3.1",
            "none, then 11 of the second",
        ),
        case(
            "the event of a queue pair that takes no more",
            last,
            "ibv_get_async_event(3), IBTA chapter 10",
            "QP_LAST_WQE_REACHED",
        )
        .but(
            Kind::Rxe,
            "none",
            "it has no such event when a program asks for ERR",
        ),
        case(
            "a message longer than its receive",
            short,
            "IBTA chapter 11",
            "REM_INV_REQ_ERR, there LOC_LEN_ERR",
        )
        .but(
            Kind::Rxe,
            "REM_OP_ERR, there LOC_QP_OP_ERR",
            "it takes what does not fit a request for a malformed request",
        ),
        case(
            "a message without a receive",
            unready,
            "IBTA chapter 9",
            "RNR_RETRY_EXC_ERR",
        ),
        case(
            "a datagram longer than its receive",
            datagram,
            "IBTA chapters 9, 11",
            "11 LOC_LEN_ERR, ERR",
        )
        .but(
            Kind::Rxe,
            "11 LOC_QP_OP_ERR, ERR",
            "it takes what does not fit a request for a malformed request",
        ),
        case(
            "destroying it while it is used",
            destroy,
            "ibv_destroy_srq(3)",
            "EBUSY, then OK",
        ),
    ],
};

/// A connection whose second end has a shared receive queue.
fn pair(bed: &Bed, o: &Options, srq: &Srq) -> (End, End) {
    let ends = (
        End::new(&bed.a, o).init(),
        End::with(&bed.b, o, Some(srq)).init(),
    );
    connected(ends)
}

fn two(bed: &Bed) -> String {
    let srq = Srq::new(&bed.b, 8);
    let ((a, b), (c, d)) = (pair(bed, &RC, &srq), pair(bed, &RC, &srq));
    let (from, to) = (Mem::of(&bed.a, b"x"), Mem::new(&bed.b, 8, LOCAL));
    srq.recv(11, &to, 0, 4);
    srq.recv(12, &to, 4, 4);
    send(1, &from, 1).go(&a);
    assert_eq!(a.ids(1), "1");
    send(2, &from, 1).go(&c);
    assert_eq!(c.ids(1), "2");
    let (first, second) = (b.next(), d.next());
    assert_eq!((first.qp_num, second.qp_num), (b.qpn(), d.qpn()));
    format!(
        "{} of the first, {} of the second",
        first.wr_id, second.wr_id
    )
}

fn own(bed: &Bed) -> String {
    let srq = Srq::new(&bed.b, 8);
    let (_a, b) = pair(bed, &RC, &srq);
    let to = Mem::new(&bed.b, 8, LOCAL);
    errno(b.post_recv(1, vec![to.sge(0, 8)]))
}

fn query(bed: &Bed) -> String {
    let attr = Srq::new(&bed.a, 8).query();
    let enough = attr.max_wr >= 8 && attr.max_sge >= 2;
    let size = if enough {
        "as asked, or more"
    } else {
        "less than asked"
    };
    format!("{size}, limit {}", attr.srq_limit)
}

fn segments(bed: &Bed) -> String {
    let srq = Srq::new(&bed.a, 8);
    let mem = Mem::new(&bed.a, 8, LOCAL);
    let most = srq.query().max_sge as usize;
    match srq.post_recv(1, vec![mem.sge(0, 1); most + 1]) {
        libc::EINVAL | libc::ENOMEM => "refused".to_owned(),
        other => errno(other),
    }
}

fn full(bed: &Bed) -> String {
    let srq = Srq::new(&bed.a, 8);
    let mem = Mem::new(&bed.a, 8, LOCAL);
    for id in 0..100_000 {
        let result = srq.post_recv(id, vec![mem.sge(0, 8)]);
        if result != 0 {
            assert!(id >= 8);
            return errno(result);
        }
    }
    "never full".to_owned()
}

fn limit(bed: &Bed) -> String {
    let srq = Srq::new(&bed.b, 8);
    let (a, b) = pair(bed, &RC, &srq);
    let (from, to) = (Mem::of(&bed.a, b"x"), Mem::new(&bed.b, 8, LOCAL));
    for id in 0..4 {
        srq.recv(id, &to, 0, 8);
    }
    assert_eq!(srq.limit(2), 0);
    let message = || {
        send(1, &from, 1).go(&a);
        assert_eq!(
            (a.status().as_str(), b.status().as_str()),
            ("SUCCESS", "SUCCESS")
        );
    };
    // Four, three, two: not below the limit.
    message();
    message();
    let before = b.side.event_now();
    message();
    let event = match before.as_str() {
        "none" => b.side.event(),
        _ => "-".to_owned(),
    };
    message();
    let after = b.side.event_now();
    format!(
        "{before}, then {event}, then {after}, limit {}",
        srq.query().srq_limit
    )
}

fn high(bed: &Bed) -> String {
    let srq = Srq::new(&bed.b, 8);
    errno(srq.limit(4))
}

fn above(bed: &Bed) -> String {
    let srq = Srq::new(&bed.b, 8);
    errno(srq.limit(srq.query().max_wr + 1))
}

fn grow(bed: &Bed) -> String {
    let srq = Srq::new(&bed.b, 8);
    let before = srq.query().max_wr;
    let result = srq.resize(2 * before);
    let grown = srq.query().max_wr >= 2 * before;
    format!(
        "{}, {}",
        errno(result),
        if grown { "more" } else { "not more" }
    )
}

fn beyond(bed: &Bed) -> String {
    errno(Srq::new(&bed.b, 8).resize(1 << 28))
}

fn shrink(bed: &Bed) -> String {
    let srq = Srq::new(&bed.b, 8);
    let mem = Mem::new(&bed.b, 8, LOCAL);
    for id in 0..8 {
        srq.recv(id, &mem, 0, 8);
    }
    errno(srq.resize(2))
}

fn survives(bed: &Bed) -> String {
    let srq = Srq::new(&bed.b, 8);
    let ((_a, b), (c, d)) = (pair(bed, &RC, &srq), pair(bed, &RC, &srq));
    let (from, to) = (Mem::of(&bed.a, b"x"), Mem::new(&bed.b, 8, LOCAL));
    srq.recv(11, &to, 0, 8);
    assert_eq!(b.set(State::IBV_QPS_ERR), 0);
    send(1, &from, 1).go(&c);
    assert_eq!(c.ids(1), "1");
    let received = d.ids(1);
    format!("{}, then {received} of the second", b.rest())
}

fn last(bed: &Bed) -> String {
    let srq = Srq::new(&bed.b, 8);
    let (_a, b) = pair(bed, &RC, &srq);
    assert_eq!(b.set(State::IBV_QPS_ERR), 0);
    let event = b.side.event_within(HANG / 6);
    event.unwrap_or_else(|| "none".to_owned())
}

fn short(bed: &Bed) -> String {
    let srq = Srq::new(&bed.b, 8);
    let (a, b) = pair(bed, &RC, &srq);
    let (from, to) = (Mem::new(&bed.a, 9, LOCAL), Mem::new(&bed.b, 8, LOCAL));
    srq.recv(11, &to, 0, 8);
    send(1, &from, 9).go(&a);
    format!("{}, there {}", a.status(), b.status())
}

fn unready(bed: &Bed) -> String {
    let srq = Srq::new(&bed.b, 8);
    let (a, _b) = pair(bed, &Options { rnr_retry: 0, ..RC }, &srq);
    let from = Mem::new(&bed.a, 8, LOCAL);
    send(1, &from, 8).go(&a);
    a.status()
}

fn datagram(bed: &Bed) -> String {
    let srq = Srq::new(&bed.b, 8);
    let (a, b) = pair(bed, &UD, &srq);
    let ah = Ah::new(&bed.a, &bed.b);
    let (from, to) = (Mem::new(&bed.a, 64, LOCAL), Mem::new(&bed.b, 64, LOCAL));
    let message =
        |id, len| -> Request { send(id, &from, len).ud(&ah, b.qpn(), crate::queue::QKEY) };
    srq.recv(11, &to, 0, 50);
    srq.recv(12, &to, 0, 64);
    message(1, 16).go(&a);
    message(2, 8).go(&a);
    assert_eq!(a.ids(2), "1, 2");
    let first = b.next();
    match first.status.0 {
        0 => format!("dropped, then {}", first.wr_id),
        _ => {
            let state = b.settles(State::IBV_QPS_ERR);
            format!("{} {}, {state}", first.wr_id, status(first.status))
        }
    }
}

fn destroy(bed: &Bed) -> String {
    let mut srq = Srq::new(&bed.b, 8);
    let (a, b) = pair(bed, &RC, &srq);
    let used = srq.destroy();
    drop((a, b));
    format!("{}, then {}", errno(used), errno(srq.destroy()))
}
