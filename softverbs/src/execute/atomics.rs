//! Atomics: on mapped memory by the processor's own, elsewhere under a lock. See [`crate::atomic`] for the two ways.

use super::job::{Job, Ran, Stop};
use super::reach::reach;
use crate::atomic::{self, Update};
use crate::faults::Step;
use crate::peer::Peer;
use crate::region::REMOTE_ATOMIC;
use crate::send::Op;
use crate::transfer::{Mover, Piece, Target, Way, transfer};
use core::sync::atomic::{AtomicU64, Ordering};
use ibverbs_sys::ibv_wc_status as Status;
use std::io;

impl Job<'_> {
    #[inline(never)]
    pub fn atomic(&mut self, mover: &mut Mover<'_>) -> Ran {
        if !self.work.raddr.is_multiple_of(8) {
            return Err(self.fatal(Status::IBV_WC_REM_INV_REQ_ERR));
        }
        let target = self.one_sided(REMOTE_ATOMIC);
        let target = target.map_err(|refused| self.fatal(refused.status()))?;
        let [a, b] = self.work.operands;
        let update = match self.work.op {
            Op::CompareSwap => Update::CompareSwap {
                compare: a,
                swap: b,
            },
            _ => Update::FetchAdd(a),
        };
        let mut old = match target {
            // A mapped target of another process was found in an arena, and is writable.
            Target::Mapped(word)
                if (!self.peer.own || self.is_processors()) && word.addr().is_multiple_of(8) =>
            {
                // SAFETY: eight mapped, aligned bytes, checked under the hazard; atomics only.
                update.execute(unsafe { &*word.cast::<AtomicU64>() })
            }
            // Others have it mapped and use the processor's, so the lock would keep none of them out. That it is not mapped here passes: there was no
            // descriptor, or no room.
            Target::Process(there) if there.is_multiple_of(8) && self.is_processors() => {
                return Err(Stop::Wait);
            }
            target => {
                let page = self.peer.lock_page().map_err(|_| Stop::Wait)?;
                let held = atomic::lock(page.locks(), self.work.raddr, self.qp.process.me);
                let held = held.ok_or(Stop::Wait)?;
                // SAFETY: the target was checked under the hazard.
                let done = unsafe { store(self.peer, update, target) };
                drop(held);
                done.map_err(|error| self.copy_failed(&error))?
            }
        };
        let from = [(Target::Mapped((&raw mut old).cast()), 8)];
        // SAFETY: eight bytes on the stack into local pieces of eight bytes in all (the post checked that there are as many, and the rest was cut off).
        let copied = unsafe { self.transfer(Way::In, &from, mover) };
        copied.map_err(|error| self.copy_failed(&error))?;
        self.step(Step::Copied)?;
        Ok(false)
    }

    /// Whether the memory lies in an arena that all peers map writable: then its atomics are the processor's.
    fn is_processors(&self) -> bool {
        let arena = self.region(self.work.rkey).arena.load(Ordering::Relaxed);
        arena != 0 && self.peer.maps_writable(arena - 1)
    }
}

/// Reads a word of the peer's and writes it back updated; the word's lock is held.
///
/// # Safety
///
/// The target was resolved while the hazard is set, which it still is.
unsafe fn store(peer: &Peer, update: Update, target: Target) -> io::Result<u64> {
    let mut word = 0u64;
    let piece = [Piece {
        ptr: (&raw mut word).cast(),
        len: 8,
    }];
    // SAFETY: a word on the stack, and a target of eight bytes by contract.
    unsafe { reach(peer, Way::In, &piece, &[(target, 8)], &mut Mover::Now)? };
    if let Some(mut new) = update.of(word) {
        let piece = [Piece {
            ptr: (&raw mut new).cast(),
            len: 8,
        }];
        let pid = peer.incarnation.pid;
        // The peer was alive after it was read, just now: that is the look before this.
        // SAFETY: as above.
        unsafe { transfer(Way::Out, pid, &piece, &[(target, 8)], &mut Mover::Now)? };
    }
    Ok(word)
}

#[cfg(test)]
mod tests {
    use super::super::reach::testing::Other;
    use super::*;

    /// Where the pid of a dead peer has been given to another process, that one's memory is left alone. This process stands for it.
    #[test]
    fn an_atomic_does_not_reach_who_has_a_dead_peer_s_pid() {
        let word = AtomicU64::new(5);
        let target = Target::Process(word.as_ptr().addr() as u64);
        let mut other = Other::with_pid(std::process::id());
        let add = Update::FetchAdd(2);
        // SAFETY: a word of this process, accessed as one.
        assert_eq!(unsafe { store(&other.peer, add, target) }.unwrap(), 5);
        assert_eq!(word.load(Ordering::Relaxed), 7);
        other.end();
        let compare_swap = Update::CompareSwap {
            compare: 7,
            swap: 8,
        };
        for update in [add, compare_swap] {
            // SAFETY: as above.
            let error = unsafe { store(&other.peer, update, target) }.unwrap_err();
            assert_eq!(error.raw_os_error(), Some(libc::ESRCH), "{update:?}");
            assert_eq!(word.load(Ordering::Relaxed), 7, "{update:?}");
        }
        // What is mapped names nobody by a pid.
        let target = Target::Mapped(word.as_ptr().cast());
        // SAFETY: as above.
        assert_eq!(unsafe { store(&other.peer, add, target) }.unwrap(), 7);
        assert_eq!(word.load(Ordering::Relaxed), 9);
    }
}
