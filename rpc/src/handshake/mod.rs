//! The handshake on the TCP control connection: pure encoding and agreement, no I/O.
//!
//! ```text
//!   client                                  server
//!   create QP and reply ring
//!   Hello {paths, limits, endpoint, ring} ---->
//!                                           create QP and request ring, post receives, RTR, RTS
//!                                    <----  Welcome {paths chosen, limits, endpoint, ring, shelf}
//!   post receives, RTR, RTS                 or Refuse {code, text}
//!   first request over the queue pair
//! ```
//!
//! Both ends post their receives before their queue pair can receive anything, and the server says
//! nothing on it before the first request. A ring's key covers that ring and nothing else. An end whose messages the other has to look for
//! says as well where its [cell](crate::bell) is, at the end of its frame. Each end clamps what the other says to its own
//! limits and refuses what makes no sense; a frame is at most [`FRAME_MAX`] bytes, and its length
//! is checked before anything is read. Afterwards the connection stays open: a [`Goodbye`] or its
//! end tells that the peer is gone.

mod agree;
mod frame;
mod limits;

pub use agree::{Terms, accept, confirm, endpoint};
pub use frame::{Accumulator, FRAME_MAX, Frame, Goodbye, Hello, Refusal, RefusalCode, Welcome};
pub use limits::Limits;

/// How requests travel. A connection uses one path for them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
#[non_exhaustive]
pub enum RequestPath {
    /// As SENDs into posted receive entries.
    Send = 0,
    /// As WRITEs with immediate data into a receive ring. Needs a device with immediate data: all but
    /// iWARP have it.
    WriteImm = 1,
    /// As WRITEs into a receive ring, where the server looks for them. Works on devices without immediate data, if they have passed a
    /// test of their WRITEs.
    ///
    /// The test is made once for each device and process, when the first connection wants this path. It is a sample: what it finds rules the
    /// device out, and what it does not find is no proof. What is taken from the ring is whole in any case, by its checksum.
    WritePoll = 2,
}

/// How answers travel. Chosen independently of the request path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
#[non_exhaustive]
pub enum ReplyPath {
    /// As SENDs into posted receive entries.
    Send = 0,
    /// As WRITEs with immediate data into a receive ring. Needs a device with immediate data: all but
    /// iWARP have it.
    WriteImm = 1,
    /// As WRITEs into a receive ring, where the client looks for them; see [`RequestPath::WritePoll`].
    WritePoll = 2,
    /// Not at all: the server puts them on a shelf in its own memory, and the client READs them there.
    Fetch = 3,
    /// As with [`Fetch`](Self::Fetch) while the server is quick, and pushed while it is not: the client chooses with every request.
    Hybrid = 4,
}

macro_rules! paths {
    ($path:ident: $($known:ident),+) => {
        impl $path {
            /// All that this version knows, the preferred first.
            pub(crate) const ALL: [$path; [$($path::$known),+].len()] = [$($path::$known),+];

            /// The bit of this path in the bitmap that a client offers.
            pub(crate) fn bit(self) -> u8 {
                1 << self as u8
            }

            pub(crate) fn from_u8(value: u8) -> Option<$path> {
                $path::ALL.into_iter().find(|path| *path as u8 == value)
            }

            /// Whether all messages are written into a ring.
            pub(crate) fn has_ring(self) -> bool {
                matches!(self, $path::WriteImm | $path::WritePoll)
            }

            /// Whether the ring is polled.
            pub(crate) fn is_polled(self) -> bool {
                self == $path::WritePoll
            }
        }
    };
}

paths!(RequestPath: WriteImm, WritePoll, Send);
paths!(ReplyPath: WriteImm, WritePoll, Send, Hybrid, Fetch);

impl ReplyPath {
    /// Whether replies are left on a shelf, all or some.
    pub(crate) fn has_shelf(self) -> bool {
        matches!(self, ReplyPath::Fetch | ReplyPath::Hybrid)
    }
}

/// Feature of a welcome: what the server pushes beside a shelf goes into the client's ring.
pub(crate) const PUSHED_INTO_RING: u64 = 1;

/// Why what the peer said on the control connection cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HandshakeError {
    /// The peer does not speak this protocol at all.
    #[error("not this protocol: the peer opened with {0:02x?}")]
    Magic([u8; 4]),
    /// The peer speaks another version.
    #[error("peer speaks version {0} of the protocol, this end {version}", version = frame::VERSION)]
    Version(u16),
    /// A frame of a kind that is unknown or has no place here.
    #[error("frame of kind {0} has no place here")]
    Kind(u8),
    /// A frame longer than any can be.
    #[error("frame of {0} bytes, at most {FRAME_MAX} are possible")]
    Length(usize),
    /// A frame whose contents are not what its kind asks for.
    #[error("malformed frame: {0}")]
    Malformed(&'static str),
    /// A number outside of what can be agreed upon.
    #[error("{what} of {value} is out of range ({range})")]
    Range {
        /// Which number.
        what: &'static str,
        /// What the peer said.
        value: u64,
        /// What would do.
        range: &'static str,
    },
    /// An end point that makes no sense.
    #[error(transparent)]
    Endpoint(#[from] verbs::BadEndpoint),
    /// A ring that cannot be, or one that is missing.
    #[error("receive ring of {0} bytes cannot be used")]
    Ring(u64),
    /// A cell that cannot be, or one that is missing.
    #[error("cell of {0} bytes cannot be used")]
    Cell(u64),
    /// A shelf that cannot be, or one that is missing.
    #[error("shelf of {0} bytes cannot be used")]
    Shelf(u64),
    /// No path in common.
    #[error("no {0} path in common")]
    NoPath(&'static str),
}
