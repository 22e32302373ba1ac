//! What the demonstration found, for people and for programs.

use serde::{Deserialize, Serialize};
use std::fmt::Write as _;

use super::latency::Percentiles;
use crate::version::{VERSION, Version};

/// What the client hands to the process that started it.
#[derive(Debug, Serialize, Deserialize)]
pub struct Outcome {
    /// The device the client used.
    pub device: String,
    /// Why that one.
    pub why: String,
    /// Files sent.
    pub files: u64,
    /// Bytes of those files.
    pub bytes: u64,
    /// Files whose checksums were compared at both ends and found equal.
    pub files_verified: u64,
    /// Duration of sending everything, seconds.
    pub send_seconds: f64,
    /// Duration of reading everything back, seconds.
    pub read_back_seconds: f64,
    /// What was left out or went wrong with single files.
    pub notes: Vec<String>,
    /// Round trips of the RPC.
    pub echo: Vec<Percentiles>,
    /// Round trips of a spinning Unix socket between the same processes.
    pub unix_socket: Vec<Percentiles>,
}

/// The document of `--json`.
#[derive(Debug, Serialize)]
pub struct Report<'a> {
    #[serde(flatten)]
    version: Version,
    /// The directory that was sent.
    dir: String,
    /// Whether every file that was sent had its checksum compared at both ends, and all were equal.
    verified: bool,
    /// Bytes sent and read back per second of both, in MB (1,000,000 bytes).
    mb_per_s: f64,
    #[serde(flatten)]
    outcome: &'a Outcome,
}

impl<'a> Report<'a> {
    /// Sums up.
    pub fn new(dir: &std::path::Path, outcome: &'a Outcome) -> Report<'a> {
        let seconds = outcome.send_seconds + outcome.read_back_seconds;
        Report {
            version: VERSION,
            dir: dir.display().to_string(),
            verified: outcome.files > 0 && outcome.files_verified == outcome.files,
            mb_per_s: if seconds > 0.0 {
                2.0 * outcome.bytes as f64 / 1e6 / seconds
            } else {
                0.0
            },
            outcome,
        }
    }

    /// See the field.
    pub fn verified(&self) -> bool {
        self.verified
    }

    /// The table at the end.
    pub fn table(&self) -> String {
        let o = self.outcome;
        let mut out = String::new();
        for note in o.notes.iter().take(MAX_NOTES) {
            let _ = writeln!(out, "note: {note}");
        }
        if o.notes.len() > MAX_NOTES {
            let _ = writeln!(
                out,
                "note: and {} more (--json has all)",
                o.notes.len() - MAX_NOTES
            );
        }
        let _ = write!(
            out,
            "\n\
             directory   {}\n\
             device      {} ({})\n\
             files       {}\n\
             bytes       {}\n\
             speed       {:.0} MB/s, sent and read back\n\
             checksums   {}\n\n",
            self.dir,
            o.device,
            o.why,
            grouped(o.files),
            grouped(o.bytes),
            self.mb_per_s,
            if self.verified {
                "all equal at both ends".to_owned()
            } else {
                format!("NOT all equal: {} of {} files", o.files_verified, o.files)
            },
        );
        let _ = writeln!(out, "round trip     size       p50       p99");
        for (name, rows) in [("rpc", &o.echo), ("unix socket", &o.unix_socket)] {
            for row in rows {
                let _ = writeln!(
                    out,
                    "{name:<12} {:>6} {:>9} {:>9}",
                    size(row.size),
                    micros(row.p50_ns),
                    micros(row.p99_ns)
                );
            }
        }
        out
    }
}

/// Notes on single files that are printed; a tree can have thousands.
const MAX_NOTES: usize = 5;

fn micros(ns: u64) -> String {
    format!("{:.2} µs", ns as f64 / 1e3)
}

fn size(bytes: usize) -> String {
    if bytes.is_multiple_of(1024) {
        format!("{} KiB", bytes / 1024)
    } else {
        format!("{bytes} B")
    }
}

/// Digits in groups of three.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut out = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(files: u64, files_verified: u64) -> Outcome {
        let row = |size, p50_ns| Percentiles {
            size,
            p50_ns,
            p99_ns: 2 * p50_ns,
            count: 1,
        };
        Outcome {
            device: "soft0".into(),
            why: "no hardware".into(),
            files,
            bytes: 3_000_000,
            files_verified,
            send_seconds: 1.0,
            read_back_seconds: 2.0,
            notes: (0..7).map(|i| format!("note {i}")).collect(),
            echo: vec![row(64, 900), row(4096, 1234)],
            unix_socket: vec![row(64, 5000)],
        }
    }

    #[test]
    fn is_verified_only_if_every_file_is() {
        let dir = std::path::Path::new("/d");
        for (files, verified) in [(3, 3), (3, 2), (1, 0), (0, 0)] {
            let outcome = outcome(files, verified);
            let report = Report::new(dir, &outcome);
            assert_eq!(report.verified(), files > 0 && files == verified);
            assert_ne!(report.table().contains("NOT"), report.verified());
        }
    }

    #[test]
    fn the_document_has_the_names_that_programs_look_for() {
        let outcome = outcome(3, 3);
        let json = serde_json::to_value(Report::new(std::path::Path::new("/d"), &outcome)).unwrap();
        for name in [
            "version",
            "git",
            "rdma_core",
            "device",
            "why",
            "files",
            "bytes",
            "verified",
            "mb_per_s",
        ] {
            assert!(!json[name].is_null(), "{name}");
        }
        assert_eq!(json["mb_per_s"], 2.0);
        assert_eq!(json["echo"][1]["size"], 4096);
        assert_eq!(json["unix_socket"][0]["p99_ns"], 10_000);
    }

    #[test]
    fn the_table_shows_units_and_cuts_long_lists() {
        let outcome = outcome(1_234_567, 1_234_567);
        let table = Report::new(std::path::Path::new("/d"), &outcome).table();
        assert!(table.contains("1,234,567"), "{table}");
        assert!(table.contains("4 KiB   1.23 µs   2.47 µs"), "{table}");
        assert!(table.contains("and 2 more"), "{table}");
        assert!(!table.contains("note 5"), "{table}");
    }
}
