//! The process that measures: opens each case and what it is compared with, and takes rounds in turn. Prints a line of JSON for
//! each case, for the process that started it.

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use super::burst::Bursts;
use super::calls::Caller;
use super::case::Case;
use super::control::{Command, Control, Hello};
use super::death::{self, Waiting};
use super::floor::Floor;
use super::link::{Host, Link, Reader};
use super::measure::Figures;
use super::pool::{self, Measured};
use super::rounds::{Mode, Round, median};
use super::socket::Socket;
use super::wake::Waker;
use crate::cli::BenchClientArgs;
use crate::output;
use crate::placement::{self, End as Processor};

/// What is printed.
#[derive(Debug, Serialize, Deserialize)]
pub enum Line {
    /// The device, once it is open, and why that one.
    Device(String, String),
    /// The rounds of a case.
    Case(Case, Vec<Round>),
}

/// The end of a case that measures.
enum End {
    Floor(Floor),
    Link(Box<Link>),
    Reader(Box<Reader>),
    Caller(Box<Caller>),
    Socket(Socket),
    Waker(Waker),
    /// Of one process.
    Alone(Measured),
    /// Each round has an end of its own.
    Death(Waiting),
}

/// Runs all cases it is given.
pub fn run(args: &BenchClientArgs) -> Result<ExitCode> {
    placement::bind_always(Processor::Client);
    let mut bench = Bench {
        control: Control::from_stdin()?,
        host: None,
        next_slot: 0,
    };
    let cases: Vec<Case> = args
        .cases
        .iter()
        .map(|name| Case::named(name).with_context(|| format!("{name}: no such case")))
        .collect::<Result<_>>()?;
    let end = Instant::now() + Duration::from_millis(args.limit_ms);
    let mut floor = bench.floor(Duration::from_micros(args.round_us))?;
    for (i, &case) in cases.iter().enumerate() {
        let left = end.saturating_duration_since(Instant::now());
        let share = left / u32::try_from(cases.len() - i)?;
        let rounds = bench
            .case(case, &mut floor, args, share)
            .with_context(|| case.to_string())?;
        output::print(&format!(
            "{}\n",
            serde_json::to_string(&Line::Case(case, rounds))?
        ))?;
    }
    Ok(ExitCode::SUCCESS)
}

struct Bench {
    control: Control,
    /// Opened when a case needs it.
    host: Option<Host>,
    next_slot: usize,
}

/// Pages tried for the floor.
const CANDIDATES: usize = 8;
/// How often each is tried.
const TRIES: usize = 3;

/// A case that is open.
struct Open {
    slot: usize,
    end: End,
}

impl Bench {
    /// Rounds until there are enough of one mode, twice as many in all, or time is over; one at least.
    fn case(
        &mut self,
        case: Case,
        floor: &mut Open,
        args: &BenchClientArgs,
        share: Duration,
    ) -> Result<Vec<Round>> {
        let end = Instant::now() + share;
        let round = Duration::from_micros(args.round_us);
        let probe = round / 5;
        // The floor is open all the time.
        let mut open = |case| match case {
            None | Some(Case::Floor) => Ok(None),
            Some(case) => self.open(case).map(Some),
        };
        let mut subject = open(Some(case))?;
        let mut baseline = open(case.baseline())?;
        let mut rounds = Vec::new();
        let mut before_ns = self.round(floor, probe)?.p50_ns;
        loop {
            let of_case = self.round(subject.as_mut().unwrap_or(floor), round)?;
            let of_baseline = match case.baseline() {
                Some(_) => Some(self.round(baseline.as_mut().unwrap_or(floor), round)?),
                None => None,
            };
            let after_ns = self.round(floor, probe)?.p50_ns;
            rounds.push(Round {
                before_ns,
                after_ns,
                case: of_case,
                baseline: of_baseline,
            });
            before_ns = after_ns;
            let of = |mode| rounds.iter().filter(|r| r.mode() == mode).count();
            if of(Mode::Near).max(of(Mode::Far)) >= args.rounds
                || rounds.len() >= 2 * args.rounds
                || Instant::now() >= end
            {
                break;
            }
        }
        for open in [subject, baseline].into_iter().flatten() {
            self.close(open)?;
        }
        Ok(rounds)
    }

    /// The floor. On some pages of physical memory a line takes half as long again as on others, so several are tried, in turn,
    /// and the quickest is kept: what everything is compared with should not depend on luck.
    fn floor(&mut self, round: Duration) -> Result<Open> {
        let mut candidates = Vec::new();
        for _ in 0..CANDIDATES {
            candidates.push((self.open(Case::Floor)?, Vec::new()));
        }
        for _ in 0..TRIES {
            for (floor, times) in &mut candidates {
                times.push(self.round(floor, round / 5)?.p50_ns);
            }
        }
        candidates.sort_by_key(|(_, times)| median(times.iter().copied()) as u64);
        let mut sorted = candidates.into_iter().map(|(floor, _)| floor);
        let best = sorted.next().context("no floor was tried")?;
        for other in sorted {
            self.close(other)?;
        }
        Ok(best)
    }

    fn host(&mut self) -> Result<&Host> {
        if self.host.is_none() {
            let host = Host::open()?;
            let device = &host.device;
            let line = Line::Device(
                device.device_name().to_owned(),
                device.chosen_because().to_owned(),
            );
            output::print(&format!("{}\n", serde_json::to_string(&line)?))?;
            self.host = Some(host);
        }
        self.host.as_ref().context("the device is not open")
    }

    /// Opens both ends.
    fn open(&mut self, case: Case) -> Result<Open> {
        let slot = self.next_slot;
        self.next_slot += 1;
        let end = match case {
            Case::Floor => {
                let (floor, path) = Floor::create()?;
                let hello = Hello {
                    address: Some(path),
                    ..Hello::default()
                };
                self.control.open(slot, case, hello)?;
                End::Floor(floor)
            }
            Case::Verbs { verb, size, flow } => {
                let mut link = Link::new(self.host()?, verb, size, flow)?;
                let theirs = self.control.open(slot, case, link.hello())?;
                link.connect(&theirs)?;
                End::Link(Box::new(link))
            }
            Case::Read => {
                let mut reader = Reader::new(self.host()?)?;
                let theirs = self.control.open(slot, case, reader.hello())?;
                reader.connect(&theirs)?;
                End::Reader(Box::new(reader))
            }
            Case::Rpc(calls) => {
                let (bursts, page) = Bursts::create()?;
                let hello = Hello {
                    address: Some(page),
                    ..Hello::default()
                };
                let theirs = self.control.open(slot, case, hello)?;
                let caller = Caller::connect(self.host()?, &theirs, calls, bursts)?;
                End::Caller(Box::new(caller))
            }
            Case::Wake => {
                let (mut waker, page) = Waker::create()?;
                let hello = Hello {
                    address: Some(page),
                    ..Hello::default()
                };
                let theirs = self.control.open(slot, case, hello)?;
                waker.wakes(theirs.pid.context("the other process has no number")?);
                End::Waker(waker)
            }
            Case::Socket { family, blocking } => {
                let theirs = self.control.open(slot, case, Hello::default())?;
                let address = theirs.address.context("the socket has no address")?;
                End::Socket(Socket::connect(family, &address, blocking)?)
            }
            Case::Alloc { by, pattern, size } => {
                let pool = match by {
                    pool::Allocator::Pool => Some(&self.host()?.pool),
                    _ => None,
                };
                End::Alone(pool::allocations(by, pattern, size, pool)?)
            }
            Case::Register(size) => End::Alone(pool::registrations(&self.host()?.pd, size)),
            Case::Death(waiting) => {
                self.host()?;
                End::Death(waiting)
            }
        };
        Ok(Open { slot, end })
    }

    fn round(&mut self, open: &mut Open, limit: Duration) -> Result<Figures> {
        // The others' ends answer by themselves.
        let answered = match open.end {
            End::Floor(_) | End::Link(_) | End::Socket(_) => true,
            End::Reader(_) | End::Caller(_) | End::Alone(_) | End::Death(_) | End::Waker(_) => {
                false
            }
        };
        if answered {
            self.control.say(&Command::Run(open.slot))?;
        }
        let figures = match &mut open.end {
            End::Floor(floor) => floor.round(limit)?,
            End::Link(link) => link.round(limit)?,
            End::Reader(reader) => reader.round(limit)?,
            End::Caller(caller) => caller.round(limit)?,
            End::Socket(socket) => socket.round(limit)?,
            End::Waker(waker) => waker.round(limit)?,
            End::Alone(measured) => measured(limit)?,
            End::Death(waiting) => death::round(self.host()?, *waiting)?,
        };
        if answered {
            self.control.done()?;
        }
        Ok(figures)
    }

    fn close(&mut self, open: Open) -> Result<()> {
        drop(open.end);
        self.control.say(&Command::Close(open.slot))?;
        self.control.done()
    }
}
