//! The same between two processes: the test drives a second one, made from this very binary, by lines on its pipes.
#![allow(missing_docs, clippy::undocumented_unsafe_blocks)]

mod common;
mod second;
use common::*;
use ibverbs_sys::ibv_wr_opcode as Op;
use ibverbs_sys::{ibv_qp_state as State, ibv_wc_status as Status};
use second::*;
use softverbs::memory::Kind;
use std::process::{ChildStdin, Command, Stdio};

#[test]
#[ignore = "the second process of the tests in this file"]
fn second_process() {
    serve();
}

fn local_kinds(dev: &Dev) -> Vec<Mem> {
    vec![
        Mem::plain(dev, SIZE, LOCAL),
        Mem::file(dev, SIZE, LOCAL, Kind::Private),
    ]
}

/// All sizes, both ways, into memory that is mapped and memory that is not; in both modes of the second process.
#[test]
fn sends_cross() {
    let dev = Dev::open();
    for env in [&[][..], &[("VERBATIM_ASYNC", "3")][..]] {
        let (mut second, end) = Second::connected(&dev, &Options::default(), env);
        let mems = local_kinds(&dev);
        let mut seed = 0;
        for len in [0, 8, 32, 33, 256, 257, 5000, SIZE] {
            for kind in [0, 1, 2, 4] {
                for mem in &mems {
                    seed += 1;
                    mem.fill(0, &pattern(seed, len));
                    second.ask(&format!("recv {seed} {kind} {SIZE}"));
                    assert_eq!(
                        end.post(&mut wr(
                            1,
                            Op::IBV_WR_SEND,
                            &mut [mem.sge(0, len / 3), mem.sge(len / 3, len - len / 3)],
                            SIGNALED
                        )),
                        0
                    );
                    assert_eq!(end.next().status, OK);
                    assert_eq!(second.ask("next"), format!("0 {seed} {len}"));
                    assert_eq!(
                        second.ask(&format!("check {kind} {len} {seed}")),
                        "true",
                        "{len} bytes to kind {kind}"
                    );
                    // And back.
                    assert_eq!(
                        end.recv(
                            7,
                            &mut [mem.sge(0, len / 2), mem.sge(len / 2, SIZE - len / 2)]
                        ),
                        0
                    );
                    second.ask(&format!("fill {kind} {len} {}", seed + 100));
                    assert_eq!(second.ask(&format!("send {kind} {len}")), "0");
                    let wc = end.next();
                    assert_eq!((wc.status, wc.byte_len as usize), (OK, len));
                    assert_eq!(
                        mem.get(0, len),
                        pattern(seed + 100, len),
                        "{len} bytes from kind {kind}"
                    );
                }
            }
        }
    }
}

/// WRITE and READ of memory that is mapped (exposed, readable) and that is not (plain); what a kind forbids is refused.
#[test]
fn one_sided_crosses() {
    let dev = Dev::open();
    let (mut second, end) = Second::connected(&dev, &Options::default(), &[]);
    let mem = Mem::plain(&dev, SIZE, LOCAL);
    for (kind, len) in [0, 2]
        .into_iter()
        .flat_map(|k| [1, 8, 9, 4096, SIZE].map(|l| (k, l)))
    {
        let (addr, key) = second.mem[kind];
        mem.fill(0, &pattern(len, len));
        end.post(&mut rdma(
            1,
            Op::IBV_WR_RDMA_WRITE,
            &mut [mem.sge(0, len)],
            SIGNALED,
            addr,
            key,
        ));
        assert_eq!(end.next().status, OK);
        assert_eq!(second.ask(&format!("check {kind} {len} {len}")), "true");
    }
    for (kind, len) in [0, 2, 3]
        .into_iter()
        .flat_map(|k| [1, 8, 9, 4096, SIZE].map(|l| (k, l)))
    {
        if kind != 3 {
            second.ask(&format!("fill {kind} {len} {}", len + 1));
        }
        let (addr, key) = second.mem[kind];
        mem.fill(0, &[0xee; SIZE]);
        end.post(&mut rdma(
            1,
            Op::IBV_WR_RDMA_READ,
            &mut [mem.sge(0, len)],
            SIGNALED,
            addr,
            key,
        ));
        assert_eq!(end.next().status, OK);
        let expect = if kind == 3 {
            vec![0; len]
        } else {
            pattern(len + 1, len)
        };
        assert_eq!(mem.get(0, len), expect, "{len} bytes of kind {kind}");
    }
    let (addr, key) = second.mem[3];
    end.post(&mut rdma(
        1,
        Op::IBV_WR_RDMA_WRITE,
        &mut [mem.sge(0, 8)],
        SIGNALED,
        addr,
        key,
    ));
    assert_eq!(end.next().status, Status::IBV_WC_REM_ACCESS_ERR);
    assert_eq!(second.ask("state"), State::IBV_QPS_ERR.0.to_string());
}

/// A sender in another process that sleeps gets its parked work done, and a sleeping receiver is woken.
#[test]
fn sleepers_get_on() {
    let dev = Dev::open();
    let (mut second, end) = Second::connected(&dev, &Options::default(), &[]);
    let mem = Mem::plain(&dev, 4096, LOCAL);
    second.ask("fill 4 4000 5");
    for _ in 0..3 {
        second.ask("post 4 4000");
    }
    for i in 0..3 {
        assert!(end.poll().is_none(), "no receive, no message");
        end.recv(i, &mut [mem.sge(0, 4096)]);
        let wc = end.next();
        assert_eq!(
            (
                wc.status,
                wc.wr_id,
                wc.byte_len,
                mem.get(0, 4000) == pattern(5, 4000)
            ),
            (OK, i, 4000, true)
        );
    }
    for _ in 0..3 {
        assert_eq!(second.ask("next"), "0 1 4000");
    }
    for i in 0..5 {
        second.ask(&format!("recv {i} 1 4096"));
        second.ask("arm");
        second.tell("event");
        end.post(&mut wr(
            1,
            Op::IBV_WR_SEND,
            &mut [mem.sge(0, 100)],
            SIGNALED,
        ));
        second.answer();
        assert_eq!(second.ask("next"), format!("0 {i} 100"));
        assert_eq!(end.next().status, OK);
    }
}

/// A killed peer fails outstanding work, and what is posted afterwards; others go on.
#[test]
fn a_killed_peer_fails_outstanding_work() {
    let dev = Dev::open();
    let (mut second, end) = Second::connected(
        &dev,
        &Options {
            timeout: 0,
            ..Options::default()
        },
        &[],
    );
    let (mut third, other) = Second::connected(&dev, &Options::default(), &[]);
    let mem = Mem::plain(&dev, 4096, LOCAL);
    assert_eq!(
        end.post(&mut wr(1, Op::IBV_WR_SEND, &mut [mem.sge(0, 8)], SIGNALED)),
        0
    );
    assert!(end.poll().is_none());
    second.kill();
    assert_eq!(end.next().status, Status::IBV_WC_RETRY_EXC_ERR);
    assert_eq!(end.state(), State::IBV_QPS_ERR);
    third.ask("recv 1 0 100");
    assert_eq!(
        other.post(&mut wr(1, Op::IBV_WR_SEND, &mut [mem.sge(0, 8)], SIGNALED)),
        0
    );
    assert_eq!(
        (other.next().status, third.ask("next")),
        (OK, "0 1 8".to_owned())
    );
    // A queue pair that had nothing outstanding notices at its next post.
    third.kill();
    let begin = std::time::Instant::now();
    loop {
        assert_eq!(
            other.post(&mut rdma(
                1,
                Op::IBV_WR_RDMA_WRITE,
                &mut [mem.sge(0, 8)],
                SIGNALED,
                third.mem[2].0,
                third.mem[2].1
            )),
            0
        );
        match other.next().status {
            OK => assert!(begin.elapsed() < HANG),
            status => break assert_eq!(status, Status::IBV_WC_RETRY_EXC_ERR),
        }
    }
}

/// A process that executes another program keeps its pid and its start; what it was is gone, and what it is now can be connected to.
#[test]
fn a_process_that_runs_another_program_is_another_one() {
    let dev = Dev::open();
    let o = Options {
        timeout: 0,
        ..Options::default()
    };
    let mut second = Second::start(&[]);
    let mem = Mem::plain(&dev, 4096, LOCAL);
    let mut ends: Vec<End> = Vec::new();
    for program in 1..4 {
        if let Some(end) = ends.last() {
            // Waits for a receive, which is not posted any more.
            let mut sges = [mem.sge(0, 64)];
            assert_eq!(
                end.post(&mut wr(2, Op::IBV_WR_SEND, &mut sges, SIGNALED)),
                0
            );
            assert!(end.poll().is_none());
            second.replace();
        }
        let end = End::new(&dev, &o);
        end.connect(second.qpn, &o);
        second.ask(&format!("connect {}", end.qpn()));
        second.ask("recv 1 0 100");
        mem.fill(0, &pattern(program, 64));
        let mut sges = [mem.sge(0, 64)];
        assert_eq!(
            end.post(&mut wr(1, Op::IBV_WR_SEND, &mut sges, SIGNALED)),
            0
        );
        assert_eq!(
            (end.next().status, second.ask("next").as_str()),
            (OK, "0 1 64")
        );
        assert_eq!(second.ask(&format!("check 0 64 {program}")), "true");
        for before in &ends {
            let wc = before.next();
            assert_eq!((wc.wr_id, wc.status), (2, Status::IBV_WC_RETRY_EXC_ERR));
        }
        ends.retain(|before| before.state() != State::IBV_QPS_ERR);
        ends.push(end);
    }
}

/// Work posted before the peer is ready waits for it; a peer that never gets ready is a timeout.
#[test]
fn a_late_peer_is_waited_for() {
    let dev = Dev::open();
    let o = Options {
        timeout: 0,
        ..Options::default()
    };
    let mut second = Second::start(&[]);
    let end = End::new(&dev, &o);
    end.connect(second.qpn, &o);
    let mem = Mem::plain(&dev, 4096, LOCAL);
    mem.fill(0, &pattern(1, 64));
    end.post(&mut wr(1, Op::IBV_WR_SEND, &mut [mem.sge(0, 64)], SIGNALED));
    assert!(end.poll().is_none());
    second.ask("recv 1 0 100");
    second.ask(&format!("connect {}", end.qpn()));
    assert_eq!(second.ask("next"), "0 1 64");
    assert_eq!(
        (second.ask("check 0 64 1"), end.next().status),
        ("true".to_owned(), OK)
    );

    let o = Options {
        timeout: 8,
        retry_cnt: 1,
        ..Options::default()
    };
    let third = Second::start(&[]);
    let end = End::new(&dev, &o);
    end.connect(third.qpn, &o);
    end.post(&mut wr(1, Op::IBV_WR_SEND, &mut [mem.sge(0, 64)], 0));
    assert_eq!(end.next().status, Status::IBV_WC_RETRY_EXC_ERR);
}

/// Files of the device that are left in a folder.
fn left_in(dir: &std::path::Path) -> Vec<String> {
    let inside = std::fs::read_dir(dir)
        .unwrap()
        .flatten()
        .next()
        .map(|d| d.path());
    let files = inside.map(|d| {
        std::fs::read_dir(d)
            .unwrap()
            .flatten()
            .map(|f| f.file_name().into_string().unwrap())
            .collect()
    });
    files.unwrap_or_default()
}

/// Nothing is left in the file system after an orderly end; what a killed process leaves goes with the next start.
#[test]
fn nothing_is_left_behind() {
    let dir = std::env::temp_dir().join(format!("softverbs-left-{}", std::process::id()));
    std::fs::create_dir(&dir).unwrap();
    let env = [("VERBATIM_DIR", dir.to_str().unwrap())];
    let mut killed = Second::start(&env);
    assert_eq!(left_in(&dir).len(), 1);
    killed.kill();
    assert_eq!(
        left_in(&dir).len(),
        1,
        "a killed process leaves its slot file"
    );
    let mut orderly = Second::start(&env);
    assert_eq!(left_in(&dir).len(), 1, "and the next one removes it");
    drop(std::mem::replace(&mut orderly.stdin, killed_stdin()));
    assert!(orderly.child.wait().unwrap().success());
    assert!(left_in(&dir).is_empty(), "{:?}", left_in(&dir));
    std::fs::remove_dir_all(&dir).unwrap();
}

/// Some pipe, to put in the place of one that is to be closed.
fn killed_stdin() -> ChildStdin {
    let mut child = Command::new("true").stdin(Stdio::piped()).spawn().unwrap();
    let stdin = child.stdin.take().unwrap();
    child.wait().unwrap();
    stdin
}

/// Two processes add to one word, in memory that is mapped and in memory that is not: no addition is lost.
#[test]
fn additions_are_exact_across_processes() {
    let dev = Dev::open();
    let (mut second, end) = Second::connected(&dev, &Options::default(), &[]);
    let mine = Mem::plain(&dev, 8, LOCAL);
    for kind in [5, 6] {
        second.tell(&format!("add {kind} 3000"));
        for _ in 0..3000 {
            let mut sge = [mine.sge(0, 8)];
            assert_eq!(
                end.post(&mut atomic(
                    1,
                    Op::IBV_WR_ATOMIC_FETCH_AND_ADD,
                    &mut sge,
                    second.mem[kind].0,
                    second.mem[kind].1,
                    [1, 0]
                )),
                0
            );
            assert_eq!(end.next().status, OK);
        }
        second.answer();
        assert_eq!(second.ask(&format!("word {kind}")), "6000", "kind {kind}");
    }
}
