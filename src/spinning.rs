//! Reading and writing non-blocking sockets without ever sleeping.

use std::io::{self, ErrorKind, Read, Write};
use std::time::{Duration, Instant};

use crate::placement;

/// How long a spinning reader waits before it lets others run between two looks, if there is a processor for
/// each end. The answer is there long before, unless other work takes the processors.
const SPIN: Duration = Duration::from_micros(50);

/// Fills the buffer from a non-blocking socket.
pub fn read_spinning(socket: &mut impl Read, mut into: &mut [u8]) -> io::Result<()> {
    let mut patience = Patience::new();
    while !into.is_empty() {
        match socket.read(into) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(n) => into = &mut into[n..],
            Err(e) if e.kind() == ErrorKind::WouldBlock => patience.wait(),
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

/// Writes all of it to a non-blocking socket.
pub fn write_spinning(socket: &mut impl Write, mut from: &[u8]) -> io::Result<()> {
    let mut patience = Patience::new();
    while !from.is_empty() {
        match socket.write(from) {
            Ok(n) => from = &from[n..],
            Err(e) if e.kind() == ErrorKind::WouldBlock => patience.wait(),
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

/// Spins at first, then yields the processor between two looks.
struct Patience {
    since: Option<Instant>,
}

impl Patience {
    fn new() -> Patience {
        Patience { since: None }
    }

    fn wait(&mut self) {
        // What this thread alone may use says nothing: each end is bound to one.
        let limit = if placement::processors() > 1 {
            SPIN
        } else {
            Duration::ZERO
        };
        if self.since.get_or_insert_with(Instant::now).elapsed() < limit {
            std::hint::spin_loop();
        } else {
            std::thread::yield_now();
        }
    }
}
