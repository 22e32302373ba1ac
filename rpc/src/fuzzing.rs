//! Entry points for fuzzers: each takes any bytes and must neither panic nor overflow. It returns whether the bytes got through all
//! checks, by which whoever makes them sees how good they are.
//!
//! [`TARGETS`] names them all, and [`generate`] makes bytes for each: valid ones, and such that were valid once.
//!
//! Not part of the stable interface.

pub mod generate;
mod polled_ring;
mod random;
mod ring_contents;

pub use polled_ring::{framed, polled_ring};
pub use random::Random;
pub use ring_contents::ring_contents;

use crate::bell::CELL_LEN;
use crate::credit::{Class, Credits};
use crate::handshake::{Accumulator, Frame, Hello, Limits, accept, confirm, endpoint};
use crate::ring;
use crate::setup;
use crate::shelf::{self, Fetched};
use crate::wire::{HEADER_LEN, Header, Kind, PieceList, decode_release};

/// What takes bytes of a peer.
#[derive(Debug, Clone, Copy)]
pub struct Target {
    /// Its name.
    pub name: &'static str,
    /// Takes the bytes; true if they got through all checks.
    pub run: fn(&[u8]) -> bool,
    /// Makes bytes that do, most of the time.
    pub valid: fn(&mut Random) -> Vec<u8>,
}

macro_rules! targets {
    ($($name:ident),+) => {
        [$(Target {
            name: stringify!($name),
            run: $name,
            valid: generate::$name,
        }),+]
    };
}

/// All of them.
#[cfg(all(feature = "serde", feature = "zerocopy"))]
pub const TARGETS: [Target; 9] = targets![
    control_stream,
    message,
    release,
    ring_contents,
    polled_ring,
    shelf_entry,
    credits,
    service_listing,
    service_message
];

/// All of them, but for typed services.
#[cfg(not(all(feature = "serde", feature = "zerocopy")))]
pub const TARGETS: [Target; 7] = targets![
    control_stream,
    message,
    release,
    ring_contents,
    polled_ring,
    shelf_entry,
    credits
];

/// A message as it lies in a receive entry.
pub fn message(bytes: &[u8]) -> bool {
    let Ok(header) = Header::decode(bytes) else {
        return false;
    };
    assert_eq!(header.message_len(), bytes.len());
    let mut again = [0; HEADER_LEN];
    header.encode(&mut again);
    assert_eq!(again, bytes[..HEADER_LEN], "one header has one encoding");
    if header.kind == Kind::Release {
        return match decode_release(&header, bytes) {
            Ok(slots) => {
                assert!(slots.count() <= bytes.len() * 8);
                true
            }
            Err(_) => false,
        };
    }
    assert!(decode_release(&header, bytes).is_err());
    match PieceList::decode(&header, bytes) {
        Ok(pieces) => {
            let total: u64 = pieces.as_slice().iter().map(|p| p.byte_len()).sum();
            assert!(header.pieces == 0 || total == header.body_len);
            true
        }
        Err(_) => false,
    }
}

/// The body of a message that releases slots.
pub fn release(bytes: &[u8]) -> bool {
    let mut header = Header::new(Kind::Release);
    header.inline_len = bytes.len() as u32;
    header.body_len = bytes.len() as u64;
    let mut whole = vec![0; HEADER_LEN];
    if let Some(front) = whole.first_chunk_mut() {
        header.encode(front);
    }
    whole.extend_from_slice(bytes);
    let header = Header::decode(&whole).expect("a header that was just made");
    match decode_release(&header, &whole) {
        Ok(slots) => {
            let (mut last, mut count) = (None, 0);
            for slot in slots {
                assert!(last < Some(slot) && (slot as usize) < bytes.len() * 8);
                (last, count) = (Some(slot), count + 1);
            }
            let bits: u32 = bytes.iter().map(|byte| byte.count_ones()).sum();
            assert_eq!(count, bits);
            true
        }
        Err(_) => false,
    }
}

/// What a peer says on the control connection, from its first byte on; as a stream, it comes in pieces.
pub fn control_stream(bytes: &[u8]) -> bool {
    let limits: Limits = setup::LIMITS.clamped();
    let limits = Limits {
        immediate: true,
        polled: true,
        ..limits
    };
    let said = said(&limits);
    // Pieces of all lengths, the same for the same bytes.
    let most = 1 + bytes.len() % 61;
    let mut frame = Accumulator::new();
    let (mut left, mut agreed) = (bytes, false);
    while !left.is_empty() {
        let space = frame.space();
        let n = space.len().min(left.len()).min(most);
        space[..n].copy_from_slice(&left[..n]);
        left = &left[n..];
        let heard = match frame.filled(n) {
            Ok(None) => continue,
            Ok(Some(heard)) => heard,
            Err(_) => return false,
        };
        match &heard {
            Frame::Hello(hello) => {
                let terms = accept(hello, &limits);
                let ours = endpoint(&hello.endpoint);
                agreed |= terms.is_ok() && ours.is_ok();
            }
            Frame::Welcome(welcome) => {
                let terms = confirm(welcome, &said);
                let ours = endpoint(&welcome.endpoint);
                agreed |= terms.is_ok() && ours.is_ok();
            }
            Frame::Refuse(_) | Frame::Goodbye(_) | Frame::Ready => {}
        }
        if matches!(heard, Frame::Hello(_) | Frame::Welcome(_)) {
            assert_eq!(again(&heard.encode()), Some(heard));
        }
    }
    agreed
}

/// What was written by this end, as another hears it.
fn again(bytes: &[u8]) -> Option<Frame> {
    let (mut frame, mut left) = (Accumulator::new(), bytes);
    while !left.is_empty() {
        let space = frame.space();
        let n = space.len().min(left.len());
        space[..n].copy_from_slice(&left[..n]);
        left = &left[n..];
        if let Some(heard) = frame.filled(n).ok()? {
            return left.is_empty().then_some(heard);
        }
    }
    None
}

/// What a client has said that hears a welcome.
pub(crate) fn said(limits: &Limits) -> Hello {
    Hello {
        request_paths: 0b111,
        reply_paths: 0b11111,
        window: limits.window,
        inline_limit: limits.inline_limit,
        slots: limits.slots,
        max_message: limits.max_message,
        features: 0,
        endpoint: Vec::new(),
        ring: Some(verbs::RemoteRegion {
            addr: 4096,
            len: limits.ring_size(limits.window, limits.inline_limit),
            rkey: verbs::RKey(1),
        }),
        cell: Some(verbs::RemoteRegion {
            addr: 64,
            len: CELL_LEN,
            rkey: verbs::RKey(2),
        }),
    }
}

/// An entry of a shelf, fetched in two parts, behind the generation that is asked for (u32) and how much of the message comes first (u16).
pub fn shelf_entry(bytes: &[u8]) -> bool {
    let limits = setup::LIMITS;
    let Some((&[g0, g1, g2, g3, h0, h1], entry)) = bytes.split_first_chunk() else {
        return false;
    };
    let generation = u32::from_le_bytes([g0, g1, g2, g3]);
    let head = shelf::ENTRY_HEAD + usize::from(u16::from_le_bytes([h0, h1]));
    let first = &entry[..entry.len().min(head)];
    let Fetched::There { len, rest } = shelf::check(first, generation, limits.inline_limit) else {
        return false;
    };
    let end = shelf::ENTRY_HEAD + len;
    assert!(end <= shelf::stride(limits.inline_limit));
    if end > first.len() {
        match entry.get(first.len()..end) {
            Some(others) if shelf::rest_is_right(others, rest) => {}
            _ => return false,
        }
    }
    message(&entry[shelf::ENTRY_HEAD..end])
}

/// Counters that a peer sends, five bytes each: class and value.
pub fn credits(bytes: &[u8]) -> bool {
    let size = ring::size_for(64, 4520);
    let mut account = Credits::new(64, 64, 56)
        .writing(size, 4520)
        .reading(size, 4520);
    let mut right = !bytes.is_empty();
    for step in bytes.chunks_exact(5) {
        let class = [Class::Request, Class::Answer, Class::Credit, Class::Control];
        let class = class[usize::from(step[0] % 4)];
        let counter = u32::from_le_bytes([step[1], step[2], step[3], step[4]]);
        let _ = account.find(counter % 5000);
        if account.receive(class, counter).is_ok() {
            account.reposted(class);
        } else {
            right = false;
        }
        if account.may_send(class) {
            account.send(class, 40);
        }
        assert!(account.available() <= 64);
    }
    right
}

/// What a server says about its methods.
#[cfg(any(feature = "serde", feature = "zerocopy"))]
pub fn service_listing(bytes: &[u8]) -> bool {
    let Ok(listing) = crate::service::Listing::decode(bytes) else {
        return false;
    };
    assert!(listing.offers().len() * 6 < bytes.len());
    assert!(listing.offers().is_sorted());
    assert_eq!(listing.encode(), bytes);
    true
}

/// Headers that a service of either encoding has.
#[cfg(all(feature = "serde", feature = "zerocopy"))]
pub(crate) mod headers {
    use crate::service::{Plain, Postcard};

    pub type Rich = Postcard<(
        String,
        Vec<(Option<u64>, Result<i16, char>)>,
        std::collections::BTreeMap<u8, Vec<String>>,
        [f32; 2],
    )>;
    pub type Poor = Plain<[[u8; 3]; 5]>;
}

/// A request or reply of a typed service, as a method of each encoding sees it.
#[cfg(all(feature = "serde", feature = "zerocopy"))]
pub fn service_message(bytes: &[u8]) -> bool {
    use crate::service::{Encoding, Frame};
    use headers::{Poor, Rich};

    let Ok(frame) = Frame::parse(bytes) else {
        return false;
    };
    let header = &bytes[frame.header()];
    if let Ok(value) = frame.decode::<Rich>(bytes) {
        let mut again = Vec::new();
        Rich::encode(&value, &mut again).expect("what was decoded has an encoding");
        assert!(again.len() <= header.len());
        return true;
    }
    if let Ok(held) = frame.decode::<Poor>(bytes) {
        assert_eq!(Poor::get(&held, header).as_flattened(), header);
        return true;
    }
    false
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    proptest! {
        /// Random bytes, behind a prefix that makes sense or not.
        #[test]
        fn any_bytes(bytes in proptest::collection::vec(any::<u8>(), 0..200), codec in 0u8..4) {
            super::message(&bytes);
            super::credits(&bytes);
            let mut framed = vec![1, 0, codec, 0, bytes.len() as u8, 0, 0, 0];
            framed.extend_from_slice(&bytes);
            for bytes in [&bytes, &framed] {
                super::control_stream(bytes);
                #[cfg(all(feature = "serde", feature = "zerocopy"))]
                super::service_listing(bytes);
                #[cfg(all(feature = "serde", feature = "zerocopy"))]
                super::service_message(bytes);
            }
        }
    }
}
