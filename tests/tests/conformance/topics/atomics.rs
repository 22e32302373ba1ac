//! Atomic operations.

use crate::case::{Topic, case};
use crate::device::{Bed, Kind};
use crate::memory::{ALL, LOCAL, Mem};
use crate::names::errno;
use crate::queue::{End, RC, UC};
use crate::request::{Request, add, send, swap};

pub const TOPIC: Topic = Topic {
    name: "Atomics",
    cases: &[
        case("fetch and add", fetch_add, "IBTA chapter 9", "7 then 12"),
        case(
            "fetch and add beyond the largest word",
            wraps,
            "IBTA chapter 9",
            "18446744073709551615 then 1",
        ),
        case(
            "compare and swap of equal words",
            equal,
            "IBTA chapter 9",
            "7 then 9",
        ),
        case(
            "compare and swap of unequal words",
            unequal,
            "IBTA chapter 9",
            "7 then 7",
        ),
        case(
            "an atomic on a word that is not aligned",
            unaligned,
            "IBTA chapter 9",
            "REM_INV_REQ_ERR",
        )
        .but(
            Kind::Rxe,
            "EINVAL",
            "its library looks already when it is posted",
        ),
        case(
            "an atomic into less than a word",
            short,
            "ibv_post_send(3)",
            "EINVAL",
        ),
        case(
            "an atomic into more than a word",
            long,
            "IBTA chapter 9",
            "SUCCESS, 7 then 12",
        ),
        case(
            "an atomic beyond the end",
            beyond,
            "IBTA chapter 10",
            "REM_ACCESS_ERR",
        ),
        case(
            "an atomic over UC",
            unreliable,
            "IBTA chapter 11",
            "LOC_QP_OP_ERR",
        ),
        case("a SEND after an atomic", order, "IBTA chapter 9", "12"),
        case(
            "one hundred on one word, by two queue pairs",
            many,
            "IBTA chapter 9",
            "100",
        ),
    ],
};

fn one(bed: &Bed, start: u64, request: impl Fn(&Mem, &Mem) -> Request) -> String {
    let (a, b) = bed.pair(&RC);
    let (old, word) = (Mem::new(&a.side, 16, LOCAL), Mem::new(&b.side, 8, ALL));
    word.set_word(start);
    request(&old, &word).go(&a);
    match a.status().as_str() {
        "SUCCESS" => format!("{} then {}", old.word(), word.word()),
        other => other.to_owned(),
    }
}

fn fetch_add(bed: &Bed) -> String {
    one(bed, 7, |old, word| add(1, old, word, 5))
}

fn wraps(bed: &Bed) -> String {
    one(bed, u64::MAX, |old, word| add(1, old, word, 2))
}

fn equal(bed: &Bed) -> String {
    one(bed, 7, |old, word| swap(1, old, word, 7, 9))
}

fn unequal(bed: &Bed) -> String {
    one(bed, 7, |old, word| swap(1, old, word, 8, 9))
}

fn unaligned(bed: &Bed) -> String {
    let (a, b) = bed.pair(&RC);
    let (old, words) = (Mem::new(&a.side, 8, LOCAL), Mem::new(&b.side, 16, ALL));
    add(1, &old, &words, 1).at(words.addr() + 4).outcome(&a)
}

fn short(bed: &Bed) -> String {
    let (a, b) = bed.pair(&RC);
    let (old, word) = (Mem::new(&a.side, 8, LOCAL), Mem::new(&b.side, 8, ALL));
    add(1, &old, &word, 1).length(4).outcome(&a)
}

fn long(bed: &Bed) -> String {
    let (a, b) = bed.pair(&RC);
    let (old, word) = (Mem::new(&a.side, 16, LOCAL), Mem::new(&b.side, 8, ALL));
    word.set_word(7);
    match add(1, &old, &word, 5).length(16).post(&a) {
        0 => format!("{}, {} then {}", a.status(), old.word(), word.word()),
        error => errno(error),
    }
}

fn beyond(bed: &Bed) -> String {
    let (a, b) = bed.pair(&RC);
    let (old, word) = (Mem::new(&a.side, 8, LOCAL), Mem::new(&b.side, 8, ALL));
    add(1, &old, &word, 1).at(word.addr() + 8).go(&a);
    a.status()
}

fn unreliable(bed: &Bed) -> String {
    let (a, b) = bed.pair(&UC);
    let (old, word) = (Mem::new(&a.side, 8, LOCAL), Mem::new(&b.side, 8, ALL));
    add(1, &old, &word, 1).outcome(&a)
}

fn order(bed: &Bed) -> String {
    let (a, b) = bed.pair(&RC);
    let (old, word) = (Mem::new(&a.side, 8, LOCAL), Mem::new(&b.side, 8, ALL));
    let room = Mem::new(&b.side, 8, LOCAL);
    word.set_word(7);
    b.recv(9, &room, 0, 8);
    add(1, &old, &word, 5).go(&a);
    send(2, &old, 8).go(&a);
    assert_eq!(b.status(), "SUCCESS");
    let seen = word.word();
    assert_eq!(a.ids(2), "1, 2");
    seen.to_string()
}

fn many(bed: &Bed) -> String {
    let (a, b) = bed.pair(&RC);
    let (old, word) = (Mem::new(&a.side, 8, LOCAL), Mem::new(&b.side, 8, ALL));
    let (c, _d) = bed.pair(&RC);
    let step = |end: &End| add(1, &old, &word, 1).go(end);
    for _ in 0..10 {
        for _ in 0..5 {
            step(&a);
            step(&c);
        }
        assert_eq!(
            (a.ids(5), c.ids(5)),
            ("1, 1, 1, 1, 1".into(), "1, 1, 1, 1, 1".into())
        );
    }
    word.word().to_string()
}
