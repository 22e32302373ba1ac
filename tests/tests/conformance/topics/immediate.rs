//! Immediate data, and what a receive is told.

use crate::case::{Topic, case};
use crate::device::{Bed, Kind};
use crate::memory::{ALL, LOCAL, Mem};
use crate::names::{opcode, status};
use crate::queue::{End, RC};
use crate::request::{Request, send, write};
use ibverbs_sys::{ibv_wc, ibv_wc_flags as Flags, ibv_wr_opcode as Op};

pub const TOPIC: Topic = Topic {
    name: "Immediate data",
    cases: &[
        case(
            "SEND with immediate data",
            with_send,
            "ibv_post_send(3)",
            "RECV 5, imm 01020304",
        ),
        case("SEND without", without, "ibv_poll_cq(3)", "RECV 5, no imm"),
        case(
            "WRITE with immediate data",
            with_write,
            "ibv_post_send(3)",
            "RECV_RDMA_WITH_IMM 5, imm 01020304, written, receive untouched",
        ),
        case(
            "WRITE of nothing with immediate data",
            with_nothing,
            "ibv_post_send(3)",
            "RECV_RDMA_WITH_IMM 0, imm 01020304",
        ),
        case(
            "WRITE with immediate data of several packets",
            with_packets,
            "ibv_post_send(3)",
            "RECV_RDMA_WITH_IMM 5000, imm 01020304",
        ),
        case(
            "WRITE without takes no receive",
            write_only,
            "ibv_post_send(3)",
            "none",
        ),
        case(
            "WRITE with immediate data and a wrong key",
            wrong_key,
            "IBTA chapter 11",
            "REM_ACCESS_ERR, there LOC_ACCESS_ERR",
        )
        .but(
            Kind::Soft,
            "REM_ACCESS_ERR, there REM_ACCESS_ERR",
            "as Soft-RoCE says it",
        )
        .but(
            Kind::Rxe,
            "REM_ACCESS_ERR, there REM_ACCESS_ERR",
            "it does not tell apart whose access it was; the sender hears the same",
        ),
        case(
            "WRITE of nothing, with immediate data and a wrong key",
            nothing_wrong,
            "IBTA C9-88",
            "SUCCESS, there SUCCESS",
        ),
        case(
            "WRITE with immediate data to a receive with a wrong key",
            receive_key,
            "IBTA chapter 10",
            "SUCCESS, there SUCCESS",
        ),
        case(
            "the number of the queue pair",
            qp_num,
            "ibv_poll_cq(3)",
            "its own",
        ),
    ],
};

const IMM: u32 = 0x0102_0304;

fn told(wc: &ibv_wc) -> String {
    if wc.status.0 != 0 {
        return status(wc.status);
    }
    let what = opcode(wc.opcode);
    if wc.wc_flags & Flags::IBV_WC_WITH_IMM.0 == 0 {
        return format!("{what} {}, no imm", wc.byte_len);
    }
    // SAFETY: the flag says which field is set.
    let imm = u32::from_be(unsafe { wc.__bindgen_anon_1.imm_data });
    format!("{what} {}, imm {imm:08x}", wc.byte_len)
}

fn sending(bed: &Bed, request: impl Fn(Request) -> Request) -> String {
    let (a, b) = bed.pair(&RC);
    let (from, to) = (Mem::of(&a.side, b"hello"), Mem::new(&b.side, 8, LOCAL));
    b.recv(2, &to, 0, 8);
    request(send(1, &from, 5)).go(&a);
    let seen = told(&b.next());
    assert_eq!(
        (a.status().as_str(), to.text(0, 5).as_str()),
        ("SUCCESS", "hello")
    );
    seen
}

fn with_send(bed: &Bed) -> String {
    sending(bed, |request| request.imm(IMM))
}

fn without(bed: &Bed) -> String {
    sending(bed, |request| request)
}

fn with_write(bed: &Bed) -> String {
    let (a, b) = bed.pair(&RC);
    let (from, to) = (Mem::of(&a.side, b"hello"), Mem::new(&b.side, 8, ALL));
    let room = Mem::new(&b.side, 8, LOCAL);
    b.recv(2, &room, 0, 8);
    write(1, from.sge(0, 5), &to).imm(IMM).go(&a);
    let seen = told(&b.next());
    assert_eq!(a.status(), "SUCCESS");
    let written = if to.text(0, 5) == "hello" {
        "written"
    } else {
        "not written"
    };
    let room = if room.word() == 0 {
        "receive untouched"
    } else {
        "receive written"
    };
    format!("{seen}, {written}, {room}")
}

fn with_nothing(bed: &Bed) -> String {
    let (a, b) = bed.pair(&RC);
    assert_eq!(b.post_recv(2, Vec::new()), 0);
    Request::new(1, Op::IBV_WR_RDMA_WRITE).imm(IMM).go(&a);
    assert_eq!(a.status(), "SUCCESS");
    told(&b.next())
}

fn with_packets(bed: &Bed) -> String {
    let (a, b) = bed.pair(&RC);
    let (from, to) = (Mem::new(&a.side, 5000, LOCAL), Mem::new(&b.side, 5000, ALL));
    assert_eq!(b.post_recv(2, Vec::new()), 0);
    write(1, from.sge(0, 5000), &to).imm(IMM).go(&a);
    assert_eq!(a.status(), "SUCCESS");
    told(&b.next())
}

fn write_only(bed: &Bed) -> String {
    let (a, b) = bed.pair(&RC);
    let (from, to) = (Mem::of(&a.side, b"hello"), Mem::new(&b.side, 8, ALL));
    b.recv(2, &to, 0, 8);
    write(1, from.sge(0, 5), &to).go(&a);
    assert_eq!(a.status(), "SUCCESS");
    b.rest()
}

fn both(a: &End, b: &End) -> String {
    format!("{}, there {}", a.status(), b.status())
}

fn wrong_key(bed: &Bed) -> String {
    let (a, b) = bed.pair(&RC);
    let (from, to) = (Mem::of(&a.side, b"hello"), Mem::new(&b.side, 8, ALL));
    b.recv(2, &to, 0, 8);
    write(1, from.sge(0, 5), &to)
        .remote(4096, 0x7fff_ff01)
        .imm(IMM)
        .go(&a);
    both(&a, &b)
}

fn nothing_wrong(bed: &Bed) -> String {
    let (a, b) = bed.pair(&RC);
    assert_eq!(b.post_recv(2, Vec::new()), 0);
    Request::new(1, Op::IBV_WR_RDMA_WRITE)
        .remote(4096, 0x7fff_ff01)
        .imm(IMM)
        .go(&a);
    both(&a, &b)
}

fn receive_key(bed: &Bed) -> String {
    let (a, b) = bed.pair(&RC);
    let (from, to) = (Mem::of(&a.side, b"hello"), Mem::new(&b.side, 8, ALL));
    let mut wrong = to.sge(0, 8);
    wrong.lkey = 0x7fff_ff01;
    assert_eq!(b.post_recv(2, vec![wrong]), 0);
    write(1, from.sge(0, 5), &to).imm(IMM).go(&a);
    both(&a, &b)
}

fn qp_num(bed: &Bed) -> String {
    let (a, b) = bed.pair(&RC);
    let (from, to) = (Mem::of(&a.side, b"hello"), Mem::new(&b.side, 8, LOCAL));
    b.recv(2, &to, 0, 8);
    send(1, &from, 5).go(&a);
    let own = [a.next().qp_num == a.qpn(), b.next().qp_num == b.qpn()];
    if own == [true; 2] {
        "its own"
    } else {
        "another"
    }
    .to_owned()
}
