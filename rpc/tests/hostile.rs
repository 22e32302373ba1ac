//! A client that gets through the handshake and then breaks every rule there is: its connection
//! ends with a reason, and nobody else notices.

mod common;
mod raw;

use common::*;
use raw::{DEVICE, Message, Raw, VIOLATION};
use rpc::{Client, ServerHandle};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use verbs::{RKey, RemoteRegion};

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
