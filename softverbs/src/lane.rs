//! A lane: the ring through which one queue pair tells its peer what it did there.
//!
//! Single producer (the initiator's queue pair), single consumer (the target's). The producer writes an entry's words and
//! then its stamp, which is the entry's position plus one; the consumer never writes a slot, it only publishes, lazily and
//! in its own segment, how far it has read. So a message costs one cache line that changes owner, no locked
//! instruction, and a dead or stopped producer leaves nothing behind that the consumer would have to repair.
//!
//! Invariants:
//!
//! * a slot is overwritten only after the consumer has published that it read it;
//! * the consumer copies an entry out once and looks only at the copy: what a peer writes later changes nothing;
//! * nothing here trusts a peer: any 64 bytes decode to an [`Entry`] or to `None`, and the caller checks the numbers.

use crate::sync::{AtomicU64, Ordering};
use core::mem::size_of;

/// Payload that rides in the entry's own cache line.
pub(crate) const IN_ENTRY: usize = 32;
/// Payload that rides beside the entry.
pub(crate) const BESIDE: usize = 256;
/// Entries beyond the receive depth, for what consumes no receive entry.
pub(crate) const SPARE: usize = 8;

/// What an entry says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(crate) enum Kind {
    /// A SEND took a receive entry.
    Recv = 1,
    /// A SEND with immediate data.
    RecvImm = 2,
    /// A WRITE with immediate data.
    WriteImm = 3,
    /// The initiator found that a receive entry cannot be used: complete it with this status.
    Error = 4,
    /// A remote access failed: the target's queue pair goes to the error state.
    Fatal = 5,
    /// Reserved: the target completed a parked send.
    ParkedDone = 6,
    /// Reserved: look at this queue pair.
    Ring = 7,
    /// Reserved: a key was invalidated by a send.
    Invalidate = 8,
    /// Reserved. Receives of a shared queue are told as all others: the queue pair knows where its receives come from.
    SharedRecv = 9,
    /// Reserved. Datagrams go through mailboxes, see [`crate::datagram`].
    Datagram = 10,
    /// Reserved: an atomic was executed.
    Atomic = 11,
}

impl Kind {
    #[inline]
    fn from_u8(value: u8) -> Option<Kind> {
        Some(match value {
            1 => Kind::Recv,
            2 => Kind::RecvImm,
            3 => Kind::WriteImm,
            4 => Kind::Error,
            5 => Kind::Fatal,
            6 => Kind::ParkedDone,
            7 => Kind::Ring,
            8 => Kind::Invalidate,
            9 => Kind::SharedRecv,
            10 => Kind::Datagram,
            11 => Kind::Atomic,
            _ => return None,
        })
    }
}

/// Where the payload of a SEND is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Payload {
    /// Already in the receive entry's memory (or there is none).
    Placed,
    /// Already in the consumer's memory, from this address of its own on: for looking ahead only, it means nothing.
    Written(u64),
    /// In the entry.
    InEntry([u64; IN_ENTRY / 8]),
    /// Beside the entry.
    Beside,
}

/// One decoded entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Entry {
    pub kind: Kind,
    pub solicited: bool,
    pub payload: Payload,
    /// Bytes of the message.
    pub byte_len: u32,
    /// Immediate data in network order, or for [`Kind::Error`] and [`Kind::Fatal`] an `ibv_wc_status`.
    pub imm: u32,
    /// Receive entry that was taken.
    pub index: u64,
}

const SOLICITED: u64 = 1;
const PAYLOAD_IN_ENTRY: u64 = 2;
const PAYLOAD_BESIDE: u64 = 4;
const WRITTEN: u64 = 8;

/// A slot of the ring: stamp, header, immediate data, receive index, payload.
#[repr(C, align(64))]
pub(crate) struct Slot {
    stamp: AtomicU64,
    head: AtomicU64,
    imm: AtomicU64,
    index: AtomicU64,
    payload: [AtomicU64; IN_ENTRY / 8],
}

/// Bytes of a lane of `1 << order` entries: slots, then the payload beside them.
pub(crate) const fn lane_len(order: u32) -> usize {
    (1 << order) * (size_of::<Slot>() + BESIDE)
}

/// Offset of the payload area in a lane of `1 << order` entries.
pub(crate) const fn beside_off(order: u32) -> usize {
    (1 << order) * size_of::<Slot>()
}

#[cfg(not(loom))]
static_assertions::const_assert_eq!(size_of::<Slot>(), 64);

/// Order (log2) of a lane for a receive queue of `depth` entries.
pub(crate) fn order_for(depth: usize) -> u32 {
    (depth + SPARE).next_power_of_two().trailing_zeros()
}

/// The producer's side: a position and what it last knew of the consumer's.
#[derive(Default)]
pub(crate) struct Producer {
    pos: u64,
    consumed: u64,
}

impl Producer {
    /// Whether the next [`push`](Self::push) finds room. `consumed` reads how far the consumer says it is.
    #[inline]
    pub fn has_room(&mut self, slots: u64, consumed: impl Fn() -> u64) -> bool {
        if self.pos - self.consumed < slots {
            return true;
        }
        // The peer's number is clamped: it never moves back and never passes what was written.
        self.consumed = consumed().clamp(self.consumed, self.pos);
        self.pos - self.consumed < slots
    }

    /// Entries ever written.
    #[inline]
    pub fn pos(&self) -> u64 {
        self.pos
    }

    /// Slot that the next push writes.
    #[inline]
    pub fn next_slot(&self, slots: u64) -> usize {
        (self.pos & (slots - 1)) as usize
    }

    /// Writes an entry. The caller has seen [`has_room`](Self::has_room) say yes.
    #[inline(always)]
    pub fn push(&mut self, slots: &[Slot], entry: &Entry) {
        let slot = &slots[self.next_slot(slots.len() as u64)];
        let mut flags = if entry.solicited { SOLICITED } else { 0 };
        match entry.payload {
            Payload::Placed => {}
            Payload::Written(at) => {
                flags |= WRITTEN;
                slot.payload[0].store(at, Ordering::Relaxed);
            }
            Payload::InEntry(words) => {
                flags |= PAYLOAD_IN_ENTRY;
                for (to, word) in slot.payload.iter().zip(words) {
                    to.store(word, Ordering::Relaxed);
                }
            }
            Payload::Beside => flags |= PAYLOAD_BESIDE,
        }
        let head = entry.kind as u64 | flags << 8 | (entry.byte_len as u64) << 32;
        slot.head.store(head, Ordering::Relaxed);
        slot.imm.store(entry.imm as u64, Ordering::Relaxed);
        slot.index.store(entry.index, Ordering::Relaxed);
        self.pos += 1;
        slot.stamp.store(self.pos, Ordering::Release);
    }
}

/// The consumer's side.
#[derive(Default)]
pub(crate) struct Consumer {
    pos: u64,
}

/// An entry that was taken: its words were read once and count, whatever the peer writes later.
pub(crate) struct Taken<'a> {
    slot: &'a Slot,
    flags: u64,
    pub kind: Kind,
    pub byte_len: u32,
    pub imm: u32,
    pub index: u64,
}

impl Taken<'_> {
    /// Reads the slot each time, which the peer may have changed meanwhile: only one reading may decide anything, others are for
    /// looking ahead.
    #[inline]
    pub fn payload(&self) -> Payload {
        match self.flags & (PAYLOAD_IN_ENTRY | PAYLOAD_BESIDE | WRITTEN) {
            0 => Payload::Placed,
            WRITTEN => Payload::Written(self.slot.payload[0].load(Ordering::Relaxed)),
            PAYLOAD_IN_ENTRY => {
                let mut words = [0; IN_ENTRY / 8];
                for (word, from) in words.iter_mut().zip(&self.slot.payload) {
                    *word = from.load(Ordering::Relaxed);
                }
                Payload::InEntry(words)
            }
            _ => Payload::Beside,
        }
    }
}

impl Consumer {
    /// Entries ever taken; to be published to the producer.
    #[inline]
    pub fn pos(&self) -> u64 {
        self.pos
    }

    #[inline]
    fn at(&self, slots: &[Slot]) -> usize {
        (self.pos & (slots.len() as u64 - 1)) as usize
    }

    /// The slot of the next entry.
    #[inline]
    pub fn next<'a>(&self, slots: &'a [Slot]) -> &'a Slot {
        &slots[self.at(slots)]
    }

    /// Whether an entry waits.
    #[inline]
    pub fn waiting(&self, slots: &[Slot]) -> bool {
        slots[self.at(slots)].stamp.load(Ordering::Acquire) == self.pos + 1
    }

    /// The receive entries that waiting entries name, to look at without taking them.
    pub fn named(&self, slots: &[Slot]) -> impl Iterator<Item = u64> {
        let mask = slots.len() as u64 - 1;
        (self.pos..self.pos + slots.len() as u64).map_while(move |pos| {
            let slot = &slots[(pos & mask) as usize];
            let waits = slot.stamp.load(Ordering::Acquire) == pos + 1;
            waits.then(|| slot.index.load(Ordering::Relaxed))
        })
    }

    /// Takes the next entry, with its slot: `None` when there is none, `Some((_, None))` when it makes no sense.
    #[inline]
    pub fn take<'a>(&mut self, slots: &'a [Slot]) -> Option<(usize, Option<Taken<'a>>)> {
        let at = self.at(slots);
        let slot = &slots[at];
        if slot.stamp.load(Ordering::Acquire) != self.pos + 1 {
            return None;
        }
        self.pos += 1;
        let head = slot.head.load(Ordering::Relaxed);
        let taken = Kind::from_u8(head as u8).map(|kind| Taken {
            slot,
            flags: head >> 8 & 0xff,
            kind,
            byte_len: (head >> 32) as u32,
            imm: slot.imm.load(Ordering::Relaxed) as u32,
            index: slot.index.load(Ordering::Relaxed),
        });
        Some((at, taken))
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    impl Slot {
        pub fn empty() -> Slot {
            Slot {
                stamp: AtomicU64::new(0),
                head: AtomicU64::new(0),
                imm: AtomicU64::new(0),
                index: AtomicU64::new(0),
                payload: core::array::from_fn(|_| AtomicU64::new(0)),
            }
        }
    }

    pub fn entry(index: u64, payload: Payload) -> Entry {
        Entry {
            kind: Kind::RecvImm,
            solicited: index.is_multiple_of(2),
            payload,
            byte_len: index as u32 * 3,
            imm: !(index as u32),
            index,
        }
    }

    impl Taken<'_> {
        pub fn entry(&self) -> Entry {
            Entry {
                kind: self.kind,
                solicited: self.flags & SOLICITED != 0,
                payload: self.payload(),
                byte_len: self.byte_len,
                imm: self.imm,
                index: self.index,
            }
        }
    }

    #[cfg(not(loom))]
    mod plain {
        use super::*;
        use proptest::prelude::*;

        proptest! {
            /// Any interleaving of pushes and takes is a bounded queue, whatever the payload.
            #[test]
            fn behaves_as_a_bounded_queue(order in 1u32..5, steps in proptest::collection::vec(any::<(bool, u8)>(), 0..400)) {
                let slots: Vec<Slot> = (0..1 << order).map(|_| Slot::empty()).collect();
                let (mut tx, mut rx) = (Producer::default(), Consumer::default());
                let mut model = std::collections::VecDeque::new();
                let mut next = 0;
                for (push, kind) in steps {
                    if push {
                        let room = tx.has_room(slots.len() as u64, || rx.pos());
                        prop_assert_eq!(room, model.len() < slots.len());
                        if room {
                            let payload = match kind % 4 { 0 => Payload::Placed, 1 => Payload::Written(next), 2 => Payload::InEntry([next; 4]), _ => Payload::Beside };
                            tx.push(&slots, &entry(next, payload));
                            model.push_back(entry(next, payload));
                            next += 1;
                        }
                    } else {
                        prop_assert_eq!(rx.take(&slots).map(|(_, e)| e.unwrap().entry()), model.pop_front());
                    }
                }
            }

            /// Whatever a hostile peer writes decodes to something or to an error, and the consumer moves on.
            #[test]
            fn any_bytes_decode(head: u64, imm: u64, index: u64, payload: [u64; 4]) {
                let slots = [Slot::empty(), Slot::empty()];
                slots[0].head.store(head, Ordering::Relaxed);
                slots[0].imm.store(imm, Ordering::Relaxed);
                slots[0].index.store(index, Ordering::Relaxed);
                for (to, word) in slots[0].payload.iter().zip(payload) { to.store(word, Ordering::Relaxed); }
                slots[0].stamp.store(1, Ordering::Release);
                let mut rx = Consumer::default();
                let (_, got) = rx.take(&slots).unwrap();
                prop_assert_eq!(got.is_some(), (1..=11).contains(&(head as u8)));
                prop_assert!(rx.take(&slots).is_none());
            }

            /// A lying consumer index can make the producer neither panic nor go back.
            #[test]
            fn a_lying_consumer_is_clamped(lies in proptest::collection::vec(any::<u64>(), 0..40)) {
                let slots: Vec<Slot> = (0..4).map(|_| Slot::empty()).collect();
                let mut tx = Producer::default();
                for (i, lie) in lies.into_iter().enumerate() {
                    if tx.has_room(4, || lie) { tx.push(&slots, &entry(i as u64, Payload::Placed)); }
                }
            }
        }
    }

    /// The words of an entry are visible once its stamp is; a slot is not overwritten before it was read.
    #[cfg(loom)]
    #[test]
    fn loom_lane() {
        loom::model(|| {
            use loom::sync::Arc;
            let shared = Arc::new((
                (0..2).map(|_| Slot::empty()).collect::<Vec<_>>(),
                AtomicU64::new(0),
            ));
            let theirs = shared.clone();
            let producer = loom::thread::spawn(move || {
                let mut tx = Producer::default();
                for i in 0..3 {
                    while !tx.has_room(2, || theirs.1.load(Ordering::Acquire)) {
                        loom::thread::yield_now();
                    }
                    tx.push(&theirs.0, &entry(i, Payload::InEntry([i; 4])));
                }
            });
            let mut rx = Consumer::default();
            for i in 0..3 {
                let got = loop {
                    match rx.take(&shared.0) {
                        Some((_, got)) => break got.unwrap().entry(),
                        None => loom::thread::yield_now(),
                    }
                };
                assert_eq!(got, entry(i, Payload::InEntry([i; 4])));
                shared.1.store(rx.pos(), Ordering::Release);
            }
            producer.join().unwrap();
        });
    }
}
