//! Store buffering, the pattern of hazards, between two processes: one side stores and then looks without a fence
//! between, the other has the barrier between. At least one of them must see the other's store.
//!
//! The side without the fence does what makes the kernel pass it by: its threads exit on the processor on which
//! it goes on, and stores that take long are under way when it sets its word.

use super::{Other, hear, tell};
use crate::os::incarnation::Incarnation;
use crate::os::membarrier;
use crate::os::memfd::ControlFile;
use crate::os::pull::{Access, FileId, pull};
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicU32, Ordering, compiler_fence};

const LEN: usize = 4096;
const ROUNDS: u32 = 6_000;

/// The words that both share, each in lines of its own.
struct Words<'a> {
    hazard: &'a AtomicU32,
    invalid: &'a AtomicU32,
    saw: &'a AtomicU32,
    go: &'a AtomicU32,
    done: &'a AtomicU32,
}

fn words(file: &ControlFile) -> Words<'_> {
    let word = |at: usize| {
        // SAFETY: aligned and within the file, which stays mapped as long as it is borrowed; both sides use atomics.
        unsafe { &*file.as_ptr().add(256 * at).cast::<AtomicU32>() }
    };
    Words {
        hazard: word(0),
        invalid: word(1),
        saw: word(2),
        go: word(3),
        done: word(4),
    }
}

/// Waits for the other side, spinning, so that both go on at the same moment if there are two processors.
/// Fails if it is gone.
fn meet(word: &AtomicU32, value: u32, mut gone: impl FnMut() -> bool) {
    let mut tries = 0u32;
    while word.load(Ordering::Acquire) != value {
        tries += 1;
        match tries % 4096 {
            0 => {
                assert!(!gone(), "the other side has ended");
                std::thread::yield_now();
            }
            _ => std::hint::spin_loop(),
        }
    }
}

/// Moves to the first or the last processor this process may use.
fn pin(last: bool) {
    // SAFETY: all zeros is the empty set; the calls get its size and fill or read no more.
    unsafe {
        let mut allowed: libc::cpu_set_t = std::mem::zeroed();
        let size = size_of_val(&allowed);
        assert_eq!(libc::sched_getaffinity(0, size, &mut allowed), 0);
        let mut all = (0..libc::CPU_SETSIZE as usize).filter(|&cpu| libc::CPU_ISSET(cpu, &allowed));
        let cpu = if last { all.next_back() } else { all.next() };
        let mut one: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(cpu.unwrap(), &mut one);
        assert_eq!(libc::sched_setaffinity(0, size, &one), 0);
    }
}

pub(super) fn light(arguments: &[&str]) {
    let number = |at: usize| arguments[at].parse::<u64>().unwrap();
    let owner = Incarnation {
        pid: number(0) as u32,
        start: number(1),
    };
    let id = FileId {
        dev: number(3),
        ino: number(4),
    };
    let fd = pull(owner, number(2) as i32, id, Access::ReadWrite).unwrap();
    let file = ControlFile::attach(fd, LEN, true).unwrap();
    let words = words(&file);
    assert!(membarrier::register());
    let mut far = vec![1u8; 64 << 20];
    let mut rng = crate::copy::Rng::new(1);
    pin(true);
    // SAFETY: getppid has no preconditions. It changes when the parent ends.
    let parent = || unsafe { libc::getppid() };
    let at_start = parent();
    tell("ready");
    for round in 1..=ROUNDS {
        meet(words.go, round, || parent() != at_start);
        if round % 64 == 1 {
            // It inherits the processor.
            std::thread::spawn(|| ()).join().unwrap();
        }
        for _ in 0..8 {
            let at = rng.below(far.len() as u64) as usize;
            // SAFETY: `at` is within the vector.
            unsafe { far.as_mut_ptr().add(at).write_volatile(round as u8) };
        }
        words.hazard.store(round, Ordering::Relaxed);
        compiler_fence(Ordering::SeqCst);
        let seen = words.invalid.load(Ordering::Relaxed);
        words.saw.store(seen, Ordering::Relaxed);
        words.done.store(round, Ordering::Release);
    }
    hear();
}

#[test]
fn one_side_without_a_fence_is_seen_by_the_side_with_the_barrier() {
    assert!(membarrier::register());
    let file = ControlFile::create(LEN, true).unwrap();
    let words = words(&file);
    let me = Incarnation::me();
    let arguments = [
        me.pid.to_string(),
        me.start.to_string(),
        file.fd().as_raw_fd().to_string(),
        file.id().dev.to_string(),
        file.id().ino.to_string(),
    ];
    let mut part = vec!["light side of a fence"];
    part.extend(arguments.iter().map(String::as_str));
    let mut other = Other::start(&part);
    assert_eq!(other.hear(), "ready");
    let mut missed = 0;
    pin(false);
    for round in 1..=ROUNDS {
        words.go.store(round, Ordering::Release);
        // The other side hears of it a little later; try all offsets.
        for _ in 0..round % 97 {
            std::hint::black_box(round);
        }
        words.invalid.store(round, Ordering::Relaxed);
        membarrier::barrier().unwrap();
        let saw_hazard = words.hazard.load(Ordering::Relaxed) == round;
        meet(words.done, round, || {
            other.child.try_wait().unwrap().is_some()
        });
        if !saw_hazard && words.saw.load(Ordering::Relaxed) != round {
            missed += 1;
        }
    }
    assert_eq!(missed, 0, "rounds in which neither side saw the other");
    other.finish();
}
