//! Where the two ends run while round trips are measured.
//!
//! With few processors the scheduler likes to keep two processes that talk to each other on the same one, where each
//! waits for the other to be preempted. Then each end gets one of its own, for both transports alike. With many, the
//! scheduler is left alone.

/// Up to so many processors there is no free one to count on.
const FEW: usize = 4;

/// One of the two processes.
#[derive(Clone, Copy, Debug)]
pub enum End {
    /// Sends the echo's request.
    Client = 0,
    /// Answers it.
    Server = 1,
}

/// Binds the calling thread to the processor of its end, if there are two to four that may be used. What the kernel
/// refuses is left as it is.
pub fn bind(end: End) {
    let allowed = allowed();
    if (2..=FEW).contains(&allowed.len()) {
        bind_to(allowed[end as usize]);
    }
}

/// Processors that the calling thread may run on.
fn allowed() -> Vec<usize> {
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
    }
}
