//! Posting failed, and the work comes back.

use std::fmt;
use std::io;

use crate::exclusive::Exclusive;

/// Why a work request was not posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PostErrorKind {
    /// All slots of the queue are in use. Slots of a send queue are freed when a signalled work request has completed, was
    /// retired, and the buffers of it and of those before it were taken.
    QueueFull {
        /// Slots there are.
        depth: u32,
        /// Slots whose work is done, and whose buffers wait to be taken.
        untaken: u32,
    },
    /// More segments than the queue pair was built for.
    TooManySegments {
        /// Segments of the work request.
        count: usize,
        /// Segments allowed.
        max: usize,
    },
    /// Longer than the port's longest message.
    TooLong {
        /// Bytes of the work request.
        len: u64,
        /// Bytes allowed.
        max: u64,
    },
    /// More inline bytes than the queue pair was built for.
    InlineTooLong {
        /// Bytes of the work request.
        len: u64,
        /// Bytes allowed.
        max: u64,
    },
    /// Inline data is copied by the processor, which does not find the memory at the addresses of its segments: it was registered under
    /// others, or has no view.
    InlineWithoutView,
    /// The remote region is shorter than the local memory.
    RemoteTooSmall {
        /// Bytes of the work request.
        len: u64,
        /// Bytes of the remote region.
        remote: u64,
    },
    /// The queue pair is not connected yet. Receives can be posted before, sends cannot.
    NotConnected,
    /// A READ or an atomic on a connection that has room for none, because [`RcBuilder::rd_atomic`](crate::RcBuilder::rd_atomic) is 0 on one
    /// of its sides, or a device answers none. Some devices would accept it and never complete it.
    NoReads,
    /// A datagram that does not fit into one packet. Devices drop some of those without a word.
    LongerThanMtu {
        /// Bytes of the work request.
        len: u64,
        /// Bytes of a packet on the way there.
        mtu: u32,
    },
    /// The address handle belongs to another protection domain than the queue pair.
    OtherDomain,
    /// An atomic on a device that has none.
    NoAtomics,
    /// The local memory of an atomic must be one segment of 8 bytes.
    NotAWord {
        /// Segments of the work request.
        count: usize,
        /// Bytes of the work request.
        len: u64,
    },
    /// The word that an atomic works on must be at an address that is a multiple of 8.
    RemoteMisaligned {
        /// The address asked for.
        addr: u64,
    },
    /// The device refused, with this errno.
    Device {
        /// `EINVAL`: the device does not take one of the values; `ENOMEM` or `ENOSPC`: the device's own queue is full.
        errno: i32,
    },
}

impl fmt::Display for PostErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            PostErrorKind::QueueFull { depth, untaken: 0 } => {
                write!(
                    f,
                    "the queue is full: all {depth} slots are in flight; poll, and signal some of the work"
                )
            }
            PostErrorKind::QueueFull { depth, untaken } => write!(
                f,
                "the queue is full: {untaken} of its {depth} slots are done and wait for their buffers to be taken"
            ),
            PostErrorKind::TooManySegments { count, max } => {
                write!(
                    f,
                    "{count} segments, but the queue pair was built for {max}"
                )
            }
            PostErrorKind::TooLong { len, max } => {
                write!(
                    f,
                    "{len} bytes, but the longest message of the port has {max}"
                )
            }
            PostErrorKind::InlineTooLong { len, max } => {
                write!(
                    f,
                    "{len} bytes inline, but the queue pair was built for {max}: see RcBuilder::max_inline"
                )
            }
            PostErrorKind::InlineWithoutView => f.write_str(
                "inline data is copied from the segments' addresses, and this memory is known to the processor by others or not at all: \
                 post it without `inline`",
            ),
            PostErrorKind::RemoteTooSmall { len, remote } => {
                write!(f, "{len} bytes for a remote region of {remote}")
            }
            PostErrorKind::NotConnected => f.write_str(
                "the queue pair is not connected: call QpSetup::connect (or start) first; only receives can be posted before",
            ),
            PostErrorKind::NoReads => f.write_str(
                "the connection has room for no READ or atomic: build both sides with RcBuilder::rd_atomic of at least 1",
            ),
            PostErrorKind::LongerThanMtu { len, mtu } => write!(
                f,
                "{len} bytes, but a datagram must fit into one packet, which has {mtu} on the way there"
            ),
            PostErrorKind::OtherDomain => f.write_str(
                "the address handle belongs to another protection domain: make it with the queue pair's",
            ),
            PostErrorKind::NoAtomics => f.write_str("the device has no atomics"),
            PostErrorKind::NotAWord { count, len } => write!(
                f,
                "an atomic fetches into one segment of 8 bytes, not into {count} of {len} bytes together"
            ),
            PostErrorKind::RemoteMisaligned { addr } => write!(
                f,
                "an atomic needs an address that is a multiple of 8, not {addr:#x}"
            ),
            PostErrorKind::Device { errno } => {
                let hint = match errno {
                    libc::EINVAL => " (a value that this device does not take)",
                    libc::ENOMEM | libc::ENOSPC => " (the device's queue is full)",
                    _ => "",
                };
                write!(
                    f,
                    "the device refused the work request: {}{hint}",
                    io::Error::from_raw_os_error(errno)
                )
            }
        }
    }
}

impl std::error::Error for PostErrorKind {}

/// A work request was not posted; what it was to carry comes back with [`into_inner`](Self::into_inner).
///
/// Small, whatever `T` is, and `Send + Sync`, so that it passes through `?` and into boxed errors. Making one allocates.
pub struct PostError<T> {
    kind: PostErrorKind,
    work: Exclusive<Box<T>>,
}

impl<T> PostError<T> {
    #[cold]
    pub(crate) fn new(kind: PostErrorKind, work: T) -> PostError<T> {
        PostError {
            kind,
            work: Exclusive::new(Box::new(work)),
        }
    }

    /// Why it was not posted.
    pub fn kind(&self) -> PostErrorKind {
        self.kind
    }

    /// Whether it can be tried again once completions were handled.
    pub fn is_full(&self) -> bool {
        matches!(
            self.kind,
            PostErrorKind::QueueFull { .. }
                | PostErrorKind::Device {
                    errno: libc::ENOMEM | libc::ENOSPC
                }
        )
    }

    /// What was to be posted.
    pub fn into_inner(self) -> T {
        *self.work.into_inner()
    }
}

impl<T> fmt::Display for PostError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "not posted: {}", self.kind)
    }
}

impl<T> fmt::Debug for PostError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostError")
            .field("kind", &self.kind)
            .finish_non_exhaustive()
    }
}

impl<T> std::error::Error for PostError<T> {}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    #[test]
    fn is_small_shareable_and_gives_the_work_back() {
        fn shareable<E: std::error::Error + Send + Sync + 'static>(_: &E) {}
        let e = PostError::new(
            PostErrorKind::QueueFull {
                depth: 4,
                untaken: 1,
            },
            Cell::new([7u8; 500]),
        );
        shareable(&e);
        assert!(size_of_val(&e) <= 40);
        assert!(e.is_full());
        assert!(e.to_string().contains("1 of its 4 slots"));
        assert_eq!(e.into_inner().into_inner(), [7; 500]);
        for (errno, full) in [
            (libc::ENOMEM, true),
            (libc::ENOSPC, true),
            (libc::EIO, false),
        ] {
            let e = PostError::new(PostErrorKind::Device { errno }, ());
            assert_eq!(e.is_full(), full);
        }
    }
}
