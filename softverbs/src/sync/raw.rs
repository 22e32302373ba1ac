//! A lock that one call takes and another gives back.

use core::sync::atomic::{AtomicU32, Ordering};

const FREE: u32 = 0;
const TAKEN: u32 = 1;
/// Taken, and somebody may sleep until it is given back.
const WANTED: u32 = 2;

/// See the module. It waits on its own word, as the standard library's mutex does.
#[derive(Default)]
pub(crate) struct RawLock(AtomicU32);

impl RawLock {
    #[inline]
    pub fn lock(&self) {
        let taken = self
            .0
            .compare_exchange(FREE, TAKEN, Ordering::Acquire, Ordering::Relaxed);
        if taken.is_err() {
            self.wait();
        }
    }

    #[cold]
    fn wait(&self) {
        while self.0.swap(WANTED, Ordering::Acquire) != FREE {
            self.futex(libc::FUTEX_WAIT, WANTED);
        }
    }

    /// Gives it back.
    ///
    /// # Safety
    ///
    /// The caller has taken it, and does not use any more what it guards.
    #[inline]
    pub unsafe fn unlock(&self) {
        if self.0.swap(FREE, Ordering::Release) == WANTED {
            self.futex(libc::FUTEX_WAKE, 1);
        }
    }

    /// Sleeps while the word has this value, or wakes so many. Errors and early returns do no harm: who waits looks again.
    #[cold]
    fn futex(&self, operation: i32, value: u32) {
        let no_limit = core::ptr::null::<libc::timespec>();
        // SAFETY: the word is alive; the kernel only compares it.
        unsafe {
            libc::syscall(
                libc::SYS_futex,
                self.0.as_ptr(),
                operation | libc::FUTEX_PRIVATE_FLAG,
                value,
                no_limit,
            )
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_thread_at_a_time() {
        const ROUNDS: u64 = 20_000;
        let (lock, sum) = (RawLock::default(), core::cell::Cell::new(0));
        struct Shared<'a>(&'a RawLock, &'a core::cell::Cell<u64>);
        // SAFETY: the cell is used by whoever has the lock.
        unsafe impl Sync for Shared<'_> {}
        let shared = &Shared(&lock, &sum);
        std::thread::scope(|s| {
            for _ in 0..3 {
                s.spawn(move || {
                    let Shared(lock, sum) = shared;
                    for round in 0..ROUNDS {
                        lock.lock();
                        let value = sum.get();
                        if round % 64 == 0 {
                            // So that others come and have to sleep.
                            std::thread::yield_now();
                        }
                        sum.set(value + 1);
                        // SAFETY: taken above.
                        unsafe { lock.unlock() };
                    }
                });
            }
        });
        assert_eq!(sum.get(), 3 * ROUNDS);
    }
}
