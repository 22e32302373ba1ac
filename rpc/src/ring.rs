//! Where messages lie in a receive ring: the arithmetic that both ends share, without I/O.
//!
//! A ring is memory of the receiver that the sender writes messages into, one behind the other.
//! Nothing says where a message begins: both ends put the same lengths, in the same order, through
//! the same function, [`Cursor::place`], and so agree. Positions are cumulative, in bytes since the
//! connection was made, and never wrap; the offset is the position modulo the size.
//!
//! ```text
//!   0                 released           written           size
//!   |.................|##|#####|###|##|#|..................|
//!                      messages in        free
//!                      whole granules
//! ```
//!
//! A message takes whole [`GRANULE`]s, so that each begins on a cache line, and lies in one piece:
//! where it does not fit before the ring's end, the rest there is skipped and belongs to it. Whoever
//! keeps room for messages to come keeps it for one skip as well: what is free at one time
//! contains the ring's end at most once.

use crate::credit::CONTROL_RESERVE;
use std::collections::VecDeque;

/// What messages are rounded up to, in bytes.
pub const GRANULE: u64 = 64;

/// Room that a control message takes at most, in bytes: a header and the longest bitmap.
pub const CONTROL_SPAN: u64 =
    span((crate::wire::HEADER_LEN + crate::wire::RELEASE_BYTES_MAX) as u64);

/// Largest ring in bytes.
pub const RING_MAX: u64 = 1 << 30;

/// Room that a message of so many bytes takes, without a skip.
pub const fn span(len: u64) -> u64 {
    len.next_multiple_of(GRANULE)
}

/// The smallest ring for messages of at most `max` bytes.
///
/// While less than half of it is owed, and all control messages are unacknowledged, there is room for
/// the longest message and the longest skip.
pub const fn size_min(max: u64) -> u64 {
    4 * span(max) + (4 * CONTROL_RESERVE as u64 + 2) * CONTROL_SPAN
}

/// A ring in which so many of the longest messages, and the control messages, can lie at once.
pub const fn size_for(messages: u32, max: u64) -> u64 {
    let size = (messages as u64 + 1) * span(max) + (CONTROL_RESERVE as u64 + 1) * CONTROL_SPAN;
    let min = size_min(max);
    if size < min { min } else { size }
}

/// How many answers of `max` bytes can be promised in a ring of `size`: with all of them, one skip and
/// every control message, it is full.
pub const fn answers(size: u64, max: u64) -> u64 {
    let rest = (span(max) - GRANULE) + CONTROL_RESERVE as u64 * CONTROL_SPAN;
    size.saturating_sub(rest) / span(max)
}

/// A place in a ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// Where the message begins, in bytes from the ring's start.
    pub offset: u64,
    /// Room it takes, a skip in front included.
    pub taken: u64,
}

/// The next position in a ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Cursor {
    size: u64,
    at: u64,
}

impl Cursor {
    fn new(size: u64) -> Cursor {
        debug_assert!(size > 0 && size.is_multiple_of(GRANULE));
        Cursor { size, at: 0 }
    }

    /// Places a message of `len` bytes, which is at most the ring's size, and moves behind it.
    pub fn place(&mut self, len: u64) -> Place {
        let span = span(len);
        debug_assert!(span <= self.size);
        let offset = self.at % self.size;
        let left = self.size - offset;
        let (offset, taken) = if span <= left {
            (offset, span)
        } else {
            (0, left + span)
        };
        self.at += taken;
        Place { offset, taken }
    }

    /// Where the ring ends next.
    fn end(&self) -> u64 {
        (self.at / self.size + 1) * self.size
    }
}

/// The sender's view of a ring: what has been written, and how much of it the peer has released.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Writer {
    cursor: Cursor,
    max: u64,
    released: u64,
    /// Ends of the messages that have not been released, oldest first.
    ends: VecDeque<u64>,
}

impl Writer {
    /// An empty ring of `size` bytes for messages of at most `max`; at most `window` are in it.
    pub fn new(size: u64, max: u64, window: u32) -> Writer {
        debug_assert!(size_min(max) <= size);
        Writer {
            cursor: Cursor::new(size),
            max: span(max),
            released: 0,
            ends: VecDeque::with_capacity(window as usize),
        }
    }

    /// Room that the longest message takes.
    pub fn max(&self) -> u64 {
        self.max
    }

    /// Whether messages that take so much together fit, in whatever order and length, once the
    /// oldest `more` of those in the ring have been released.
    pub fn fits_after(&self, more: u32, total: u64) -> bool {
        let released = match (more as usize).checked_sub(1) {
            Some(last) => self.ends.get(last).copied().unwrap_or(self.cursor.at),
            None => self.released,
        };
        let limit = released + self.cursor.size;
        let skip = if total > 0 && self.cursor.end() < limit {
            self.max - GRANULE
        } else {
            0
        };
        total + skip <= limit - self.cursor.at
    }

    /// Whether messages that take so much together fit, in whatever order and length.
    pub fn fits(&self, total: u64) -> bool {
        self.fits_after(0, total)
    }

    /// Places a message: the offset to write it to.
    pub fn place(&mut self, len: u64) -> u64 {
        debug_assert!(span(len) <= self.max, "a message longer than agreed");
        let place = self.cursor.place(len);
        debug_assert!(
            self.cursor.at - self.released <= self.cursor.size,
            "I1: written over what the peer has not released"
        );
        self.ends.push_back(self.cursor.at);
        place.offset
    }

    /// The peer has released the oldest `messages`.
    pub fn release(&mut self, messages: u32) {
        for _ in 0..messages {
            // Not more than there are: the credit counter has been checked.
            let Some(end) = self.ends.pop_front() else {
                debug_assert!(false, "released more than was written");
                return;
            };
            self.released = end;
        }
    }
}

/// The receiver's view of its own ring.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Reader {
    cursor: Cursor,
    max: u64,
    /// Room of messages that have been found and not returned.
    taken: u64,
    /// Room that is owed to the peer.
    owed: u64,
}

impl Reader {
    /// An empty ring of `size` bytes for messages of at most `max`.
    pub fn new(size: u64, max: u64) -> Reader {
        debug_assert!(size_min(max) <= size);
        Reader {
            cursor: Cursor::new(size),
            max,
            taken: 0,
            owed: 0,
        }
    }

    /// Where the next message begins, which is `len` bytes long as its completion says; `None` if
    /// none can be.
    pub fn find(&mut self, len: u64) -> Option<u64> {
        if len == 0 || len > self.max {
            return None;
        }
        let place = self.cursor.place(len);
        self.taken += place.taken;
        Some(place.offset)
    }

    /// What was found has been copied out; `owe` says whether its room counts as owed.
    pub fn copied(&mut self, owe: bool) {
        let taken = std::mem::take(&mut self.taken);
        if owe {
            self.owed += taken;
        }
    }

    /// The peer is being told of all that was copied.
    pub fn told(&mut self) {
        self.owed = 0;
    }

    /// Whether half of the ring is owed.
    pub fn half_owed(&self) -> bool {
        self.owed >= self.cursor.size / 2
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A ring with every granule's owner written down: the message that lies there.
    struct Model {
        cells: Vec<Option<u32>>,
    }

    impl Model {
        fn write(&mut self, offset: u64, len: u64, message: u32) {
            let first = (offset / GRANULE) as usize;
            let last = ((offset + len - 1) / GRANULE) as usize;
            for cell in &mut self.cells[first..=last] {
                assert_eq!(*cell, None, "written over a message");
                *cell = Some(message);
            }
        }

        fn take(&mut self, offset: u64, len: u64, message: u32) {
            let first = (offset / GRANULE) as usize;
            let last = ((offset + len - 1) / GRANULE) as usize;
            for cell in &mut self.cells[first..=last] {
                assert_eq!(cell.take(), Some(message), "not where it was written");
            }
        }
    }

    #[test]
    fn a_message_that_does_not_fit_before_the_end_goes_to_the_start() {
        let mut cursor = Cursor::new(640);
        let place = |offset, taken| Place { offset, taken };
        assert_eq!(cursor.place(1), place(0, 64));
        assert_eq!(cursor.place(64), place(64, 64));
        assert_eq!(cursor.place(400), place(128, 448));
        // 64 are left.
        assert_eq!(cursor.place(65), place(0, 64 + 128));
        // Just up to the end.
        assert_eq!(cursor.place(512), place(128, 512));
        assert_eq!(cursor.place(640), place(0, 640));
    }

    #[test]
    fn as_many_answers_fit_as_are_promised() {
        for max in [552u64, 936, 4520, 65_960] {
            let size = size_min(max);
            assert!(4 * max <= size && size.is_multiple_of(GRANULE));
            assert!(answers(size, max) >= 3);
            for messages in [4, 16, 60] {
                assert!(answers(size_for(messages, max), max) >= u64::from(messages));
            }
        }
        assert_eq!(answers(0, 4520), 0);
    }

    proptest! {
        /// Both ends agree on every place; nothing is written over; whatever `fits` promised does.
        #[test]
        fn both_ends_agree(
            max in 600u64..5000, extra in 0u64..100,
            steps in proptest::collection::vec((any::<bool>(), any::<u16>()), 0..600),
        ) {
            let size = size_min(max) + extra * GRANULE;
            let mut writer = Writer::new(size, max, 64);
            let mut reader = Reader::new(size, max);
            let mut model = Model { cells: vec![None; (size / GRANULE) as usize] };
            let mut wire = VecDeque::new();
            let mut next = 0;
            for (write, n) in steps {
                let len = u64::from(n) % max + 1;
                if write && writer.fits(span(len)) {
                    let offset = writer.place(len);
                    prop_assert!(offset.is_multiple_of(GRANULE) && offset + len <= size);
                    model.write(offset, len, next);
                    wire.push_back((len, next));
                    next += 1;
                } else if !write && let Some((len, message)) = wire.pop_front() {
                    let offset = reader.find(len).unwrap();
                    model.take(offset, len, message);
                    reader.copied(true);
                    writer.release(1);
                }
                prop_assert_eq!(writer.ends.len(), wire.len());
            }
            // Empty again, everything fits that may be kept free for.
            while let Some((len, message)) = wire.pop_front() {
                let offset = reader.find(len).unwrap();
                model.take(offset, len, message);
                prop_assert!(writer.fits_after(1, 0));
                writer.release(1);
            }
            prop_assert!(model.cells.iter().all(Option::is_none));
            prop_assert!(writer.fits(2 * span(max)));
        }

        /// Room that was found for messages is there in whatever order and length they come.
        #[test]
        fn what_fits_can_be_placed(
            max in 600u64..5000, before in proptest::collection::vec(any::<u16>(), 0..40),
            after in proptest::collection::vec(any::<u16>(), 1..8), release in 0usize..40,
        ) {
            let mut writer = Writer::new(size_min(max), max, 64);
            for n in before {
                let len = u64::from(n) % max + 1;
                if writer.fits(span(len)) {
                    writer.place(len);
                }
            }
            let release = release.min(writer.ends.len()) as u32;
            let lens: Vec<u64> = after.iter().map(|&n| u64::from(n) % max + 1).collect();
            let total: u64 = lens.iter().map(|&len| span(len)).sum();
            let fits = writer.fits_after(release, total);
            writer.release(release);
            prop_assert_eq!(fits, writer.fits(total));
            if fits {
                for len in lens {
                    // Asserts by itself that nothing is written over.
                    writer.place(len);
                }
            }
        }

        #[test]
        fn impossible_lengths_have_no_place(max in 600u64..5000, len: u32) {
            let mut reader = Reader::new(size_min(max), max);
            let len = u64::from(len);
            prop_assert_eq!(reader.find(len).is_some(), (1..=max).contains(&len));
        }
    }

    #[test]
    fn half_a_ring_is_owed() {
        let size = size_min(1000);
        let mut reader = Reader::new(size, 1000);
        let mut owed = 0;
        while !reader.half_owed() {
            assert!(owed < size / 2);
            reader.find(1000).unwrap();
            reader.copied(true);
            reader.find(64).unwrap();
            // A control message's room is returned, but does not ask for it.
            reader.copied(false);
            owed += span(1000);
        }
        reader.told();
        assert!(!reader.half_owed());
    }
}
