//! What the client remembers of slots and leases.

use super::reply::Bytes;
use crate::deadline::Deadline;
use crate::destination::Room;
use crate::error::Buffers;
use crate::names::Code;
use crate::outgoing::Held;
use crate::posted::Body;
use crate::transfer::Transfer;
use crate::wire::SlotId;
use mempool::AllocError;

/// What belongs to a slot in use.
#[derive(Default)]
pub(super) struct Flight {
    /// The call, unless nobody waits for it any more.
    pub call: Option<usize>,
    /// Whether nothing below is in use but the deadline: `small.rs` may end it.
    pub small: bool,
    /// Whether nothing below is in use but the deadline and `given`: `medium.rs` may end it.
    pub medium: bool,
    pub deadline: Option<Deadline>,
    /// The reply in parts that this call brings a part of.
    pub parts: Option<SlotId>,
    /// Whether the answer is a part, with more to come.
    pub more: bool,
    /// What was copied while the request was posted, and comes back with the answer.
    pub given: Buffers,
    /// What stays here while the peer may READ it.
    pub held: Held,
    /// What has come back from the device.
    pub sent: Body,
    pub destination: Option<Room>,
    pub answer: Option<Answer>,
    /// Bytes that the server keeps until it is told that they have been READ.
    pub leased: u64,
    /// Boxed: few replies need one, and slots are moved about.
    pub transfer: Option<Box<Transfer>>,
}

/// What the peer answered.
pub(super) enum Answer {
    /// The reply is here.
    Reply(Bytes),
    /// The reply is being READ into a buffer; into the caller's own, if `into`.
    Coming { len: usize, into: bool },
    /// The server refused.
    Refused {
        started: bool,
        code: Code,
        message: String,
    },
    /// There is not enough room for the reply.
    TooLarge { len: u64, room: u64 },
    /// There is no memory for the reply.
    NoMemory { len: u64, error: AllocError },
    /// Nobody wants to know.
    Unwanted,
}

/// Slots whose last reply is still leased by the server.
pub(super) struct Unreleased {
    slots: Vec<bool>,
    count: u32,
    bytes: u64,
}

impl Unreleased {
    pub fn new(slots: u32) -> Unreleased {
        Unreleased {
            slots: vec![false; slots as usize],
            count: 0,
            bytes: 0,
        }
    }

    pub fn add(&mut self, slot: u32, bytes: u64) {
        if !std::mem::replace(&mut self.slots[slot as usize], true) {
            self.count += 1;
        }
        self.bytes += bytes;
    }

    /// The slot's next request releases it.
    pub fn reused(&mut self, slot: u32) {
        if std::mem::replace(&mut self.slots[slot as usize], false) {
            self.count -= 1;
        }
        if self.count == 0 {
            self.bytes = 0;
        }
    }

    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Bytes that the server holds, at most: reuse of single slots is not counted back.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Bytes of a bitmap of all slots.
    pub fn bitmap_len(&self) -> usize {
        self.slots.len().div_ceil(8)
    }

    /// Takes all of them.
    pub fn take(&mut self) -> impl Iterator<Item = u32> + '_ {
        self.count = 0;
        self.bytes = 0;
        self.slots
            .iter_mut()
            .enumerate()
            .filter_map(|(at, slot)| std::mem::take(slot).then_some(at as u32))
    }
}

#[cfg(test)]
mod tests {
    use super::Unreleased;

    #[test]
    fn unreleased_slots_are_taken_once() {
        let mut u = Unreleased::new(20);
        for slot in [3, 19, 3, 7] {
            u.add(slot, 100);
        }
        u.reused(7);
        u.reused(8);
        assert_eq!((u.bytes(), u.bitmap_len()), (400, 3));
        assert_eq!(u.take().collect::<Vec<_>>(), [3, 19]);
        assert!(u.is_empty());
        assert_eq!(u.take().count(), 0);
        u.add(1, 5);
        u.reused(1);
        assert!(u.is_empty() && u.bytes() == 0);
    }
}
