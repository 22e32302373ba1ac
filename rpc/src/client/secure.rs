//! From a TCP connection to one over TLS.

use super::builder::{Limit, control, hear, wait_until};
use crate::error::ConnectError;
use crate::handshake::{Frame, HandshakeError};
use crate::stream::Stream;
use crate::tls::{ClientTls, TlsError};
use std::io;
use std::net::{IpAddr, TcpStream};

/// Shakes hands over TLS, until the server says that it accepts this end's certificate.
pub(super) fn secured(
    tls: &ClientTls,
    tcp: TcpStream,
    to: IpAddr,
    limit: Limit,
) -> Result<Stream, ConnectError> {
    let failed = |error: io::Error| match TlsError::of(&error) {
        Some(error) => error.into(),
        None => control(error),
    };
    let (_, timeout) = limit;
    // It takes what is written here, unless it does not read at all.
    tcp.set_write_timeout(Some(timeout.max(std::time::Duration::from_millis(1))))
        .map_err(ConnectError::Control)?;
    let mut stream = tls.connect(tcp, to)?;
    stream.send().map_err(failed)?;
    while stream.is_handshaking() {
        wait_until(stream.tcp(), limit)?;
        match stream.step() {
            Ok(()) => {}
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(failed(e)),
        }
    }
    let mut stream = Stream::Tls(Box::new(stream));
    match hear(&mut stream, limit) {
        Ok(Frame::Ready) => Ok(stream),
        Ok(_) => Err(HandshakeError::Malformed("the server was to accept the certificate").into()),
        Err(ConnectError::Closed) => Err(TlsError::Closed.into()),
        Err(ConnectError::Control(error)) => Err(failed(error)),
        Err(error) => Err(error),
    }
}
