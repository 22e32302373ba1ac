//! What the device asks of the kernel, one concern a file: who a process is ([`incarnation`]), where processes
//! find each other ([`directory`]), how one gets at another's descriptors ([`pull`]) and memory ([`procvm`]),
//! sealed shared memory ([`memfd`]), memory of other drivers ([`dmabuf`]), and the heavy side of asymmetric fences ([`membarrier`]).
//!
//! Nothing here knows queue pairs or memory regions, and nothing here but [`procvm`] is on the data path.

pub(crate) mod directory;
pub(crate) mod dmabuf;
pub(crate) mod incarnation;
pub(crate) mod membarrier;
pub(crate) mod memfd;
pub(crate) mod obstacle;
pub(crate) mod procvm;
pub(crate) mod pull;
mod record;

#[cfg(test)]
mod tests;

use std::io;

/// Puts the failed step in front of a system error and keeps its kind, so that callers can still branch on it.
pub(crate) fn during(step: &str, error: io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{step}: {error}"))
}
