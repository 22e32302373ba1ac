//! Where the two ends run while they are measured.
//!
//! With few processors the scheduler likes to keep two processes that talk to each other on the same one, where each
//! waits for the other to be preempted. Then each end gets one of its own, for all transports alike. With many, the
//! demonstration leaves the scheduler alone; the benchmark never does.

use std::sync::{LazyLock, OnceLock};

/// Up to so many processors there is no free one to count on.
const FEW: usize = 4;

/// One of the two processes.
#[derive(Clone, Copy, Debug)]
pub enum End {
    /// Sends first.
    Client = 0,
    /// Answers.
    Server = 1,
}

/// Binds the calling thread to the processor of its end, if there are two to four that may be used. What the kernel
/// refuses is left as it is.
pub fn bind(end: End) {
    let _ = processors();
    let allowed = allowed();
    if (2..=FEW).contains(&allowed.len()) {
        bind_to(allowed[end as usize]);
    }
}

/// Binds the calling thread to the processor of its end, if there are two that may be used, however many there are. The
/// children of a thread that is bound are so, too.
pub fn bind_always(end: End) {
    let _ = processors();
    let allowed = allowed();
    let _ = ALLOWED.set(allowed.clone());
    if allowed.len() >= 2 {
        bind_to(allowed[end as usize]);
    }
}

/// What [`bind_always`] found when it was first called.
static ALLOWED: OnceLock<Vec<usize>> = OnceLock::new();

/// Binds the calling thread to the processor of an end, though the thread that started it was bound to that of another.
pub fn bind_again(end: End) {
    if let Some(allowed) = ALLOWED.get()
        && allowed.len() >= 2
    {
        bind_to(allowed[end as usize]);
    }
}

/// How many processors this process can use, whatever its threads were bound to since.
pub fn processors() -> usize {
    static COUNT: LazyLock<usize> =
        LazyLock::new(|| std::thread::available_parallelism().map_or(1, usize::from));
    *COUNT
}

/// Processors that the calling thread may run on.
pub fn allowed() -> Vec<usize> {
    // SAFETY: a set is plain bits, for which zero is a value.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: the set is writable for the size given.
    let result = unsafe { libc::sched_getaffinity(0, size_of_val(&set), &raw mut set) };
    if result != 0 {
        // A machine with more processors than the set has bits, for one.
        return Vec::new();
    }
    (0..8 * size_of_val(&set))
        // SAFETY: below the number of bits in the set.
        .filter(|&cpu| unsafe { libc::CPU_ISSET(cpu, &set) })
        .collect()
}

fn bind_to(cpu: usize) {
    // SAFETY: as in `allowed`; `cpu` came from such a set.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(cpu, &mut set);
        libc::sched_setaffinity(0, size_of_val(&set), &raw const set);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ends_get_different_processors_if_there_are_few() {
        let before = allowed();
        let bound = [End::Client, End::Server].map(|end| {
            // A thread of its own, which takes the binding with it when it ends.
            let bound = std::thread::spawn(move || {
                bind(end);
                allowed()
            });
            bound.join().unwrap()
        });
        if (2..=FEW).contains(&before.len()) {
            assert_eq!(bound, [vec![before[0]], vec![before[1]]]);
        } else {
            assert_eq!(bound, [before.clone(), before]);
        }
        let total = processors();
        std::thread::spawn(move || {
            bind(End::Server);
            assert_eq!(processors(), total);
        })
        .join()
        .unwrap();
    }
}
