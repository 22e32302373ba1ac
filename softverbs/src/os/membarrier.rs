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
    use std::sync::Barrier;
    use std::sync::atomic::{AtomicBool, AtomicU32, Ordering, compiler_fence};

    #[test]
    fn registering_makes_the_barrier_work() {
        assert!(available());
        assert!(register());
        assert!(register(), "twice is harmless");
        barrier().unwrap();
    }

    /// Store buffering, the pattern of hazards: the light side has no fence, so without the barrier both sides may
    /// read 0. With it, one of them must see the other's store.
    #[test]
    fn one_side_without_a_fence_is_seen_by_the_side_with_the_barrier() {
        const ROUNDS: usize = 2_000;
        assert!(register());
        let hazard = AtomicU32::new(0);
        let invalid = AtomicU32::new(0);
        let light_saw_invalid = AtomicBool::new(false);
        let (start, end) = (Barrier::new(2), Barrier::new(2));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for _ in 0..ROUNDS {
                    start.wait();
                    hazard.store(1, Ordering::Relaxed);
                    compiler_fence(Ordering::SeqCst);
                    let saw = invalid.load(Ordering::Relaxed) == 1;
                    light_saw_invalid.store(saw, Ordering::Relaxed);
                    end.wait();
                }
            });
            for round in 0..ROUNDS {
                start.wait();
                invalid.store(1, Ordering::Relaxed);
                barrier().unwrap();
                let saw_hazard = hazard.load(Ordering::Relaxed) == 1;
                end.wait();
                assert!(
                    saw_hazard || light_saw_invalid.load(Ordering::Relaxed),
                    "round {round}: neither side saw the other"
                );
                hazard.store(0, Ordering::Relaxed);
                invalid.store(0, Ordering::Relaxed);
            }
        });
    }
}
