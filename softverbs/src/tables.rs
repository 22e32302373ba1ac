//! Small allocators for the tables in shared memory: indices and byte ranges. Their state is private to the process.

use std::collections::BTreeMap;

/// Hands out indices `first..len` in turn, so that a freed one comes back as late as possible.
pub(crate) struct Indices {
    used: Vec<bool>,
    first: usize,
    next: usize,
}

impl Indices {
    pub fn new(first: usize, len: usize) -> Indices {
        Indices {
            used: vec![false; len],
            first,
            next: first,
        }
    }

    pub fn take(&mut self) -> Option<usize> {
        let len = self.used.len();
        let found = (self.next..len)
            .chain(self.first..self.next)
            .find(|&i| !self.used[i])?;
        self.used[found] = true;
        self.next = if found + 1 == len {
            self.first
        } else {
            found + 1
        };
        Some(found)
    }

    pub fn give(&mut self, index: usize) {
        debug_assert!(self.used[index]);
        self.used[index] = false;
    }
}

/// First-fit allocation of byte ranges in multiples of [`Ranges::UNIT`].
pub(crate) struct Ranges {
    free: BTreeMap<usize, usize>,
    len: usize,
}

impl Ranges {
    /// Granularity of ranges: a page, so that memory of different users never shares one.
    pub const UNIT: usize = 4096;

    pub fn new(len: usize) -> Ranges {
        Ranges {
            free: BTreeMap::from([(0, len)]),
            len,
        }
    }

    pub fn take(&mut self, len: usize) -> Option<usize> {
        let len = len.next_multiple_of(Self::UNIT);
        let (&off, &have) = self.free.iter().find(|&(_, &have)| have >= len)?;
        self.free.remove(&off);
        if have > len {
            self.free.insert(off + len, have - len);
        }
        Some(off)
    }

    pub fn give(&mut self, off: usize, len: usize) {
        let mut len = len.next_multiple_of(Self::UNIT);
        let mut off = off;
        if let Some(have) = self.free.remove(&(off + len)) {
            len += have;
        }
        if let Some((&before, &have)) = self.free.range(..off).next_back()
            && before + have == off
        {
            off = before;
            len += have;
        }
        self.free.insert(off, len);
    }

    /// Whether everything is free.
    pub fn is_empty(&self) -> bool {
        self.free.get(&0) == Some(&self.len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn an_index_comes_back_last() {
        let mut indices = Indices::new(1, 4);
        assert_eq!(indices.take(), Some(1));
        indices.give(1);
        assert_eq!(
            (indices.take(), indices.take(), indices.take()),
            (Some(2), Some(3), Some(1))
        );
        assert_eq!(indices.take(), None);
    }

    proptest! {
        #[test]
        fn ranges_never_overlap_and_all_come_back(steps in proptest::collection::vec((any::<bool>(), 1usize..20_000, any::<prop::sample::Index>()), 0..200)) {
            let mut ranges = Ranges::new(1 << 18);
            let mut held: Vec<(usize, usize)> = Vec::new();
            for (take, len, which) in steps {
                if take {
                    if let Some(off) = ranges.take(len) {
                        prop_assert!(off + len <= 1 << 18);
                        for &(o, l) in &held { prop_assert!(off + len <= o || o + l <= off); }
                        held.push((off, len));
                    }
                } else if !held.is_empty() {
                    let (off, len) = held.swap_remove(which.index(held.len()));
                    ranges.give(off, len);
                }
            }
            for (off, len) in held { ranges.give(off, len); }
            prop_assert!(ranges.is_empty());
        }
    }
}
