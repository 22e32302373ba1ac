//! A histogram that one thread counts in while others look.

use super::{BUCKETS, Histogram, index};
use std::sync::atomic::{AtomicU64, Ordering};

/// Counted in by plain loads and stores of one thread, so that looking costs whoever looks.
#[derive(Debug)]
pub(crate) struct SharedHistogram {
    counts: Box<[AtomicU64; BUCKETS]>,
    max: AtomicU64,
}

impl SharedHistogram {
    pub fn new() -> SharedHistogram {
        SharedHistogram {
            counts: Box::new([const { AtomicU64::new(0) }; BUCKETS]),
            max: AtomicU64::new(0),
        }
    }

    /// Counts one of so many nanoseconds. Only by the one thread that owns it: no locked instruction.
    pub fn record(&self, ns: u64) {
        // First the longest: what is counted is never longer than what is known as that.
        if ns > self.max.load(Ordering::Relaxed) {
            self.max.store(ns, Ordering::Relaxed);
        }
        let count = &self.counts[index(ns)];
        count.store(count.load(Ordering::Relaxed) + 1, Ordering::Release);
    }

    /// What has been counted up to now.
    pub fn snapshot(&self) -> Histogram {
        let mut out = Histogram::new();
        for (bucket, count) in self.counts.iter().enumerate() {
            let count = count.load(Ordering::Acquire);
            if count > 0 {
                *out.at(bucket) = count;
                out.total += count;
            }
        }
        if out.total > 0 {
            out.max = self.max.load(Ordering::Relaxed);
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// It counts as the other kind does.
        #[test]
        fn a_snapshot_is_what_was_counted(list in proptest::collection::vec(any::<u64>(), 0..40)) {
            let (shared, mut own) = (SharedHistogram::new(), Histogram::new());
            prop_assert_eq!(shared.snapshot(), own.clone());
            for ns in list {
                shared.record(ns);
                own.record(ns, 1);
                prop_assert_eq!(shared.snapshot(), own.clone());
            }
        }
    }
}
