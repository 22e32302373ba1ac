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
mod errno_tests;
#[cfg(test)]
mod tests;

use std::io;

/// A system error, and what was tried.
#[derive(Debug, thiserror::Error)]
#[error("{step}: {source}")]
struct During {
    step: String,
    source: io::Error,
}

/// Puts the failed step in front of a system error. Its [`errno`] and its kind stay, so that callers can still branch on them.
pub(crate) fn during(step: &str, source: io::Error) -> io::Error {
    let step = step.to_owned();
    io::Error::new(source.kind(), During { step, source })
}

/// The errno behind an error, however many steps it has been through.
pub(crate) fn errno(error: &(dyn std::error::Error + 'static)) -> Option<i32> {
    let mut at = Some(error);
    while let Some(error) = at {
        let system = error.downcast_ref::<io::Error>();
        if let Some(errno) = system.and_then(io::Error::raw_os_error) {
            return Some(errno);
        }
        at = error.source();
    }
    None
}

/// An error with a text of its own as a system error, which it is of this kind if no [`errno`] is behind it.
pub(crate) fn kept(
    kind: io::ErrorKind,
    error: impl std::error::Error + Send + Sync + 'static,
) -> io::Error {
    let kind = errno(&error).map_or(kind, |errno| io::Error::from_raw_os_error(errno).kind());
    io::Error::new(kind, error)
}
