//! Which connection a completion is for.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use verbs::QueueId;

#[derive(Clone, Copy)]
pub(super) struct Route {
    pub key: usize,
    pub of: Of,
}

/// What completions of a queue are of.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Of {
    Message,
    Work,
    /// Of a wake, on a connection whose ring is polled.
    Wake,
}

/// The connections of a core, by their queues.
#[derive(Default)]
pub(super) struct Routes {
    map: HashMap<QueueId, Route, BuildHasherDefault<IdHasher>>,
    /// The route found last: the next completion is often of the same queue.
    last: Option<(QueueId, Route)>,
}

impl Routes {
    /// `None` if the queue is left over from a connection that is gone.
    #[inline(always)]
    pub fn find(&mut self, queue: QueueId) -> Option<Route> {
        match self.last {
            Some((last, route)) if last == queue => Some(route),
            _ => match self.map.get(&queue) {
                Some(&route) => Some(self.last.insert((queue, route)).1),
                None => None,
            },
        }
    }

    pub fn insert(&mut self, queue: QueueId, key: usize, of: Of) {
        self.map.insert(queue, Route { key, of });
    }

    /// A connection has gone, with its queues.
    pub fn remove(&mut self, queues: [QueueId; 2]) {
        self.last = None;
        for queue in queues {
            self.map.remove(&queue);
        }
    }
}

/// Queue ids are numbers that differ in their low bits: mixing them is enough.
#[derive(Default)]
struct IdHasher(u64);

impl Hasher for IdHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u64(u64::from(byte));
        }
    }

    fn write_u64(&mut self, n: u64) {
        // The odd number nearest to 2^64 divided by the golden ratio spreads consecutive numbers.
        self.0 = (self.0 ^ n)
            .wrapping_mul(0x9e37_79b9_7f4a_7c15)
            .rotate_left(32);
    }
}
