//! Whether requests come to their turn after their time, because handlers have kept the core busy.

use crate::clock::Moment;
use crate::deadline::Deadline;

/// A request whose caller waits so many microseconds or longer is in no hurry.
const LEISURE_US: u32 = 1_000_000;

/// Of requests in no hurry, so many in a row at most are taken without asking the clock: that costs as much as all other checks of a small one.
const UNASKED_MOST: u32 = 7;

/// What a core knows of the messages at hand.
#[derive(Debug, Default)]
pub(super) struct Lateness {
    /// Whether a handler has run since they came.
    delayed: bool,
    /// Requests that were taken without asking the clock.
    unasked: u32,
}

impl Lateness {
    /// A handler runs: the other messages at hand wait.
    #[inline(always)]
    pub fn delay(&mut self) {
        self.delayed = true;
    }

    /// There are other messages at hand now; whether a handler has run for one of the last.
    #[inline(always)]
    pub fn renew(&mut self) -> bool {
        std::mem::take(&mut self.delayed)
    }

    /// Whether the time of a request is over, whose caller was to wait for `us` more when it came.
    #[inline]
    pub fn is_too_late(&mut self, us: u32, deadline: Deadline) -> bool {
        if !self.delayed {
            return false;
        }
        if us >= LEISURE_US && self.unasked < UNASKED_MOST {
            self.unasked += 1;
            return false;
        }
        self.unasked = 0;
        deadline.is_past_at(Moment::now())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_clock_is_asked_for_all_in_a_hurry_and_for_some_of_the_others() {
        let over = Deadline::from_wire(1, Moment::of(std::time::Instant::now()));
        while !over.is_past() {}
        let mut lateness = Lateness::default();
        assert!(!lateness.is_too_late(1, over), "nobody was before it");
        lateness.delay();
        assert!((0..20).all(|_| lateness.is_too_late(LEISURE_US - 1, over)));
        let late = (0..80).filter(|_| lateness.is_too_late(LEISURE_US, over));
        assert_eq!(late.count(), 10);
        assert!(!lateness.is_too_late(1, Deadline::never()));
        assert!(lateness.renew() && !lateness.renew());
        assert!(!lateness.is_too_late(1, over), "others have come since");
    }
}
