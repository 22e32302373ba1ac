//! Processor time, and processes in which a test is alone, so that others do not count.

use std::time::Duration;

fn cpu(who: libc::c_int) -> Duration {
    // SAFETY: getrusage writes into the zeroed structure it is given.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(who, &mut usage);
        usage
    };
    let time = |t: libc::timeval| Duration::new(t.tv_sec as u64, t.tv_usec as u32 * 1000);
    time(usage.ru_utime) + time(usage.ru_stime)
}

/// Processor time of this process so far.
pub fn cpu_of_process() -> Duration {
    cpu(libc::RUSAGE_SELF)
}

/// Processor time of this thread so far.
pub fn cpu_of_thread() -> Duration {
    cpu(libc::RUSAGE_THREAD)
}

/// Runs the test of this name in a process of its own: true there.
pub fn is_alone(name: &str) -> bool {
    if std::env::var_os("RPC_ALONE").is_some() {
        return true;
    }
    let me = std::env::current_exe().unwrap();
    let run = std::process::Command::new(me)
        .args(["--exact", name, "--nocapture"])
        .env("RPC_ALONE", "1")
        .output()
        .unwrap();
    let output = String::from_utf8_lossy(&run.stdout);
    println!("{output}{}", String::from_utf8_lossy(&run.stderr));
    // There is a test of this name.
    assert!(run.status.success() && output.contains(" 1 passed"));
    false
}
