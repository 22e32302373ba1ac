//! The lock of a queue: uncontended nearly always, held for the length of a copy at most, taken several times per message.
//!
//! A mutex that can put threads to sleep must unlock with a locked instruction, to find out whether anybody sleeps; that
//! drains the store buffer, which holds the very lines a peer is waiting for. Here the unlock is a plain store. Waiters
//! spin briefly and then give the processor away, so a preempted holder gets on also when cores are short.

use crate::sync::{AtomicBool, Ordering};
use core::cell::UnsafeCell;
use core::ops::{Deref, DerefMut};
use std::time::Duration;

/// Spins before a waiter yields.
const SPINS: u32 = 64;
/// Spins and yields before it sleeps.
const YIELDS: u32 = SPINS + 500;

pub(crate) struct Lock<T> {
    held: AtomicBool,
    value: UnsafeCell<T>,
}

// SAFETY: the value is reached only by whoever holds the lock, one thread at a time.
unsafe impl<T: Send> Sync for Lock<T> {}
// SAFETY: as for any owner of a `T`.
unsafe impl<T: Send> Send for Lock<T> {}

impl<T> Lock<T> {
    pub fn new(value: T) -> Lock<T> {
        Lock {
            held: AtomicBool::new(false),
            value: UnsafeCell::new(value),
        }
    }

    #[inline]
    pub fn try_lock(&self) -> Option<Guard<'_, T>> {
        self.held
            .compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed)
            .is_ok()
            .then(|| Guard { lock: self })
    }

    #[inline]
    pub fn lock(&self) -> Guard<'_, T> {
        match self.try_lock() {
            Some(guard) => guard,
            None => self.wait(),
        }
    }

    #[cold]
    fn wait(&self) -> Guard<'_, T> {
        let mut spins = 0u32;
        loop {
            while self.held.load(Ordering::Relaxed) {
                spins += 1;
                if cfg!(loom) || (SPINS..YIELDS).contains(&spins) {
                    crate::sync::yield_now();
                } else if spins < SPINS {
                    core::hint::spin_loop();
                } else {
                    // The holder may have a lower priority than we, to which a yield does not give way.
                    std::thread::sleep(Duration::from_micros(50));
                }
            }
            if let Some(guard) = self.try_lock() {
                return guard;
            }
        }
    }
}

/// Holds the lock until dropped.
pub(crate) struct Guard<'a, T> {
    lock: &'a Lock<T>,
}

impl<T> Deref for Guard<'_, T> {
    type Target = T;
    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: the guard holds the lock.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T> DerefMut for Guard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: the guard holds the lock, and is borrowed mutably.
        unsafe { &mut *self.lock.value.get() }
    }
}

impl<T> Drop for Guard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        self.lock.held.store(false, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[cfg(not(loom))]
    #[test]
    fn one_at_a_time() {
        let lock = Arc::new(Lock::new((0u64, 0u64)));
        let threads: Vec<_> = (0..4)
            .map(|_| {
                let lock = lock.clone();
                std::thread::spawn(move || {
                    for _ in 0..20_000 {
                        let mut both = lock.lock();
                        both.0 += 1;
                        both.1 = both.0;
                    }
                })
            })
            .collect();
        threads.into_iter().for_each(|t| t.join().unwrap());
        assert_eq!(*lock.lock(), (80_000, 80_000));
        let held = lock.lock();
        assert!(lock.try_lock().is_none());
        drop(held);
    }

    #[cfg(loom)]
    #[test]
    fn loom_lock() {
        loom::model(|| {
            let lock = Arc::new(Lock::new(0));
            let theirs = lock.clone();
            let thread = loom::thread::spawn(move || *theirs.lock() += 1);
            *lock.lock() += 1;
            thread.join().unwrap();
            assert_eq!(*lock.lock(), 2);
        });
    }
}
