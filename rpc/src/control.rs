//! The control connection after the handshake: silent, until the peer says goodbye or is gone.

use crate::error::{Lost, Violation};
use crate::handshake::{Accumulator, Frame, Goodbye, HandshakeError};
use crate::stream::Stream;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};

#[derive(Debug)]
pub(crate) struct Control {
    stream: Stream,
    frame: Accumulator,
}

impl Control {
    /// Takes over a connection after the handshake. It must be in non-blocking mode.
    pub fn new(stream: Stream) -> Control {
        Control {
            stream,
            frame: Accumulator::new(),
        }
    }

    /// Reads what there is; an error says that the connection has ended, and why.
    pub fn check(&mut self) -> Result<(), Lost> {
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
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
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

impl AsFd for Control {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}
