//! When requests leave: asking the clock for each is a twentieth of what a small one takes, where many are on their way.

use crate::clock::Moment;
use crate::deadline::Deadline;

/// So many requests in a row at most leave without the clock being asked.
const UNASKED_MOST: u8 = 7;

/// Whose time is over earlier is asked for, in nanoseconds.
const LEISURE_NS: u64 = 1_000_000_000;

/// What is known of the present.
#[derive(Debug)]
pub(super) struct Pace {
    asked: Moment,
    left: u8,
}

impl Pace {
    pub fn new() -> Pace {
        Pace {
            asked: Moment::NEVER,
            left: 0,
        }
    }

    /// Nothing has come for a moment: the next request is not one of many.
    #[inline(always)]
    pub fn pause(&mut self) {
        self.left = 0;
    }

    /// The present, for a request that leaves now; and whether it is that, or when the clock was last asked: which does for one that leaves
    /// `beside` others and has a second and more.
    #[inline(always)]
    pub fn now(&mut self, beside: bool, deadline: Deadline) -> (Moment, bool) {
        // Whoever made the deadline just now has asked for us.
        let known = self.asked.max(Moment::recent());
        if beside && self.left > 0 && deadline.leaves_ns(known) >= LEISURE_NS {
            self.left -= 1;
            return (known, false);
        }
        self.asked = Moment::now();
        self.left = UNASKED_MOST;
        (self.asked, true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn the_clock_is_asked_for_all_that_leave_alone_or_in_a_hurry_and_for_some_of_the_others() {
        let mut pace = Pace::new();
        let asked = |pace: &mut Pace, beside, deadline| {
            (0..80).filter(|_| pace.now(beside, deadline).1).count()
        };
        let far = Deadline::after(Duration::from_secs(3600));
        assert_eq!(asked(&mut pace, true, far), 10);
        assert_eq!(asked(&mut pace, true, Deadline::never()), 10);
        assert_eq!(asked(&mut pace, false, far), 80);
        assert_eq!(asked(&mut pace, true, Deadline::after_ms(900)), 80);
        // It is then the same moment, not a later one, unless somebody else has asked.
        let first = pace.now(false, far).0;
        assert_eq!(pace.now(true, far), (first, false));
        let made = Deadline::after_ms(5000);
        let (then, exact) = pace.now(true, made);
        // A comparison of the clocks in between can set back what the thread has asked, by some microseconds.
        assert!(!exact && (4_900_000_000..=5_000_000_000).contains(&made.leaves_ns(then)));
        pace.pause();
        assert!(pace.now(true, far).1);
    }
}
