//! Atomic operations on a peer's memory.
//!
//! There is one mode per region, so that no two initiators ever use different ways on one word:
//!
//! * memory in an exposed arena is mapped, and the processor's own instructions do it;
//! * other memory is reached by process_vm, which cannot be atomic: the word's lock in the target's lock page is held around
//!   a read and a write. Such words are atomic among work requests, not against the target's own instructions
//!   (`IBV_ATOMIC_HCA`).
//!
//! The lock page is the one place where a stopped initiator can delay another, whose request then fails as one whose peer
//! does not answer. A dead holder's lock is taken over: at worst its operation was done and nobody learned of it, as when an
//! adapter dies.

use crate::os::incarnation::{Incarnation, PidFd};
use core::sync::atomic::{AtomicU64, Ordering};

/// Bytes that an atomic works on.
pub(crate) const WORD: usize = 8;

/// Locks of a lock page; words share them by address.
pub(crate) const LOCKS: usize = 64;
/// How often a held lock is tried before the request has to wait.
const TRIES: u32 = 200;

/// What an atomic does to a word.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Update {
    CompareSwap { compare: u64, swap: u64 },
    FetchAdd(u64),
}

impl Update {
    /// The new value, if there is one to be stored.
    pub fn of(self, old: u64) -> Option<u64> {
        match self {
            Update::CompareSwap { compare, swap } => (old == compare).then_some(swap),
            Update::FetchAdd(add) => Some(old.wrapping_add(add)),
        }
    }

    /// Executes on a mapped word; returns what it was.
    pub fn execute(self, word: &AtomicU64) -> u64 {
        match self {
            Update::FetchAdd(add) => word.fetch_add(add, Ordering::AcqRel),
            Update::CompareSwap { compare, swap } => word
                .compare_exchange(compare, swap, Ordering::AcqRel, Ordering::Acquire)
                .unwrap_or_else(|old| old),
        }
    }
}

/// A process as a lock word names it.
fn name(who: Incarnation) -> u64 {
    u64::from(who.pid) << 32 | (who.start & 0xffff_ffff).max(1)
}

/// Whether the process that a lock word names is alive. Anything may stand there: a peer can write it.
fn alive(holder: u64) -> bool {
    let who = Incarnation::of((holder >> 32) as u32).ok();
    // A zombie still has its pid and start time, hence the pidfd.
    who.is_some_and(|who| name(who) == holder && PidFd::open(who).is_ok_and(|fd| !fd.is_dead()))
}

/// Holds a word's lock until dropped.
pub(crate) struct Held<'a> {
    lock: &'a AtomicU64,
    me: u64,
}

/// Takes the lock of the word at `addr`; `None` if somebody alive holds it.
pub(crate) fn lock(page: &[AtomicU64; LOCKS], addr: u64, me: Incarnation) -> Option<Held<'_>> {
    let lock = &page[(addr >> 3) as usize % LOCKS];
    let me = name(me);
    for _ in 0..TRIES {
        match lock.compare_exchange(0, me, Ordering::Acquire, Ordering::Relaxed) {
            Ok(_) => return Some(Held { lock, me }),
            Err(_) => core::hint::spin_loop(),
        }
    }
    let holder = lock.load(Ordering::Relaxed);
    let free = holder == 0 || !alive(holder);
    (free
        && lock
            .compare_exchange(holder, me, Ordering::Acquire, Ordering::Relaxed)
            .is_ok())
    .then_some(Held { lock, me })
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        // Not ours any more only if a peer scribbled over it.
        let _ = self
            .lock
            .compare_exchange(self.me, 0, Ordering::Release, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_live_holder_keeps_others_out_and_a_dead_one_does_not() {
        let page: [AtomicU64; LOCKS] = core::array::from_fn(|_| AtomicU64::new(0));
        let me = Incarnation::me();
        let held = lock(&page, 64, me).unwrap();
        assert!(lock(&page, 64, me).is_none());
        assert!(lock(&page, 72, me).is_some(), "another word, another lock");
        drop(held);
        assert!(lock(&page, 64, me).is_some());
        for rubbish in [
            1,
            u64::MAX,
            7 << 32,
            u64::from(std::process::id()) << 32 | 1,
        ] {
            page[8].store(rubbish, Ordering::Relaxed);
            assert!(lock(&page, 64, me).is_some(), "{rubbish:#x}");
        }
    }

    proptest! {
        #[test]
        fn both_ways_agree(old: u64, a: u64, b: u64, equal: bool, add: bool) {
            let update = if add { Update::FetchAdd(a) } else { Update::CompareSwap { compare: if equal { old } else { a }, swap: b } };
            let word = AtomicU64::new(old);
            prop_assert_eq!(update.execute(&word), old);
            prop_assert_eq!(word.into_inner(), update.of(old).unwrap_or(old));
        }
    }
}
