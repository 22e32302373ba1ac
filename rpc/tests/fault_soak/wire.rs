//! The control connection of a client, by way of a relay that sees the queue pairs' numbers and can cut it.

use crate::common::hang;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

/// A relay for one client.
pub struct Relay {
    pub addr: SocketAddr,
    thread: JoinHandle<Option<Wire>>,
}

/// A connection through it.
pub struct Wire {
    /// Queue pair numbers of client and server.
    pub queue_pairs: [u32; 2],
    /// The relay's ends towards client and server.
    ends: [TcpStream; 2],
    /// Whether the end of one side is not told to the other.
    mute: Arc<AtomicBool>,
    pumps: Vec<JoinHandle<()>>,
}

impl Relay {
    pub fn to(server: SocketAddr) -> Relay {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let addr = listener.local_addr().expect("an address");
        let thread = thread::spawn(move || {
            let (client, _) = listener.accept().expect("a client");
            let server = TcpStream::connect(server).expect("a server");
            let hello = pass(&client, &server)?;
            let welcome = pass(&server, &client).filter(|frame| frame[6] == 2)?;
            // Both have the end point at the same place: behind 44 bytes and the mark of its version.
            let number = |frame: &[u8]| u32::from_le_bytes(frame[46..50].try_into().expect("four"));
            let mute = Arc::new(AtomicBool::new(false));
            let pump = |from: &TcpStream, to: &TcpStream| {
                let (from, to) = (clone(from), clone(to));
                let mute = Arc::clone(&mute);
                thread::spawn(move || relay(from, to, &mute))
            };
            Some(Wire {
                queue_pairs: [number(&hello), number(&welcome)],
                pumps: vec![pump(&client, &server), pump(&server, &client)],
                ends: [client, server],
                mute,
            })
        });
        Relay { addr, thread }
    }

    /// What became of it, once the client has been told.
    pub fn wire(self) -> Option<Wire> {
        // A client that never came.
        let _ = TcpStream::connect(self.addr);
        self.thread.join().expect("the relay")
    }
}

fn clone(stream: &TcpStream) -> TcpStream {
    stream.try_clone().expect("a descriptor")
}

/// Passes one frame on; `None` if there is none.
fn pass(mut from: &TcpStream, mut to: &TcpStream) -> Option<Vec<u8>> {
    from.set_read_timeout(Some(hang())).ok()?;
    let mut frame = vec![0; 10];
    from.read_exact(&mut frame).ok()?;
    frame.resize(
        10 + usize::from(u16::from_le_bytes([frame[8], frame[9]])),
        0,
    );
    from.read_exact(&mut frame[10..]).ok()?;
    to.write_all(&frame).ok()?;
    from.set_read_timeout(None).ok()?;
    Some(frame)
}

fn relay(mut from: TcpStream, mut to: TcpStream, mute: &AtomicBool) {
    let mut bytes = [0; 512];
    while let Ok(n @ 1..) = from.read(&mut bytes) {
        if !mute.load(Ordering::SeqCst) && to.write_all(&bytes[..n]).is_err() {
            break;
        }
    }
    if !mute.load(Ordering::SeqCst) {
        let _ = to.shutdown(Shutdown::Both);
    }
}

impl Wire {
    /// Ends the connection for the client (0) or the server (1), and tells the other nothing.
    pub fn half_open(&self, side: usize) {
        self.mute.store(true, Ordering::SeqCst);
        let _ = self.ends[side].shutdown(Shutdown::Both);
    }

    /// Ends it for both.
    pub fn cut(&self) {
        for end in &self.ends {
            let _ = end.shutdown(Shutdown::Both);
        }
    }

    pub fn close(self) {
        self.cut();
        for pump in self.pumps {
            pump.join().expect("a pump");
        }
    }
}
