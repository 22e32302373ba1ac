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
//! Only values below `retired` can be taken, whatever token or completion asks: that is the whole of the argument that a
//! stale, repeated or foreign completion never yields memory in flight.

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
    value: Option<T>,
    /// What the completion of exactly this slot said; `None` for those retired by a later one.
    outcome: Option<O>,
}

/// Values in flight, each with the outcome `O` that its completion reported.
pub(crate) struct Ring<T, O> {
    slots: Box<[Slot<T, O>]>,
    depth: u64,
    base: u64,
    retired: u64,
    next: u64,
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
            depth: u64::from(depth),
            base: first & SEQ_MASK,
            retired: first & SEQ_MASK,
            next: first & SEQ_MASK,
        }
    }

    #[inline]
    fn slot(&mut self, seq: u64) -> &mut Slot<T, O> {
        let at = seq as usize & (self.slots.len() - 1);
        &mut self.slots[at]
    }

    /// Values the ring can hold.
    #[inline]
    pub(crate) fn depth(&self) -> u32 {
        self.depth as u32
    }

    /// Slots a push can still use.
    #[inline]
    pub(crate) fn free(&self) -> u32 {
        (self.depth - distance(self.base, self.next)) as u32
    }

    /// Values that the device may still touch.
    #[inline]
    pub(crate) fn in_flight(&self) -> u32 {
        distance(self.retired, self.next) as u32
    }

    /// Slots that are completed and wait for being taken.
    #[inline]
    pub(crate) fn retired_untaken(&self) -> u32 {
        distance(self.base, self.retired) as u32
    }

    /// Sequence number of the next push.
    #[inline]
    pub(crate) fn next_seq(&self) -> u64 {
        self.next
    }

    /// Adds the newest value. The caller has checked [`free`](Self::free); without room the value comes back.
    #[inline]
    pub(crate) fn push(&mut self, value: T) -> Result<(), T> {
        if self.free() == 0 {
            return Err(value);
        }
        let seq = self.next;
        let slot = self.slot(seq);
        slot.value = Some(value);
        slot.outcome = None;
        self.next = (seq + 1) & SEQ_MASK;
        Ok(())
    }

    /// Records the completion of `seq`: it and all older ones are no longer in flight. `false` outside the window.
    #[inline]
    pub(crate) fn retire(&mut self, seq: u64, outcome: O) -> bool {
        if distance(self.retired, seq) >= distance(self.retired, self.next) {
            return false;
        }
        self.slot(seq).outcome = Some(outcome);
        self.retired = (seq + 1) & SEQ_MASK;
        true
    }

    /// The oldest value, if it is retired and not newer than `upto`.
    #[inline]
    pub(crate) fn pop(&mut self, upto: u64) -> Option<(T, Option<O>)> {
        if distance(self.base, upto) >= distance(self.base, self.retired) {
            return None;
        }
        self.pop_oldest()
    }

    /// The oldest retired value.
    #[inline]
    pub(crate) fn pop_oldest(&mut self) -> Option<(T, Option<O>)> {
        // `base` is at a value unless nothing is retired.
        let base = self.base;
        self.take(base)
    }

    /// The retired value at `seq` itself, leaving older ones for [`pop_oldest`](Self::pop_oldest).
    #[inline]
    pub(crate) fn take(&mut self, seq: u64) -> Option<(T, Option<O>)> {
        if distance(self.base, seq) >= distance(self.base, self.retired) {
            return None;
        }
        let slot = self.slot(seq);
        let (value, outcome) = (slot.value.take()?, slot.outcome.take());
        while self.base != self.retired {
            let base = self.base;
            if self.slot(base).value.is_some() {
                break;
            }
            self.base = (base + 1) & SEQ_MASK;
        }
        Some((value, outcome))
    }

    /// Everything left, oldest first, in flight or not. Only when the device can touch none of it any more.
    pub(crate) fn drain(&mut self) -> Vec<T> {
        let mut out = Vec::with_capacity(distance(self.base, self.next) as usize);
        self.retired = self.next;
        while let Some((value, _)) = self.pop_oldest() {
            out.push(value);
        }
        out
    }
}

#[cfg(test)]
#[path = "ring_tests.rs"]
mod tests;
