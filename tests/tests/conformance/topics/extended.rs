//! The extended interface.

use crate::builder::{Builder, Fields, with_fields, with_operations};
use crate::case::{Topic, case};
use crate::device::{Bed, Kind};
use crate::memory::{ALL, LOCAL, Mem};
use crate::names::errno;
use crate::queue::{End, RC, UD, connected};
use crate::request::send;
use ibverbs_sys::{IBV_WC_STANDARD_FLAGS, ibv_mw_type, ibv_qp_create_send_ops_flags as Operations};

pub const TOPIC: Topic = Topic {
    name: "The extended interface",
    cases: &[
        case(
            "requests built by calls",
            built,
            "ibv_wr_post(3)",
            "1, 2, there hello, written",
        ),
        case(
            "what is given up is not posted",
            aborted,
            "ibv_wr_post(3)",
            "2",
        ),
        case(
            "a batch that does not fit",
            too_many,
            "ibv_wr_post(3)",
            "ENOMEM, none, then 99",
        )
        .but(
            Kind::Rxe,
            "ENOSPC, none, then 99",
            "its library has another error for a full queue here than for ibv_post_send",
        ),
        case("inline data by calls", inline, "ibv_wr_post(3)", "first").but(Kind::Rxe, "1 LOC_QP_OP_ERR", "its library sets the data but not the flag, which `verbs` sets itself"),
        case(
            "a list of segments by calls",
            list,
            "ibv_wr_post(3)",
            "6, abcdef",
        )
        .but(
            Kind::Rxe,
            "4, abcd",
            "its library counts the length of the first segment for each of them; `verbs` builds extended queue pairs for one segment there, and refuses more",
        ),
        case(
            "a list of one segment by calls",
            list_of_one,
            "ibv_wr_post(3)",
            "6, abcdef",
        ),
        case(
            "a list of inline data by calls, with its flag",
            pieces,
            "ibv_wr_post(3)",
            "6, abcdef",
        )
        .but(
            Kind::Rxe,
            "nothing",
            "its library takes the bytes and leaves their length out; `verbs` does not make such a list there, and sets one piece without one",
        ),
        case(
            "a list of one piece of inline data by calls, with its flag",
            one_piece,
            "ibv_wr_post(3)",
            "6, abcdef",
        )
        .but(
            Kind::Rxe,
            "nothing",
            "its library takes the bytes and leaves their length out; `verbs` does not make such a list there, and sets one piece without one",
        ),
        case(
            "operations that the service does not have",
            operations,
            "ibv_create_qp_ex(3)",
            "EOPNOTSUPP",
        ),
        case(
            "a completion, field by field",
            fields,
            "ibv_create_cq_ex(3)",
            "ENOENT, 2 SUCCESS RECV 5, ENOENT",
        ),
        case(
            "when there is no other completion",
            no_more,
            "ibv_create_cq_ex(3)",
            "ENOENT, then ENOENT",
        ).but(Kind::Rxe, "ENOENT, then one that never was", "when its library has said so, the end of polling takes one completion more than there was"),
        case(
            "fields that there are not",
            no_fields,
            "ibv_create_cq_ex(3)",
            "EOPNOTSUPP",
        ),
        case("a memory window", window, "ibv_alloc_mw(3)", "OK").but(
            Kind::Soft,
            "EOPNOTSUPP",
            "it has no memory windows",
        ),
    ],
};

const BOTH: u64 =
    (Operations::IBV_QP_EX_WITH_SEND.0 | Operations::IBV_QP_EX_WITH_RDMA_WRITE.0) as u64;

fn built(bed: &Bed) -> String {
    let (a, builder) = with_operations(&bed.a, &RC, BOTH).expect("a queue pair with operations");
    let (a, b) = connected((a.init(), End::new(&bed.b, &RC).init()));
    let (from, to) = (Mem::of(&bed.a, b"hello"), Mem::new(&bed.b, 16, ALL));
    let room = Mem::new(&bed.b, 8, LOCAL);
    b.recv(11, &room, 0, 8);
    builder.start();
    builder.send(1, &from, 5);
    builder.write(2, &from, &to, 5);
    assert_eq!(a.rest(), "none");
    assert_eq!(builder.complete(), 0);
    let ids = a.ids(2);
    assert_eq!(b.ids(1), "11");
    let written = if to.text(0, 5) == "hello" {
        "written"
    } else {
        "not written"
    };
    format!("{ids}, there {}, {written}", room.text(0, 5))
}

fn aborted(bed: &Bed) -> String {
    let (a, builder) = with_operations(&bed.a, &RC, BOTH).expect("a queue pair with operations");
    let (a, b) = connected((a.init(), End::new(&bed.b, &RC).init()));
    let (from, to) = (Mem::of(&bed.a, b"hello"), Mem::new(&bed.b, 16, ALL));
    builder.start();
    builder.write(1, &from, &to, 5);
    builder.abort();
    builder.start();
    builder.write(2, &from, &to, 5);
    assert_eq!(builder.complete(), 0);
    let seen = a.ids(1);
    assert_eq!((a.rest().as_str(), b.rest().as_str()), ("none", "none"));
    seen
}

fn too_many(bed: &Bed) -> String {
    let (a, builder) = with_operations(&bed.a, &RC, BOTH).expect("a queue pair with operations");
    let (a, _b) = connected((a.init(), End::new(&bed.b, &RC).init()));
    let (from, to) = (Mem::of(&bed.a, b"hello"), Mem::new(&_b.side, 16, ALL));
    let depth = a.query().1.cap.max_send_wr.into();
    builder.start();
    for id in 0..=depth {
        builder.write(id, &from, &to, 5);
    }
    let result = builder.complete();
    builder.start();
    builder.write(99, &from, &to, 5);
    assert_eq!(builder.complete(), 0);
    match a.ids(1).as_str() {
        "99" => format!("{}, none, then 99", errno(result)),
        other => format!("{}, {other}", errno(result)),
    }
}

fn inline(bed: &Bed) -> String {
    let (a, builder) = with_operations(&bed.a, &RC, BOTH).expect("a queue pair with operations");
    let (a, b) = connected((a.init(), End::new(&bed.b, &RC).init()));
    let room = Mem::new(&bed.b, 8, LOCAL);
    b.recv(11, &room, 0, 8);
    let mut bytes = *b"first";
    builder.start();
    builder.inline(1, &mut bytes);
    bytes = *b"later";
    assert_eq!((builder.complete(), bytes), (0, *b"later"));
    match a.ids(1).as_str() {
        "1" => {
            assert_eq!(b.ids(1), "11");
            room.text(0, 5)
        }
        other => other.to_owned(),
    }
}

/// Length and text of the message that `build` builds from memory with `abcdef` inside.
fn message(bed: &Bed, build: impl FnOnce(&Builder, &Mem)) -> String {
    let (a, builder) = with_operations(&bed.a, &RC, BOTH).expect("a queue pair with operations");
    let (a, b) = connected((a.init(), End::new(&bed.b, &RC).init()));
    let (from, room) = (Mem::of(&bed.a, b"abcdef"), Mem::new(&bed.b, 8, LOCAL));
    b.recv(11, &room, 0, 8);
    builder.start();
    build(&builder, &from);
    assert_eq!(builder.complete(), 0);
    assert_eq!(a.ids(1), "1");
    let len = b.next().byte_len;
    match len {
        0 => "nothing".to_owned(),
        _ => format!("{len}, {}", room.text(0, len as usize)),
    }
}

fn list(bed: &Bed) -> String {
    message(bed, |builder, from| {
        builder.send_list(1, &[from.sge(0, 2), from.sge(2, 4)]);
    })
}

fn list_of_one(bed: &Bed) -> String {
    message(bed, |builder, from| builder.send_list(1, &[from.sge(0, 6)]))
}

fn pieces(bed: &Bed) -> String {
    message(bed, |builder, _| builder.inline_list(1, &[b"ab", b"cdef"]))
}

fn one_piece(bed: &Bed) -> String {
    message(bed, |builder, _| builder.inline_list(1, &[b"abcdef"]))
}

fn operations(bed: &Bed) -> String {
    errno(with_operations(&bed.a, &UD, BOTH).err().unwrap_or(0))
}

/// A message has arrived at a queue pair whose completions are read field by field.
fn arrived<T>(bed: &Bed, then: impl Fn(&Fields) -> T) -> (String, T) {
    let standard = IBV_WC_STANDARD_FLAGS.0.into();
    let (cq, fields) = with_fields(&bed.b, 16, standard).expect("a completion queue with fields");
    let second = End::on(&bed.b, &RC, None, cq).init();
    let (a, b) = connected((End::new(&bed.a, &RC).init(), second));
    let (from, to) = (Mem::of(&bed.a, b"hello"), Mem::new(&bed.b, 8, LOCAL));
    let before = fields.poll();
    b.recv(2, &to, 0, 8);
    send(1, &from, 5).go(&a);
    assert_eq!(a.ids(1), "1");
    (before, then(&fields))
}

fn fields(bed: &Bed) -> String {
    let (before, seen) = arrived(bed, |fields| [fields.next(), fields.poll()]);
    format!("{before}, {}", seen.join(", "))
}

fn no_more(bed: &Bed) -> String {
    let seen = arrived(bed, |fields| [fields.poll_more(), fields.poll()]).1;
    match seen[1].as_str() {
        "ENOENT" => seen.join(", then "),
        _ => format!("{}, then one that never was", seen[0]),
    }
}

fn no_fields(bed: &Bed) -> String {
    errno(with_fields(&bed.a, 16, 1 << 40).err().unwrap_or(0))
}

fn window(bed: &Bed) -> String {
    use ibverbs_sys::inline::{ibv_alloc_mw, ibv_dealloc_mw};
    // SAFETY: the domain is alive; what is made is destroyed at once.
    unsafe {
        let window = ibv_alloc_mw(bed.a.pd, ibv_mw_type::IBV_MW_TYPE_2);
        match window.is_null() {
            true => crate::device::errno(),
            false => errno(ibv_dealloc_mw(window)),
        }
    }
}
