//! Unreliable connections.

use crate::case::{Topic, case};
use crate::device::{Bed, Kind};
use crate::memory::{ALL, LOCAL, Mem};
use crate::names::{errno, status};
use crate::queue::{UC, works};
use crate::request::{Request, read, send, write};
use crate::sundry::becomes;
use ibverbs_sys::{ibv_qp_state as State, ibv_sge, ibv_wr_opcode as Op};

pub const TOPIC: Topic = Topic {
    name: "Unreliable connections",
    cases: &[
        case(
            "SEND with immediate data",
            imm,
            "IBTA chapter 9",
            "SUCCESS, there SUCCESS",
        ),
        case("WRITE", plain_write, "IBTA chapter 9", "SUCCESS, written"),
        case(
            "WRITE with immediate data",
            write_imm,
            "IBTA chapter 9",
            "SUCCESS, there SUCCESS",
        ),
        case(
            "several packets",
            packets,
            "IBTA chapter 9",
            "SUCCESS, there SUCCESS, equal",
        ),
        case("READ", no_read, "IBTA chapter 11", "LOC_QP_OP_ERR"),
        case(
            "a SEND without a receive",
            unready,
            "IBTA chapter 9",
            "SUCCESS, then 12, RTS, there RTS",
        ),
        case(
            "a SEND longer than its receive",
            short,
            "IBTA chapter 9",
            "SUCCESS, there 11 LOC_LEN_ERR, ERR",
        ).but(Kind::Rxe, "SUCCESS, there 11 LOC_QP_OP_ERR, ERR", "it takes what does not fit a request for a malformed request"),
        case("a peer that is gone", gone, "IBTA chapter 9", "SUCCESS, RTS"),
        case(
            "a wrong key here",
            local_key,
            "IBTA 10.3.1",
            "LOC_PROT_ERR, SQE",
        ).but(Kind::Rxe, "LOC_QP_OP_ERR, ERR", "it has no SQE, and goes to ERR; it also takes what does not fit a request for a malformed one"),
        case(
            "after a failed send the rest is flushed",
            flush,
            "IBTA 10.3.1",
            "1 LOC_PROT_ERR, 2 WR_FLUSH_ERR",
        ).but(Kind::Rxe, "1 LOC_QP_OP_ERR, 2 WR_FLUSH_ERR", "it takes what does not fit a request for a malformed request"),
        case(
            "receiving after a failed send",
            receives,
            "IBTA 10.3.1",
            "works",
        ).but(Kind::Rxe, "ERR", "it has no SQE, and goes to ERR"),
        case(
            "RTS again after a failed send",
            back,
            "IBTA 10.3.1",
            "OK, works",
        ).but(Kind::Rxe, "EINVAL", "it has no SQE, and goes to ERR"),
        case(
            "an attribute of reliable connections",
            attribute,
            "ibv_modify_qp(3)",
            "EINVAL",
        ),
    ],
};

fn wrong() -> Request {
    let sge = ibv_sge {
        addr: 4096,
        length: 4,
        lkey: 0x7fff_ff01,
    };
    Request::new(1, Op::IBV_WR_SEND).sge(sge)
}

fn imm(bed: &Bed) -> String {
    let (a, b) = bed.pair(&UC);
    let (from, to) = (Mem::of(&a.side, b"x"), Mem::new(&b.side, 8, LOCAL));
    b.recv(11, &to, 0, 8);
    send(1, &from, 1).imm(1).go(&a);
    format!("{}, there {}", a.status(), b.status())
}

fn plain_write(bed: &Bed) -> String {
    let (a, b) = bed.pair(&UC);
    let (from, to) = (Mem::of(&a.side, b"x"), Mem::new(&b.side, 8, ALL));
    write(1, from.sge(0, 1), &to).go(&a);
    let seen = a.status();
    let there = becomes(|| to.text(0, 1) == "x");
    format!("{seen}, {}", if there { "written" } else { "not written" })
}

fn write_imm(bed: &Bed) -> String {
    let (a, b) = bed.pair(&UC);
    let (from, to) = (Mem::of(&a.side, b"x"), Mem::new(&b.side, 8, ALL));
    b.recv(11, &to, 0, 8);
    write(1, from.sge(0, 1), &to).imm(1).go(&a);
    format!("{}, there {}", a.status(), b.status())
}

fn packets(bed: &Bed) -> String {
    let (a, b) = bed.pair(&UC);
    let (from, to) = (Mem::of(&a.side, &[7; 5000]), Mem::new(&b.side, 5000, LOCAL));
    b.recv(11, &to, 0, 5000);
    send(1, &from, 5000).go(&a);
    let seen = format!("{}, there {}", a.status(), b.status());
    format!(
        "{seen}, {}",
        if to.get(0, 5000) == [7; 5000] {
            "equal"
        } else {
            "unequal"
        }
    )
}

fn no_read(bed: &Bed) -> String {
    let (a, b) = bed.pair(&UC);
    let (to, from) = (Mem::new(&a.side, 8, LOCAL), Mem::new(&b.side, 8, ALL));
    read(1, to.sge(0, 8), &from).outcome(&a)
}

fn unready(bed: &Bed) -> String {
    let (a, b) = bed.pair(&UC);
    let (from, to) = (Mem::of(&a.side, b"x"), Mem::new(&b.side, 8, ALL));
    send(1, &from, 1).go(&a);
    let seen = a.status();
    // In their order: when this has been written, the message has been dropped.
    write(2, from.sge(0, 1), &to).go(&a);
    assert!(becomes(|| to.text(0, 1) == "x"));
    b.recv(12, &to, 0, 8);
    send(3, &from, 1).go(&a);
    assert_eq!(a.ids(2), "2, 3");
    format!(
        "{seen}, then {}, {}, there {}",
        b.ids(1),
        a.state(),
        b.state()
    )
}

fn short(bed: &Bed) -> String {
    let (a, b) = bed.pair(&UC);
    let (from, to) = (Mem::of(&a.side, b"123456789"), Mem::new(&b.side, 8, ALL));
    b.recv(11, &to, 0, 8);
    send(1, &from, 9).go(&a);
    let seen = a.status();
    // In their order: when this has been written, the message has been looked at. In ERR it is not.
    write(2, from.sge(8, 1), &to).go(&a);
    becomes(|| to.text(0, 1) == "9");
    format!("{seen}, there {}, {}", b.rest(), b.state())
}

fn gone(bed: &Bed) -> String {
    let (a, b) = bed.pair(&UC);
    drop(b);
    let from = Mem::of(&a.side, b"x");
    send(1, &from, 1).go(&a);
    format!("{}, {}", a.status(), a.state())
}

fn local_key(bed: &Bed) -> String {
    let (a, _b) = bed.pair(&UC);
    wrong().go(&a);
    let seen = status(a.next().status);
    format!("{seen}, {}", failed(&a))
}

/// The state after a failure, which may come a moment later than the completion.
fn failed(a: &crate::queue::End) -> String {
    becomes(|| a.state() != "RTS");
    a.state()
}

fn flush(bed: &Bed) -> String {
    let (a, _b) = bed.pair(&UC);
    let from = Mem::of(&a.side, b"x");
    wrong().go(&a);
    send(2, &from, 1).silent().go(&a);
    a.ids(2)
}

fn receives(bed: &Bed) -> String {
    let (a, b) = bed.pair(&UC);
    wrong().go(&a);
    let _ = a.status();
    if failed(&a) != "SQE" {
        return a.state();
    }
    works(&b, &a).to_owned()
}

fn back(bed: &Bed) -> String {
    let (a, b) = bed.pair(&UC);
    wrong().go(&a);
    let _ = a.status();
    failed(&a);
    let result = a.set(State::IBV_QPS_RTS);
    match result {
        0 => format!("OK, {}", works(&a, &b)),
        error => errno(error),
    }
}

fn attribute(bed: &Bed) -> String {
    let (a, b) = bed.ends(&UC);
    a.rtr(&b);
    let (attr, mask) = a.to_rts();
    let timeout = ibverbs_sys::ibv_qp_attr_mask::IBV_QP_TIMEOUT.0;
    errno(a.modify((attr, mask | timeout)))
}
