//! What a server counts.

use super::books::{AcceptorCounters, CoreBook};
use crate::handshake::{ReplyPath, RequestPath};
use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

/// Figures since a server started: of all cores together, or of one ([`ServerHandle::core_stats`](crate::ServerHandle::core_stats)).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ServerStats {
    /// TCP connections accepted.
    pub accepted: u64,
    /// Connections open now.
    pub connections: u64,
    /// Of those, connections whose rings are polled just now. Those without calls are not.
    pub polled: u64,
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
    /// Handlers that panicked, and those that make parts of a reply.
    pub panics: u64,
    /// Requests not started because their callers' time was over.
    pub expired: u64,
    /// Requests not started for want of memory.
    pub overloaded: u64,
    /// Answers that had to wait until there was room in the send queue, or memory for a header. Never for a credit: clients leave room for
    /// answers before they ask.
    pub answer_stalls: u64,
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
    /// Of all cores.
    pub(super) fn of(
        acceptor: &AcceptorCounters,
        cores: &[std::sync::Arc<CoreBook>],
    ) -> ServerStats {
        let mut stats = ServerStats {
            accepted: acceptor.accepted.get(),
            refused: acceptor.refused.get(),
            garbage: acceptor.garbage.get(),
            timed_out: acceptor.timed_out.get(),
            evicted: acceptor.evicted.get(),
            ..ServerStats::default()
        };
        for core in cores {
            core.sum_into(&mut stats);
        }
        stats
    }

    /// Of one core.
    pub(super) fn of_core(core: &CoreBook) -> ServerStats {
        let mut stats = ServerStats::default();
        core.sum_into(&mut stats);
        stats
    }
}

/// Figures of one connection of a server: see [`ServerHandle::connections`](crate::ServerHandle::connections).
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ConnectionStats {
    /// The core that serves it, from 0.
    pub core: usize,
    /// The client's end of the control connection.
    pub peer: SocketAddr,
    /// How requests travel.
    pub request_path: RequestPath,
    /// How replies travel.
    pub reply_path: ReplyPath,
    /// How long it has been there.
    pub age: Duration,
    /// Requests handed to the handler.
    pub calls: u64,
    /// Requests answered with an error.
    pub failed: u64,
    /// Requests not started because their callers' time was over.
    pub expired: u64,
    /// Requests not started for want of memory, or because the client's address had too much in flight.
    pub overloaded: u64,
    /// Answers that had to wait until there was room in the send queue, or memory for a header.
    pub answer_stalls: u64,
    /// Requests not started because the server was stopping.
    pub turned_away: u64,
    /// Bytes of requests.
    pub bytes_received: u64,
    /// Bytes of replies.
    pub bytes_sent: u64,
    /// READs of large requests.
    pub reads: u64,
}

impl ConnectionStats {
    /// Of one that has done nothing yet.
    pub(super) fn new(
        core: usize,
        peer: SocketAddr,
        request_path: RequestPath,
        reply_path: ReplyPath,
    ) -> ConnectionStats {
        ConnectionStats {
            core,
            peer,
            request_path,
            reply_path,
            age: Duration::ZERO,
            calls: 0,
            failed: 0,
            expired: 0,
            overloaded: 0,
            answer_stalls: 0,
            turned_away: 0,
            bytes_received: 0,
            bytes_sent: 0,
            reads: 0,
        }
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

impl fmt::Display for ConnectionStats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} on core {} for {:.1?} ({:?}/{:?}): {} calls ({} failed, {} expired, {} overloaded), {} B in, {} B out, {} READs",
            self.peer,
            self.core,
            self.age,
            self.request_path,
            self.reply_path,
            self.calls,
            self.failed,
            self.expired,
            self.overloaded,
            self.bytes_received,
            self.bytes_sent,
            self.reads,
        )
    }
}
