//! The shelf: where a server leaves replies for its client to READ.
//!
//! It is memory of the server, one entry a slot, that the client has a key for reading to. The server may be writing an entry while the client
//! READs it, so what arrives can be old, or a mixture. An entry is therefore stamped last, and carries a checksum:
//!
//! ```text
//!  0 length of the message (u32)   4 generation of the slot (u32)     written last, as one word; 0 before
//!  8 checksum of the stamp and as much of the message as the first READ fetches
//! 16 checksum of the rest, 0 if there is none
//! 24 the message, as in `wire`
//! ```
//!
//! The client says with each request how many bytes its first READ will fetch. A READ is accepted
//! ([`check`]) with the generation that was asked for, and a checksum that fits. From then on the entry does not change any more until the slot's next
//! request: the rest of a longer message can be READ by itself.

use crate::ring::span;
use crate::wire::longest;
use mempool::{AllocError, BudgetKind, ExposedLease, Pool};
use std::sync::atomic::Ordering;
use verbs::{Access, Pd, RemoteRegion};
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// What precedes the message in an entry, in bytes.
pub const ENTRY_HEAD: usize = 24;

/// `head` travels in units of so many bytes.
pub const UNIT: usize = 64;

/// Bytes from one entry to the next.
pub const fn stride(inline_limit: u32) -> usize {
    span((ENTRY_HEAD + longest(inline_limit)) as u64) as usize
}

/// Bytes of a shelf.
pub const fn size(slots: u32, inline_limit: u32) -> u64 {
    slots as u64 * stride(inline_limit) as u64
}

/// The bytes of an entry that a first READ fetches, `units` as a request says.
pub fn first_read(units: u16, inline_limit: u32) -> usize {
    (usize::from(units) * UNIT).clamp(UNIT, stride(inline_limit))
}

/// What a READ of the first bytes of an entry has brought.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fetched {
    /// The reply is not there yet.
    NotYet,
    /// It is being written.
    Torn,
    /// It is there: so many bytes, of which as many as were fetched are right. `rest` is the checksum of the others.
    There {
        /// Length of the message.
        len: usize,
        /// For [`rest_is_right`].
        rest: u64,
    },
}

fn word(bytes: &[u8], at: usize) -> u64 {
    let word = bytes.get(at..at + 8).and_then(<[u8]>::first_chunk::<8>);
    u64::from_le_bytes(word.copied().unwrap_or_default())
}

fn stamp(generation: u32, len: u32) -> u64 {
    u64::from(len) | u64::from(generation) << 32
}

/// Checks the first bytes of an entry, as they were fetched, for the reply of this generation.
#[inline]
pub fn check(bytes: &[u8], generation: u32, inline_limit: u32) -> Fetched {
    let stamped = word(bytes, 0);
    if (stamped >> 32) as u32 != generation {
        return Fetched::NotYet;
    }
    let len = stamped as u32 as usize;
    let head = bytes.len().saturating_sub(ENTRY_HEAD);
    let fetched = bytes.get(ENTRY_HEAD..ENTRY_HEAD + len.min(head));
    match fetched {
        Some(message)
            if len <= longest(inline_limit)
                && xxh3_64_with_seed(message, stamped) == word(bytes, 8) =>
        {
            Fetched::There {
                len,
                rest: word(bytes, 16),
            }
        }
        _ => Fetched::Torn,
    }
}

/// Whether the rest of a message that began in a checked entry is what the server wrote.
pub fn rest_is_right(rest: &[u8], checksum: u64) -> bool {
    xxh3_64_with_seed(rest, 0) == checksum
}

/// A whole entry with this message, of which a first READ fetches `head` bytes.
#[cfg(feature = "fuzzing")]
pub fn entry(message: &[u8], generation: u32, head: usize) -> Vec<u8> {
    let stamp = stamp(generation, message.len() as u32);
    let mut out = stamp.to_le_bytes().to_vec();
    for sum in checksums(message, head, stamp) {
        out.extend(sum.to_le_bytes());
    }
    out.extend_from_slice(message);
    out
}

/// Of as much of a message as a first READ fetches, and of the rest.
#[inline(always)]
fn checksums(message: &[u8], head: usize, stamp: u64) -> [u64; 2] {
    let (first, rest) = message.split_at(message.len().min(head));
    let of_rest = match rest {
        [] => 0,
        rest => xxh3_64_with_seed(rest, 0),
    };
    [xxh3_64_with_seed(first, stamp), of_rest]
}

/// A server's shelf for one client.
#[derive(Debug)]
pub struct Shelf {
    memory: ExposedLease,
    inline_limit: u32,
    /// Where an entry is put together, to be written in one go.
    entry: Box<[u8]>,
}

/// Why there is no shelf.
#[derive(Debug)]
pub enum ShelfError {
    Memory(AllocError),
    Register(verbs::Error),
}

impl Shelf {
    /// A shelf with nothing on it. Like all that a client's requests need, it is not the user's memory.
    pub fn new(pd: &Pd, pool: &Pool, slots: u32, inline_limit: u32) -> Result<Shelf, ShelfError> {
        let bytes = size(slots, inline_limit) as usize;
        let memory = pool
            .exposed_in(BudgetKind::Receive, bytes)
            .map_err(ShelfError::Memory)?;
        // What another connection left there has stamps as well.
        let zeros = [0; UNIT];
        for at in (0..bytes).step_by(UNIT) {
            // All entries are whole lines.
            let _ = memory.write_at(at, &zeros);
        }
        Ok(Shelf {
            memory: memory
                .lease(pd, Access::REMOTE_READ)
                .map_err(ShelfError::Register)?,
            inline_limit,
            entry: vec![0; stride(inline_limit)].into(),
        })
    }

    /// What the client needs to READ it.
    pub fn remote(&self) -> RemoteRegion {
        self.memory.remote()
    }

    /// Where to put a message of so many bytes together, for [`publish`](Self::publish).
    pub fn room(&mut self, len: usize) -> Option<&mut [u8]> {
        self.entry.get_mut(ENTRY_HEAD..ENTRY_HEAD + len)
    }

    /// Leaves the message of `len` bytes that is in [`room`](Self::room) for the client.
    pub fn publish(&mut self, slot: u32, generation: u32, len: usize, units: u16) {
        let mut entry = std::mem::take(&mut self.entry);
        self.publish_entry(slot, generation, &mut entry, len, units);
        self.entry = entry;
    }

    /// Leaves the message for the client that is behind [`ENTRY_HEAD`] bytes of room in `entry`, and has so many bytes. The entry is whole lines.
    #[inline]
    pub fn publish_entry(
        &self,
        slot: u32,
        generation: u32,
        entry: &mut [u8],
        len: usize,
        units: u16,
    ) {
        let stride = stride(self.inline_limit);
        let head = first_read(units, self.inline_limit).saturating_sub(ENTRY_HEAD);
        let stamp = stamp(generation, len as u32);
        let end = span((ENTRY_HEAD + len) as u64) as usize;
        let Some((front, message)) = entry
            .get_mut(..end)
            .and_then(|entry| entry.split_first_chunk_mut::<ENTRY_HEAD>())
        else {
            debug_assert!(false, "longer than an entry");
            return;
        };
        let [first, rest] = checksums(&message[..len], head, stamp);
        // No stamp of any use of a slot, until all else is there.
        let words = [0, first, rest];
        for (out, word) in front.as_chunks_mut::<8>().0.iter_mut().zip(words) {
            *out = word.to_le_bytes();
        }
        let start = slot as usize * stride;
        // Within the shelf: the slot has been checked.
        let written = self.memory.write_at(start, &entry[..end]);
        debug_assert!(written.is_ok(), "beyond the shelf");
        if let Ok(cell) = self.memory.atomic_u64(start) {
            // Behind all that was written above, for whoever sees it.
            cell.store(stamp.to_le(), Ordering::Release);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::HEADER_LEN;
    use proptest::prelude::*;

    const LIMIT: u32 = 4096;

    fn shelf(slots: u32) -> (Pool, Shelf) {
        let pd = verbs::Device::open_spec("soft0")
            .unwrap()
            .alloc_pd()
            .unwrap();
        let pool = Pool::builder(&pd).build().unwrap();
        let shelf = Shelf::new(&pd, &pool, slots, LIMIT).unwrap();
        (pool, shelf)
    }

    fn entry(shelf: &Shelf, slot: u32, len: usize) -> Vec<u8> {
        let mut out = vec![0; len];
        let start = slot as usize * stride(LIMIT);
        shelf.memory.read_at(start, &mut out).unwrap();
        out
    }

    #[test]
    fn nothing_is_there_until_it_is_published() {
        let (pool, mut shelf) = shelf(3);
        assert_eq!(shelf.remote().len, size(3, LIMIT));
        assert_eq!(check(&entry(&shelf, 1, 256), 1, LIMIT), Fetched::NotYet);
        shelf.room(100).unwrap().fill(7);
        shelf.publish(1, 1, 100, 4);
        let there = check(&entry(&shelf, 1, 256), 1, LIMIT);
        assert_eq!(there, Fetched::There { len: 100, rest: 0 });
        for slot in [0, 2] {
            assert_eq!(check(&entry(&shelf, slot, 256), 1, LIMIT), Fetched::NotYet);
        }
        assert_eq!(check(&entry(&shelf, 1, 256), 2, LIMIT), Fetched::NotYet);
        // What is longer than there is room for is nobody's message.
        assert!(shelf.room(longest(LIMIT) + 64).is_none());
        drop(pool);
    }

    #[test]
    fn a_new_shelf_has_nothing_from_an_old_one() {
        let pd = verbs::Device::open_spec("soft0")
            .unwrap()
            .alloc_pd()
            .unwrap();
        let pool = Pool::builder(&pd).build().unwrap();
        for _ in 0..2 {
            let mut shelf = Shelf::new(&pd, &pool, 1, LIMIT).unwrap();
            assert_eq!(check(&entry(&shelf, 0, 128), 1, LIMIT), Fetched::NotYet);
            shelf.room(64).unwrap().fill(1);
            shelf.publish(0, 1, 64, 2);
            let there = Fetched::There { len: 64, rest: 0 };
            assert_eq!(check(&entry(&shelf, 0, 128), 1, LIMIT), there);
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        /// Whatever is a mixture of two states of an entry is not taken for the new one.
        #[test]
        fn mixtures_are_not_accepted(
            old_len in HEADER_LEN..4000usize, new_len in HEADER_LEN..4000usize, units in 1u16..70,
            old in 0u8..255, words in proptest::collection::vec(any::<bool>(), 600),
        ) {
            let (_pool, mut shelf) = shelf(1);
            let first = first_read(units, LIMIT);
            shelf.room(old_len).unwrap().fill(old);
            shelf.publish(0, 1, old_len, units);
            let before = entry(&shelf, 0, stride(LIMIT));
            shelf.room(new_len).unwrap().fill(old + 1);
            shelf.publish(0, 2, new_len, units);
            let after = entry(&shelf, 0, stride(LIMIT));
            let mut mixed = after.clone();
            for (at, keep) in (0..first).step_by(8).zip(words) {
                if !keep {
                    mixed[at..at + 8].copy_from_slice(&before[at..at + 8]);
                }
            }
            let there = check(&mixed[..first], 2, LIMIT);
            if let Fetched::There { len, .. } = there {
                prop_assert_eq!(len, new_len);
                let end = first.min(ENTRY_HEAD + len);
                prop_assert_eq!(&mixed[ENTRY_HEAD..end], &after[ENTRY_HEAD..end]);
            } else {
                prop_assert!(mixed[..first] != after[..first]);
            }
            let Fetched::There { len, rest } = check(&after[..first], 2, LIMIT) else {
                return Err(TestCaseError::fail("what is whole was not accepted"));
            };
            prop_assert_eq!(len, new_len);
            if ENTRY_HEAD + len > first {
                let others = &after[first..ENTRY_HEAD + len];
                prop_assert!(rest_is_right(others, rest));
                let mut wrong = others.to_vec();
                wrong[0] ^= 1;
                prop_assert!(!rest_is_right(&wrong, rest));
            }
        }

        /// Any bytes give an answer.
        #[test]
        fn any_bytes_can_be_checked(bytes in proptest::collection::vec(any::<u8>(), 0..300), generation: u32) {
            let _ = check(&bytes, generation, LIMIT);
        }
    }
}
