//! What yielding the core has shown of the other threads that run on it: rules without a clock.
//!
//! A thread that waits and shares its core with the *peer* only keeps it from running when it spins. That shows: the core is gone for a while when
//! it is yielded, and afterwards there is something to do. Then a wait yields at once.
//!
//! Where *others* share the core, it looks the same, and to yield at once is the worst: more clients than cores, each of which is
//! answered before it would yield, have the core for a slice at a time, and Linux takes a slice from who yields. So who yields after each call makes one
//! where they make thousands. Two things tell: the core is gone for longer than an answer takes; or an answer comes to who spins,
//! although the core was not yielded. So a wait spins again after the former, and one in many tries.

use std::time::Duration;

/// A yield that took longer has let another thread run.
const SWITCHED: Duration = Duration::from_nanos(1200);

/// A yield that took longer has let others run than the peer, or peers.
const LONG: Duration = Duration::from_micros(200);

/// Of so many waits that yield at once, one spins first.
const PROBE: u32 = 256;

/// How soon a thread that always has something to do yields again: at once where others took the core for a moment; where there is nobody, a
/// yield costs little, so that it need not be often; where others keep it for a slice, once in many.
const ALONE_NS: u64 = 1_000_000;
const LONG_NS: u64 = 100_000_000;

/// So many waits in a row that a yield has ended are no accident: with one peer that was away for a moment it is one wait.
const HITS: u32 = 8;

#[derive(Debug, Default)]
pub(super) struct Neighbours {
    /// Whether to spin seems to be in vain.
    pub in_vain: bool,
    /// Waits in a row that a yield has ended.
    hits: u32,
    /// Waits since it seems to be in vain to spin.
    waits: u32,
}

impl Neighbours {
    /// A wait begins: whether it spins before it yields.
    pub fn wait_spins(&mut self) -> bool {
        if !self.in_vain {
            return true;
        }
        self.waits = self.waits.wrapping_add(1);
        self.waits.is_multiple_of(PROBE)
    }

    /// Whether the end of a wait that has not yielded is to be told.
    pub fn wants_to_know(&self) -> bool {
        self.hits > 0
    }

    /// The core was yielded, and gone for so long.
    pub fn yielded(&mut self, gone: Duration) {
        if !(SWITCHED..LONG).contains(&gone) {
            self.in_vain = false;
            self.hits = 0;
        }
    }

    /// A wait is over: after the core had been yielded and gone for so long, or before it was.
    pub fn found(&mut self, gone: Option<Duration>) {
        if gone.is_some_and(|gone| (SWITCHED..LONG).contains(&gone)) {
            self.hits = HITS.min(self.hits + 1);
            self.in_vain = self.hits == HITS;
        } else {
            self.hits = 0;
            self.in_vain = false;
        }
    }
}

/// The core was yielded by who had something to do, and gone for so long: nanoseconds until it is to be yielded again.
pub(super) fn again_after_ns(gone: Duration) -> u64 {
    match gone {
        _ if gone < SWITCHED => ALONE_NS,
        _ if gone < LONG => 0,
        _ => LONG_NS,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn us(us: u64) -> Duration {
        Duration::from_micros(us)
    }

    fn sharing() -> Neighbours {
        let mut neighbours = Neighbours::default();
        for _ in 0..HITS {
            assert!(neighbours.wait_spins() && !neighbours.in_vain);
            neighbours.yielded(us(3));
            neighbours.found(Some(us(3)));
        }
        assert!(neighbours.in_vain);
        neighbours
    }

    #[test]
    fn who_shares_the_core_with_the_peer_yields_at_once() {
        let mut neighbours = sharing();
        for _ in 0..10 * PROBE {
            if neighbours.wait_spins() {
                continue;
            }
            neighbours.yielded(us(3));
            neighbours.found(Some(us(3)));
            assert!(neighbours.in_vain);
        }
        // The peer has moved.
        neighbours.yielded(Duration::from_nanos(300));
        assert!(!neighbours.in_vain && neighbours.wait_spins());
    }

    #[test]
    fn who_is_answered_while_it_spins_goes_on_to_spin() {
        let mut neighbours = sharing();
        // Others yield to it as well, and it is answered meanwhile: as if it were by the peer.
        let mut waits = 0;
        while !neighbours.wait_spins() {
            neighbours.yielded(us(10));
            neighbours.found(Some(us(10)));
            waits += 1;
        }
        assert!(waits < PROBE);
        neighbours.found(None);
        assert!(!neighbours.in_vain && neighbours.wait_spins());
        // Nor does it learn more from a peer that is away now and then.
        for _ in 0..10 * HITS {
            neighbours.yielded(us(10));
            neighbours.found(Some(us(10)));
            assert!(neighbours.wants_to_know());
            neighbours.found(None);
            assert!(!neighbours.in_vain && !neighbours.wants_to_know());
        }
    }

    #[test]
    fn who_loses_the_core_for_a_slice_spins_next_time() {
        let mut neighbours = Neighbours::default();
        for slice in [us(1400), us(4000), us(30_000)] {
            neighbours.yielded(slice);
            neighbours.found(Some(slice));
            assert!(!neighbours.in_vain && neighbours.wait_spins());
        }
        let mut neighbours = sharing();
        neighbours.yielded(us(1400));
        assert!(neighbours.wait_spins());
    }

    #[test]
    fn who_is_busy_yields_to_those_who_give_the_core_back() {
        assert_eq!(again_after_ns(us(5)), 0);
        assert_eq!(again_after_ns(us(0)), ALONE_NS);
        // At most a twentieth of the time is theirs.
        assert!(again_after_ns(us(4000)) >= 20 * 4_000_000);
    }
}
