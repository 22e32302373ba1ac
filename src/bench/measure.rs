//! Timing one round.
//!
//! Reading the clock takes as long as a good part of the quickest round trips. So the median is taken over groups of round trips
//! that are timed together; only the 99th percentile, which is about rare and long ones, is taken of single ones, clock included
//! (of groups, for operations that take less than that).

use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::time::{Duration, Instant};

use crate::quantile::nearest_rank;

/// What one round gave.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Figures {
    /// Half of the operations took at most this long, nanoseconds.
    pub p50_ns: f64,
    /// 99 of 100 took at most this long, nanoseconds.
    pub p99_ns: f64,
    /// Operations a second.
    pub rate: f64,
    /// The time for which a server was busy with each, nanoseconds, where that was measured.
    pub server_busy_ns: Option<f64>,
    /// Of several clients, the calls of that with the fewest by the mean.
    pub slowest: Option<f64>,
    /// Of calls after a pause, how long they take without one.
    pub busy: Option<Busy>,
    /// What one slice of the bulk beside it takes, nanoseconds, where there is any.
    pub slice_ns: Option<f64>,
}

/// How long operations take one right after the other, nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Busy {
    /// The median.
    pub p50_ns: f64,
    /// The 99th percentile.
    pub p99_ns: f64,
}

/// Round trips before anything is timed: they wake the peer up and warm the caches.
const WARM_UP: u32 = 20;
/// How many operations are timed together for the median.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Group {
    /// Operations that take long enough for the clock's share to be small.
    One = 1,
    /// Operations of a microsecond or so.
    Sixteen = 16,
    /// Operations that take less than reading the clock. Even their 99th percentile is of groups, of sixteen.
    Thousand = 1000,
}

impl Group {
    /// How many operations are timed together for the 99th percentile, if they are not the same as for the median.
    fn singles(self) -> Option<u32> {
        match self {
            Group::One => None,
            Group::Sixteen => Some(1),
            Group::Thousand => Some(16),
        }
    }
}

/// Calls `operation`, one after the other, for about `limit`.
pub fn serial<E>(
    limit: Duration,
    group: Group,
    mut operation: impl FnMut() -> Result<(), E>,
) -> Result<Figures, E> {
    repeated(limit, group, |times| {
        for _ in 0..times {
            operation()?;
        }
        Ok(())
    })
}

/// Has operations done, one after the other, for about `limit`: as many by each call of `operations` as it is told.
///
/// For operations that take less than a call may: the loop is the caller's, so that they are compiled into it.
pub fn repeated<E>(
    limit: Duration,
    group: Group,
    mut operations: impl FnMut(u32) -> Result<(), E>,
) -> Result<Figures, E> {
    let start = Instant::now();
    for _ in 0..WARM_UP {
        operations(1)?;
        if start.elapsed() > limit / 4 {
            break;
        }
    }
    let mut singles = Vec::with_capacity(1 << 12);
    let mut groups = Vec::with_capacity(1 << 12);
    let elapsed = match group.singles() {
        None => timed(&mut groups, group as u32, limit, &mut operations)?,
        Some(few) => {
            timed(&mut singles, few, limit / 4, &mut operations)?;
            timed(&mut groups, group as u32, limit / 4 * 3, &mut operations)?
        }
    };
    if group.singles().is_none() {
        singles.clone_from(&groups);
    }
    let count = groups.len() * group as usize;
    singles.sort_unstable_by(f64::total_cmp);
    groups.sort_unstable_by(f64::total_cmp);
    Ok(Figures {
        p50_ns: nearest_rank(&groups, 50),
        p99_ns: nearest_rank(&singles, 99),
        rate: count as f64 / elapsed.as_secs_f64(),
        server_busy_ns: None,
        slowest: None,
        busy: None,
        slice_ns: None,
    })
}

/// Adds the mean times of groups of `group` operations, nanoseconds, until `limit` has passed; one at least.
fn timed<E>(
    samples: &mut Vec<f64>,
    group: u32,
    limit: Duration,
    operations: &mut impl FnMut(u32) -> Result<(), E>,
) -> Result<Duration, E> {
    let start = Instant::now();
    let mut before = start;
    loop {
        operations(group)?;
        let now = Instant::now();
        samples.push((now - before).as_nanos() as f64 / f64::from(group));
        before = now;
        if now - start >= limit {
            return Ok(now - start);
        }
    }
}

/// An end that keeps several messages on their way. Answers come in order.
pub trait Pipeline {
    /// What goes wrong.
    type Error;
    /// Starts one.
    fn submit(&mut self) -> Result<(), Self::Error>;
    /// How many more are done; may wait for one, or return 0.
    fn complete(&mut self) -> Result<usize, Self::Error>;
}

/// Of so many messages one is stamped with the time.
const STAMPED: u64 = 16;

/// Keeps `window` messages on their way for about `limit`. The times are those from starting a message to its answer.
pub fn pipelined<P: Pipeline>(
    limit: Duration,
    window: usize,
    pipeline: &mut P,
) -> Result<Figures, P::Error> {
    let mut samples = Vec::with_capacity(1 << 12);
    let mut stamps = VecDeque::with_capacity(window);
    let (mut started, mut done) = (0u64, 0u64);
    let start = Instant::now();
    let mut over = false;
    let mut end = start;
    while !over || done < started {
        while !over && started - done < window as u64 {
            if started.is_multiple_of(STAMPED) {
                stamps.push_back((started, Instant::now()));
            }
            pipeline.submit()?;
            started += 1;
        }
        done += pipeline.complete()? as u64;
        while let Some(&(number, at)) = stamps.front()
            && number < done
        {
            stamps.pop_front();
            end = Instant::now();
            samples.push((end - at).as_nanos() as f64);
            over = end - start >= limit;
        }
    }
    end = end.max(Instant::now());
    samples.sort_unstable_by(f64::total_cmp);
    Ok(Figures {
        p50_ns: nearest_rank(&samples, 50),
        p99_ns: nearest_rank(&samples, 99),
        rate: done as f64 / (end - start).as_secs_f64(),
        server_busy_ns: None,
        slowest: None,
        busy: None,
        slice_ns: None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::convert::Infallible;

    #[test]
    fn a_serial_round_ends_and_its_figures_are_those_of_the_operation() {
        let pause = Duration::from_micros(200);
        let figures = serial(Duration::from_millis(20), Group::One, || {
            let start = Instant::now();
            while start.elapsed() < pause {}
            Ok::<(), Infallible>(())
        })
        .unwrap();
        let ns = pause.as_nanos() as f64;
        assert!(
            figures.p50_ns >= ns && figures.p99_ns >= figures.p50_ns,
            "{figures:?}"
        );
        assert!(
            figures.rate > 0.0 && figures.rate <= 1e9 / ns,
            "{figures:?}"
        );
    }

    #[test]
    fn short_operations_are_timed_in_groups() {
        let mut count = 0u64;
        let figures = serial(Duration::from_millis(2), Group::Sixteen, || {
            count += 1;
            Ok::<(), Infallible>(())
        })
        .unwrap();
        assert!(count >= 20 + 1 + 16, "{count}");
        assert!(
            figures.rate > 0.0 && figures.rate <= count as f64 / 0.001,
            "{figures:?}"
        );
        count = 0;
        serial(Duration::from_millis(2), Group::Thousand, || {
            count += 1;
            Ok::<(), Infallible>(())
        })
        .unwrap();
        assert!(count >= 20 + 16 + 1000, "{count}");
        let error = serial(Duration::from_millis(2), Group::One, || Err("gone"));
        assert_eq!(error, Err("gone"));
    }

    /// Completes in batches, sometimes none.
    struct Batches {
        outstanding: usize,
        most: usize,
        calls: usize,
        submitted: usize,
    }

    impl Pipeline for Batches {
        type Error = Infallible;
        fn submit(&mut self) -> Result<(), Infallible> {
            self.outstanding += 1;
            self.submitted += 1;
            self.most = self.most.max(self.outstanding);
            Ok(())
        }
        fn complete(&mut self) -> Result<usize, Infallible> {
            self.calls += 1;
            let n = (self.calls % 4).min(self.outstanding);
            self.outstanding -= n;
            Ok(n)
        }
    }

    #[test]
    fn a_pipelined_round_fills_its_window_and_drains_it() {
        for window in [1, 3, 64] {
            let mut batches = Batches {
                outstanding: 0,
                most: 0,
                calls: 0,
                submitted: 0,
            };
            let figures = pipelined(Duration::from_millis(2), window, &mut batches).unwrap();
            assert_eq!((batches.most, batches.outstanding), (window, 0));
            assert!(
                figures.rate > 0.0 && figures.rate <= batches.submitted as f64 / 0.002,
                "{figures:?}"
            );
        }
    }
}
