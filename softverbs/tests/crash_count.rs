//! Two hundred ends in the middle of a work request: at each step of each kind of request one process is killed while another is
//! stopped. Each time the survivor learns of it, its other connections are not delayed, new ones work, and at the end it has no more
//! than at the beginning. Alone in its process, whose descriptors and mappings it counts.
#![allow(missing_docs, clippy::undocumented_unsafe_blocks)]

mod common;
mod second;
use common::*;
use ibverbs_sys::ibv_wr_opcode as Op;
use ibverbs_sys::{ibv_qp_state as State, ibv_wc_status as Status};
use second::*;
use softverbs::faults::Step;
use softverbs::memory::Kind;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Ten times as long as a stopped process is waited for at most; of what should not wait at all.
const BOUND: Duration = Duration::from_secs(5);

#[test]
#[ignore = "the second process of the tests in this file"]
fn second_process() {
    serve();
}

/// A folder of this test's own, so that nobody else's slots are in it.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Folder {
        let path = std::env::temp_dir().join(format!("softverbs-crash-{}", std::process::id()));
        std::fs::create_dir(&path).unwrap();
        // SAFETY: no other thread of this process reads the environment now.
        unsafe { std::env::set_var("VERBATIM_DIR", &path) };
        Folder(path)
    }

    /// Files of slots.
    fn slots(&self) -> usize {
        let inner = std::fs::read_dir(&self.0).unwrap().next().unwrap().unwrap();
        std::fs::read_dir(inner.path()).unwrap().count()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Descriptors of this process, and its mappings of the device's files.
fn held() -> (usize, usize) {
    let fds = std::fs::read_dir("/proc/self/fd").unwrap().count();
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    (fds, maps.lines().filter(|l| l.contains("verbatim")).count())
}

/// A process at work on memory of ours until it meets its step.
struct Victim {
    second: Second,
    end: End,
    mem: Mem,
}

impl Victim {
    fn new(dev: &Dev, op: usize, step: usize, nth: usize, action: &str) -> Victim {
        let o = Options {
            timeout: 0,
            ..Options::default()
        };
        let (mut second, end) = Second::connected(dev, &o, &[]);
        let mem = Mem::file(dev, 1 << 16, LOCAL | READ | WRITE, Kind::Exposed);
        for i in 0..16 {
            assert_eq!(end.recv(i, &mut [mem.sge(0, 8192)]), 0);
        }
        second.ask(&format!("inject {step} {nth} {action}"));
        second.ask(&format!("hammer {op} {} {}", mem.addr(), mem.key()));
        Victim { second, end, mem }
    }

    /// Takes what it sent; nothing half-sent shows.
    fn serve(&self) {
        while let Some(wc) = self.end.poll() {
            assert_eq!(wc.status, OK);
            assert_eq!(self.end.recv(wc.wr_id, &mut [self.mem.sge(0, 8192)]), 0);
        }
    }

    /// Work for it fails now that it is gone, its queue pair with it, and everything comes back.
    fn mourn(mut self) {
        self.serve();
        let mut sges = [self.mem.sge(0, 8)];
        let mut last = wr(99, Op::IBV_WR_SEND, &mut sges, SIGNALED);
        assert_eq!(self.end.post(&mut last), 0);
        let status = loop {
            let wc = self.end.next();
            if wc.wr_id == 99 {
                break wc.status;
            }
        };
        assert_eq!(status, Status::IBV_WC_RETRY_EXC_ERR);
        assert_eq!(self.end.state(), State::IBV_QPS_ERR);
        self.mem.dereg();
    }
}

/// Messages both ways, at once. Gives how long the longest took.
fn works((a, b): (&End, &End), mem: &Mem) -> Duration {
    let mut longest = Duration::ZERO;
    for (from, to) in [(a, b), (b, a)] {
        for id in 0..5 {
            let begin = Instant::now();
            assert_eq!(to.recv(id, &mut [mem.sge(0, 2048)]), 0);
            let mut sges = [mem.sge(2048, 2000)];
            let mut send = wr(id, Op::IBV_WR_SEND, &mut sges, SIGNALED);
            assert_eq!(from.post(&mut send), 0);
            assert_eq!((from.next().status, to.next().status), (OK, OK));
            longest = longest.max(begin.elapsed());
        }
    }
    assert!(longest < BOUND, "{longest:?}");
    longest
}

#[test]
fn two_hundred_ends() {
    let folder = Folder::new();
    let begin = Instant::now();
    let dev = Dev::open();
    let other = pair(&dev, &Options::default());
    let mem = Mem::file(&dev, 4096, LOCAL, Kind::Private);
    let mut ends = 0;
    let mut longest = Duration::ZERO;
    let first = held();
    for nth in [1, 2, 5, 9, 17, 33] {
        for (step, name) in Step::ALL.into_iter().enumerate() {
            // SEND, WRITE with immediate data, and READ, which tells the target nothing.
            for op in 0..if name == Step::Told { 2 } else { 3 } {
                let mut killed = Victim::new(&dev, op, step, nth, "kill");
                let mut stopped = Victim::new(&dev, op, step, nth, "stop");
                let since = Instant::now();
                let mut both = false;
                while !both {
                    both = ended(&killed.second) && ended(&stopped.second);
                    killed.serve();
                    stopped.serve();
                    assert!(since.elapsed() < HANG, "{name:?} {op} {nth}: they live on");
                    std::thread::yield_now();
                }
                longest = longest.max(works((&other.0, &other.1), &mem));
                killed.second.kill();
                killed.mourn();
                // The stopped one has its own errors to give once it is gone; till then it keeps only what it works on.
                longest = longest.max(works((&other.0, &other.1), &mem));
                let (c, d) = pair(&dev, &Options::default());
                longest = longest.max(works((&c, &d), &mem));
                drop((c, d));
                stopped.second.kill();
                stopped.mourn();
                ends += 2;
            }
        }
        // A process that comes after them works, and takes away the slots that they left.
        let (mut second, end) = Second::connected(&dev, &Options::default(), &[]);
        assert_eq!(end.recv(1, &mut [mem.sge(0, 4096)]), 0);
        assert_eq!(second.ask("send 4 3000"), "0");
        assert_eq!(end.next().byte_len, 3000);
        assert_eq!(folder.slots(), 2);
        drop((second, end));
        // What was theirs goes when the watcher has buried them.
        let since = Instant::now();
        while held() != first {
            let (fds, maps) = held();
            assert!(
                since.elapsed() < HANG,
                "{first:?} before, now {fds}, {maps}"
            );
            std::thread::yield_now();
        }
    }
    assert!(ends >= 200, "{ends}");
    println!(
        "{ends} ends in {:?}, longest message {longest:?}",
        begin.elapsed()
    );
}
