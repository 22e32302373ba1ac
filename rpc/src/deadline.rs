//! How long a caller is willing to wait.

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
pub struct Deadline(Option<Instant>);

impl Deadline {
    /// Waits as long as the connection lives.
    pub const fn never() -> Deadline {
        Deadline(None)
    }

    /// This many milliseconds from now.
    pub fn after_ms(milliseconds: u64) -> Deadline {
        Deadline::after(Duration::from_millis(milliseconds))
    }

    /// This long from now; never, if that is beyond what the clock can say.
    pub fn after(duration: Duration) -> Deadline {
        Deadline(Instant::now().checked_add(duration))
    }

    /// At that moment.
    pub const fn at(moment: Instant) -> Deadline {
        Deadline(Some(moment))
    }

    /// The moment, unless it is never.
    pub const fn instant(self) -> Option<Instant> {
        self.0
    }

    /// Time left, zero when it has passed; `None` for never.
    pub fn remaining(self) -> Option<Duration> {
        self.remaining_at(Instant::now())
    }

    /// Whether it has passed.
    pub fn is_past(self) -> bool {
        self.0.is_some_and(|at| at <= Instant::now())
    }

    pub(crate) fn remaining_at(self, now: Instant) -> Option<Duration> {
        self.0.map(|at| at.saturating_duration_since(now))
    }

    pub(crate) fn is_past_at(self, now: Instant) -> bool {
        self.0.is_some_and(|at| at <= now)
    }

    /// As it travels: microseconds, at least 1, `u32::MAX` that or more, 0 never.
    pub(crate) fn to_wire(self, now: Instant) -> u32 {
        match self.remaining_at(now) {
            None => 0,
            Some(left) => u32::try_from(left.as_micros()).unwrap_or(u32::MAX).max(1),
        }
    }

    /// The reverse of [`to_wire`](Self::to_wire), on the clock of this end.
    pub(crate) fn from_wire(remaining_us: u32, arrival: Instant) -> Deadline {
        match remaining_us {
            // More than an hour: as good as none, and unknown.
            0 | u32::MAX => Deadline(None),
            us => Deadline(arrival.checked_add(Duration::from_micros(u64::from(us)))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wire_form() {
        let now = Instant::now();
        for (left, wire) in [
            (Duration::ZERO, 1),
            (Duration::from_nanos(1), 1),
            (Duration::from_millis(3), 3000),
            (Duration::from_secs(4000), 4_000_000_000),
            (Duration::from_secs(40_000), u32::MAX),
        ] {
            let deadline = Deadline::at(now + left);
            assert_eq!(deadline.to_wire(now), wire);
        }
        assert_eq!(Deadline::never().to_wire(now), 0);
        assert_eq!(Deadline::from_wire(0, now), Deadline::never());
        assert_eq!(
            Deadline::from_wire(3000, now),
            Deadline::at(now + Duration::from_millis(3))
        );
    }

    #[test]
    fn the_far_future_is_never() {
        assert_eq!(Deadline::after(Duration::MAX), Deadline::never());
    }
}
