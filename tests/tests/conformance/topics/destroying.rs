//! Destroying objects, and what keeps them.

use crate::case::{Topic, case};
use crate::device::{Bed, Kind};
use crate::memory::{ALL, LOCAL, Mem};
use crate::names::errno;
use crate::queue::{End, RC, works};
use crate::request::{send, write};
use crate::sundry::{Ah, Cq, Srq};

pub const TOPIC: Topic = Topic {
    name: "Destroying",
    cases: &[
        case(
            "a domain with a memory region",
            domain_mr,
            "ibv_dealloc_pd(3)",
            "EBUSY, then OK",
        ),
        case(
            "a domain with a queue pair",
            domain_qp,
            "ibv_dealloc_pd(3)",
            "EBUSY, then OK",
        ),
        case(
            "a domain with a shared receive queue",
            domain_srq,
            "ibv_dealloc_pd(3)",
            "EBUSY, then OK",
        ),
        case(
            "a domain with an address handle",
            domain_ah,
            "ibv_dealloc_pd(3)",
            "EBUSY, then OK",
        ),
        case(
            "a completion queue with a queue pair",
            cq,
            "ibv_destroy_cq(3)",
            "EBUSY, then OK",
        ),
        case(
            "a channel with a completion queue",
            channel,
            "ibv_destroy_comp_channel(3)",
            "EBUSY",
        ),
        case(
            "a queue pair with posted receives",
            receives,
            "ibv_destroy_qp(3)",
            "OK, none",
        ),
        case(
            "a queue pair whose completions are not polled",
            completions,
            "ibv_destroy_qp(3)",
            "OK, none",
        )
        .but(
            Kind::Rxe,
            "OK, 1 SUCCESS",
            "what is in the completion queue stays there",
        ),
        case(
            "a queue pair with work under way",
            sends,
            "ibv_destroy_qp(3)",
            "OK, none",
        ),
        case(
            "a memory region in a posted receive",
            posted_mr,
            "ibv_dereg_mr(3)",
            "OK, works",
        ),
        case(
            "an address handle after its last send",
            ah,
            "ibv_destroy_ah(3)",
            "OK",
        ),
        case(
            "a completion queue with completions",
            waiting,
            "ibv_destroy_cq(3)",
            "OK",
        ),
    ],
};

fn domain_mr(bed: &Bed) -> String {
    let domain = bed.a.other_domain();
    let mem = Mem::new(&domain.0, 8, LOCAL);
    let used = domain.free();
    drop(mem);
    format!("{}, then {}", errno(used), errno(domain.free()))
}

fn domain_qp(bed: &Bed) -> String {
    let domain = bed.a.other_domain();
    let end = End::new(&domain.0, &RC);
    let used = domain.free();
    drop(end);
    format!("{}, then {}", errno(used), errno(domain.free()))
}

fn domain_srq(bed: &Bed) -> String {
    let domain = bed.a.other_domain();
    let srq = Srq::new(&domain.0, 8);
    let used = domain.free();
    drop(srq);
    format!("{}, then {}", errno(used), errno(domain.free()))
}

fn domain_ah(bed: &Bed) -> String {
    let domain = bed.a.other_domain();
    let ah = Ah::new(&domain.0, &bed.b);
    let used = domain.free();
    drop(ah);
    format!("{}, then {}", errno(used), errno(domain.free()))
}

fn cq(bed: &Bed) -> String {
    let mut end = End::new(&bed.a, &RC);
    let used = end.cq.destroy();
    assert_eq!(end.destroy(), 0);
    format!("{}, then {}", errno(used), errno(end.cq.destroy()))
}

fn channel(bed: &Bed) -> String {
    errno(Cq::new(&bed.a, 4).try_destroy_channel())
}

fn receives(bed: &Bed) -> String {
    let (mut a, _b) = bed.pair(&RC);
    let mem = Mem::new(&a.side, 8, LOCAL);
    a.recv(1, &mem, 0, 8);
    let result = a.destroy();
    format!("{}, {}", errno(result), a.rest())
}

fn completions(bed: &Bed) -> String {
    let (mut a, b) = bed.pair(&RC);
    let (from, to) = (Mem::new(&a.side, 8, LOCAL), Mem::new(&b.side, 8, ALL));
    a.cq.arm(false);
    write(1, from.sge(0, 8), &to).go(&a);
    a.cq.event();
    let result = a.destroy();
    format!("{}, {}", errno(result), a.rest())
}

fn sends(bed: &Bed) -> String {
    let (mut a, _b) = bed.pair(&RC);
    let mem = Mem::new(&a.side, 8, LOCAL);
    // Waits for a receive.
    send(1, &mem, 8).go(&a);
    let result = a.destroy();
    format!("{}, {}", errno(result), a.rest())
}

fn posted_mr(bed: &Bed) -> String {
    let (a, b) = bed.pair(&RC);
    let mut mem = Mem::new(&a.side, 8, LOCAL);
    a.recv(1, &mem, 0, 8);
    format!("{}, {}", errno(mem.dereg()), works(&a, &b))
}

fn ah(bed: &Bed) -> String {
    let (a, b) = bed.pair(&crate::queue::UD);
    let ah = Ah::new(&bed.a, &bed.b);
    let (from, to) = (Mem::of(&bed.a, b"x"), Mem::new(&bed.b, 64, LOCAL));
    b.recv(2, &to, 0, 64);
    send(1, &from, 1)
        .ud(&ah, b.qpn(), crate::queue::QKEY)
        .go(&a);
    assert_eq!(a.ids(1), "1");
    errno(ah.destroy())
}

fn waiting(bed: &Bed) -> String {
    let (mut a, b) = bed.pair(&RC);
    let (from, to) = (Mem::new(&a.side, 8, LOCAL), Mem::new(&b.side, 8, ALL));
    a.cq.arm(false);
    write(1, from.sge(0, 8), &to).go(&a);
    a.cq.event();
    assert_eq!(a.destroy(), 0);
    errno(a.cq.destroy())
}
