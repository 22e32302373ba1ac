//! A process that stops in the middle of a work request on another's memory: who waits for it, for how long, and what is kept
//! from being given back meanwhile. `crash.rs` has the kills; here each step is looked at from all sides, with a third process
//! whose work must go on, on the very completion queue that the stopped one's queue pair has.
#![allow(missing_docs, clippy::undocumented_unsafe_blocks)]

mod bystander;
mod common;
mod second;
use bystander::*;
use common::*;
use ibverbs_sys::ibv_qp_state as State;
use ibverbs_sys::ibv_wr_opcode as Op;
use second::*;
use softverbs::faults::Step;
use softverbs::memory::Kind;
use std::time::Instant;

#[test]
#[ignore = "the second process of the tests in this file"]
fn second_process() {
    match std::env::var_os("SOFTVERBS_LARGE") {
        None => serve(),
        Some(_) => write_without_end(),
    }
}

/// What the one in the middle is doing, in the order in which the second process numbers it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Work {
    Send,
    WriteImm,
    Read,
}

/// What it works on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Place {
    /// Memory that it has mapped and holds a key to.
    Exposed,
    /// Memory that it reaches by way of the kernel, and holds a key to.
    Plain,
    /// Memory of receives and nothing else: its messages wait in the lane.
    Receive,
}

#[derive(Clone, Copy, Debug)]
struct Case {
    work: Work,
    place: Place,
    step: Step,
}

impl Case {
    /// All that there are in these places.
    fn all(places: &[Place]) -> Vec<Case> {
        let mut all = Vec::new();
        for &place in places {
            for work in [Work::Send, Work::WriteImm, Work::Read] {
                for step in Step::ALL {
                    let key = place != Place::Receive || work == Work::Send;
                    // A READ tells the target nothing.
                    if key && (work != Work::Read || step != Step::Told) {
                        all.push(Case { work, place, step });
                    }
                }
            }
        }
        all
    }

    /// Memory for it.
    fn mem(self, dev: &Dev) -> Mem {
        let rights = LOCAL | READ | WRITE;
        match self.place {
            Place::Exposed => Mem::file(dev, LEN, rights, Kind::Exposed),
            Place::Plain => Mem::plain(dev, LEN, rights),
            Place::Receive => Mem::file(dev, LEN, LOCAL, Kind::Receive),
        }
    }
}

/// Whether the target's memory is being worked on between this step and the next.
fn is_busy(step: Step) -> bool {
    matches!(step, Step::Hazard | Step::Copied | Step::Told)
}

/// A process that meets `action` at a step of its work on our memory, with that memory posted to all receives.
fn victim(target: &Target, case: Case, action: &str) -> Victim {
    let mut victim = target.connect(Second::start(&[]), case.mem(&target.dev));
    let (addr, key) = (victim.mem.addr(), victim.mem.key());
    let step = Step::ALL.iter().position(|step| *step == case.step);
    let step = step.expect("it is one of them");
    victim.second.ask(&format!("inject {step} 5 {action}"));
    victim
        .second
        .ask(&format!("hammer {} {addr} {key}", case.work as usize));
    victim
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
fn stopped_at_each_step(places: &[Place], then: fn(&mut Target, Victim, bool)) {
    let mut target = Target::new();
    for case in Case::all(places) {
        let mut victim = victim(&target, case, "stop");
        target.serve_until(&victim, |victim| stopped(&victim.second));
        let busy = is_busy(case.step);
        let state = if busy {
            "one stopped in a copy"
        } else {
            "one stopped"
        };
        target.others_go_on(state);
        target.other_memory_is_given_back(state);

        let expected = if busy { libc::EBUSY } else { 0 };
        assert_eq!(target.dereg(&victim, state), expected, "{case:?}");
        target.others_go_on(state);

        // A receive that is flushed is memory given back, too.
        assert_eq!(victim.end.set_state(State::IBV_QPS_ERR), 0);
        if busy {
            target.others_go_on("one stopped in a copy, its queue pair in error");
            target.take_flushed(&mut victim);
            assert_eq!(victim.flushed, 0, "{case:?}");
        } else {
            target.flush(&mut victim, state);
            target.others_go_on(state);
        }
        assert_eq!(target.destroy(&victim, state), expected, "{case:?}");
        target.others_go_on(state);
        then(&mut target, victim, busy);
        target.others_go_on("after it");
    }
    target.close();
}

#[test]
fn what_a_stopped_one_works_on_comes_back_when_it_has_gone_on() {
    let places = [Place::Exposed, Place::Plain, Place::Receive];
    stopped_at_each_step(&places, |target, mut victim, busy| {
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
    stopped_at_each_step(&[Place::Exposed], |target, mut victim, busy| {
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
    let cases = Case::all(&[Place::Exposed, Place::Plain, Place::Receive]);
    assert_eq!(cases.len(), 17 + 17 + 6);
    for case in cases {
        let mut victim = victim(&target, case, "kill");
        target.serve_until(&victim, |victim| dead(&victim.second));
        let state = "one killed";
        target.others_go_on(state);
        target.other_memory_is_given_back(state);
        assert_eq!(target.dereg(&victim, state), 0, "{case:?}");
        assert_eq!(victim.end.set_state(State::IBV_QPS_ERR), 0);
        target.flush(&mut victim, state);
        assert_eq!(target.destroy(&victim, state), 0, "{case:?}");
        free(&mut victim.mem);
        target.others_go_on(state);
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
