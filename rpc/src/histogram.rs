//! Durations in logarithmic buckets: bounded memory, about 3 % resolution.

mod shared;

pub(crate) use shared::SharedHistogram;

use std::fmt;
use std::time::Duration;

/// Buckets per power of two.
const SUB: u64 = 32;
const SUB_BITS: u32 = SUB.trailing_zeros();
/// Up to 2^40 ns, eighteen minutes; what is longer counts there.
const BUCKETS: usize = ((40 - SUB_BITS as usize) + 1) * SUB as usize;
/// Powers of two, or as many as one where there are less buckets.
const POWERS: usize = BUCKETS / SUB as usize;
/// What counts in one of them.
type Counts = [u64; SUB as usize];
/// What is too long counts in it.
const LAST: usize = BUCKETS - 1;

/// How long things took, in logarithmic buckets: 32 for each power of two, so a duration is known to about 3 %. What takes longer than 18 minutes counts in
/// the last bucket. Takes 256 B for each power of two that something counted in, and so 9 KiB at most.
///
/// Is [`ClientStats::latency`](crate::ClientStats::latency), and [`ServerHandle::request_times`](crate::ServerHandle::request_times). Those of several clients can be put together, and fed into others,
/// such as the crate `hdrhistogram`'s:
///
/// ```
/// # use rpc::{Client, Deadline, Histogram, Method, Server};
/// # struct Hdr(u64, u64);
/// # impl Hdr {
/// #     fn new_with_bounds(_: u64, _: u64, _: u8) -> Result<Hdr, &'static str> { Ok(Hdr(0, 0)) }
/// #     fn record_n(&mut self, value: u64, count: u64) -> Result<(), &'static str> {
/// #         self.0 = self.0.max(value);
/// #         self.1 += count;
/// #         Ok(())
/// #     }
/// # }
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let server = Server::bind("127.0.0.1:0")?.serve(|_core| {
/// #     |request: rpc::Request<'_>, responder: rpc::Responder| responder.reply(request.body())
/// # })?;
/// # let (mut one, mut two) = (Client::connect(server.local_addr())?, Client::connect(server.local_addr())?);
/// # for client in [&mut one, &mut two, ] { client.call(Method(1), "", Deadline::after_ms(10_000))?; }
/// let mut all = Histogram::new();
/// for client in [&one, &two] {
///     all.merge(&client.stats().latency);
/// }
/// println!("{} calls, p99.9 {:?}", all.count(), all.quantile(0.999));
///
/// // From a nanosecond to an hour, two digits: `hdrhistogram::Histogram::<u64>::new_with_bounds`.
/// let mut hdr = Hdr::new_with_bounds(1, 3_600_000_000_000, 2)?;
/// for (upper, count) in all.iter() {
///     hdr.record_n(upper.as_nanos() as u64, count)?;
/// }
/// # assert_eq!((hdr.0, hdr.1), (all.max().as_nanos() as u64, all.count()));
/// # Ok(()) }
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct Histogram {
    /// By powers of two, from the first duration there on: of hundreds of clients, those of most durations take up a good part of the processor's
    /// address translation otherwise.
    counts: [Option<Box<Counts>>; POWERS],
    total: u64,
    max: u64,
}

impl Histogram {
    /// One without any durations.
    pub fn new() -> Histogram {
        Histogram {
            counts: [const { None }; POWERS],
            total: 0,
            max: 0,
        }
    }

    /// Counts so many of so many nanoseconds.
    #[inline]
    pub(crate) fn record(&mut self, ns: u64, count: u64) {
        *self.at(index(ns)) += count;
        self.total += count;
        self.max = self.max.max(ns);
    }

    /// Adds what another one has counted.
    pub fn merge(&mut self, other: &Histogram) {
        for (counts, more) in self.counts.iter_mut().zip(&other.counts) {
            let Some(more) = more else { continue };
            let counts = counts.get_or_insert_default();
            for (count, more) in counts.iter_mut().zip(more.iter()) {
                *count += more;
            }
        }
        self.total += other.total;
        self.max = self.max.max(other.max);
    }

    /// How many durations have been counted.
    pub fn count(&self) -> u64 {
        self.total
    }

    /// The longest of them, exactly; zero without any.
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
        for (at, count) in self.buckets() {
            seen += count;
            if seen >= rank {
                return Some(self.bound(at));
            }
        }
        Some(self.max())
    }

    /// The buckets that are not empty, from the shortest: the longest duration that counts there, and how many do. No duration is above
    /// [`max`](Self::max), neither is a bound.
    pub fn iter(&self) -> impl Iterator<Item = (Duration, u64)> + '_ {
        let counted = self.buckets().filter(|(_, count)| *count > 0);
        counted.map(|(at, count)| (self.bound(at), count))
    }

    /// The buckets of powers of two that something counted in.
    fn buckets(&self) -> impl Iterator<Item = (usize, u64)> + '_ {
        let powers = self.counts.iter().enumerate();
        powers.flat_map(|(power, counts)| {
            let counts = counts.as_deref().into_iter().flatten();
            let buckets = counts.enumerate();
            buckets.map(move |(at, &count)| (power * SUB as usize + at, count))
        })
    }

    /// A bucket.
    #[inline]
    fn at(&mut self, bucket: usize) -> &mut u64 {
        let counts = self.counts[bucket / SUB as usize].get_or_insert_default();
        &mut counts[bucket % SUB as usize]
    }

    /// The longest duration that can be in a bucket.
    fn bound(&self, at: usize) -> Duration {
        Duration::from_nanos(match at {
            // It has no end.
            LAST => self.max,
            _ => upper(at).min(self.max),
        })
    }
}

impl Default for Histogram {
    fn default() -> Histogram {
        Histogram::new()
    }
}

impl fmt::Debug for Histogram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Histogram")
            .field("count", &self.total)
            .field("p50", &self.quantile(0.5))
            .field("p99", &self.quantile(0.99))
            .field("max", &self.max())
            .finish_non_exhaustive()
    }
}

fn index(ns: u64) -> usize {
    if ns < SUB {
        return ns as usize;
    }
    let shift = ns.ilog2() - SUB_BITS;
    let at = u64::from(shift) * SUB + (ns >> shift);
    usize::try_from(at).unwrap_or(usize::MAX).min(LAST)
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

    proptest! {
        #[test]
        fn buckets_are_told_in_order_and_merge(
            one in proptest::collection::vec(any::<u64>(), 0..40),
            two in proptest::collection::vec(0u64..1 << 42, 0..40),
        ) {
            let of = |list: &[u64]| {
                let mut h = Histogram::new();
                list.iter().for_each(|&ns| h.record(ns, 1));
                h
            };
            let both: Vec<_> = one.iter().chain(&two).copied().collect();
            let mut merged = of(&one);
            merged.merge(&of(&two));
            prop_assert_eq!(&merged, &of(&both));
            prop_assert_eq!(merged.count(), both.len() as u64);
            let told: Vec<_> = merged.iter().collect();
            prop_assert!(told.windows(2).all(|pair| pair[0].0 < pair[1].0), "{:?}", told);
            prop_assert_eq!(told.iter().map(|&(_, count)| count).sum::<u64>(), merged.count());
            let last = told.last().map(|&(bound, _)| bound);
            prop_assert_eq!(last.unwrap_or_default(), merged.max());
            // As many as are told to be no longer are.
            for &(bound, _) in &told {
                let below = told.iter().filter(|(at, _)| *at <= bound).map(|(_, n)| n).sum::<u64>();
                let real = both.iter().filter(|&&ns| u128::from(ns) <= bound.as_nanos()).count();
                prop_assert_eq!(below, real as u64);
            }
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
