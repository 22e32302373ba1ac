//! The fixed header in front of every message.

use super::{HEADER_LEN, MAX_PIECES, PIECE_LEN, VERSION, WireError};

/// What a message is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Kind {
    /// A call: the body is its payload.
    Request = 1,
    /// The answer to a call.
    Reply = 2,
    /// The handler refused the call: `code` says why, the body is a text.
    Error = 3,
    /// The call was not started, and will not be: `code` says why, the body is a text.
    NotStarted = 4,
    /// A part of the answer to a call: as a reply, but there is more, to be asked for.
    Part = 5,
    /// Nothing but the credit counter that every header carries. Control.
    Credit = 16,
    /// Leases of replies are released: the body is a bitmap of slots. Control.
    Release = 17,
    /// The server is stopping: requests that arrive from now on are not started. Control.
    GoAway = 18,
}

impl Kind {
    fn from_u8(value: u8) -> Option<Kind> {
        Some(match value {
            1 => Kind::Request,
            2 => Kind::Reply,
            3 => Kind::Error,
            4 => Kind::NotStarted,
            5 => Kind::Part,
            16 => Kind::Credit,
            17 => Kind::Release,
            18 => Kind::GoAway,
            _ => return None,
        })
    }

    /// True for messages that live on the reserved entries and are never acknowledged by one of
    /// their own kind.
    pub fn is_control(self) -> bool {
        matches!(self, Kind::Credit | Kind::Release | Kind::GoAway)
    }
}

/// A slot and which use of it is meant.
///
/// Slots are numbered from 0; the generation grows by one with every use and wraps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct SlotId {
    /// Which slot.
    pub index: u32,
    /// Which use of it.
    pub generation: u32,
}

/// The header, decoded.
///
/// ```text
///  0 version  1 kind  2 method (u16)  4 code (u16)  6 flags (u16, reserved: 0)
///  8 slot (u32)      12 generation (u32)
/// 16 remaining (u32) 20 credit (u32)
/// 24 inline (u32)    28 pieces (u16)  30 reserved (u16): 0
/// 32 body (u64)
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// What the message is.
    pub kind: Kind,
    /// The method of a request; 0 otherwise.
    pub method: u16,
    /// The code of an error. Of a request: 0, or how much of its reply the client will READ first, which leaves it on the shelf. 0 otherwise.
    pub code: u16,
    /// The slot of a request and of its answer; zero in control messages.
    pub slot: SlotId,
    /// Time the caller still has, in microseconds; 0 is without a limit, `u32::MAX` that or more.
    pub remaining_us: u32,
    /// Receive entries that the sender has posted since the connection was made, modulo 2^32.
    pub credit: u32,
    /// Bytes of the body that are in this message.
    pub inline_len: u32,
    /// Pieces that follow the header; 0 when the whole body is inline.
    pub pieces: u16,
    /// Length of the whole body in bytes.
    pub body_len: u64,
}

impl Header {
    /// A header of this kind with everything else zero.
    pub fn new(kind: Kind) -> Header {
        Header {
            kind,
            method: 0,
            code: 0,
            slot: SlotId::default(),
            remaining_us: 0,
            credit: 0,
            inline_len: 0,
            pieces: 0,
            body_len: 0,
        }
    }

    /// Writes the header into the first [`HEADER_LEN`] bytes of `out`.
    #[inline]
    pub fn encode(&self, out: &mut [u8; HEADER_LEN]) {
        let pair = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
        let first = u16::from_le_bytes([VERSION, self.kind as u8]);
        let words = [
            u64::from(first) | u64::from(self.method) << 16 | u64::from(self.code) << 32,
            pair(self.slot.index, self.slot.generation),
            pair(self.remaining_us, self.credit),
            pair(self.inline_len, self.pieces.into()),
            self.body_len,
        ];
        for (out, word) in out.as_chunks_mut::<8>().0.iter_mut().zip(words) {
            *out = word.to_le_bytes();
        }
    }

    /// A header that is [read](Self::read).
    #[cfg(any(test, feature = "fuzzing"))]
    pub fn decode(message: &[u8]) -> Result<Header, WireError> {
        let mut header = Header::new(Kind::Credit);
        header.read(message)?;
        Ok(header)
    }

    /// Reads the header of a whole message, `message.len()` being what the completion said, into this one: a header that is moved right
    /// after it was made costs more than all its checks. After an error it says nothing.
    ///
    /// # Errors
    /// [`WireError`] when the bytes are no header, or when the message is not exactly as long as
    /// its header says.
    #[inline(always)]
    pub fn read(&mut self, message: &[u8]) -> Result<(), WireError> {
        let Some(fixed) = message.first_chunk::<HEADER_LEN>() else {
            return Err(WireError::Short {
                have: message.len(),
                need: HEADER_LEN,
            });
        };
        // One copy: the checks below and the use afterwards see the same bytes.
        let mut words = [0; HEADER_LEN / 8];
        for (word, bytes) in words.iter_mut().zip(fixed.as_chunks::<8>().0) {
            *word = u64::from_le_bytes(*bytes);
        }
        let [what, slot, times, lengths, body_len] = words;
        let high = |word: u64| (word >> 32) as u32;
        self.method = (what >> 16) as u16;
        self.code = (what >> 32) as u16;
        self.slot.index = slot as u32;
        self.slot.generation = high(slot);
        self.remaining_us = times as u32;
        self.credit = high(times);
        self.inline_len = lengths as u32;
        self.pieces = (lengths >> 32) as u16;
        self.body_len = body_len;
        // All of the body is behind the header, and nothing else: most messages are so, and need none of the other checks.
        let rest = (message.len() - HEADER_LEN) as u64;
        self.kind = match Kind::from_u8((what >> 8) as u8) {
            Some(kind)
                if what & 0xFFFF_0000_0000_00FF == u64::from(VERSION)
                    && lengths == rest
                    && body_len == rest
                    && rest <= u64::from(u32::MAX) =>
            {
                kind
            }
            _ => check(what, lengths, body_len, message.len())?,
        };
        Ok(())
    }

    /// Length of the message that starts with this header, in bytes.
    #[cfg(any(test, feature = "fuzzing"))]
    pub fn message_len(&self) -> usize {
        HEADER_LEN + usize::from(self.pieces) * PIECE_LEN + self.inline_len as usize
    }

    /// Where the inline bytes of the message begin.
    pub fn inline_start(&self) -> usize {
        HEADER_LEN + usize::from(self.pieces) * PIECE_LEN
    }
}

/// The checks of [`Header::read`], one by one: what the message is.
#[cold]
fn check(what: u64, lengths: u64, body_len: u64, have: usize) -> Result<Kind, WireError> {
    if what as u8 != VERSION {
        return Err(WireError::Version(what as u8));
    }
    let number = (what >> 8) as u8;
    let kind = Kind::from_u8(number).ok_or(WireError::Kind(number))?;
    if what >> 48 != 0 {
        return Err(WireError::Reserved("flags"));
    }
    if lengths >> 48 != 0 {
        return Err(WireError::Reserved("at 30"));
    }
    let (inline_len, pieces) = (lengths as u32, (lengths >> 32) as u16);
    if usize::from(pieces) > MAX_PIECES {
        return Err(WireError::Pieces(pieces));
    }
    let need = HEADER_LEN + usize::from(pieces) * PIECE_LEN + inline_len as usize;
    if have < need {
        return Err(WireError::Short { have, need });
    }
    if have > need {
        return Err(WireError::Trailing { have, need });
    }
    if pieces == 0 && body_len != u64::from(inline_len) {
        return Err(WireError::Sum {
            pieces: inline_len.into(),
            header: body_len,
        });
    }
    if kind.is_control() && pieces != 0 {
        return Err(WireError::Control);
    }
    Ok(kind)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn kinds() -> impl Strategy<Value = Kind> {
        prop_oneof![
            Just(Kind::Request),
            Just(Kind::Reply),
            Just(Kind::Error),
            Just(Kind::NotStarted),
            Just(Kind::Credit),
            Just(Kind::Release),
        ]
    }

    prop_compose! {
        fn headers()(
            kind in kinds(), method: u16, code: u16, index: u32, generation: u32,
            remaining_us: u32, credit: u32, inline_len in 0u32..300,
        ) -> Header {
            Header {
                kind, method, code, slot: SlotId { index, generation }, remaining_us, credit,
                inline_len, pieces: 0, body_len: u64::from(inline_len),
            }
        }
    }

    proptest! {
        #[test]
        fn round_trip(header in headers()) {
            let mut message = vec![0xAA; header.message_len()];
            header.encode(message.first_chunk_mut().unwrap());
            prop_assert_eq!(Header::decode(&message), Ok(header));
        }

        #[test]
        fn every_cut_and_every_addition_is_refused(header in headers(), cut in 1usize..400) {
            let mut message = vec![0; header.message_len()];
            header.encode(message.first_chunk_mut().unwrap());
            let short = &message[..message.len().saturating_sub(cut)];
            let refused = matches!(Header::decode(short), Err(WireError::Short { .. }));
            prop_assert!(refused);
            message.extend(std::iter::repeat_n(0, cut));
            let refused = matches!(Header::decode(&message), Err(WireError::Trailing { .. }));
            prop_assert!(refused);
        }

        #[test]
        fn arbitrary_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..600)) {
            let _ = Header::decode(&bytes);
        }

        #[test]
        fn arbitrary_bytes_behind_a_good_start(
            mut bytes in proptest::collection::vec(any::<u8>(), 40..600), kind in kinds(),
        ) {
            bytes[0] = VERSION;
            bytes[1] = kind as u8;
            bytes[6..8].fill(0);
            bytes[30..32].fill(0);
            if let Ok(header) = Header::decode(&bytes) {
                prop_assert_eq!(header.message_len(), bytes.len());
            }
        }
    }

    #[test]
    fn layout_is_fixed() {
        let header = Header {
            kind: Kind::Request,
            method: 0x0201,
            code: 0x0403,
            slot: SlotId {
                index: 0x0807_0605,
                generation: 0x0c0b_0a09,
            },
            remaining_us: 0x100f_0e0d,
            credit: 0x1413_1211,
            inline_len: 0,
            pieces: 0,
            body_len: 0,
        };
        let mut out = [0xFF; HEADER_LEN];
        header.encode(&mut out);
        assert_eq!(
            out,
            [
                1, 1, 1, 2, 3, 4, 0, 0, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20,
                0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0
            ]
        );
    }

    #[test]
    fn reserved_bits_and_kinds_are_checked() {
        let mut out = [0; HEADER_LEN];
        Header::new(Kind::Credit).encode(&mut out);
        for (at, error) in [
            (0, WireError::Version(0x81)),
            (1, WireError::Kind(0x90)),
            (6, WireError::Reserved("flags")),
            (31, WireError::Reserved("at 30")),
        ] {
            let mut bad = out;
            bad[at] ^= 0x80;
            assert_eq!(Header::decode(&bad), Err(error));
        }
        let mut bad = out;
        bad[28] = 17;
        assert_eq!(Header::decode(&bad), Err(WireError::Pieces(17)));
        let mut bad = out;
        bad[32] = 1;
        assert!(matches!(Header::decode(&bad), Err(WireError::Sum { .. })));
    }
}
