//! What a client counts.

use super::Client;
use super::fetch::Fetcher;
use crate::histogram::Histogram;
use crate::link::Link;
use crate::outgoing::Copies;
use crate::shelf::UNIT;
use std::fmt;
use std::time::Duration;

/// The counters behind [`ClientStats`].
pub(super) struct Recorder {
    pub inline_limit: u32,
    pub calls: u64,
    pub failed: u64,
    pub expired: u64,
    pub bytes_sent: u64,
    pub bytes_received: u64,
    pub stalls: u64,
    pub batches: u64,
    pub batched: u64,
    pub reconnects: u64,
    pub resent: u64,
    pub copies: Copies,
    pub reads: u64,
    pub rnr: u64,
    pub latency: Histogram,
    pub quick: Sampling,
    /// Calls that have ended, of which it is not known when they began: the next that is measured stands for them.
    pub unmeasured: u64,
}

/// Which of the quickest calls are measured: to look at the clock when one ends is a good part of what it takes.
#[derive(Debug, Default)]
pub(super) struct Sampling {
    skipped: u8,
    left: u8,
}

/// Quick calls that are skipped after each that is measured.
const SKIPPED: u8 = 7;

impl Sampling {
    /// Whether to skip one more.
    #[inline]
    pub fn skip(&mut self) -> bool {
        if self.left == 0 {
            return false;
        }
        self.left -= 1;
        self.skipped += 1;
        true
    }

    /// One is measured: how many it stands for.
    #[inline]
    pub fn measured(&mut self) -> u64 {
        self.left = SKIPPED;
        1 + u64::from(std::mem::take(&mut self.skipped))
    }
}

impl Recorder {
    pub fn new(inline_limit: u32) -> Recorder {
        Recorder {
            inline_limit,
            calls: 0,
            failed: 0,
            expired: 0,
            bytes_sent: 0,
            bytes_received: 0,
            stalls: 0,
            batches: 0,
            batched: 0,
            reconnects: 0,
            resent: 0,
            copies: Copies::default(),
            reads: 0,
            rnr: 0,
            latency: Histogram::new(),
            quick: Sampling::default(),
            unmeasured: 0,
        }
    }

    /// Adds what another one has counted.
    fn absorb(&mut self, other: &Recorder) {
        self.calls += other.calls;
        self.failed += other.failed;
        self.expired += other.expired;
        self.bytes_sent += other.bytes_sent;
        self.bytes_received += other.bytes_received;
        self.stalls += other.stalls;
        self.batches += other.batches;
        self.batched += other.batched;
        self.reconnects += other.reconnects;
        self.resent += other.resent;
        self.copies.copies += other.copies.copies;
        self.copies.bytes += other.copies.bytes;
        self.reads += other.reads;
        self.rnr += other.rnr;
        self.latency.merge(&other.latency);
    }

    fn snapshot(&self) -> ClientStats {
        let quantile = |share| self.latency.quantile(share).unwrap_or_default();
        ClientStats {
            calls: self.calls,
            failed: self.failed,
            expired: self.expired,
            bytes_sent: self.bytes_sent,
            bytes_received: self.bytes_received,
            credit_stalls: self.stalls,
            batches: self.batches,
            batched: self.batched,
            reconnects: self.reconnects,
            resent: self.resent,
            copies: self.copies.copies,
            bytes_copied: self.copies.bytes,
            reads: self.reads,
            fetches: 0,
            fetched: 0,
            fetch_misses: 0,
            bytes_wasted: 0,
            switches: 0,
            fetch_first: 0,
            fetch_tries: 0,
            rnr: self.rnr,
            p50: quantile(0.5),
            p99: quantile(0.99),
            max: self.latency.max(),
            latency: self.latency.clone(),
        }
    }
}

/// Figures of a connection, or of several together, from the client's side.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ClientStats {
    /// Requests sent.
    pub calls: u64,
    /// Calls that ended with an answer other than a reply, or with the connection.
    pub failed: u64,
    /// Calls given up on at their deadline.
    pub expired: u64,
    /// Bytes of payloads sent.
    pub bytes_sent: u64,
    /// Bytes of replies received.
    pub bytes_received: u64,
    /// Times that a request had to wait for a slot or a credit.
    pub credit_stalls: u64,
    /// Batches of requests that were posted, each with one doorbell.
    pub batches: u64,
    /// Requests in them.
    pub batched: u64,
    /// Times that the client has connected again.
    pub reconnects: u64,
    /// Times that an idempotent request was sent again.
    pub resent: u64,
    /// Payloads or segments that had to be copied.
    pub copies: u64,
    /// Bytes in them.
    pub bytes_copied: u64,
    /// READs of large replies.
    pub reads: u64,
    /// READs of the server's shelf.
    pub fetches: u64,
    /// Replies that were fetched there.
    pub fetched: u64,
    /// READs that found none.
    pub fetch_misses: u64,
    /// Bytes that READs of the shelf fetched in vain: all of those that found nothing, and what was behind the end of shorter replies.
    pub bytes_wasted: u64,
    /// Times that a hybrid connection went from fetching to pushing or back.
    pub switches: u64,
    /// Bytes that the first READ for a reply fetches at present; 0 while replies are pushed.
    pub fetch_first: usize,
    /// READs that may fail for one reply before a hybrid connection thinks of pushing.
    pub fetch_tries: u32,
    /// Times that the server was not ready to receive: always 0.
    pub rnr: u64,
    /// Half of all calls took no longer than this.
    pub p50: Duration,
    /// 99 of 100 calls took no longer than this.
    pub p99: Duration,
    /// The longest call of those measured.
    pub max: Duration,
    /// How long all calls took that were answered. Of small calls that [`call`](crate::Client::call) makes alone on its connection, and that
    /// are answered before it has waited for more than some microseconds, one in eight is measured and counts for all of them; so is at least one in eight
    /// of small calls that are on their way together and have a second or more.
    pub latency: Histogram,
}

impl ClientStats {
    /// Those of so many connections.
    pub(super) fn sum(clients: &[Client]) -> ClientStats {
        let mut all = Recorder::new(0);
        for client in clients {
            all.absorb(&client.recorder);
            all.rnr += client.link.as_ref().map_or(0, Link::rnr);
        }
        let mut stats = all.snapshot();
        for fetcher in clients.iter().filter_map(|client| client.fetcher.as_ref()) {
            stats.add_fetches(fetcher);
        }
        stats
    }

    fn add_fetches(&mut self, fetcher: &Fetcher) {
        let counts = &fetcher.counts;
        self.fetches += counts.reads;
        self.fetched += counts.replies;
        self.fetch_misses += counts.failed;
        self.bytes_wasted += counts.wasted;
        self.switches += fetcher.policy.switches();
        self.fetch_tries = self.fetch_tries.max(fetcher.policy.tries());
        let first = usize::from(fetcher.policy.units()) * UNIT;
        self.fetch_first = self.fetch_first.max(first);
    }

    /// READs for each reply that was fetched; `None` if none was.
    pub fn reads_per_fetch(&self) -> Option<f64> {
        (self.fetched > 0).then(|| self.fetches as f64 / self.fetched as f64)
    }
}

impl fmt::Display for ClientStats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} calls ({} failed, {} expired), {} B out, {} B in, p50 {:.1?}, p99 {:.1?}, max {:.1?}, \
             {} READs, {} copies of {} B, {} credit stalls, RNR {}",
            self.calls,
            self.failed,
            self.expired,
            self.bytes_sent,
            self.bytes_received,
            self.p50,
            self.p99,
            self.max,
            self.reads,
            self.copies,
            self.bytes_copied,
            self.credit_stalls,
            self.rnr,
        )?;
        match self.reads_per_fetch() {
            Some(reads) => write!(
                f,
                ", {} replies fetched with {reads:.2} READs each, {} B in vain, {} switches",
                self.fetched, self.bytes_wasted, self.switches
            ),
            None => Ok(()),
        }
    }
}
