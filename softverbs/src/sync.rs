//! What threads share.
//!
//! The atomics that shared rings and locks are built from are the standard ones, or loom's when a model of them is checked. Mutexes and
//! condition variables are the standard library's, which wait on a word of their own. Those that keep all waiting threads of the process in one
//! table leave a forked child with a table full of threads that it does not have: there new threads, at the old ones' addresses, miss their wake-ups.

mod raw;

#[cfg(not(loom))]
pub(crate) use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
#[cfg(loom)]
pub(crate) use loom::sync::atomic::{AtomicBool, AtomicU64, Ordering};
#[cfg(loom)]
pub(crate) use loom::thread::yield_now;
#[cfg(not(loom))]
pub(crate) use std::thread::yield_now;

pub(crate) use raw::RawLock;
use std::sync::{MutexGuard, PoisonError, TryLockError};

/// A mutex that a panic does not poison: what it guards is consistent between any two statements here, or not used any more.
#[derive(Default)]
pub(crate) struct Mutex<T>(std::sync::Mutex<T>);

impl<T> Mutex<T> {
    pub const fn new(value: T) -> Mutex<T> {
        Mutex(std::sync::Mutex::new(value))
    }

    pub fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        match self.0.try_lock() {
            Ok(guard) => Some(guard),
            Err(TryLockError::Poisoned(error)) => Some(error.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }
}

/// To wait for what another thread does to the value of a mutex.
#[derive(Default)]
pub(crate) struct Condvar(std::sync::Condvar);

impl Condvar {
    /// Waits as long as `holds`.
    pub fn wait_while<'a, T>(
        &self,
        guard: MutexGuard<'a, T>,
        holds: impl FnMut(&mut T) -> bool,
    ) -> MutexGuard<'a, T> {
        let waited = self.0.wait_while(guard, holds);
        waited.unwrap_or_else(PoisonError::into_inner)
    }

    pub fn notify_one(&self) {
        self.0.notify_one();
    }

    pub fn notify_all(&self) {
        self.0.notify_all();
    }
}
