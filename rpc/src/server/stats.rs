//! What a server counts.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

/// A counter that one thread writes and others read.
#[derive(Debug, Default)]
pub(super) struct Counter(AtomicU64);

impl Counter {
    /// Only by the one thread that owns the counter: no locked instruction.
    #[inline]
    pub fn add(&self, n: u64) {
        let value = self.0.load(Ordering::Relaxed);
        self.0.store(value.wrapping_add(n), Ordering::Release);
    }

    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }
}

/// Counters of one core. On cache lines of their own.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(super) struct CoreCounters {
    pub opened: Counter,
    pub closed: Counter,
    pub broken: Counter,
    pub refused: Counter,
    pub calls: Counter,
    pub failed: Counter,
    pub panics: Counter,
    pub expired: Counter,
    pub overloaded: Counter,
    pub turned_away: Counter,
    pub bytes_received: Counter,
    pub bytes_sent: Counter,
    pub reads: Counter,
    pub copies: Counter,
    pub bytes_copied: Counter,
    pub rnr: Counter,
}

/// Counters of the acceptor.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(super) struct AcceptorCounters {
    pub accepted: Counter,
    pub refused: Counter,
    pub garbage: Counter,
    pub timed_out: Counter,
    pub evicted: Counter,
}

/// Figures of a server since it started, all cores together.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ServerStats {
    /// TCP connections accepted.
    pub accepted: u64,
    /// Connections open now.
    pub connections: u64,
    /// Connections refused: terms, limits, memory or device.
    pub refused: u64,
    /// TCP connections that said something other than hello, or hung up before it was whole.
    pub garbage: u64,
    /// TCP connections that took too long to say hello.
    pub timed_out: u64,
    /// TCP connections let go for newer ones before they had said hello.
    pub evicted: u64,
    /// Connections that ended by an error of the device or a violation of the protocol.
    pub broken: u64,
    /// Requests handed to handlers.
    pub calls: u64,
    /// Requests answered with an error.
    pub failed: u64,
    /// Handlers that panicked.
    pub panics: u64,
    /// Requests not started because their callers' time was over.
    pub expired: u64,
    /// Requests not started for want of memory.
    pub overloaded: u64,
    /// Requests not started because the server was stopping.
    pub turned_away: u64,
    /// Bytes of requests.
    pub bytes_received: u64,
    /// Bytes of replies.
    pub bytes_sent: u64,
    /// READs of large requests.
    pub reads: u64,
    /// Replies or segments that had to be copied.
    pub copies: u64,
    /// Bytes in them.
    pub bytes_copied: u64,
    /// Times that a client was not ready to receive: always 0.
    pub rnr: u64,
}

impl ServerStats {
    pub(super) fn of<'a>(
        acceptor: &AcceptorCounters,
        cores: impl Iterator<Item = &'a CoreCounters>,
    ) -> ServerStats {
        let mut s = ServerStats {
            accepted: acceptor.accepted.get(),
            refused: acceptor.refused.get(),
            garbage: acceptor.garbage.get(),
            timed_out: acceptor.timed_out.get(),
            evicted: acceptor.evicted.get(),
            ..ServerStats::default()
        };
        for core in cores {
            // Closed first: what closes in between must not make the difference negative.
            let closed = core.closed.get();
            s.connections += core.opened.get().saturating_sub(closed);
            s.refused += core.refused.get();
            s.broken += core.broken.get();
            s.calls += core.calls.get();
            s.failed += core.failed.get();
            s.panics += core.panics.get();
            s.expired += core.expired.get();
            s.overloaded += core.overloaded.get();
            s.turned_away += core.turned_away.get();
            s.bytes_received += core.bytes_received.get();
            s.bytes_sent += core.bytes_sent.get();
            s.reads += core.reads.get();
            s.copies += core.copies.get();
            s.bytes_copied += core.bytes_copied.get();
            s.rnr += core.rnr.get();
        }
        s
    }
}

impl fmt::Display for ServerStats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} connections ({} accepted, {} refused, {} broken), {} calls ({} failed, {} panicked, \
             {} expired, {} overloaded), {} B in, {} B out, {} READs, {} copies of {} B, RNR {}",
            self.connections,
            self.accepted,
            self.refused,
            self.broken,
            self.calls,
            self.failed,
            self.panics,
            self.expired,
            self.overloaded,
            self.bytes_received,
            self.bytes_sent,
            self.reads,
            self.copies,
            self.bytes_copied,
            self.rnr,
        )
    }
}
