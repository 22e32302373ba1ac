//! Keys, bounds, protection domains, access.

use crate::case::{Topic, case};
use crate::device::{Bed, Kind};
use crate::memory::{ALL, ATOMIC, LOCAL, Mem, READ, WRITE};
use crate::names::status;
use crate::queue::{End, Options, RC, UC};
use crate::request::{Request, add, read, send, write};
use ibverbs_sys::{ibv_qp_state as State, ibv_sge, ibv_wr_opcode as Op};

const ACCESS: &str = "IBTA chapters 10, 11";
const BOTH: &str = "REM_ACCESS_ERR, ERR, there ERR";

pub const TOPIC: Topic = Topic {
    name: "Keys and protection",
    cases: &[
        case(
            "a WRITE where memory has no REMOTE_WRITE",
            write_access,
            ACCESS,
            BOTH,
        ),
        case(
            "a READ where memory has no REMOTE_READ",
            read_access,
            ACCESS,
            BOTH,
        ),
        case(
            "an atomic where memory has no REMOTE_ATOMIC",
            atomic_access,
            ACCESS,
            BOTH,
        ),
        case(
            "a WRITE to a queue pair without REMOTE_WRITE",
            qp_write,
            "IBTA chapter 9",
            "REM_INV_REQ_ERR",
        ),
        case(
            "a READ from a queue pair without REMOTE_READ",
            qp_read,
            "IBTA chapter 9",
            "REM_INV_REQ_ERR",
        ),
        case(
            "an atomic to a queue pair without REMOTE_ATOMIC",
            qp_atomic,
            "IBTA chapter 9",
            "REM_INV_REQ_ERR",
        ),
        case("a WRITE with an unknown key", unknown, ACCESS, BOTH),
        case("a WRITE one byte beyond the end", beyond, ACCESS, BOTH),
        case("a WRITE one byte before the begin", before, ACCESS, BOTH),
        case(
            "a WRITE across the end of all addresses",
            wrapping,
            ACCESS,
            BOTH,
        ),
        case(
            "a WRITE to memory whose registration has ended",
            stale,
            ACCESS,
            BOTH,
        ),
        case("a WRITE to memory of another domain", foreign, ACCESS, BOTH),
        case(
            "a WRITE that fails has written nothing",
            nothing,
            "IBTA chapter 9",
            "........",
        ),
        case(
            "a wrong key here, in a SEND",
            local_key,
            "IBTA chapter 11",
            "LOC_PROT_ERR, ERR, there RTS",
        )
        .but(
            Kind::Rxe,
            "LOC_QP_OP_ERR, ERR, there RTS",
            "it takes what does not fit a request for a malformed request",
        ),
        case(
            "memory of another domain here, in a SEND",
            local_domain,
            "IBTA chapter 11",
            "LOC_PROT_ERR, ERR, there RTS",
        )
        .but(
            Kind::Rxe,
            "LOC_QP_OP_ERR, ERR, there RTS",
            "it takes what does not fit a request for a malformed request",
        ),
        case(
            "a segment beyond its memory, in a SEND",
            local_bounds,
            "IBTA chapter 11",
            "LOC_PROT_ERR, ERR, there RTS",
        ),
        case(
            "a wrong key in the second segment of a SEND",
            second_segment,
            "IBTA chapter 11",
            "LOC_PROT_ERR, ERR, there RTS",
        )
        .but(
            Kind::Rxe,
            "LOC_QP_OP_ERR, ERR, there RTS",
            "it takes what does not fit a request for a malformed request",
        ),
        case(
            "a READ into memory without LOCAL_WRITE",
            read_into,
            "IBTA chapter 11",
            "LOC_PROT_ERR, ERR, there RTS",
        ),
        case(
            "a READ with a wrong key here",
            read_key,
            "IBTA chapter 11",
            "LOC_PROT_ERR, ERR, there RTS",
        ),
        case(
            "a receive with a wrong key",
            receive_key,
            "IBTA chapter 11",
            "REM_OP_ERR, ERR, there LOC_PROT_ERR, ERR",
        )
        .but(
            Kind::Rxe,
            "REM_OP_ERR, ERR, there LOC_QP_OP_ERR, ERR",
            "it takes what does not fit a request for a malformed request",
        ),
        case(
            "a receive into memory without LOCAL_WRITE",
            receive_into,
            "IBTA chapter 11",
            "REM_OP_ERR, ERR, there LOC_PROT_ERR, ERR",
        )
        .but(
            Kind::Rxe,
            "REM_OP_ERR, ERR, there LOC_QP_OP_ERR, ERR",
            "it takes what does not fit a request for a malformed request",
        ),
        case(
            "a SEND from memory without any access",
            send_plain,
            "ibv_reg_mr(3)",
            "SUCCESS",
        ),
        case(
            "a WRITE of nothing with an unknown key",
            zero_write,
            "IBTA C9-88",
            "SUCCESS",
        ),
        case(
            "a READ of nothing with an unknown key",
            zero_read,
            "IBTA C9-88",
            "SUCCESS",
        ),
        case(
            "a SEND of a segment of no length with a wrong key",
            zero_segment,
            "IBTA chapter 10",
            "SUCCESS, there SUCCESS 0",
        ),
        case(
            "a segment of no length is not the longest",
            zero_is_zero,
            "IBTA chapter 10",
            "SUCCESS, there SUCCESS 0",
        ),
        case(
            "a WRITE of nothing where memory has no REMOTE_WRITE",
            zero_access,
            "IBTA C9-88",
            "SUCCESS",
        ),
        case("a WRITE to the last byte", last, ACCESS, "SUCCESS"),
        case(
            "a WRITE with an unknown key over UC",
            unreliable,
            "IBTA chapter 9",
            "SUCCESS, RTS, there RTS",
        ),
    ],
};

fn wrong() -> ibv_sge {
    ibv_sge {
        addr: 4096,
        length: 4,
        lkey: 0x7fff_ff01,
    }
}

/// The result here, and in which state both ends are afterwards.
fn broken(a: &End, b: &End, request: Request) -> String {
    request.go(a);
    let seen = status(a.next().status);
    format!(
        "{seen}, {}, there {}",
        a.settles(State::IBV_QPS_ERR),
        b.settles(State::IBV_QPS_ERR)
    )
}

fn writing(bed: &Bed, access: u32, remote: impl Fn(&Mem) -> (u64, u32)) -> String {
    let (a, b) = bed.pair(&RC);
    let (from, to) = (Mem::of(&a.side, b"evil"), Mem::new(&b.side, 8, access));
    let (addr, key) = remote(&to);
    broken(&a, &b, write(1, from.sge(0, 4), &to).remote(addr, key))
}

fn write_access(bed: &Bed) -> String {
    writing(bed, LOCAL | READ | ATOMIC, |to| (to.addr(), to.rkey()))
}

fn read_access(bed: &Bed) -> String {
    let (a, b) = bed.pair(&RC);
    let (to, from) = (
        Mem::new(&a.side, 8, LOCAL),
        Mem::new(&b.side, 8, LOCAL | WRITE | ATOMIC),
    );
    broken(&a, &b, read(1, to.sge(0, 8), &from))
}

fn atomic_access(bed: &Bed) -> String {
    let (a, b) = bed.pair(&RC);
    let (old, word) = (
        Mem::new(&a.side, 8, LOCAL),
        Mem::new(&b.side, 8, LOCAL | WRITE | READ),
    );
    broken(&a, &b, add(1, &old, &word, 1))
}

/// On a queue pair that has no remote access.
fn closed(bed: &Bed, request: impl Fn(&Mem, &Mem) -> Request) -> String {
    let (a, b) = bed.pair(&Options { access: 0, ..RC });
    let (here, there) = (Mem::new(&a.side, 8, LOCAL), Mem::new(&b.side, 8, ALL));
    request(&here, &there).go(&a);
    a.status()
}

fn qp_write(bed: &Bed) -> String {
    closed(bed, |here, there| write(1, here.sge(0, 8), there))
}

fn qp_read(bed: &Bed) -> String {
    closed(bed, |here, there| read(1, here.sge(0, 8), there))
}

fn qp_atomic(bed: &Bed) -> String {
    closed(bed, |here, there| add(1, here, there, 1))
}

fn unknown(bed: &Bed) -> String {
    writing(bed, ALL, |to| (to.addr(), 0x7fff_ff01))
}

fn beyond(bed: &Bed) -> String {
    writing(bed, ALL, |to| (to.addr() + 5, to.rkey()))
}

fn before(bed: &Bed) -> String {
    writing(bed, ALL, |to| (to.addr() - 1, to.rkey()))
}

fn wrapping(bed: &Bed) -> String {
    writing(bed, ALL, |to| (u64::MAX - 1, to.rkey()))
}

fn stale(bed: &Bed) -> String {
    let (a, b) = bed.pair(&RC);
    let (from, mut to) = (Mem::of(&a.side, b"evil"), Mem::new(&b.side, 8, ALL));
    let request = write(1, from.sge(0, 4), &to);
    assert_eq!(to.dereg(), 0);
    broken(&a, &b, request)
}

fn foreign(bed: &Bed) -> String {
    let (a, b) = bed.pair(&RC);
    let domain = b.side.other_domain();
    let (from, to) = (Mem::of(&a.side, b"evil"), Mem::new(&domain.0, 8, ALL));
    broken(&a, &b, write(1, from.sge(0, 4), &to))
}

fn nothing(bed: &Bed) -> String {
    let (a, b) = bed.pair(&RC);
    let (from, to) = (Mem::of(&a.side, b"evil"), Mem::new(&b.side, 8, ALL));
    broken(
        &a,
        &b,
        write(1, from.sge(0, 4), &to).remote(to.addr() + 5, to.rkey()),
    );
    to.text(0, 8)
}

/// A request that is wrong here; the peer must not notice.
fn local(bed: &Bed, request: impl Fn(&Bed, &Mem) -> Request) -> String {
    let (a, b) = bed.pair(&RC);
    let (room, there) = (Mem::new(&b.side, 64, LOCAL), Mem::new(&b.side, 8, ALL));
    b.recv(9, &room, 0, 64);
    request(bed, &there).go(&a);
    let seen = a.status();
    let state = a.settles(State::IBV_QPS_ERR);
    // What the peer had been sent would be there.
    assert_eq!(b.rest(), "none");
    format!("{seen}, {state}, there {}", b.state())
}

fn local_key(bed: &Bed) -> String {
    local(bed, |_, _| Request::new(1, Op::IBV_WR_SEND).sge(wrong()))
}

fn local_domain(bed: &Bed) -> String {
    let domain = bed.a.other_domain();
    let mem = Mem::of(&domain.0, b"evil");
    local(bed, |_, _| send(1, &mem, 4))
}

fn local_bounds(bed: &Bed) -> String {
    let mem = Mem::of(&bed.a, b"four");
    local(bed, |_, _| send(1, &mem, 5))
}

fn second_segment(bed: &Bed) -> String {
    let mem = Mem::of(&bed.a, b"four");
    local(bed, |_, _| send(1, &mem, 4).sge(wrong()))
}

fn read_into(bed: &Bed) -> String {
    let mem = Mem::new(&bed.a, 8, 0);
    local(bed, |_, there| read(1, mem.sge(0, 8), there))
}

fn read_key(bed: &Bed) -> String {
    local(bed, |_, there| read(1, wrong(), there))
}

fn receiving(bed: &Bed, room: impl Fn(&End) -> i32) -> String {
    let (a, b) = bed.pair(&RC);
    let from = Mem::of(&a.side, b"four");
    assert_eq!(room(&b), 0);
    send(1, &from, 4).go(&a);
    let (here, there) = (a.status(), b.status());
    let err = State::IBV_QPS_ERR;
    format!(
        "{here}, {}, there {there}, {}",
        a.settles(err),
        b.settles(err)
    )
}

fn receive_key(bed: &Bed) -> String {
    receiving(bed, |b| b.post_recv(2, vec![wrong()]))
}

fn receive_into(bed: &Bed) -> String {
    let mem = Mem::new(&bed.b, 8, 0);
    receiving(bed, |b| b.post_recv(2, vec![mem.sge(0, 8)]))
}

fn send_plain(bed: &Bed) -> String {
    let (a, b) = bed.pair(&RC);
    let (from, to) = (Mem::new(&a.side, 8, 0), Mem::new(&b.side, 8, LOCAL));
    b.recv(2, &to, 0, 8);
    send(1, &from, 8).go(&a);
    assert_eq!(b.status(), "SUCCESS");
    a.status()
}

/// A request without memory here.
fn empty(bed: &Bed, access: u32, request: impl Fn(&Mem) -> Request) -> String {
    let (a, b) = bed.pair(&RC);
    let there = Mem::new(&b.side, 8, access);
    request(&there).go(&a);
    a.status()
}

fn zero_write(bed: &Bed) -> String {
    empty(bed, ALL, |_| {
        Request::new(1, Op::IBV_WR_RDMA_WRITE).remote(4096, 0x7fff_ff01)
    })
}

fn zero_read(bed: &Bed) -> String {
    empty(bed, ALL, |_| {
        Request::new(1, Op::IBV_WR_RDMA_READ).remote(4096, 0x7fff_ff01)
    })
}

fn zero_access(bed: &Bed) -> String {
    empty(bed, LOCAL, |to| {
        Request::new(1, Op::IBV_WR_RDMA_WRITE).remote(to.addr(), to.rkey())
    })
}

fn segment(bed: &Bed, sge: ibv_sge) -> String {
    let (a, b) = bed.pair(&RC);
    let room = Mem::new(&b.side, 8, LOCAL);
    b.recv(2, &room, 0, 8);
    Request::new(1, Op::IBV_WR_SEND).sge(sge).go(&a);
    let (here, there) = (a.status(), b.next());
    format!("{here}, there {} {}", status(there.status), there.byte_len)
}

fn zero_segment(bed: &Bed) -> String {
    segment(
        bed,
        ibv_sge {
            length: 0,
            ..wrong()
        },
    )
}

fn zero_is_zero(bed: &Bed) -> String {
    let mem = Mem::of(&bed.a, b"four");
    segment(bed, mem.sge(0, 0))
}

fn last(bed: &Bed) -> String {
    let (a, b) = bed.pair(&RC);
    let (from, to) = (Mem::of(&a.side, b"x"), Mem::new(&b.side, 8, ALL));
    write(1, from.sge(0, 1), &to)
        .remote(to.addr() + 7, to.rkey())
        .go(&a);
    let seen = a.status();
    assert_eq!(to.text(0, 8), ".......x");
    seen
}

fn unreliable(bed: &Bed) -> String {
    let (a, b) = bed.pair(&UC);
    let (from, to) = (Mem::of(&a.side, b"evil"), Mem::new(&b.side, 8, ALL));
    write(1, from.sge(0, 4), &to)
        .remote(to.addr(), 0x7fff_ff01)
        .go(&a);
    let seen = a.status();
    // In their order: the second is there when the first has been dropped.
    write(2, from.sge(0, 4), &to).go(&a);
    assert_eq!(a.ids(1), "2");
    let arrived = crate::sundry::becomes(|| to.text(0, 4) == "evil");
    format!(
        "{seen}, {}, there {}{}",
        a.state(),
        b.state(),
        if arrived {
            ""
        } else {
            ", nothing arrives any more"
        }
    )
}
