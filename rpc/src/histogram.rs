//! Durations in logarithmic buckets: constant memory, no allocation, about 3 % resolution.

use std::time::Duration;

/// Buckets per power of two.
const SUB: u64 = 32;
const SUB_BITS: u32 = SUB.trailing_zeros();
/// Up to 2^40 ns, eighteen minutes; what is longer counts there.
const BUCKETS: usize = ((40 - SUB_BITS as usize) + 1) * SUB as usize;

/// Counts durations.
#[derive(Clone)]
pub(crate) struct Histogram {
    counts: Box<[u64; BUCKETS]>,
    total: u64,
    max: u64,
}

impl Histogram {
    pub fn new() -> Histogram {
        Histogram {
            counts: Box::new([0; BUCKETS]),
            total: 0,
            max: 0,
        }
    }

    /// Counts so many of so many nanoseconds.
    #[inline]
    pub fn record(&mut self, ns: u64, count: u64) {
        self.counts[index(ns)] += count;
        self.total += count;
        self.max = self.max.max(ns);
    }

    /// Adds what another one has counted.
    pub fn absorb(&mut self, other: &Histogram) {
        for (count, more) in self.counts.iter_mut().zip(other.counts.iter()) {
            *count += more;
        }
        self.total += other.total;
        self.max = self.max.max(other.max);
    }

    pub fn max(&self) -> Duration {
        Duration::from_nanos(self.max)
    }

    /// The duration that this share (0 to 1) of all was not longer than, up to the resolution;
    /// `None` without any.
    pub fn quantile(&self, share: f64) -> Option<Duration> {
        if self.total == 0 {
            return None;
        }
        let rank = ((share * self.total as f64).ceil() as u64).clamp(1, self.total);
        let mut seen = 0;
        for (at, count) in self.counts.iter().enumerate() {
            seen += count;
            if seen >= rank {
                return Some(Duration::from_nanos(upper(at).min(self.max)));
            }
        }
        Some(self.max())
    }
}

fn index(ns: u64) -> usize {
    if ns < SUB {
        return ns as usize;
    }
    let shift = ns.ilog2() - SUB_BITS;
    let at = u64::from(shift) * SUB + (ns >> shift);
    usize::try_from(at).unwrap_or(usize::MAX).min(BUCKETS - 1)
}

/// Largest value of a bucket.
fn upper(at: usize) -> u64 {
    let at = at as u64;
    if at < SUB {
        return at;
    }
    let shift = at / SUB - 1;
    ((at % SUB + SUB + 1) << shift) - 1
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn buckets_are_close_and_ordered(ns in 0u64..1 << 40) {
            let at = index(ns);
            prop_assert!(upper(at) >= ns, "{} {}", upper(at), ns);
            prop_assert!(upper(at) as f64 <= ns as f64 * (1.0 + 1.0 / 32.0) + 1.0);
            prop_assert!(at == 0 || upper(at - 1) < ns);
        }

        #[test]
        fn any_duration_counts(ns: u64, seconds: u64) {
            let mut h = Histogram::new();
            h.record(ns, 1);
            h.record(seconds.saturating_mul(1_000_000_000), 1);
            prop_assert_eq!(h.total, 2);
            prop_assert!(h.quantile(1.0) <= Some(h.max()));
        }
    }

    #[test]
    fn quantiles() {
        let mut h = Histogram::new();
        assert_eq!(h.quantile(0.5), None);
        for us in 1..=1000u64 {
            h.record(us * 1000, 1);
        }
        for (share, us) in [(0.5, 500.0), (0.99, 990.0), (1.0, 1000.0)] {
            let got = h.quantile(share).unwrap().as_secs_f64() * 1e6;
            assert!((got / us - 1.0).abs() < 0.04, "{share}: {got}");
        }
    }
}
