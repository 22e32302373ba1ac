//! Whether other work took the processors meanwhile. Then the figures say more about that than about what was measured.

use std::time::{Duration, Instant};

/// Notes the beginning.
pub struct Load {
    start: Instant,
    busy: Option<Duration>,
    own: Duration,
}

impl Load {
    /// From now on.
    pub fn begin() -> Load {
        Load {
            start: Instant::now(),
            busy: busy(),
            own: own(),
        }
    }

    /// How many processors others kept busy since, on average; `None` if the kernel does not say. Only what child processes used
    /// that were waited for counts as our own.
    pub fn others(&self) -> Option<f64> {
        let busy = busy()?.saturating_sub(self.busy?);
        let others = busy.saturating_sub(own().saturating_sub(self.own));
        Some(others.as_secs_f64() / self.start.elapsed().as_secs_f64().max(0.001))
    }
}

/// Time that all processors together were not idle, or had been taken away by the hypervisor.
fn busy() -> Option<Duration> {
    let text = std::fs::read_to_string("/proc/stat").ok()?;
    let ticks = busy_ticks(text.lines().next()?)?;
    // SAFETY: no pointers are involved.
    let per_second = unsafe { libc::sysconf(libc::_SC_CLK_TCK) };
    (per_second > 0).then(|| Duration::from_secs_f64(ticks as f64 / per_second as f64))
}

/// Of the first line of /proc/stat, proc(5): user, nice, system, idle, iowait, irq, softirq, steal; then what is counted in
/// them already.
fn busy_ticks(line: &str) -> Option<u64> {
    let mut fields = line.split_ascii_whitespace();
    (fields.next()? == "cpu").then_some(())?;
    let numbers: Vec<u64> = fields.take(8).map_while(|f| f.parse().ok()).collect();
    let idle = numbers.get(3)? + numbers.get(4)?;
    Some(numbers.iter().sum::<u64>() - idle)
}

/// Processor time of this process and of the children it has waited for.
fn own() -> Duration {
    let of = |who| {
        // SAFETY: plain integers, for which zero is a value.
        let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
        // SAFETY: `usage` is writable.
        unsafe { libc::getrusage(who, &raw mut usage) };
        let time = |t: libc::timeval| {
            Duration::from_secs(u64::try_from(t.tv_sec).unwrap_or(0))
                + Duration::from_micros(u64::try_from(t.tv_usec).unwrap_or(0))
        };
        time(usage.ru_utime) + time(usage.ru_stime)
    };
    of(libc::RUSAGE_SELF) + of(libc::RUSAGE_CHILDREN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_time_is_not_busy_and_stolen_time_is() {
        assert_eq!(
            busy_ticks("cpu  1 2 4 1000 2000 8 16 32 4000 8000"),
            Some(63)
        );
        assert_eq!(busy_ticks("cpu  1 2 4 1000 2000 8 16"), Some(31));
        assert_eq!(busy_ticks("cpu  1 2 4"), None);
        assert_eq!(busy_ticks("intr 1 2 4 5 6"), None);
    }

    #[test]
    fn own_work_is_not_that_of_others() {
        let before = own();
        let load = Load::begin();
        while own() - before < Duration::from_millis(20) {}
        assert!(load.others().is_none_or(|others| others >= 0.0));
        assert!(own() >= before + Duration::from_millis(20));
    }
}
