//! Order, signalling, room in the queues.

use crate::case::{Topic, case};
use crate::device::{Bed, Kind};
use crate::memory::{ALL, LOCAL, Mem};
use crate::names::{errno, opcode};
use crate::queue::{End, Options, RC};
use crate::request::{Request, add, post_all, read, send, write};
use ibverbs_sys::ibv_wr_opcode as Op;

pub const TOPIC: Topic = Topic {
    name: "Order, signalling, room",
    cases: &[
        case(
            "requests of all kinds complete in order",
            order,
            "IBTA chapter 10",
            "1, 2, 3, 4, 5, 6",
        ),
        case(
            "messages use receives in order",
            receives,
            "IBTA chapter 10",
            "11 a, 12 b, 13 c",
        ),
        case(
            "what a completion is of",
            opcodes,
            "ibv_poll_cq(3)",
            "SEND RDMA_WRITE RDMA_READ FETCH_ADD, there RECV",
        ),
        case(
            "a WRITE is there when the SEND after it is",
            visible,
            "IBTA chapter 9",
            "written",
        ),
        case(
            "a READ sees the WRITE before it",
            raw,
            "IBTA chapter 9",
            "written",
        ),
        case(
            "a fenced SEND after a READ",
            fence,
            "IBTA 10.8.3.3",
            "1, 2, there new",
        ),
        case(
            "silent requests that succeed",
            silent,
            "ibv_post_send(3)",
            "3",
        ),
        case(
            "a silent request that fails",
            silent_failure,
            "ibv_post_send(3), IBTA 10.7.3.1",
            "1 REM_ACCESS_ERR, 2 WR_FLUSH_ERR",
        ),
        case(
            "all requests of a queue pair that signals all",
            signal_all,
            "ibv_create_qp(3)",
            "1, 2",
        ),
        case(
            "a send queue that is full",
            full,
            "ibv_post_send(3)",
            "ENOMEM, the first left out",
        ),
        case(
            "room is given back by polling, also of silent requests",
            room,
            "IBTA chapter 10",
            "full until polled, then works",
        )
        .but(
            Kind::Rxe,
            "free when done, then works",
            "the place of a silent request is free as soon as it has been done",
        ),
        case(
            "a receive queue that is full",
            full_receives,
            "ibv_post_recv(3)",
            "ENOMEM",
        ),
        case(
            "a chain with a wrong request inside",
            chain,
            "ibv_post_send(3)",
            "refused, bad 2, done 1, 4",
        ),
        case(
            "an operation that the service does not have",
            operation,
            "ibv_post_send(3)",
            "LOC_QP_OP_ERR",
        )
        .but(
            Kind::Soft,
            "EOPNOTSUPP",
            "it looks already when it is posted",
        ),
    ],
};

fn order(bed: &Bed) -> String {
    let (a, b) = bed.pair(&RC);
    let (here, there) = (Mem::new(&a.side, 8, LOCAL), Mem::new(&b.side, 8, ALL));
    let room = Mem::new(&b.side, 8, LOCAL);
    b.recv(11, &room, 0, 8);
    b.recv(12, &room, 0, 8);
    read(1, here.sge(0, 8), &there).go(&a);
    write(2, here.sge(0, 8), &there).go(&a);
    send(3, &here, 8).go(&a);
    add(4, &here, &there, 1).go(&a);
    read(5, here.sge(0, 8), &there).go(&a);
    send(6, &here, 8).go(&a);
    a.ids(6)
}

fn receives(bed: &Bed) -> String {
    let (a, b) = bed.pair(&RC);
    let (from, to) = (Mem::of(&a.side, b"abc"), Mem::new(&b.side, 3, LOCAL));
    for i in 0..3 {
        b.recv(11 + i as u64, &to, i, 1);
    }
    for i in 0..3 {
        Request::new(i as u64, Op::IBV_WR_SEND)
            .sge(from.sge(i, 1))
            .go(&a);
    }
    let one = |i| {
        let wc = b.next();
        assert_eq!(wc.status.0, 0);
        format!("{} {}", wc.wr_id, to.text(i, 1))
    };
    (0..3).map(one).collect::<Vec<_>>().join(", ")
}

fn opcodes(bed: &Bed) -> String {
    let (a, b) = bed.pair(&RC);
    let (here, there) = (Mem::new(&a.side, 8, LOCAL), Mem::new(&b.side, 8, ALL));
    b.recv(9, &there, 0, 8);
    send(1, &here, 8).go(&a);
    write(2, here.sge(0, 8), &there).go(&a);
    read(3, here.sge(0, 8), &there).go(&a);
    add(4, &here, &there, 1).go(&a);
    let [one, two, three, four] = [(); 4].map(|()| opcode(a.next().opcode));
    format!(
        "{one} {two} {three} {four}, there {}",
        opcode(b.next().opcode)
    )
}

fn visible(bed: &Bed) -> String {
    let (a, b) = bed.pair(&RC);
    let (from, to) = (Mem::new(&a.side, 3000, LOCAL), Mem::new(&b.side, 3000, ALL));
    for round in 1..=20 {
        from.fill(0, &[round; 3000]);
        b.recv(9, &to, 0, 0);
        write(1, from.sge(0, 3000), &to).silent().go(&a);
        Request::new(2, Op::IBV_WR_SEND).go(&a);
        assert_eq!(b.status(), "SUCCESS");
        if to.get(0, 3000) != [round; 3000] {
            return format!("not in round {round}");
        }
        assert_eq!(a.ids(1), "2");
    }
    "written".to_owned()
}

fn raw(bed: &Bed) -> String {
    let (a, b) = bed.pair(&RC);
    let (from, to) = (Mem::of(&a.side, b"new"), Mem::new(&b.side, 8, ALL));
    let back = Mem::new(&a.side, 8, LOCAL);
    write(1, from.sge(0, 3), &to).silent().go(&a);
    read(2, back.sge(0, 3), &to).go(&a);
    assert_eq!(a.ids(1), "2");
    if back.text(0, 3) == "new" {
        "written"
    } else {
        "not yet"
    }
    .to_owned()
}

fn fence(bed: &Bed) -> String {
    let (a, b) = bed.pair(&RC);
    let (here, there) = (Mem::new(&a.side, 8, LOCAL), Mem::new(&b.side, 8, ALL));
    let room = Mem::new(&b.side, 8, LOCAL);
    there.fill(0, b"new");
    b.recv(9, &room, 0, 8);
    b.recv(9, &room, 0, 0);
    read(1, here.sge(0, 3), &there).go(&a);
    send(2, &here, 3).fence().go(&a);
    // A device may need one more request to see that the fence is gone.
    Request::new(3, Op::IBV_WR_SEND).silent().go(&a);
    let ids = a.ids(2);
    assert_eq!(b.status(), "SUCCESS");
    format!("{ids}, there {}", room.text(0, 3))
}

fn silent(bed: &Bed) -> String {
    let (a, b) = bed.pair(&RC);
    let (from, to) = (Mem::new(&a.side, 8, LOCAL), Mem::new(&b.side, 8, ALL));
    write(1, from.sge(0, 8), &to).silent().go(&a);
    read(2, from.sge(0, 8), &to).silent().go(&a);
    write(3, from.sge(0, 8), &to).go(&a);
    let seen = a.ids(1);
    assert_eq!(a.rest(), "none");
    seen
}

fn silent_failure(bed: &Bed) -> String {
    let (a, b) = bed.pair(&RC);
    let (from, to) = (Mem::new(&a.side, 8, LOCAL), Mem::new(&b.side, 8, ALL));
    write(1, from.sge(0, 8), &to)
        .remote(4096, 0x7fff_ff01)
        .silent()
        .go(&a);
    write(2, from.sge(0, 8), &to).silent().go(&a);
    a.ids(2)
}

fn signal_all(bed: &Bed) -> String {
    let (a, b) = bed.pair(&Options {
        sig_all: true,
        ..RC
    });
    let (from, to) = (Mem::new(&a.side, 8, LOCAL), Mem::new(&b.side, 8, ALL));
    write(1, from.sge(0, 8), &to).silent().go(&a);
    write(2, from.sge(0, 8), &to).silent().go(&a);
    a.ids(2)
}

/// Fills the send queue of an end whose peer has no receives.
fn fill(a: &End, mem: &Mem) -> u64 {
    let mut posted = 0;
    while send(posted, mem, 1).post(a) == 0 {
        posted += 1;
        assert!(posted < 100_000);
    }
    posted
}

fn full(bed: &Bed) -> String {
    let (a, _b) = bed.pair(&RC);
    let mem = Mem::of(&a.side, b"x");
    let depth = fill(&a, &mem);
    assert!(depth >= RC.depth.into());
    let (result, bad) = post_all(&a, vec![send(1000, &mem, 1), send(1001, &mem, 1)]);
    let which = match bad {
        Some(1000) => "the first left out".to_owned(),
        other => format!("{other:?}"),
    };
    format!("{}, {which}", errno(result))
}

fn room(bed: &Bed) -> String {
    let (a, b) = bed.pair(&Options { cqe: 256, ..RC });
    let (from, to) = (Mem::new(&a.side, 8, LOCAL), Mem::new(&b.side, 8, ALL));
    let depth = a.query().1.cap.max_send_wr as usize;
    a.cq.arm(false);
    for i in 1..depth {
        write(i as u64, from.sge(0, 8), &to).silent().go(&a);
    }
    write(depth as u64, from.sge(0, 8), &to).go(&a);
    // All are done once the last has completed, which is not polled: an event tells.
    a.cq.event();
    let seen = write(998, from.sge(0, 8), &to).silent().post(&a);
    let seen = match seen {
        libc::ENOMEM => "full until polled",
        0 => "free when done",
        _ => "another error",
    };
    assert_eq!(a.ids(1), depth.to_string());
    write(999, from.sge(0, 8), &to).go(&a);
    format!(
        "{seen}, then {}",
        if a.ids(1) == "999" {
            "works"
        } else {
            "does not work"
        }
    )
}

fn full_receives(bed: &Bed) -> String {
    let end = End::new(&bed.a, &RC).init();
    let mem = Mem::new(&bed.a, 8, LOCAL);
    let mut posted = 0;
    loop {
        match end.post_recv(posted, vec![mem.sge(0, 8)]) {
            0 => posted += 1,
            error => {
                assert!(posted >= RC.depth.into());
                return errno(error);
            }
        }
        assert!(posted < 100_000);
    }
}

fn chain(bed: &Bed) -> String {
    let (a, b) = bed.pair(&RC);
    let (from, to) = (Mem::new(&a.side, 8, LOCAL), Mem::new(&b.side, 8, ALL));
    let one = |id| write(id, from.sge(0, 8), &to);
    let most = a.query().1.cap.max_send_sge;
    let wrong = (0..most).fold(one(2), |request, _| request.sge(from.sge(0, 1)));
    let (result, bad) = post_all(&a, vec![one(1), wrong, one(3)]);
    let bad = bad.map_or("none".to_owned(), |id| id.to_string());
    one(4).go(&a);
    let refused = matches!(result, libc::EINVAL | libc::ENOMEM);
    let result = if refused {
        "refused".to_owned()
    } else {
        errno(result)
    };
    format!("{result}, bad {bad}, done {}", a.ids(2))
}

fn operation(bed: &Bed) -> String {
    let (a, _b) = bed.pair(&RC);
    Request::new(1, Op::IBV_WR_TSO).outcome(&a)
}
