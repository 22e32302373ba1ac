//! Messages there and back over sockets.

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::time::Duration;

use super::measure::{Figures, Group, serial};
use super::shape::Size;
use crate::spinning::{read_spinning, write_spinning};

/// A kind of socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Family {
    /// Unix stream sockets.
    Unix,
    /// TCP over loopback, without delay.
    Tcp,
}

/// Messages are as long as a cache line; the first byte of the one that ends a round is 0.
const LEN: usize = Size::B64.bytes();

/// One end.
pub struct Socket {
    stream: Stream,
    blocking: bool,
}

enum Stream {
    Unix(UnixStream),
    Tcp(TcpStream),
}

/// The other end, before it was connected to.
pub enum Listener {
    /// In the abstract namespace, which leaves no file behind.
    Unix(UnixListener, String),
    /// On loopback.
    Tcp(TcpListener),
}

impl Listener {
    /// Listens where nobody else does.
    pub fn bind(family: Family, slot: usize) -> Result<Listener> {
        Ok(match family {
            Family::Unix => {
                let name = format!("verbatim-bench-{}-{slot}", std::process::id());
                let address = SocketAddr::from_abstract_name(&name)?;
                Listener::Unix(UnixListener::bind_addr(&address)?, name)
            }
            Family::Tcp => Listener::Tcp(TcpListener::bind("127.0.0.1:0")?),
        })
    }

    /// What to connect to.
    pub fn address(&self) -> Result<String> {
        Ok(match self {
            Listener::Unix(_, name) => name.clone(),
            Listener::Tcp(listener) => listener.local_addr()?.to_string(),
        })
    }

    /// Waits for the other end.
    pub fn accept(self, blocking: bool) -> Result<Socket> {
        let stream = match self {
            Listener::Unix(listener, _) => Stream::Unix(listener.accept()?.0),
            Listener::Tcp(listener) => Stream::Tcp(listener.accept()?.0),
        };
        Socket::new(stream, blocking)
    }
}

impl Socket {
    /// Connects to the end that listens.
    pub fn connect(family: Family, address: &str, blocking: bool) -> Result<Socket> {
        let stream = match family {
            Family::Unix => {
                let address = SocketAddr::from_abstract_name(address)?;
                Stream::Unix(UnixStream::connect_addr(&address)?)
            }
            Family::Tcp => Stream::Tcp(TcpStream::connect(address)?),
        };
        Socket::new(stream, blocking)
    }

    fn new(stream: Stream, blocking: bool) -> Result<Socket> {
        match &stream {
            Stream::Unix(stream) => stream.set_nonblocking(!blocking)?,
            Stream::Tcp(stream) => {
                stream.set_nodelay(true)?;
                stream.set_nonblocking(!blocking)?;
            }
        }
        Ok(Socket { stream, blocking })
    }

    /// Answers until the round ends.
    pub fn serve(&mut self) -> Result<()> {
        let mut message = [0; LEN];
        loop {
            self.receive(&mut message)?;
            if message[0] == 0 {
                return Ok(());
            }
            self.send(&message)?;
        }
    }

    /// Measures round trips; the other end is in [`serve`](Self::serve), or about to be.
    pub fn round(&mut self, limit: Duration) -> Result<Figures> {
        let mut message = [1; LEN];
        let figures = serial(limit, Group::One, || {
            self.send(&message)?;
            self.receive(&mut message)
        })
        .context("the socket failed")?;
        self.send(&[0; LEN])?;
        Ok(figures)
    }

    #[inline]
    fn send(&mut self, message: &[u8]) -> io::Result<()> {
        match (&mut self.stream, self.blocking) {
            (Stream::Unix(stream), false) => write_spinning(stream, message),
            (Stream::Tcp(stream), false) => write_spinning(stream, message),
            (Stream::Unix(stream), true) => stream.write_all(message),
            (Stream::Tcp(stream), true) => stream.write_all(message),
        }
    }

    #[inline]
    fn receive(&mut self, message: &mut [u8]) -> io::Result<()> {
        match (&mut self.stream, self.blocking) {
            (Stream::Unix(stream), false) => read_spinning(stream, message),
            (Stream::Tcp(stream), false) => read_spinning(stream, message),
            (Stream::Unix(stream), true) => stream.read_exact(message),
            (Stream::Tcp(stream), true) => stream.read_exact(message),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_kinds_echo_in_rounds() {
        for (slot, family) in [Family::Unix, Family::Tcp].into_iter().enumerate() {
            for blocking in [false, true] {
                let listener = Listener::bind(family, slot).unwrap();
                let address = listener.address().unwrap();
                let there = std::thread::spawn(move || {
                    let mut there = listener.accept(blocking).unwrap();
                    for _ in 0..2 {
                        there.serve().unwrap();
                    }
                });
                let mut here = Socket::connect(family, &address, blocking).unwrap();
                for _ in 0..2 {
                    let figures = here.round(Duration::from_millis(1)).unwrap();
                    assert!(figures.p50_ns > 0.0);
                }
                there.join().unwrap();
            }
        }
    }
}
