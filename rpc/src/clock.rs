//! The time, for what happens with every call.
//!
//! Asking the kernel's clock costs 20 to 40 ns, a tenth of a whole small call. Where the processor counts at a constant rate, its
//! counter is read instead, and compared with the clock once in a millisecond. So a [`Moment`] is off by some microseconds at most.
//! It is one number, because two of them are subtracted and compared with every call.

use std::cell::Cell;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// Nanoseconds since the first look at the clock. What was before counts as just then.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Moment(u64);

thread_local!(static RECENT: Cell<Moment> = const { Cell::new(Moment(0)) });

fn epoch() -> Instant {
    static EPOCH: OnceLock<Instant> = OnceLock::new();
    *EPOCH.get_or_init(Instant::now)
}

impl Moment {
    /// Later than every other.
    pub const NEVER: Moment = Moment(u64::MAX);

    /// The present.
    #[inline]
    pub fn now() -> Moment {
        #[cfg(target_arch = "x86_64")]
        let now = counter::now();
        #[cfg(not(target_arch = "x86_64"))]
        let now = Moment::of(Instant::now());
        RECENT.set(now);
        now
    }

    /// The latest that this thread has asked for, with [`now`](Self::now); the first of all if it has not.
    #[inline]
    pub fn recent() -> Moment {
        RECENT.get()
    }

    /// The same moment.
    pub fn of(at: Instant) -> Moment {
        let since = at.saturating_duration_since(epoch());
        Moment(u64::try_from(since.as_nanos()).unwrap_or(u64::MAX))
    }

    /// The same moment; `None` for [`NEVER`](Self::NEVER), and where an `Instant` does not reach.
    pub fn instant(self) -> Option<Instant> {
        if self == Moment::NEVER {
            return None;
        }
        epoch().checked_add(Duration::from_nanos(self.0))
    }

    /// So much later; never, if that is beyond what there is.
    #[inline]
    pub fn after_ns(self, ns: u64) -> Moment {
        Moment(self.0.saturating_add(ns))
    }

    /// So much earlier; the first of all, if that would be before it.
    #[inline]
    pub fn before_ns(self, ns: u64) -> Moment {
        Moment(self.0.saturating_sub(ns))
    }

    /// Nanoseconds since an earlier moment, 0 since a later one.
    #[inline]
    pub fn ns_since(self, earlier: Moment) -> u64 {
        self.0.saturating_sub(earlier.0)
    }

    /// The time since an earlier moment, zero since a later one.
    #[inline]
    pub fn since(self, earlier: Moment) -> Duration {
        Duration::from_nanos(self.ns_since(earlier))
    }
}

#[cfg(target_arch = "x86_64")]
mod counter {
    use super::Moment;
    use std::arch::x86_64::{__cpuid, _rdtsc};
    use std::cell::Cell;
    use std::sync::OnceLock;
    use std::time::{Duration, Instant};

    /// How long a comparison with the clock is good for.
    const GOOD_FOR: Duration = Duration::from_millis(1);
    /// What must have passed since the first before the rate is known well enough.
    const RATE_AFTER: Duration = Duration::from_millis(20);

    /// Counter and clock at one moment.
    #[derive(Clone, Copy)]
    struct Pair {
        ticks: u64,
        at: Moment,
    }

    /// The last comparison of a thread.
    #[derive(Clone, Copy)]
    struct Anchor {
        pair: Pair,
        /// Nanoseconds of a tick, times 2^32.
        rate: u64,
        /// Ticks that it is good for.
        ticks: u64,
    }

    thread_local!(static ANCHOR: Cell<Option<Anchor>> = const { Cell::new(None) });

    #[inline]
    fn ticks() -> u64 {
        // SAFETY: reads a counter, which every x86-64 processor has.
        unsafe { _rdtsc() }
    }

    #[inline]
    pub(super) fn now() -> Moment {
        if let Some(anchor) = ANCHOR.get() {
            let passed = ticks().wrapping_sub(anchor.pair.ticks);
            if passed < anchor.ticks {
                return anchor.pair.at.after_ns((passed * anchor.rate) >> 32);
            }
        }
        compare()
    }

    /// Ticks that asking the clock takes at most, if the processor is not taken away meanwhile: more than that are some microseconds.
    const AT_ONCE: u64 = 1 << 14;

    /// Asks the clock, and compares.
    #[cold]
    fn compare() -> Moment {
        let before = ticks();
        let at = Moment::of(Instant::now());
        let pair = pair(before, at, ticks());
        ANCHOR.set(pair.and_then(|pair| first(pair).and_then(|first| anchor(first, pair))));
        at
    }

    /// What the clock said between two looks at the counter; `None` if they are so far apart that nobody knows when that was.
    ///
    /// The later look is taken: a moment may then be a little in the past, and no time is over too early.
    fn pair(before: u64, at: Moment, after: u64) -> Option<Pair> {
        let at_once = after.wrapping_sub(before) <= AT_ONCE;
        at_once.then_some(Pair { ticks: after, at })
    }

    /// The first pair of the process, which is this one if there is none yet; `None` if the counter is of no use.
    fn first(pair: Pair) -> Option<Pair> {
        static FIRST: OnceLock<Option<Pair>> = OnceLock::new();
        *FIRST.get_or_init(|| is_constant().then_some(pair))
    }

    /// `None` while too little is known.
    fn anchor(first: Pair, pair: Pair) -> Option<Anchor> {
        let passed = pair.at.since(first.at);
        let ticks = pair.ticks.checked_sub(first.ticks)?;
        if passed < RATE_AFTER || ticks == 0 {
            return None;
        }
        let rate = u64::try_from((passed.as_nanos() << 32) / u128::from(ticks)).ok()?;
        let good = u64::try_from((GOOD_FOR.as_nanos() << 32) / u128::from(rate.max(1))).ok()?;
        // A counter slower than 1 MHz or faster than a terahertz is none.
        let sound = (1 << 22..1 << 42).contains(&rate);
        sound.then_some(Anchor {
            pair,
            rate,
            ticks: good,
        })
    }

    /// Whether it counts at a constant rate, also while the processor sleeps (AMD APM 3, "TscInvariant"; Intel SDM 3, 17.17.1).
    fn is_constant() -> bool {
        __cpuid(0x8000_0000).eax >= 0x8000_0007 && __cpuid(0x8000_0007).edx & 1 << 8 != 0
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        #[test]
        fn it_agrees_with_the_clock() {
            let begin = Instant::now();
            // Long enough for the rate to be known; then the counter answers.
            while begin.elapsed() < 3 * RATE_AFTER {
                let (before, now, after) = (Instant::now(), now(), Instant::now());
                let off = Duration::from_micros(20);
                let now = now.instant().unwrap();
                assert!(now + off >= before && now <= after + off);
            }
            if is_constant() {
                let _ = now();
                assert!(ANCHOR.get().is_some());
            }
        }

        /// A thread that lost the processor in between knows neither what the counter was when the clock was asked, nor the other way round: it
        /// would be ahead of the clock by as much, and calls would be given up too early.
        #[test]
        fn clock_and_counter_are_compared_at_one_moment_or_not() {
            let at = Moment::of(Instant::now());
            assert!(pair(1000, at, 1001 + AT_ONCE).is_none());
            let pair = pair(1000, at, 1000 + AT_ONCE).unwrap();
            assert_eq!((pair.ticks, pair.at), (1000 + AT_ONCE, at));
        }

        #[test]
        fn a_counter_that_makes_no_sense_is_not_used() {
            let at = Moment::of(Instant::now());
            let first = Pair { ticks: 1000, at };
            let later = |ticks| Pair {
                ticks,
                at: at.after_ns(1_000_000_000),
            };
            assert!(anchor(first, later(1000)).is_none(), "stands still");
            assert!(anchor(first, later(999)).is_none(), "runs backwards");
            assert!(anchor(first, later(2000)).is_none(), "is too slow");
            assert!(anchor(first, later(3_000_000_000)).is_some());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_are_instants_in_one_number() {
        let start = Moment::now().instant().unwrap();
        let later = start + Duration::from_nanos(1_234_567_891);
        assert_eq!(Moment::of(later).instant(), Some(later));
        assert_eq!(
            Moment::of(later).since(Moment::of(start)),
            later - start,
            "to the nanosecond"
        );
        assert_eq!(Moment::of(start).ns_since(Moment::of(later)), 0);
        assert_eq!(Moment::NEVER.instant(), None);
        assert_eq!(Moment::of(start).after_ns(u64::MAX), Moment::NEVER);
    }
}
