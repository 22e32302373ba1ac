//! The list of pieces of a body that does not fit into its message.

use super::{HEADER_LEN, Header, MAX_PIECES, PIECE_LEN, WireError, u32_at, u64_at};

const INLINE: u32 = 0;
const REMOTE: u32 = 1;

/// One part of a body.
///
/// ```text
///  0 kind (u32: 0 inline, 1 remote)   4 key (u32)   8 address (u64)   16 length (u64)
/// ```
/// The key and the address of an inline piece are zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Piece {
    /// The next `len` inline bytes of the message.
    Inline {
        /// Bytes, at least 1.
        len: u32,
    },
    /// Memory of the sender, to be READ.
    Remote {
        /// Address in the sender's address space.
        addr: u64,
        /// Bytes, at least 1.
        len: u64,
        /// Remote key of the region that holds exactly these bytes.
        key: u32,
    },
}

impl Piece {
    /// Bytes of the body in this piece.
    pub fn byte_len(&self) -> u64 {
        match *self {
            Piece::Inline { len } => u64::from(len),
            Piece::Remote { len, .. } => len,
        }
    }

    /// Writes the piece into [`PIECE_LEN`] bytes.
    pub fn encode(&self, out: &mut [u8; PIECE_LEN]) {
        let (kind, key, addr, len) = match *self {
            Piece::Inline { len } => (INLINE, 0, 0, u64::from(len)),
            Piece::Remote { addr, len, key } => (REMOTE, key, addr, len),
        };
        out[0..4].copy_from_slice(&kind.to_le_bytes());
        out[4..8].copy_from_slice(&key.to_le_bytes());
        out[8..16].copy_from_slice(&addr.to_le_bytes());
        out[16..24].copy_from_slice(&len.to_le_bytes());
    }

    fn decode(b: [u8; PIECE_LEN]) -> Result<Piece, WireError> {
        let (key, addr, len) = (u32_at(&b, 4), u64_at(&b, 8), u64_at(&b, 16));
        let impossible = WireError::PieceRange { addr, len };
        match u32_at(&b, 0) {
            INLINE => {
                if key != 0 || addr != 0 {
                    return Err(WireError::Reserved("key and address of an inline piece"));
                }
                match u32::try_from(len) {
                    Ok(len) if len > 0 => Ok(Piece::Inline { len }),
                    _ => Err(impossible),
                }
            }
            REMOTE => {
                if len == 0 || addr.checked_add(len).is_none() {
                    return Err(impossible);
                }
                Ok(Piece::Remote { addr, len, key })
            }
            kind => Err(WireError::PieceKind(kind)),
        }
    }
}

/// The pieces of one message: at most [`MAX_PIECES`], by value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PieceList {
    pieces: [Piece; MAX_PIECES],
    len: usize,
}

impl Default for PieceList {
    fn default() -> Self {
        PieceList::new()
    }
}

impl PieceList {
    /// An empty list.
    pub fn new() -> PieceList {
        PieceList {
            pieces: [Piece::Inline { len: 1 }; MAX_PIECES],
            len: 0,
        }
    }

    /// Adds a piece; two inline pieces in a row become one.
    ///
    /// Returns false when the list is full.
    #[must_use]
    pub fn push(&mut self, piece: Piece) -> bool {
        if let Piece::Inline { len: more } = piece
            && let Some(Piece::Inline { len }) = self.pieces[..self.len].last_mut()
            && let Some(sum) = len.checked_add(more)
        {
            *len = sum;
            return true;
        }
        if self.len == MAX_PIECES {
            return false;
        }
        self.pieces[self.len] = piece;
        self.len += 1;
        true
    }

    /// The pieces in order.
    pub fn as_slice(&self) -> &[Piece] {
        &self.pieces[..self.len]
    }

    /// Writes the list behind a header; `out` is [`PIECE_LEN`] bytes for each piece.
    ///
    /// # Panics
    /// When `out` is shorter than that.
    pub fn encode(&self, out: &mut [u8]) {
        let (cells, _) = out.as_chunks_mut::<PIECE_LEN>();
        for (piece, cell) in self.as_slice().iter().zip(&mut cells[..self.len]) {
            piece.encode(cell);
        }
    }

    /// Reads the pieces of a message whose header has been decoded from the same bytes.
    ///
    /// # Errors
    /// [`WireError`] when a piece is impossible, or when the pieces do not add up to the inline
    /// bytes and the body that the header tells.
    pub fn decode(header: &Header, message: &[u8]) -> Result<PieceList, WireError> {
        let count = usize::from(header.pieces);
        let mut list = PieceList::new();
        if count > MAX_PIECES {
            return Err(WireError::Pieces(header.pieces));
        }
        let need = HEADER_LEN + count * PIECE_LEN;
        let Some(bytes) = message.get(HEADER_LEN..need) else {
            return Err(WireError::Short {
                have: message.len(),
                need,
            });
        };
        let (mut inline, mut total) = (0u64, 0u64);
        let (cells, _) = bytes.as_chunks::<PIECE_LEN>();
        for (slot, cell) in list.pieces.iter_mut().zip(cells) {
            let piece = Piece::decode(*cell)?;
            let len = piece.byte_len();
            if matches!(piece, Piece::Inline { .. }) {
                inline += len;
            }
            total = total.checked_add(len).ok_or(WireError::Sum {
                pieces: u64::MAX,
                header: header.body_len,
            })?;
            *slot = piece;
        }
        list.len = count;
        if count > 0 && inline != u64::from(header.inline_len) {
            return Err(WireError::Sum {
                pieces: inline,
                header: u64::from(header.inline_len),
            });
        }
        if count > 0 && total != header.body_len {
            return Err(WireError::Sum {
                pieces: total,
                header: header.body_len,
            });
        }
        Ok(list)
    }
}

#[cfg(test)]
mod tests {
    use super::super::Kind;
    use super::*;
    use proptest::prelude::*;

    fn pieces() -> impl Strategy<Value = Piece> {
        prop_oneof![
            (1u32..2000).prop_map(|len| Piece::Inline { len }),
            (any::<u32>(), 1u64..1 << 40, any::<u32>()).prop_map(|(addr, len, key)| {
                Piece::Remote {
                    addr: u64::from(addr) << 12,
                    len,
                    key,
                }
            }),
        ]
    }

    fn message(list: &PieceList) -> (Header, Vec<u8>) {
        let mut header = Header::new(Kind::Request);
        header.pieces = list.as_slice().len() as u16;
        for piece in list.as_slice() {
            if let Piece::Inline { len } = piece {
                header.inline_len += len;
            }
            header.body_len += piece.byte_len();
        }
        let mut bytes = vec![7; header.message_len()];
        header.encode(bytes.first_chunk_mut().unwrap());
        list.encode(&mut bytes[HEADER_LEN..]);
        (header, bytes)
    }

    proptest! {
        #[test]
        fn round_trip(input in proptest::collection::vec(pieces(), 0..=MAX_PIECES)) {
            let mut list = PieceList::new();
            for piece in &input {
                prop_assert!(list.push(*piece));
            }
            let (header, bytes) = message(&list);
            let decoded = Header::decode(&bytes).unwrap();
            prop_assert_eq!(decoded, header);
            let back = PieceList::decode(&decoded, &bytes).unwrap();
            prop_assert_eq!(back.as_slice(), list.as_slice());
            let total: u64 = input.iter().map(Piece::byte_len).sum();
            prop_assert_eq!(decoded.body_len, total);
        }

        #[test]
        fn one_changed_byte_is_an_error_or_a_consistent_list(
            input in proptest::collection::vec(pieces(), 1..=MAX_PIECES), at: usize, flip in 1u8..,
        ) {
            let mut list = PieceList::new();
            for piece in input {
                prop_assert!(list.push(piece));
            }
            let (_, mut bytes) = message(&list);
            let end = HEADER_LEN + list.as_slice().len() * PIECE_LEN;
            let at = at % end;
            bytes[at] ^= flip;
            if let Ok(header) = Header::decode(&bytes)
                && let Ok(list) = PieceList::decode(&header, &bytes)
                && header.pieces > 0
            {
                let total: u64 = list.as_slice().iter().map(Piece::byte_len).sum();
                prop_assert_eq!(total, header.body_len);
            }
        }

        #[test]
        fn arbitrary_bytes_never_panic(
            bytes in proptest::collection::vec(any::<u8>(), 0..600), pieces: u16, body_len: u64,
            inline_len: u32,
        ) {
            let mut header = Header::new(Kind::Reply);
            header.pieces = pieces;
            header.body_len = body_len;
            header.inline_len = inline_len;
            let _ = PieceList::decode(&header, &bytes);
        }
    }

    #[test]
    fn adjacent_inline_pieces_become_one() {
        let mut list = PieceList::new();
        for _ in 0..100 {
            assert!(list.push(Piece::Inline { len: 3 }));
        }
        assert_eq!(list.as_slice(), [Piece::Inline { len: 300 }]);
        let remote = Piece::Remote {
            addr: 1,
            len: 1,
            key: 1,
        };
        for _ in 1..MAX_PIECES {
            assert!(list.push(remote));
        }
        assert!(!list.push(remote));
        assert!(!list.push(Piece::Inline { len: 1 }));
    }

    #[test]
    fn lengths_that_overflow_are_refused() {
        let mut list = PieceList::new();
        let remote = Piece::Remote {
            addr: 0,
            len: u64::MAX,
            key: 1,
        };
        assert!(list.push(remote) && list.push(remote));
        let mut header = Header::new(Kind::Request);
        header.pieces = 2;
        header.body_len = u64::MAX - 1; // what the sum would wrap to
        let mut bytes = vec![0; header.message_len()];
        header.encode(bytes.first_chunk_mut().unwrap());
        list.encode(&mut bytes[HEADER_LEN..]);
        assert!(matches!(
            PieceList::decode(&header, &bytes),
            Err(WireError::Sum { .. })
        ));
    }
}
