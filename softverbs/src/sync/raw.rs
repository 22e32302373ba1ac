//! A lock that one call takes and another gives back.

use word::{Ordering, Word};

const FREE: u32 = 0;
const TAKEN: u32 = 1;
/// Taken, and somebody may sleep until it is given back.
const WANTED: u32 = 2;

/// See the module. It waits on its own word, as the standard library's mutex does.
#[derive(Default)]
pub(crate) struct RawLock(Word);

impl RawLock {
    #[inline]
    pub fn lock(&self) {
        let word = &self.0.value;
        let taken = word.compare_exchange(FREE, TAKEN, Ordering::Acquire, Ordering::Relaxed);
        if taken.is_err() {
            self.wait();
        }
    }

    #[cold]
    fn wait(&self) {
        while self.0.value.swap(WANTED, Ordering::Acquire) != FREE {
            self.0.sleep_while(WANTED);
        }
    }

    /// Gives it back.
    ///
    /// # Safety
    ///
    /// The caller has taken it, and does not use any more what it guards.
    #[inline]
    pub unsafe fn unlock(&self) {
        if self.0.value.swap(FREE, Ordering::Release) == WANTED {
            self.0.wake_one();
        }
    }
}

/// A word that threads sleep on: futex(2).
#[cfg(not(loom))]
mod word {
    use core::sync::atomic::AtomicU32;
    pub(super) use core::sync::atomic::Ordering;

    #[derive(Default)]
    pub(super) struct Word {
        pub(super) value: AtomicU32,
    }

    impl Word {
        /// May return early.
        pub(super) fn sleep_while(&self, value: u32) {
            self.futex(libc::FUTEX_WAIT, value);
        }

        pub(super) fn wake_one(&self) {
            self.futex(libc::FUTEX_WAKE, 1);
        }

        /// Sleeps while the word has this value, or wakes so many. Errors and early returns do no harm: who waits looks again.
        #[cold]
        fn futex(&self, operation: i32, value: u32) {
            let no_limit = core::ptr::null::<libc::timespec>();
            // SAFETY: the word is alive; the kernel only compares it.
            unsafe {
                libc::syscall(
                    libc::SYS_futex,
                    self.value.as_ptr(),
                    operation | libc::FUTEX_PRIVATE_FLAG,
                    value,
                    no_limit,
                )
            };
        }
    }
}

/// Loom knows no futex(2). Its contract is that a thread compares the word and falls asleep in one step, as far as who wakes can tell; here a
/// mutex makes that step. It never returns early, so who relies on that is found out by a thread that sleeps for ever.
#[cfg(loom)]
mod word {
    use loom::sync::atomic::AtomicU32;
    pub(super) use loom::sync::atomic::Ordering;
    use loom::sync::{Condvar, Mutex};

    pub(super) struct Word {
        pub(super) value: AtomicU32,
        queue: Mutex<()>,
        woken: Condvar,
    }

    impl Default for Word {
        fn default() -> Word {
            Word {
                value: AtomicU32::new(super::FREE),
                queue: Mutex::new(()),
                woken: Condvar::new(),
            }
        }
    }

    impl Word {
        pub(super) fn sleep_while(&self, value: u32) {
            let queue = self.queue.lock().unwrap();
            if self.value.load(Ordering::Relaxed) == value {
                drop(self.woken.wait(queue).unwrap());
            }
        }

        pub(super) fn wake_one(&self) {
            let _queue = self.queue.lock().unwrap();
            self.woken.notify_one();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[cfg(not(loom))]
    use core::{cell::UnsafeCell, time::Duration};
    #[cfg(loom)]
    use loom::cell::UnsafeCell;

    #[derive(Default)]
    struct Guarded {
        lock: RawLock,
        value: UnsafeCell<u64>,
    }

    // SAFETY: the value is used by whoever has the lock.
    unsafe impl Sync for Guarded {}

    /// More threads than processors, so that some have to sleep; a lock that loses one of them hangs it, which the limit tells.
    #[cfg(not(loom))]
    #[test]
    fn one_thread_at_a_time() {
        const ROUNDS: u64 = 20_000;
        const LIMIT: Duration = Duration::from_secs(120);
        let guarded = Arc::new(Guarded::default());
        let (done, all) = std::sync::mpsc::channel();
        for _ in 0..3 {
            let (guarded, done) = (guarded.clone(), done.clone());
            // Not scoped: the test must end also if these do not.
            std::thread::spawn(move || {
                for round in 0..ROUNDS {
                    guarded.lock.lock();
                    // SAFETY: we have the lock.
                    let value = unsafe { *guarded.value.get() };
                    if round % 64 == 0 {
                        // So that others come and have to sleep.
                        std::thread::yield_now();
                    }
                    // SAFETY: as above.
                    unsafe { *guarded.value.get() = value + 1 };
                    // SAFETY: taken above.
                    unsafe { guarded.lock.unlock() };
                }
                // Nobody listens once the test has failed.
                let _ = done.send(());
            });
        }
        for _ in 0..3 {
            let ended = all.recv_timeout(LIMIT);
            assert!(ended.is_ok(), "a thread waits for a lock that is free");
        }
        // SAFETY: nobody else is there any more.
        assert_eq!(unsafe { *guarded.value.get() }, 3 * ROUNDS);
    }

    /// Each order of three threads: none uses the value at the same time as another, and none sleeps for ever.
    #[cfg(loom)]
    #[test]
    fn loom_raw_lock() {
        fn turn(guarded: &Guarded) {
            guarded.lock.lock();
            guarded.value.with_mut(|value| {
                // SAFETY: we have the lock; loom finds any other use at the same time.
                unsafe { *value += 1 }
            });
            // SAFETY: taken above.
            unsafe { guarded.lock.unlock() };
        }
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(3);
        builder.check(|| {
            let guarded = Arc::new(Guarded::default());
            let threads = [(); 2].map(|()| {
                let guarded = guarded.clone();
                loom::thread::spawn(move || turn(&guarded))
            });
            turn(&guarded);
            for thread in threads {
                thread.join().unwrap();
            }
            // SAFETY: nobody else is there any more.
            assert_eq!(guarded.value.with(|value| unsafe { *value }), 3);
        });
    }
}
