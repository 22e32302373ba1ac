//! The state machine of a queue pair.

use crate::case::{Topic, case};
use crate::device::{Bed, Kind};
use crate::memory::{LOCAL, Mem, READ, WRITE};
use crate::names::{self, errno};
use crate::queue::{End, IMPATIENT, RC, connected, works};
use crate::request::{send, write};
use crate::sundry::becomes;
use ibverbs_sys::{ibv_qp_attr, ibv_qp_attr_mask as Mask, ibv_qp_state as State};

const MODIFY: &str = "ibv_modify_qp(3), IBTA 11.2.4.2";

pub const TOPIC: Topic = Topic {
    name: "States",
    cases: &[
        case("a new queue pair", new, "IBTA 10.3.1", "RESET"),
        case(
            "transitions that there are not",
            illegal,
            MODIFY,
            "all EINVAL",
        ),
        case(
            "an attribute that a transition needs is missing",
            missing,
            MODIFY,
            "all EINVAL",
        ),
        case(
            "an attribute that a transition does not take",
            superfluous,
            MODIFY,
            "EINVAL, INIT",
        ),
        case(
            "another current state than it is in",
            current,
            MODIFY,
            "EINVAL",
        )
        .but(
            Kind::Rxe,
            "OK",
            "it believes what the call says about the current state",
        ),
        case(
            "INIT again, with another access",
            init_again,
            MODIFY,
            "OK, INIT",
        ),
        case("a port that there is not", port, MODIFY, "EINVAL"),
        case("a partition that there is not", pkey, MODIFY, "EINVAL").but(
            Kind::Rxe,
            "OK",
            "it has one partition and does not look at the index",
        ),
        case("a path MTU above the port's", mtu, MODIFY, "EINVAL").but(
            Kind::Rxe,
            "OK",
            "it compares with the largest MTU it knows, 4096, not with the interface's",
        ),
        case(
            "connecting without a network header",
            no_grh,
            MODIFY,
            "EINVAL",
        ),
        case(
            "more incoming reads than the device has",
            reads,
            MODIFY,
            "EINVAL",
        )
        .but(
            Kind::Rxe,
            "OK",
            "it bounds the reads that a queue pair initiates only",
        ),
        case("SQE, by request", to_sqe, MODIFY, "EINVAL, RTS"),
        case(
            "what a queue pair was connected with",
            query,
            "ibv_query_qp(3)",
            "as set",
        ),
        case(
            "sends before RTS",
            early_sends,
            "ibv_post_send(3), IBTA 10.3.1",
            "RESET EINVAL, INIT EINVAL, RTR EINVAL",
        ),
        case(
            "a receive in RESET",
            reset_receive,
            "ibv_post_recv(3), IBTA 10.3.1",
            "EINVAL",
        ),
        case(
            "a receive in INIT",
            init_receive,
            "IBTA 10.3.1",
            "used once connected",
        ),
        case("receiving in RTR", rtr, "IBTA 10.3.1", "SUCCESS"),
        case(
            "the event of a connection that is used before RTS",
            established,
            "ibv_get_async_event(3)",
            "COMM_EST",
        )
        .but(Kind::Rxe, "none", "it does not have this event"),
        case(
            "the event of a message that comes before RTS and is polled after it",
            established_late,
            "ibv_get_async_event(3)",
            "none, then COMM_EST, none",
        )
        .but(
            Kind::Rxe,
            "none, then none, none",
            "it does not have this event",
        ),
        case(
            "that event, of a connection that is used after RTS only",
            established_never,
            "ibv_get_async_event(3)",
            "none",
        ),
        case(
            "ERR from INIT",
            init_error,
            "IBTA 10.3.1",
            "OK, WR_FLUSH_ERR",
        ),
        case(
            "RESET from ERR drops what is posted",
            reset,
            "IBTA 10.3.1",
            "none, then works",
        ),
        case(
            "completions that are there when a queue pair is reset",
            reset_keeps,
            "IBTA 10.3.1",
            "none",
        )
        .but(
            Kind::Rxe,
            "1 SUCCESS, 3 SUCCESS",
            "what is in the completion queue stays there",
        ),
        case(
            "access rights change in RTS",
            rts_access,
            MODIFY,
            "OK, REM_INV_REQ_ERR",
        ),
        case(
            "work posted in SQD waits for RTS",
            sqd,
            "IBTA 10.3.1",
            "SQD, none, then 1, 3",
        ),
        case(
            "SQD while work is under way",
            draining,
            "IBTA 10.3.1",
            "draining, EINVAL, done 1, SQ_DRAINED, drained",
        )
        .but(
            Kind::Rxe,
            "draining, EINVAL, not done",
            "work that waits for the receiver is not taken up again while it drains",
        ),
        case(
            "SQD without work tells so, if asked",
            drained,
            "IBTA 10.3.1",
            "SQ_DRAINED",
        ),
        case("SQD without asking", quiet, "IBTA 10.3.1", "none").but(
            Kind::Rxe,
            "SQ_DRAINED",
            "it tells also who has not asked",
        ),
        case("receiving in SQD", sqd_receives, "IBTA 10.3.1", "works"),
    ],
};

fn new(bed: &Bed) -> String {
    End::new(&bed.a, &RC).state()
}

fn all(wanted: i32, results: Vec<(String, i32)>) -> String {
    let wrong: Vec<_> = results
        .into_iter()
        .filter(|(_, result)| *result != wanted)
        .map(|(what, result)| format!("{what} {}", errno(result)))
        .collect();
    match wrong.is_empty() {
        true => format!("all {}", errno(wanted)),
        false => wrong.join(", "),
    }
}

fn illegal(bed: &Bed) -> String {
    let mut results = Vec::new();
    let mut check = |end: &End, to: State| {
        let what = format!("{} to {}", end.state(), names::state(to));
        let (mut attr, mut mask) = match to {
            State::IBV_QPS_INIT => end.to_init(),
            State::IBV_QPS_RTR => end.to_rtr(end.qpn(), &bed.a),
            State::IBV_QPS_RTS => end.to_rts(),
            _ => (ibv_qp_attr::default(), Mask::IBV_QP_STATE.0),
        };
        attr.qp_state = to;
        mask |= Mask::IBV_QP_STATE.0;
        results.push((what, end.modify((attr, mask))));
    };
    use State as S;
    let end = End::new(&bed.a, &RC);
    for to in [
        S::IBV_QPS_RTR,
        S::IBV_QPS_RTS,
        S::IBV_QPS_SQD,
        S::IBV_QPS_ERR,
    ] {
        check(&end, to);
    }
    let (a, b) = bed.ends(&RC);
    for to in [S::IBV_QPS_RTS, S::IBV_QPS_SQD] {
        check(&a, to);
    }
    a.rtr(&b);
    for to in [S::IBV_QPS_INIT, S::IBV_QPS_SQD] {
        check(&a, to);
    }
    a.rts();
    for to in [S::IBV_QPS_INIT, S::IBV_QPS_RTR] {
        check(&a, to);
    }
    assert_eq!(a.set(S::IBV_QPS_ERR), 0);
    for to in [
        S::IBV_QPS_INIT,
        S::IBV_QPS_RTR,
        S::IBV_QPS_RTS,
        S::IBV_QPS_SQD,
    ] {
        check(&a, to);
    }
    all(libc::EINVAL, results)
}

fn missing(bed: &Bed) -> String {
    let mut results = Vec::new();
    let mut check = |end: &End, (attr, mask): (ibv_qp_attr, u32)| {
        let state = end.state();
        for bit in (0..32).map(|i| 1 << i).filter(|bit| mask & bit != 0) {
            if bit != Mask::IBV_QP_STATE.0 {
                results.push((format!("{state} {bit:#x}"), end.modify((attr, mask & !bit))));
            }
        }
        assert_eq!(end.modify((attr, mask)), 0);
    };
    let end = End::new(&bed.a, &RC);
    check(&end, end.to_init());
    check(&end, end.to_rtr(end.qpn(), &bed.a));
    check(&end, end.to_rts());
    all(libc::EINVAL, results)
}

fn superfluous(bed: &Bed) -> String {
    let end = End::new(&bed.a, &RC).init();
    let (attr, mask) = end.to_rtr(end.qpn(), &bed.a);
    let result = end.modify((attr, mask | Mask::IBV_QP_TIMEOUT.0));
    format!("{}, {}", errno(result), end.state())
}

fn current(bed: &Bed) -> String {
    let (a, _b) = bed.pair(&RC);
    let attr = ibv_qp_attr {
        qp_state: State::IBV_QPS_RTS,
        cur_qp_state: State::IBV_QPS_SQD,
        ..Default::default()
    };
    errno(a.modify((attr, Mask::IBV_QP_STATE.0 | Mask::IBV_QP_CUR_STATE.0)))
}

fn init_again(bed: &Bed) -> String {
    let end = End::new(&bed.a, &RC).init();
    let (mut attr, mask) = end.to_init();
    attr.qp_access_flags = READ;
    format!("{}, {}", errno(end.modify((attr, mask))), end.state())
}

fn port(bed: &Bed) -> String {
    let end = End::new(&bed.a, &RC);
    let (mut attr, mask) = end.to_init();
    attr.port_num = 2;
    errno(end.modify((attr, mask)))
}

fn pkey(bed: &Bed) -> String {
    let end = End::new(&bed.a, &RC);
    let (mut attr, mask) = end.to_init();
    attr.pkey_index = bed.a.port(1).expect("port 1 exists").pkey_tbl_len;
    errno(end.modify((attr, mask)))
}

fn connecting(bed: &Bed, change: impl Fn(&mut ibv_qp_attr)) -> String {
    let end = End::new(&bed.a, &RC).init();
    let (mut attr, mask) = end.to_rtr(end.qpn(), &bed.a);
    change(&mut attr);
    errno(end.modify((attr, mask)))
}

fn mtu(bed: &Bed) -> String {
    connecting(bed, |attr| attr.path_mtu = bed.a.mtu_above())
}

fn no_grh(bed: &Bed) -> String {
    connecting(bed, |attr| attr.ah_attr.is_global = 0)
}

fn reads(bed: &Bed) -> String {
    connecting(bed, |attr| attr.max_dest_rd_atomic = 255)
}

fn to_sqe(bed: &Bed) -> String {
    let (a, _b) = bed.pair(&RC);
    format!("{}, {}", errno(a.set(State::IBV_QPS_SQE)), a.state())
}

fn query(bed: &Bed) -> String {
    let (a, b) = bed.pair(&IMPATIENT);
    let (is, init) = a.query();
    let (rtr, rts) = (a.to_rtr(b.qpn(), &b.side).0, a.to_rts().0);
    let pairs = [
        ("state", is.qp_state.0, State::IBV_QPS_RTS.0),
        ("mtu", is.path_mtu.0, rtr.path_mtu.0),
        ("peer", is.dest_qp_num, b.qpn()),
        ("port", is.port_num.into(), 1),
        ("access", is.qp_access_flags, IMPATIENT.access),
        ("receive PSN", is.rq_psn, rtr.rq_psn),
        ("send PSN", is.sq_psn, rts.sq_psn),
        (
            "incoming reads",
            is.max_dest_rd_atomic.into(),
            rtr.max_dest_rd_atomic.into(),
        ),
        ("reads", is.max_rd_atomic.into(), rts.max_rd_atomic.into()),
        (
            "RNR timer",
            is.min_rnr_timer.into(),
            rtr.min_rnr_timer.into(),
        ),
        ("timeout", is.timeout.into(), rts.timeout.into()),
        ("retries", is.retry_cnt.into(), rts.retry_cnt.into()),
        ("RNR retries", is.rnr_retry.into(), rts.rnr_retry.into()),
        ("signalling", init.sq_sig_all as u32, 0),
        ("service", init.qp_type.0, IMPATIENT.service.0),
    ];
    let wrong: Vec<_> = pairs
        .iter()
        .filter(|(_, is, set)| is != set)
        .map(|(name, is, set)| format!("{name} {is} for {set}"))
        .collect();
    if wrong.is_empty() {
        "as set".to_owned()
    } else {
        wrong.join(", ")
    }
}

fn early_sends(bed: &Bed) -> String {
    let mem = Mem::of(&bed.a, b"early");
    let (a, b) = (End::new(&bed.a, &RC), End::new(&bed.b, &RC).init());
    let mut seen = Vec::new();
    let mut try_it = |a: &End| {
        let result = send(1, &mem, 5).post(a);
        seen.push(format!("{} {}", a.state(), errno(result)));
    };
    try_it(&a);
    let a = a.init();
    try_it(&a);
    a.rtr(&b);
    try_it(&a);
    seen.join(", ")
}

fn reset_receive(bed: &Bed) -> String {
    let (end, mem) = (End::new(&bed.a, &RC), Mem::new(&bed.a, 8, LOCAL));
    errno(end.post_recv(1, vec![mem.sge(0, 8)]))
}

fn init_receive(bed: &Bed) -> String {
    let (a, b) = bed.ends(&RC);
    let (from, to) = (Mem::of(&a.side, b"x"), Mem::new(&b.side, 8, LOCAL));
    b.recv(1, &to, 0, 8);
    let (a, b) = connected((a, b));
    send(2, &from, 1).go(&a);
    match b.ids(1).as_str() {
        "1" => "used once connected".to_owned(),
        other => other.to_owned(),
    }
}

fn rtr(bed: &Bed) -> String {
    let (a, b) = bed.ends(&RC);
    let (from, to) = (Mem::of(&a.side, b"x"), Mem::new(&b.side, 8, LOCAL));
    b.recv(1, &to, 0, 8);
    a.rtr(&b);
    a.rts();
    b.rtr(&a);
    send(2, &from, 1).go(&a);
    assert_eq!(a.status(), "SUCCESS");
    b.status()
}

fn established(bed: &Bed) -> String {
    let (a, b) = bed.ends(&RC);
    let (from, to) = (Mem::of(&a.side, b"x"), Mem::new(&b.side, 8, LOCAL));
    b.recv(1, &to, 0, 8);
    a.rtr(&b);
    a.rts();
    b.rtr(&a);
    send(2, &from, 1).go(&a);
    assert_eq!((a.ids(1).as_str(), b.ids(1).as_str()), ("2", "1"));
    b.side.event_now()
}

fn established_late(bed: &Bed) -> String {
    let (a, b) = bed.ends(&RC);
    let (from, to) = (Mem::of(&a.side, b"x"), Mem::new(&b.side, 8, LOCAL));
    b.recv(1, &to, 0, 8);
    a.rtr(&b);
    a.rts();
    b.rtr(&a);
    send(2, &from, 1).go(&a);
    assert_eq!(a.ids(1).as_str(), "2");
    let before = b.side.event_now();
    b.rts();
    let then = b.side.event_now();
    assert_eq!(b.ids(1).as_str(), "1");
    format!("{before}, then {then}, {}", b.side.event_now())
}

fn established_never(bed: &Bed) -> String {
    let (a, b) = bed.pair(&RC);
    assert_eq!((works(&a, &b), works(&b, &a)), ("works", "works"));
    b.side.event_now()
}

fn init_error(bed: &Bed) -> String {
    let (end, mem) = (End::new(&bed.a, &RC).init(), Mem::new(&bed.a, 8, LOCAL));
    end.recv(1, &mem, 0, 8);
    let result = end.set(State::IBV_QPS_ERR);
    format!("{}, {}", errno(result), end.status())
}

fn reset(bed: &Bed) -> String {
    let (a, b) = bed.pair(&RC);
    let (here, there) = (Mem::new(&a.side, 8, LOCAL), Mem::new(&b.side, 8, LOCAL));
    a.recv(1, &here, 0, 8);
    // Waits for a receive.
    send(2, &here, 8).go(&a);
    b.recv(3, &there, 0, 4);
    for end in [&a, &b] {
        assert_eq!(end.set(State::IBV_QPS_RESET), 0);
    }
    // A message may have been on its way already.
    let seen = a.rest();
    let _ = b.rest();
    let again = [a.modify(a.to_init()), b.modify(b.to_init())];
    assert_eq!(again, [0, 0]);
    let (a, b) = connected((a, b));
    format!("{seen}, then {}", works(&a, &b))
}

fn reset_keeps(bed: &Bed) -> String {
    let (a, b) = bed.pair(&RC);
    let (from, to) = (Mem::of(&a.side, b"x"), Mem::new(&b.side, 8, LOCAL));
    b.recv(1, &to, 0, 8);
    send(2, &from, 1).go(&a);
    b.recv(3, &to, 0, 8);
    send(4, &from, 1).go(&a);
    // The second has come when its sender knows; the first is still there.
    assert_eq!(a.ids(2), "2, 4");
    assert_eq!(b.set(State::IBV_QPS_RESET), 0);
    b.rest()
}

fn rts_access(bed: &Bed) -> String {
    let (a, b) = bed.pair(&RC);
    let (from, to) = (Mem::of(&a.side, b"x"), Mem::new(&b.side, 8, LOCAL | WRITE));
    let attr = ibv_qp_attr {
        qp_access_flags: READ,
        ..Default::default()
    };
    let result = b.modify((attr, Mask::IBV_QP_ACCESS_FLAGS.0));
    write(1, from.sge(0, 1), &to).go(&a);
    format!("{}, {}", errno(result), a.status())
}

fn drain(end: &End, notify: bool) -> i32 {
    let attr = ibv_qp_attr {
        qp_state: State::IBV_QPS_SQD,
        en_sqd_async_notify: notify.into(),
        ..Default::default()
    };
    end.modify((
        attr,
        Mask::IBV_QP_STATE.0 | Mask::IBV_QP_EN_SQD_ASYNC_NOTIFY.0,
    ))
}

fn sqd(bed: &Bed) -> String {
    let (a, b) = bed.pair(&RC);
    let (from, to) = (Mem::of(&a.side, b"x"), Mem::new(&b.side, 8, LOCAL));
    assert_eq!(drain(&a, true), 0);
    assert_eq!(a.side.event(), "SQ_DRAINED");
    b.recv(2, &to, 0, 8);
    send(1, &from, 1).go(&a);
    // Traffic the other way, in which it would have been sent.
    let other = works(&b, &a);
    let seen = format!("{}, {}", a.state(), a.rest());
    assert_eq!(other, "works");
    assert_eq!(a.set(State::IBV_QPS_RTS), 0);
    // A device may need one more request to see that it can go on.
    b.recv(4, &to, 0, 8);
    send(3, &from, 1).go(&a);
    format!("{seen}, then {}", a.ids(2))
}

fn draining(bed: &Bed) -> String {
    let (a, b) = (End::new(&bed.a, &RC).init(), End::new(&bed.b, &RC).init());
    assert_eq!(a.modify(a.to_rtr(b.qpn(), &bed.b)), 0);
    a.rts();
    let (from, to) = (Mem::of(&a.side, b"x"), Mem::new(&b.side, 8, LOCAL));
    a.cq.arm(false);
    send(1, &from, 1).go(&a);
    assert_eq!(drain(&a, true), 0);
    let flag = |end: &End| {
        if end.query().0.sq_draining != 0 {
            "draining"
        } else {
            "drained"
        }
    };
    let first = flag(&a);
    let back = a.set(State::IBV_QPS_RTS);
    b.recv(2, &to, 0, 8);
    assert_eq!(b.modify(b.to_rtr(a.qpn(), &bed.a)), 0);
    let begin = format!("{first}, {}", errno(back));
    if !becomes(|| a.cq.event_now() == "event") {
        return format!("{begin}, not done");
    }
    let done = a.ids(1);
    format!("{begin}, done {done}, {}, {}", a.side.event(), flag(&a))
}

fn drained(bed: &Bed) -> String {
    let (a, _b) = bed.pair(&RC);
    assert_eq!(drain(&a, true), 0);
    a.side.event()
}

fn quiet(bed: &Bed) -> String {
    let (a, _b) = bed.pair(&RC);
    assert_eq!(drain(&a, false), 0);
    // The next one comes when asked for, after this one would have.
    let seen = a.side.event_now();
    assert_eq!(a.set(State::IBV_QPS_RTS), 0);
    assert_eq!(drain(&a, true), 0);
    assert_eq!(a.side.event(), "SQ_DRAINED");
    match a.side.event_now().as_str() {
        "none" => seen,
        other => other.to_owned(),
    }
}

fn sqd_receives(bed: &Bed) -> String {
    let (a, b) = bed.pair(&RC);
    assert_eq!(drain(&a, false), 0);
    works(&b, &a).to_owned()
}
