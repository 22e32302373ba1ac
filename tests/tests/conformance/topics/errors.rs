//! Receivers that are not ready, peers that are gone, flushes.

use crate::case::{Topic, case};
use crate::device::{Bed, Kind};
use crate::memory::{ALL, LOCAL, Mem};
use crate::queue::{End, IMPATIENT, Options, RC, works};
use crate::request::{Request, read, send, write};
use ibverbs_sys::ibv_qp_state as State;

pub const TOPIC: Topic = Topic {
    name: "Retries, errors, flushes",
    cases: &[
        case(
            "a SEND without a receive, without retries",
            rnr_0,
            "IBTA chapter 9",
            "RNR_RETRY_EXC_ERR, ERR, there RTS",
        ),
        case(
            "a SEND without a receive, with two retries",
            rnr_2,
            "IBTA chapter 9",
            "RNR_RETRY_EXC_ERR, ERR, there RTS",
        ),
        case(
            "a SEND without a receive, with endless retries",
            rnr_7,
            "IBTA chapter 9",
            "none, then SUCCESS, there SUCCESS",
        ),
        case(
            "a WRITE with immediate data without a receive",
            rnr_imm,
            "IBTA chapter 9",
            "RNR_RETRY_EXC_ERR",
        ),
        case(
            "a WRITE needs no receive",
            rnr_write,
            "IBTA chapter 9",
            "SUCCESS",
        ),
        case(
            "a READ needs no receive",
            read_unready,
            "IBTA chapter 9",
            "SUCCESS",
        ),
        case(
            "a peer that has been destroyed",
            gone,
            "IBTA chapter 9",
            "RETRY_EXC_ERR, ERR",
        ),
        case(
            "a peer in RESET",
            peer_reset,
            "IBTA chapter 9",
            "RETRY_EXC_ERR, ERR",
        ),
        case(
            "a peer in INIT",
            peer_init,
            "IBTA chapter 9",
            "RETRY_EXC_ERR, ERR",
        ),
        case(
            "a peer in ERR",
            peer_err,
            "IBTA chapter 9",
            "RETRY_EXC_ERR, ERR",
        ),
        case(
            "a peer that is connected to another",
            peer_other,
            "IBTA 9.6.1",
            "RETRY_EXC_ERR, ERR",
        ),
        case(
            "ERR flushes what is posted",
            flush,
            "IBTA 10.3.1",
            "1 WR_FLUSH_ERR, 2 WR_FLUSH_ERR, 11 WR_FLUSH_ERR, 12 WR_FLUSH_ERR",
        ),
        case(
            "a send in ERR",
            late_send,
            "ibv_post_send(3), IBTA C10-96",
            "WR_FLUSH_ERR",
        ),
        case(
            "a receive in ERR",
            late_receive,
            "ibv_post_recv(3), IBTA 10.3.1",
            "WR_FLUSH_ERR",
        )
        .but(
            Kind::Rxe,
            "none, then WR_FLUSH_ERR",
            "its library does not tell the kernel; it is flushed when the state is set once more",
        ),
        case(
            "after a failure the rest is flushed",
            after,
            "IBTA 10.3.1",
            "1, 2 REM_ACCESS_ERR, 3 WR_FLUSH_ERR, 4 WR_FLUSH_ERR",
        ),
        case(
            "receives are flushed after a failed send",
            both,
            "IBTA 10.3.1",
            "2 REM_ACCESS_ERR, 11 WR_FLUSH_ERR",
        ),
        case(
            "receives of the peer are flushed as well",
            peer,
            "IBTA chapter 9",
            "11 WR_FLUSH_ERR",
        ),
        case("ERR again", again, "ibv_modify_qp(3)", "0, ERR, none"),
        case(
            "a queue pair is used again after an error",
            recover,
            "IBTA 10.3.1",
            "works",
        ),
        case(
            "the event of a queue pair that is refused access",
            event,
            "ibv_get_async_event(3)",
            "none",
        ),
    ],
};

fn unready(bed: &Bed, rnr_retry: u8) -> String {
    let (a, b) = bed.pair(&Options { rnr_retry, ..RC });
    let mem = Mem::of(&a.side, b"x");
    send(1, &mem, 1).go(&a);
    format!(
        "{}, {}, there {}",
        a.status(),
        a.settles(State::IBV_QPS_ERR),
        b.state()
    )
}

fn rnr_0(bed: &Bed) -> String {
    unready(bed, 0)
}

fn rnr_2(bed: &Bed) -> String {
    unready(bed, 2)
}

fn rnr_7(bed: &Bed) -> String {
    let (a, b) = bed.pair(&RC);
    let (from, to) = (Mem::of(&a.side, b"x"), Mem::new(&b.side, 8, LOCAL));
    send(1, &from, 1).go(&a);
    let seen = a.rest();
    b.recv(2, &to, 0, 8);
    format!("{seen}, then {}, there {}", a.status(), b.status())
}

fn rnr_imm(bed: &Bed) -> String {
    let (a, b) = bed.pair(&Options { rnr_retry: 0, ..RC });
    let (from, to) = (Mem::of(&a.side, b"x"), Mem::new(&b.side, 8, ALL));
    write(1, from.sge(0, 1), &to).imm(1).go(&a);
    a.status()
}

fn rnr_write(bed: &Bed) -> String {
    let (a, b) = bed.pair(&Options { rnr_retry: 0, ..RC });
    let (from, to) = (Mem::of(&a.side, b"x"), Mem::new(&b.side, 8, ALL));
    write(1, from.sge(0, 1), &to).go(&a);
    a.status()
}

fn read_unready(bed: &Bed) -> String {
    let (a, b) = bed.pair(&Options { rnr_retry: 0, ..RC });
    let (to, from) = (Mem::new(&a.side, 8, LOCAL), Mem::new(&b.side, 8, ALL));
    read(1, to.sge(0, 1), &from).go(&a);
    a.status()
}

fn unheard(a: &End) -> String {
    let mem = Mem::of(&a.side, b"x");
    send(1, &mem, 1).go(a);
    format!("{}, {}", a.status(), a.settles(State::IBV_QPS_ERR))
}

fn gone(bed: &Bed) -> String {
    let (a, b) = bed.pair(&IMPATIENT);
    drop(b);
    unheard(&a)
}

fn peer_reset(bed: &Bed) -> String {
    let (a, b) = bed.pair(&IMPATIENT);
    assert_eq!(b.set(State::IBV_QPS_RESET), 0);
    unheard(&a)
}

fn peer_init(bed: &Bed) -> String {
    let (a, b) = bed.ends(&IMPATIENT);
    a.rtr(&b);
    a.rts();
    unheard(&a)
}

fn peer_err(bed: &Bed) -> String {
    let (a, b) = bed.pair(&IMPATIENT);
    assert_eq!(b.set(State::IBV_QPS_ERR), 0);
    unheard(&a)
}

fn peer_other(bed: &Bed) -> String {
    let (a, b) = bed.ends(&IMPATIENT);
    let (c, _d) = bed.ends(&IMPATIENT);
    a.rtr(&b);
    a.rts();
    // To a queue pair of the same device as the first, which is not the first.
    b.rtr(&c);
    b.rts();
    let to = Mem::new(&b.side, 8, LOCAL);
    b.recv(2, &to, 0, 8);
    unheard(&a)
}

fn flush(bed: &Bed) -> String {
    let (a, _b) = bed.pair(&RC);
    let mem = Mem::new(&a.side, 8, LOCAL);
    a.recv(11, &mem, 0, 8);
    a.recv(12, &mem, 0, 8);
    send(1, &mem, 1).go(&a);
    send(2, &mem, 1).silent().go(&a);
    assert_eq!(a.set(State::IBV_QPS_ERR), 0);
    sorted(&a, 4)
}

/// The next completions, those of sends before those of receives, each in its order.
fn sorted(end: &End, count: usize) -> String {
    let ids = end.ids(count);
    let (sends, receives): (Vec<_>, Vec<_>) = ids
        .split(", ")
        .partition(|id| id.split(' ').next().is_some_and(|id| id.len() == 1));
    [sends, receives].concat().join(", ")
}

fn late_send(bed: &Bed) -> String {
    let (a, _b) = bed.pair(&RC);
    let mem = Mem::new(&a.side, 8, LOCAL);
    assert_eq!(a.set(State::IBV_QPS_ERR), 0);
    send(1, &mem, 1).go(&a);
    a.status()
}

fn late_receive(bed: &Bed) -> String {
    let (a, _b) = bed.pair(&RC);
    let mem = Mem::new(&a.side, 8, LOCAL);
    assert_eq!(a.set(State::IBV_QPS_ERR), 0);
    a.recv(1, &mem, 0, 8);
    // Here nothing happens before something else does.
    if crate::device::kind() == Some(crate::device::Kind::Rxe) {
        let waits = a.rest();
        assert_eq!(a.set(State::IBV_QPS_ERR), 0);
        return format!("{waits}, then {}", a.status());
    }
    a.status()
}

fn after(bed: &Bed) -> String {
    let (a, b) = bed.pair(&RC);
    let (from, to) = (Mem::new(&a.side, 8, LOCAL), Mem::new(&b.side, 8, ALL));
    write(1, from.sge(0, 8), &to).go(&a);
    write(2, from.sge(0, 8), &to)
        .remote(4096, 0x7fff_ff01)
        .go(&a);
    write(3, from.sge(0, 8), &to).go(&a);
    write(4, from.sge(0, 8), &to).silent().go(&a);
    let seen = a.ids(4);
    assert_eq!(a.rest(), "none");
    seen
}

fn refused(a: &End, b: &End) -> Mem {
    let (from, to) = (Mem::new(&a.side, 8, LOCAL), Mem::new(&b.side, 8, ALL));
    let request: Request = write(2, from.sge(0, 8), &to).remote(4096, 0x7fff_ff01);
    request.go(a);
    from
}

fn both(bed: &Bed) -> String {
    let (a, b) = bed.pair(&RC);
    let mem = Mem::new(&a.side, 8, LOCAL);
    a.recv(11, &mem, 0, 8);
    let _from = refused(&a, &b);
    sorted(&a, 2)
}

fn peer(bed: &Bed) -> String {
    let (a, b) = bed.pair(&RC);
    let mem = Mem::new(&b.side, 8, LOCAL);
    b.recv(11, &mem, 0, 8);
    let _from = refused(&a, &b);
    b.ids(1)
}

fn again(bed: &Bed) -> String {
    let (a, _b) = bed.pair(&RC);
    let mem = Mem::new(&a.side, 8, LOCAL);
    a.recv(11, &mem, 0, 8);
    assert_eq!(a.set(State::IBV_QPS_ERR), 0);
    assert_eq!(a.ids(1), "11 WR_FLUSH_ERR");
    let result = a.set(State::IBV_QPS_ERR);
    format!("{result}, {}, {}", a.state(), a.rest())
}

fn recover(bed: &Bed) -> String {
    let (a, b) = bed.pair(&RC);
    let _from = refused(&a, &b);
    assert_eq!(a.status(), "REM_ACCESS_ERR");
    b.settles(State::IBV_QPS_ERR);
    for end in [&a, &b] {
        assert_eq!(end.set(State::IBV_QPS_RESET), 0);
        assert_eq!(end.modify(end.to_init()), 0);
    }
    let (a, b) = crate::queue::connected((a, b));
    works(&a, &b).to_owned()
}

fn event(bed: &Bed) -> String {
    let (a, b) = bed.pair(&RC);
    let _from = refused(&a, &b);
    assert_eq!(a.status(), "REM_ACCESS_ERR");
    b.settles(State::IBV_QPS_ERR);
    b.side.event_now()
}
