//! `verbatim demo`: real files through all layers, between two processes.
//!
//! This process starts the server and the client, watches both, and prints what the client found. The
//! two also hold the ends of a socket pair: for the baseline, and for the server to see that the client is done.

mod client;
mod latency;
mod progress;
mod report;
mod safe_path;
mod scratch;
mod server;
mod socket_echo;
mod store;
mod transfer;
mod tree;
mod wire;

use anyhow::{Context, Result, anyhow, bail};
use std::ffi::OsString;
use std::os::unix::net::UnixStream;
use std::process::ExitCode;
use std::time::Duration;

use crate::cli::DemoArgs;
use crate::output::{self, JsonTarget};
use crate::process::{self, Event, Process, Signals};
use report::{Outcome, Report};
use scratch::Scratch;

pub use client::run as client;
pub use server::run as server;

/// How long the server may take to come up. It opens the device and registers its memory.
const START_LIMIT: Duration = Duration::from_secs(60);
/// How long a process whose work is done may take to exit.
const EXIT_LIMIT: Duration = Duration::from_secs(30);

/// How long a call may take, milliseconds: far above what one takes, so that only a hang meets it.
const CALL_LIMIT_MS: u64 = 60_000;

/// Runs the demonstration.
pub fn run(args: &DemoArgs) -> Result<ExitCode> {
    let (dir, leave_out) = match &args.dir {
        Some(dir) => (tree::named_directory(dir)?, &[][..]),
        None => tree::default_directory()?,
    };
    let json = args.json.as_deref().map(JsonTarget::prepare).transpose()?;
    let signals = Signals::block().context("signals cannot be taken in")?;
    // Declared before the processes, hence removed after they are gone.
    let scratch = Scratch::create()?;

    let (server_end, client_end) = UnixStream::pair().context("no socket pair can be made")?;
    let device = args.device.as_deref();
    let mut server = Process::start(
        "server",
        [
            "demo-server".into(),
            "--scratch".into(),
            OsString::from(scratch.path()),
        ],
        device,
        server_end.into(),
    )?;
    let address = match address_of(&mut server, &signals)? {
        Ok(address) => address,
        Err(signal) => return Ok(interrupted(signal)),
    };

    let mut arguments: Vec<OsString> = vec![
        "demo-client".into(),
        "--server".into(),
        address.into(),
        "--dir".into(),
        dir.clone().into(),
    ];
    for name in leave_out {
        arguments.extend(["--leave-out".into(), OsString::from(name)]);
    }
    let mut client = Process::start("client", arguments, device, client_end.into())?;

    // Until the client has ended; the server must not end before it.
    loop {
        match process::wait(&mut [&mut client, &mut server], &signals, None)? {
            Some(Event::End(0)) => break,
            Some(Event::End(_)) => {
                server.finish(EXIT_LIMIT)?;
                bail!("the server process ended before the client was done");
            }
            Some(Event::Signal(signal)) => return Ok(interrupted(signal)),
            Some(Event::Output(_)) | None => {}
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
    let outcome: Outcome =
        serde_json::from_slice(client.output()).context("the client process reported nonsense")?;
    finish(&Report::new(&dir, &outcome), json.as_ref())
}

/// The address that the server says it listens on, or the signal that came before it.
fn address_of(server: &mut Process, signals: &Signals) -> Result<Result<String, i32>> {
    loop {
        match process::wait(&mut [server], signals, Some(START_LIMIT))? {
            Some(Event::Output(_)) => {
                if let Some(line) = server.output().strip_suffix(b"\n") {
                    let line = String::from_utf8(line.to_vec())
                        .context("the server process speaks nonsense")?;
                    return Ok(Ok(line));
                }
            }
            Some(Event::End(_)) => {
                server.finish(EXIT_LIMIT)?;
                bail!("the server process ended before it listened");
            }
            Some(Event::Signal(signal)) => return Ok(Err(signal)),
            None => bail!(
                "the server process did not start within {} s",
                START_LIMIT.as_secs()
            ),
        }
    }
}

fn interrupted(signal: i32) -> ExitCode {
    eprintln!("verbatim: interrupted; both processes are ended and the scratch folder is removed");
    ExitCode::from(128 + u8::try_from(signal).unwrap_or(0))
}

fn finish(report: &Report<'_>, json: Option<&JsonTarget>) -> Result<ExitCode> {
    match json {
        Some(JsonTarget::Stdout) => eprint!("{}", report.table()),
        _ => output::print(&report.table())?,
    }
    if let Some(json) = json {
        json.write(report)?;
    }
    if !report.verified() {
        bail!("not every checksum was equal: files were damaged on the way");
    }
    Ok(ExitCode::SUCCESS)
}
