//! Bodies of control messages.

use super::{Header, Kind, WireError};

/// Longest bitmap of a [`Kind::Release`] message in bytes: one bit for each slot there can be.
pub const RELEASE_BYTES_MAX: usize = 512;

/// Writes a bitmap of slots; returns how many bytes of `out` it takes.
///
/// Slots that do not fit into `out` are left out; the caller keeps `out` as long as it has slots.
pub fn encode_release(slots: impl IntoIterator<Item = u32>, out: &mut [u8]) -> usize {
    out.fill(0);
    let mut len = 0;
    for slot in slots {
        let (byte, bit) = (slot as usize / 8, slot % 8);
        if let Some(cell) = out.get_mut(byte) {
            *cell |= 1 << bit;
            len = len.max(byte + 1);
        }
    }
    len
}

/// The slots in a [`Kind::Release`] message, lowest first.
///
/// # Errors
/// [`WireError::Control`] when the message is of another kind or the bitmap longer than
/// [`RELEASE_BYTES_MAX`].
pub fn decode_release<'a>(
    header: &Header,
    message: &'a [u8],
) -> Result<impl Iterator<Item = u32> + use<'a>, WireError> {
    let bitmap = message
        .get(header.inline_start()..)
        .ok_or(WireError::Control)?;
    if header.kind != Kind::Release || bitmap.len() > RELEASE_BYTES_MAX {
        return Err(WireError::Control);
    }
    Ok(bitmap.iter().enumerate().flat_map(|(at, &byte)| {
        let first = at as u32 * 8;
        (0..8)
            .filter(move |bit| byte & (1 << bit) != 0)
            .map(move |bit| first + bit)
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::HEADER_LEN;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        #[test]
        fn round_trip(slots in proptest::collection::btree_set(0u32..4096, 0..100)) {
            let mut bitmap = [0xFF; RELEASE_BYTES_MAX];
            let len = encode_release(slots.iter().copied(), &mut bitmap);
            let mut header = Header::new(Kind::Release);
            header.inline_len = len as u32;
            header.body_len = len as u64;
            let mut message = vec![0; HEADER_LEN];
            header.encode(message.first_chunk_mut().unwrap());
            message.extend_from_slice(&bitmap[..len]);
            let header = Header::decode(&message).unwrap();
            let back: BTreeSet<u32> = decode_release(&header, &message).unwrap().collect();
            prop_assert_eq!(back, slots);
        }
    }

    #[test]
    fn only_release_messages_of_bounded_length() {
        let header = Header::new(Kind::Credit);
        assert!(decode_release(&header, &[0; HEADER_LEN]).is_err());
        let header = Header::new(Kind::Release);
        assert!(decode_release(&header, &[0; HEADER_LEN + RELEASE_BYTES_MAX]).is_ok());
        assert!(decode_release(&header, &[0; HEADER_LEN + RELEASE_BYTES_MAX + 1]).is_err());
        assert!(decode_release(&header, &[]).is_err());
    }
}
