//! The process that others work on: a queue pair for one that gets stopped or killed, and one for a bystander in a third
//! process, on the same completion queue.
#![allow(dead_code, missing_docs, clippy::undocumented_unsafe_blocks)]

use super::common::*;
use super::second::*;
use ibverbs_sys::ibv_wr_opcode as Op;
use ibverbs_sys::{ibv_qp_cap, ibv_qp_init_attr, ibv_qp_type, ibv_wc};
use ibverbs_sys::{ibv_wc_status as Status, ibv_wc_status};
use softverbs::memory::Kind;
use std::collections::HashMap;
use std::mem::ManuallyDrop;
use std::ptr::null_mut;
use std::time::{Duration, Instant};

/// Ten times as long as a stopped process is waited for.
pub const BOUND: Duration = Duration::from_secs(5);
/// Receives of a queue pair.
pub const DEPTH: u64 = 16;
pub const LEN: usize = 1 << 20;

/// The longest of each kind of call, for whoever reads the output.
#[derive(Default)]
pub struct Longest(HashMap<String, Duration>);

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
pub struct Target {
    bystander: Second,
    /// To the bystander; owns the completion queue.
    other: ManuallyDrop<End>,
    /// Of the other: for sending and receiving.
    mem: ManuallyDrop<Mem>,
    /// Completions that were not looked for yet.
    unseen: Vec<ibv_wc>,
    longest: Longest,
    pub dev: ManuallyDrop<Dev>,
}

/// A process in the middle of its work, and what it works on.
pub struct Victim {
    pub second: Second,
    /// On the target's completion queue. Given back by hand: it is what is tested.
    pub end: ManuallyDrop<End>,
    pub mem: ManuallyDrop<Mem>,
    /// Receives that have completed.
    pub flushed: u64,
}

impl Target {
    pub fn new() -> Target {
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
    pub fn close(self) {
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

    pub fn connect(&self, mut second: Second, mem: Mem) -> Victim {
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
    pub fn serve_until(&mut self, victim: &Victim, mut done: impl FnMut(&Victim) -> bool) {
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
    pub fn others_go_on(&mut self, state: &str) {
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
    pub fn other_memory_is_given_back(&mut self, state: &str) {
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

    pub fn dereg(&mut self, victim: &Victim, state: &str) -> i32 {
        self.longest.time(format!("dereg, {state}"), || unsafe {
            (api().ibv_dereg_mr)(victim.mem.mr)
        })
    }

    pub fn destroy(&mut self, victim: &Victim, state: &str) -> i32 {
        self.longest.time(format!("destroy, {state}"), || unsafe {
            (api().ibv_destroy_qp)(victim.end.qp)
        })
    }

    /// Takes what receives of the victim's queue pair are given back now.
    pub fn take_flushed(&mut self, victim: &mut Victim) {
        while let Some(wc) = self.poll_for(victim.end.qpn()) {
            // Between: of a SEND and of a WRITE with immediate data that go on after the key of the memory was taken away.
            let fine = [
                OK,
                Status::IBV_WC_LOC_PROT_ERR,
                Status::IBV_WC_REM_ACCESS_ERR,
                Status::IBV_WC_WR_FLUSH_ERR,
            ];
            assert!(fine.contains(&wc.status), "{:?}", wc.status);
            victim.flushed += 1;
        }
    }

    /// All receives come back, now that nobody is in the middle of one.
    pub fn flush(&mut self, victim: &mut Victim, state: &str) {
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
pub fn free(mem: &mut ManuallyDrop<Mem>) {
    mem.mr = null_mut();
    // SAFETY: it is dropped here only, and not used afterwards.
    unsafe { ManuallyDrop::drop(mem) };
}

/// Whether a process is stopped by a signal: all its threads, of which the first may be the last to stop.
pub fn stopped(second: &Second) -> bool {
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
pub fn dead(second: &Second) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", second.child.id()));
    stat.is_ok_and(|stat| state_of(&stat) == Some('Z'))
}

fn state_of(stat: &str) -> Option<char> {
    stat.rsplit(')').next()?.trim_start().chars().next()
}
