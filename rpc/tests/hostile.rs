//! A client that gets through the handshake and then breaks every rule there is: its connection
//! ends with a reason, and nobody else notices.

mod common;

use common::*;
use rpc::{Client, ServerHandle};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use verbs::{Cq, Endpoint, Gather, Private, RKey, RecvQueue, RemoteRegion, SendQueue, SgeList};

type Bytes = Private<Vec<u8>>;

/// Bytes to send or write, or none at all.
struct Work(Option<Bytes>);

// SAFETY: `Private` keeps the contract by itself.
unsafe impl Gather for Work {
    fn gather(&self, out: &mut SgeList) {
        if let Some(bytes) = &self.0 {
            bytes.gather(out);
        }
    }
}

const VIOLATION: u16 = 2;
const DEVICE: u16 = 4;

/// A client made of bare verbs.
struct Raw {
    stream: TcpStream,
    cq: Cq,
    tx: SendQueue<Work>,
    _rx: RecvQueue<Bytes>,
    window: u32,
    slots: u32,
    /// The server's ring, if requests go there, and where the next one belongs.
    ring: Option<RemoteRegion>,
    at: u64,
    /// Messages that have arrived.
    replies: u32,
}

impl Raw {
    fn connect(server: &ServerHandle, ring: bool) -> Raw {
        Raw::with_reply_ring(server, ring, None)
    }

    /// With a ring, requests are written into the server's. Replies come as SENDs, or go to what
    /// is claimed to be a ring of ours.
    fn with_reply_ring(server: &ServerHandle, ring: bool, claim: Option<RemoteRegion>) -> Raw {
        let (context, pd, _) = memory();
        let window = 32u32;
        let cq = context.cq(512).build().unwrap();
        let ready = pd
            .rc(&cq)
            .send_depth(256)
            .recv_depth(window)
            .build()
            .unwrap();
        let (setup, tx, mut rx) = ready.split::<Work, Bytes>();
        for _ in 0..window {
            rx.post(pd.register(vec![0; 5000]).unwrap()).unwrap();
        }
        let bit = |ring: bool| 1u8 << u8::from(ring);
        let mut body = vec![bit(ring), bit(claim.is_some())];
        for value in [window, 4096, 24] {
            body.extend(value.to_le_bytes());
        }
        body.extend((1u64 << 30).to_le_bytes());
        body.extend(0u64.to_le_bytes());
        body.extend((Endpoint::LEN as u16).to_le_bytes());
        body.extend(setup.endpoint().to_bytes());
        match claim {
            Some(claim) => {
                body.extend(24u16.to_le_bytes());
                body.extend(claim.to_bytes());
            }
            None => body.extend(0u16.to_le_bytes()),
        }
        let mut hello = b"VBRP\x02\0\x01\0".to_vec();
        hello.extend((body.len() as u16).to_le_bytes());
        hello.extend(body);
        let mut stream = TcpStream::connect(server.local_addr()).unwrap();
        stream.set_read_timeout(Some(hang())).unwrap();
        stream.write_all(&hello).unwrap();
        let mut prefix = [0; 10];
        stream.read_exact(&mut prefix).unwrap();
        assert_eq!(prefix[6], 2, "a welcome");
        let len = u16::from_le_bytes([prefix[8], prefix[9]]);
        let mut welcome = vec![0; len.into()];
        stream.read_exact(&mut welcome).unwrap();
        let word = |at: usize| u32::from_le_bytes(welcome[at..at + 4].try_into().unwrap());
        let slots = word(10);
        let peer = Endpoint::from_bytes(&welcome[32..32 + Endpoint::LEN]).unwrap();
        let rest = &welcome[32 + Endpoint::LEN + 2..];
        // Behind the ring, a shelf of no bytes.
        let (rest, shelf) = rest.split_at(rest.len() - 2);
        assert_eq!(shelf, [0; 2]);
        assert_eq!(rest.len(), if ring { 24 } else { 0 });
        let ring = rest.first_chunk().map(RemoteRegion::from_bytes);
        setup.connect(&peer).unwrap();
        Raw {
            stream,
            cq,
            tx,
            _rx: rx,
            window,
            slots,
            ring,
            at: 0,
            replies: 0,
        }
    }

    /// Sends bytes as a message, or writes them to where the next one belongs; false if the device
    /// reports no success. An offence may have arrived all the same: a server that ends the connection for
    /// it can be quicker than the acknowledgement.
    fn send(&mut self, message: Vec<u8>) -> bool {
        let Some(ring) = self.ring else {
            return self.send_plainly(Some(message));
        };
        let span = (message.len() as u64).next_multiple_of(64);
        if self.at + span > ring.len {
            self.at = 0;
        }
        let at = self.at;
        self.at += span;
        self.write(Some(message), at, true)
    }

    fn send_plainly(&mut self, message: Option<Vec<u8>>) -> bool {
        let (_, pd, _) = memory();
        let message = Work(message.map(|bytes| pd.register(bytes).unwrap()));
        self.tx.send(message).signaled().post().is_ok() && self.done()
    }

    /// Writes into the server's ring.
    fn write(&mut self, bytes: Option<Vec<u8>>, at: u64, with_imm: bool) -> bool {
        let (_, pd, _) = memory();
        let len = bytes.as_ref().map_or(0, |bytes| bytes.len() as u64);
        let place = self.ring.unwrap().slice(at..at + len).unwrap();
        let work = Work(bytes.map(|bytes| pd.register(bytes).unwrap()));
        let wr = self.tx.write(work, place).signaled();
        let wr = if with_imm { wr.imm(0) } else { wr };
        wr.post().is_ok() && self.done()
    }

    /// Waits for what was posted last.
    fn done(&mut self) -> bool {
        loop {
            if let Some(ok) = self.poll() {
                return ok;
            }
        }
    }

    /// Takes in one completion: of a message that has arrived, or whether what was posted has got
    /// there.
    fn poll(&mut self) -> Option<bool> {
        let Some(completion) = self.cq.poll().unwrap() else {
            thread::yield_now();
            return None;
        };
        let ok = completion.is_ok();
        if completion.queue() != self.tx.id() {
            self.replies += u32::from(ok);
            return None;
        }
        let mut done = self.tx.retire(completion).unwrap();
        while self.tx.take(&mut done).is_some() {}
        Some(ok)
    }

    /// Reads the control connection to its end: the goodbye's reason.
    fn goodbye(mut self) -> u16 {
        let mut said = Vec::new();
        let _ = self.stream.read_to_end(&mut said);
        assert_eq!(said.len(), 12, "a goodbye: {said:?}");
        assert_eq!(said[6], 4);
        u16::from_le_bytes([said[10], said[11]])
    }
}

/// A message as the wire has it, field by field.
#[derive(Clone, Default)]
struct Message {
    kind: u8,
    code: u16,
    slot: u32,
    generation: u32,
    credit: u32,
    body_len: Option<u64>,
    /// Kind, key, address, length.
    pieces: Vec<(u32, u32, u64, u64)>,
    inline: Vec<u8>,
}

impl Message {
    fn request(raw: &Raw) -> Message {
        Message {
            kind: 1,
            generation: 1,
            credit: raw.window,
            ..Message::default()
        }
    }

    fn bytes(&self) -> Vec<u8> {
        let mut out = vec![1, self.kind];
        out.extend(ECHO.0.to_le_bytes());
        out.extend(self.code.to_le_bytes());
        out.extend([0; 2]);
        out.extend(self.slot.to_le_bytes());
        out.extend(self.generation.to_le_bytes());
        out.extend(0u32.to_le_bytes());
        out.extend(self.credit.to_le_bytes());
        out.extend((self.inline.len() as u32).to_le_bytes());
        out.extend((self.pieces.len() as u16).to_le_bytes());
        out.extend([0; 2]);
        let body_len = self.body_len.unwrap_or(self.inline.len() as u64);
        out.extend(body_len.to_le_bytes());
        for &(kind, key, addr, len) in &self.pieces {
            out.extend(kind.to_le_bytes());
            out.extend(key.to_le_bytes());
            out.extend(addr.to_le_bytes());
            out.extend(len.to_le_bytes());
        }
        out.extend(&self.inline);
        out
    }
}

struct Stage {
    server: ServerHandle,
    bystander: Client,
    /// Whether offenders write into rings.
    ring: bool,
}

/// Runs a test's body with messages sent, and with messages written into rings.
fn both_ways(body: impl Fn(Stage) + Send + 'static) {
    bounded(move || {
        for ring in [false, true] {
            println!("ring: {ring}");
            body(Stage::new(ring));
        }
    });
}

impl Stage {
    fn new(ring: bool) -> Stage {
        let server = serve(server());
        let bystander = client(&server);
        Stage {
            server,
            bystander,
            ring,
        }
    }

    /// Runs an offender against the server; the bystander must not notice.
    ///
    /// That the offence arrived shows in the goodbye: nothing else could be its reason.
    fn offend(&mut self, want: u16, what: &str, offend: impl FnOnce(&mut Raw)) {
        let broken = self.server.stats().broken;
        let mut raw = Raw::connect(&self.server, self.ring);
        offend(&mut raw);
        assert_eq!(raw.goodbye(), want, "{what}");
        self.unmoved(broken, what);
    }

    /// One more connection was broken, and the others were not.
    fn unmoved(&mut self, broken: u64, what: &str) {
        let reply = self.bystander.call(ECHO, what, patient()).unwrap();
        assert_eq!(reply.bytes(), what.as_bytes());
        assert_eq!(self.server.stats().broken, broken + 1, "{what}");
    }
}

#[test]
fn messages_that_make_no_sense() {
    both_ways(|mut stage| {
        type Bend = fn(&Raw, &mut Message);
        let bends: [(&str, Bend); 13] = [
            ("a reply to a server", |_, m| m.kind = 2),
            ("an error to a server", |_, m| m.kind = 3),
            ("an unknown kind", |_, m| m.kind = 99),
            ("a reply to be fetched without a shelf", |_, m| m.code = 4),
            ("a slot that does not exist", |raw, m| m.slot = raw.slots),
            ("a slot far away", |_, m| m.slot = u32::MAX),
            ("generation 0", |_, m| m.generation = 0),
            ("more credits than entries", |raw, m| {
                m.credit = raw.window + 1
            }),
            ("credits that go back", |raw, m| m.credit = raw.window - 1),
            ("a length without bytes", |_, m| m.body_len = Some(1 << 40)),
            ("a piece without bytes", |_, m| {
                m.pieces = vec![(1, 5, 4096, 0)];
                m.body_len = Some(0);
            }),
            ("a body beyond the limit", |_, m| {
                m.pieces = vec![(1, 5, 4096, 1 << 40)];
                m.body_len = Some(1 << 40);
            }),
            ("pieces that wrap", |_, m| {
                m.pieces = vec![(1, 5, 0, u64::MAX), (1, 5, 0, 4097)];
                m.body_len = Some(4096);
            }),
        ];
        for (what, bend) in bends {
            stage.offend(VIOLATION, what, |raw| {
                let mut message = Message::request(raw);
                bend(raw, &mut message);
                raw.send(message.bytes());
            });
        }
        for garbage in [vec![0; 1], vec![0; 39], vec![0xFF; 40], pattern(4000, 7)] {
            stage.offend(VIOLATION, "garbage", |raw| {
                raw.send(garbage);
            });
        }
        stage.offend(VIOLATION, "an old generation", |raw| {
            let message = Message::request(raw);
            assert!(raw.send(message.bytes()));
            // Whether the first has been answered or not, the second is impossible.
            raw.send(message.bytes());
        });
        stage.offend(VIOLATION, "a release of unknown slots", |raw| {
            let mut message = Message::request(raw);
            (message.kind, message.generation) = (17, 0);
            message.inline = vec![0xFF; 512];
            raw.send(message.bytes());
        });
    });
}

#[test]
fn keys_that_do_not_exist() {
    both_ways(|mut stage| {
        for (what, addr, len) in [
            ("nowhere", 4096u64, 1u64 << 20),
            ("at the end of the world", u64::MAX - 4096, 4096),
        ] {
            stage.offend(DEVICE, what, |raw| {
                let mut message = Message::request(raw);
                message.pieces = vec![(1, 0xDEAD_BEEF, addr, len)];
                message.body_len = Some(len);
                raw.send(message.bytes());
            });
        }
    });
}

#[test]
fn requests_without_room_for_their_replies() {
    both_ways(|mut stage| {
        stage.offend(VIOLATION, "never posts again", |raw| {
            // Well-formed requests, one after the other, that never return a credit.
            for n in 0..raw.window + 8 {
                let mut message = Message::request(raw);
                message.slot = n % raw.slots;
                message.generation = n / raw.slots + 1;
                if !raw.send(message.bytes()) {
                    break;
                }
            }
        });
        assert_eq!(
            stage.server.stats().rnr,
            0,
            "the server never ran into a full client"
        );
    });
}

#[test]
fn messages_that_do_not_belong_into_a_ring() {
    bounded(|| {
        let mut stage = Stage::new(true);
        stage.offend(VIOLATION, "a message longer than any", |raw| {
            raw.write(Some(vec![1; 5000]), 0, true);
        });
        stage.offend(VIOLATION, "a message of no bytes", |raw| {
            raw.write(None, 0, true);
        });
        stage.offend(VIOLATION, "a message in another place", |raw| {
            let message = Message::request(raw).bytes();
            raw.write(Some(message), 64, true);
        });
        stage.offend(VIOLATION, "nothing, sent", |raw| {
            raw.send_plainly(None);
        });
        stage.offend(DEVICE, "a message, sent", |raw| {
            let message = Message::request(raw).bytes();
            raw.send_plainly(Some(message));
        });
        // What is written without a completion is nobody's business.
        let mut raw = Raw::connect(&stage.server, true);
        let len = raw.ring.unwrap().len as usize;
        assert!(raw.write(Some(vec![0xFF; len]), 0, false));
        let message = Message::request(&raw).bytes();
        assert!(raw.send(message));
        while raw.replies == 0 {
            raw.poll();
        }
        // Replies that nobody can take end the connection of who asked for them.
        let broken = stage.server.stats().broken;
        let nowhere = RemoteRegion {
            addr: 4096,
            len: 1 << 20,
            rkey: RKey(0xDEAD_BEEF),
        };
        let mut raw = Raw::with_reply_ring(&stage.server, true, Some(nowhere));
        let message = Message::request(&raw).bytes();
        raw.send(message);
        assert_eq!(raw.goodbye(), DEVICE);
        stage.unmoved(broken, "a ring that does not exist");
    });
}

#[test]
fn a_key_covers_one_ring() {
    bounded(|| {
        let mut stage = Stage::new(true);
        let mut raw = Raw::connect(&stage.server, true);
        let ring = raw.ring.unwrap();
        for beyond in [
            RemoteRegion {
                len: ring.len + 64,
                ..ring
            },
            RemoteRegion {
                addr: ring.addr - 64,
                ..ring
            },
        ] {
            raw.ring = Some(beyond);
            let len = beyond.len;
            assert!(!raw.write(Some(vec![0xFF; len as usize]), 0, false));
            raw = Raw::connect(&stage.server, true);
        }
        let reply = stage.bystander.call(ECHO, "x", patient()).unwrap();
        assert_eq!(reply.bytes(), b"x");
    });
}

/// The ring is rewritten all the time while messages are read out of it: whatever is seen is checked
/// as it was copied, and the worst that happens is the end of that connection.
#[test]
fn a_ring_that_changes_while_it_is_read() {
    bounded(|| {
        let mut stage = Stage::new(true);
        let (mut whole, mut torn) = (0, 0);
        for round in 0..40u64 {
            let mut raw = Raw::connect(&stage.server, true);
            let ring = raw.ring.unwrap();
            let mut other = Raw::connect(&stage.server, true);
            let stop = AtomicBool::new(false);
            thread::scope(|scope| {
                // Another connection of the same peer, which knows the key.
                let (stop, other) = (&stop, &mut other);
                scope.spawn(move || {
                    other.ring = Some(ring);
                    let mut state = round | 0x9e37_79b9_7f4a_7c15;
                    while !stop.load(Ordering::Relaxed) {
                        state ^= state << 13;
                        state ^= state >> 7;
                        state ^= state << 17;
                        let at = state % 4096;
                        // Single bytes, words that pass for lengths, whole stretches.
                        let bytes = match state >> 60 {
                            0..6 => vec![state as u8],
                            6..12 => (state % 5000).to_le_bytes().to_vec(),
                            _ => pattern((state >> 20) as usize % 3000 + 1, state as u8),
                        };
                        if !other.write(Some(bytes), at, false) {
                            break;
                        }
                    }
                });
                for n in 0..30u32 {
                    let mut message = Message::request(&raw);
                    message.slot = n % raw.slots;
                    message.generation = n / raw.slots + 1;
                    message.credit = raw.window;
                    message.inline = pattern((n as usize * 131) % 3000, n as u8);
                    if n % 3 == 0 {
                        message.pieces = vec![(1, 7, 4096, 10)];
                        message.inline.clear();
                        message.body_len = Some(10);
                    }
                    if !raw.send(message.bytes()) {
                        torn += 1;
                        break;
                    }
                    whole += 1;
                }
                stop.store(true, Ordering::Relaxed);
            });
            drop((raw, other));
            let what = format!("round {round}");
            let reply = stage.bystander.call(ECHO, &what, patient()).unwrap();
            assert_eq!(reply.bytes(), what.as_bytes());
        }
        println!("{whole} messages taken, {torn} connections ended");
        assert!(whole > 0);
        assert_eq!(stage.server.stats().panics, 0);
    });
}
