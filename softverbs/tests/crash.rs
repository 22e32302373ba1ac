//! A process is killed, or stopped, at each step of a work request that it executes on another's memory. Whatever the step:
//! the other one learns of it, its other connections are not delayed, and it gets its memory back.
#![allow(missing_docs, clippy::undocumented_unsafe_blocks)]

mod common;
mod second;
use common::*;
use ibverbs_sys::ibv_wr_opcode as Op;
use ibverbs_sys::{ibv_qp_state as State, ibv_wc_status as Status};
use second::*;
use softverbs::faults::Step;
use softverbs::memory::Kind;
use std::time::Instant;

#[test]
#[ignore = "the second process of the tests in this file"]
fn second_process() {
    serve();
}

/// What the survivor has.
struct Survivor<'a> {
    dev: &'a Dev,
    /// A pair of its own, which must not notice anything.
    other: (End, End),
    mem: Mem,
}

impl<'a> Survivor<'a> {
    fn new(dev: &'a Dev) -> Survivor<'a> {
        Survivor {
            dev,
            other: pair(dev, &Options::default()),
            mem: Mem::file(dev, 4096, LOCAL, Kind::Private),
        }
    }

    /// The other pair works, at once.
    fn other_works(&self) {
        let (a, b) = &self.other;
        for i in 0..10 {
            assert_eq!(b.recv(i, &mut [self.mem.sge(0, 2048)]), 0);
            assert_eq!(
                a.post(&mut wr(
                    i,
                    Op::IBV_WR_SEND,
                    &mut [self.mem.sge(2048, 2000)],
                    SIGNALED
                )),
                0
            );
            assert_eq!((b.next().status, a.next().status), (OK, OK));
        }
    }
}

/// A victim that works on memory of the survivor's until it meets its step.
fn victim(
    survivor: &Survivor<'_>,
    op: usize,
    step: usize,
    nth: usize,
    action: &str,
) -> (Second, End, Mem) {
    let o = Options {
        timeout: 0,
        ..Options::default()
    };
    let (mut second, end) = Second::connected(survivor.dev, &o, &[]);
    let target = Mem::file(survivor.dev, 1 << 20, LOCAL | READ | WRITE, Kind::Exposed);
    for i in 0..16 {
        assert_eq!(end.recv(i, &mut [target.sge(0, 8192)]), 0);
    }
    second.ask(&format!("inject {step} {nth} {action}"));
    second.ask(&format!("hammer {op} {} {}", target.addr(), target.key()));
    (second, end, target)
}

/// Takes completions and posts receives again until `done`.
fn serve_until(end: &End, target: &Mem, mut done: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !done() {
        assert!(begin.elapsed() < HANG, "the victim lives on");
        while let Some(wc) = end.poll() {
            assert_eq!(wc.status, OK);
            assert_eq!(end.recv(wc.wr_id, &mut [target.sge(0, 8192)]), 0);
        }
        std::thread::yield_now();
    }
}

#[test]
fn killed_at_each_step() {
    let dev = Dev::open();
    let survivor = Survivor::new(&dev);
    let mut kills = 0;
    for (step, name) in Step::ALL.into_iter().enumerate() {
        // A READ tells the target nothing.
        for op in 0..if name == Step::Told { 2 } else { 3 } {
            for nth in [1, 7, 40] {
                let (mut second, end, mut target) = victim(&survivor, op, step, nth, "kill");
                serve_until(&end, &target, || second.child.try_wait().unwrap().is_some());
                survivor.other_works();
                // What it told before is taken; nothing half-told shows.
                while let Some(wc) = end.poll() {
                    assert_eq!(wc.status, OK, "step {step} op {op} nth {nth}");
                }
                // Work for it fails, and flushes the receives.
                assert_eq!(
                    end.post(&mut wr(
                        99,
                        Op::IBV_WR_SEND,
                        &mut [survivor.mem.sge(0, 8)],
                        SIGNALED
                    )),
                    0
                );
                let status = loop {
                    let wc = end.next();
                    if wc.wr_id == 99 {
                        break wc.status;
                    }
                };
                assert_eq!(
                    (status, end.state()),
                    (Status::IBV_WC_RETRY_EXC_ERR, State::IBV_QPS_ERR)
                );
                target.dereg();
                drop(end);
                kills += 1;
            }
        }
    }
    assert_eq!(kills, 51);
    survivor.other_works();
}

#[test]
fn stopped_at_each_step() {
    let dev = Dev::open();
    let survivor = Survivor::new(&dev);
    for (step, name) in Step::ALL.into_iter().enumerate() {
        let (mut second, end, target) = victim(&survivor, 1, step, 5, "stop");
        let pid = second.child.id() as i32;
        serve_until(&end, &target, || stopped(pid));
        survivor.other_works();
        // In the middle of its work the victim may still touch our memory: it is not given back, and we are told in bounded time.
        let begin = Instant::now();
        let rc = unsafe { (api().ibv_dereg_mr)(target.mr) };
        let busy = matches!(name, Step::Hazard | Step::Copied | Step::Told);
        assert_eq!(rc, if busy { libc::EBUSY } else { 0 }, "{name:?}");
        assert!(begin.elapsed() < HANG);
        survivor.other_works();
        assert_eq!(unsafe { libc::kill(pid, libc::SIGCONT) }, 0);
        if busy {
            // It goes on, finishes, and then the memory can be had; what it does next is refused.
            let begin = Instant::now();
            while unsafe { (api().ibv_dereg_mr)(target.mr) } != 0 {
                assert!(begin.elapsed() < HANG);
            }
        }
        std::mem::forget(target);
        second.kill();
        drop(end);
    }
    survivor.other_works();
}

/// Who sleeps until there is a message is woken by one whose sender was killed before it could do so.
#[test]
fn killed_before_it_could_wake() {
    let dev = Dev::open();
    let mem = Mem::file(&dev, 4096, LOCAL, Kind::Private);
    for step in [Step::Told, Step::Left] {
        for len in [64, 2000] {
            let (mut second, end) = Second::connected(&dev, &Options::default(), &[]);
            assert_eq!(end.recv(7, &mut [mem.sge(0, 4096)]), 0);
            end.arm();
            assert!(end.poll().is_none());
            second.ask(&format!("inject {} 1 kill", step as usize));
            second.tell(&format!("post 4 {len}"));
            let mut fd = libc::pollfd {
                fd: unsafe { (*end.channel).fd },
                events: libc::POLLIN,
                revents: 0,
            };
            let limit = HANG.as_millis() as i32;
            assert_eq!(unsafe { libc::poll(&mut fd, 1, limit) }, 1, "{step:?}");
            end.event();
            let wc = end.next();
            assert_eq!((wc.status, wc.wr_id, wc.byte_len), (OK, 7, len));
        }
    }
}

/// Whether a process is stopped by a signal.
fn stopped(pid: i32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit(')')
        .next()
        .is_some_and(|rest| rest.trim_start().starts_with('T'))
}
