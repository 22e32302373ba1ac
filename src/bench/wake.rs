//! What it takes to be answered by a process that sleeps.
//!
//! Before each try the process that answers is looked at until all of its threads sleep, and the one that measures sleeps meanwhile.

use anyhow::{Context, Result, bail, ensure};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::measure::Figures;
use super::page::Page;
use super::spin::Spin;
use crate::quantile::nearest_rank;

/// Between two looks at whether the other process sleeps.
const PAUSE: Duration = Duration::from_micros(50);

/// How long it has slept at least: one that is just falling asleep is woken in another time, and who has nothing to do falls asleep at once in one
/// case and later in another.
const IDLE: Duration = Duration::from_micros(500);

/// Far above what any process takes that has nothing to do.
const LIMIT: Duration = Duration::from_secs(20);

/// Ends the thread that answers.
const END: u64 = u64::MAX;

/// Waits until all threads of a process sleep.
fn until_asleep(pid: u32) -> Result<()> {
    let start = Instant::now();
    loop {
        std::thread::sleep(PAUSE);
        if asleep(pid)? {
            return Ok(());
        }
        ensure!(start.elapsed() < LIMIT, "the other process does not sleep");
    }
}

/// Source: `proc_pid_stat(5)`. The name before the state can contain anything, but no line break behind the last parenthesis.
fn asleep(pid: u32) -> Result<bool> {
    let folder = format!("/proc/{pid}/task");
    for task in std::fs::read_dir(&folder).context("the other process is gone")? {
        let stat = match std::fs::read_to_string(task?.path().join("stat")) {
            Ok(stat) => stat,
            // A thread that has ended meanwhile.
            Err(_) => continue,
        };
        let state = stat.rsplit_once(')').map(|(_, rest)| rest.trim_start());
        if !state.is_some_and(|state| state.starts_with('S')) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Times `operation`, each time after the process has fallen asleep; once at least.
pub fn after_sleep(
    pid: u32,
    limit: Duration,
    mut operation: impl FnMut() -> Result<()>,
) -> Result<Figures> {
    let start = Instant::now();
    let mut times = Vec::new();
    while times.is_empty() || start.elapsed() < limit {
        until_asleep(pid)?;
        std::thread::sleep(IDLE);
        let before = Instant::now();
        operation()?;
        times.push(before.elapsed().as_nanos() as f64);
    }
    times.sort_unstable_by(f64::total_cmp);
    let p50_ns = nearest_rank(&times, 50);
    Ok(Figures {
        p50_ns,
        p99_ns: nearest_rank(&times, 99),
        rate: 1e9 / p50_ns,
        server_busy_ns: None,
        slowest: None,
        busy: None,
        slice_ns: None,
    })
}

/// Wakes a thread of the other process, which answers by one word in shared memory: the least that a wake-up takes.
pub struct Waker {
    page: Page,
    last: u64,
    pid: u32,
}

impl Waker {
    /// The end that measures, and the path that the other one finds the memory by.
    pub fn create() -> Result<(Waker, String)> {
        let (page, path) = Page::create()?;
        let (last, pid) = (0, 0);
        Ok((Waker { page, last, pid }, path))
    }

    /// The process that sleeps.
    pub fn wakes(&mut self, pid: u32) {
        self.pid = pid;
    }

    /// Measures.
    pub fn round(&mut self, limit: Duration) -> Result<Figures> {
        let Waker { page, last, pid } = self;
        after_sleep(*pid, limit, || {
            let (there, back) = page.words();
            *last += 1;
            tell(there, *last);
            let mut spin = Spin::new();
            while back.load(Ordering::Acquire) != *last {
                spin.idle();
            }
            Ok(())
        })
    }
}

/// The thread that is woken.
pub struct Sleeper {
    page: Arc<Page>,
    thread: Option<JoinHandle<()>>,
}

impl Sleeper {
    /// The other end has created the page.
    pub fn start(path: &str) -> Result<Sleeper> {
        let page = Arc::new(Page::open(path)?);
        let shared = page.clone();
        let thread = std::thread::Builder::new().spawn(move || {
            let (there, back) = shared.words();
            let mut last = 0;
            loop {
                match there.load(Ordering::Acquire) {
                    END => return,
                    same if same == last => sleep(there, same),
                    new => {
                        last = new;
                        back.store(new, Ordering::Release);
                    }
                }
            }
        });
        let thread = match thread {
            Ok(thread) => Some(thread),
            Err(error) => bail!("no thread to wake: {error}"),
        };
        Ok(Sleeper { page, thread })
    }
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        tell(self.page.words().0, END);
        if let Some(thread) = self.thread.take() {
            // It cannot fail.
            let _ = thread.join();
        }
    }
}

/// Writes the word, and wakes whoever sleeps on it.
fn tell(word: &AtomicU64, value: u64) {
    word.store(value, Ordering::Release);
    // SAFETY: the lower half of the word, which is aligned and lives as long as the page.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE, 1) };
}

/// Sleeps until the word is no longer this, or for no reason.
fn sleep(word: &AtomicU64, value: u64) {
    let forever = std::ptr::null::<libc::timespec>();
    let low = value as u32;
    // SAFETY: as above; the machine is little-endian, so that the lower half comes first.
    unsafe {
        libc::syscall(
            libc::SYS_futex,
            word.as_ptr(),
            libc::FUTEX_WAIT,
            low,
            forever,
        )
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sleeper_answers_whoever_wakes_it() {
        let (waker, path) = Waker::create().unwrap();
        let sleeper = Sleeper::start(&path).unwrap();
        let (there, back) = waker.page.words();
        for n in 1..100 {
            tell(there, n);
            while back.load(Ordering::Acquire) != n {
                std::thread::yield_now();
            }
        }
        drop(sleeper);
        assert_eq!(there.load(Ordering::Acquire), END);
    }

    #[test]
    fn a_process_that_runs_does_not_sleep() {
        assert!(!asleep(std::process::id()).unwrap());
    }
}
