//! Lengths, segments, inline data.

use crate::case::{Topic, case};
use crate::device::{Bed, Kind};
use crate::memory::{ALL, LOCAL, Mem};
use crate::names::{errno, status};
use crate::queue::{End, RC, works};
use crate::request::{Request, read, send, write};
use ibverbs_sys::{ibv_qp_state as State, ibv_sge, ibv_wr_opcode as Op};

pub const TOPIC: Topic = Topic {
    name: "Lengths, segments, inline data",
    cases: &[
        case(
            "a SEND longer than its receive",
            short,
            "IBTA chapter 11",
            "REM_INV_REQ_ERR, ERR, there LOC_LEN_ERR, ERR",
        )
        .but(
            Kind::Rxe,
            "REM_OP_ERR, ERR, there LOC_QP_OP_ERR, ERR",
            "it takes what does not fit a request for a malformed request",
        ),
        case(
            "a SEND longer than its receive, of several packets",
            short_long,
            "IBTA chapter 11",
            "REM_INV_REQ_ERR, ERR, there LOC_LEN_ERR, ERR",
        )
        .but(
            Kind::Rxe,
            "REM_OP_ERR, ERR, there LOC_QP_OP_ERR, ERR",
            "it takes what does not fit a request for a malformed request",
        ),
        case(
            "a SEND as long as its receive",
            exact,
            "IBTA chapter 9",
            "SUCCESS 8",
        ),
        case("a SEND of nothing", nothing, "IBTA chapter 9", "SUCCESS 0"),
        case(
            "a SEND of nothing to a receive without memory",
            no_room,
            "IBTA chapter 9",
            "SUCCESS 0",
        ),
        case(
            "segments are gathered and scattered in order",
            segments,
            "ibv_post_send(3)",
            "abc.def.gh",
        ),
        case(
            "of READs too",
            read_segments,
            "ibv_post_send(3)",
            "abc.def.gh",
        ),
        case("several packets", packets, "IBTA chapter 9", "equal"),
        case(
            "more segments than the send queue has",
            many_send,
            "ibv_post_send(3)",
            "refused, works",
        ),
        case(
            "more segments than the receive queue has",
            many_receive,
            "ibv_post_recv(3)",
            "refused",
        ),
        case(
            "inline data as long as allowed",
            inline_cap,
            "ibv_post_send(3)",
            "SUCCESS 64",
        ),
        case(
            "inline data longer than allowed",
            inline_above,
            "ibv_post_send(3)",
            "refused",
        ),
        case(
            "inline data needs no key",
            inline_key,
            "ibv_post_send(3)",
            "SUCCESS, there xy",
        ),
        case(
            "inline data may change once posted",
            inline_reuse,
            "ibv_post_send(3)",
            "first",
        ),
        case(
            "inline WRITE",
            inline_write,
            "ibv_post_send(3)",
            "SUCCESS, there xy",
        ),
        case("inline READ", inline_read, "ibv_post_send(3)", "EINVAL").but(
            Kind::Rxe,
            "LOC_PROT_ERR",
            "it is taken, and what was to be read into is missing when it is done",
        ),
        case(
            "the length of a completion here",
            lengths,
            "ibv_poll_cq(3)",
            "READ 8",
        ),
    ],
};

fn received(end: &End) -> String {
    let wc = end.next();
    format!("{} {}", status(wc.status), wc.byte_len)
}

fn too_long(bed: &Bed, len: usize, room: usize) -> String {
    let (a, b) = bed.pair(&RC);
    let (from, to) = (
        Mem::new(&a.side, len, LOCAL),
        Mem::new(&b.side, room, LOCAL),
    );
    b.recv(2, &to, 0, room);
    send(1, &from, len).go(&a);
    let (here, there) = (a.status(), b.status());
    let err = State::IBV_QPS_ERR;
    format!(
        "{here}, {}, there {there}, {}",
        a.settles(err),
        b.settles(err)
    )
}

fn short(bed: &Bed) -> String {
    too_long(bed, 9, 8)
}

fn short_long(bed: &Bed) -> String {
    too_long(bed, 3000, 2000)
}

fn exact(bed: &Bed) -> String {
    let (a, b) = bed.pair(&RC);
    let (from, to) = (Mem::new(&a.side, 8, LOCAL), Mem::new(&b.side, 8, LOCAL));
    b.recv(2, &to, 0, 8);
    send(1, &from, 8).go(&a);
    assert_eq!(a.status(), "SUCCESS");
    received(&b)
}

fn nothing(bed: &Bed) -> String {
    let (a, b) = bed.pair(&RC);
    let to = Mem::new(&b.side, 8, LOCAL);
    b.recv(2, &to, 0, 8);
    Request::new(1, Op::IBV_WR_SEND).go(&a);
    assert_eq!(a.status(), "SUCCESS");
    received(&b)
}

fn no_room(bed: &Bed) -> String {
    let (a, b) = bed.pair(&RC);
    assert_eq!(b.post_recv(2, Vec::new()), 0);
    Request::new(1, Op::IBV_WR_SEND).go(&a);
    assert_eq!(a.status(), "SUCCESS");
    received(&b)
}

fn segments(bed: &Bed) -> String {
    let (a, b) = bed.pair(&RC);
    let (from, to) = (Mem::of(&a.side, b"ghabcdef"), Mem::new(&b.side, 10, LOCAL));
    let pieces = vec![to.sge(0, 3), to.sge(4, 3), to.sge(8, 2)];
    assert_eq!(b.post_recv(2, pieces), 0);
    let request = Request::new(1, Op::IBV_WR_SEND)
        .sge(from.sge(2, 6))
        .sge(from.sge(0, 2));
    request.go(&a);
    assert_eq!(a.status(), "SUCCESS");
    let wc = b.next();
    assert_eq!((wc.status.0, wc.byte_len), (0, 8));
    to.text(0, 10)
}

fn read_segments(bed: &Bed) -> String {
    let (a, b) = bed.pair(&RC);
    let (to, from) = (Mem::new(&a.side, 10, LOCAL), Mem::new(&b.side, 8, ALL));
    from.fill(0, b"abcdefgh");
    read(1, to.sge(0, 3), &from)
        .sge(to.sge(4, 3))
        .sge(to.sge(8, 2))
        .go(&a);
    assert_eq!(a.status(), "SUCCESS");
    to.text(0, 10)
}

fn packets(bed: &Bed) -> String {
    let (a, b) = bed.pair(&RC);
    let bytes: Vec<u8> = (0..5000u32).map(|i| (i * 7 + i / 251) as u8).collect();
    let (from, to) = (Mem::of(&a.side, &bytes), Mem::new(&b.side, 5000, ALL));
    let back = Mem::new(&a.side, 5000, LOCAL);
    b.recv(2, &to, 0, 5000);
    send(1, &from, 5000).go(&a);
    assert_eq!(b.status(), "SUCCESS");
    let sent = to.get(0, 5000) == bytes;
    to.fill(0, &[0; 5000]);
    write(3, from.sge(0, 5000), &to).go(&a);
    read(4, back.sge(0, 5000), &to).go(&a);
    assert_eq!(a.ids(3), "1, 3, 4");
    let written = to.get(0, 5000) == bytes;
    let read = back.get(0, 5000) == bytes;
    match [sent, written, read] {
        [true, true, true] => "equal".to_owned(),
        other => format!("{other:?}"),
    }
}

/// Devices differ in which error it is.
fn refused(result: i32) -> String {
    match result {
        libc::EINVAL | libc::ENOMEM => "refused".to_owned(),
        other => errno(other),
    }
}

fn many_send(bed: &Bed) -> String {
    let (a, b) = bed.pair(&RC);
    let mem = Mem::of(&a.side, b"x");
    let most = a.query().1.cap.max_send_sge;
    let request = (0..=most).fold(Request::new(1, Op::IBV_WR_SEND), |r, _| {
        r.sge(mem.sge(0, 1))
    });
    format!("{}, {}", refused(request.post(&a)), works(&a, &b))
}

fn many_receive(bed: &Bed) -> String {
    let end = End::new(&bed.a, &RC).init();
    let mem = Mem::new(&bed.a, 8, LOCAL);
    let most = end.query().1.cap.max_recv_sge as usize;
    refused(end.post_recv(1, vec![mem.sge(0, 1); most + 1]))
}

fn inline_cap(bed: &Bed) -> String {
    let (a, b) = bed.pair(&RC);
    let (from, to) = (Mem::new(&a.side, 64, LOCAL), Mem::new(&b.side, 64, LOCAL));
    b.recv(2, &to, 0, 64);
    send(1, &from, 64).inline().go(&a);
    assert_eq!(a.status(), "SUCCESS");
    received(&b)
}

fn inline_above(bed: &Bed) -> String {
    let (a, _b) = bed.pair(&RC);
    let len = a.query().1.cap.max_inline_data as usize + 1;
    let from = Mem::new(&a.side, len, LOCAL);
    refused(send(1, &from, len).inline().post(&a))
}

fn without_key(mem: &Mem) -> ibv_sge {
    ibv_sge {
        lkey: 0x7fff_ff01,
        ..mem.sge(0, 2)
    }
}

fn inline_key(bed: &Bed) -> String {
    let (a, b) = bed.pair(&RC);
    let (from, to) = (Mem::of(&a.side, b"xy"), Mem::new(&b.side, 8, LOCAL));
    b.recv(2, &to, 0, 8);
    Request::new(1, Op::IBV_WR_SEND)
        .sge(without_key(&from))
        .inline()
        .go(&a);
    let here = a.status();
    assert_eq!(b.status(), "SUCCESS");
    format!("{here}, there {}", to.text(0, 2))
}

fn inline_reuse(bed: &Bed) -> String {
    let (a, b) = bed.pair(&RC);
    let (from, to) = (Mem::of(&a.side, b"first"), Mem::new(&b.side, 8, LOCAL));
    // It waits for a receive.
    send(1, &from, 5).inline().go(&a);
    from.fill(0, b"later");
    b.recv(2, &to, 0, 8);
    assert_eq!(
        (a.status(), b.status()),
        ("SUCCESS".into(), "SUCCESS".into())
    );
    to.text(0, 5)
}

fn inline_write(bed: &Bed) -> String {
    let (a, b) = bed.pair(&RC);
    let (from, to) = (Mem::of(&a.side, b"xy"), Mem::new(&b.side, 8, ALL));
    write(1, without_key(&from), &to).inline().go(&a);
    format!("{}, there {}", a.status(), to.text(0, 2))
}

fn inline_read(bed: &Bed) -> String {
    let (a, b) = bed.pair(&RC);
    let (to, from) = (Mem::new(&a.side, 8, LOCAL), Mem::new(&b.side, 8, ALL));
    read(1, to.sge(0, 8), &from).inline().outcome(&a)
}

fn lengths(bed: &Bed) -> String {
    let (a, b) = bed.pair(&RC);
    let (to, from) = (Mem::new(&a.side, 8, LOCAL), Mem::new(&b.side, 8, ALL));
    read(1, to.sge(0, 8), &from).go(&a);
    let wc = a.next();
    assert_eq!(wc.status.0, 0);
    format!("READ {}", wc.byte_len)
}
