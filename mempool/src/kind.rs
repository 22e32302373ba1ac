//! The kinds of arena.

use std::fmt;

/// Who may touch the memory of an arena, decided once for the whole arena.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    /// This process and its device only. For buffers to send from, and to READ into.
    Private = 0,
    /// Peers may read parts of it that were leased to them, and can never write to it.
    Readable = 1,
    /// The device writes arriving messages into it. There is never a remote key for it.
    Receive = 2,
    /// Peers may write to parts of it at any time: cell memory, of which there are no slices
    /// ([`ExposedBuf`](crate::ExposedBuf)).
    Exposed = 3,
}

impl Kind {
    /// All of them, in the order of their numbers.
    pub const ALL: [Kind; 4] = [Kind::Private, Kind::Readable, Kind::Receive, Kind::Exposed];
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Kind::Private => "private",
            Kind::Readable => "readable",
            Kind::Receive => "receive",
            Kind::Exposed => "exposed",
        })
    }
}
