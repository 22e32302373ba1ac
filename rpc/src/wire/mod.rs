//! What travels between two endpoints: pure encoding, no I/O.
//!
//! Every message is one SEND (or, on other paths, one WRITE with immediate):
//!
//! ```text
//! +-----------------+-----------------------+----------------------------+
//! | header, 40 B    | pieces, 24 B each     | inline bytes               |
//! +-----------------+-----------------------+----------------------------+
//!                     only when some bytes    of all inline pieces,
//!                     stay with the sender    one after the other
//! ```
//!
//! A message without pieces is wholly inline. With pieces, the body is the concatenation of the
//! pieces in order; an inline piece takes its bytes from the message, a remote piece names memory
//! of the sender that the receiver READs. All numbers are little endian.
//!
//! The decoders are total: any bytes give a value or a [`WireError`], never a panic, and a decoded
//! message has been checked against itself (lengths add up, nothing overflows, reserved bits are
//! zero). What only the connection can know, such as the number of slots or the largest body
//! agreed upon, is checked there. Decoders copy each field once before looking at it, so memory
//! that changes underneath cannot pass a check with one value and be used with another.

mod control;
mod header;
mod pieces;

pub use control::{RELEASE_BYTES_MAX, decode_release, encode_release};
pub use header::{Header, Kind, SlotId};
pub use pieces::{Piece, PieceList};

/// Length of the fixed header in bytes.
pub const HEADER_LEN: usize = 40;
/// Length of one piece in bytes.
pub const PIECE_LEN: usize = 24;
/// Most pieces in one message: what one scatter/gather list of the pool holds.
pub const MAX_PIECES: usize = 16;
/// Version of this format; endpoints of different versions refuse each other at the handshake,
/// and every header repeats it.
pub const VERSION: u8 = 1;

/// Why received bytes are not a message of this format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WireError {
    /// Fewer bytes than the fixed part, or than the header promises.
    #[error("message of {have} bytes where its header needs {need}")]
    Short {
        /// Bytes that arrived.
        have: usize,
        /// Bytes that the header needs.
        need: usize,
    },
    /// More bytes than the header accounts for.
    #[error("message of {have} bytes where its header accounts for {need}")]
    Trailing {
        /// Bytes that arrived.
        have: usize,
        /// Bytes that the header accounts for.
        need: usize,
    },
    /// Another version of the format.
    #[error("message of format version {0}, this end speaks {VERSION}")]
    Version(u8),
    /// A kind that this version does not know.
    #[error("message of unknown kind {0}")]
    Kind(u8),
    /// A reserved field that is not zero.
    #[error("reserved field {0} is not zero")]
    Reserved(&'static str),
    /// More pieces than a message can have.
    #[error("{0} pieces, at most {MAX_PIECES} are possible")]
    Pieces(u16),
    /// A piece that is neither inline nor remote.
    #[error("piece of unknown kind {0}")]
    PieceKind(u32),
    /// A piece without bytes, or one that runs over the end of the address space.
    #[error("piece of {len} bytes at {addr:#x} is impossible")]
    PieceRange {
        /// Address it claims.
        addr: u64,
        /// Length it claims.
        len: u64,
    },
    /// The lengths of the pieces, the inline bytes and the body do not add up.
    #[error("pieces make {pieces} bytes where the header says {header}")]
    Sum {
        /// What the pieces make.
        pieces: u64,
        /// What the header says.
        header: u64,
    },
    /// A control message whose body is not what its kind asks for.
    #[error("control message with a malformed body")]
    Control,
}

/// The longest message there can be where so many bytes travel inline.
pub const fn longest(inline_limit: u32) -> usize {
    HEADER_LEN + MAX_PIECES * PIECE_LEN + inline_limit as usize
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    let mut word = [0; 4];
    word.copy_from_slice(&bytes[at..at + 4]);
    u32::from_le_bytes(word)
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(word)
}
