//! What the debug mode finds.

use std::fmt;
use std::panic::Location;
use verbs::PendingWork;

/// Something that went wrong with a buffer. Addresses are of its first byte; the places are those where it was allocated.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Finding {
    /// Bytes behind the end of a buffer were written while it was in use.
    Overrun {
        /// Address of the buffer.
        addr: usize,
        /// Its length in bytes.
        len: usize,
        /// The first byte that was written, from the start of the buffer.
        offset: usize,
        /// Where it was allocated.
        site: &'static Location<'static>,
    },
    /// A buffer was written after it had been freed: a work request still owns it, a peer still has a key, or a pointer was kept.
    WrittenAfterFree {
        /// Address of the buffer.
        addr: usize,
        /// Its length in bytes.
        len: usize,
        /// The first byte that was written, from the start of the buffer.
        offset: usize,
        /// Where it was allocated.
        site: &'static Location<'static>,
    },
    /// A buffer was freed while a work request names it that the device is not done with: it was posted by `unsafe` code that does not keep the buffer. Only
    /// the user-space device tells; what hardware does is seen when it writes ([`WrittenAfterFree`](Finding::WrittenAfterFree)).
    FreedInFlight {
        /// Address of the buffer.
        addr: usize,
        /// Its length in bytes.
        len: usize,
        /// The work request.
        work: PendingWork,
        /// Where it was allocated.
        site: &'static Location<'static>,
    },
    /// A buffer was freed that was free. It was freed once.
    DoubleFree {
        /// Address of the buffer.
        addr: usize,
        /// Where it was allocated, if it is not out of quarantine yet.
        site: Option<&'static Location<'static>>,
    },
    /// Buffers from one place were not dropped when the last handle of the pool was. That may be meant; they go on working.
    StillOut {
        /// How many.
        buffers: usize,
        /// Their bytes.
        bytes: usize,
        /// How many of them were given to a device at least once, which is known with the feature `debug` only.
        posted: usize,
        /// Where they were allocated.
        site: &'static Location<'static>,
    },
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Finding::Overrun {
                addr,
                len,
                offset,
                site,
            } => write!(
                f,
                "byte {offset} of a buffer of {len} bytes at {addr:#x} was written (allocated at {site}): a segment or a pointer \
                 is longer than the buffer"
            ),
            Finding::WrittenAfterFree {
                addr,
                len,
                offset,
                site,
            } => write!(
                f,
                "byte {offset} of a buffer of {len} bytes at {addr:#x} was written after it was freed (allocated at {site}): a \
                 device still owns it, a peer has a key to it, or a pointer was kept"
            ),
            Finding::FreedInFlight {
                addr,
                len,
                work,
                site,
            } => write!(
                f,
                "a buffer of {len} bytes at {addr:#x} was freed while a device still owns it (allocated at {site}): work request {} of \
                 queue pair {} is to {} it",
                work.raw_id
                    .map_or("of a queue's own".to_owned(), |id| id.to_string()),
                work.qp_num,
                if work.writes { "write" } else { "read" },
            ),
            Finding::DoubleFree {
                addr,
                site: Some(site),
            } => write!(
                f,
                "the buffer at {addr:#x} was freed twice (allocated at {site})"
            ),
            Finding::DoubleFree { addr, site: None } => {
                write!(f, "the buffer at {addr:#x} was freed while it was free")
            }
            Finding::StillOut {
                buffers,
                bytes,
                posted,
                site,
            } => {
                write!(
                    f,
                    "{buffers} buffers of together {bytes} bytes from {site} outlive the pool's last handle"
                )?;
                match posted {
                    0 => Ok(()),
                    posted => write!(f, "; {posted} of them were posted to a queue"),
                }
            }
        }
    }
}

/// A buffer that was not dropped yet.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct LiveBuffer {
    /// Address of its first byte.
    pub addr: usize,
    /// Length in bytes, as it was asked for.
    pub len: usize,
    /// Whether it was given to a device at least once: it is perhaps still in a queue. Known with the feature `debug` only.
    pub posted: bool,
    /// Where it was allocated.
    pub site: &'static Location<'static>,
}

impl fmt::Display for LiveBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} bytes at {:#x}, allocated at {}{}",
            self.len,
            self.addr,
            self.site,
            if self.posted { ", was posted" } else { "" }
        )
    }
}
