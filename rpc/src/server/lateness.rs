//! Whether requests come to their turn after their time, because handlers have kept the core busy.

use crate::clock::Moment;
use crate::deadline::Deadline;

/// A request whose caller waits so many microseconds or longer is in no hurry.
const LEISURE_US: u32 = 1_000_000;

/// Of requests in no hurry, so many in a row at most are taken without asking the clock: that costs as much as all other checks of a small one.
const UNASKED_MOST: u32 = 7;

/// Since the clock was last asked there has been nothing that takes its time if it is not longer than this, in nanoseconds.
const QUICK: u64 = 50_000;

/// What a core knows of the messages at hand.
#[derive(Debug)]
pub(super) struct Lateness {
    /// Whether a handler has run since they came.
    delayed: bool,
    /// Requests that may be taken without asking the clock.
    left: u32,
    asked: Moment,
}

impl Lateness {
    pub fn new() -> Lateness {
        Lateness {
            delayed: false,
            left: 0,
            asked: Moment::now(),
        }
    }

    /// A handler runs: the other messages at hand wait.
    #[inline(always)]
    pub fn delay(&mut self) {
        self.delayed = true;
    }

    /// There are other messages at hand now; whether a handler has run for one of the last.
    #[inline(always)]
    pub fn renew(&mut self) -> bool {
        self.left = 0;
        std::mem::take(&mut self.delayed)
    }

    /// Whether the time of a request is over, which arrived at that moment, and whose caller was to wait for `us` more then.
    #[inline]
    pub fn is_too_late(&mut self, us: u32, arrived: Moment, deadline: Deadline) -> bool {
        if !self.delayed {
            return false;
        }
        if us >= LEISURE_US && self.left > 0 {
            self.left -= 1;
            return false;
        }
        let now = Moment::now();
        // Handlers that take their time are what this is for.
        let quick = now.ns_since(self.asked.max(arrived)) <= QUICK;
        self.left = if quick { UNASKED_MOST } else { 0 };
        self.asked = now;
        deadline.is_past_at(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wait(ns: u64) -> Moment {
        let start = Moment::now();
        while Moment::now().ns_since(start) <= ns {}
        start
    }

    #[test]
    fn the_clock_is_asked_for_all_in_a_hurry_and_for_some_of_the_others() {
        let arrived = wait(4 * QUICK);
        let over = Deadline::from_wire(1, arrived);
        let mut lateness = Lateness::new();
        assert!(
            !lateness.is_too_late(1, arrived, over),
            "nobody was before it"
        );
        lateness.delay();
        assert!((0..20).all(|_| lateness.is_too_late(LEISURE_US - 1, arrived, over)));
        // That is how many it is at least, should this thread lose the processor.
        let late = |lateness: &mut Lateness| {
            (0..80)
                .filter(|_| lateness.is_too_late(LEISURE_US, arrived, over))
                .count()
        };
        assert!((0..100).any(|_| late(&mut lateness) == 10));
        assert!(!lateness.is_too_late(1, arrived, Deadline::never()));
        assert!(lateness.renew() && !lateness.renew());
        assert!(
            !lateness.is_too_late(1, arrived, over),
            "others have come since"
        );
    }

    #[test]
    fn it_is_asked_for_all_behind_handlers_that_take_their_time() {
        let mut lateness = Lateness::new();
        let arrived = wait(4 * QUICK);
        let over = Deadline::from_wire(1, arrived);
        lateness.delay();
        for _ in 0..20 {
            // The first of a batch as well.
            assert!(lateness.is_too_late(LEISURE_US, arrived, over));
            wait(4 * QUICK);
        }
    }
}
