//! The process that answers: keeps the other end of each case that is open, and sleeps between rounds.

use anyhow::{Context, Result, bail};
use std::any::Any;
use std::collections::HashMap;
use std::process::ExitCode;

use super::calls;
use super::case::Case;
use super::control::{Answer, Command, Control, Hello};
use super::death;
use super::floor::Floor;
use super::link::{Host, Link, Source};
use super::socket::{Listener, Socket};
use super::wake::Sleeper;
use crate::placement::{self, End as Processor};

/// The other end of a case.
enum End {
    Floor(Floor),
    Link(Box<Link>),
    /// Answers by itself: memory that is read, or a server with threads of its own.
    Alone {
        _kept: Box<dyn Any>,
    },
    /// Connected to when its first round begins: the peer must know the address before.
    Listener(Option<Listener>, bool),
    Socket(Socket),
}

/// Runs until the process that measures closes its end of standard input, a socket.
pub fn run() -> Result<ExitCode> {
    // Before anything is started: threads run where the one does that started them.
    placement::bind_always(Processor::Server);
    let mut control = Control::from_stdin()?;
    let mut host = None;
    let mut ends: HashMap<usize, End> = HashMap::new();
    while let Some(command) = control.hear()? {
        match command {
            Command::Open(slot, case, theirs) => {
                let (end, hello) = open(case, slot, &theirs, &mut host)
                    .with_context(|| format!("{case}: the end that answers"))?;
                ends.insert(slot, end);
                control.say(&Answer::Opened(hello))?;
            }
            Command::Run(slot) => {
                let end = ends.get_mut(&slot).context("a case that is not open")?;
                serve(end)?;
                control.say(&Answer::Done)?;
            }
            Command::Close(slot) => {
                ends.remove(&slot);
                control.say(&Answer::Done)?;
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// The device is opened when a case needs it.
fn open(case: Case, slot: usize, theirs: &Hello, host: &mut Option<Host>) -> Result<(End, Hello)> {
    if case.uses_device() && host.is_none() {
        *host = Some(Host::open()?);
    }
    let device = || host.as_ref().context("the device is not open");
    let address = |address: String| Hello {
        address: Some(address),
        ..Hello::default()
    };
    Ok(match case {
        Case::Floor => {
            let path = theirs.address.as_deref().context("no memory was named")?;
            (End::Floor(Floor::open(path)?), Hello::default())
        }
        Case::Verbs { verb, size, flow } => {
            let mut link = Link::new(device()?, verb, size, flow)?;
            let hello = link.hello();
            link.connect(theirs)?;
            (End::Link(Box::new(link)), hello)
        }
        Case::Read => {
            let mut source = Source::new(device()?)?;
            let hello = source.hello();
            source.connect(theirs)?;
            (alone(source), hello)
        }
        Case::Rpc(calls) => {
            let page = theirs.address.as_deref().context("no memory was named")?;
            let server = calls::serve(device()?, calls.size(), page)?;
            let hello = Hello {
                pid: Some(std::process::id()),
                ..address(server.local_addr().to_string())
            };
            (alone(server), hello)
        }
        Case::Socket { family, blocking } => {
            let listener = Listener::bind(family, slot)?;
            let hello = address(listener.address()?);
            (End::Listener(Some(listener), blocking), hello)
        }
        Case::Wake => {
            let page = theirs.address.as_deref().context("no memory was named")?;
            let hello = Hello {
                pid: Some(std::process::id()),
                ..Hello::default()
            };
            (alone(Sleeper::start(page)?), hello)
        }
        Case::Alloc { .. } | Case::Register(_) => bail!("a case of one process"),
        Case::Death(waiting) => {
            let (kept, hello) = death::victim(device()?, waiting, theirs)?;
            (End::Alone { _kept: kept }, hello)
        }
    })
}

fn alone(end: impl Any) -> End {
    End::Alone {
        _kept: Box::new(end),
    }
}

fn serve(end: &mut End) -> Result<()> {
    if let End::Listener(listener, blocking) = end {
        let listener = listener.take().context("the socket was lost")?;
        *end = End::Socket(listener.accept(*blocking)?);
    }
    match end {
        End::Floor(floor) => floor.serve(),
        End::Link(link) => link.serve()?,
        End::Socket(socket) => socket.serve()?,
        End::Alone { .. } | End::Listener(..) => {
            bail!("a case whose other end answers by itself")
        }
    }
    Ok(())
}
