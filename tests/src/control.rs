//! Messages between the two processes of a test, beside what is tested.

use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;

use crate::HANG;

/// One end of a socket between the two processes of a test.
#[derive(Debug)]
pub struct Control {
    socket: UnixStream,
}

impl Control {
    pub(crate) fn new(socket: UnixStream) -> Control {
        socket
            .set_read_timeout(Some(HANG))
            .expect("a socket takes a time limit");
        Control { socket }
    }

    pub(crate) fn pair() -> (Control, OwnedFd) {
        let (ours, theirs) = UnixStream::pair().expect("a socket pair can be made");
        (Control::new(ours), theirs.into())
    }

    /// Sends one message.
    pub fn send(&mut self, message: impl AsRef<[u8]>) {
        let message = message.as_ref();
        let len = u32::try_from(message.len()).expect("control messages are small");
        let frame = [&len.to_le_bytes(), message].concat();
        self.socket
            .write_all(&frame)
            .expect("the other process takes control messages");
    }

    /// Waits for one message; panics when the other process ends first, or says nothing for [`HANG`].
    pub fn receive(&mut self) -> Vec<u8> {
        let mut len = [0; 4];
        self.socket
            .read_exact(&mut len)
            .expect("the other process sends a control message");
        let mut message = vec![0; u32::from_le_bytes(len) as usize];
        self.socket
            .read_exact(&mut message)
            .expect("the other process ends its control message");
        message
    }

    /// Waits for one message that must be this one.
    pub fn expect(&mut self, message: &str) {
        assert_eq!(String::from_utf8_lossy(&self.receive()), message);
    }
}
