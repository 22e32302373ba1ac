//! Bytes for [`TARGETS`](super::TARGETS), the same for the same seed: valid ones, and such that were valid before they were bent.

use super::{
    Random, Target, framed, polled_ring as polled_target, ring_contents as ring_target, said,
};
use crate::bell::CELL_LEN;
use crate::handshake::{
    Frame, Goodbye, Limits, PUSHED_INTO_RING, Refusal, RefusalCode, ReplyPath, Welcome,
};
use crate::ring::span;
use crate::setup;
use crate::shelf;
use crate::wire::{
    HEADER_LEN, Header, Kind, MAX_PIECES, PIECE_LEN, Piece, PieceList, RELEASE_BYTES_MAX,
    encode_release,
};
use verbs::{Endpoint, RKey, RemoteRegion};

/// A case for a target: every fourth as it should be, every eighth of nothing but noise, all others bent.
pub fn case(target: &Target, random: &mut Random) -> Vec<u8> {
    if random.once_in(8) {
        let len = random.below(300) as usize;
        return random.bytes(len);
    }
    let mut bytes = (target.valid)(random);
    if !random.once_in(4) {
        for _ in 0..=random.below(3) {
            bend(&mut bytes, random, target.valid);
        }
    }
    bytes
}

/// Changes something.
pub fn bend(bytes: &mut Vec<u8>, random: &mut Random, valid: fn(&mut Random) -> Vec<u8>) {
    let at = random.below(bytes.len() as u64) as usize;
    let end = at + random.below((bytes.len() - at) as u64 + 1) as usize;
    match random.below(9) {
        // A bit, a byte, a number at an edge in two, four or eight bytes.
        0 if at < end => bytes[at] ^= 1 << random.below(8),
        1 if at < end => bytes[at] = random.word() as u8,
        2..=4 => {
            let number = random.edge().to_le_bytes();
            let width = random.pick(&[2, 4, 8]);
            let at = at - at % width;
            for (byte, new) in bytes.iter_mut().skip(at).zip(&number[..width]) {
                *byte = *new;
            }
        }
        // Too short, too long, or with a part that comes twice or not at all.
        5 => bytes.truncate(at),
        6 => {
            let len = random.below(40) as usize;
            bytes.extend(random.bytes(len));
        }
        7 => {
            let part = bytes[at..end].to_vec();
            let to = random.below(bytes.len() as u64 + 1) as usize;
            bytes.splice(to..to, part);
        }
        8 => {
            // Half of this and half of another.
            let other = valid(random);
            bytes.truncate(at);
            bytes.extend(other.iter().skip(at));
        }
        _ => {
            bytes.drain(at..end);
        }
    }
}

fn region(random: &mut Random, len: u64) -> RemoteRegion {
    RemoteRegion {
        addr: random.word() >> 20,
        len,
        rkey: RKey(random.word() as u32),
    }
}

fn cell(random: &mut Random) -> RemoteRegion {
    let any = region(random, CELL_LEN);
    RemoteRegion {
        addr: any.addr & !7,
        ..any
    }
}

fn endpoint(random: &mut Random) -> Vec<u8> {
    let mut bytes = b"vbE1".to_vec();
    bytes.extend((random.below(1 << 24) as u32).to_le_bytes());
    bytes.extend((random.below(1 << 24) as u32).to_le_bytes());
    bytes.extend(random.bytes(18));
    bytes.extend([1 + random.below(5) as u8, 1 + random.below(255) as u8]);
    debug_assert_eq!(bytes.len(), Endpoint::LEN);
    bytes
}

/// For [`control_stream`](super::control_stream): some frames.
pub fn control_stream(random: &mut Random) -> Vec<u8> {
    let limits: Limits = setup::LIMITS.clamped();
    let mut out = Vec::new();
    for _ in 0..=random.below(3) {
        let mut said = said(&limits);
        let frame = match random.below(4) {
            0 => {
                said.endpoint = endpoint(random);
                said.window = random.pick(&[16, 17, 64, 4096]);
                said.inline_limit = random.pick(&[512, 4096, 65_536]);
                said.request_paths = random.pick(&[1, 2, 3, 4, 7]);
                said.reply_paths = random.pick(&[1, 2, 3, 4, 7, 8, 16, 31]);
                said.cell = random.once_in(2).then(|| cell(random));
                let size = limits.ring_size(said.window, said.inline_limit);
                said.ring = Some(region(random, size));
                Frame::Hello(said)
            }
            1 => {
                let request_path = random.below(3) as u8;
                let reply_path = random.pick(&[0, 1, 2, 3, 4]);
                let window = random.pick(&[16, 64]);
                let slots = 1 + random.below(4) as u32;
                let ring = limits.ring_size(window, said.inline_limit);
                let shelf = shelf::size(slots, said.inline_limit);
                let fetch = ReplyPath::from_u8(reply_path).is_some_and(ReplyPath::has_shelf);
                Frame::Welcome(Welcome {
                    request_path,
                    reply_path,
                    window,
                    inline_limit: said.inline_limit,
                    slots,
                    max_message: said.max_message,
                    features: PUSHED_INTO_RING,
                    endpoint: endpoint(random),
                    ring: (request_path > 0).then(|| region(random, ring)),
                    shelf: fetch.then(|| region(random, shelf)),
                    cell: (reply_path == 2).then(|| cell(random)),
                })
            }
            2 if random.once_in(4) => Frame::Ready,
            2 => Frame::Refuse(Refusal {
                code: RefusalCode::Full,
                text: "no room left".repeat(random.below(20) as usize),
            }),
            _ => Frame::Goodbye(Goodbye::Closing),
        };
        out.extend(frame.encode());
    }
    out
}

/// A message with this header and as many bytes behind it as its length says.
fn whole(mut header: Header, pieces: &PieceList, inline: &[u8]) -> Vec<u8> {
    header.inline_len = inline.len() as u32;
    header.pieces = pieces.as_slice().len() as u16;
    header.body_len = match header.pieces {
        0 => inline.len() as u64,
        _ => pieces.as_slice().iter().map(Piece::byte_len).sum(),
    };
    let mut out = vec![0; HEADER_LEN + usize::from(header.pieces) * PIECE_LEN];
    if let Some((front, behind)) = out.split_first_chunk_mut() {
        header.encode(front);
        pieces.encode(behind);
    }
    out.extend_from_slice(inline);
    out
}

/// A message of at most so many inline bytes, with this counter.
fn message_of(random: &mut Random, kind: Kind, most: u64, credit: u32) -> Vec<u8> {
    let mut header = Header::new(kind);
    header.credit = credit;
    if kind.is_control() {
        if kind == Kind::Credit {
            return whole(header, &PieceList::new(), &[]);
        }
        let slots: Vec<u32> = (0..random.below(9))
            .map(|_| random.below(64) as u32)
            .collect();
        let mut bitmap = [0; RELEASE_BYTES_MAX];
        let len = encode_release(slots, &mut bitmap);
        return whole(header, &PieceList::new(), &bitmap[..len]);
    }
    header.method = random.below(16) as u16;
    header.slot.index = random.below(64) as u32;
    header.slot.generation = random.word() as u32;
    header.remaining_us = random.edge() as u32;
    let mut pieces = PieceList::new();
    let len = random.below(most + 1);
    if random.once_in(3) {
        let mut left = len as u32;
        for _ in 0..random.below(MAX_PIECES as u64 / 2) {
            let _ = pieces.push(Piece::Remote {
                addr: random.word() >> 20,
                len: 1 + random.below(1 << 20),
                key: random.word() as u32,
            });
            let inline = random.below(u64::from(left) + 1) as u32;
            if inline > 0 && pieces.push(Piece::Inline { len: inline }) {
                left -= inline;
            }
        }
        if left > 0 {
            let _ = pieces.push(Piece::Inline { len: left });
        }
    }
    let inline = random.bytes(len as usize);
    whole(header, &pieces, &inline)
}

/// For [`message`](super::message).
pub fn message(random: &mut Random) -> Vec<u8> {
    let kind = random.pick(&[
        Kind::Request,
        Kind::Reply,
        Kind::Error,
        Kind::NotStarted,
        Kind::Credit,
        Kind::Release,
    ]);
    let most = random.pick(&[0, 64, 64, 600]);
    let credit = random.word() as u32;
    message_of(random, kind, most, credit)
}

/// For [`release`](super::release).
pub fn release(random: &mut Random) -> Vec<u8> {
    let len = random.pick(&[1, 8, 64, RELEASE_BYTES_MAX as u64 + 1]);
    let len = random.below(len + 1) as usize;
    random.bytes(len)
}

/// For [`ring_contents`](super::ring_contents): messages, written one behind the other, in parts and in any order of these, and
/// completed; in between other places are written over.
pub fn ring_contents(random: &mut Random) -> Vec<u8> {
    let size = ring_target::size();
    let mut out = Vec::new();
    let write = |out: &mut Vec<u8>, at: u64, bytes: &[u8]| {
        out.push(ring_target::WRITE);
        out.extend((at as u16).to_le_bytes());
        out.push(bytes.len() as u8);
        out.extend_from_slice(bytes);
    };
    let mut at = 0;
    for n in 0..=random.below(12) {
        let kind = random.pick(&[Kind::Request, Kind::Request, Kind::Credit, Kind::Release]);
        let most = random.pick(&[16, 200, u64::from(ring_target::INLINE)]);
        let credit = ring_target::WINDOW + random.below(n + 1).min(1) as u32;
        let message = message_of(random, kind, most, credit.min(ring_target::WINDOW));
        let room = span(message.len() as u64);
        if at + room > size {
            at = 0;
        }
        let mut parts: Vec<(u64, &[u8])> = Vec::new();
        let mut offset = at;
        for part in message.chunks(1 + random.below(255) as usize) {
            parts.push((offset, part));
            offset += part.len() as u64;
        }
        if random.once_in(2) {
            parts.reverse();
        }
        for (at, part) in parts {
            write(&mut out, at, part);
        }
        at += room;
        if random.once_in(2) {
            // What comes after this message is not looked at yet.
            let len = random.below(32) as usize;
            let noise = random.bytes(len);
            write(&mut out, at % size, &noise);
        }
        out.push(ring_target::COMPLETE);
        out.extend((message.len() as u16).to_le_bytes());
    }
    out
}

/// For [`polled_ring`](super::polled_ring): messages with their frames, written in parts in any order, looked for, and while they are looked for
/// written over elsewhere.
pub fn polled_ring(random: &mut Random) -> Vec<u8> {
    let size = polled_target::size();
    let mut out = Vec::new();
    let write = |out: &mut Vec<u8>, kind: u8, at: u64, bytes: &[u8]| {
        out.push(kind);
        out.extend((at as u16).to_le_bytes());
        out.push(bytes.len() as u8);
        out.extend_from_slice(bytes);
    };
    let mut at = 0;
    for number in 0..=random.below(12) {
        let kind = random.pick(&[Kind::Request, Kind::Request, Kind::Credit, Kind::Release]);
        let most = random.pick(&[16, 200, u64::from(ring_target::INLINE)]);
        let message = message_of(random, kind, most, ring_target::WINDOW);
        let message = framed(number, &message);
        let room = span(message.len() as u64);
        if at + room > size {
            at = 0;
        }
        let part = 8 + random.below(240) as usize;
        let mut parts: Vec<_> = message.chunks(part).enumerate().collect();
        if random.once_in(2) {
            parts.reverse();
        }
        for (n, bytes) in parts {
            let at = at + (n * part) as u64;
            write(&mut out, polled_target::WRITE, at, bytes);
        }
        if random.once_in(2) {
            // Once the message has been copied out, or where it is not.
            let len = random.below(32) as usize;
            let noise = random.bytes(len);
            let far = (at + room + 64) % size;
            write(&mut out, polled_target::LATER, far, &noise);
        }
        at = (at + room) % size;
        out.extend([polled_target::LOOK, 0, 0]);
    }
    out
}

/// For [`shelf_entry`](super::shelf_entry).
pub fn shelf_entry(random: &mut Random) -> Vec<u8> {
    let message = message(random);
    let generation = random.word() as u32;
    let head = random.below(message.len() as u64 * 2 + 1) as u16;
    let mut out = generation.to_le_bytes().to_vec();
    out.extend(head.to_le_bytes());
    out.extend(shelf::entry(&message, generation, head.into()));
    out
}

/// An entry of a shelf with this message, of which a first READ fetches `head` bytes.
pub fn entry(message: &[u8], generation: u32, head: usize) -> Vec<u8> {
    shelf::entry(message, generation, head)
}

/// For [`credits`](super::credits).
pub fn credits(random: &mut Random) -> Vec<u8> {
    let mut out = Vec::new();
    let mut counter = 64u32;
    for n in 0..random.below(40) {
        let class = random.below(4) as u8;
        // A message goes out with each step; entries of some come back with the next.
        counter += u32::from(n > 0 && random.once_in(3));
        out.push(class);
        out.extend(counter.to_le_bytes());
    }
    out
}

#[cfg(any(feature = "serde", feature = "zerocopy"))]
pub use typed::service_listing;
#[cfg(all(feature = "serde", feature = "zerocopy"))]
pub use typed::service_message;

#[cfg(any(feature = "serde", feature = "zerocopy"))]
mod typed;
