//! `verbatim bench`: the library beside what it stands on and what it competes with, in one run.
//!
//! This process starts a pair of processes, one that measures and one that answers, each bound to a processor of its own; for
//! a full run three pairs, one after the other. In a pair, each case takes turns with what it is compared with:
//!
//! ```text
//!   floor | case  baseline | floor | case  baseline | floor | ...
//!         '---- round ----'        '---- round ----'
//! ```
//!
//! `rounds` says why, `measure` how a round is timed, `case` what there is.

mod burst;
mod calls;
mod case;
mod client;
mod control;
mod death;
mod floor;
mod link;
mod load;
mod measure;
mod names;
mod page;
mod pool;
mod record;
mod rounds;
mod server;
mod shape;
mod socket;
mod spin;
mod wake;
mod workload;

use anyhow::{Context, Result, anyhow, bail};
use std::ffi::OsString;
use std::io::{IsTerminal, Write};
use std::os::unix::net::UnixStream;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use crate::cli::BenchArgs;
use crate::output::{self, JsonTarget};
use crate::placement;
use crate::process::{self, Event, Process, Signals};
use case::Case;
use client::Line;
use load::Load;
use record::Document;
use rounds::{Round, summarise};

pub use client::run as client;
pub use server::run as server;

/// How much is measured.
struct Plan {
    launches: usize,
    /// Rounds of one mode, for each case.
    rounds: usize,
    /// How long a case is measured in a round.
    round: Duration,
    /// After which a launch hurries: each case gets its share, and one round at least.
    limit: Duration,
    /// What that is for each case, if there are many.
    share: Duration,
}

const FULL: Plan = Plan {
    launches: 3,
    rounds: 30,
    round: Duration::from_millis(10),
    limit: Duration::from_secs(120),
    share: Duration::from_secs(3),
};

const QUICK: Plan = Plan {
    launches: 1,
    rounds: 15,
    round: Duration::from_millis(5),
    limit: Duration::from_secs(35),
    share: Duration::from_secs(1),
};

/// No case takes so long, unless something hangs.
const HANG_LIMIT: Duration = Duration::from_secs(300);
/// How long a process whose work is done may take to exit.
const EXIT_LIMIT: Duration = Duration::from_secs(30);

/// Above this many processors' worth of other work the figures are not worth much.
const BUSY: f64 = 0.1;

/// Runs the benchmark.
pub fn run(args: &BenchArgs) -> Result<ExitCode> {
    if args.list {
        // All of them, also those that a run without a filter leaves out.
        let cases = cases(args.filter.as_deref().or(Some("")))?;
        let names: Vec<_> = cases.iter().map(|case| format!("{case}\n")).collect();
        output::print(&names.concat())?;
        return Ok(ExitCode::SUCCESS);
    }
    let cases = cases(args.filter.as_deref())?;
    let mut plan = if args.quick { QUICK } else { FULL };
    plan.rounds = args.rounds.unwrap_or(plan.rounds).max(1);
    let many = u32::try_from(cases.len()).unwrap_or(u32::MAX);
    plan.limit = plan.limit.max(plan.share * many);
    plan.round = args.round_us.map_or(plan.round, Duration::from_micros);
    let json = args.json.as_deref().map(JsonTarget::prepare).transpose()?;
    let signals = Signals::block().context("signals cannot be taken in")?;

    let load = Load::begin();
    let mut document = Document::new(plan.launches, args.quick);
    let mut taken: Vec<Vec<Vec<Round>>> = vec![Vec::new(); cases.len()];
    let mut progress = Progress::new(plan.launches * cases.len());
    for _ in 0..plan.launches {
        let launched = launch(
            &plan,
            &cases,
            args.device.as_deref(),
            &signals,
            |line| match line {
                Line::Device(device, why) => (document.device, document.why) = (device, why),
                Line::Case(case, rounds) => {
                    progress.step(case);
                    if let Some(i) = cases.iter().position(|c| *c == case) {
                        taken[i].push(rounds);
                    }
                }
            },
        );
        progress.clear();
        if let Some(signal) = launched? {
            eprintln!("verbatim: interrupted; all processes are ended");
            return Ok(ExitCode::from(128 + u8::try_from(signal).unwrap_or(0)));
        }
    }
    for (&case, launches) in cases.iter().zip(&taken) {
        document
            .records
            .extend(summarise(case, &document.device, launches));
    }
    document.notes = doubts(&load);
    match &json {
        Some(JsonTarget::Stdout) => eprint!("{}", document.table()),
        _ => output::print(&document.table())?,
    }
    if let Some(json) = &json {
        json.write(&document)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The cases to measure.
fn cases(filter: Option<&str>) -> Result<Vec<Case>> {
    let Some(filter) = filter else {
        return Ok(Case::usual());
    };
    let named = |case: &Case| case.to_string().contains(filter);
    let chosen: Vec<_> = Case::all().into_iter().filter(named).collect();
    if chosen.is_empty() {
        let names: Vec<_> = Case::all().iter().map(ToString::to_string).collect();
        bail!(
            "--filter {filter}: no case has that in its name; {}",
            names::instead_of(filter, &names)
        );
    }
    Ok(chosen)
}

/// Why the figures may not be worth much.
fn doubts(load: &Load) -> Vec<String> {
    let mut doubts = Vec::new();
    if placement::allowed().len() < 2 || placement::processors() < 2 {
        doubts.push(
            "both ends share one processor, so each look for an answer yields it: the figures are not worth much".to_owned(),
        );
    }
    if let Some(others) = load.others().filter(|others| *others > BUSY) {
        doubts.push(format!(
            "other work kept {others:.1} processors busy meanwhile: the figures are not worth much; run it again on a quiet machine"
        ));
    }
    doubts
}

/// One pair of processes, from start to end. Gives the signal that ended it, if one did.
fn launch(
    plan: &Plan,
    cases: &[Case],
    device: Option<&str>,
    signals: &Signals,
    mut each: impl FnMut(Line),
) -> Result<Option<i32>> {
    let (server_end, client_end) = UnixStream::pair().context("no socket pair can be made")?;
    let mut server = Process::start("answering", ["bench-server"], device, server_end.into())?;
    let mut arguments: Vec<OsString> = vec![
        "bench-client".into(),
        "--rounds".into(),
        plan.rounds.to_string().into(),
        "--round-us".into(),
        plan.round.as_micros().to_string().into(),
        "--limit-ms".into(),
        plan.limit.as_millis().to_string().into(),
    ];
    arguments.extend(cases.iter().map(|case| case.to_string().into()));
    let mut client = Process::start("measuring", arguments, device, client_end.into())?;

    let mut read = 0;
    let mut quiet_since = Instant::now();
    loop {
        let left = HANG_LIMIT.saturating_sub(quiet_since.elapsed());
        match process::wait(&mut [&mut client, &mut server], signals, Some(left))? {
            Some(Event::Output(0)) => {
                quiet_since = Instant::now();
                while let Some(len) = client.output()[read..].iter().position(|&b| b == b'\n') {
                    let line = &client.output()[read..read + len];
                    each(
                        serde_json::from_slice(line)
                            .context("the measuring process reported nonsense")?,
                    );
                    read += len + 1;
                }
            }
            Some(Event::End(0)) => break,
            Some(Event::End(_)) => {
                server.finish(EXIT_LIMIT)?;
                bail!("the answering process ended before the measuring one was done");
            }
            Some(Event::Signal(signal)) => return Ok(Some(signal)),
            Some(Event::Output(_)) => {}
            None => bail!(
                "nothing was heard of the measuring process for {} s; both are ended",
                HANG_LIMIT.as_secs()
            ),
        }
    }
    if let Err(error) = client.finish(EXIT_LIMIT) {
        // Often only the consequence of the other's end.
        return Err(match server.failure() {
            Some(cause) => anyhow!("{cause}; then {error}"),
            None => error,
        });
    }
    server.finish(EXIT_LIMIT)?;
    Ok(None)
}

/// How far it is, on a terminal.
struct Progress {
    done: usize,
    total: usize,
    shown: bool,
}

impl Progress {
    fn new(total: usize) -> Progress {
        Progress {
            done: 0,
            total,
            shown: std::io::stderr().is_terminal(),
        }
    }

    fn step(&mut self, case: Case) {
        self.done += 1;
        if self.shown {
            // Nobody may be reading; the result does not depend on it.
            let _ = write!(
                std::io::stderr(),
                "\r\x1b[K{}/{} {case}",
                self.done,
                self.total
            );
        }
    }

    fn clear(&self) {
        if self.shown {
            let _ = write!(std::io::stderr(), "\r\x1b[K");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_chooses_by_name_and_one_that_fits_nothing_is_an_error() {
        let names = |filter| -> Vec<String> {
            let cases = cases(filter).unwrap();
            cases.iter().map(ToString::to_string).collect()
        };
        assert_eq!(names(Some("shm")), ["shm/64B/pingpong"]);
        assert_eq!(
            names(Some("-blocking/")),
            ["unix-blocking/64B/pingpong", "tcp-blocking/64B/pingpong"]
        );
        let usual = names(None);
        assert!(usual.len() < names(Some("/")).len());
        assert!(usual.contains(&"rpc/write_imm/64B/burst".to_owned()));
        let error = cases(Some("nonsense")).unwrap_err().to_string();
        assert!(error.contains("nonsense") && error.contains("verbs/read/64B"));
    }
}
