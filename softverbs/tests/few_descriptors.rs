//! A process that has no descriptor left for what a peer shows. Alone in its process, whose limit it changes.
#![allow(missing_docs, clippy::undocumented_unsafe_blocks)]

mod common;
mod second;
use common::*;
use ibverbs_sys::ibv_wr_opcode as Op;
use second::*;

#[test]
#[ignore = "the second process of the tests in this file"]
fn second_process() {
    serve();
}

/// Limits the numbers that new descriptors can have; gives what the limit was.
fn limit(descriptors: libc::rlim_t) -> libc::rlim_t {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    assert_eq!(
        unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) },
        0
    );
    let before = std::mem::replace(&mut limit.rlim_cur, descriptors);
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &limit) }, 0);
    before
}

/// An atomic on memory that others have mapped waits until it can be mapped here too: done in another way it would not be one.
#[test]
fn an_atomic_is_done_in_one_way_only() {
    let dev = Dev::open();
    let (mut second, end) = Second::connected(
        &dev,
        &Options {
            timeout: 0,
            ..Options::default()
        },
        &[],
    );
    let mine = Mem::plain(&dev, 8, LOCAL);
    let add = |kind: usize, second: &Second| {
        let mut sge = [mine.sge(0, 8)];
        let (addr, key) = second.mem[kind];
        let operands = [1, 0];
        let mut wr = atomic(
            1,
            Op::IBV_WR_ATOMIC_FETCH_AND_ADD,
            &mut sge,
            addr,
            key,
            operands,
        );
        assert_eq!(end.post(&mut wr), 0);
    };
    // Memory that nobody maps, so the other way is known.
    add(5, &second);
    assert_eq!(end.next().status, OK);
    let before = limit(3);
    add(6, &second);
    let early = end.poll();
    limit(before);
    assert!(early.is_none());
    assert_eq!(end.next().status, OK);
    assert_eq!(second.ask("word 6"), "1");
}
