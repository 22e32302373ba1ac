//! When to fetch, how much, how often; and when to have replies pushed instead.

use crate::shelf::UNIT;

/// Longest pause between two READs for one reply, in nanoseconds.
const PAUSE_MAX: u64 = 100_000;

/// Replies after which it is looked how much a first READ should fetch.
const STRETCH: u32 = 64;

/// Calls in a row that found too little before replies are pushed.
const MISSED: u32 = 2;

/// Pushed replies in a row that were served quickly before they are fetched again.
const QUICK: u32 = 16;

/// READs that may fail for one reply, unless that is fixed.
const TRIES: u32 = 4;

/// So often in a row it is not believed that replies have become late, each time eight times as much is; then all of it is.
const LIMITED_MAX: u32 = 10;

/// Replies in a row that were there when they were looked for first, after which it is looked for the next ones much earlier. It would take hundreds
/// else to come down from a time of trouble, and of two ends that ask each other each would go on waiting for the other.
const EARLY: u32 = 4;

/// Bytes of an entry that the first READ fetches to begin with.
const FIRST: usize = 256;

/// What one connection has learnt.
#[derive(Debug, Clone)]
pub(in crate::client) struct Policy {
    hybrid: bool,
    pushing: bool,
    fixed: bool,
    units: u16,
    largest: usize,
    seen: u32,
    tries: u32,
    /// From a request to its reply on the shelf, in nanoseconds; of those that the server has to READ first, apart: they take longer whatever
    /// the server does.
    expected: [u64; 2],
    /// How often in a row they were there at once.
    early: [u32; 2],
    /// How often in a row they were so much later that it was not believed.
    limited: [u32; 2],
    /// What a READ takes, in nanoseconds.
    read: u64,
    missed: u32,
    quick: u32,
    switches: u64,
}

fn units_for(bytes: usize) -> u16 {
    u16::try_from(bytes.div_ceil(UNIT))
        .unwrap_or(u16::MAX)
        .max(1)
}

impl Policy {
    /// With the size of the first READ, in bytes, if that is not to be learnt, and the number of READs that may fail for one reply.
    pub fn new(hybrid: bool, first: Option<usize>, tries: Option<u32>) -> Policy {
        Policy {
            hybrid,
            pushing: false,
            fixed: first.is_some(),
            units: units_for(first.unwrap_or(FIRST)),
            largest: 0,
            seen: 0,
            tries: tries.unwrap_or(TRIES),
            expected: [0; 2],
            early: [0; 2],
            // The first is.
            limited: [LIMITED_MAX; 2],
            read: 1000,
            missed: 0,
            quick: 0,
            switches: 0,
        }
    }

    /// What to say in a request: how much the first READ will fetch; 0 to have the reply pushed.
    #[inline]
    pub fn units(&self) -> u16 {
        if self.pushing { 0 } else { self.units }
    }

    /// Times that it went from fetching to pushing, or back.
    pub fn switches(&self) -> u64 {
        self.switches
    }

    /// Counts those of an earlier connection as well, of which nothing else is of use.
    pub fn count_on(&mut self, before: &Policy) {
        self.switches += before.switches;
    }

    /// READs that may fail for one reply.
    pub fn tries(&self) -> u32 {
        self.tries
    }

    /// Nanoseconds from a request, a long one or not, to the first READ for its reply.
    pub fn first_after(&self, long: bool) -> u64 {
        self.expected[usize::from(long)]
    }

    /// Nanoseconds from a READ that found nothing, after so many in all, to the next: none at first, then twice as many each time.
    pub fn pause(&self, failed: u32) -> u64 {
        match failed {
            0 | 1 => 0,
            more => ((self.read / 4) << (more - 2).min(20)).min(PAUSE_MAX),
        }
    }

    /// A READ took so many nanoseconds.
    pub fn read_took(&mut self, ns: u64) {
        self.read = (7 * self.read + ns.min(1_000_000)) / 8;
    }

    /// How many READs usually find nothing of a reply that is found by one that is posted so many nanoseconds after the request.
    pub fn usual(&self, long: bool, waited: u64) -> u32 {
        let (mut at, mut failed) = (self.first_after(long), 0);
        while at < waited && failed <= self.tries {
            failed += 1;
            at = at
                .saturating_add(self.read.max(1))
                .saturating_add(self.pause(failed));
        }
        failed
    }

    /// The answer to a request, a long one or not: an entry of so many bytes was found after so many READs that found nothing; the one that found
    /// it was posted so many nanoseconds after the request, if that says how long requests take.
    pub fn fetched(&mut self, long: bool, (bytes, failed, waited): (usize, u32, Option<u64>)) {
        let expected = &mut self.expected[usize::from(long)];
        let limited = &mut self.limited[usize::from(long)];
        let early = &mut self.early[usize::from(long)];
        *early = match (failed, waited) {
            (_, None) => *early,
            (0, _) => early.saturating_add(1),
            _ => 0,
        };
        // A little earlier each time, until it is too early.
        *expected = match (failed, waited) {
            (_, None) => *expected,
            (0, _) => {
                let share = 16 >> early.saturating_sub(EARLY).min(3);
                *expected - expected.div_ceil(share).min(*expected)
            }
            // And later, but not by much: now and then a processor is taken away for long, of which the next replies know nothing. Unless they are
            // late as well, or nothing is known yet.
            (_, Some(waited)) => {
                let later = waited.saturating_sub(*expected) / 2;
                let most = (self.read + *expected / 4).saturating_mul(1 << (3 * *limited));
                *limited = if later > most {
                    LIMITED_MAX.min(*limited + 1)
                } else {
                    0
                };
                *expected + later.min(most)
            }
        };
        if !self.fixed {
            self.largest = self.largest.max(bytes);
            self.seen += 1;
            if units_for(bytes) > self.units {
                self.units = units_for(bytes);
            } else if self.seen >= STRETCH {
                self.units = units_for(self.largest);
                (self.largest, self.seen) = (0, 0);
            }
        }
        self.missed = if failed > self.tries {
            self.missed + 1
        } else {
            0
        };
        if self.hybrid && self.missed >= MISSED {
            self.pushing = true;
            (self.missed, self.quick) = (0, 0);
            self.switches += 1;
        }
    }

    /// A reply was pushed, which the server had served in so many nanoseconds.
    #[inline]
    pub fn pushed(&mut self, served: u32) {
        if !self.pushing {
            return;
        }
        // So long as many READs take that may fail.
        let quick = u64::from(served) <= self.read * u64::from(self.tries.max(1));
        self.quick = if quick { self.quick + 1 } else { 0 };
        if self.quick >= QUICK {
            self.pushing = false;
            self.expected = [served.into(); 2];
            self.switches += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_fetches_as_much_as_replies_are_long() {
        let mut policy = Policy::new(false, None, None);
        assert_eq!(usize::from(policy.units()) * UNIT, FIRST);
        policy.fetched(false, (1000, 0, Some(0)));
        assert_eq!(policy.units(), 16);
        for _ in 0..2 * STRETCH {
            policy.fetched(false, (100, 0, Some(0)));
        }
        assert_eq!(policy.units(), 2);
        let mut fixed = Policy::new(false, Some(512), None);
        fixed.fetched(false, (4000, 0, Some(0)));
        assert_eq!(fixed.units(), 8);
        // As long as there can be, and as short.
        fixed = Policy::new(false, Some(usize::MAX), None);
        assert_eq!(fixed.units(), u16::MAX);
        assert_eq!(Policy::new(false, Some(0), None).units(), 1);
    }

    #[test]
    fn the_first_read_waits_for_the_time_that_replies_take() {
        let mut policy = Policy::new(false, None, None);
        for _ in 0..100 {
            // A server that takes 10 us.
            let mut at = policy.first_after(false);
            let mut failed = 0;
            while at < 10_000 {
                failed += 1;
                at += 1000 + policy.pause(failed);
            }
            policy.fetched(false, (100, failed, Some(at)));
        }
        assert!(
            (8_000..12_500).contains(&policy.first_after(false)),
            "{policy:?}"
        );
        // And shorter again, when it gets quick.
        for _ in 0..200 {
            policy.fetched(false, (100, 0, Some(policy.first_after(false))));
        }
        assert_eq!(policy.first_after(false), 0);
    }

    #[test]
    fn how_long_a_server_slept_says_nothing_about_requests() {
        let mut policy = Policy::new(false, None, None);
        for _ in 0..20 {
            policy.fetched(false, (100, 1, Some(500)));
        }
        let before = policy.first_after(false);
        for failed in [20, 0] {
            policy.fetched(false, (100, failed, None));
            assert_eq!(policy.first_after(false), before);
        }
    }

    /// Calls that waited for seconds, because everything did, do not go on so for minutes.
    #[test]
    fn what_has_been_expected_far_too_late_is_soon_forgotten() {
        let mut policy = Policy::new(false, None, None);
        policy.fetched(false, (100, 1, Some(4_000_000_000)));
        let first = policy.first_after(false);
        assert!(first > 1_000_000_000);
        let (mut waited, mut calls) = (0, 0);
        while policy.first_after(false) > 1000 {
            waited += policy.first_after(false);
            calls += 1;
            policy.fetched(false, (100, 0, Some(policy.first_after(false))));
        }
        assert!(
            calls < 40 && waited < 8 * first,
            "{calls} calls, {waited} ns"
        );
    }

    /// A server that has to wake up is looked at more often, but that is no reason to have it push.
    #[test]
    fn what_is_usual_depends_on_the_time_alone() {
        let mut policy = Policy::new(true, None, None);
        for _ in 0..20 {
            policy.read_took(300);
        }
        assert_eq!(policy.usual(false, 0), 0);
        assert_eq!(policy.usual(false, 1), 1);
        let mut before = 1;
        for waited in [1000, 5000, 20_000, 100_000, u64::MAX] {
            let failed = policy.usual(false, waited);
            assert!(failed >= before && failed <= policy.tries + 1, "{failed}");
            before = failed;
        }
        assert_eq!(before, policy.tries + 1, "too many");
    }

    #[test]
    fn what_long_requests_take_says_nothing_about_others() {
        let mut policy = Policy::new(false, None, None);
        for _ in 0..20 {
            policy.fetched(true, (100, 3, Some(90_000)));
            policy.fetched(false, (100, 1, Some(500)));
        }
        assert!(policy.first_after(true) > 80_000, "{policy:?}");
        assert!(policy.first_after(false) <= 500, "{policy:?}");
    }

    #[test]
    fn one_late_reply_does_not_put_off_the_others_for_long() {
        let mut policy = Policy::new(false, None, None);
        for _ in 0..100 {
            policy.read_took(300);
            policy.fetched(false, (100, 1, Some(500)));
        }
        let usual = policy.first_after(false);
        assert!((400..=500).contains(&usual), "{policy:?}");
        policy.fetched(false, (100, 9, Some(40_000)));
        let late = policy.first_after(false);
        assert!(late > usual && late < 2 * usual, "{policy:?}");
        // If the next are late as well, they are soon.
        for _ in 0..5 {
            policy.fetched(false, (100, 9, Some(40_000)));
        }
        assert!(policy.first_after(false) > 20_000, "{policy:?}");
    }

    #[test]
    fn pauses_grow_and_are_bounded() {
        let policy = Policy::new(false, None, None);
        assert_eq!(policy.pause(1), 0);
        let pauses: Vec<u64> = (1..70).map(|failed| policy.pause(failed)).collect();
        assert!(pauses.is_sorted());
        assert_eq!(pauses[60], PAUSE_MAX);
    }

    #[test]
    fn a_hybrid_switches_after_two_calls_and_back() {
        let mut policy = Policy::new(true, None, Some(3));
        policy.fetched(false, (100, 4, Some(9000)));
        policy.fetched(false, (100, 3, Some(9000)));
        policy.fetched(false, (100, 4, Some(9000)));
        assert_ne!(policy.units(), 0, "not two in a row");
        policy.fetched(false, (100, 4, Some(9000)));
        assert_eq!((policy.units(), policy.switches()), (0, 1));
        for _ in 0..100 {
            policy.pushed(1_000_000);
        }
        assert_eq!(policy.units(), 0, "still slow");
        for _ in 0..QUICK - 1 {
            policy.pushed(200);
        }
        policy.pushed(1_000_000);
        for _ in 0..QUICK {
            assert_eq!(policy.units(), 0);
            policy.pushed(200);
        }
        assert_eq!(policy.switches(), 2);
        assert_ne!(policy.units(), 0);
        // Without being asked to, it never switches.
        let mut policy = Policy::new(false, None, Some(0));
        for _ in 0..10 {
            policy.fetched(false, (100, 40, Some(9000)));
        }
        assert_ne!(policy.units(), 0);
    }
}
