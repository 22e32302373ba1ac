//! Where threads run.

/// The processors that this thread may run on.
pub fn allowed() -> Vec<usize> {
    // SAFETY: plain bits, for which zero is a value; the set is our own.
    let set = unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        let all = size_of_val(&set);
        assert_eq!(libc::sched_getaffinity(0, all, &raw mut set), 0);
        set
    };
    (0..libc::CPU_SETSIZE as usize)
        // SAFETY: within the set.
        .filter(|processor| unsafe { libc::CPU_ISSET(*processor, &set) })
        .collect()
}

/// From now on this thread runs there.
pub fn run_on(processor: usize) {
    // SAFETY: plain bits, for which zero is a value; the set is our own, and the processor came from one.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(processor, &mut set);
        assert_eq!(
            libc::sched_setaffinity(0, size_of_val(&set), &raw const set),
            0
        );
    }
}
