//! The heavy side of an asymmetric fence. The data path publishes its hazards with plain stores and no fence; whoever
//! takes something back (a memory region, a queue pair) runs [`barrier`], which makes every thread of every
//! registered process pass a full fence. See membarrier(2).
//!
//! `GLOBAL_EXPEDITED` interrupts only processes that have registered, within microseconds. `GLOBAL` waits for all
//! running threads of the machine, within milliseconds, needs no registration, and is the fallback.

use std::io;

/// Makes this process one that others' [`barrier`] reaches. To be called before the process touches any
/// shared object; repeating it is harmless.
///
/// False if the kernel (or a seccomp filter) offers neither way: then nothing may be taken back while a peer could be
/// using it, and the device must not be opened.
pub fn register() -> bool {
    if !available() {
        return false;
    }
    if offers_expedited(query()) {
        return command(libc::MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED).is_ok();
    }
    true
}

/// Returns after every thread of every registered process has passed a full memory fence.
///
/// # Errors
/// If neither command is possible any more, say because a seccomp filter was put in place after [`register`]. What
/// was to be taken back must then be leaked.
pub fn barrier() -> io::Result<()> {
    command(libc::MEMBARRIER_CMD_GLOBAL_EXPEDITED)
        .or_else(|_| command(libc::MEMBARRIER_CMD_GLOBAL))
        .map(|_| ())
        .map_err(|error| super::during("membarrier", error))
}

/// Whether [`barrier`] can work here at all. Changes nothing.
pub fn available() -> bool {
    let offered = query();
    offers_expedited(offered) || offered & libc::MEMBARRIER_CMD_GLOBAL != 0
}

fn offers_expedited(offered: libc::c_int) -> bool {
    let both =
        libc::MEMBARRIER_CMD_GLOBAL_EXPEDITED | libc::MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED;
    offered & both == both
}

/// The set of commands the kernel offers; empty if it has no membarrier.
fn query() -> libc::c_int {
    command(libc::MEMBARRIER_CMD_QUERY).unwrap_or(0)
}

fn command(command: libc::c_int) -> io::Result<libc::c_int> {
    // SAFETY: membarrier takes integers only and touches no memory of ours.
    let answer = unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) };
    if answer < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(answer as libc::c_int)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU32, Ordering, compiler_fence};

    #[test]
    fn registering_makes_the_barrier_work() {
        assert!(available());
        assert!(register());
        assert!(register(), "twice is harmless");
        barrier().unwrap();
    }

    /// A word with a cache line of its own.
    #[repr(align(128))]
    struct Line(AtomicU32);

    /// Waits for the other thread, spinning, so that both go on at the same moment if there are two processors.
    fn meet(counter: &Line, value: u32) {
        let mut tries = 0u32;
        while counter.0.load(Ordering::Acquire) != value {
            tries += 1;
            match tries % 1024 {
                0 => std::thread::yield_now(),
                _ => std::hint::spin_loop(),
            }
        }
    }

    /// Store buffering, the pattern of hazards: the light side has no fence, so without the barrier both sides may
    /// read the old value. With it, one of them must see the other's store.
    #[test]
    fn one_side_without_a_fence_is_seen_by_the_side_with_the_barrier() {
        const ROUNDS: u32 = 50_000;
        assert!(register());
        let line = || Line(AtomicU32::new(0));
        let (hazard, invalid, saw, go, done) = (line(), line(), line(), line(), line());
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for round in 1..=ROUNDS {
                    meet(&go, round);
                    hazard.0.store(round, Ordering::Relaxed);
                    compiler_fence(Ordering::SeqCst);
                    let seen = invalid.0.load(Ordering::Relaxed);
                    saw.0.store(seen, Ordering::Relaxed);
                    done.0.store(round, Ordering::Release);
                }
            });
            let mut missed = None;
            for round in 1..=ROUNDS {
                go.0.store(round, Ordering::Release);
                // The light side hears of it a little later; try all offsets.
                for _ in 0..round % 64 {
                    std::hint::black_box(round);
                }
                invalid.0.store(round, Ordering::Relaxed);
                barrier().unwrap();
                let saw_hazard = hazard.0.load(Ordering::Relaxed) == round;
                meet(&done, round);
                if !saw_hazard && saw.0.load(Ordering::Relaxed) != round {
                    missed = Some(round);
                }
            }
            assert_eq!(missed, None, "in this round neither side saw the other");
        });
    }
}
