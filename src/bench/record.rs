//! Results, for programs and for people.

use serde::Serialize;
use std::fmt::Write as _;

use super::rounds::Mode;
use crate::version::{VERSION, Version};

/// One case in one mode.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Record {
    /// Of the case.
    pub name: String,
    /// The RDMA device, or "host" for what needs none.
    pub device: String,
    /// Of the rounds that this is about.
    pub mode: Mode,
    /// Median of the rounds' medians, nanoseconds: of whole round trips, calls or READs.
    pub p50_ns: f64,
    /// Median of the rounds' 99th percentiles, nanoseconds.
    pub p99_ns: f64,
    /// Round trips, calls or READs a second: median of the rounds.
    pub rate: f64,
    /// Name of the case it is compared with.
    pub baseline: Option<String>,
    /// Median of the rounds' ratios: its `p50_ns` by that of the baseline; for pipelined cases its `rate` by that of the
    /// baseline. None if the mode changed in every round.
    pub ratio: Option<f64>,
    /// Of the baseline in the same rounds.
    pub baseline_p50_ns: Option<f64>,
    /// Of the baseline in the same rounds.
    pub baseline_rate: Option<f64>,
    /// The time for which the server was busy with each call, from when it noticed the request to when the reply had left its hands, nanoseconds: median of the
    /// rounds, of bursts that the server found whole. None for what is not small calls.
    pub server_busy_ns: Option<f64>,
    /// Calls of the slowest of several clients by the mean of all, 1 if they are served alike: median of the rounds. None where there is one client.
    pub slowest: Option<f64>,
    /// Of calls after a pause, what `p50_ns` is to be at most: three times what a call takes without one, and one wake-up, both their medians in the
    /// same rounds, nanoseconds.
    pub limit_p50_ns: Option<f64>,
    /// The same for `p99_ns`, of 99th percentiles.
    pub limit_p99_ns: Option<f64>,
    /// Of the baseline in the same rounds.
    pub baseline_p99_ns: Option<f64>,
    /// What `p99_ns` should not exceed for small calls beside bulk, nanoseconds: twice the median alone, and one slice of the bulk alone; median of
    /// the rounds. None for all else.
    pub bound_ns: Option<f64>,
    /// Median of the floor before and after the rounds, nanoseconds.
    pub floor_ns: f64,
    /// How many rounds this is about.
    pub rounds: usize,
}

/// The document of `--json`.
#[derive(Debug, Serialize)]
pub struct Document {
    /// Of the command.
    #[serde(flatten)]
    pub version: Version,
    /// The RDMA device.
    pub device: String,
    /// Why that one.
    pub why: String,
    /// Processors that could be used.
    pub processors: usize,
    /// Pairs of processes that were started, one after the other.
    pub launches: usize,
    /// Whether it was a quick run.
    pub quick: bool,
    /// What to know before believing any of it.
    pub notes: Vec<String>,
    /// The results.
    pub records: Vec<Record>,
}

impl Document {
    /// An empty one.
    pub fn new(launches: usize, quick: bool) -> Document {
        Document {
            version: VERSION,
            device: String::new(),
            why: String::new(),
            processors: crate::placement::processors(),
            launches,
            quick,
            notes: Vec::new(),
            records: Vec::new(),
        }
    }

    /// For people.
    pub fn table(&self) -> String {
        let mut out = String::new();
        if !self.device.is_empty() {
            let _ = writeln!(out, "device  {} ({})\n", self.device, self.why);
        }
        let wide = |pick: fn(&Record) -> usize| self.records.iter().map(pick).max().unwrap_or(0);
        let name = wide(|r| r.name.len());
        let server = self.records.iter().any(|r| r.server_busy_ns.is_some());
        let _ = writeln!(
            out,
            "{:<name$}  mode        p50        p99         rate{}   ratio  to",
            "case",
            if server { "  server busy" } else { "" }
        );
        for r in &self.records {
            let ratio = r.ratio.map_or("-".to_owned(), |r| format!("{r:.2}"));
            let line = format!(
                "{:<name$}  {:<5} {:>10} {:>10} {:>12}{} {:>7}  {}",
                r.name,
                r.mode.name(),
                time(r.p50_ns),
                time(r.p99_ns),
                rate(r.rate),
                if server {
                    format!(" {:>12}", r.server_busy_ns.map_or("-".to_owned(), time))
                } else {
                    String::new()
                },
                ratio,
                r.baseline.as_deref().unwrap_or_default()
            );
            let slowest = r
                .slowest
                .map(|share| format!(", slowest client {share:.2}"));
            let bound = r.bound_ns.map(|ns| format!(", p99 bound {}", time(ns)));
            let of_its_own = [slowest, bound, limits(r)];
            let line = line + &of_its_own.map(Option::unwrap_or_default).concat();
            let _ = writeln!(out, "{}", line.trim_end());
        }
        if !self.notes.is_empty() {
            out.push('\n');
        }
        for note in &self.notes {
            let _ = writeln!(out, "note: {note}");
        }
        out
    }
}

/// Of calls after a pause: what they may take, and whether they do.
fn limits(record: &Record) -> Option<String> {
    let says = |what: &str, is: f64, limit: f64| {
        let holds = if is <= limit { "holds" } else { "exceeds" };
        format!("{what} {holds} {}", time(limit))
    };
    let p50 = says("p50", record.p50_ns, record.limit_p50_ns?);
    let p99 = says("p99", record.p99_ns, record.limit_p99_ns?);
    Some(format!(", {p50}, {p99}"))
}

fn time(ns: f64) -> String {
    match ns {
        ..1e3 => format!("{ns:.0} ns"),
        ..1e6 => format!("{:.2} µs", ns / 1e3),
        _ => format!("{:.2} ms", ns / 1e6),
    }
}

fn rate(rate: f64) -> String {
    match rate {
        ..1e3 => format!("{rate:.0} /s"),
        ..1e6 => format!("{:.1} k/s", rate / 1e3),
        _ => format!("{:.2} M/s", rate / 1e6),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(ratio: Option<f64>) -> Record {
        Record {
            name: "verbs/send/64B/pingpong".into(),
            device: "soft0".into(),
            mode: Mode::Near,
            p50_ns: 150.0,
            p99_ns: 1234.0,
            rate: 6_500_000.0,
            baseline: Some("shm/64B/pingpong".into()),
            ratio,
            baseline_p50_ns: Some(80.0),
            baseline_rate: Some(12e6),
            server_busy_ns: Some(61.5),
            slowest: Some(0.9375),
            limit_p50_ns: Some(140.0),
            limit_p99_ns: Some(1300.0),
            baseline_p99_ns: Some(160.0),
            bound_ns: Some(11_500.0),
            floor_ns: 80.0,
            rounds: 30,
        }
    }

    #[test]
    fn a_record_has_the_fields_that_programs_look_for() {
        let json = serde_json::to_value(record(Some(1.875))).unwrap();
        assert_eq!(json["name"], "verbs/send/64B/pingpong");
        assert_eq!(json["device"], "soft0");
        assert_eq!(json["mode"], "near");
        assert_eq!(json["p50_ns"], 150.0);
        assert_eq!(json["p99_ns"], 1234.0);
        assert_eq!(json["rate"], 6_500_000.0);
        assert_eq!(json["baseline"], "shm/64B/pingpong");
        assert_eq!(json["ratio"], 1.875);
        assert_eq!(json["server_busy_ns"], 61.5);
        assert_eq!(json["slowest"], 0.9375);
        assert_eq!(json["limit_p50_ns"], 140.0);
        assert_eq!(json["limit_p99_ns"], 1300.0);
        assert_eq!(json["baseline_p99_ns"], 160.0);
        assert_eq!(json["bound_ns"], 11_500.0);
        let json = serde_json::to_value(record(None)).unwrap();
        assert!(json["ratio"].is_null() && json.get("ratio").is_some());
    }

    #[test]
    fn the_table_has_units_and_the_document_says_where_it_comes_from() {
        let mut document = Document::new(3, false);
        document.device = "soft0".into();
        document.records = vec![record(Some(1.875)), record(None)];
        document.notes = vec!["one processor".into()];
        let table = document.table();
        for part in [
            "150 ns",
            "1.23 µs",
            "6.50 M/s",
            "server busy",
            "62 ns",
            "slowest client 0.94, p99 bound 11.50 µs, p50 exceeds 140 ns, p99 holds 1.30 µs",
            "1.88  shm/64B/pingpong",
            "note: one",
        ] {
            assert!(table.contains(part), "{part}: {table}");
        }
        let json = serde_json::to_value(&document).unwrap();
        for name in [
            "version",
            "git",
            "device",
            "processors",
            "launches",
            "notes",
            "records",
        ] {
            assert!(!json[name].is_null(), "{name}");
        }
    }

    #[test]
    fn times_and_rates_are_shown_in_units_that_fit() {
        assert_eq!(
            [80.0, 1500.0, 2e6].map(time),
            ["80 ns", "1.50 µs", "2.00 ms"]
        );
        assert_eq!(
            [500.0, 1500.0, 2e6].map(rate),
            ["500 /s", "1.5 k/s", "2.00 M/s"]
        );
    }
}
