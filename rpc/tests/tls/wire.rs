//! A relay that writes down what goes over it.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;

/// What was said: by the client, and by the server.
#[derive(Clone, Default)]
pub struct Heard(Arc<[Mutex<Vec<u8>>; 2]>);

impl Heard {
    /// What the client (0) or the server (1) has said so far.
    pub fn of(&self, side: usize) -> Vec<u8> {
        self.0[side].lock().expect("no panic").clone()
    }

    /// Nothing of the handshake was said in the clear: neither the mark of its frames, nor that of queue pairs.
    pub fn nothing_in_clear(&self, side: usize) {
        let heard = self.of(side);
        for mark in [b"VBRP", b"vbE1"] {
            assert!(!heard.windows(4).any(|bytes| bytes == mark), "{heard:02x?}");
        }
    }
}

/// A relay to a server, for one client. With a number, that byte of what the server says is changed.
pub fn relay(to: SocketAddr, bent: Option<usize>) -> (SocketAddr, Heard) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let addr = listener.local_addr().expect("an address");
    let heard = Heard::default();
    let notes = heard.clone();
    thread::spawn(move || {
        let (client, _) = listener.accept().expect("a client");
        let server = TcpStream::connect(to).expect("a server");
        let back = {
            let (from, to) = (clone(&server), clone(&client));
            let notes = notes.clone();
            thread::spawn(move || pump(from, to, &notes.0[1], bent))
        };
        pump(client, server, &notes.0[0], None);
        let _ = back.join();
    });
    (addr, heard)
}

fn clone(stream: &TcpStream) -> TcpStream {
    stream.try_clone().expect("a descriptor")
}

fn pump(mut from: TcpStream, mut to: TcpStream, note: &Mutex<Vec<u8>>, bent: Option<usize>) {
    let mut bytes = [0; 4096];
    while let Ok(n @ 1..) = from.read(&mut bytes) {
        let mut note = note.lock().expect("no panic");
        if let Some(at) = bent.and_then(|at| at.checked_sub(note.len()))
            && at < n
        {
            bytes[at] ^= 1;
        }
        note.extend(&bytes[..n]);
        drop(note);
        if to.write_all(&bytes[..n]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Write);
}
