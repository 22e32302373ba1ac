//! Round-trip times and what is said of them.

use serde::{Deserialize, Serialize};
use std::time::{Duration, Instant};

use crate::quantile::nearest_rank;

/// Message sizes measured, bytes.
pub const SIZES: [usize; 2] = [64, 4096];
/// Rounds of each transport and size; transports take turns, so that both meet the same machine.
pub const ROUNDS: usize = 12;
/// Round trips in a round, and the time after which a round ends early.
pub const ECHOES: usize = 2000;
/// See [`ECHOES`].
pub const ROUND_LIMIT: Duration = Duration::from_millis(200);

/// Percentiles of the round trips of one size.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Percentiles {
    /// Bytes each way.
    pub size: usize,
    /// Half of the round trips took at most this long, nanoseconds.
    pub p50_ns: u64,
    /// 99 of 100 took at most this long, nanoseconds.
    pub p99_ns: u64,
    /// How many were measured.
    pub count: usize,
}

/// Times one round: calls `echo` until there are enough, or the limit has passed.
pub fn round<E>(samples: &mut Vec<u64>, mut echo: impl FnMut() -> Result<(), E>) -> Result<(), E> {
    // The first ones wake the peer up and are not what is measured.
    for _ in 0..20 {
        echo()?;
    }
    let start = Instant::now();
    let mut before = start;
    for _ in 0..ECHOES {
        echo()?;
        let now = Instant::now();
        samples.push((now - before).as_nanos() as u64);
        before = now;
        if now - start > ROUND_LIMIT {
            break;
        }
    }
    Ok(())
}

/// Sums up samples in nanoseconds; there must be one at least.
pub fn percentiles(size: usize, mut samples: Vec<u64>) -> Percentiles {
    samples.sort_unstable();
    Percentiles {
        size,
        p50_ns: nearest_rank(&samples, 50),
        p99_ns: nearest_rank(&samples, 99),
        count: samples.len(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_nearest_ranks() {
        let of = |samples: Vec<u64>| {
            let p = percentiles(64, samples);
            (p.p50_ns, p.p99_ns, p.count)
        };
        assert_eq!(of(vec![7]), (7, 7, 1));
        assert_eq!(of(vec![2, 1]), (1, 2, 2));
        assert_eq!(of((1..=100).rev().collect()), (50, 99, 100));
        assert_eq!(of((1..=1000).collect()), (500, 990, 1000));
    }

    #[test]
    fn a_round_ends_with_the_first_error() {
        let mut samples = Vec::new();
        let mut left = 25;
        let result = round(&mut samples, || {
            left -= 1;
            if left == 0 { Err("gone") } else { Ok(()) }
        });
        assert_eq!((result, samples.len()), (Err("gone"), 4));
    }
}
