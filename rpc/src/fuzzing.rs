//! Entry points for fuzzers: each takes any bytes and must neither panic nor overflow.
//!
//! Not part of the stable interface.

use crate::credit::{Class, Credits};
use crate::handshake::{Accumulator, Frame, Hello, Limits, accept, confirm, endpoint};
use crate::ring;
use crate::setup;
use crate::shelf::{self, Fetched};
use crate::wire::{Header, PieceList, decode_release};

/// A message as it lies in a receive entry.
pub fn message(bytes: &[u8]) {
    let Ok(header) = Header::decode(bytes) else {
        return;
    };
    assert_eq!(header.message_len(), bytes.len());
    if let Ok(pieces) = PieceList::decode(&header, bytes) {
        let total: u64 = pieces.as_slice().iter().map(|p| p.byte_len()).sum();
        assert!(header.pieces == 0 || total == header.body_len);
    }
    if let Ok(slots) = decode_release(&header, bytes) {
        assert!(slots.count() <= bytes.len() * 8);
    }
}

/// What a peer says on the control connection, from its first byte on.
pub fn control_stream(mut bytes: &[u8]) {
    let limits: Limits = setup::LIMITS.clamped();
    let said = Hello {
        request_paths: 3,
        reply_paths: 3,
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
    };
    let mut frame = Accumulator::new();
    while !bytes.is_empty() {
        let space = frame.space();
        let n = space.len().min(bytes.len());
        space[..n].copy_from_slice(&bytes[..n]);
        bytes = &bytes[n..];
        match frame.filled(n) {
            Ok(None) => {}
            Ok(Some(Frame::Hello(hello))) => {
                let _ = accept(&hello, &limits);
                let _ = endpoint(&hello.endpoint);
            }
            Ok(Some(Frame::Welcome(welcome))) => {
                let _ = confirm(&welcome, &said);
            }
            Ok(Some(_)) => {}
            Err(_) => return,
        }
    }
}

/// The beginning of an entry of a shelf, behind the generation that is asked for.
pub fn shelf_entry(bytes: &[u8]) {
    let limits = setup::LIMITS;
    let Some((generation, entry)) = bytes.split_first_chunk() else {
        return;
    };
    let generation = u32::from_le_bytes(*generation);
    if let Fetched::There { len, rest } = shelf::check(entry, generation, limits.inline_limit) {
        let end = shelf::ENTRY_HEAD + len;
        assert!(end <= shelf::stride(limits.inline_limit));
        match entry.get(shelf::ENTRY_HEAD..end) {
            Some(bytes) => message(bytes),
            None => drop(shelf::rest_is_right(entry, rest)),
        }
    }
}

/// Counters that a peer sends, five bytes each: class and value.
pub fn credits(bytes: &[u8]) {
    let size = ring::size_for(64, 4520);
    let mut account = Credits::new(64, 64, 56)
        .writing(size, 4520)
        .reading(size, 4520);
    for step in bytes.chunks_exact(5) {
        let class = [Class::Request, Class::Answer, Class::Credit, Class::Control];
        let class = class[usize::from(step[0] % 4)];
        let counter = u32::from_le_bytes([step[1], step[2], step[3], step[4]]);
        let _ = account.find(counter % 5000);
        if account.receive(class, counter).is_ok() {
            account.reposted(class);
        }
        if account.may_send(class) {
            account.send(class, 40);
        }
        assert!(account.available() <= 64);
    }
}

/// What a server says about its methods.
#[cfg(any(feature = "serde", feature = "zerocopy"))]
pub fn service_listing(bytes: &[u8]) {
    if let Ok(listing) = crate::service::Listing::decode(bytes) {
        assert!(listing.offers().len() * 6 < bytes.len());
        assert!(listing.offers().is_sorted());
    }
}

/// A request or reply of a typed service, as a method of each encoding sees it.
#[cfg(all(feature = "serde", feature = "zerocopy"))]
pub fn service_message(bytes: &[u8]) {
    use crate::service::{Encoding, Frame, Plain, Postcard};

    type Rich = Postcard<(
        String,
        Vec<(Option<u64>, Result<i16, char>)>,
        std::collections::BTreeMap<u8, Vec<String>>,
        [f32; 2],
    )>;
    type Poor = Plain<[[u8; 3]; 5]>;

    let Ok(frame) = Frame::parse(bytes) else {
        return;
    };
    let header = &bytes[frame.header()];
    if let Ok(value) = frame.decode::<Rich>(bytes) {
        let mut again = Vec::new();
        Rich::encode(&value, &mut again).expect("what was decoded has an encoding");
        assert!(again.len() <= header.len());
    }
    if let Ok(held) = frame.decode::<Poor>(bytes) {
        assert_eq!(Poor::get(&held, header).as_flattened(), header);
    }
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
