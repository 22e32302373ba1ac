//! The work in flight of one queue, oldest first.
//!
//! Pure bookkeeping, no device: a ring of fixed size, allocated once, whose slots are named by a 48-bit sequence number that
//! never restarts. Three positions move upwards, `base <= retired <= next`:
//!
//! ```text
//!      base          retired           next
//!  ------|--------------|----------------|-------->  sequence
//!        |  completed,  |  the device    |
//!        |  not taken   |  may touch it  |
//! ```
//!
//! Only values below `retired` can be taken, and only the completion of a slot in flight moves `retired`, whatever token or completion asks: that is the whole of the argument that a
//! stale, repeated or foreign completion never yields memory in flight.

use crate::tags::Stopped;

/// Bits of a sequence number; the rest of a work request's id is the queue's tag.
pub(crate) const SEQ_BITS: u32 = 48;
/// Sequence numbers are counted modulo this plus one.
pub(crate) const SEQ_MASK: u64 = (1 << SEQ_BITS) - 1;

/// Steps from `a` up to `b`.
#[inline]
fn distance(a: u64, b: u64) -> u64 {
    b.wrapping_sub(a) & SEQ_MASK
}

struct Slot<T, O> {
    /// Full from `base` to `next`, except for receives that were redeemed before older, lost ones were taken.
    value: Option<T>,
    /// What the completion of exactly this slot said; `None` for those retired by a later one.
    outcome: Option<O>,
}

/// What a ring must know of an outcome.
pub(crate) trait Said: Copy {
    /// Whether it says nothing about older work: something before had failed.
    fn leaves_doubt(&self) -> bool;
}

/// Values in flight, each with the outcome `O` that its completion reported.
///
/// A send queue uses [`retire`](Self::retire) and [`pop`](Self::pop), a receive queue [`redeem`](Self::redeem) and
/// [`pop_lost`](Self::pop_lost).
pub(crate) struct Ring<T, O> {
    /// As many as a power of two.
    slots: Box<[Slot<T, O>]>,
    /// One less than they are.
    mask: usize,
    depth: u64,
    // Positions count without end, in 64 bits; a sequence number is the lower 48 of one.
    base: u64,
    retired: u64,
    next: u64,
    /// Where `next` must stop: `base` and the depth.
    end: u64,
}

/// Room for one value, found before it is posted, so that storing it afterwards cannot fail.
pub(crate) struct Vacant<'r, T, O> {
    slot: &'r mut Slot<T, O>,
    next: &'r mut u64,
}

impl<T, O> Vacant<'_, T, O> {
    /// The sequence number of the value.
    #[inline(always)]
    pub(crate) fn seq(&self) -> u64 {
        *self.next & SEQ_MASK
    }

    /// Adds it as the newest.
    #[inline(always)]
    pub(crate) fn fill(self, value: T) {
        debug_assert!(self.slot.value.is_none() && self.slot.outcome.is_none());
        // SAFETY: a place that is borrowed mutably; it is empty, so nothing is left undropped that should be dropped.
        unsafe { std::ptr::write(&mut self.slot.value, Some(value)) };
        *self.next += 1;
    }
}

impl<T, O> Ring<T, O> {
    /// A ring for `depth` values whose first sequence number is `first`.
    pub(crate) fn new(depth: u32, first: u64) -> Ring<T, O> {
        // A power of two divides 2^48, so that the index goes on across the wrap of the sequence.
        let len = depth.max(1).next_power_of_two() as usize;
        Ring {
            slots: (0..len)
                .map(|_| Slot {
                    value: None,
                    outcome: None,
                })
                .collect(),
            mask: len - 1,
            depth: u64::from(depth),
            base: first & SEQ_MASK,
            retired: first & SEQ_MASK,
            next: first & SEQ_MASK,
            end: (first & SEQ_MASK) + u64::from(depth),
        }
    }

    #[inline(always)]
    fn slot(&mut self, at: u64) -> &mut Slot<T, O> {
        let at = at as usize & self.mask;
        debug_assert!(at < self.slots.len());
        // SAFETY: `mask` is one less than the number of slots, which does not change.
        unsafe { self.slots.get_unchecked_mut(at) }
    }

    /// Values the ring can hold.
    #[inline(always)]
    pub(crate) fn depth(&self) -> u32 {
        self.depth as u32
    }

    /// Slots that can still be filled.
    #[inline(always)]
    pub(crate) fn free(&self) -> u32 {
        (self.end - self.next) as u32
    }

    /// Values that the device may still touch.
    #[inline(always)]
    pub(crate) fn in_flight(&self) -> u32 {
        (self.next - self.retired) as u32
    }

    /// Slots that are completed and wait for being taken.
    #[inline(always)]
    pub(crate) fn retired_untaken(&self) -> u32 {
        (self.retired - self.base) as u32
    }

    /// Where it would stop now.
    pub(crate) fn stopped(&self) -> Stopped {
        Stopped {
            next: self.next & SEQ_MASK,
            in_flight: self.in_flight(),
        }
    }

    /// The sequence number of the value that is added after `ahead` others.
    #[inline(always)]
    pub(crate) fn seq_ahead(&self, ahead: usize) -> u64 {
        (self.next + ahead as u64) & SEQ_MASK
    }

    /// Room for the next value, unless the ring is full.
    #[inline(always)]
    pub(crate) fn vacant(&mut self) -> Option<Vacant<'_, T, O>> {
        if self.next == self.end {
            return None;
        }
        let at = self.next as usize & self.mask;
        debug_assert!(at < self.slots.len());
        Some(Vacant {
            // SAFETY: as in `slot`.
            slot: unsafe { self.slots.get_unchecked_mut(at) },
            next: &mut self.next,
        })
    }

    /// Takes the newest value out again. Only if the device was never given it.
    pub(crate) fn unfill(&mut self) -> Option<T> {
        if self.next == self.retired {
            return None;
        }
        self.next -= 1;
        let next = self.next;
        self.slot(next).value.take()
    }

    /// The position of `seq`, if the device may still touch the value there.
    #[inline(always)]
    fn in_flight_at(&self, seq: u64) -> Option<u64> {
        let ahead = distance(self.retired, seq);
        (ahead < self.next - self.retired).then(|| self.retired + ahead)
    }

    /// Records the completion of `seq`: it and all older ones are no longer in flight. The position up to which values can be taken
    /// now; `None` outside the window.
    #[inline(always)]
    pub(crate) fn retire(&mut self, seq: u64, outcome: O) -> Option<u64>
    where
        O: Said,
    {
        let at = self.in_flight_at(seq)?;
        if outcome.leaves_doubt() {
            self.doubt(at, outcome);
        }
        self.slot(at).outcome = Some(outcome);
        self.retired = at + 1;
        Some(at + 1)
    }

    /// What is in flight before `end` has no completion that was seen: it ends like that one.
    #[cold]
    fn doubt(&mut self, end: u64, outcome: O)
    where
        O: Copy,
    {
        for at in self.retired..end {
            self.slot(at).outcome = Some(outcome);
        }
    }

    /// The oldest value, if it lies before `end`, a position that [`retire`](Self::retire) gave.
    #[inline(always)]
    pub(crate) fn pop(&mut self, end: u64) -> Option<(T, Option<O>)> {
        // Whatever is asked for: nothing in flight.
        if self.base >= end.min(self.retired) {
            return None;
        }
        let slot = self.slot(self.base);
        let value = slot.value.take()?;
        // Mostly there is none: not even to be looked at.
        let outcome = match slot.outcome {
            None => None,
            Some(_) => slot.outcome.take(),
        };
        self.base += 1;
        self.end += 1;
        Some((value, outcome))
    }

    /// Drops the oldest values, up to the first that `which` does not name or that does not lie before `end`, a position that
    /// [`retire`](Self::retire) gave.
    #[inline(always)]
    pub(crate) fn discard(&mut self, end: u64, which: impl Fn(&T, Option<&O>) -> bool) {
        while self.base < end.min(self.retired) {
            let slot = self.slot(self.base);
            match &slot.value {
                Some(value) if which(value, slot.outcome.as_ref()) => {}
                _ => return,
            }
            slot.outcome = None;
            // Counted first: should dropping it panic, it is gone all the same.
            self.base += 1;
            self.end += 1;
            let at = self.base - 1;
            // Where it is: to move it out first would cost more than all the rest.
            self.slot(at).value = None;
        }
    }

    /// The value at `seq`, which has completed; older ones are retired as lost. `None` outside the window.
    #[inline(always)]
    pub(crate) fn redeem(&mut self, seq: u64) -> Option<T> {
        let at = self.in_flight_at(seq)?;
        if self.base == at {
            self.base = at + 1;
            self.end += 1;
        }
        self.retired = at + 1;
        self.slot(at).value.take()
    }

    /// The oldest lost value.
    pub(crate) fn pop_lost(&mut self) -> Option<T> {
        if self.base == self.retired {
            return None;
        }
        let base = self.base;
        let value = self.slot(base).value.take();
        // What was redeemed out of order behind it leaves room as well.
        while self.base != self.retired {
            if self.slot(self.base).value.is_some() {
                break;
            }
            self.base += 1;
        }
        self.end = self.base + self.depth;
        value
    }

    /// Everything left, oldest first, in flight or not. Only when the device can touch none of it any more.
    pub(crate) fn drain(&mut self) -> Vec<T> {
        let mut out = Vec::with_capacity((self.next - self.base) as usize);
        for at in self.base..self.next {
            let slot = self.slot(at);
            slot.outcome = None;
            out.extend(slot.value.take());
        }
        (self.base, self.retired) = (self.next, self.next);
        self.end = self.base + self.depth;
        out
    }
}

#[cfg(test)]
#[path = "ring_tests.rs"]
mod tests;
