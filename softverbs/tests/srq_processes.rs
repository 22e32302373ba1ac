//! Several processes take entries of one shared receive queue. One of them is killed, or stopped, at each step of its work: the
//! entry that it had taken comes back, and the others go on.
#![allow(missing_docs, clippy::undocumented_unsafe_blocks)]

mod common;
mod second;
use common::*;
use second::*;
use softverbs::faults::Step;
use softverbs::memory::Kind;
use std::time::Instant;

#[test]
#[ignore = "the second process of the tests in this file"]
fn second_process() {
    serve();
}

const DEPTH: u64 = 4;
const LEN: usize = 4096;

/// The target: a queue that is always full, in memory of its own.
struct Target<'a> {
    dev: &'a Dev,
    srq: Srq,
    mem: Mem,
    exposed: Mem,
}

impl<'a> Target<'a> {
    fn new(dev: &'a Dev, kind: Kind) -> Target<'a> {
        let target = Target {
            dev,
            srq: Srq::new(dev, DEPTH as u32, 1),
            mem: Mem::file(dev, DEPTH as usize * LEN, LOCAL, kind),
            exposed: Mem::file(dev, LEN, LOCAL | WRITE, Kind::Exposed),
        };
        (0..DEPTH).for_each(|id| target.post(id));
        target
    }

    fn post(&self, id: u64) {
        let mut sges = [self.mem.sge(id as usize * LEN, LEN)];
        assert_eq!(self.srq.recv(id, &mut sges), 0);
    }

    fn connect(&self, env: &[(&str, &str)]) -> (Second, End) {
        let o = Options {
            timeout: 0,
            ..self.srq.options()
        };
        Second::connected(self.dev, &o, env)
    }

    /// Takes what has arrived and posts the entries again.
    fn serve(&self, end: &End) -> usize {
        let mut count = 0;
        while let Some(wc) = end.poll() {
            assert_eq!(wc.status, OK);
            self.post(wc.wr_id);
            count += 1;
        }
        count
    }

    /// All entries can be had by the bystander, without any being posted; then they are posted again.
    fn is_whole(&self, bystander: &mut Second, end: &End) {
        for seed in 0..DEPTH as usize {
            bystander.ask(&format!("fill 4 {} {seed}", 1000 + seed));
            bystander.ask(&format!("post 4 {}", 1000 + seed));
            assert_eq!(bystander.ask("next"), format!("0 1 {}", 1000 + seed));
        }
        let mut ids = Vec::new();
        for seed in 0..DEPTH as usize {
            let wc = end.next();
            assert_eq!((wc.status, wc.byte_len as usize), (OK, 1000 + seed));
            let got = self.mem.get(wc.wr_id as usize * LEN, 1000 + seed);
            assert_eq!(got, pattern(seed, 1000 + seed));
            ids.push(wc.wr_id);
        }
        ids.sort();
        assert!(ids.iter().copied().eq(0..DEPTH), "{ids:?}");
        ids.into_iter().for_each(|id| self.post(id));
    }
}

/// Two processes, of which one works in slices, send more than the queue holds.
#[test]
fn processes_compete() {
    let dev = Dev::open();
    for kind in [Kind::Receive, Kind::Private, Kind::Exposed] {
        let target = Target::new(&dev, kind);
        let mut others = [
            target.connect(&[]),
            target.connect(&[("VERBATIM_ASYNC", "5")]),
        ];
        for (i, (second, _)) in others.iter_mut().enumerate() {
            second.ask(&format!("fill 4 3000 {i}"));
        }
        for round in 0..20 {
            for (second, _) in &mut others {
                for i in 0..10 {
                    second.ask(&format!("post 4 {}", 1 + (round * 10 + i) * 10));
                }
            }
            let begin = Instant::now();
            let mut got = [0; 2];
            while got != [10, 10] {
                for (i, (_, end)) in others.iter().enumerate() {
                    while let Some(wc) = end.poll() {
                        let len = 1 + (round * 10 + got[i]) * 10;
                        assert_eq!((wc.status, wc.byte_len as usize), (OK, len));
                        let at = wc.wr_id as usize * LEN;
                        assert_eq!(target.mem.get(at, len), pattern(i, len));
                        target.post(wc.wr_id);
                        got[i] += 1;
                    }
                }
                assert!(begin.elapsed() < HANG, "{got:?}");
                std::thread::yield_now();
            }
            for (second, _) in &mut others {
                for i in 0..10 {
                    let len = 1 + (round * 10 + i) * 10;
                    assert_eq!(second.ask("next"), format!("0 1 {len}"));
                }
            }
        }
        let (mut second, end) = others.into_iter().next().unwrap();
        target.is_whole(&mut second, &end);
    }
}

/// A queue grows and shrinks with another process connected to it, which knows nothing of that.
#[test]
fn resized() {
    let dev = Dev::open();
    let target = Target::new(&dev, Kind::Receive);
    let large = Mem::file(&dev, 32 * LEN, LOCAL, Kind::Receive);
    let (mut second, end) = target.connect(&[]);
    for round in 0..10 {
        let size = 2 * DEPTH + round * 2;
        assert_eq!(target.srq.resize(size as u32), 0);
        for id in DEPTH..size {
            let mut sges = [large.sge(id as usize * LEN, LEN)];
            assert_eq!(target.srq.recv(id, &mut sges), 0);
        }
        assert_eq!(target.srq.recv(0, &mut []), libc::ENOMEM);
        assert_eq!(target.srq.resize(DEPTH as u32), libc::EINVAL);
        for id in 0..size {
            second.ask(&format!("fill 4 3000 {id}"));
            assert_eq!(second.ask("send 4 3000"), "0");
            let wc = end.next();
            assert_eq!((wc.status, wc.wr_id, wc.byte_len), (OK, id, 3000));
            let mem = if id < DEPTH { &target.mem } else { &large };
            assert_eq!(mem.get(id as usize * LEN, 3000), pattern(id as usize, 3000));
        }
        assert_eq!(target.srq.resize(DEPTH as u32), 0);
        (0..DEPTH).for_each(|id| target.post(id));
        assert_eq!(target.srq.recv(0, &mut []), libc::ENOMEM);
        target.is_whole(&mut second, &end);
    }
}

#[test]
fn killed_at_each_step() {
    let dev = Dev::open();
    let target = Target::new(&dev, Kind::Receive);
    let (mut bystander, other) = target.connect(&[]);
    for (step, name) in Step::ALL.into_iter().enumerate() {
        for op in [0, 1] {
            let (mut victim, end) = target.connect(&[]);
            victim.ask(&format!("inject {step} 6 kill"));
            let (addr, key) = (target.exposed.addr(), target.exposed.key());
            victim.ask(&format!("hammer {op} {addr} {key}"));
            let begin = Instant::now();
            while victim.child.try_wait().unwrap().is_none() {
                target.serve(&end);
                assert!(begin.elapsed() < HANG, "{name:?}: the victim lives on");
                std::thread::yield_now();
            }
            target.serve(&end);
            // Nothing is done about the victim's queue pair: that its process is gone is enough.
            target.is_whole(&mut bystander, &other);
            assert!(end.poll().is_none(), "{name:?}");
        }
    }
}

#[test]
fn stopped_with_an_entry() {
    let dev = Dev::open();
    let mut target = Target::new(&dev, Kind::Receive);
    for step in [Step::Hazard, Step::Copied, Step::Told] {
        let (mut bystander, other) = target.connect(&[]);
        let (mut victim, end) = target.connect(&[]);
        let at = Step::ALL.iter().position(|s| *s == step).unwrap();
        victim.ask(&format!("inject {at} 6 stop"));
        victim.ask("hammer 0 0 0");
        let pid = victim.child.id() as i32;
        let begin = Instant::now();
        let mut count = 0;
        while !stopped(pid) {
            count += target.serve(&end);
            assert!(begin.elapsed() < HANG);
            std::thread::yield_now();
        }
        count += target.serve(&end);
        assert_eq!(count, if step == Step::Told { 6 } else { 5 }, "{step:?}");
        // The others get on with what is left.
        for _ in 0..20 {
            bystander.ask("post 4 2000");
            assert_eq!(bystander.ask("next"), "0 1 2000");
            assert_eq!(target.serve(&other), 1);
        }
        // The memory of the entries may still be written to.
        let mr = target.mem.mr;
        assert_eq!(unsafe { (api().ibv_dereg_mr)(mr) }, libc::EBUSY, "{step:?}");
        victim.kill();
        target.mem.dereg();
        drop((end, other));
        target = Target::new(&dev, Kind::Receive);
    }
}

/// Whether a process is stopped by a signal.
fn stopped(pid: i32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit(')')
        .next()
        .is_some_and(|rest| rest.trim_start().starts_with('T'))
}
