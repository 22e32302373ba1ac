//! The heavy side of an asymmetric fence. The data path publishes its hazards with plain stores and no fence; whoever
//! takes something back (a memory region, a queue pair) runs [`barrier`], which makes every thread of every
//! registered process pass a full fence. See membarrier(2).
//!
//! Two expedited commands are used, because neither is enough. `PRIVATE_EXPEDITED` reaches the threads of this process,
//! without fail. `GLOBAL_EXPEDITED` is meant to reach those of all registered processes, and mostly does, but the kernel
//! goes by a mark per processor that it takes away when a thread of a registered process exits there, and that it does
//! not put back if the next to run there is another thread of the same process, with or without idling in between
//! (`exit_mm` and `membarrier_switch_mm`, seen on Linux 6.18). Until a different process has run on that processor, the
//! command passes it by. The same holds for a processor that idled on the process's memory map while it registered.
//! Measured on such a processor: a hazard word behind eight stores that miss the cache stayed unseen in 23 % of the
//! tries.
//!
//! What was missed are stores that wait in a processor's store buffer, which empties by itself as fast as the caches
//! take them, also if the thread is interrupted. So [`barrier`] then waits for [`SETTLE`] before it returns. Likewise
//! a load can have been done too early only by as much as a processor looks ahead. `GLOBAL` would be exact but waits
//! for every processor's next tick, some 10 ms; it is the fallback where the others do not exist.

use std::io;
use std::time::{Duration, Instant};

/// How long a store may take to leave a processor that the barrier may have passed by. With eight stores that miss
/// cache and TLB before it, 1 us was too short in 4 % of the tries on such a processor and 5 us in none of 100,000.
const SETTLE: Duration = Duration::from_micros(50);

/// Makes this process one that others' [`barrier`] reaches, and makes its own work. To be called before the process
/// touches any shared object; repeating it is harmless.
///
/// False if the kernel (or a seccomp filter) offers no way: then nothing may be taken back while a peer could be
/// using it, unless all sides use full fences.
pub fn register() -> bool {
    if !available() {
        return false;
    }
    if offers_expedited(query()) {
        return command(libc::MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED).is_ok()
            && command(libc::MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED).is_ok();
    }
    true
}

/// Returns after every thread of every registered process has passed a full memory fence. Takes some 60 us.
///
/// # Errors
/// If no command is possible any more, say because a seccomp filter was put in place after [`register`]. What was to
/// be taken back must then be leaked.
pub fn barrier() -> io::Result<()> {
    if expedited().is_ok() {
        let begin = Instant::now();
        while begin.elapsed() < SETTLE {
            std::hint::spin_loop();
        }
        return Ok(());
    }
    command(libc::MEMBARRIER_CMD_GLOBAL)
        .map(|_| ())
        .map_err(|error| super::during("membarrier", error))
}

/// The same without the wait: some 5 us, but a peer's thread may have been passed by. For where that costs time and no
/// more, because the caller looks again some time later.
///
/// # Errors
/// As [`barrier`].
pub fn barrier_unsettled() -> io::Result<()> {
    expedited()
        .or_else(|_| command(libc::MEMBARRIER_CMD_GLOBAL).map(|_| ()))
        .map_err(|error| super::during("membarrier", error))
}

/// Returns after every thread of this process has passed a full memory fence; exact. Takes a few microseconds.
///
/// # Errors
/// As [`barrier`], and if [`register`] did not find the expedited commands.
pub fn private() -> io::Result<()> {
    command(libc::MEMBARRIER_CMD_PRIVATE_EXPEDITED).map(|_| ())
}

fn expedited() -> io::Result<()> {
    private()?;
    command(libc::MEMBARRIER_CMD_GLOBAL_EXPEDITED)?;
    Ok(())
}

/// Whether [`barrier`] can work here at all. Changes nothing.
pub fn available() -> bool {
    let offered = query();
    offers_expedited(offered) || offered & libc::MEMBARRIER_CMD_GLOBAL != 0
}

fn offers_expedited(offered: libc::c_int) -> bool {
    let all = libc::MEMBARRIER_CMD_GLOBAL_EXPEDITED
        | libc::MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED
        | libc::MEMBARRIER_CMD_PRIVATE_EXPEDITED
        | libc::MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED;
    offered & all == all
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

    #[test]
    fn registering_makes_the_barrier_work() {
        assert!(available());
        assert!(register());
        assert!(register(), "twice is harmless");
        barrier().unwrap();
        barrier_unsettled().unwrap();
    }
}
