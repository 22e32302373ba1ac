//! The baseline: the same echo over a Unix socket, both ends spinning on non-blocking reads.
//!
//! A round begins with one blocking message that says its size; until it comes the server sleeps, so that it
//! takes no processor from the RPC's rounds.

use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;

use super::latency;
use crate::spinning::{read_spinning, write_spinning};

/// Longest message, bytes.
const MAX: usize = 64 << 10;

/// Serves rounds until the peer closes its end.
pub fn serve(mut socket: UnixStream) -> io::Result<()> {
    let mut buffer = vec![0u8; MAX];
    loop {
        socket.set_nonblocking(false)?;
        let mut size = [0u8; 4];
        match socket.read_exact(&mut size) {
            Err(e) if e.kind() == ErrorKind::UnexpectedEof => return Ok(()),
            result => result?,
        }
        let size = u32::from_le_bytes(size) as usize;
        if size == 0 || size > MAX {
            return Err(io::Error::new(
                ErrorKind::InvalidData,
                "a round of an absurd size",
            ));
        }
        socket.set_nonblocking(true)?;
        // Each message begins with 1, the end of the round is a message of 0.
        loop {
            let message = &mut buffer[..size];
            read_spinning(&mut socket, message)?;
            if message[0] == 0 {
                break;
            }
            write_spinning(&mut socket, message)?;
        }
    }
}

/// One round of echoes of `size` bytes; the round trips are added to `samples`, nanoseconds.
pub fn round(socket: &mut UnixStream, size: usize, samples: &mut Vec<u64>) -> io::Result<()> {
    socket.set_nonblocking(false)?;
    socket.write_all(&(size as u32).to_le_bytes())?;
    socket.set_nonblocking(true)?;
    let mut message = vec![1u8; size];
    latency::round(samples, || {
        write_spinning(socket, &message)?;
        read_spinning(socket, &mut message)
    })?;
    message[0] = 0;
    write_spinning(socket, &message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn echoes_in_rounds_until_the_client_closes() {
        let (mut client, server) = UnixStream::pair().unwrap();
        let server = std::thread::spawn(move || serve(server));
        for size in [64, 4096, 64] {
            let mut samples = Vec::new();
            round(&mut client, size, &mut samples).unwrap();
            assert!(!samples.is_empty());
        }
        drop(client);
        server.join().unwrap().unwrap();
    }

    #[test]
    fn a_round_of_absurd_size_ends_the_server_with_an_error() {
        for size in [0u32, u32::MAX] {
            let (mut client, server) = UnixStream::pair().unwrap();
            let server = std::thread::spawn(move || serve(server));
            client.write_all(&size.to_le_bytes()).unwrap();
            assert!(server.join().unwrap().is_err());
        }
    }
}
