//! Whose READ is next, among the bodies that a connection brings in.
//!
//! Each turn is one slice, after which small messages are looked for. The turns go alternately to the oldest body and to the one with the least left:
//! so nothing waits forever, what is short is not behind what is long, and yet only few are under way at once. To go round among all of
//! them would keep all buffers in use until the last moment, and more of them than a processor's cache holds.
//!
//! Where posting a READ takes as long as its bytes take to move, whatever could be taken in at once waits for a whole slice. So a turn
//! is left out when somebody waits for what has just come, or for a READ of a few bytes that has just been posted; not for ever, though.

use crate::wire::SlotId;
use std::collections::VecDeque;

/// Turns that are left out in a row.
const LEFT_OUT: u32 = 4;

/// Bodies that wait for their next slice, oldest first.
#[derive(Debug, Default)]
pub(crate) struct Turns {
    waiting: VecDeque<Waiting>,
    /// Whether the last turn was the oldest one's.
    was_oldest: bool,
    /// How many turns in a row were left out.
    left_out: u32,
}

#[derive(Debug)]
struct Waiting {
    slot: SlotId,
    /// Bytes that have not been asked for.
    left: u64,
}

impl Turns {
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Whether one body is all that waits.
    pub fn is_one(&self) -> bool {
        self.waiting.len() == 1
    }

    /// Adds a body of which so many bytes have to be brought in.
    pub fn add(&mut self, slot: SlotId, left: u64) {
        self.waiting.push_back(Waiting { slot, left });
    }

    /// Whether this turn is left out, for who has something more urgent.
    #[inline]
    pub fn leave_out(&mut self, urgent: bool) -> bool {
        let leave_out = urgent && self.left_out < LEFT_OUT;
        self.left_out = if leave_out { self.left_out + 1 } else { 0 };
        leave_out
    }

    /// Whose turn it is.
    pub fn next(&self) -> Option<SlotId> {
        self.waiting.get(self.at()).map(|waiting| waiting.slot)
    }

    fn at(&self) -> usize {
        if !self.was_oldest {
            return 0;
        }
        let least = self.waiting.iter().enumerate();
        least
            .min_by_key(|(_, waiting)| waiting.left)
            .map_or(0, |(at, _)| at)
    }

    /// The one whose turn it is has had it, and has so many bytes left to ask for. With none it is not among them any more.
    pub fn took(&mut self, left: u64) {
        let at = self.at();
        self.was_oldest = !self.was_oldest;
        match self.waiting.get_mut(at) {
            Some(waiting) if left > 0 => waiting.left = left,
            _ => drop(self.waiting.remove(at)),
        }
    }

    /// Nothing more is wanted for this slot.
    pub fn remove(&mut self, index: u32) {
        self.waiting.retain(|waiting| waiting.slot.index != index);
    }

    pub fn clear(&mut self) {
        self.waiting.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn slot(index: u32) -> SlotId {
        SlotId {
            index,
            generation: 1,
        }
    }

    #[test]
    fn the_short_one_is_not_behind_the_long_one_nor_the_long_one_behind_all_short_ones() {
        let mut turns = Turns::default();
        assert!(!turns.is_one());
        turns.add(slot(0), 1 << 30);
        assert!(turns.is_one());
        turns.add(slot(1), 1 << 20);
        turns.add(slot(2), 2);
        assert!(!turns.is_one());
        let mut left = [1u64 << 30, 1 << 20, 2];
        let mut order = Vec::new();
        for _ in 0..6 {
            let index = turns.next().unwrap().index as usize;
            left[index] -= 1;
            turns.took(left[index]);
            order.push(index);
        }
        assert_eq!(order, [0, 2, 0, 2, 0, 1]);
        turns.remove(0);
        assert_eq!(turns.next(), Some(slot(1)));
        turns.clear();
        assert!(turns.is_empty() && turns.next().is_none());
    }

    #[test]
    fn the_short_one_is_whose_rest_is_short() {
        let mut turns = Turns::default();
        turns.add(slot(0), 10);
        turns.add(slot(1), 8);
        turns.took(3);
        assert_eq!(turns.next(), Some(slot(0)), "3 are left, and 8");
    }

    #[test]
    fn what_is_urgent_goes_first_but_not_for_ever() {
        let mut turns = Turns::default();
        let urgent = |turns: &mut Turns| (0..10).map(|_| turns.leave_out(true)).collect::<Vec<_>>();
        let left_out = [true, true, true, true, false, true, true, true, true, false];
        assert_eq!(urgent(&mut turns), left_out);
        assert!(turns.leave_out(true) && !turns.leave_out(false));
        assert_eq!(urgent(&mut turns), left_out, "counted from the last turn");
    }

    proptest! {
        /// Each gets all its turns, and whatever comes later, the oldest has every other one.
        #[test]
        fn nobody_is_forgotten(sizes in proptest::collection::vec(1u64..9, 1..20)) {
            let mut turns = Turns::default();
            let mut left = sizes.clone();
            for (index, size) in sizes.iter().enumerate() {
                turns.add(slot(index as u32), *size);
            }
            let mut since_oldest = 0;
            while let Some(next) = turns.next() {
                let index = next.index as usize;
                prop_assert!(left[index] > 0);
                let oldest = left.iter().position(|left| *left > 0) == Some(index);
                since_oldest = if oldest { 0 } else { since_oldest + 1 };
                prop_assert!(since_oldest <= 1);
                left[index] -= 1;
                turns.took(left[index]);
            }
            prop_assert!(left.iter().all(|left| *left == 0));
        }
    }
}
