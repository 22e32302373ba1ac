//! A client that gets through the handshake and then breaks every rule there is: its connection
//! ends with a reason, and nobody else notices.

mod common;

use common::*;
use rpc::{Client, ServerHandle};
use std::io::{Read, Write};
use std::net::TcpStream;
use verbs::{Cq, Endpoint, Private, RecvQueue, SendQueue};

type Bytes = Private<Vec<u8>>;

const VIOLATION: u16 = 2;
const DEVICE: u16 = 4;

/// A client made of bare verbs.
struct Raw {
    stream: TcpStream,
    cq: Cq,
    tx: SendQueue<Bytes>,
    _rx: RecvQueue<Bytes>,
    window: u32,
    slots: u32,
}

impl Raw {
    fn connect(server: &ServerHandle) -> Raw {
        let (context, pd, _) = memory();
        let window = 32u32;
        let cq = context.cq(512).build().unwrap();
        let ready = pd
            .rc(&cq)
            .send_depth(256)
            .recv_depth(window)
            .build()
            .unwrap();
        let (setup, tx, mut rx) = ready.split::<Bytes, Bytes>();
        for _ in 0..window {
            rx.post(pd.register(vec![0; 5000]).unwrap()).unwrap();
        }
        let mut body = vec![1, 1];
        for value in [window, 4096, 24] {
            body.extend(value.to_le_bytes());
        }
        body.extend((1u64 << 30).to_le_bytes());
        body.extend(0u64.to_le_bytes());
        body.extend((Endpoint::LEN as u16).to_le_bytes());
        body.extend(setup.endpoint().to_bytes());
        body.extend([0; 2]);
        let mut hello = b"VBRP\x01\0\x01\0".to_vec();
        hello.extend((body.len() as u16).to_le_bytes());
        hello.extend(body);
        let mut stream = TcpStream::connect(server.local_addr()).unwrap();
        stream.set_read_timeout(Some(hang())).unwrap();
        stream.write_all(&hello).unwrap();
        let mut welcome = [0; 10 + 2 + 12 + 16 + 2 + Endpoint::LEN + 2];
        stream.read_exact(&mut welcome).unwrap();
        assert_eq!(welcome[6], 2, "a welcome");
        let word = |at: usize| u32::from_le_bytes(welcome[at..at + 4].try_into().unwrap());
        let slots = word(20);
        let peer = Endpoint::from_bytes(&welcome[42..42 + Endpoint::LEN]).unwrap();
        setup.connect(&peer).unwrap();
        Raw {
            stream,
            cq,
            tx,
            _rx: rx,
            window,
            slots,
        }
    }

    /// Sends bytes as a message; false if the device reports that it did not get there.
    fn send(&mut self, message: Vec<u8>) -> bool {
        let (_, pd, _) = memory();
        let message = pd.register(message).unwrap();
        if self.tx.send(message).signaled().post().is_err() {
            return false;
        }
        loop {
            let Some(completion) = self.cq.poll().unwrap() else {
                std::thread::yield_now();
                continue;
            };
            if completion.queue() == self.tx.id() {
                return completion.is_ok();
            }
        }
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
        out.extend([0; 4]);
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
}

impl Stage {
    fn new() -> Stage {
        let server = serve(server());
        let bystander = client(&server);
        Stage { server, bystander }
    }

    /// Runs an offender against the server; the bystander must not notice.
    fn offend(&mut self, want: u16, what: &str, offend: impl FnOnce(&mut Raw)) {
        let broken = self.server.stats().broken;
        let mut raw = Raw::connect(&self.server);
        offend(&mut raw);
        assert_eq!(raw.goodbye(), want, "{what}");
        let reply = self.bystander.call(ECHO, what, patient()).unwrap();
        assert_eq!(reply.bytes(), what.as_bytes());
        assert_eq!(self.server.stats().broken, broken + 1, "{what}");
    }
}

#[test]
fn messages_that_make_no_sense() {
    bounded(|| {
        let mut stage = Stage::new();
        type Bend = fn(&Raw, &mut Message);
        let bends: [(&str, Bend); 12] = [
            ("a reply to a server", |_, m| m.kind = 2),
            ("an error to a server", |_, m| m.kind = 3),
            ("an unknown kind", |_, m| m.kind = 99),
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
                assert!(raw.send(message.bytes()));
            });
        }
        for garbage in [vec![0; 1], vec![0; 39], vec![0xFF; 40], pattern(4000, 7)] {
            stage.offend(VIOLATION, "garbage", |raw| assert!(raw.send(garbage)));
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
            assert!(raw.send(message.bytes()));
        });
    });
}

#[test]
fn keys_that_do_not_exist() {
    bounded(|| {
        let mut stage = Stage::new();
        for (what, addr, len) in [
            ("nowhere", 4096u64, 1u64 << 20),
            ("at the end of the world", u64::MAX - 4096, 4096),
        ] {
            stage.offend(DEVICE, what, |raw| {
                let mut message = Message::request(raw);
                message.pieces = vec![(1, 0xDEAD_BEEF, addr, len)];
                message.body_len = Some(len);
                assert!(raw.send(message.bytes()));
            });
        }
    });
}

#[test]
fn requests_without_room_for_their_replies() {
    bounded(|| {
        let mut stage = Stage::new();
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
