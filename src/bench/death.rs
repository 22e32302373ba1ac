//! How soon the death of a process is known to those that wait for it.
//!
//! Each round starts a process like the one that answers, lets work wait for it, kills it, and takes the time from the kill until
//! the last piece of that work has ended with its error. In it is what the system needs to end a process. Whoever waits sleeps:
//! that is how a program meets it, and a thread that polls has nothing to do with it.

use anyhow::{Context, Result, bail, ensure};
use serde::{Deserialize, Serialize};
use std::any::Any;
use std::fmt;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};
use verbatim::mempool::Buf;
use verbatim::rpc::{CallError, Client, Deadline, Method, Request, Responder, Server};
use verbatim::verbs::{Endpoint, WcStatus};

use super::case::Case;
use super::control::{Control, Hello};
use super::link::Host;
use super::measure::Figures;
use super::record::Record;
use super::rounds::{Mode, Round, record};
use super::shape::Size;
use crate::process::Process;
use crate::quantile::nearest_rank;

/// What waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Waiting {
    /// A SEND, for a receive; it fails with `RETRY_EXC_ERR`.
    Send,
    /// Calls, for replies.
    Calls,
}

/// Calls on their way when the server is killed.
const CALLS: usize = 16;

/// Is answered.
const ECHO: Method = Method(1);
/// Is not answered.
const HOLD: Method = Method(2);

/// Far above what is promised, which is a second, so that only a hang meets it.
const LIMIT: Duration = Duration::from_secs(60);

/// The end that is killed, which has connected or can be connected to.
pub fn victim(host: &Host, waiting: Waiting, theirs: &Hello) -> Result<(Box<dyn Any>, Hello)> {
    let pid = Some(std::process::id());
    match waiting {
        Waiting::Send => {
            let cq = host.device.cq(2).build()?;
            let ready = host.pd.rc(&cq).send_depth(1).recv_depth(1).build()?;
            let endpoint = Some(ready.endpoint().to_bytes().to_vec());
            let peer = Endpoint::from_bytes(theirs.endpoint.as_deref().unwrap_or_default())?;
            // Without a receive.
            let queues = ready.connect::<Buf, Buf>(&peer)?;
            let hello = Hello {
                endpoint,
                pid,
                ..Hello::default()
            };
            Ok((Box::new((queues, cq)), hello))
        }
        Waiting::Calls => {
            let server = Server::bind("127.0.0.1:0")?
                .pool(&host.pd, &host.pool)
                .serve(|_core| {
                    let mut held = Vec::new();
                    move |request: Request<'_>, responder: Responder| match request.method() {
                        ECHO => responder.reply(()),
                        _ => held.push(responder),
                    }
                })?;
            let hello = Hello {
                address: Some(server.local_addr().to_string()),
                pid,
                ..Hello::default()
            };
            Ok((Box::new(server), hello))
        }
    }
}

/// Kills one.
pub fn round(host: &Host, waiting: Waiting) -> Result<Figures> {
    let (here, there) = UnixStream::pair().context("no socket pair can be made")?;
    // The device is in the environment.
    let victim = Process::start("dying", ["bench-server"], None, there.into())?;
    let mut control = Control::new(here)?;
    let took = match waiting {
        Waiting::Send => send(host, &mut control)?,
        Waiting::Calls => calls(host, &mut control)?,
    };
    drop(victim);
    let ns = took.as_nanos() as f64;
    Ok(Figures {
        p50_ns: ns,
        p99_ns: ns,
        rate: 1e9 / ns,
        server_busy_ns: None,
        slowest: None,
        busy: None,
        slice_ns: None,
    })
}

fn send(host: &Host, control: &mut Control) -> Result<Duration> {
    let channel = host.device.channel()?;
    let mut cq = host.device.cq(2).channel(&channel).build()?;
    let ready = host.pd.rc(&cq).send_depth(1).recv_depth(1).build()?;
    let hello = Hello {
        endpoint: Some(ready.endpoint().to_bytes().to_vec()),
        ..Hello::default()
    };
    let theirs = control.open(0, Case::Death(Waiting::Send), hello)?;
    let peer = Endpoint::from_bytes(theirs.endpoint.as_deref().unwrap_or_default())?;
    let (mut tx, _rx) = ready.connect::<Buf, Buf>(&peer)?;
    let message = host.pool.alloc_zeroed(Size::B64.bytes())?;
    tx.send(message).signaled().post()?;
    ensure!(cq.poll()?.is_none(), "a message without a receive arrived");

    let begin = kill(&theirs)?;
    let completion = loop {
        ensure!(cq.wait(Some(LIMIT))?, "a message to a dead process waits");
        if let Some(completion) = cq.poll()? {
            break completion;
        }
    };
    let took = begin.elapsed();
    let status = completion.status();
    let mut done = tx.retire(completion)?;
    tx.take(&mut done).context("a message was lost")?.1.err();
    ensure!(
        status == WcStatus::RETRY_EXC_ERR,
        "a message to a dead process ended with {status:?}"
    );
    Ok(took)
}

fn calls(host: &Host, control: &mut Control) -> Result<Duration> {
    let theirs = control.open(0, Case::Death(Waiting::Calls), Hello::default())?;
    let address = theirs
        .address
        .as_deref()
        .context("the server has no address")?;
    let mut client = Client::builder()
        .pool(&host.pd, &host.pool)
        .connect(address)?;
    let deadline = Deadline::after(LIMIT);
    let mut waiting = Vec::with_capacity(CALLS);
    for _ in 0..CALLS {
        waiting.push(client.submit(HOLD, [1; Size::B64.bytes()], deadline)?);
    }
    // Answered after the others were handed to the server.
    client.call(ECHO, (), deadline)?;

    let begin = kill(&theirs)?;
    let mut ends = Vec::with_capacity(CALLS);
    for call in waiting {
        ends.push(call.wait(&mut client));
    }
    let took = begin.elapsed();
    for end in ends {
        match end {
            Err(CallError::MaybeExecuted { .. }) => {}
            Err(error) => bail!("a call to a dead process ended otherwise: {error}"),
            Ok(_) => bail!("a call that was not answered has a reply"),
        }
    }
    Ok(took)
}

/// Kills the process that has introduced itself so, and says when.
fn kill(victim: &Hello) -> Result<Instant> {
    let pid = victim.pid.context("the other process has no number")?;
    let pid = libc::pid_t::try_from(pid)?;
    let begin = Instant::now();
    // SAFETY: a signal to a child that was not waited for, so that the number is still its own.
    let result = unsafe { libc::kill(pid, libc::SIGKILL) };
    ensure!(
        result == 0,
        "the process cannot be killed: {}",
        std::io::Error::last_os_error()
    );
    Ok(begin)
}

/// One record of all kills of all launches, since none of them depends on where memory lies.
pub fn summarise(case: Case, device: &str, launches: &[Vec<Round>]) -> Option<Record> {
    let kills: Vec<Round> = launches.iter().flatten().copied().collect();
    let mode = kills.first()?.mode();
    let same = kills.iter().all(|kill| kill.mode() == mode);
    let mode = if same { mode } else { Mode::Mixed };
    let mut times: Vec<f64> = kills.iter().map(|kill| kill.case.p50_ns).collect();
    times.sort_unstable_by(f64::total_cmp);
    Some(Record {
        p99_ns: nearest_rank(&times, 99),
        ..record(case, device, mode, &kills)
    })
}

impl fmt::Display for Waiting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Waiting::Send => "verbs/retry_exc",
            Waiting::Calls => "rpc/pending_calls",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::rounds;
    use super::*;

    #[test]
    fn all_kills_count_whatever_the_mode_and_launch() {
        let kill = |floor_ns: f64, ns: f64| Round {
            before_ns: floor_ns,
            after_ns: floor_ns,
            case: Figures {
                p50_ns: ns,
                p99_ns: ns,
                rate: 1e9 / ns,
                server_busy_ns: None,
                slowest: None,
                busy: None,
                slice_ns: None,
            },
            baseline: None,
        };
        let case = Case::Death(Waiting::Send);
        let launches = [
            vec![kill(80.0, 5e6), kill(80.0, 1e6)],
            vec![kill(400.0, 3e6)],
        ];
        let records = rounds::summarise(case, "soft0", &launches);
        assert_eq!(records.len(), 1);
        let record = &records[0];
        assert_eq!(record.name, "death/verbs/retry_exc");
        assert_eq!((record.p50_ns, record.p99_ns), (3e6, 5e6));
        assert_eq!((record.rounds, record.mode), (3, Mode::Mixed));
        assert_eq!((&record.baseline, record.ratio), (&None, None));
        assert_eq!(
            rounds::summarise(case, "soft0", &launches[..1])[0].mode,
            Mode::Near
        );
        assert!(rounds::summarise(case, "soft0", &[]).is_empty());
    }
}
