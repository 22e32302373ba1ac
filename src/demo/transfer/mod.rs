//! Files out and back, several calls on their way at once.

mod receive;
mod send;

use std::collections::VecDeque;
use std::path::Path;
use verbatim::rpc::Pending;

use super::wire::Checksum;

pub use receive::read_back;
pub use send::send;

/// A file that the server has.
pub struct Sent<'a> {
    path: &'a Path,
    /// Bytes that were sent; the file may have changed since.
    pub len: u64,
    /// Of those bytes.
    checksum: Checksum,
    /// Whether the server's checksum of what it received was equal.
    equal_at_server: bool,
}

/// Calls on their way at once.
const MAX_CALLS: usize = 32;
/// Bytes on their way at once, unless a single call has more.
const MAX_BYTES: usize = 32 << 20;

/// Calls whose replies are taken in the order in which they were made. `T` says what a reply is for.
struct Window<T> {
    calls: VecDeque<(Pending, usize, T)>,
    bytes: usize,
}

impl<T> Window<T> {
    fn new() -> Window<T> {
        Window {
            calls: VecDeque::new(),
            bytes: 0,
        }
    }

    fn add(&mut self, call: Pending, bytes: usize, what: T) {
        self.calls.push_back((call, bytes, what));
        self.bytes += bytes;
    }

    /// The oldest call, if there is no room for another one of `bytes`.
    fn too_full_for(&mut self, bytes: usize) -> Option<(Pending, T)> {
        let room = self.calls.len() < MAX_CALLS && self.bytes + bytes <= MAX_BYTES;
        if room { None } else { self.oldest() }
    }

    /// The oldest call.
    fn oldest(&mut self) -> Option<(Pending, T)> {
        let (call, bytes, what) = self.calls.pop_front()?;
        self.bytes -= bytes;
        Some((call, what))
    }
}
