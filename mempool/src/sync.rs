//! Atomics, cells, locks and fences of the parts that threads share; `loom`'s under `cfg(loom)`, so that it can run every
//! order of them.

#[cfg(loom)]
pub(crate) use loom::{
    cell::UnsafeCell,
    sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, Ordering, fence},
};

#[cfg(not(loom))]
pub(crate) use self::cell::UnsafeCell;
#[cfg(not(loom))]
pub(crate) use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, Ordering, fence};

pub(crate) use self::lock::{Condvar, Guard, Mutex};

#[cfg(not(loom))]
mod cell {
    /// `std`'s cell with the closures of `loom`'s.
    #[derive(Debug)]
    pub(crate) struct UnsafeCell<T>(std::cell::UnsafeCell<T>);

    impl<T> UnsafeCell<T> {
        pub(crate) const fn new(value: T) -> Self {
            UnsafeCell(std::cell::UnsafeCell::new(value))
        }

        #[inline]
        pub(crate) fn with<R>(&self, f: impl FnOnce(*const T) -> R) -> R {
            f(self.0.get())
        }

        #[inline]
        pub(crate) fn with_mut<R>(&self, f: impl FnOnce(*mut T) -> R) -> R {
            f(self.0.get())
        }
    }
}

#[cfg(not(loom))]
mod lock {
    use std::time::Instant;

    pub(crate) type Guard<'a, T> = parking_lot::MutexGuard<'a, T>;
    pub(crate) type Mutex<T> = parking_lot::Mutex<T>;

    #[derive(Debug, Default)]
    pub(crate) struct Condvar(parking_lot::Condvar);

    impl Condvar {
        pub fn new() -> Condvar {
            Condvar::default()
        }

        pub fn notify(&self) {
            self.0.notify_one();
        }

        /// Waits, perhaps for nothing; with the lock, and whether there is still time.
        pub fn wait<'a, T>(
            &self,
            mut guard: Guard<'a, T>,
            deadline: Option<Instant>,
        ) -> (Guard<'a, T>, bool) {
            let in_time = match deadline {
                Some(deadline) => !self.0.wait_until(&mut guard, deadline).timed_out(),
                None => {
                    self.0.wait(&mut guard);
                    true
                }
            };
            (guard, in_time)
        }
    }
}

/// `loom`'s locks under the same names. It knows no time: a deadline never comes.
#[cfg(loom)]
mod lock {
    use std::time::Instant;

    pub(crate) type Guard<'a, T> = loom::sync::MutexGuard<'a, T>;

    #[derive(Debug)]
    pub(crate) struct Mutex<T>(loom::sync::Mutex<T>);

    impl<T> Mutex<T> {
        pub fn new(value: T) -> Mutex<T> {
            Mutex(loom::sync::Mutex::new(value))
        }

        pub fn lock(&self) -> Guard<'_, T> {
            self.0.lock().unwrap()
        }
    }

    #[derive(Debug)]
    pub(crate) struct Condvar(loom::sync::Condvar);

    impl Condvar {
        pub fn new() -> Condvar {
            Condvar(loom::sync::Condvar::new())
        }

        pub fn notify(&self) {
            self.0.notify_one();
        }

        pub fn wait<'a, T>(&self, guard: Guard<'a, T>, _: Option<Instant>) -> (Guard<'a, T>, bool) {
            (self.0.wait(guard).unwrap(), true)
        }
    }
}
