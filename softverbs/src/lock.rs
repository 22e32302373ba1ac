//! The lock of a queue: uncontended nearly always, held for the length of a copy at most, taken several times per message.
//!
//! Two things make it cheaper than a mutex. It unlocks with a plain store: a mutex that can put threads to sleep must unlock with a
//! locked instruction, to find out whether anybody sleeps. And the thread that uses a queue all the time locks with a
//! plain store too: a locked instruction waits until the store buffer is empty, which holds the very lines a peer is
//! waiting for.
//!
//! So a lock can have an *owner*. The owner sets its `inside` flag, and then looks whether it is still the owner; whoever else wants
//! the lock takes `held` by compare-and-swap, takes ownership away, runs a barrier that every thread of the process passes
//! (membarrier(2)), and then waits until that flag is clear. Either the owner sees that it is not the owner any more, or it is
//! seen. Ownership is given only by and to a thread that has `held`, and given again some time after it was taken away.
//! Each thread that ever was an owner has a flag of its own for good: one that comes too late, and takes its flag back, must
//! not take back its successor's. There are a few flags; when they are used up, other threads do not become owners.
//!
//! Invariant: the value is used by whoever has `held` while no other thread is the owner, or by the owner with its flag set.
//!
//! Waiters spin briefly and then give the processor away, so a preempted holder gets on also when cores are short.

use crate::sync::{AtomicBool, AtomicU64, Ordering};
use core::cell::UnsafeCell;
use core::ops::{Deref, DerefMut};
use std::time::Duration;

/// Spins before a waiter yields.
const SPINS: u32 = 64;
/// Spins and yields before it sleeps.
const YIELDS: u32 = SPINS + 500;

/// How often [`Lock::pass`] looks whether the owner is outside.
const GLANCES: u32 = if cfg!(loom) { 1 } else { 200 };

/// `owner` of a lock that has none.
const NOBODY: u64 = 0;

/// Acquisitions before ownership is given again, after the first time that it was taken away; doubled each time.
const PROBATION: u32 = if cfg!(loom) { 0 } else { 64 };

/// Threads that can become owners of one lock; a power of two.
const OWNERS: usize = 4;
const OWNER_BITS: u32 = OWNERS.trailing_zeros();

pub(crate) struct Lock<T> {
    /// The owner's thread, and in the lowest bits which flag it has.
    owner: AtomicU64,
    inside: [AtomicBool; OWNERS],
    held: AtomicBool,
    /// Used with `held` only.
    history: UnsafeCell<History>,
    value: UnsafeCell<T>,
}

#[derive(Default)]
struct History {
    /// How often ownership was taken away.
    revoked: u32,
    /// Acquisitions until it is given again.
    probation: u32,
    /// The threads that the flags belong to.
    threads: [u64; OWNERS],
}

// SAFETY: the value is reached only by whoever holds the lock, one thread at a time (module invariant).
unsafe impl<T: Send> Sync for Lock<T> {}
// SAFETY: as for any owner of a `T`.
unsafe impl<T: Send> Send for Lock<T> {}

impl<T> Lock<T> {
    pub fn new(value: T) -> Lock<T> {
        Lock {
            owner: AtomicU64::new(NOBODY),
            inside: [(); OWNERS].map(|()| AtomicBool::new(false)),
            held: AtomicBool::new(false),
            history: UnsafeCell::default(),
            value: UnsafeCell::new(value),
        }
    }

    /// For what happens all the time: the calling thread becomes the owner.
    #[inline]
    pub fn lock_often(&self) -> Guard<'_, T> {
        match self.lock_owned() {
            Some(guard) => guard,
            None => self.lock_often_shared(),
        }
    }

    /// For what happens once in a while, by any thread.
    pub fn lock(&self) -> Guard<'_, T> {
        match self.lock_owned() {
            Some(guard) => guard,
            None => {
                self.hold();
                self.disown();
                self.holding()
            }
        }
    }

    /// Unless another holds it.
    pub fn try_lock(&self) -> Option<Guard<'_, T>> {
        if let Some(guard) = self.lock_owned() {
            return Some(guard);
        }
        if !self.try_hold() {
            return None;
        }
        let holding = self.holding();
        let owner = self.owner.load(Ordering::Relaxed);
        if owner != NOBODY && self.flag(owner).load(Ordering::Relaxed) {
            return None;
        }
        self.disown();
        Some(holding)
    }

    /// The flag of an owner.
    #[inline]
    fn flag(&self, owner: u64) -> &AtomicBool {
        &self.inside[owner as usize % OWNERS]
    }

    /// Returns once nobody holds the lock who held it when it was called; later holders see what the caller wrote before.
    /// Leaves ownership alone, unless the owner is hardly ever outside. `fenced`: a barrier has run since the caller wrote.
    pub fn pass(&self, fenced: &mut bool) {
        if self.owner.load(Ordering::Relaxed) >> OWNER_BITS == this_thread() {
            return;
        }
        self.hold();
        let holding = self.holding();
        let owner = self.owner.load(Ordering::Relaxed);
        if owner != NOBODY {
            if !*fenced {
                heavy_fence();
                *fenced = true;
            }
            // To see it outside once is enough.
            let flag = self.flag(owner);
            let outside = (0..GLANCES).any(|_| {
                core::hint::spin_loop();
                !flag.load(Ordering::Acquire)
            });
            if !outside {
                self.revoke(owner);
            }
        }
        drop(holding);
    }

    /// The owner's way.
    #[inline]
    fn lock_owned(&self) -> Option<Guard<'_, T>> {
        let owner = self.owner.load(Ordering::Relaxed);
        if owner >> OWNER_BITS != this_thread() {
            return None;
        }
        let flag = self.flag(owner);
        flag.store(true, Ordering::Relaxed);
        light_fence();
        if self.owner.load(Ordering::Relaxed) != owner {
            flag.store(false, Ordering::Release);
            return None;
        }
        Some(Guard { lock: self, flag })
    }

    /// The way of a thread that may become the owner.
    #[inline(never)]
    fn lock_often_shared(&self) -> Guard<'_, T> {
        self.hold();
        self.disown();
        if has_heavy_fence() {
            // SAFETY: we have `held`.
            let history = unsafe { &mut *self.history.get() };
            match history.probation {
                0 => {
                    if let Some(owner) = history.owner(this_thread()) {
                        self.owner.store(owner, Ordering::Relaxed);
                    }
                }
                _ => history.probation -= 1,
            }
        }
        self.holding()
    }

    #[inline]
    fn try_hold(&self) -> bool {
        self.held
            .compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed)
            .is_ok()
    }

    #[inline]
    fn hold(&self) {
        while !self.try_hold() {
            wait_while(&self.held);
        }
    }

    /// With `held`, and no other owner.
    #[inline]
    fn holding(&self) -> Guard<'_, T> {
        Guard {
            lock: self,
            flag: &self.held,
        }
    }

    /// With `held`: takes ownership away from whoever has it.
    #[inline]
    fn disown(&self) {
        let owner = self.owner.load(Ordering::Relaxed);
        if owner != NOBODY {
            self.revoke(owner);
        }
    }

    /// With `held`: takes ownership away from this owner.
    #[cold]
    fn revoke(&self, owner: u64) {
        self.owner.store(NOBODY, Ordering::Relaxed);
        heavy_fence();
        let flag = self.flag(owner);
        if flag.load(Ordering::Acquire) {
            wait_while(flag);
        }
        // SAFETY: we have `held`.
        let history = unsafe { &mut *self.history.get() };
        history.probation = PROBATION << history.revoked.min(16);
        history.revoked += 1;
    }
}

impl History {
    /// The owner's word for a thread, if it has a flag or one is left.
    fn owner(&mut self, thread: u64) -> Option<u64> {
        let free = |t: &u64| *t == thread || *t == NOBODY;
        let slot = self.threads.iter().position(free)?;
        self.threads[slot] = thread;
        Some(thread << OWNER_BITS | slot as u64)
    }
}

#[cold]
fn wait_while(flag: &AtomicBool) {
    let mut spins = 0u32;
    // Acquire: for the owner's flag, this is how its last use is seen.
    while flag.load(Ordering::Acquire) {
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
}

/// Holds the lock until dropped.
pub(crate) struct Guard<'a, T> {
    lock: &'a Lock<T>,
    /// Which of the two it holds.
    flag: &'a AtomicBool,
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
        self.flag.store(false, Ordering::Release);
    }
}

pub(crate) use asymmetric::enable_ownership;
use asymmetric::{has_heavy_fence, heavy_fence, light_fence, this_thread};

/// Two fences of which one costs nothing and the other a system call.
#[cfg(not(loom))]
mod asymmetric {
    use crate::os::membarrier;
    use core::sync::atomic::{AtomicBool, Ordering, compiler_fence};
    use std::time::Duration;

    static POSSIBLE: AtomicBool = AtomicBool::new(false);

    /// Locks may have owners from now on: the process has registered for the barrier.
    pub(crate) fn enable_ownership() {
        POSSIBLE.store(true, Ordering::Relaxed);
    }

    pub(super) fn has_heavy_fence() -> bool {
        POSSIBLE.load(Ordering::Relaxed)
    }

    /// A number that no other living thread has.
    #[inline]
    pub(super) fn this_thread() -> u64 {
        thread_local!(static HERE: u8 = const { 0 });
        HERE.with(|here| core::ptr::from_ref(here).addr() as u64)
    }

    #[inline]
    pub(super) fn light_fence() {
        compiler_fence(Ordering::SeqCst);
    }

    /// Every thread of this process passes a full fence.
    pub(super) fn heavy_fence() {
        if membarrier::private().is_err() {
            // Only if a filter was put in place since it was registered. What the fence is for are stores on their way out of a
            // processor, which takes less than a microsecond by itself.
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Loom knows no membarrier: both sides use full fences, which is the same protocol.
#[cfg(loom)]
mod asymmetric {
    use loom::sync::atomic::{Ordering, fence};

    pub(crate) fn enable_ownership() {}

    pub(super) fn has_heavy_fence() -> bool {
        true
    }

    pub(super) fn this_thread() -> u64 {
        let id = format!("{:?}", loom::thread::current().id());
        let digits: String = id.chars().filter(char::is_ascii_digit).collect();
        1 + digits.parse::<u64>().unwrap()
    }

    pub(super) fn light_fence() {
        fence(Ordering::SeqCst);
    }

    pub(super) fn heavy_fence() {
        fence(Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[cfg(not(loom))]
    #[test]
    fn one_at_a_time() {
        assert!(crate::os::membarrier::register());
        enable_ownership();
        let lock = Arc::new(Lock::new((0u64, 0u64)));
        let threads: Vec<_> = (0..4)
            .map(|i| {
                let lock = lock.clone();
                std::thread::spawn(move || {
                    for round in 0..20_000u32 {
                        // Mostly one thread, so that there is an owner to be disturbed.
                        let mut both = match i {
                            0 => lock.lock_often(),
                            1 if round % 64 == 0 => lock.lock(),
                            2 if round % 512 == 0 => lock.lock_often(),
                            _ => continue,
                        };
                        both.0 += 1;
                        both.1 = both.0;
                    }
                })
            })
            .collect();
        threads.into_iter().for_each(|t| t.join().unwrap());
        let count = 20_000 + 20_000u64.div_ceil(64) + 20_000u64.div_ceil(512);
        assert_eq!(*lock.lock(), (count, count));
        let held = lock.lock();
        std::thread::scope(|s| {
            s.spawn(|| assert!(lock.try_lock().is_none()));
        });
        drop(held);
    }

    #[cfg(not(loom))]
    #[test]
    fn the_thread_that_locks_often_becomes_the_owner_and_stays_it_while_others_pass() {
        assert!(crate::os::membarrier::register());
        enable_ownership();
        let lock = Lock::new(0);
        drop(lock.lock_often());
        let owner = lock.owner.load(Ordering::Relaxed);
        assert_eq!(owner >> OWNER_BITS, this_thread());
        std::thread::scope(|s| {
            s.spawn(|| lock.pass(&mut false));
        });
        assert_eq!(lock.owner.load(Ordering::Relaxed), owner);
        std::thread::scope(|s| {
            s.spawn(|| *lock.lock() += 1);
        });
        assert_eq!(lock.owner.load(Ordering::Relaxed), NOBODY);
        for _ in 0..PROBATION {
            assert_eq!(*lock.lock_often(), 1);
            assert_eq!(lock.owner.load(Ordering::Relaxed), NOBODY);
        }
        drop(lock.lock_often());
        assert_eq!(lock.owner.load(Ordering::Relaxed), owner);
    }

    #[cfg(not(loom))]
    #[test]
    fn a_thread_has_one_flag_for_good_and_there_are_only_so_many() {
        let mut history = History::default();
        let words: Vec<_> = (1..=6).map(|thread| history.owner(thread * 8)).collect();
        assert_eq!(&words[4..], [None, None]);
        for (at, word) in words[..OWNERS].iter().enumerate() {
            assert_eq!(*word, Some(((at as u64 + 1) * 8) << OWNER_BITS | at as u64));
            assert_eq!(history.owner((at as u64 + 1) * 8), *word);
        }
    }

    #[cfg(loom)]
    fn model(f: impl Fn() + Sync + Send + 'static) {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(4);
        builder.check(f);
    }

    /// A value that must not be used twice at the same time.
    #[cfg(loom)]
    fn use_it(value: &loom::cell::UnsafeCell<u32>) {
        value.with_mut(|v| {
            // SAFETY: loom finds any other use at the same time.
            unsafe { *v += 1 }
        });
    }

    /// One thread that locks often, and one that locks once.
    #[cfg(loom)]
    #[test]
    fn loom_lock() {
        model(|| {
            let lock = Arc::new(Lock::new(loom::cell::UnsafeCell::new(0)));
            let theirs = lock.clone();
            let thread = loom::thread::spawn(move || use_it(&theirs.lock()));
            use_it(&lock.lock_often());
            use_it(&lock.lock_often());
            thread.join().unwrap();
            assert_eq!(lock.lock().with(|v| unsafe { *v }), 3);
        });
    }

    /// Two threads that both lock often, so that each takes ownership from the other.
    #[cfg(loom)]
    #[test]
    fn loom_lock_two_owners() {
        model(|| {
            let lock = Arc::new(Lock::new(loom::cell::UnsafeCell::new(0)));
            let theirs = lock.clone();
            let thread = loom::thread::spawn(move || {
                use_it(&theirs.lock_often());
                use_it(&theirs.lock_often());
            });
            use_it(&lock.lock_often());
            use_it(&lock.lock_often());
            thread.join().unwrap();
            assert_eq!(lock.lock().with(|v| unsafe { *v }), 4);
        });
    }

    /// What was withdrawn before `pass` is not in use after it.
    #[cfg(loom)]
    #[test]
    fn loom_lock_pass() {
        model(|| {
            let lock = Arc::new(Lock::new(()));
            let shared = Arc::new((AtomicBool::new(true), AtomicBool::new(false)));
            let (theirs, in_use) = (lock.clone(), shared.clone());
            let user = loom::thread::spawn(move || {
                for _ in 0..2 {
                    let guard = theirs.lock_often();
                    if in_use.0.load(Ordering::Relaxed) {
                        in_use.1.store(true, Ordering::Relaxed);
                        in_use.1.store(false, Ordering::Relaxed);
                    }
                    drop(guard);
                }
            });
            shared.0.store(false, Ordering::Relaxed);
            lock.pass(&mut false);
            assert!(!shared.1.load(Ordering::Relaxed));
            user.join().unwrap();
        });
    }
}
