//! What can go wrong with typed calls.

use crate::error::CallError;
use mempool::{AllocError, Buf, SgList};

/// Bytes from a peer that are not what they should be.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DecodeError {
    /// The message ends too early.
    #[error("{0} bytes are too few")]
    Short(usize),
    /// A byte that must be 0 is not.
    #[error("a reserved byte is {0}")]
    Reserved(u8),
    /// A header that is longer than the message.
    #[error("a header of {len} bytes, of which {present} are there")]
    Header {
        /// What the message says.
        len: u32,
        /// How many bytes there are.
        present: usize,
    },
    /// Another encoding than that of the method.
    #[error("the header has encoding {codec}, the method's is {expected}")]
    Codec {
        /// What the message says.
        codec: u8,
        /// The method's.
        expected: u8,
    },
    /// A reply of another version than the request.
    #[error("version {version} where {expected} was asked for")]
    Version {
        /// What the message says.
        version: u16,
        /// The method's.
        expected: u16,
    },
    /// A header of a type of fixed size has another one.
    #[error("a header of {len} bytes, its type has {expected}")]
    Size {
        /// Its length in bytes.
        len: usize,
        /// That of the type.
        expected: usize,
    },
    /// Bytes behind the value.
    #[error("{0} bytes are left over")]
    Left(usize),
    /// The bytes are no value of the type.
    #[error("not a value of the type: {0}")]
    Value(String),
    /// A listing in a format that this end does not know.
    #[error("a list of methods in format {0}")]
    Format(u8),
    /// A listing whose methods do not ascend.
    #[error("a list of methods that is not in order")]
    Order,
}

/// A value that has no encoding, in words.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the value cannot be encoded: {0}")]
pub struct EncodeError(pub String);

/// Why a typed call did not bring a reply.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServiceError {
    /// The call failed. Segments that come back are the caller's own: the header is not among them.
    #[error(transparent)]
    Call(#[from] CallError),
    /// Nothing was sent; another call may be made at once.
    #[error("not sent: {0}")]
    NotSent(Box<Unsent>),
    /// The request was executed, but the reply is not what the method's reply should be.
    #[error("executed, but the reply to {method} cannot be decoded: {source}")]
    Reply {
        /// [`Method::NAME`](super::Method::NAME).
        method: &'static str,
        /// What is wrong with it.
        source: DecodeError,
    },
    /// The peer did not say what methods it has: it is no typed service, or another kind of one.
    #[error("the peer does not list its methods: {0}")]
    Listing(DecodeError),
}

impl ServiceError {
    /// Whether it is certain that nothing was executed.
    pub fn is_unsent(&self) -> bool {
        match self {
            ServiceError::Call(CallError::NotSent(_) | CallError::Overloaded { .. })
            | ServiceError::NotSent(_)
            | ServiceError::Listing(_) => true,
            ServiceError::Call(_) | ServiceError::Reply { .. } => false,
        }
    }
}

/// A request that this end did not send.
#[derive(Debug, thiserror::Error)]
#[error("{method}: {reason}")]
pub struct Unsent {
    pub(super) method: &'static str,
    pub(super) reason: UnsentReason,
    pub(super) segments: SgList,
    pub(super) destination: Option<Buf>,
}

impl Unsent {
    /// Why not.
    pub fn reason(&self) -> &UnsentReason {
        &self.reason
    }

    /// The reason, the segments, and the destination.
    pub fn into_parts(self) -> (UnsentReason, SgList, Option<Buf>) {
        (self.reason, self.segments, self.destination)
    }
}

/// Why a request was not sent.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum UnsentReason {
    /// The peer has no method of that number.
    #[error("the peer has no such method")]
    NoMethod,
    /// The peer has the method in other versions.
    #[error("this end has version {ours}, the peer {theirs:?}: upgrade the older end")]
    Version {
        /// The version of the method that was called.
        ours: u16,
        /// Those of the peer, the lowest first.
        theirs: Vec<u16>,
    },
    /// The peer has the method in this version, but with other encodings.
    #[error(
        "the peer encodes this version of it otherwise: the ends do not have the same definition"
    )]
    Encoding,
    /// The header cannot be encoded.
    #[error(transparent)]
    Encode(#[from] EncodeError),
    /// The pool has no memory for the header.
    #[error("no memory for the header: {0}")]
    Memory(#[from] AllocError),
    /// There are too many segments: the header needs one.
    #[error("a list of {} segments is full, and the header needs one", SgList::MAX)]
    Segments,
}
