//! How long a caller is willing to wait.

use crate::clock::Moment;
use std::time::{Duration, Instant};

/// The moment at which a caller stops waiting.
///
/// The time that remains travels with the request: a server does not start one whose caller has
/// given up, as far as it can tell.
///
/// ```
/// use rpc::Deadline;
/// use std::time::Duration;
///
/// assert!(Deadline::never().remaining().is_none());
/// assert!(Deadline::after(Duration::ZERO).is_past());
/// assert!(!Deadline::after_ms(60_000).is_past());
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Deadline(Moment);

impl Deadline {
    /// Waits as long as the connection lives.
    pub const fn never() -> Deadline {
        Deadline(Moment::NEVER)
    }

    /// This many milliseconds from now.
    pub fn after_ms(milliseconds: u64) -> Deadline {
        Deadline::after(Duration::from_millis(milliseconds))
    }

    /// This long from now; never, if that is centuries away.
    pub fn after(duration: Duration) -> Deadline {
        let ns = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        Deadline(Moment::now().after_ns(ns))
    }

    /// At that moment.
    pub fn at(moment: Instant) -> Deadline {
        Deadline(Moment::of(moment))
    }

    /// The moment, unless it is never.
    pub fn instant(self) -> Option<Instant> {
        self.0.instant()
    }

    /// Time left, zero when it has passed; `None` for never.
    pub fn remaining(self) -> Option<Duration> {
        self.remaining_at(Moment::now())
    }

    /// Whether it has passed.
    pub fn is_past(self) -> bool {
        self.is_past_at(Moment::now())
    }

    pub(crate) fn is_never(self) -> bool {
        self.0 == Moment::NEVER
    }

    pub(crate) fn moment(self) -> Moment {
        self.0
    }

    #[inline]
    pub(crate) fn remaining_at(self, now: Moment) -> Option<Duration> {
        (!self.is_never()).then(|| self.0.since(now))
    }

    #[inline]
    pub(crate) fn is_past_at(self, now: Moment) -> bool {
        self.0 <= now
    }

    /// How long it still was at that moment, in nanoseconds.
    #[inline]
    pub(crate) fn leaves_ns(self, at: Moment) -> u64 {
        self.0.ns_since(at)
    }

    /// As it travels: microseconds, at least 1, `u32::MAX` that or more, 0 never.
    #[inline]
    pub(crate) fn to_wire(self, now: Moment) -> u32 {
        if self.is_never() {
            return 0;
        }
        let left = self.0.ns_since(now) / 1000;
        u32::try_from(left).unwrap_or(u32::MAX).max(1)
    }

    /// The reverse of [`to_wire`](Self::to_wire), on the clock of this end.
    #[inline]
    pub(crate) fn from_wire(remaining_us: u32, arrival: Moment) -> Deadline {
        match remaining_us {
            // More than an hour: as good as none, and unknown.
            0 | u32::MAX => Deadline::never(),
            us => Deadline(arrival.after_ns(u64::from(us) * 1000)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wire_form() {
        let now = Moment::now();
        for (left, wire) in [
            (Duration::ZERO, 1),
            (Duration::from_nanos(1), 1),
            (Duration::from_millis(3), 3000),
            (Duration::from_secs(4000), 4_000_000_000),
            (Duration::from_secs(40_000), u32::MAX),
        ] {
            let deadline = Deadline(now.after_ns(left.as_nanos() as u64));
            assert_eq!(deadline.to_wire(now), wire);
        }
        assert_eq!(Deadline::never().to_wire(now), 0);
        assert_eq!(Deadline::from_wire(0, now), Deadline::never());
        assert_eq!(
            Deadline::from_wire(3000, now),
            Deadline(now.after_ns(3_000_000))
        );
    }

    #[test]
    fn the_far_future_is_never() {
        assert_eq!(Deadline::after(Duration::MAX), Deadline::never());
    }
}
