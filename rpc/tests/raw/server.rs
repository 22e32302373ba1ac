//! A server made of bare verbs: right until the handshake is over.

use super::{Bytes, Message, Work};
use crate::common::*;
use mempool::{BudgetKind, ExposedLease};
use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::sync::atomic::Ordering;
use verbs::{Access, Cq, Endpoint, RecvQueue, RemoteRegion, SendQueue};

/// Inline limit of its connections, and the longest message there is with it.
pub const INLINE: u32 = 512;
pub const LONGEST: u64 = 40 + 16 * 24 + INLINE as u64;
/// Calls at once.
pub const SLOTS: u32 = 4;
/// Bytes from one entry of the shelf to the next.
pub const STRIDE: u64 = 960;
const WINDOW: u32 = 32;
const RING: usize = 32 << 10;

/// A connection to a client.
pub struct RawServer {
    pub stream: TcpStream,
    pub cq: Cq,
    pub tx: SendQueue<Work>,
    rx: RecvQueue<Bytes>,
    /// Where the client's requests arrive, if it writes them.
    ring: Option<ExposedLease>,
    at: u64,
    /// What it reads replies from, if it does.
    pub shelf: Option<ExposedLease>,
    /// Its own ring, and where the next message belongs.
    pub peer_ring: Option<RemoteRegion>,
    pub peer_at: u64,
    /// Whether it has to look for requests in its ring, and how many it has taken from there.
    polls: bool,
    taken: u32,
    /// What the client reads and writes if it has to look for replies, how many there have been, and the flag of the last sleep that it was
    /// woken from.
    pub cell: Option<ExposedLease>,
    pub count: u32,
    woken: u64,
    /// Receive entries posted since the beginning.
    pub posted: u32,
    /// Requests that have arrived.
    pub requests: VecDeque<Message>,
    /// The client is gone, or the queue pair broken.
    pub over: bool,
}

fn exposed(len: usize, access: Access) -> ExposedLease {
    let (_, pd, pool) = memory();
    let memory = pool.exposed_in(BudgetKind::User, len).expect("memory");
    memory.lease(pd, access).expect("a key")
}

impl RawServer {
    /// Hears a hello and welcomes the client.
    pub fn welcome(mut stream: TcpStream) -> io::Result<RawServer> {
        stream.set_read_timeout(Some(hang()))?;
        let mut prefix = [0; 10];
        stream.read_exact(&mut prefix)?;
        let mut hello = vec![0; u16::from_le_bytes([prefix[8], prefix[9]]).into()];
        stream.read_exact(&mut hello)?;
        let (requests, replies) = (hello[0], hello[1]);
        let peer = Endpoint::from_bytes(&hello[32..32 + Endpoint::LEN]).expect("an end point");
        let rest = &hello[32 + Endpoint::LEN + 2..];
        let peer_ring = rest.first_chunk().map(RemoteRegion::from_bytes);

        let (context, pd, _) = memory();
        let cq = context.cq(512).build().expect("a queue");
        let ready = pd
            .rc(&cq)
            .send_depth(128)
            .recv_depth(WINDOW)
            .rd_atomic(16)
            .access(Access::REMOTE_READ | Access::REMOTE_WRITE)
            .build()
            .expect("a queue pair");
        let (setup, tx, mut rx) = ready.split::<Work, Bytes>();
        for _ in 0..WINDOW {
            rx.post(pd.register(vec![0; 5000]).expect("memory"))
                .expect("an entry");
        }
        let polls = requests & 4 != 0;
        let writes = requests & 2 != 0 || polls;
        let fetches = replies & 0b1_1000 != 0;
        let ring = writes.then(|| exposed(RING, Access::REMOTE_WRITE));
        if let Some(ring) = &ring {
            ring.write_at(0, &vec![0; RING]).expect("its own memory");
        }
        let cell = (replies & 4 != 0).then(|| {
            let cell = exposed(64, Access::REMOTE_READ | Access::REMOTE_WRITE);
            cell.write_at(0, &[0; 64]).expect("its own memory");
            // The client begins asleep.
            cell.write_at(8, &1u64.to_le_bytes())
                .expect("its own memory");
            cell
        });
        let shelf = (u64::from(SLOTS) * STRIDE) as usize;
        let shelf = fetches.then(|| exposed(shelf, Access::REMOTE_READ));
        let mut body = vec![
            requests.trailing_zeros() as u8,
            replies.trailing_zeros() as u8,
        ];
        for value in [WINDOW, INLINE, SLOTS] {
            body.extend(value.to_le_bytes());
        }
        body.extend((1u64 << 20).to_le_bytes());
        // What is pushed beside a shelf goes into the client's ring.
        body.extend(u64::from(fetches && peer_ring.is_some()).to_le_bytes());
        body.extend((Endpoint::LEN as u16).to_le_bytes());
        body.extend(setup.endpoint().to_bytes());
        for region in [&ring, &shelf] {
            match region {
                Some(region) => {
                    body.extend(24u16.to_le_bytes());
                    body.extend(region.remote().to_bytes());
                }
                None => body.extend(0u16.to_le_bytes()),
            }
        }
        if let Some(cell) = &cell {
            body.extend(24u16.to_le_bytes());
            body.extend(cell.remote().to_bytes());
        }
        let mut welcome = b"VBRP\x03\0\x02\0".to_vec();
        welcome.extend((body.len() as u16).to_le_bytes());
        welcome.extend(body);
        setup.connect(&peer).expect("connected");
        stream.write_all(&welcome)?;
        stream.set_nonblocking(true)?;
        let pushes_there = replies & 0b110 != 0 || fetches;
        Ok(RawServer {
            stream,
            cq,
            tx,
            rx,
            ring,
            at: 0,
            shelf,
            peer_ring: peer_ring.filter(|_| pushes_there),
            peer_at: 0,
            polls,
            taken: 0,
            cell,
            count: 0,
            woken: 0,
            posted: WINDOW,
            requests: VecDeque::new(),
            over: false,
        })
    }

    /// Looks whether something has come, a request or the end.
    pub fn look(&mut self) {
        let mut word = [0; 64];
        match self.stream.read(&mut word) {
            Ok(_) => self.over = true,
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
            Err(_) => self.over = true,
        }
        while self.poll().is_some() {}
        while self.polls && self.find() {}
    }

    /// Takes the next request out of the ring, if it is there.
    fn find(&mut self) -> bool {
        let Some(ring) = &self.ring else { return false };
        for at in [self.at as usize, 0] {
            // At the ring's end there is no word.
            let Ok(word) = ring.atomic_u64(at) else {
                continue;
            };
            let stamp = u64::from_le(word.load(Ordering::Acquire));
            if (stamp >> 32) as u32 != self.taken.wrapping_add(1) {
                continue;
            }
            let mut framed = vec![0; 16 + stamp as u32 as usize];
            ring.read_at(at, &mut framed).expect("in the ring");
            let sum = xxhash_rust::xxh3::xxh3_64_with_seed(&framed[16..], stamp);
            if framed[8..16] != sum.to_le_bytes() {
                return false;
            }
            let span = framed.len().next_multiple_of(64);
            for at in (at..at + span).step_by(64) {
                let word = ring.atomic_u64(at).expect("in the ring");
                word.store(0, Ordering::Relaxed);
            }
            self.at = (at + span) as u64;
            self.taken = self.taken.wrapping_add(1);
            // As if its entry had been posted again.
            self.posted += 1;
            self.heard(&framed[16..]);
            return true;
        }
        false
    }

    /// Takes in a completion: `Some(None)` of a request, else whether what was posted has got there.
    fn poll(&mut self) -> Option<Option<bool>> {
        let completion = self.cq.poll().expect("a queue")?;
        let ok = completion.is_ok();
        if completion.queue() == self.tx.id() {
            self.over |= !ok;
            let mut done = self.tx.retire(completion).expect("ours");
            while self.tx.take(&mut done).is_some() {}
            return Some(Some(ok));
        }
        let Ok(Ok(received)) = self.rx.redeem(completion) else {
            self.over = true;
            return Some(None);
        };
        let len = received.byte_len() as usize;
        let message = match &self.ring {
            // It never said that it sleeps.
            Some(_) if self.polls => {
                self.over = true;
                return Some(None);
            }
            Some(ring) => {
                let span = (len as u64).next_multiple_of(64);
                if self.at + span > RING as u64 {
                    self.at = 0;
                }
                let mut message = vec![0; len];
                ring.read_at(self.at as usize, &mut message)
                    .expect("in the ring");
                self.at += span;
                message
            }
            None => received.bytes()[..len].to_vec(),
        };
        if self.rx.post(received.into_inner()).is_ok() {
            self.posted += 1;
        }
        self.heard(&message);
        Some(None)
    }

    /// Takes note of a message.
    fn heard(&mut self, message: &[u8]) {
        let word = |at: usize| u32::from_le_bytes(message[at..at + 4].try_into().expect("four"));
        if message[1] == 1 {
            self.requests.push_back(Message {
                kind: 2,
                code: u16::from_le_bytes([message[4], message[5]]),
                slot: word(8),
                generation: word(12),
                ..Message::default()
            });
        }
    }

    fn done(&mut self) {
        while !self.over {
            match self.poll() {
                Some(Some(_)) => return,
                Some(None) => {}
                None => std::thread::yield_now(),
            }
        }
    }

    /// Sends bytes as a message, or writes them to where the next one belongs.
    pub fn send(&mut self, message: Vec<u8>) {
        let Some(ring) = self.peer_ring else {
            return self.send_plainly(message);
        };
        let message = match self.cell {
            Some(_) => self.framed(&message),
            None => message,
        };
        let span = (message.len() as u64).next_multiple_of(64);
        if self.peer_at + span > ring.len {
            self.peer_at = 0;
        }
        let at = self.peer_at;
        self.peer_at += span;
        self.write(message, at, self.cell.is_none());
        self.wake();
    }

    /// The next message with what is in front of it where it has to be looked for; counted.
    fn framed(&mut self, message: &[u8]) -> Vec<u8> {
        self.count = self.count.wrapping_add(1);
        let stamp = message.len() as u64 | u64::from(self.count) << 32;
        let sum = xxhash_rust::xxh3::xxh3_64_with_seed(message, stamp);
        let mut out = stamp.to_le_bytes().to_vec();
        out.extend(sum.to_le_bytes());
        out.extend(message);
        if let Some(cell) = &self.cell {
            let word = cell.atomic_u64(0).expect("a word");
            word.swap(u64::from(self.count).to_le(), Ordering::SeqCst);
        }
        out
    }

    /// Wakes the client if it sleeps.
    fn wake(&mut self) {
        let Some(cell) = &self.cell else { return };
        let flag = cell.atomic_u64(8).expect("a word").load(Ordering::SeqCst);
        if std::mem::replace(&mut self.woken, flag) != flag {
            self.post(Work(None));
        }
    }

    pub fn send_plainly(&mut self, message: Vec<u8>) {
        self.post(Work(Some(memory().1.register(message).expect("memory"))));
    }

    fn post(&mut self, message: Work) {
        if self.tx.send(message).signaled().post().is_ok() {
            self.done();
        } else {
            self.over = true;
        }
    }

    /// Writes into the client's ring.
    pub fn write(&mut self, bytes: Vec<u8>, at: u64, with_imm: bool) {
        let Some(ring) = self.peer_ring else {
            return;
        };
        let Ok(place) = ring.slice(at..at + bytes.len() as u64) else {
            return;
        };
        let work = Work(Some(memory().1.register(bytes).expect("memory")));
        let wr = self.tx.write(work, place).signaled();
        let wr = if with_imm { wr.imm(7) } else { wr };
        if wr.post().is_ok() {
            self.done();
        } else {
            self.over = true;
        }
    }
}
