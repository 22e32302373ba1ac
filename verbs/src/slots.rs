//! The work in flight of a shared receive queue, which completes in any order.
//!
//! Pure bookkeeping, no device. A slot is named by its number alone: it is given out again only after the completion of what was in
//! it was redeemed, and a piece of work has one completion, which exists once. So whoever has a completion with a slot's number has
//! that of what is in the slot now.

/// Bits of a slot's number; the rest of the 48 are the shared queue's.
pub(crate) const SLOT_BITS: u32 = 20;
/// Slots that a queue can have.
pub(crate) const MAX_SLOTS: u32 = 1 << SLOT_BITS;

/// Values in flight.
pub(crate) struct Slots<T> {
    values: Vec<Option<T>>,
    /// Slots without a value; the depth of the queue less those in use, but for slots above a depth that shrank.
    free: Vec<u32>,
    depth: u32,
}

/// Room for one value, found before it is posted, so that storing it afterwards cannot fail.
pub(crate) struct Vacant<'s, T> {
    value: &'s mut Option<T>,
    free: &'s mut Vec<u32>,
    slot: u32,
}

impl<T> Vacant<'_, T> {
    #[inline(always)]
    pub(crate) fn slot(&self) -> u32 {
        self.slot
    }

    #[inline(always)]
    pub(crate) fn fill(self, value: T) {
        self.free.pop();
        // The slot is empty: forgetting what was in it spares the check on the way.
        std::mem::forget(self.value.replace(value));
    }
}

impl<T> Slots<T> {
    pub(crate) fn new(depth: u32) -> Slots<T> {
        let mut slots = Slots {
            values: Vec::new(),
            free: Vec::new(),
            depth: 0,
        };
        slots.resize(depth);
        slots
    }

    /// Changes the number of slots; those in use above it stay until they are redeemed.
    pub(crate) fn resize(&mut self, depth: u32) {
        let depth = depth.min(MAX_SLOTS);
        if depth as usize > self.values.len() {
            self.values.resize_with(depth as usize, || None);
        }
        self.depth = depth;
        self.free.clear();
        self.free.reserve(self.values.len());
        let values = &self.values;
        let empty = (0..depth).rev().filter(|at| values[*at as usize].is_none());
        self.free.extend(empty);
    }

    #[inline(always)]
    pub(crate) fn vacant(&mut self) -> Option<Vacant<'_, T>> {
        let slot = *self.free.last()?;
        Some(Vacant {
            value: self.values.get_mut(slot as usize)?,
            free: &mut self.free,
            slot,
        })
    }

    /// The value in `slot`, whose completion the caller has; `None` when there is none.
    #[inline(always)]
    pub(crate) fn redeem(&mut self, slot: u32) -> Option<T> {
        let value = self.values.get_mut(slot as usize)?.take()?;
        if slot < self.depth {
            self.free.push(slot);
        }
        Some(value)
    }

    pub(crate) fn free(&self) -> u32 {
        self.free.len() as u32
    }

    pub(crate) fn depth(&self) -> u32 {
        self.depth
    }

    /// Slots with a value.
    pub(crate) fn in_flight(&self) -> u32 {
        // Slots above a depth that shrank are few and rare: they are counted when asked for.
        let above = self.values[self.depth as usize..].iter();
        self.depth - self.free() + above.filter(|value| value.is_some()).count() as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn post(slots: &mut Slots<u64>, value: u64) -> Option<u32> {
        let vacant = slots.vacant()?;
        let slot = vacant.slot();
        vacant.fill(value);
        Some(slot)
    }

    #[test]
    fn a_slot_comes_back_when_it_is_redeemed_and_once() {
        let mut slots = Slots::new(2);
        let (a, b) = (post(&mut slots, 1).unwrap(), post(&mut slots, 2).unwrap());
        assert_ne!(a, b);
        assert_eq!((post(&mut slots, 3), slots.in_flight()), (None, 2));
        assert_eq!((slots.redeem(b), slots.redeem(b)), (Some(2), None));
        assert_eq!((slots.redeem(2), slots.redeem(u32::MAX)), (None, None));
        assert_eq!(post(&mut slots, 3), Some(b));
        assert_eq!(slots.redeem(a), Some(1));
    }

    #[test]
    fn shrinking_keeps_what_is_in_flight() {
        let mut slots = Slots::new(4);
        let all: Vec<_> = (0..4).map(|v| post(&mut slots, v).unwrap()).collect();
        slots.resize(2);
        assert_eq!((slots.depth(), slots.free(), slots.in_flight()), (2, 0, 4));
        for (value, slot) in all.into_iter().enumerate() {
            assert_eq!(slots.redeem(slot), Some(value as u64));
        }
        assert_eq!((slots.free(), slots.in_flight()), (2, 0));
        slots.resize(3);
        assert_eq!((slots.free(), slots.in_flight()), (3, 0));
    }

    proptest! {
        #[test]
        fn never_loses_or_mixes_up_values(steps in prop::collection::vec((0u8..4, any::<prop::sample::Index>()), 0..200)) {
            let mut slots = Slots::new(5);
            let mut model: Vec<(u32, u64)> = Vec::new();
            for (n, (kind, which)) in steps.into_iter().enumerate() {
                if kind == 3 {
                    slots.resize(1 + which.index(8) as u32);
                } else if kind == 2 && !model.is_empty() {
                    let (slot, value) = model.swap_remove(which.index(model.len()));
                    prop_assert_eq!(slots.redeem(slot), Some(value));
                } else if let Some(slot) = post(&mut slots, n as u64) {
                    prop_assert!(model.iter().all(|(used, _)| *used != slot));
                    model.push((slot, n as u64));
                }
                prop_assert_eq!(slots.in_flight() as usize, model.len());
            }
        }
    }
}
