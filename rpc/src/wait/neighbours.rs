//! What yielding the core has shown of the other threads that run on it: rules without a clock.
//!
//! A thread that waits and shares its core with the *peer* only keeps it from running when it spins. That shows: wait after wait the core is gone
//! for a while when it is yielded, and afterwards there is something to do. Then a wait yields at once.
//!
//! Where *others* share the core, it can look the same, and to yield at once is the worst: more clients than cores, each of which is
//! answered before it would yield, have the core for a slice at a time, and Linux takes a slice from who yields. So who yields after each call makes one
//! where they make thousands. What tells is an answer that comes to who spins, although the core was not yielded. So one such wait is enough not to
//! yield at once, and of those who do some spin nevertheless: soon, and then less and less often; but more often where the core is gone for long.

use std::time::Duration;

/// A yield that took longer has let another thread run.
const SWITCHED: Duration = Duration::from_nanos(1200);

/// A yield that took longer has let others run than the peer, or peers, most likely.
const LONG: Duration = Duration::from_micros(200);

/// So many waits in a row that a yield has ended are no accident: with one peer that was away for a moment it is one wait.
const HITS: u32 = 8;

/// Of so many waits that yield at once, at least one spins first; and where yields are long.
const PROBE: u32 = 256;
const PROBE_LONG: u32 = 16;

/// How soon a thread that always has something to do yields again: at once where others took the core for a moment; where there is nobody, a
/// yield costs little, so that it need not be often; where others keep it for long, so rarely that they have it for a twentieth of the time.
const ALONE_NS: u64 = 1_000_000;
const LONG_TIMES: u64 = 20;

#[derive(Debug, Default)]
pub(super) struct Neighbours {
    /// Whether to spin seems to be in vain.
    pub in_vain: bool,
    /// Waits in a row that a yield has ended.
    hits: u32,
    /// While it seems to be in vain: waits from one that spins to the next, and how many are left.
    interval: u32,
    left: u32,
}

impl Neighbours {
    /// A wait begins: whether it spins before it yields.
    pub fn wait_spins(&mut self) -> bool {
        if !self.in_vain {
            return true;
        }
        self.left = self.left.saturating_sub(1);
        if self.left > 0 {
            return false;
        }
        self.interval = PROBE.min(2 * self.interval);
        self.left = self.interval;
        true
    }

    /// Whether the end of a wait that has not yielded is to be told.
    pub fn wants_to_know(&self) -> bool {
        self.hits > 0
    }

    /// The core was yielded, and gone for so long.
    pub fn yielded(&mut self, gone: Duration) {
        if gone < SWITCHED {
            (self.in_vain, self.hits) = (false, 0);
        } else if gone >= LONG {
            self.interval = PROBE_LONG.min(self.interval);
            self.left = PROBE_LONG.min(self.left);
        }
    }

    /// A wait is over: after the core had been yielded and gone for so long, or before it was.
    pub fn found(&mut self, gone: Option<Duration>) {
        if gone.is_none_or(|gone| gone < SWITCHED) {
            (self.in_vain, self.hits) = (false, 0);
            return;
        }
        self.hits = HITS.min(self.hits + 1);
        if self.hits == HITS && !self.in_vain {
            self.in_vain = true;
            (self.interval, self.left) = (1, 1);
        }
    }
}

/// The core was yielded by who had something to do, and gone for so long: nanoseconds until it is to be yielded again.
pub(super) fn again_after_ns(gone: Duration) -> u64 {
    match gone {
        _ if gone < SWITCHED => ALONE_NS,
        _ if gone < LONG => 0,
        _ => u64::try_from(gone.as_nanos())
            .unwrap_or(u64::MAX)
            .saturating_mul(LONG_TIMES),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn us(us: u64) -> Duration {
        Duration::from_micros(us)
    }

    /// Waits until one spins, each ended by such a yield.
    fn until_spins(neighbours: &mut Neighbours, gone: Duration) -> u32 {
        let mut waits = 0;
        while !neighbours.wait_spins() {
            neighbours.yielded(gone);
            neighbours.found(Some(gone));
            assert!(neighbours.in_vain);
            waits += 1;
        }
        waits
    }

    fn sharing(gone: Duration) -> Neighbours {
        let mut neighbours = Neighbours::default();
        for _ in 0..HITS {
            assert!(neighbours.wait_spins() && !neighbours.in_vain);
            neighbours.yielded(gone);
            neighbours.found(Some(gone));
        }
        assert!(neighbours.in_vain);
        neighbours
    }

    #[test]
    fn who_shares_the_core_with_the_peer_yields_at_once() {
        let mut neighbours = sharing(us(3));
        let mut waits = Vec::new();
        for _ in 0..12 {
            waits.push(until_spins(&mut neighbours, us(3)));
            // In vain.
            neighbours.yielded(us(3));
            neighbours.found(Some(us(3)));
        }
        assert_eq!(waits[..4], [0, 1, 3, 7]);
        assert_eq!(waits[11], PROBE - 1);
        // The peer has moved.
        neighbours.yielded(Duration::from_nanos(300));
        assert!(!neighbours.in_vain && neighbours.wait_spins());
    }

    #[test]
    fn who_is_answered_while_it_spins_goes_on_to_spin() {
        // Others yield to it, and it is answered meanwhile: as if it were by the peer.
        let mut neighbours = sharing(us(10));
        assert_eq!(until_spins(&mut neighbours, us(10)), 0);
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
    fn who_loses_the_core_for_slices_spins_soon() {
        let mut neighbours = sharing(us(3));
        for _ in 0..12 {
            until_spins(&mut neighbours, us(3));
        }
        for slice in [us(1400), us(4000), us(30_000)] {
            assert!(until_spins(&mut neighbours, slice) < 2 * PROBE_LONG);
            neighbours.yielded(slice);
            neighbours.found(Some(slice));
        }
        until_spins(&mut neighbours, us(1400));
        neighbours.found(None);
        assert!(!neighbours.in_vain && neighbours.wait_spins());
    }

    #[test]
    fn who_is_busy_yields_to_those_who_give_the_core_back() {
        assert_eq!(again_after_ns(us(5)), 0);
        assert_eq!(again_after_ns(us(0)), ALONE_NS);
        assert_eq!(again_after_ns(us(4000)), 80_000_000);
        assert!(again_after_ns(Duration::MAX) > 1 << 60);
    }
}
