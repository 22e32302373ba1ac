//! Which rounds can be compared, and what is said of them.
//!
//! On virtual machines the time that a cache line takes from one processor to the other has two values, a factor of four apart, and
//! switches between them within seconds: by where the host lets the two processors run. Everything that is built on cache
//! lines follows. So the floor is measured before and after each round, and rounds are only compared with those of the same
//! [`Mode`]; a ratio is that of two measurements of the same round.

use serde::{Deserialize, Serialize};

use super::case::Case;
use super::death;
use super::measure::Figures;
use super::record::Record;
use crate::quantile::nearest_rank;

/// A case and what it is compared with, measured one right after the other.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Round {
    /// The floor before, nanoseconds.
    pub before_ns: f64,
    /// The floor after, nanoseconds.
    pub after_ns: f64,
    /// The case.
    pub case: Figures,
    /// What it is compared with, if anything.
    pub baseline: Option<Figures>,
}

/// How quickly cache lines went from one processor to the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// There and back in less than 200 ns.
    Near,
    /// In 200 ns or more.
    Far,
    /// It changed during the round, which says nothing then.
    Mixed,
}

/// What lies between near and far, nanoseconds: near is 60 to 130, far is 350 to 460 where it was measured.
const FAR_NS: f64 = 200.0;

/// Fewer rounds of a mode in a launch are not looked at, if there are others.
const ENOUGH: usize = 3;

impl Mode {
    /// Of what the floor was before and after.
    pub fn of(before_ns: f64, after_ns: f64) -> Mode {
        match (before_ns < FAR_NS, after_ns < FAR_NS) {
            (true, true) => Mode::Near,
            (false, false) => Mode::Far,
            _ => Mode::Mixed,
        }
    }

    /// As it is written in records.
    pub fn name(self) -> &'static str {
        match self {
            Mode::Near => "near",
            Mode::Far => "far",
            Mode::Mixed => "mixed",
        }
    }
}

impl Round {
    /// See [`Mode`].
    pub fn mode(&self) -> Mode {
        Mode::of(self.before_ns, self.after_ns)
    }

    /// What a call after a pause may take, its median and its 99th percentile: three times as long as without one, and what waking a thread
    /// takes that has slept as long, like compared with like.
    fn limits(&self) -> Option<(f64, f64)> {
        let (busy, wake) = (self.case.busy?, self.baseline?);
        let limit = |busy: f64, wake: f64| 3.0 * busy + wake;
        Some((
            limit(busy.p50_ns, wake.p50_ns),
            limit(busy.p99_ns, wake.p99_ns),
        ))
    }

    /// What the 99th percentile of small calls beside bulk should not exceed: twice their time alone, and one slice.
    fn bound_ns(&self) -> Option<f64> {
        Some(2.0 * self.baseline?.p50_ns + self.case.slice_ns?)
    }

    /// The case by its baseline: times, or rates where these count.
    fn ratio(&self, case: Case) -> Option<f64> {
        let baseline = self.baseline?;
        Some(if case.counts_rate() {
            self.case.rate / baseline.rate
        } else {
            self.case.p50_ns / baseline.p50_ns
        })
    }
}

/// The middle one; there must be one at least.
pub fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_unstable_by(f64::total_cmp);
    nearest_rank(&values, 50)
}

/// One record for each mode that a case was measured in: of the launch with the best median, since in some launches the memory
/// happens to lie on slow pages. If the mode changed in every round, one record without a ratio. Of deaths, one record.
pub fn summarise(case: Case, device: &str, launches: &[Vec<Round>]) -> Vec<Record> {
    if matches!(case, Case::Death(_)) {
        return death::summarise(case, device, launches)
            .into_iter()
            .collect();
    }
    let of_mode = |mode: Mode, least: usize| -> Vec<Vec<Round>> {
        launches
            .iter()
            .map(|rounds| {
                let same = rounds.iter().filter(|r| r.mode() == mode);
                same.copied().collect::<Vec<_>>()
            })
            .filter(|rounds| rounds.len() >= least)
            .collect()
    };
    for least in [ENOUGH, 1] {
        let records: Vec<_> = [Mode::Near, Mode::Far]
            .into_iter()
            .filter_map(|mode| {
                let best = best(case, of_mode(mode, least))?;
                Some(record(case, device, mode, &best))
            })
            .collect();
        if !records.is_empty() {
            return records;
        }
    }
    let mixed = best(case, of_mode(Mode::Mixed, 1));
    mixed
        .map(|rounds| record(case, device, Mode::Mixed, &rounds))
        .into_iter()
        .collect()
}

/// The launch with the best median.
fn best(case: Case, launches: Vec<Vec<Round>>) -> Option<Vec<Round>> {
    let badness = |rounds: &Vec<Round>| {
        if case.counts_rate() {
            -median(rounds.iter().map(|r| r.case.rate))
        } else {
            median(rounds.iter().map(|r| r.case.p50_ns))
        }
    };
    launches
        .into_iter()
        .min_by(|a, b| badness(a).total_cmp(&badness(b)))
}

/// A record of these rounds.
pub fn record(case: Case, device: &str, mode: Mode, rounds: &[Round]) -> Record {
    let baseline = case.baseline();
    let all = |pick: fn(&Round) -> Option<f64>| {
        let values: Option<Vec<f64>> = rounds.iter().map(pick).collect();
        values.map(|v| median(v.into_iter()))
    };
    let ratios: Option<Vec<f64>> = rounds.iter().map(|r| r.ratio(case)).collect();
    Record {
        name: case.to_string(),
        device: if case.uses_device() { device } else { "host" }.to_owned(),
        mode,
        p50_ns: round(median(rounds.iter().map(|r| r.case.p50_ns))),
        p99_ns: round(median(rounds.iter().map(|r| r.case.p99_ns))),
        rate: round_rate(median(rounds.iter().map(|r| r.case.rate))),
        baseline: baseline.map(|b| b.to_string()),
        ratio: ratios
            .filter(|_| mode != Mode::Mixed)
            .map(|r| median(r.into_iter())),
        baseline_p50_ns: all(|r| r.baseline.map(|b| b.p50_ns)).map(round),
        baseline_rate: all(|r| r.baseline.map(|b| b.rate)).map(round_rate),
        server_busy_ns: all(|r| r.case.server_busy_ns).map(round),
        slowest: all(|r| r.case.slowest).map(|share| (1e3 * share).round() / 1e3),
        limit_p50_ns: all(|r| Some(r.limits()?.0)).map(round),
        limit_p99_ns: all(|r| Some(r.limits()?.1)).map(round),
        baseline_p99_ns: all(|r| r.baseline.map(|b| b.p99_ns)).map(round),
        bound_ns: all(Round::bound_ns).map(round),
        floor_ns: round(median(
            rounds.iter().flat_map(|r| [r.before_ns, r.after_ns]),
        )),
        rounds: rounds.len(),
    }
}

/// A tenth of a nanosecond is more than is known.
fn round(ns: f64) -> f64 {
    (10.0 * ns).round() / 10.0
}

/// Whole ones, unless there are few: what takes seconds has a rate as well.
fn round_rate(rate: f64) -> f64 {
    match rate {
        ..100.0 => (1e3 * rate).round() / 1e3,
        _ => rate.round(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::measure::Busy;
    use super::super::shape::{Flow, Path, Size, Verb};
    use super::super::workload::Calls;
    use super::*;

    const PINGPONG: Case = Case::Verbs {
        verb: Verb::Send,
        size: Size::B64,
        flow: Flow::Serial,
    };
    const PIPELINED: Case = Case::Rpc(Calls::Plain {
        path: Path::both(Verb::Send),
        size: Size::B64,
        flow: Flow::Pipelined,
    });

    fn figures(p50_ns: f64) -> Figures {
        Figures {
            p50_ns,
            p99_ns: 2.0 * p50_ns,
            rate: 1e9 / p50_ns,
            server_busy_ns: None,
            slowest: None,
            busy: None,
            slice_ns: None,
        }
    }

    fn taken(before_ns: f64, after_ns: f64, case: f64, baseline: f64) -> Round {
        Round {
            before_ns,
            after_ns,
            case: figures(case),
            baseline: Some(figures(baseline)),
        }
    }

    #[test]
    fn a_round_has_the_mode_that_the_floor_had_before_and_after() {
        for (before, after, mode) in [
            (60.0, 130.0, Mode::Near),
            (199.9, 199.9, Mode::Near),
            (200.0, 200.0, Mode::Far),
            (460.0, 350.0, Mode::Far),
            (80.0, 400.0, Mode::Mixed),
            (400.0, 80.0, Mode::Mixed),
        ] {
            assert_eq!(Mode::of(before, after), mode, "{before} {after}");
        }
    }

    #[test]
    fn modes_are_kept_apart_and_mixed_rounds_discarded() {
        let mut rounds = vec![taken(80.0, 400.0, 1.0, 1.0); 9];
        rounds.extend([taken(80.0, 80.0, 150.0, 100.0); 3]);
        rounds.extend([taken(400.0, 420.0, 600.0, 400.0); 4]);
        let records = summarise(PINGPONG, "soft0", &[rounds]);
        let short: Vec<_> = records
            .iter()
            .map(|r| (r.mode, r.p50_ns, r.ratio, r.rounds))
            .collect();
        assert_eq!(
            short,
            [
                (Mode::Near, 150.0, Some(1.5), 3),
                (Mode::Far, 600.0, Some(1.5), 4)
            ]
        );
        assert_eq!(records[0].floor_ns, 80.0);
        assert_eq!(records[1].baseline_p50_ns, Some(400.0));
        assert_eq!(records[0].device, "soft0");
    }

    #[test]
    fn few_rounds_of_a_mode_count_only_if_there_are_no_others() {
        let near = taken(80.0, 80.0, 150.0, 100.0);
        let far = taken(400.0, 420.0, 600.0, 400.0);
        let modes = |rounds: Vec<Round>| -> Vec<Mode> {
            summarise(PINGPONG, "soft0", &[rounds])
                .iter()
                .map(|r| r.mode)
                .collect()
        };
        assert_eq!(modes(vec![near, near, far, far, far]), [Mode::Far]);
        assert_eq!(modes(vec![near, far]), [Mode::Near, Mode::Far]);
        assert_eq!(modes(vec![]), []);
    }

    #[test]
    fn if_all_rounds_are_mixed_there_is_no_ratio() {
        let rounds = vec![taken(80.0, 400.0, 150.0, 100.0); 5];
        let records = summarise(PINGPONG, "soft0", &[rounds]);
        assert_eq!(records.len(), 1);
        assert_eq!((records[0].mode, records[0].ratio), (Mode::Mixed, None));
        assert_eq!(records[0].p50_ns, 150.0);
    }

    #[test]
    fn the_best_launch_is_taken_whole() {
        let launch = |case, baseline| vec![taken(80.0, 80.0, case, baseline); 3];
        // The second has the better ratio, and slow pages.
        let launches = [launch(160.0, 80.0), launch(300.0, 250.0)];
        let record = &summarise(PINGPONG, "soft0", &launches)[0];
        assert_eq!((record.p50_ns, record.ratio), (160.0, Some(2.0)));
    }

    #[test]
    fn rates_are_compared_where_they_count() {
        // Twice the time of the baseline is half its rate.
        let launches = [
            vec![taken(80.0, 80.0, 100.0, 50.0); 3],
            vec![taken(80.0, 80.0, 80.0, 40.0); 3],
        ];
        let record = &summarise(PIPELINED, "soft0", &launches)[0];
        assert_eq!(record.ratio, Some(0.5));
        assert_eq!(record.rate, (1e9f64 / 80.0).round());
        assert_eq!(record.baseline_rate, Some(1e9 / 40.0));
    }

    #[test]
    fn the_bound_is_twice_the_time_alone_and_a_slice() {
        let mut rounds = [
            taken(80.0, 80.0, 3000.0, 600.0),
            taken(80.0, 80.0, 3000.0, 500.0),
            taken(80.0, 80.0, 3000.0, 700.0),
        ];
        let of = |rounds: &[Round]| {
            let record = &summarise(PINGPONG, "soft0", &[rounds.to_vec()])[0];
            (record.bound_ns, record.baseline_p99_ns)
        };
        assert_eq!(of(&rounds), (None, Some(1200.0)));
        for (round, slice) in rounds.iter_mut().zip([10_000.0, 9000.0, 11_000.0]) {
            round.case.slice_ns = Some(slice);
        }
        assert_eq!(of(&rounds), (Some(11_200.0), Some(1200.0)));
    }

    #[test]
    fn what_takes_seconds_has_a_rate_too() {
        assert_eq!(
            [0.3456, 12.5, 1234.5].map(round_rate),
            [0.346, 12.5, 1235.0]
        );
    }

    #[test]
    fn a_call_after_a_pause_may_take_three_without_one_and_a_wake_up() {
        let idle = Case::Rpc(Calls::Idle(Path::both(Verb::Send)));
        let mut round = taken(80.0, 80.0, 9000.0, 8000.0);
        let busy = Busy {
            p50_ns: 300.0,
            p99_ns: 5000.0,
        };
        round.case.busy = Some(busy);
        let record = &summarise(idle, "soft0", &[vec![round; 3]])[0];
        assert_eq!(record.limit_p50_ns, Some(8900.0));
        assert_eq!(record.limit_p99_ns, Some(31_000.0));
        round.case.busy = None;
        let record = &summarise(idle, "soft0", &[vec![round; 3]])[0];
        assert_eq!((record.limit_p50_ns, record.limit_p99_ns), (None, None));
    }

    #[test]
    fn the_floor_has_no_baseline() {
        let mut round = taken(80.0, 80.0, 80.0, 80.0);
        round.baseline = None;
        let record = &summarise(Case::Floor, "soft0", &[vec![round; 3]])[0];
        assert_eq!((&record.baseline, record.ratio), (&None, None));
        assert_eq!(record.device, "host");
    }
}
