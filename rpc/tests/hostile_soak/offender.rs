//! A client that does what a generator says.

use crate::common::*;
use crate::raw::{Introduction, Message, Raw, Work};
use mempool::{BudgetKind, ExposedLease};
use rpc::ServerHandle;
use rpc::fuzzing::{Random, generate};
use std::collections::BTreeMap;
use std::fmt;
use std::io::{Read, Write};
use std::net::Shutdown;
use std::sync::{Arc, Mutex};
use verbs::{Access, RKey, RemoteRegion};

/// Regions of all offenders and of the server, of now and of before: whose keys can be told.
#[derive(Clone, Default)]
pub struct Known(Arc<Mutex<Vec<RemoteRegion>>>);

impl Known {
    fn add(&self, region: RemoteRegion) {
        let mut known = self.0.lock().expect("no panic");
        known.push(region);
        if known.len() > 64 {
            known.remove(0);
        }
    }

    fn any(&self, random: &mut Random) -> RemoteRegion {
        let nobody = RemoteRegion {
            addr: random.edge(),
            len: 1 + (random.edge() >> 24),
            rkey: RKey(random.word() as u32),
        };
        let known = self.0.lock().expect("no panic");
        match random.below(known.len() as u64 + 1) as usize {
            0 => nobody,
            n => known[n - 1],
        }
    }
}

/// What was done, and how connections ended.
#[derive(Default)]
pub struct Tally {
    actions: BTreeMap<&'static str, u64>,
    goodbyes: BTreeMap<u16, u64>,
    connections: u64,
    replies: u64,
}

impl Tally {
    fn note(&mut self, action: &'static str) {
        *self.actions.entry(action).or_default() += 1;
    }

    /// A connection is over; what the server said at the end.
    pub fn ended(&mut self, mut offender: Offender) {
        self.connections += 1;
        self.replies += u64::from(offender.raw.replies);
        let stream = &mut offender.raw.stream;
        let mut said = [0; 12];
        let heard = stream
            .set_nonblocking(true)
            .and_then(|()| stream.read(&mut said));
        if matches!(heard, Ok(12)) && said[6] == 4 {
            let why = u16::from_le_bytes([said[10], said[11]]);
            *self.goodbyes.entry(why).or_default() += 1;
        }
    }

    pub fn plus(mut self, other: Tally) -> Tally {
        for (action, count) in other.actions {
            *self.actions.entry(action).or_default() += count;
        }
        for (why, count) in other.goodbyes {
            *self.goodbyes.entry(why).or_default() += count;
        }
        self.connections += other.connections;
        self.replies += other.replies;
        self
    }

    /// A run in which something never happened says nothing about it.
    pub fn had_everything(&self) {
        assert_eq!(self.actions.len(), ACTIONS.len(), "{self}");
        let ends = [crate::raw::VIOLATION, crate::raw::DEVICE];
        assert!(
            ends.iter().all(|why| self.goodbyes.contains_key(why)),
            "{self}"
        );
        assert!(self.replies > 0, "{self}");
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Tally {
            actions,
            goodbyes,
            connections,
            replies,
        } = self;
        write!(
            f,
            "{connections} connections, {replies} messages from the server, goodbyes by reason {goodbyes:?}, {actions:?}"
        )
    }
}

type Action = fn(&mut Offender, &mut Random) -> bool;

/// What can be done, how often of all, and how it is called.
const ACTIONS: [(&str, u64, Action); 17] = [
    ("a right call", 30, Offender::call),
    ("a bent message", 12, Offender::bent),
    ("an odd header", 12, Offender::odd),
    ("bytes anywhere", 40, Offender::scribble),
    ("a message elsewhere", 3, Offender::elsewhere),
    ("a part, completed", 3, Offender::part),
    ("lengths", 3, Offender::length),
    ("pieces", 10, Offender::pieces),
    ("a release", 8, Offender::release),
    ("credits", 5, Offender::credit),
    ("the last one again", 3, Offender::again),
    ("a SEND", 2, Offender::send),
    ("a READ", 4, Offender::read),
    ("a flood", 2, Offender::flood),
    ("words", 2, Offender::words),
    ("stamps", 6, Offender::stamp),
    ("gone", 2, Offender::gone),
];

/// A connection of one who breaks the rules.
pub struct Offender {
    pub raw: Raw,
    known: Known,
    /// Use of each slot so far.
    generations: Vec<u32>,
    last: Vec<u8>,
    /// Own memory that the server may read, and where replies go.
    lent: Option<ExposedLease>,
    _ring: Option<ExposedLease>,
}

fn exposed(len: usize, access: Access) -> ExposedLease {
    let (_, pd, pool) = memory();
    let memory = pool.exposed_in(BudgetKind::User, len).expect("memory");
    memory.lease(pd, access).expect("a key")
}

impl Offender {
    pub fn new(server: &ServerHandle, random: &mut Random, known: &Known) -> Offender {
        let ring = random
            .once_in(2)
            .then(|| exposed(320 << 10, Access::REMOTE_WRITE));
        let claim = ring.as_ref().map(|ring| {
            let mut claim = ring.remote();
            // Now and then not what it is.
            match random.below(12) {
                0 => claim.len *= 2,
                1 => claim.rkey = RKey(random.word() as u32),
                2 => claim.addr += 64,
                _ => {}
            }
            claim
        });
        let replies = match claim {
            Some(_) => random.pick(&[0b10, 0b10, 0b100, 0b1000, 0b1_0000]),
            None => random.pick(&[0b1, 0b1, 0b1000, 0b1_0000]),
        };
        let introduction = Introduction {
            ring: !random.once_in(4),
            polled: random.once_in(3),
            replies,
            claim,
            late: false,
        };
        let mut raw = Raw::introduce(server, introduction);
        raw.posts_again = !random.once_in(8);
        for region in [raw.ring, raw.shelf].into_iter().flatten() {
            known.add(region);
        }
        let lent = random
            .once_in(2)
            .then(|| exposed(20_000, Access::REMOTE_READ));
        if let Some(lent) = &lent {
            known.add(lent.remote());
        }
        Offender {
            generations: vec![0; raw.slots as usize],
            raw,
            known: known.clone(),
            last: Vec::new(),
            lent,
            _ring: ring,
        }
    }

    /// Does something; false if the connection has ended.
    pub fn act(&mut self, random: &mut Random, tally: &mut Tally) -> bool {
        let all: u64 = ACTIONS.iter().map(|(_, share, _)| share).sum();
        let mut at = random.below(all);
        for (name, share, action) in ACTIONS {
            if at < share {
                tally.note(name);
                return action(self, random);
            }
            at -= share;
        }
        true
    }

    /// The next request, as it should be.
    fn request(&mut self, random: &mut Random) -> Message {
        let mut message = Message::request(&self.raw);
        message.credit = self.raw.posted;
        message.slot = random.below(self.raw.slots.into()) as u32;
        let generation = &mut self.generations[message.slot as usize];
        *generation = generation.wrapping_add(1);
        message.generation = *generation;
        message.method = random.pick(&[ECHO, ECHO, TAKE, SUM, DROP, SINK]).0;
        message.code = match self.raw.shelf {
            Some(_) => random.below(4) as u16,
            None => 0,
        };
        message.remaining = random.pick(&[0, 0, 1, 1_000_000]);
        let len = random.pick(&[0, 16, 100, 600, 4096]);
        message.inline = pattern(random.below(len + 1) as usize, random.word() as u8);
        message
    }

    fn put(&mut self, bytes: Vec<u8>) -> bool {
        self.last = bytes.clone();
        self.raw.send(bytes)
    }

    /// A request, and its reply.
    fn call(&mut self, random: &mut Random) -> bool {
        let message = self.request(random);
        let (before, pushed) = (self.raw.replies, message.code == 0);
        if !self.put(message.bytes()) {
            return false;
        }
        // What is fetched is not waited for, and neither is what cannot come.
        for _ in 0..200 {
            if self.raw.replies != before || !pushed {
                break;
            }
            self.raw.poll();
        }
        true
    }

    fn bent(&mut self, random: &mut Random) -> bool {
        let mut bytes = self.request(random).bytes();
        generate::bend(&mut bytes, random, generate::message);
        bytes.truncate(8000);
        if bytes.is_empty() {
            return self.empty();
        }
        self.put(bytes)
    }

    /// A field that is not what it should be.
    fn odd(&mut self, random: &mut Random) -> bool {
        let mut message = self.request(random);
        let value = random.edge();
        match random.below(8) {
            0 => message.kind = value as u8,
            1 => message.code = value as u16,
            2 => message.slot = value as u32,
            3 => message.generation = value as u32,
            4 => message.credit = value as u32,
            5 => message.body_len = Some(value),
            6 => message.remaining = value as u32,
            _ => message.method = value as u16,
        }
        self.put(message.bytes())
    }

    /// Writes somewhere in a ring, of this connection or another, without anybody being told.
    fn scribble(&mut self, random: &mut Random) -> bool {
        let Some(own) = self.raw.ring else {
            return true;
        };
        let most = random.pick(&[1, 8, 400]);
        let len = 1 + random.below(most);
        let noise = match random.once_in(2) {
            true => generate::message(random),
            false => random.bytes(len as usize),
        };
        let at = random.below(own.len - noise.len() as u64);
        // Near where the next message goes, it can be just what is being read.
        let near = random.once_in(2) && self.raw.at + 64 + noise.len() as u64 <= own.len;
        let at = if near {
            self.raw.at + random.below(64)
        } else {
            at
        };
        if !random.once_in(3) {
            return self.raw.write(Some(noise), at, false);
        }
        // Whoever knows the key of another's ring can write there as well.
        let other = self.known.any(random);
        if other.len != own.len {
            return true;
        }
        self.raw.ring = Some(other);
        let written = self.raw.write(Some(noise), at, false);
        self.raw.ring = Some(own);
        written
    }

    fn elsewhere(&mut self, random: &mut Random) -> bool {
        let bytes = self.request(random).bytes();
        match self.raw.ring {
            Some(ring) => {
                let at = random.below(ring.len - bytes.len() as u64);
                self.raw.write(Some(bytes), at, true)
            }
            None => self.put(bytes),
        }
    }

    /// The first or last part of a message, of which the rest was never written.
    fn part(&mut self, random: &mut Random) -> bool {
        let bytes = self.request(random).bytes();
        let cut = 1 + random.below(bytes.len() as u64 - 1) as usize;
        let part = match random.once_in(2) {
            true => bytes[..cut].to_vec(),
            false => bytes[cut..].to_vec(),
        };
        self.put(part)
    }

    /// A message that is as long as none can be.
    fn length(&mut self, random: &mut Random) -> bool {
        match random.once_in(3) {
            true => self.empty(),
            false => {
                let len = random.pick(&[1, 39, 4519, 4520, 4521, 8000]);
                let bytes = random.bytes(len);
                self.put(bytes)
            }
        }
    }

    fn empty(&mut self) -> bool {
        match self.raw.ring {
            Some(_) => self.raw.write(None, 0, true),
            None => self.raw.send_plainly(None),
        }
    }

    /// A body that is to be READ, from memory whose key is right, wrong, or withdrawn meanwhile.
    fn pieces(&mut self, random: &mut Random) -> bool {
        let mut message = self.request(random);
        let mut len = message.inline.len() as u64;
        if len > 0 {
            message.pieces.push((0, 0, 0, len));
        }
        for _ in 0..=random.below(4) {
            let region = match (&self.lent, random.once_in(3)) {
                (Some(lent), false) => lent.remote(),
                _ => self.known.any(random),
            };
            let most = region.len.clamp(1, 20_000);
            let size = 1 + random.below(most);
            let offset = random.below(most - size + 1);
            let addr = region.addr.wrapping_add(offset);
            message.pieces.push((1, region.rkey.0, addr, size));
            len += size;
        }
        message.body_len = Some(len);
        let sent = self.put(message.bytes());
        if random.once_in(8) {
            self.lent = None;
        }
        sent
    }

    fn release(&mut self, random: &mut Random) -> bool {
        let bits = random.pick(&[1, 4, 8, 600]);
        let message = Message {
            kind: 17,
            credit: self.raw.posted,
            inline: {
                let len = random.below(bits) as usize;
                random.bytes(len)
            },
            ..Message::default()
        };
        self.put(message.bytes())
    }

    fn credit(&mut self, random: &mut Random) -> bool {
        let off = random.pick(&[0, 0, 0, 1, u32::MAX, 40, 1 << 31]);
        let message = Message {
            kind: 16,
            credit: self.raw.posted.wrapping_add(off),
            ..Message::default()
        };
        self.put(message.bytes())
    }

    fn again(&mut self, random: &mut Random) -> bool {
        match self.last.is_empty() {
            true => self.call(random),
            false => self.put(self.last.clone()),
        }
    }

    fn send(&mut self, random: &mut Random) -> bool {
        let bytes = self.request(random).bytes();
        self.raw.send_plainly(Some(bytes))
    }

    /// Says that there is a message where the next one belongs, of any length and number, or that there have been some that have not.
    fn stamp(&mut self, random: &mut Random) -> bool {
        let Some(ring) = self.raw.ring.filter(|_| self.raw.cell.is_some()) else {
            return self.call(random);
        };
        if random.once_in(4) {
            self.raw.count += random.pick(&[1, 2, 60]);
            self.raw.tell();
            return self.raw.wake();
        }
        let edge = random.edge();
        let len = random.pick(&[1, 40, 104, 4520, 4521, edge]) as u32;
        let ahead = random.pick(&[1, 1, 1, 2, 0]);
        let number = (self.raw.count as u32).wrapping_add(ahead);
        let stamp = u64::from(len) | u64::from(number) << 32;
        let at = random.pick(&[self.raw.at, self.raw.at, 0, ring.len - 64]);
        let at = at.min(ring.len - 64);
        let mut said = stamp.to_le_bytes().to_vec();
        let more = random.below(48) as usize;
        said.extend(random.bytes(more));
        self.raw.write(Some(said), at, false) && self.raw.wake()
    }

    /// From the shelf, the ring, or somewhere.
    fn read(&mut self, random: &mut Random) -> bool {
        let region = match (self.raw.shelf, random.once_in(4)) {
            (Some(shelf), false) => shelf,
            _ => self.known.any(random),
        };
        let len = 1 + random.below(region.len.min(4096));
        let (_, pd, _) = memory();
        let into = Work(Some(pd.register(vec![0; len as usize]).expect("memory")));
        match region.slice(0..len) {
            Ok(place) => self.raw.tx.read(into, place).signaled().post().is_ok() && self.raw.done(),
            Err(_) => true,
        }
    }

    /// As many requests as there are slots, one behind the other.
    fn flood(&mut self, random: &mut Random) -> bool {
        (0..self.raw.slots.min(40)).all(|_| {
            let message = self.request(random);
            self.put(message.bytes())
        })
    }

    /// Something on the control connection, after which it is over at any time.
    fn words(&mut self, random: &mut Random) -> bool {
        let said = match random.below(3) {
            0 => random.bytes(20),
            1 => generate::control_stream(random),
            _ => b"VBRP\x03\0\x04\0\x02\0\x01\0".to_vec(),
        };
        let _ = self.raw.stream.write_all(&said);
        if random.once_in(3) {
            let _ = self.raw.stream.shutdown(Shutdown::Write);
        }
        let more = self.request(random).bytes();
        self.put(more) && random.once_in(2)
    }

    /// Ends without a word.
    fn gone(&mut self, random: &mut Random) -> bool {
        if random.once_in(2) {
            let message = self.request(random);
            self.put(message.bytes());
        }
        false
    }
}
