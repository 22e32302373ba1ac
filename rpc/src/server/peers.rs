//! What each client address uses: connections, and requests and bytes in flight.
//!
//! The table is locked when a connection is made or ends. Each connection holds a [`Ticket`], through which its core counts in words
//! that are shared with the address's other connections; and only where there is a limit.

use parking_lot::Mutex;
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// What all connections of one client address may use together.
#[derive(Debug, Clone, Copy)]
pub(super) struct PeerLimits {
    pub connections: usize,
    pub requests: Option<u64>,
    pub bytes: Option<u64>,
}

impl PeerLimits {
    pub const NONE: PeerLimits = PeerLimits {
        connections: usize::MAX,
        requests: None,
        bytes: None,
    };

    /// Whether requests have to be counted.
    pub fn meters(&self) -> bool {
        self.requests.is_some() || self.bytes.is_some()
    }
}

/// All client addresses that have connections.
#[derive(Debug, Default)]
pub(super) struct Peers(Mutex<HashMap<IpAddr, Arc<Used>>>);

#[derive(Debug, Default)]
struct Used {
    connections: AtomicUsize,
    requests: AtomicU64,
    bytes: AtomicU64,
}

/// A connection's place among those of its address. Dropping it gives the place back.
#[derive(Debug)]
pub(super) struct Ticket {
    peers: Arc<Peers>,
    address: IpAddr,
    used: Arc<Used>,
}

impl Peers {
    /// A place for one more connection of this address; `None` if it has as many as it may.
    pub fn enter(self: &Arc<Peers>, address: IpAddr, most: usize) -> Option<Ticket> {
        let mut table = self.0.lock();
        let used = table.entry(address).or_default();
        if used.connections.load(Ordering::Relaxed) >= most {
            return None;
        }
        used.connections.fetch_add(1, Ordering::Relaxed);
        Some(Ticket {
            peers: Arc::clone(self),
            address,
            used: Arc::clone(used),
        })
    }
}

impl Ticket {
    /// Counts a request of so many bytes.
    ///
    /// # Errors
    /// What there is too much of.
    pub fn charge(&self, limits: &PeerLimits, bytes: u64) -> Result<(), String> {
        let requests = self.used.requests.fetch_add(1, Ordering::Relaxed);
        if let Some(most) = limits.requests
            && requests >= most
        {
            self.used.requests.fetch_sub(1, Ordering::Relaxed);
            return Err(format!(
                "all {most} requests that one client address may have in flight are taken"
            ));
        }
        let before = self.used.bytes.fetch_add(bytes, Ordering::Relaxed);
        if let Some(most) = limits.bytes
            && before.saturating_add(bytes) > most
        {
            self.discharge(bytes);
            return Err(format!(
                "{before} bytes of {most} that one client address may have in flight are taken, and the request has {bytes}"
            ));
        }
        Ok(())
    }

    /// A request that was counted has been answered.
    pub fn discharge(&self, bytes: u64) {
        self.used.requests.fetch_sub(1, Ordering::Relaxed);
        self.used.bytes.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// So many bytes of a reply wait for the client to READ them.
    pub fn keep(&self, bytes: u64) {
        self.used.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// They are gone.
    pub fn let_go(&self, bytes: u64) {
        self.used.bytes.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// To count what waits elsewhere.
    pub fn meter(&self) -> Meter {
        Meter {
            used: Arc::clone(&self.used),
            bytes: 0,
        }
    }
}

/// Counts bytes that wait for a client, among those of its address. Dropping it takes them off.
#[derive(Debug)]
pub(super) struct Meter {
    used: Arc<Used>,
    bytes: u64,
}

impl Meter {
    pub fn add(&mut self, bytes: u64) {
        self.used.bytes.fetch_add(bytes, Ordering::Relaxed);
        self.bytes += bytes;
    }

    /// Takes off what has been added.
    pub fn take(&mut self, bytes: u64) {
        self.used.bytes.fetch_sub(bytes, Ordering::Relaxed);
        self.bytes -= bytes;
    }
}

impl Drop for Meter {
    fn drop(&mut self) {
        self.take(self.bytes);
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let mut table = self.peers.0.lock();
        if self.used.connections.fetch_sub(1, Ordering::Relaxed) == 1 {
            table.remove(&self.address);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 1));
    const B: IpAddr = IpAddr::V6(std::net::Ipv6Addr::LOCALHOST);

    #[test]
    fn places_are_counted_by_address() {
        let peers = Arc::<Peers>::default();
        let (one, two) = (peers.enter(A, 2).unwrap(), peers.enter(A, 2).unwrap());
        assert!(peers.enter(A, 2).is_none());
        let other = peers.enter(B, 1).unwrap();
        assert!(peers.enter(B, 1).is_none());
        drop(one);
        let three = peers.enter(A, 2).unwrap();
        drop((two, three, other));
        assert!(peers.0.lock().is_empty(), "nothing is kept of who has gone");
    }

    #[test]
    fn what_is_refused_is_not_counted() {
        let peers = Arc::<Peers>::default();
        let limits = PeerLimits {
            requests: Some(3),
            bytes: Some(100),
            ..PeerLimits::NONE
        };
        let (a, b) = (peers.enter(A, 9).unwrap(), peers.enter(A, 9).unwrap());
        a.charge(&limits, 60).unwrap();
        assert!(b.charge(&limits, 41).is_err());
        b.charge(&limits, 40).unwrap();
        a.charge(&limits, 0).unwrap();
        assert!(a.charge(&limits, 0).is_err());
        a.discharge(60);
        b.keep(30);
        assert!(a.charge(&limits, 31).is_err());
        a.charge(&limits, 30).unwrap();
        b.let_go(30);
        b.discharge(40);
        a.discharge(0);
        a.discharge(30);
        let (mut meter, mut other) = (a.meter(), b.meter());
        meter.add(70);
        other.add(20);
        assert!(a.charge(&limits, 11).is_err());
        meter.take(20);
        a.charge(&limits, 30).unwrap();
        drop(meter);
        b.charge(&limits, 50).unwrap();
        assert!(b.charge(&limits, 1).is_err());
        drop(other);
        b.discharge(30);
        b.discharge(50);
        assert_eq!(a.used.requests.load(Ordering::Relaxed), 0);
        assert_eq!(a.used.bytes.load(Ordering::Relaxed), 0);
        assert!(a.charge(&limits, u64::MAX).is_err());
    }
}
