//! The control connection after the handshake: silent, until the peer says goodbye or is gone.

use crate::error::{Lost, Violation};
use crate::handshake::{Accumulator, Frame, Goodbye, HandshakeError};
use crate::stream::Stream;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

/// When the peer's machine is asked whether it is still there: after so many seconds of silence, so many seconds apart, and so often in
/// vain. A process that is stopped does not mind: its kernel answers.
const ALIVE_AFTER: libc::c_int = 10;
const ALIVE_EVERY: libc::c_int = 5;
const ALIVE_TRIES: libc::c_int = 3;

#[derive(Debug)]
pub(crate) struct Control {
    stream: Stream,
    frame: Accumulator,
}

/// Reads in a row that bring nothing, after which others have their turn: there is no end to the records without bytes that a peer can send over TLS.
pub(crate) const EMPTY: usize = 16;

impl Control {
    /// Takes over a connection after the handshake. It must be in non-blocking mode.
    pub fn new(stream: Stream) -> Control {
        keep_alive(stream.tcp());
        Control {
            stream,
            frame: Accumulator::new(),
        }
    }

    /// Reads what there is; an error says that the connection has ended, and why.
    pub fn check(&mut self) -> Result<(), Lost> {
        let mut empty = 0;
        loop {
            match self.stream.read(self.frame.space()) {
                Ok(0) => return Err(Lost::Gone(None)),
                Ok(n) => match self.frame.filled(n).map_err(Violation::from)? {
                    None => {}
                    Some(Frame::Goodbye(why)) => return Err(Lost::Goodbye(why)),
                    Some(_) => {
                        return Err(Violation::from(HandshakeError::Malformed(
                            "only a goodbye can follow the handshake",
                        ))
                        .into());
                    }
                },
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(e) if e.kind() == io::ErrorKind::Interrupted && empty < EMPTY => empty += 1,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => return Ok(()),
                Err(e) => return Err(Lost::Gone(Some(e))),
            }
        }
    }

    /// Says goodbye, if there is room for it; the connection ends when this is dropped.
    pub fn goodbye(&mut self, why: Goodbye) {
        // A few bytes into an idle socket; if it is full or gone, its end says enough.
        let _ = self.stream.write(&Frame::Goodbye(why).encode());
        self.stream.finish();
    }
}

/// Has the system ask after a peer that is silent: of a machine that lost its power, or a cable, no end ever arrives.
fn keep_alive(tcp: &TcpStream) {
    let settings = [
        (libc::SOL_SOCKET, libc::SO_KEEPALIVE, 1),
        (libc::IPPROTO_TCP, libc::TCP_KEEPIDLE, ALIVE_AFTER),
        (libc::IPPROTO_TCP, libc::TCP_KEEPINTVL, ALIVE_EVERY),
        (libc::IPPROTO_TCP, libc::TCP_KEEPCNT, ALIVE_TRIES),
    ];
    for (level, name, value) in settings {
        // SAFETY: the descriptor is open, and `value` is as long as it is said to be, and outlives the call. A system that does not
        // know a setting finds fewer of the dead; there is nothing else to be done about it.
        unsafe {
            libc::setsockopt(
                tcp.as_raw_fd(),
                level,
                name,
                (&raw const value).cast(),
                size_of::<libc::c_int>() as libc::socklen_t,
            )
        };
    }
}

impl AsFd for Control {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    #[test]
    fn silent_peers_are_asked_after() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let tcp = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let control = Control::new(Stream::Plain(tcp));
        let get = |level, name| {
            let (mut value, mut len) = (0, size_of::<libc::c_int>() as libc::socklen_t);
            // SAFETY: the descriptor is open, and the system writes no more than `len` bytes into `value`.
            let done = unsafe {
                let value: *mut libc::c_int = &mut value;
                libc::getsockopt(
                    control.as_fd().as_raw_fd(),
                    level,
                    name,
                    value.cast(),
                    &mut len,
                )
            };
            assert_eq!(done, 0);
            value
        };
        assert_eq!(get(libc::SOL_SOCKET, libc::SO_KEEPALIVE), 1);
        assert_eq!(get(libc::IPPROTO_TCP, libc::TCP_KEEPIDLE), ALIVE_AFTER);
        assert_eq!(get(libc::IPPROTO_TCP, libc::TCP_KEEPINTVL), ALIVE_EVERY);
        assert_eq!(get(libc::IPPROTO_TCP, libc::TCP_KEEPCNT), ALIVE_TRIES);
    }
}
