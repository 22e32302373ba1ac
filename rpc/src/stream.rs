//! The bytes of a control connection, as they are or over TLS.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd};

/// A control connection.
///
/// Reading takes one step: `Interrupted` says that something has arrived which is not for the reader, who should look at its
/// clock and read on. Whoever waits for the descriptor has to read until `WouldBlock` first.
#[derive(Debug)]
pub(crate) enum Stream {
    Plain(TcpStream),
    #[cfg(feature = "tls")]
    Tls(Box<crate::tls::TlsStream>),
}

impl Stream {
    /// What it goes over.
    pub fn tcp(&self) -> &TcpStream {
        match self {
            Stream::Plain(tcp) => tcp,
            #[cfg(feature = "tls")]
            Stream::Tls(tls) => tls.tcp(),
        }
    }

    /// Says that nothing more will be written.
    pub fn finish(&mut self) {
        #[cfg(feature = "tls")]
        if let Stream::Tls(tls) = self {
            tls.finish();
        }
    }
}

impl Read for Stream {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        match self {
            Stream::Plain(tcp) => tcp.read(out),
            #[cfg(feature = "tls")]
            Stream::Tls(tls) => tls.read(out),
        }
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Stream::Plain(tcp) => tcp.write(bytes),
            #[cfg(feature = "tls")]
            Stream::Tls(tls) => tls.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.tcp().as_fd()
    }
}
