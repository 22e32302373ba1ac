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
//!
//! Where nobody is told that a message has arrived, it is [framed](stamp): the frame is in front of it, and takes room with it.

pub mod stamp;
pub mod taker;

use crate::credit::CONTROL_RESERVE;
use stamp::FRAME_LEN;

/// What messages are rounded up to, in bytes.
pub const GRANULE: u64 = 64;

/// Room that a control message takes at most, in bytes: a header and the longest bitmap.
pub const CONTROL_SPAN: u64 =
    span((crate::wire::HEADER_LEN + crate::wire::RELEASE_BYTES_MAX) as u64);

const _: () = assert!(
    CONTROL_SPAN
        == span((crate::wire::HEADER_LEN + crate::wire::RELEASE_BYTES_MAX + FRAME_LEN) as u64),
    "a frame fits beside the longest control message"
);

/// Largest ring in bytes.
pub const RING_MAX: u64 = 1 << 30;

/// Room that a message of so many bytes takes, without a skip.
pub const fn span(len: u64) -> u64 {
    len.next_multiple_of(GRANULE)
}

/// The smallest ring for messages of at most `max` bytes.
///
/// While less than half of it is owed, and all control messages are unacknowledged, there is room for
/// the longest message and the longest skip. That is for one end that asks: where both do, each ring needs two of the
/// longest more for each request that its reader keeps unanswered.
pub const fn size_min(max: u64) -> u64 {
    4 * span(max) + (4 * CONTROL_RESERVE as u64 + 2) * CONTROL_SPAN
}

/// The longest message under this inline limit, in bytes, for which rings are made: with a frame, whether it has one or not.
pub const fn longest_framed(inline_limit: u32) -> u64 {
    (crate::wire::longest(inline_limit) + FRAME_LEN) as u64
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
    /// `at` modulo the size, carried along: a division takes longer than all the rest.
    offset: u64,
    /// What is added to a length before whole granules are counted: almost one, and the frame.
    round: u64,
}

impl Cursor {
    fn new(size: u64) -> Cursor {
        debug_assert!(size > 0 && size.is_multiple_of(GRANULE));
        Cursor {
            size,
            at: 0,
            offset: 0,
            round: GRANULE - 1,
        }
    }

    /// The same for messages with a frame.
    fn framed(self) -> Cursor {
        Cursor {
            round: GRANULE - 1 + FRAME_LEN as u64,
            ..self
        }
    }

    /// Room that a message of so many bytes takes, without a skip.
    #[inline]
    fn span(&self, len: u64) -> u64 {
        (len + self.round) / GRANULE * GRANULE
    }

    /// Places a message of `len` bytes, which is at most the ring's size, and moves behind it.
    #[inline]
    pub fn place(&mut self, len: u64) -> Place {
        let span = self.span(len);
        debug_assert!(span <= self.size);
        let left = self.size - self.offset;
        let (offset, taken) = if span <= left {
            (self.offset, span)
        } else {
            (0, left + span)
        };
        self.at += taken;
        let next = offset + span;
        self.offset = if next == self.size { 0 } else { next };
        debug_assert_eq!(self.offset, self.at % self.size);
        Place { offset, taken }
    }

    /// Where the ring ends next.
    #[inline]
    fn end(&self) -> u64 {
        self.at - self.offset + self.size
    }
}

/// The sender's view of a ring: what has been written, and how much of it the peer has released.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Writer {
    cursor: Cursor,
    max: u64,
    released: u64,
    /// Where messages end, by their number modulo the length, which is a power of two.
    ends: Box<[u64]>,
    /// Messages written, and released, since the start.
    written: u64,
    returned: u64,
}

impl Writer {
    /// An empty ring of `size` bytes for messages of at most `max`; at most `window` are in it.
    pub fn new(size: u64, max: u64, window: u32) -> Writer {
        debug_assert!(size_min(max) <= size);
        Writer {
            cursor: Cursor::new(size),
            max: span(max),
            released: 0,
            ends: vec![0; (window as usize).next_power_of_two()].into(),
            written: 0,
            returned: 0,
        }
    }

    /// The same for messages of at most `max` bytes with a frame in front of them.
    pub fn framed(mut self, max: u64) -> Writer {
        self.cursor = self.cursor.framed();
        self.max = self.cursor.span(max);
        self
    }

    /// Where the message of this number ends; it has been written, and not long ago.
    #[inline]
    fn end_of(&self, number: u64) -> u64 {
        self.ends[number as usize & (self.ends.len() - 1)]
    }

    /// Room that the longest message takes.
    #[inline]
    pub fn max(&self) -> u64 {
        self.max
    }

    /// Whether messages that take so much together fit, in whatever order and length, once the
    /// oldest `more` of those in the ring have been released.
    #[inline]
    pub fn fits_after(&self, more: u32, total: u64) -> bool {
        // Room for any skip, and before anything is released: no need to see whether there is one, or how much that gives.
        if total + self.max <= self.released + self.cursor.size - self.cursor.at {
            return true;
        }
        self.just_fits_after(more, total)
    }

    fn just_fits_after(&self, more: u32, total: u64) -> bool {
        let more = u64::from(more).min(self.written - self.returned);
        let released = match more {
            0 => self.released,
            _ => self.end_of(self.returned + more - 1),
        };
        let limit = released + self.cursor.size;
        let skip = if total > 0 && self.cursor.end() < limit {
            self.max - GRANULE
        } else {
            0
        };
        total + skip <= limit - self.cursor.at
    }

    /// How many of the longest messages fit, beside messages that take so much together.
    pub fn count_beside(&self, kept: u64) -> u32 {
        let left = self.released + self.cursor.size - self.cursor.at;
        let skip = self.max - GRANULE;
        u32::try_from(left.saturating_sub(kept + skip) / self.max).unwrap_or(u32::MAX)
    }

    /// Whether messages that take so much together fit, in whatever order and length.
    #[inline]
    pub fn fits(&self, total: u64) -> bool {
        self.fits_after(0, total)
    }

    /// Places a message: the offset to write it to.
    #[inline]
    pub fn place(&mut self, len: u64) -> u64 {
        debug_assert!(
            self.cursor.span(len) <= self.max,
            "a message longer than agreed"
        );
        let place = self.cursor.place(len);
        debug_assert!(
            self.cursor.at - self.released <= self.cursor.size,
            "I1: written over what the peer has not released"
        );
        debug_assert!(
            self.written - self.returned < self.ends.len() as u64,
            "I1: more messages than entries"
        );
        let at = self.written as usize & (self.ends.len() - 1);
        self.ends[at] = self.cursor.at;
        self.written += 1;
        place.offset
    }

    /// The peer has released the oldest `messages`.
    #[inline]
    pub fn release(&mut self, messages: u32) {
        if messages == 0 {
            return;
        }
        // Not more than there are: the credit counter has been checked.
        let in_it = self.written - self.returned;
        debug_assert!(
            u64::from(messages) <= in_it,
            "released more than was written"
        );
        self.returned += u64::from(messages).min(in_it);
        self.released = self.end_of(self.returned.wrapping_sub(1));
    }
}

/// The receiver's view of its own ring.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Reader {
    cursor: Cursor,
    max: u64,
    /// Room of the message that has been found and not returned.
    taken: u64,
    /// Room of messages whose entries are late, see [`set_aside`](Self::set_aside).
    aside: u64,
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
            aside: 0,
            owed: 0,
        }
    }

    /// The same for messages with a frame.
    pub fn framed(mut self) -> Reader {
        self.cursor = self.cursor.framed();
        self
    }

    /// Where the next message begins, if nobody says how long it is: here; or at the ring's start, if it is one that does not fit here and there
    /// are such.
    #[inline]
    pub fn next(&self) -> (u64, bool) {
        let Cursor { size, offset, .. } = self.cursor;
        (
            offset,
            size - offset < self.cursor.span(self.max) && offset > 0,
        )
    }

    /// Where the next message begins, which is `len` bytes long as its completion says; `None` if
    /// none can be.
    #[inline]
    pub fn find(&mut self, len: u64) -> Option<u64> {
        if len == 0 || len > self.max {
            return None;
        }
        let place = self.cursor.place(len);
        self.taken += place.taken;
        Some(place.offset)
    }

    /// What was found has been copied out; `owe` says whether its room counts as owed.
    #[inline]
    pub fn copied(&mut self, owe: bool) {
        let taken = std::mem::take(&mut self.taken);
        if owe {
            self.owed += taken;
        }
    }

    /// What was found has been copied out, and is to be owed later, with [`owe_aside`](Self::owe_aside).
    #[inline]
    pub fn set_aside(&mut self) {
        self.aside += std::mem::take(&mut self.taken);
    }

    /// What was set aside is owed from now on.
    #[inline]
    pub fn owe_aside(&mut self) {
        self.owed += std::mem::take(&mut self.aside);
    }

    /// Whether so many answers of the longest kind fit beside what is set aside, one skip and the control messages.
    #[inline]
    pub fn has_room_for(&self, answers: u32) -> bool {
        let longest = self.cursor.span(self.max);
        let rest = (longest - GRANULE) + u64::from(CONTROL_RESERVE) * CONTROL_SPAN;
        u64::from(answers) * longest + self.aside + rest <= self.cursor.size
    }

    /// Whether more is set aside than a writer should have to wait for: less than what rings are larger than they would have to be.
    #[inline]
    pub fn much_aside(&self) -> bool {
        self.aside >= self.cursor.size / 32
    }

    /// The peer is being told of all that was copied.
    #[inline]
    pub fn told(&mut self) {
        self.owed = 0;
    }

    /// Whether half of the ring is owed.
    #[inline]
    pub fn half_owed(&self) -> bool {
        self.owed >= self.cursor.size / 2
    }
}

#[cfg(test)]
mod bounds;
#[cfg(test)]
mod rebase;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::VecDeque;

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
            let mut writer = Writer::new(size, max, 1024);
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
                prop_assert_eq!(writer.written - writer.returned, wire.len() as u64);
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
            let release = (release as u64).min(writer.written - writer.returned) as u32;
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
