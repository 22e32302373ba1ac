//! Slots: the bounded set of calls that can be on their way, without I/O.
//!
//! A call takes a slot, and the slot's generation goes with it over the wire. What was posted for
//! it may be touched by the device, and READ by the peer, until *both* has happened:
//!
//! * **local**: every work request posted for it has completed, and
//! * **answered**: the peer has answered this generation, and whatever the answer left behind has
//!   been fetched.
//!
//! A caller that gives up in between leaves a *zombie*: nobody waits any more, but the memory
//! stays where it is, and the slot is not used again. Too many zombies mean that the peer is not
//! answering; the connection is then closed, which releases everything.
//!
//! ```text
//!   Free --acquire--> InFlight --local + answered--> Free (next generation)
//!                        | abandon                     ^
//!                        v                             |
//!                      Zombie ---local + answered------+
//! ```

use crate::wire::SlotId;

/// What an answer, completion or caller meant that the table does not know.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SlotError {
    /// A slot that there is not.
    #[error("slot {0} does not exist")]
    Unknown(u32),
    /// Another use of the slot, or a free one.
    #[error("slot {index} is not in generation {generation}")]
    Generation {
        /// The slot.
        index: u32,
        /// The generation asked for.
        generation: u32,
    },
    /// Answered twice.
    #[error("slot {0} was answered twice")]
    Twice(u32),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Slot {
    generation: u32,
    busy: bool,
    local: bool,
    answer_seen: bool,
    answered: bool,
    zombie: bool,
}

/// The slots of one connection, on the side that asks.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct SlotTable {
    slots: Vec<Slot>,
    free: Vec<u32>,
    zombies: u32,
}

impl SlotTable {
    /// A table of `count` free slots.
    pub fn new(count: u32) -> SlotTable {
        let slot = Slot {
            generation: 0,
            busy: false,
            local: false,
            answer_seen: false,
            answered: false,
            zombie: false,
        };
        SlotTable {
            slots: vec![slot; count as usize],
            free: (0..count).rev().collect(),
            zombies: 0,
        }
    }

    /// Number of slots.
    pub fn count(&self) -> u32 {
        self.slots.len() as u32
    }

    /// Slots in use, zombies included.
    #[inline]
    pub fn in_use(&self) -> u32 {
        (self.slots.len() - self.free.len()) as u32
    }

    /// Slots that [`acquire`](Self::acquire) would give, one after the other.
    pub fn free(&self) -> u32 {
        self.free.len() as u32
    }

    /// Slots whose caller has given up.
    pub fn zombies(&self) -> u32 {
        self.zombies
    }

    /// Whether [`acquire`](Self::acquire) would give one.
    #[inline]
    pub fn has_free(&self) -> bool {
        !self.free.is_empty()
    }

    /// Takes a free slot, the one used last first: its memory is warm.
    #[inline]
    pub fn acquire(&mut self) -> Option<SlotId> {
        self.acquire_as(false)
    }

    /// As [`acquire`](Self::acquire), for a request of which nothing is in the hands of the local device once it is posted.
    #[inline]
    pub fn acquire_sent(&mut self) -> Option<SlotId> {
        self.acquire_as(true)
    }

    #[inline]
    fn acquire_as(&mut self, local: bool) -> Option<SlotId> {
        let index = self.free.pop()?;
        let slot = &mut self.slots[index as usize];
        debug_assert!(!slot.busy);
        *slot = Slot {
            generation: slot.generation.wrapping_add(1),
            busy: true,
            local,
            answer_seen: false,
            answered: false,
            zombie: false,
        };
        Some(SlotId {
            index,
            generation: slot.generation,
        })
    }

    #[inline]
    fn get(&mut self, id: SlotId) -> Result<&mut Slot, SlotError> {
        let slot = self
            .slots
            .get_mut(id.index as usize)
            .ok_or(SlotError::Unknown(id.index))?;
        if !slot.busy || slot.generation != id.generation {
            return Err(SlotError::Generation {
                index: id.index,
                generation: id.generation,
            });
        }
        Ok(slot)
    }

    /// Gives a slot back whose request was never posted.
    ///
    /// # Errors
    /// [`SlotError`] when it is not in use.
    pub fn cancel(&mut self, id: SlotId) -> Result<(), SlotError> {
        self.get(id)?;
        self.release(id.index);
        Ok(())
    }

    /// Notes that nothing of this slot is in the hands of the local device any more.
    ///
    /// True if this frees the slot.
    ///
    /// # Errors
    /// [`SlotError`] when it is not in use.
    #[inline]
    pub fn local_done(&mut self, id: SlotId) -> Result<bool, SlotError> {
        self.get(id)?.local = true;
        Ok(self.release_if_done(id.index))
    }

    /// Notes that an answer of this generation has arrived; what it left with the peer may still
    /// have to be fetched.
    ///
    /// # Errors
    /// [`SlotError`] when the slot is not waiting for one: the peer broke the rules.
    #[inline]
    pub fn answer(&mut self, id: SlotId) -> Result<(), SlotError> {
        let slot = self.get(id)?;
        if slot.answer_seen {
            return Err(SlotError::Twice(id.index));
        }
        slot.answer_seen = true;
        Ok(())
    }

    /// Notes that an answer of this generation has arrived, and left nothing with the peer. True if this frees the slot.
    ///
    /// # Errors
    /// As [`answer`](Self::answer).
    #[inline]
    pub fn answer_whole(&mut self, id: SlotId) -> Result<bool, SlotError> {
        let slot = self.get(id)?;
        if slot.answer_seen {
            return Err(SlotError::Twice(id.index));
        }
        slot.answer_seen = true;
        slot.answered = true;
        let done = slot.local;
        if done {
            self.release(id.index);
        }
        Ok(done)
    }

    /// Notes that the answer has been fetched whole. True if this frees the slot.
    ///
    /// # Errors
    /// [`SlotError`] when the slot has not been answered.
    #[inline]
    pub fn fetched(&mut self, id: SlotId) -> Result<bool, SlotError> {
        let slot = self.get(id)?;
        if !slot.answer_seen {
            return Err(SlotError::Generation {
                index: id.index,
                generation: id.generation,
            });
        }
        slot.answered = true;
        Ok(self.release_if_done(id.index))
    }

    /// Notes that nobody waits for this slot any more.
    ///
    /// # Errors
    /// [`SlotError`] when it is not in use (any more).
    pub fn abandon(&mut self, id: SlotId) -> Result<(), SlotError> {
        let slot = self.get(id)?;
        if !slot.zombie {
            slot.zombie = true;
            self.zombies += 1;
        }
        Ok(())
    }

    /// The id of a slot's present use, if it is in use.
    pub fn current(&self, index: u32) -> Option<SlotId> {
        let slot = self.slots.get(index as usize)?;
        slot.busy.then_some(SlotId {
            index,
            generation: slot.generation,
        })
    }

    /// Whether nobody waits for this slot.
    #[cfg(test)]
    fn is_zombie(&self, id: SlotId) -> bool {
        self.slots
            .get(id.index as usize)
            .is_some_and(|slot| slot.busy && slot.generation == id.generation && slot.zombie)
    }

    #[inline]
    fn release_if_done(&mut self, index: u32) -> bool {
        let slot = self.slots[index as usize];
        let done = slot.local && slot.answered;
        if done {
            self.release(index);
        }
        done
    }

    #[inline]
    fn release(&mut self, index: u32) {
        let slot = &mut self.slots[index as usize];
        debug_assert!(slot.busy);
        slot.busy = false;
        if slot.zombie {
            slot.zombie = false;
            self.zombies -= 1;
        }
        self.free.push(index);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn both_halves_free_a_slot_in_either_order() {
        for local_first in [true, false] {
            let mut table = SlotTable::new(1);
            let id = table.acquire().unwrap();
            assert!(table.acquire().is_none());
            table.answer(id).unwrap();
            if local_first {
                assert!(!table.local_done(id).unwrap());
                assert!(table.fetched(id).unwrap());
            } else {
                assert!(!table.fetched(id).unwrap());
                assert!(table.local_done(id).unwrap());
            }
            let next = table.acquire().unwrap();
            assert_eq!(next.index, id.index);
            assert_ne!(next.generation, id.generation);
        }
    }

    #[test]
    fn a_zombie_is_not_used_again_before_its_answer() {
        let mut table = SlotTable::new(2);
        let (a, b) = (table.acquire().unwrap(), table.acquire().unwrap());
        table.local_done(a).unwrap();
        table.abandon(a).unwrap();
        table.abandon(a).unwrap();
        assert_eq!(table.zombies(), 1);
        assert!(table.is_zombie(a) && !table.is_zombie(b));
        assert!(table.acquire().is_none());
        table.answer(a).unwrap();
        assert!(table.fetched(a).unwrap());
        assert_eq!((table.zombies(), table.in_use()), (0, 1));
        assert_ne!(table.acquire().unwrap(), a);
    }

    #[test]
    fn stale_and_impossible_answers_are_refused() {
        let mut table = SlotTable::new(2);
        let id = table.acquire().unwrap();
        let other = |index, generation| SlotId { index, generation };
        assert_eq!(table.answer(other(2, 1)), Err(SlotError::Unknown(2)));
        assert!(matches!(
            table.answer(other(0, id.generation + 1)),
            Err(SlotError::Generation { .. })
        ));
        assert!(table.answer(other(1, 0)).is_err(), "a free slot");
        assert!(table.fetched(id).is_err(), "not answered yet");
        table.answer(id).unwrap();
        assert_eq!(table.answer(id), Err(SlotError::Twice(id.index)));
    }

    proptest! {
        /// Random operations on random ids: the table never loses or duplicates a slot.
        #[test]
        fn slots_are_conserved(
            count in 1u32..8,
            ops in proptest::collection::vec((0u8..6, any::<u8>(), 0u32..3), 0..400),
        ) {
            let mut table = SlotTable::new(count);
            let mut live: Vec<SlotId> = Vec::new();
            for (op, pick, skew) in ops {
                if op == 0 {
                    match table.acquire() {
                        Some(id) => {
                            prop_assert!(live.iter().all(|l| l.index != id.index));
                            live.push(id);
                        }
                        None => prop_assert_eq!(live.len() as u32, count),
                    }
                } else if !live.is_empty() {
                    let at = usize::from(pick) % live.len();
                    let mut id = live[at];
                    id.generation = id.generation.wrapping_add(skew);
                    let freed = match op {
                        1 => table.local_done(id),
                        2 => table.answer(id).map(|()| false),
                        3 => table.fetched(id),
                        4 => table.abandon(id).map(|()| false),
                        _ => table.cancel(id).map(|()| true),
                    };
                    prop_assert!(skew == 0 || freed.is_err());
                    if freed == Ok(true) {
                        live.swap_remove(at);
                    }
                }
                prop_assert_eq!(table.in_use() as usize, live.len());
                prop_assert!(table.zombies() <= table.in_use());
            }
        }
    }
}
