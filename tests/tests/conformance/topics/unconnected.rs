//! Datagrams.

use crate::case::{Topic, case};
use crate::device::{Bed, Kind};
use crate::memory::{ALL, LOCAL, Mem};
use crate::names::{errno, status};
use crate::queue::{End, QKEY, UD};
use crate::request::{Request, read, send, write};
use crate::sundry::Ah;
use ibverbs_sys::{ibv_qp_state as State, ibv_sge, ibv_wc_flags as Flags, ibv_wr_opcode as Op};

pub const TOPIC: Topic = Topic {
    name: "Datagrams",
    cases: &[
        case(
            "a datagram",
            arrives,
            "ibv_post_recv(3), IBTA chapter 9",
            "45 bytes, GRH, from its sender, hello after 40",
        ),
        case(
            "a datagram with immediate data",
            imm,
            "IBTA chapter 9",
            "SUCCESS 45, imm",
        ),
        case("a datagram of nothing", nothing, "IBTA chapter 9", "SUCCESS 40"),
        case(
            "a datagram as long as the MTU",
            longest,
            "IBTA chapter 9",
            "SUCCESS, there SUCCESS",
        ),
        case(
            "a datagram longer than the MTU",
            too_long,
            "IBTA chapter 9, C10-93.1.1",
            "SUCCESS, then 2, RTS",
        ),
        case(
            "an answer by what arrived",
            answer,
            "ibv_create_ah_from_wc(3)",
            "arrives",
        ),
        case(
            "another key",
            qkey,
            "IBTA 9.6.1",
            "dropped, then 2, there RTS",
        ),
        case(
            "a key with its highest bit stands for the queue pair's own",
            own_qkey,
            "IBTA 10.2.5",
            "SUCCESS",
        ).but(Kind::Rxe, "dropped", "it sends the key as it is"),
        case("nobody there", nobody, "IBTA 9.6.1", "SUCCESS, RTS"),
        case(
            "no receive",
            unready,
            "IBTA chapter 9",
            "dropped, then 2, there RTS",
        ),
        case(
            "a receive that is too short",
            short,
            "IBTA chapters 9, 11",
            "11 LOC_LEN_ERR, there ERR",
        ).but(Kind::Rxe, "11 LOC_QP_OP_ERR, there ERR", "it takes what does not fit a request for a malformed request"),
        case(
            "a receive that is shorter than the header",
            no_header,
            "IBTA chapters 9, 11",
            "11 LOC_LEN_ERR, there ERR",
        ).but(Kind::Rxe, "11 LOC_QP_OP_ERR, there ERR", "it takes what does not fit a request for a malformed request"),
        case(
            "a receive with a wrong key",
            receive_key,
            "IBTA chapter 11",
            "LOC_PROT_ERR, ERR",
        ).but(Kind::Rxe, "LOC_QP_OP_ERR, ERR", "it takes what does not fit a request for a malformed request"),
        case(
            "a wrong key here",
            local_key,
            "IBTA 10.3.1",
            "LOC_PROT_ERR, SQE",
        ).but(Kind::Rxe, "LOC_QP_OP_ERR, ERR", "it has no SQE, and goes to ERR; it also takes what does not fit a request for a malformed one"),
        case(
            "RTS again after a failed send",
            back,
            "IBTA 10.3.1",
            "OK, 2",
        ).but(Kind::Rxe, "EINVAL", "it has no SQE, and goes to ERR"),
        case("sending in RTR", early, "ibv_post_send(3)", "EINVAL"),
        case("receiving in RTR", rtr, "IBTA 10.3.1", "SUCCESS"),
        case("WRITE", no_write, "IBTA chapter 11", "LOC_QP_OP_ERR"),
        case("READ", no_read, "IBTA chapter 11", "LOC_QP_OP_ERR"),
        case("to itself", itself, "IBTA chapter 9", "SUCCESS, SUCCESS"),
        case("inline", inline, "ibv_post_send(3)", "first"),
    ],
};

/// Two ends, the way from the first to the second, five bytes and room.
struct Post {
    a: End,
    b: End,
    ah: Ah,
    from: Mem,
    to: Mem,
}

impl Post {
    fn new(bed: &Bed) -> Post {
        let (a, b) = bed.pair(&UD);
        Post {
            a,
            b,
            ah: Ah::new(&bed.a, &bed.b),
            from: Mem::of(&bed.a, b"hello"),
            to: Mem::new(&bed.b, 64, LOCAL),
        }
    }

    fn send(&self, id: u64) -> Request {
        send(id, &self.from, 5).ud(&self.ah, self.b.qpn(), QKEY)
    }

    /// Immediate data tells which message a receive has.
    fn numbered(&self, id: u64) -> Request {
        self.send(id).imm(id as u32)
    }

    fn room(&self, id: u64) {
        self.b.recv(id, &self.to, 0, 64);
    }

    /// The next message: its number, and the receive it is in.
    fn number(&self) -> (u32, u64) {
        let wc = self.b.next();
        // SAFETY: every message here has immediate data.
        let imm = u32::from_be(unsafe { wc.__bindgen_anon_1.imm_data });
        match wc.status.0 {
            0 => (imm, wc.wr_id),
            _ => panic!("{} {}", wc.wr_id, status(wc.status)),
        }
    }

    /// Sends what is to be dropped, and then another. Says whether only that arrives.
    fn dropped(&self, request: Request) -> String {
        request.go(&self.a);
        assert_eq!(self.a.ids(1), "1");
        self.numbered(2).go(&self.a);
        assert_eq!(self.a.ids(1), "2");
        match self.number() {
            (2, _) => format!("dropped, then 2, there {}", self.b.state()),
            (other, _) => format!("{other} arrived"),
        }
    }
}

fn arrives(bed: &Bed) -> String {
    let post = Post::new(bed);
    post.room(11);
    post.send(1).go(&post.a);
    assert_eq!(post.a.ids(1), "1");
    let wc = post.b.next();
    assert_eq!(wc.status.0, 0);
    let grh = if wc.wc_flags & Flags::IBV_WC_GRH.0 != 0 {
        "GRH"
    } else {
        "no GRH"
    };
    let from = if wc.src_qp == post.a.qpn() {
        "from its sender"
    } else {
        "from another"
    };
    format!(
        "{} bytes, {grh}, {from}, {} after 40",
        wc.byte_len,
        post.to.text(40, 5)
    )
}

fn imm(bed: &Bed) -> String {
    let post = Post::new(bed);
    post.room(11);
    post.send(1).imm(1).go(&post.a);
    let wc = post.b.next();
    let imm = if wc.wc_flags & Flags::IBV_WC_WITH_IMM.0 != 0 {
        "imm"
    } else {
        "no imm"
    };
    format!("{} {}, {imm}", status(wc.status), wc.byte_len)
}

fn nothing(bed: &Bed) -> String {
    let post = Post::new(bed);
    post.room(11);
    let request = Request::new(1, Op::IBV_WR_SEND).ud(&post.ah, post.b.qpn(), QKEY);
    request.go(&post.a);
    let wc = post.b.next();
    format!("{} {}", status(wc.status), wc.byte_len)
}

fn longest(bed: &Bed) -> String {
    let post = Post::new(bed);
    let mtu = bed.a.mtu();
    let (from, to) = (
        Mem::new(&bed.a, mtu, LOCAL),
        Mem::new(&bed.b, 40 + mtu, LOCAL),
    );
    post.b.recv(11, &to, 0, 40 + mtu);
    send(1, &from, mtu)
        .ud(&post.ah, post.b.qpn(), QKEY)
        .go(&post.a);
    format!("{}, there {}", post.a.status(), post.b.status())
}

fn too_long(bed: &Bed) -> String {
    let post = Post::new(bed);
    let len = bed.a.mtu() + 1;
    let (from, to) = (
        Mem::new(&bed.a, len, LOCAL),
        Mem::new(&bed.b, 40 + len, LOCAL),
    );
    post.b.recv(11, &to, 0, 40 + len);
    let long = send(1, &from, len).ud(&post.ah, post.b.qpn(), QKEY).imm(1);
    let result = long.post(&post.a);
    if result != 0 {
        return errno(result);
    }
    let seen = post.a.status();
    let state = post.a.state();
    if seen != "SUCCESS" {
        return format!("{seen}, {state}");
    }
    post.numbered(2).go(&post.a);
    format!("{seen}, then {}, {state}", post.number().0)
}

fn answer(bed: &Bed) -> String {
    let post = Post::new(bed);
    let back = Mem::new(&bed.a, 64, LOCAL);
    post.room(11);
    post.send(1).go(&post.a);
    let mut wc = post.b.next();
    let ah = Ah::answer(&bed.b, &mut wc, &post.to);
    post.a.recv(12, &back, 0, 64);
    let mem = Mem::of(&bed.b, b"answer");
    send(2, &mem, 6).ud(&ah, wc.src_qp, QKEY).go(&post.b);
    let [one, two] = [post.a.next().wr_id, post.a.next().wr_id];
    match (one.max(two), back.text(40, 6).as_str()) {
        (12, "answer") => "arrives".to_owned(),
        other => format!("{other:?}"),
    }
}

fn qkey(bed: &Bed) -> String {
    let post = Post::new(bed);
    post.room(11);
    post.dropped(post.numbered(1).ud(&post.ah, post.b.qpn(), QKEY ^ 1))
}

fn own_qkey(bed: &Bed) -> String {
    let post = Post::new(bed);
    post.room(11);
    post.send(1)
        .ud(&post.ah, post.b.qpn(), 0x8000_0001)
        .go(&post.a);
    // Were it dropped, this would be the one to arrive.
    post.numbered(2).go(&post.a);
    assert_eq!(post.a.ids(2), "1, 2");
    let wc = post.b.next();
    if wc.byte_len == 45 && wc.wc_flags & Flags::IBV_WC_WITH_IMM.0 == 0 {
        return status(wc.status);
    }
    "dropped".to_owned()
}

fn nobody(bed: &Bed) -> String {
    let post = Post::new(bed);
    post.send(1).ud(&post.ah, 0x00ff_fffe, QKEY).go(&post.a);
    format!("{}, {}", post.a.status(), post.a.state())
}

fn unready(bed: &Bed) -> String {
    let post = Post::new(bed);
    let third = Third::new(bed, &post);
    post.numbered(1).go(&post.a);
    third.reach(&post);
    assert_eq!(post.a.ids(2), "1, 3");
    post.room(11);
    post.numbered(2).go(&post.a);
    match post.number() {
        (2, _) => format!("dropped, then 2, there {}", post.b.state()),
        (other, _) => format!("{other} arrived"),
    }
}

/// Sends five bytes and then none, and says what becomes of them.
fn cramped(bed: &Bed, len: usize) -> String {
    let post = Post::new(bed);
    let third = Third::new(bed, &post);
    post.b.recv(11, &post.to, 0, len);
    post.numbered(1).go(&post.a);
    let nothing = Request::new(2, Op::IBV_WR_SEND).ud(&post.ah, post.b.qpn(), QKEY);
    nothing.imm(2).go(&post.a);
    third.reach(&post);
    assert_eq!(post.a.ids(3), "1, 2, 3");
    let Some(wc) = post.b.cq.poll() else {
        return format!("both dropped, there {}", post.b.state());
    };
    if wc.status.0 != 0 {
        let state = post.b.settles(State::IBV_QPS_ERR);
        return format!("{} {}, there {state}", wc.wr_id, status(wc.status));
    }
    // SAFETY: every message here has immediate data.
    let imm = u32::from_be(unsafe { wc.__bindgen_anon_1.imm_data });
    match imm {
        2 => format!("dropped, then 2 in {}, there {}", wc.wr_id, post.b.state()),
        other => format!("{other} arrived"),
    }
}

fn short(bed: &Bed) -> String {
    cramped(bed, 42)
}

fn no_header(bed: &Bed) -> String {
    cramped(bed, 20)
}

/// A third end, beside the second, to know that what was sent before to the second has arrived or been dropped.
struct Third {
    end: End,
    room: Mem,
}

impl Third {
    fn new(bed: &Bed, post: &Post) -> Third {
        let end = End::new(&bed.b, &UD).init();
        end.rtr(&post.a);
        Third {
            end,
            room: Mem::new(&bed.b, 64, LOCAL),
        }
    }

    /// Sends to it, as 3, and waits until that has arrived.
    fn reach(&self, post: &Post) {
        self.end.recv(1, &self.room, 0, 64);
        send(3, &post.from, 5)
            .ud(&post.ah, self.end.qpn(), QKEY)
            .go(&post.a);
        assert_eq!(self.end.ids(1), "1");
    }
}

fn receive_key(bed: &Bed) -> String {
    let post = Post::new(bed);
    let mut sge = post.to.sge(0, 64);
    sge.lkey = 0x7fff_ff01;
    assert_eq!(post.b.post_recv(11, vec![sge]), 0);
    post.send(1).go(&post.a);
    assert_eq!(post.a.ids(1), "1");
    format!(
        "{}, {}",
        post.b.status(),
        post.b.settles(State::IBV_QPS_ERR)
    )
}

fn wrong(post: &Post) -> Request {
    let sge = ibv_sge {
        addr: 4096,
        length: 4,
        lkey: 0x7fff_ff01,
    };
    Request::new(1, Op::IBV_WR_SEND)
        .sge(sge)
        .ud(&post.ah, post.b.qpn(), QKEY)
}

fn failed(end: &End) -> String {
    crate::sundry::becomes(|| end.state() != "RTS");
    end.state()
}

fn local_key(bed: &Bed) -> String {
    let post = Post::new(bed);
    wrong(&post).go(&post.a);
    let seen = post.a.status();
    format!("{seen}, {}", failed(&post.a))
}

fn back(bed: &Bed) -> String {
    let post = Post::new(bed);
    post.room(11);
    wrong(&post).go(&post.a);
    let _ = post.a.status();
    failed(&post.a);
    let result = post.a.set(State::IBV_QPS_RTS);
    if result != 0 {
        return errno(result);
    }
    post.send(2).go(&post.a);
    format!("OK, {}", post.a.ids(1))
}

fn early(bed: &Bed) -> String {
    let (a, b) = bed.ends(&UD);
    a.rtr(&b);
    let (ah, mem) = (Ah::new(&bed.a, &bed.b), Mem::of(&bed.a, b"x"));
    errno(send(1, &mem, 1).ud(&ah, b.qpn(), QKEY).post(&a))
}

fn rtr(bed: &Bed) -> String {
    let (a, b) = bed.ends(&UD);
    a.rtr(&b);
    a.rts();
    b.rtr(&a);
    let (ah, mem) = (Ah::new(&bed.a, &bed.b), Mem::of(&bed.a, b"x"));
    let to = Mem::new(&bed.b, 64, LOCAL);
    b.recv(2, &to, 0, 64);
    send(1, &mem, 1).ud(&ah, b.qpn(), QKEY).go(&a);
    assert_eq!(a.ids(1), "1");
    b.status()
}

fn no_write(bed: &Bed) -> String {
    let post = Post::new(bed);
    let there = Mem::new(&bed.b, 8, ALL);
    write(1, post.from.sge(0, 5), &there).outcome(&post.a)
}

fn no_read(bed: &Bed) -> String {
    let post = Post::new(bed);
    let there = Mem::new(&bed.b, 8, ALL);
    read(1, post.from.sge(0, 5), &there).outcome(&post.a)
}

fn itself(bed: &Bed) -> String {
    let post = Post::new(bed);
    let ah = Ah::new(&bed.a, &bed.a);
    let room = Mem::new(&bed.a, 64, LOCAL);
    post.a.recv(11, &room, 0, 64);
    send(1, &post.from, 5)
        .ud(&ah, post.a.qpn(), QKEY)
        .go(&post.a);
    post.a.statuses(2)
}

fn inline(bed: &Bed) -> String {
    let post = Post::new(bed);
    post.room(11);
    post.from.fill(0, b"first");
    post.send(1).inline().go(&post.a);
    post.from.fill(0, b"later");
    assert_eq!(post.b.status(), "SUCCESS");
    post.to.text(40, 5)
}
