//! Where a server counts: each core for itself, and for each of its connections.
//!
//! What happens with calls is counted once, where their connection counts; a core's figures are the sum, of its connections and of
//! those that have ended. Only the core's thread writes, with plain loads and stores. The lock is for the list: connections are put on it and taken
//! off, which is no part of a call.

use super::stats::{ConnectionStats, ServerStats};
use crate::handshake::{ReplyPath, RequestPath};
use crate::histogram::SharedHistogram;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

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

/// Counters of one core, of what does not belong to one connection. On cache lines of their own.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(super) struct CoreCounters {
    pub opened: Counter,
    pub closed: Counter,
    pub broken: Counter,
    pub refused: Counter,
    pub panics: Counter,
    pub copies: Counter,
    pub bytes_copied: Counter,
    pub rnr: Counter,
    /// Connections whose rings began to be polled, and whose are no longer.
    pub woken: Counter,
    pub rested: Counter,
}

/// What is counted of calls, and what a connection or all of a core have counted.
macro_rules! tally {
    ($($name:ident),*) => {
        /// Counters of one connection. On cache lines of their own.
        #[derive(Debug, Default)]
        #[repr(align(128))]
        pub(super) struct ConnCounters {
            $(pub $name: Counter,)*
        }

        /// What they said at a time.
        #[derive(Debug, Default, Clone, Copy)]
        struct Tally {
            $($name: u64,)*
        }

        impl ConnCounters {
            fn tally(&self) -> Tally {
                Tally { $($name: self.$name.get(),)* }
            }
        }

        impl Tally {
            fn add(&mut self, other: Tally) {
                $(self.$name = self.$name.wrapping_add(other.$name);)*
            }

            fn describe(self, stats: &mut ConnectionStats) {
                $(stats.$name = self.$name;)*
            }

            fn sum_into(self, stats: &mut ServerStats) {
                $(stats.$name += self.$name;)*
            }
        }
    };
}

tally!(
    calls,
    failed,
    expired,
    overloaded,
    answer_stalls,
    turned_away,
    bytes_received,
    bytes_sent,
    reads
);

/// What is known of a connection, by whoever asks.
#[derive(Debug)]
pub(super) struct ConnBook {
    pub counters: ConnCounters,
    peer: SocketAddr,
    paths: (RequestPath, ReplyPath),
    since: Instant,
}

impl ConnBook {
    pub fn new(peer: SocketAddr, paths: (RequestPath, ReplyPath)) -> Arc<ConnBook> {
        Arc::new(ConnBook {
            counters: ConnCounters::default(),
            peer,
            paths,
            since: Instant::now(),
        })
    }
}

/// What is known of a core.
#[derive(Debug, Default)]
pub(super) struct CoreBook {
    pub counters: CoreCounters,
    /// How long requests took, if that is measured.
    pub times: Option<SharedHistogram>,
    connections: Mutex<Connections>,
}

#[derive(Debug, Default)]
struct Connections {
    /// By epoch, which is the order in which they were made.
    open: BTreeMap<u64, Arc<ConnBook>>,
    /// What those have counted that are no longer there.
    ended: Tally,
}

impl CoreBook {
    /// One in which nothing has been counted.
    pub fn new(timed: bool) -> CoreBook {
        CoreBook {
            times: timed.then(SharedHistogram::new),
            ..CoreBook::default()
        }
    }

    /// A connection is there.
    pub fn enter(&self, epoch: u64, book: Arc<ConnBook>) {
        self.connections.lock().open.insert(epoch, book);
    }

    /// It is gone, and counts no more.
    pub fn leave(&self, epoch: u64) {
        let mut connections = self.connections.lock();
        if let Some(book) = connections.open.remove(&epoch) {
            connections.ended.add(book.counters.tally());
        }
    }

    /// Adds the core's figures.
    pub fn sum_into(&self, stats: &mut ServerStats) {
        let counters = &self.counters;
        // Closed first: what closes in between must not make the difference negative.
        let closed = counters.closed.get();
        stats.connections += counters.opened.get().saturating_sub(closed);
        let rested = counters.rested.get();
        stats.polled += counters.woken.get().saturating_sub(rested);
        stats.refused += counters.refused.get();
        stats.broken += counters.broken.get();
        stats.panics += counters.panics.get();
        stats.copies += counters.copies.get();
        stats.bytes_copied += counters.bytes_copied.get();
        stats.rnr += counters.rnr.get();
        // Under the lock, so that none is missed or counted twice that ends just now.
        let connections = self.connections.lock();
        let mut all = connections.ended;
        for book in connections.open.values() {
            all.add(book.counters.tally());
        }
        all.sum_into(stats);
    }

    /// Adds the figures of the core's connections, in the order in which they were made.
    pub fn list_into(&self, core: usize, list: &mut Vec<ConnectionStats>) {
        let connections = self.connections.lock();
        list.extend(connections.open.values().map(|book| {
            let (request, reply) = book.paths;
            let mut stats = ConnectionStats::new(core, book.peer, request, reply);
            stats.age = book.since.elapsed();
            book.counters.tally().describe(&mut stats);
            stats
        }));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn book() -> Arc<ConnBook> {
        let peer = SocketAddr::from(([127, 0, 0, 1], 1));
        ConnBook::new(peer, (RequestPath::Send, ReplyPath::Send))
    }

    #[test]
    fn what_has_ended_still_counts() {
        let core = CoreBook::default();
        let (first, second) = (book(), book());
        core.enter(1, Arc::clone(&first));
        core.enter(2, Arc::clone(&second));
        first.counters.calls.add(3);
        second.counters.calls.add(4);
        second.counters.bytes_sent.add(100);
        let stats = || {
            let mut stats = ServerStats::default();
            core.sum_into(&mut stats);
            (stats.calls, stats.bytes_sent)
        };
        assert_eq!(stats(), (7, 100));
        core.leave(2);
        core.leave(2);
        assert_eq!(stats(), (7, 100));
        first.counters.calls.add(1);
        assert_eq!(stats(), (8, 100));
        let mut list = Vec::new();
        core.list_into(5, &mut list);
        assert_eq!(list.len(), 1);
        assert_eq!((list[0].core, list[0].calls), (5, 4));
    }
}
