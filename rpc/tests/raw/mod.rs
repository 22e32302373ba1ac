//! A client made of bare verbs, which got through the handshake and now says what it likes; [`server`] is its counterpart.
#![allow(dead_code, reason = "each test file uses its part")]

pub mod server;

use crate::common::*;
use rpc::ServerHandle;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::atomic::Ordering;
use std::thread;
use verbs::{
    Access, Cq, Endpoint, Exposed, Gather, Mmap, Private, RecvQueue, RemoteRegion, Scatter,
    SendQueue, SgeList,
};

pub type Bytes = Private<Vec<u8>>;

/// Bytes to send or write, or none at all.
pub struct Work(pub Option<Bytes>);

// SAFETY: `Private` keeps the contract by itself.
unsafe impl Gather for Work {
    fn gather(&self, out: &mut SgeList) {
        if let Some(bytes) = &self.0 {
            bytes.gather(out);
        }
    }
}

// SAFETY: as above.
unsafe impl Scatter for Work {
    fn scatter(&mut self, out: &mut SgeList) {
        if let Some(bytes) = &mut self.0 {
            bytes.scatter(out);
        }
    }
}

/// How a client of bare verbs introduces itself.
#[derive(Clone, Copy, Default)]
pub struct Introduction {
    /// Whether requests are written into the server's ring.
    pub ring: bool,
    /// Whether the server has to look for them there.
    pub polled: bool,
    /// The paths that it offers for replies, as bits; none for what fits its ring.
    pub replies: u8,
    /// What it says its own ring is.
    pub claim: Option<RemoteRegion>,
    /// Whether its queue pair takes nothing before the server looks for nothing any more.
    pub late: bool,
}

pub const VIOLATION: u16 = 2;
pub const DEVICE: u16 = 4;

/// A client made of bare verbs.
pub struct Raw {
    pub stream: TcpStream,
    pub cq: Cq,
    pub tx: SendQueue<Work>,
    rx: RecvQueue<Bytes>,
    pub window: u32,
    pub slots: u32,
    /// The server's ring, if requests go there, and where the next one belongs.
    pub ring: Option<RemoteRegion>,
    pub at: u64,
    /// Where the server leaves replies, if it does.
    pub shelf: Option<RemoteRegion>,
    /// Messages that have arrived.
    pub replies: u32,
    /// Receive entries posted since the beginning. Those that are used up are only posted again where that was asked for.
    pub posted: u32,
    pub posts_again: bool,
    /// What the server reads and writes if it looks for requests, and how many there have been.
    pub cell: Option<Exposed<Mmap>>,
    pub count: u64,
    /// The flag of the last sleep that it was woken from.
    woken: u64,
}

impl Raw {
    pub fn connect(server: &ServerHandle, ring: bool) -> Raw {
        Raw::with_reply_ring(server, ring, None)
    }

    /// With a ring, requests are written into the server's. Replies come as SENDs, or go to what
    /// is claimed to be a ring of ours.
    pub fn with_reply_ring(server: &ServerHandle, ring: bool, claim: Option<RemoteRegion>) -> Raw {
        let introduction = Introduction {
            ring,
            claim,
            ..Introduction::default()
        };
        Raw::introduce(server, introduction)
    }

    pub fn introduce(server: &ServerHandle, introduction: Introduction) -> Raw {
        let Introduction {
            ring,
            polled,
            replies,
            claim,
            late,
        } = introduction;
        let (context, pd, _) = memory();
        let window = 32u32;
        let cq = context.cq(512).build().unwrap();
        let access = Access::REMOTE_READ | Access::REMOTE_WRITE;
        let ready = pd
            .rc(&cq)
            .send_depth(256)
            .recv_depth(window)
            .access(access)
            .rd_atomic(16)
            .build()
            .unwrap();
        let cell = polled.then(|| {
            let cell = pd.expose(64, access).unwrap();
            // The server begins asleep.
            cell.atomic_u64(8)
                .unwrap()
                .store(1u64.to_le(), Ordering::Relaxed);
            cell
        });
        let (setup, tx, mut rx) = ready.split::<Work, Bytes>();
        for _ in 0..window {
            rx.post(pd.register(vec![0; 5000]).unwrap()).unwrap();
        }
        let bit = |ring: bool| 1u8 << u8::from(ring);
        let offered = match replies {
            0 => bit(claim.is_some()),
            bits => bits,
        };
        let requests = if polled { 1 << 2 } else { bit(ring) };
        let mut body = vec![requests, offered];
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
        if let Some(cell) = &cell {
            body.extend(24u16.to_le_bytes());
            body.extend(cell.remote().to_bytes());
        }
        let mut hello = b"VBRP\x03\0\x01\0".to_vec();
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
        // The server's cell, where replies are to be looked for, comes last.
        let rest = match welcome[1] {
            2 => &rest[..rest.len() - 26],
            _ => rest,
        };
        let (rest, shelf) = match welcome[1] {
            3 | 4 => rest.split_at(rest.len() - 26),
            _ => rest.split_at(rest.len() - 2),
        };
        assert_eq!(usize::from(shelf[0]), shelf.len() - 2);
        assert_eq!(rest.len(), if ring || polled { 24 } else { 0 });
        let ring = rest.first_chunk().map(RemoteRegion::from_bytes);
        let shelf = shelf[2..].first_chunk().map(RemoteRegion::from_bytes);
        while late && server.stats().polled > 0 {
            thread::yield_now();
        }
        setup.connect(&peer).unwrap();
        Raw {
            stream,
            cq,
            tx,
            rx,
            window,
            slots,
            ring,
            at: 0,
            shelf,
            replies: 0,
            posted: window,
            posts_again: false,
            cell,
            count: 0,
            woken: 0,
        }
    }

    /// Sends bytes as a message, or writes them to where the next one belongs; false if the device
    /// reports no success. An offence may have arrived all the same: a server that ends the connection for
    /// it can be quicker than the acknowledgement.
    pub fn send(&mut self, message: Vec<u8>) -> bool {
        let Some(ring) = self.ring else {
            return self.send_plainly(Some(message));
        };
        let message = match self.cell {
            Some(_) => self.framed(&message),
            None => message,
        };
        let span = (message.len() as u64).next_multiple_of(64);
        if self.at + span > ring.len {
            self.at = 0;
        }
        let at = self.at;
        self.at += span;
        if self.cell.is_none() {
            return self.write(Some(message), at, true);
        }
        self.count += 1;
        self.tell();
        self.write(Some(message), at, false) && self.wake()
    }

    /// The next message with what is in front of it in a ring that is polled.
    fn framed(&self, message: &[u8]) -> Vec<u8> {
        let stamp = message.len() as u64 | u64::from(self.count as u32 + 1) << 32;
        let sum = xxhash_rust::xxh3::xxh3_64_with_seed(message, stamp);
        let mut out = stamp.to_le_bytes().to_vec();
        out.extend(sum.to_le_bytes());
        out.extend(message);
        out
    }

    /// Says how many messages there have been.
    pub fn tell(&self) {
        if let Some(cell) = &self.cell {
            let word = cell.atomic_u64(0).unwrap();
            word.swap(self.count.to_le(), Ordering::SeqCst);
        }
    }

    /// Wakes the server if it sleeps.
    pub fn wake(&mut self) -> bool {
        let Some(cell) = &self.cell else { return true };
        let flag = cell.atomic_u64(8).unwrap().load(Ordering::SeqCst);
        if std::mem::replace(&mut self.woken, flag) == flag {
            return true;
        }
        self.send_plainly(None)
    }

    pub fn send_plainly(&mut self, message: Option<Vec<u8>>) -> bool {
        let (_, pd, _) = memory();
        let message = Work(message.map(|bytes| pd.register(bytes).unwrap()));
        self.tx.send(message).signaled().post().is_ok() && self.done()
    }

    /// Writes into the server's ring.
    pub fn write(&mut self, bytes: Option<Vec<u8>>, at: u64, with_imm: bool) -> bool {
        let (_, pd, _) = memory();
        let len = bytes.as_ref().map_or(0, |bytes| bytes.len() as u64);
        let place = self.ring.unwrap().slice(at..at + len).unwrap();
        let work = Work(bytes.map(|bytes| pd.register(bytes).unwrap()));
        let wr = self.tx.write(work, place).signaled();
        let wr = if with_imm { wr.imm(0) } else { wr };
        wr.post().is_ok() && self.done()
    }

    /// Waits for what was posted last.
    pub fn done(&mut self) -> bool {
        loop {
            if let Some(ok) = self.poll() {
                return ok;
            }
        }
    }

    /// Takes in one completion: of a message that has arrived, or whether what was posted has got
    /// there.
    pub fn poll(&mut self) -> Option<bool> {
        let Some(completion) = self.cq.poll().unwrap() else {
            thread::yield_now();
            return None;
        };
        let ok = completion.is_ok();
        if completion.queue() != self.tx.id() {
            self.replies += u32::from(ok);
            if self.posts_again
                && let Ok(Ok(received)) = self.rx.redeem(completion)
                && self.rx.post(received.into_inner()).is_ok()
            {
                self.posted += 1;
            }
            return None;
        }
        let mut done = self.tx.retire(completion).unwrap();
        while self.tx.take(&mut done).is_some() {}
        Some(ok)
    }

    /// Reads the control connection to its end: the goodbye's reason.
    pub fn goodbye(mut self) -> u16 {
        let mut said = Vec::new();
        let _ = self.stream.read_to_end(&mut said);
        assert_eq!(said.len(), 12, "a goodbye: {said:?}");
        assert_eq!(said[6], 4);
        u16::from_le_bytes([said[10], said[11]])
    }
}

/// A message as the wire has it, field by field.
#[derive(Clone, Default)]
pub struct Message {
    pub kind: u8,
    /// [`ECHO`] if it is 0.
    pub method: u16,
    pub code: u16,
    pub slot: u32,
    pub generation: u32,
    /// In microseconds.
    pub remaining: u32,
    pub credit: u32,
    pub body_len: Option<u64>,
    /// Kind, key, address, length.
    pub pieces: Vec<(u32, u32, u64, u64)>,
    pub inline: Vec<u8>,
}

impl Message {
    pub fn request(raw: &Raw) -> Message {
        Message {
            kind: 1,
            generation: 1,
            credit: raw.window,
            ..Message::default()
        }
    }

    pub fn bytes(&self) -> Vec<u8> {
        let mut out = vec![1, self.kind];
        let method = match self.method {
            0 => ECHO.0,
            method => method,
        };
        out.extend(method.to_le_bytes());
        out.extend(self.code.to_le_bytes());
        out.extend([0; 2]);
        out.extend(self.slot.to_le_bytes());
        out.extend(self.generation.to_le_bytes());
        out.extend(self.remaining.to_le_bytes());
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
