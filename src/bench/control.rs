//! What the two processes say to each other between rounds: lines of JSON over the socket pair they were started with.
//!
//! The end that answers sleeps on it, so that it takes no processor from what is measured meanwhile.

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use std::io::{BufRead, BufReader, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;

use super::case::Case;

/// What the end that measures asks for.
#[derive(Debug, Serialize, Deserialize)]
pub enum Command {
    /// Prepare the other end of a case, and keep it under this number; answered by [`Answer::Opened`].
    Open(usize, Case, Hello),
    /// Answer messages until the one that ends the round, then say [`Answer::Done`].
    Run(usize),
    /// Drop it; answered by [`Answer::Done`].
    Close(usize),
}

/// What the end that answers says.
#[derive(Debug, Serialize, Deserialize)]
pub enum Answer {
    /// It is there.
    Opened(Hello),
    /// It is done.
    Done,
}

/// How one end of a case is reached.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Hello {
    /// A path or an address.
    pub address: Option<String>,
    /// [`Endpoint::to_bytes`](verbatim::verbs::Endpoint::to_bytes).
    pub endpoint: Option<Vec<u8>>,
    /// [`RemoteRegion::to_bytes`](verbatim::verbs::RemoteRegion::to_bytes).
    pub region: Option<Vec<u8>>,
    /// Of the process, if it is to be killed.
    pub pid: Option<u32>,
}

/// One end.
pub struct Control {
    reader: BufReader<UnixStream>,
    writer: UnixStream,
}

impl Control {
    /// The end that this process was started with.
    pub fn from_stdin() -> Result<Control> {
        let stdin = std::io::stdin().as_fd().try_clone_to_owned()?;
        Control::new(UnixStream::from(stdin))
    }

    /// This end.
    pub fn new(socket: UnixStream) -> Result<Control> {
        Ok(Control {
            writer: socket.try_clone()?,
            reader: BufReader::new(socket),
        })
    }

    /// Says something.
    pub fn say(&mut self, what: &impl Serialize) -> Result<()> {
        let mut line = serde_json::to_vec(what)?;
        line.push(b'\n');
        self.writer
            .write_all(&line)
            .context("the other process is gone")
    }

    /// Waits for what the other end says; `None` when it has closed its end.
    pub fn hear<T: DeserializeOwned>(&mut self) -> Result<Option<T>> {
        let mut line = String::new();
        self.reader
            .read_line(&mut line)
            .context("the other process is gone")?;
        if line.is_empty() {
            return Ok(None);
        }
        Ok(Some(
            serde_json::from_str(&line).context("the other process speaks nonsense")?,
        ))
    }

    /// Has the other end prepared.
    pub fn open(&mut self, slot: usize, case: Case, hello: Hello) -> Result<Hello> {
        self.say(&Command::Open(slot, case, hello))?;
        match self.hear()? {
            Some(Answer::Opened(hello)) => Ok(hello),
            answer => bail!("{case}: the other process answered {answer:?}"),
        }
    }

    /// Waits until the other end is done.
    pub fn done(&mut self) -> Result<()> {
        match self.hear()? {
            Some(Answer::Done) => Ok(()),
            answer => bail!("the other process answered {answer:?}"),
        }
    }
}
