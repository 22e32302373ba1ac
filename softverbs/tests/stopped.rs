//! A process that stops in the middle of a work request on another's memory: who waits for it, for how long, and what is kept
//! from being given back meanwhile. `crash.rs` has the kills; here each step is looked at from all sides, with a third process
//! whose work must go on, on the very completion queue that the stopped one's queue pair has.
#![allow(missing_docs, clippy::undocumented_unsafe_blocks)]

mod common;
mod second;
use common::*;
use ibverbs_sys::ibv_wr_opcode as Op;
use ibverbs_sys::{ibv_qp_cap, ibv_qp_init_attr, ibv_qp_state as State, ibv_qp_type, ibv_wc};
use ibverbs_sys::{ibv_wc_status as Status, ibv_wc_status};
use second::*;
use softverbs::faults::Step;
use softverbs::memory::Kind;
use std::collections::HashMap;
use std::mem::ManuallyDrop;
use std::ptr::null_mut;
use std::time::{Duration, Instant};

/// Ten times as long as a stopped process is waited for.
const BOUND: Duration = Duration::from_secs(5);
/// Receives of a queue pair.
const DEPTH: u64 = 16;
const LEN: usize = 1 << 20;

#[test]
#[ignore = "the second process of the tests in this file"]
fn second_process() {
    match std::env::var_os("SOFTVERBS_LARGE") {
        None => serve(),
        Some(_) => write_without_end(),
    }
}

/// What the one in the middle is doing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Work {
    Send,
    WriteImm,
    Read,
}

impl Work {
    /// As the second process numbers them.
    const ALL: [Work; 3] = [Work::Send, Work::WriteImm, Work::Read];

    /// The steps it has: a READ tells the target nothing.
    fn steps(self) -> impl Iterator<Item = (usize, Step)> {
        let steps = Step::ALL.into_iter().enumerate();
        steps.filter(move |(_, step)| self != Work::Read || *step != Step::Told)
    }
}

/// Whether the target's memory is being worked on between this step and the next.
fn is_busy(step: Step) -> bool {
    matches!(step, Step::Hazard | Step::Copied | Step::Told)
}

/// The longest of each kind of call, for whoever reads the output.
#[derive(Default)]
struct Longest(HashMap<String, Duration>);

impl Longest {
    fn time<T>(&mut self, what: impl Into<String>, f: impl FnOnce() -> T) -> T {
        let begin = Instant::now();
        let value = f();
        let (what, took) = (what.into(), begin.elapsed());
        assert!(took < BOUND, "{what}: {took:?}");
        let longest = self.0.entry(what).or_default();
        *longest = took.max(*longest);
        value
    }
}

impl Drop for Longest {
    fn drop(&mut self) {
        let mut all: Vec<_> = self.0.iter().collect();
        all.sort();
        for (what, longest) in all {
            println!("longest {what}: {longest:?}");
        }
    }
}

/// The target: two queue pairs on one completion queue, one for a process that gets stopped and one for a bystander's.
///
/// Taken down by [`close`](Self::close) only: after a failure, what is still in use would turn the panic into an abort, which
/// leaves stopped processes behind.
struct Target {
    bystander: Second,
    /// To the bystander; owns the completion queue.
    other: ManuallyDrop<End>,
    /// Of the other: for sending and receiving.
    mem: ManuallyDrop<Mem>,
    /// Completions that were not looked for yet.
    unseen: Vec<ibv_wc>,
    longest: Longest,
    dev: ManuallyDrop<Dev>,
}

/// A process in the middle of its work, and what it works on.
struct Victim {
    second: Second,
    /// On the target's completion queue. Given back by hand: it is what is tested.
    end: ManuallyDrop<End>,
    mem: ManuallyDrop<Mem>,
    /// Receives that have completed.
    flushed: u64,
}

impl Target {
    fn new() -> Target {
        let dev = Dev::open();
        let o = Options {
            cqe: 1024,
            ..Options::default()
        };
        let (bystander, other) = Second::connected(&dev, &o, &[]);
        let mem = Mem::file(&dev, 8192, LOCAL, Kind::Private);
        Target {
            dev: ManuallyDrop::new(dev),
            bystander,
            other: ManuallyDrop::new(other),
            mem: ManuallyDrop::new(mem),
            unseen: Vec::new(),
            longest: Longest::default(),
        }
    }

    /// Nothing is in use any more.
    fn close(self) {
        drop(ManuallyDrop::into_inner(self.other));
        drop(ManuallyDrop::into_inner(self.mem));
        drop(ManuallyDrop::into_inner(self.dev));
    }

    /// Another queue pair on the completion queue of `other`.
    fn sharing(&self) -> ManuallyDrop<End> {
        let mut init = ibv_qp_init_attr {
            send_cq: self.other.cq,
            recv_cq: self.other.cq,
            cap: ibv_qp_cap {
                max_send_wr: DEPTH as u32,
                max_recv_wr: DEPTH as u32,
                max_send_sge: 1,
                max_recv_sge: 1,
                max_inline_data: 0,
            },
            qp_type: ibv_qp_type::IBV_QPT_RC,
            ..ibv_qp_init_attr::default()
        };
        let qp = unsafe { (api().ibv_create_qp)(self.dev.pd, &mut init) };
        assert!(!qp.is_null(), "{}", std::io::Error::last_os_error());
        let end = ManuallyDrop::new(End {
            qp,
            cq: self.other.cq,
            channel: self.other.channel,
        });
        end.init(&Options::default());
        end
    }

    /// A process that meets `action` at a step of its work on our memory, with that memory posted to all receives.
    fn victim(&self, work: Work, step: usize, action: &str) -> Victim {
        let mem = Mem::file(&self.dev, LEN, LOCAL | READ | WRITE, Kind::Exposed);
        let mut victim = self.connect(Second::start(&[]), mem);
        let (addr, key) = (victim.mem.addr(), victim.mem.key());
        victim.second.ask(&format!("inject {step} 5 {action}"));
        victim
            .second
            .ask(&format!("hammer {} {addr} {key}", work as usize));
        victim
    }

    fn connect(&self, mut second: Second, mem: Mem) -> Victim {
        let end = self.sharing();
        let o = Options::default();
        second.ask(&format!("connect {}", end.qpn()));
        end.connect(second.qpn, &o);
        for i in 0..DEPTH {
            assert_eq!(end.recv(i, &mut [mem.sge(0, 8192)]), 0);
        }
        Victim {
            second,
            end,
            mem: ManuallyDrop::new(mem),
            flushed: 0,
        }
    }

    /// Takes the victim's completions, and posts its receives again, until `done` and once more.
    fn serve_until(&mut self, victim: &Victim, mut done: impl FnMut(&Victim) -> bool) {
        let begin = Instant::now();
        let mut last = false;
        while !last {
            assert!(begin.elapsed() < HANG, "the victim goes on");
            last = done(victim);
            while let Some(wc) = self.poll_for(victim.end.qpn()) {
                assert_eq!(wc.status, OK);
                assert_eq!(victim.end.recv(wc.wr_id, &mut [victim.mem.sge(0, 8192)]), 0);
            }
            std::thread::yield_now();
        }
    }

    /// The next completion of a queue pair, if there is one now.
    fn poll_for(&mut self, qpn: u32) -> Option<ibv_wc> {
        while let Some(wc) = self.other.poll() {
            self.unseen.push(wc);
        }
        let at = self.unseen.iter().position(|wc| wc.qp_num == qpn)?;
        Some(self.unseen.remove(at))
    }

    fn next_for(&mut self, qpn: u32) -> ibv_wc_status {
        let begin = Instant::now();
        loop {
            if let Some(wc) = self.poll_for(qpn) {
                return wc.status;
            }
            assert!(begin.elapsed() < HANG, "no completion");
            std::thread::yield_now();
        }
    }

    /// Messages between the bystander and the target, both ways, each timed.
    fn others_go_on(&mut self, state: &str) {
        let qpn = self.other.qpn();
        for i in 0..20 {
            assert_eq!(self.other.recv(i, &mut [self.mem.sge(0, 4096)]), 0);
            self.bystander.ask("recv 1 1 4096");
            let mut longest = std::mem::take(&mut self.longest);
            longest.time(format!("message to a bystander, {state}"), || {
                let mut sge = [self.mem.sge(4096, 2000)];
                assert_eq!(
                    self.other
                        .post(&mut wr(i, Op::IBV_WR_SEND, &mut sge, SIGNALED)),
                    0
                );
                assert_eq!(self.next_for(qpn), OK);
            });
            assert_eq!(self.bystander.ask("next"), "0 1 2000");
            longest.time(format!("message from a bystander, {state}"), || {
                assert_eq!(self.bystander.ask("send 4 2000"), "0");
                assert_eq!(self.next_for(qpn), OK);
            });
            self.longest = longest;
        }
    }

    /// Memory that has nothing to do with the victim is given back at once.
    fn other_memory_is_given_back(&mut self, state: &str) {
        for (access, kind) in [
            (LOCAL, Kind::Private),
            (READ, Kind::Readable),
            (LOCAL | READ | WRITE, Kind::Exposed),
        ] {
            let mut mem = ManuallyDrop::new(Mem::file(&self.dev, 4096, access, kind));
            let rc = self
                .longest
                .time(format!("dereg of other memory, {state}"), || unsafe {
                    (api().ibv_dereg_mr)(mem.mr)
                });
            assert_eq!(rc, 0, "{kind:?} memory of others, {state}");
            free(&mut mem);
        }
    }

    fn dereg(&mut self, victim: &Victim, state: &str) -> i32 {
        self.longest.time(format!("dereg, {state}"), || unsafe {
            (api().ibv_dereg_mr)(victim.mem.mr)
        })
    }

    fn destroy(&mut self, victim: &Victim, state: &str) -> i32 {
        self.longest.time(format!("destroy, {state}"), || unsafe {
            (api().ibv_destroy_qp)(victim.end.qp)
        })
    }

    /// Takes what receives of the victim's queue pair are given back now.
    fn take_flushed(&mut self, victim: &mut Victim) {
        while let Some(wc) = self.poll_for(victim.end.qpn()) {
            // The second: of a SEND that goes on after the key of the memory was taken away.
            let fine = [OK, Status::IBV_WC_LOC_PROT_ERR, Status::IBV_WC_WR_FLUSH_ERR];
            assert!(fine.contains(&wc.status), "{:?}", wc.status);
            victim.flushed += 1;
        }
    }

    /// All receives come back, now that nobody is in the middle of one.
    fn flush(&mut self, victim: &mut Victim, state: &str) {
        let mut longest = std::mem::take(&mut self.longest);
        longest.time(format!("flush, {state}"), || {
            let begin = Instant::now();
            while victim.flushed < DEPTH {
                assert!(begin.elapsed() < HANG, "receives are kept");
                self.take_flushed(victim);
                std::thread::yield_now();
            }
        });
        assert_eq!(victim.flushed, DEPTH);
        self.longest = longest;
    }
}

/// Frees memory that is not registered any more.
fn free(mem: &mut ManuallyDrop<Mem>) {
    mem.mr = null_mut();
    // SAFETY: it is dropped here only, and not used afterwards.
    unsafe { ManuallyDrop::drop(mem) };
}

/// Repeats until it succeeds, which it must.
fn succeeds(what: &str, mut f: impl FnMut() -> i32) {
    let begin = Instant::now();
    loop {
        match f() {
            0 => return,
            rc => assert_eq!(rc, libc::EBUSY, "{what}"),
        }
        assert!(begin.elapsed() < HANG, "{what}");
    }
}

/// Stops processes at every step, sees to it that nobody but their own queue pairs has to wait, that nothing which they may
/// still touch is given back, and that it is as soon as they have gone on or are dead.
fn stopped_at_each_step(then: fn(&mut Target, Victim, bool)) {
    let mut target = Target::new();
    let mut stops = 0;
    for work in Work::ALL {
        for (number, step) in work.steps() {
            let case = format!("{work:?} at {step:?}");
            let mut victim = target.victim(work, number, "stop");
            target.serve_until(&victim, |victim| stopped(&victim.second));
            let busy = is_busy(step);
            let state = if busy {
                "one stopped in a copy"
            } else {
                "one stopped"
            };
            target.others_go_on(state);
            target.other_memory_is_given_back(state);

            let expected = if busy { libc::EBUSY } else { 0 };
            assert_eq!(target.dereg(&victim, state), expected, "{case}");
            target.others_go_on(state);

            // A receive that is flushed is memory given back, too.
            assert_eq!(victim.end.set_state(State::IBV_QPS_ERR), 0);
            if busy {
                target.others_go_on("one stopped in a copy, its queue pair in error");
                target.take_flushed(&mut victim);
                assert_eq!(victim.flushed, 0, "{case}");
            } else {
                target.flush(&mut victim, state);
                target.others_go_on(state);
            }
            assert_eq!(target.destroy(&victim, state), expected, "{case}");
            target.others_go_on(state);
            then(&mut target, victim, busy);
            target.others_go_on("after it");
            stops += 1;
        }
    }
    assert_eq!(stops, 17);
    target.close();
}

#[test]
fn what_a_stopped_one_works_on_comes_back_when_it_has_gone_on() {
    stopped_at_each_step(|target, mut victim, busy| {
        if !busy {
            // Given back already: from here on it is ours alone.
            victim.mem.fill(0, &pattern(3, LEN));
        }
        let pid = victim.second.child.id() as i32;
        assert_eq!(unsafe { libc::kill(pid, libc::SIGCONT) }, 0);
        if busy {
            let state = "one that has gone on";
            target.flush(&mut victim, state);
            succeeds("dereg", || target.dereg(&victim, state));
            victim.mem.fill(0, &pattern(3, LEN));
            succeeds("destroy", || target.destroy(&victim, state));
        }
        // It has gone on until it was told that it is cut off, and has changed nothing.
        victim.second.answer();
        assert!(victim.mem.get(0, LEN) == pattern(3, LEN));
        free(&mut victim.mem);
    });
}

#[test]
fn what_a_stopped_one_works_on_comes_back_when_it_is_killed() {
    stopped_at_each_step(|target, mut victim, busy| {
        victim.second.kill();
        if busy {
            let state = "one killed in a copy";
            target.flush(&mut victim, state);
            assert_eq!(target.dereg(&victim, state), 0);
            assert_eq!(target.destroy(&victim, state), 0);
        }
        free(&mut victim.mem);
    });
}

/// As above, without a stop before: the dead are not waited for at all.
#[test]
fn what_a_killed_one_worked_on_comes_back_at_once() {
    let mut target = Target::new();
    for work in Work::ALL {
        for (number, _) in work.steps() {
            let mut victim = target.victim(work, number, "kill");
            target.serve_until(&victim, |victim| dead(&victim.second));
            let state = "one killed";
            target.others_go_on(state);
            target.other_memory_is_given_back(state);
            assert_eq!(target.dereg(&victim, state), 0);
            assert_eq!(victim.end.set_state(State::IBV_QPS_ERR), 0);
            target.flush(&mut victim, state);
            assert_eq!(target.destroy(&victim, state), 0);
            free(&mut victim.mem);
            target.others_go_on(state);
        }
    }
    target.close();
}

/// Stopped wherever it happens to be in copies of a mebibyte: if the memory is given back, it is never written again; if it
/// is not, it is once the copy has ended.
#[test]
fn a_large_copy_that_is_stopped_keeps_its_memory() {
    let mut target = Target::new();
    let mut kept = 0;
    for round in 0..8 {
        let mem = Mem::file(&target.dev, LEN, LOCAL | READ | WRITE, Kind::Exposed);
        let second = Second::start(&[("SOFTVERBS_LARGE", "1")]);
        let mut victim = target.connect(second, mem);
        let (addr, key) = (victim.mem.addr(), victim.mem.key());
        victim.second.ask(&format!("write {addr} {key}"));
        let pid = victim.second.child.id() as i32;
        // It is known to write once the bytes change; that they do is also what makes the last check one.
        target.serve_until(&victim, |victim| victim.mem.get(LEN - 1, 1) != [0]);
        assert_eq!(unsafe { libc::kill(pid, libc::SIGSTOP) }, 0);
        target.serve_until(&victim, |victim| stopped(&victim.second));
        let state = "one stopped in a large copy";
        let rc = target.dereg(&victim, state);
        target.others_go_on(state);
        if rc == 0 {
            victim.mem.fill(0, &pattern(round, LEN));
        } else {
            assert_eq!(rc, libc::EBUSY);
            kept += 1;
        }
        assert_eq!(unsafe { libc::kill(pid, libc::SIGCONT) }, 0);
        if rc != 0 {
            succeeds("dereg", || target.dereg(&victim, "one that has gone on"));
            victim.mem.fill(0, &pattern(round, LEN));
        }
        victim.second.answer();
        assert!(victim.mem.get(0, LEN) == pattern(round, LEN));
        succeeds("destroy", || {
            target.destroy(&victim, "one that has gone on")
        });
        free(&mut victim.mem);
    }
    println!("{kept} of 8 were in a copy");
    target.close();
}

/// The other side of it.
fn write_without_end() {
    let dev = Dev::open();
    let o = Options::default();
    let end = End::new(&dev, &o);
    let mem = Mem::file(&dev, LEN, LOCAL, Kind::Private);
    mem.fill(0, &[0xee; LEN]);
    println!("\nREADY {}", end.qpn());
    for line in std::io::stdin().lines() {
        let line = line.unwrap();
        let words: Vec<&str> = line.split(' ').collect();
        let n = |i: usize| words[i].parse::<u64>().unwrap();
        println!("OK");
        match words[0] {
            "connect" => end.connect(n(1) as u32, &o),
            _ => {
                let (addr, key) = (n(1), n(2) as u32);
                loop {
                    let mut sge = [mem.sge(0, LEN)];
                    let mut write = rdma(1, Op::IBV_WR_RDMA_WRITE, &mut sge, SIGNALED, addr, key);
                    assert_eq!(end.post(&mut write), 0);
                    if end.next().status != OK {
                        break;
                    }
                }
                println!("OK");
            }
        }
    }
}

/// Whether a process is stopped by a signal: all its threads, of which the first may be the last to stop.
fn stopped(second: &Second) -> bool {
    let tasks = format!("/proc/{}/task", second.child.id());
    let Ok(mut tasks) = std::fs::read_dir(tasks) else {
        return false;
    };
    tasks.all(|task| {
        task.and_then(|task| std::fs::read_to_string(task.path().join("stat")))
            .is_ok_and(|stat| state_of(&stat) == Some('T'))
    })
}

/// Whether a process has ended and nobody has asked yet how.
fn dead(second: &Second) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", second.child.id()));
    stat.is_ok_and(|stat| state_of(&stat) == Some('Z'))
}

fn state_of(stat: &str) -> Option<char> {
    stat.rsplit(')').next()?.trim_start().chars().next()
}
