//! TLS over a socket that blocks or does not.

use rustls::Connection;
use std::io::{self, Read, Write};
use std::net::TcpStream;

/// A connection over TLS.
pub(crate) struct TlsStream {
    connection: Connection,
    tcp: TcpStream,
    /// What is said as soon as the handshake is complete.
    greeting: Vec<u8>,
}

impl TlsStream {
    pub fn new(connection: Connection, tcp: TcpStream, greeting: Vec<u8>) -> TlsStream {
        TlsStream {
            connection,
            tcp,
            greeting,
        }
    }

    pub fn tcp(&self) -> &TcpStream {
        &self.tcp
    }

    /// Whether the peer's certificate is still to be seen.
    pub fn is_handshaking(&self) -> bool {
        self.connection.is_handshaking()
    }

    /// Sends what has been encrypted. That is a few kilobytes into an idle socket: if it is full all the same, the peer does not read, and
    /// `WouldBlock` is as good an error as any.
    pub fn send(&mut self) -> io::Result<()> {
        while self.connection.wants_write() {
            match self.connection.write_tls(&mut self.tcp) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(_) => {}
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }

    /// Takes in what has arrived, once, and answers it as TLS wants it.
    ///
    /// # Errors
    /// Those of the socket, `WouldBlock` included; `UnexpectedEof` at its end; and of TLS, as what the peer has been told.
    pub fn step(&mut self) -> io::Result<()> {
        match self.connection.read_tls(&mut self.tcp)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            _ => {
                if let Err(why) = self.connection.process_new_packets() {
                    // The alert.
                    let _ = self.send();
                    return Err(io::Error::new(io::ErrorKind::InvalidData, why));
                }
            }
        }
        if !self.greeting.is_empty() && !self.connection.is_handshaking() {
            let greeting = std::mem::take(&mut self.greeting);
            self.connection.writer().write_all(&greeting)?;
        }
        self.send().map_err(|e| match e.kind() {
            io::ErrorKind::WouldBlock => io::ErrorKind::WriteZero.into(),
            _ => e,
        })
    }

    /// Says that nothing more will be written, if that can be said without waiting.
    pub fn finish(&mut self) {
        self.connection.send_close_notify();
        let _ = self.send();
    }
}

impl Read for TlsStream {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        match self.connection.reader().read(out) {
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
            read => return read,
        }
        self.step()?;
        match self.connection.reader().read(out) {
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                Err(io::ErrorKind::Interrupted.into())
            }
            read => read,
        }
    }
}

impl Write for TlsStream {
    /// All or nothing.
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        // Before the handshake is complete there is nothing to encrypt it with, and it is nobody's business.
        if self.connection.is_handshaking() {
            return Err(io::ErrorKind::NotConnected.into());
        }
        self.connection.writer().write_all(bytes)?;
        self.send()?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.send()
    }
}

impl std::fmt::Debug for TlsStream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TlsStream")
            .field("tcp", &self.tcp)
            .field("handshaking", &self.is_handshaking())
            .finish_non_exhaustive()
    }
}
