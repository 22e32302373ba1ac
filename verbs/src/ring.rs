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
//!
//! A position is kept as the [id](id) of its work request: the sequence number is on top of it and wraps by itself, and ids of other queues never
//! look like one of this.

use crate::tags::{NO_TAG, Stopped};

/// Bits of a sequence number; the rest of a work request's id, below it, is the queue's tag.
pub(crate) const SEQ_BITS: u32 = 48;
/// Sequence numbers are counted modulo this plus one.
pub(crate) const SEQ_MASK: u64 = (1 << SEQ_BITS) - 1;

const TAG_BITS: u32 = u64::BITS - SEQ_BITS;
/// From one id to the next.
const STEP: u64 = 1 << TAG_BITS;

/// The id of a work request. Of a sequence number only 48 bits are looked at.
#[inline(always)]
pub(crate) const fn id(tag: u16, seq: u64) -> u64 {
    seq << TAG_BITS | tag as u64
}

/// The tag in an id.
#[inline(always)]
pub(crate) const fn tag(id: u64) -> u16 {
    id as u16
}

/// The sequence number in an id.
#[inline(always)]
pub(crate) const fn seq(id: u64) -> u64 {
    id >> TAG_BITS
}

/// Steps from one id up to another. More than any queue is long if they are of different queues.
#[inline(always)]
fn distance(from: u64, to: u64) -> u64 {
    to.wrapping_sub(from).rotate_right(TAG_BITS)
}

/// What a ring must know of an outcome.
pub(crate) trait Said: Copy {
    /// Whether it says nothing about older work: something before had failed.
    fn leaves_doubt(&self) -> bool;
}

/// Values in flight, each with the outcome `O` that its completion reported.
///
/// A send queue uses [`retire`](Self::retire) and [`pop`](Self::pop), or [`settle`](Self::settle) and [`take_oldest`](Self::take_oldest); a receive queue [`redeem`](Self::redeem) and
/// [`pop_lost`](Self::pop_lost).
pub(crate) struct Ring<T, O> {
    /// As many as a power of two. Full from `base` to `next`, except for receives that were redeemed before older, lost ones were taken.
    values: Box<[Option<T>]>,
    /// As many. What the completion of exactly this slot said; `None` for those retired by a later one.
    outcomes: Box<[Option<O>]>,
    /// One less than they are.
    mask: usize,
    /// How many values there is room for, in steps.
    depth: u64,
    base: u64,
    retired: u64,
    next: u64,
    /// Where `next` must stop: `base` and the depth.
    end: u64,
    /// The receive that can be redeemed [in order](Self::redeem_next): while there is one, it stands for both `base` and `retired`, which are not
    /// kept up. Otherwise, and always in a send queue, [`NONE`].
    due: u64,
}

/// No work request's id.
const NONE: u64 = id(NO_TAG, 0);

/// Room for one value, found before it is posted, so that storing it afterwards cannot fail.
pub(crate) struct Vacant<'r, T> {
    value: &'r mut Option<T>,
    next: &'r mut u64,
}

impl<T> Vacant<'_, T> {
    /// The id of the value's work request.
    #[inline(always)]
    pub(crate) fn id(&self) -> u64 {
        *self.next
    }

    /// Adds it as the newest.
    #[inline(always)]
    pub(crate) fn fill(self, value: T) {
        debug_assert!(self.value.is_none());
        // SAFETY: a place that is borrowed mutably; it is empty, so nothing is left undropped that should be dropped.
        unsafe { std::ptr::write(self.value, Some(value)) };
        *self.next = self.next.wrapping_add(STEP);
    }
}

impl<T, O> Ring<T, O> {
    /// A ring for `depth` values, the first of which is to have the id `first`.
    pub(crate) fn new(depth: u32, first: u64) -> Ring<T, O> {
        // A power of two divides 2^48, so that the index goes on across the wrap of the sequence.
        let len = depth.max(1).next_power_of_two() as usize;
        let depth = u64::from(depth) << TAG_BITS;
        Ring {
            values: (0..len).map(|_| None).collect(),
            outcomes: (0..len).map(|_| None).collect(),
            mask: len - 1,
            depth,
            base: first,
            retired: first,
            next: first,
            end: first.wrapping_add(depth),
            due: NONE,
        }
    }

    #[inline(always)]
    fn index(&self, at: u64) -> usize {
        (at >> TAG_BITS) as usize & self.mask
    }

    #[inline(always)]
    fn value(&mut self, at: u64) -> &mut Option<T> {
        let at = self.index(at);
        debug_assert!(at < self.values.len());
        // SAFETY: `mask` is one less than the number of slots, which does not change.
        unsafe { self.values.get_unchecked_mut(at) }
    }

    #[inline(always)]
    fn outcome(&mut self, at: u64) -> &mut Option<O> {
        let at = self.index(at);
        debug_assert!(at < self.outcomes.len());
        // SAFETY: as above.
        unsafe { self.outcomes.get_unchecked_mut(at) }
    }

    /// Values the ring can hold.
    #[inline(always)]
    pub(crate) fn depth(&self) -> u32 {
        (self.depth >> TAG_BITS) as u32
    }

    /// Slots that can still be filled.
    #[inline(always)]
    pub(crate) fn free(&self) -> u32 {
        distance(self.next, self.end) as u32
    }

    /// Values that the device may still touch.
    #[inline(always)]
    pub(crate) fn in_flight(&self) -> u32 {
        match self.due {
            NONE => distance(self.retired, self.next) as u32,
            due => distance(due, self.next) as u32,
        }
    }

    /// Slots that are completed and wait for being taken.
    #[inline(always)]
    pub(crate) fn retired_untaken(&self) -> u32 {
        match self.due {
            NONE => distance(self.base, self.retired) as u32,
            _ => 0,
        }
    }

    /// Where it would stop now.
    pub(crate) fn stopped(&self) -> Stopped {
        Stopped {
            next: seq(self.next),
            in_flight: self.in_flight(),
        }
    }

    /// The id of the work request that is added after `ahead` others.
    #[inline(always)]
    pub(crate) fn id_ahead(&self, ahead: usize) -> u64 {
        let steps = (ahead as u64) << TAG_BITS;
        self.next.wrapping_add(steps)
    }

    /// Room for the next value, unless the ring is full.
    #[inline(always)]
    pub(crate) fn vacant(&mut self) -> Option<Vacant<'_, T>> {
        if self.next == self.end {
            return None;
        }
        let at = self.index(self.next);
        debug_assert!(at < self.values.len());
        Some(Vacant {
            // SAFETY: as in `value`.
            value: unsafe { self.values.get_unchecked_mut(at) },
            next: &mut self.next,
        })
    }

    /// Takes the newest value out again. Only if the device was never given it.
    pub(crate) fn unfill(&mut self) -> Option<T> {
        if self.in_flight() == 0 {
            return None;
        }
        self.next = self.next.wrapping_sub(STEP);
        let next = self.next;
        self.value(next).take()
    }

    /// Whether the device may still touch the value at `at`.
    #[inline(always)]
    fn is_in_flight(&self, at: u64) -> bool {
        distance(self.retired, at) < distance(self.retired, self.next)
    }

    /// Records the completion of the work request with this id: it and all older ones are no longer in flight. The id up to which values can be
    /// taken now; `None` outside the window.
    #[inline(always)]
    pub(crate) fn retire(&mut self, wr_id: u64, outcome: O) -> Option<u64>
    where
        O: Said,
    {
        if !self.is_in_flight(wr_id) {
            return None;
        }
        if outcome.leaves_doubt() {
            self.doubt(wr_id, outcome);
        }
        *self.outcome(wr_id) = Some(outcome);
        self.retired = wr_id.wrapping_add(STEP);
        Some(self.retired)
    }

    /// What is in flight before `end` has no completion that was seen: it ends like that one.
    #[cold]
    fn doubt(&mut self, end: u64, outcome: O)
    where
        O: Copy,
    {
        let mut at = self.retired;
        while at != end {
            *self.outcome(at) = Some(outcome);
            at = at.wrapping_add(STEP);
        }
    }

    /// 0 if the completion of the work request with this id can be [settled](Self::settle): it is in flight, and nothing that was retired before
    /// waits to be taken.
    #[inline(always)]
    pub(crate) fn differs_from_settling(&self, wr_id: u64) -> u64 {
        let ahead = distance(self.base, wr_id);
        (self.base ^ self.retired) | u64::from(ahead >= distance(self.base, self.next))
    }

    /// As [`retire`](Self::retire), of work that succeeded and [can be settled](Self::differs_from_settling). What the completion said is not kept: all that it
    /// retires can be taken at once, by [`take_oldest`](Self::take_oldest).
    #[inline(always)]
    pub(crate) fn settle(&mut self, wr_id: u64) {
        debug_assert!(self.differs_from_settling(wr_id) == 0);
        self.retired = wr_id.wrapping_add(STEP);
    }

    /// The oldest value, if it is no longer in flight, without regard to what was said of it; and whether it is the last of these.
    #[inline(always)]
    pub(crate) fn take_oldest(&mut self) -> Option<(T, bool)> {
        let at = self.base;
        if at == self.retired {
            return None;
        }
        let value = self.value(at).take()?;
        self.step();
        Some((value, self.base == self.retired))
    }

    /// Whether nothing more can be taken before `end`.
    #[inline(always)]
    fn nothing_before(&self, end: u64) -> bool {
        // Whatever is asked for: nothing in flight.
        self.base == self.retired || end.wrapping_sub(self.base) as i64 <= 0
    }

    #[inline(always)]
    fn step(&mut self) {
        self.base = self.base.wrapping_add(STEP);
        self.end = self.end.wrapping_add(STEP);
    }

    /// The oldest value, if it lies before `end`, which [`retire`](Self::retire) gave.
    #[inline(always)]
    pub(crate) fn pop(&mut self, end: u64) -> Option<(T, Option<O>)> {
        if self.nothing_before(end) {
            return None;
        }
        let at = self.base;
        // Mostly there is none: not even to be looked at.
        let outcome = self.outcome(at);
        let outcome = match outcome {
            None => None,
            Some(_) => outcome.take(),
        };
        let value = self.value(at).take()?;
        self.step();
        Some((value, outcome))
    }

    /// Drops the oldest values, up to the first that `which` does not name or that does not lie before `end`, a place that
    /// [`retire`](Self::retire) gave.
    #[inline(always)]
    pub(crate) fn discard(&mut self, end: u64, which: impl Fn(&T, Option<&O>) -> bool) {
        while !self.nothing_before(end) {
            let at = self.index(self.base);
            // Both are there: see `value`.
            let (Some(value), Some(outcome)) = (self.values.get(at), self.outcomes.get_mut(at))
            else {
                return;
            };
            match value {
                Some(value) if which(value, outcome.as_ref()) => {}
                _ => return,
            }
            *outcome = None;
            let at = self.base;
            // Counted first: should dropping it panic, it is gone all the same.
            self.step();
            // Where it is: to move it out first would cost more than all the rest.
            *self.value(at) = None;
        }
    }

    /// Whether `wr_id` names the oldest work, and nothing older waits to be taken: 0 if so.
    #[inline(always)]
    pub(crate) fn differs_from_next(&self, wr_id: u64) -> u64 {
        wr_id ^ self.due
    }

    /// Brings `base` and `retired` up to where [`redeem_next`](Self::redeem_next) has come, for those who look at them.
    fn catch_up(&mut self) {
        if self.due != NONE {
            (self.base, self.retired) = (self.due, self.due);
            self.due = NONE;
        }
    }

    /// The reverse: if nothing waits to be taken, receives are redeemed in order from here.
    pub(crate) fn in_order(&mut self) {
        if self.base == self.retired {
            self.due = self.base;
        }
    }

    /// Whether the oldest value is there. If not, and it is [the next](Self::differs_from_next) all the same, a device says that it has completed
    /// what it was not given.
    #[inline(always)]
    pub(crate) fn has_oldest(&mut self) -> bool {
        let at = self.due;
        self.value(at).is_some()
    }

    /// The oldest value, which has completed and is [the next](Self::differs_from_next), if it [is there](Self::has_oldest).
    #[inline(always)]
    pub(crate) fn redeem_next(&mut self) -> Option<T> {
        let at = self.due;
        let value = self.value(at).take()?;
        self.due = at.wrapping_add(STEP);
        self.end = self.end.wrapping_add(STEP);
        Some(value)
    }

    /// The value of this work request, which has completed; older ones are retired as lost. `None` outside the window.
    pub(crate) fn redeem(&mut self, wr_id: u64) -> Option<T> {
        self.catch_up();
        let inside = self.is_in_flight(wr_id);
        if inside {
            if self.base == wr_id {
                self.step();
            }
            self.retired = wr_id.wrapping_add(STEP);
        }
        self.in_order();
        match inside {
            true => self.value(wr_id).take(),
            false => None,
        }
    }

    /// The oldest lost value.
    pub(crate) fn pop_lost(&mut self) -> Option<T> {
        self.catch_up();
        if self.base == self.retired {
            self.in_order();
            return None;
        }
        let base = self.base;
        let value = self.value(base).take();
        // What was redeemed out of order behind it leaves room as well.
        while self.base != self.retired {
            let base = self.base;
            if self.value(base).is_some() {
                break;
            }
            self.step();
        }
        self.in_order();
        value
    }

    /// Everything left, oldest first, in flight or not. Only when the device can touch none of it any more.
    pub(crate) fn drain(&mut self) -> Vec<T> {
        self.catch_up();
        let mut out = Vec::with_capacity(distance(self.base, self.next) as usize);
        while self.base != self.next {
            let base = self.base;
            *self.outcome(base) = None;
            out.extend(self.value(base).take());
            self.step();
        }
        self.retired = self.next;
        out
    }
}

#[cfg(test)]
#[path = "ring_tests.rs"]
mod tests;
