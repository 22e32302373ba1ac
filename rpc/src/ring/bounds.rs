//! Exact bounds of rings, by a model that knows each message.

use super::*;
use proptest::prelude::*;
use std::collections::VecDeque;

/// What is written and not released, by positions.
struct Plain {
    size: u64,
    at: u64,
    ends: VecDeque<u64>,
    released: u64,
}

impl Plain {
    fn place(&mut self, span: u64) -> u64 {
        if self.at % self.size + span > self.size {
            self.at = self.at.next_multiple_of(self.size);
        }
        let offset = self.at % self.size;
        self.at += span;
        self.ends.push_back(self.at);
        offset
    }

    fn release(&mut self, messages: u32) {
        for _ in 0..messages {
            self.released = self.ends.pop_front().unwrap_or(self.released);
        }
    }

    /// Whether messages of this room together fit, whatever they are, of which none takes more than `max`.
    fn fits(&self, released: u64, total: u64, max: u64) -> bool {
        let free = self.size - (self.at - released);
        let end = self.size - self.at % self.size;
        // One of them may have to skip all but a granule of what the longest takes, if the ring's end is in between.
        let skip = if end < free && total > 0 {
            max - GRANULE
        } else {
            0
        };
        total + skip <= free
    }
}

proptest! {
    #[test]
    fn a_writer_knows_exactly_what_fits(
        max in 600u64..5000, extra in 0u64..40, framed: bool, window in 4u32..40,
        steps in proptest::collection::vec((0u32..4, any::<u16>()), 1..200),
    ) {
        let longest = max + if framed { FRAME_LEN as u64 } else { 0 };
        let room = |len: u64| span(len + longest - max);
        let size = size_min(longest) + extra * GRANULE;
        let mut writer = Writer::new(size, max, window);
        let mut reader = Reader::new(size, max);
        if framed {
            (writer, reader) = (writer.framed(max), reader.framed());
        }
        prop_assert_eq!(writer.max(), room(max));
        let mut plain = Plain { size, at: 0, ends: VecDeque::new(), released: 0 };
        for (what, n) in steps {
            let len = u64::from(n) % max + 1;
            if what > 0 {
                if plain.ends.len() < window as usize && plain.fits(plain.released, room(len), room(max)) {
                    let next = reader.next();
                    let offset = plain.place(room(len));
                    prop_assert_eq!(writer.place(len), offset);
                    prop_assert!(next.0 == offset || next.1 && offset == 0, "not looked for there");
                    prop_assert_eq!(reader.find(len), Some(offset));
                    // The longest is what may be elsewhere than here, and only if there is an elsewhere.
                    let here = next.0;
                    prop_assert_eq!(next.1, here > 0 && size - here < room(max));
                }
            } else {
                let messages = u32::from(n) % (plain.ends.len() as u32 + 1);
                plain.release(messages);
                writer.release(messages);
            }
            let free = size - (plain.at - plain.released);
            for total in [0, GRANULE, free.saturating_sub(room(max)), free.saturating_sub(room(max) - GRANULE), free, free + GRANULE] {
                for total in [total, total + GRANULE, total.saturating_sub(GRANULE)] {
                    prop_assert_eq!(writer.fits(total), plain.fits(plain.released, total, room(max)), "{}", total);
                    // More than there are: all of them.
                    for more in [1, 2, plain.ends.len() as u32, 1000] {
                        let held = plain.ends.len() as u32;
                        let released = match more.min(held) {
                            0 => plain.released,
                            more => plain.ends[more as usize - 1],
                        };
                        prop_assert_eq!(writer.fits_after(more, total), plain.fits(released, total, room(max)));
                    }
                }
                let fit = free.saturating_sub(total + room(max) - GRANULE) / room(max);
                prop_assert_eq!(u64::from(writer.count_beside(total)), fit);
            }
        }
    }
}

#[test]
fn sizes_hold_what_they_are_for() {
    for max in [552u64, 936, 4520, 65_960] {
        for messages in [0, 1, 4, 60] {
            assert!(size_for(messages, max) >= size_min(max));
        }
        // With all answers, one skip and every control message, a ring is full.
        let rest = span(max) - GRANULE + u64::from(CONTROL_RESERVE) * CONTROL_SPAN;
        for count in [25, 60] {
            let size = rest + count * span(max);
            assert_eq!(answers(size, max), count);
            assert_eq!(answers(size - GRANULE, max), count - 1);
            let mut reader = Reader::new(size, max);
            assert!(reader.has_room_for(count as u32));
            assert!(!reader.has_room_for(count as u32 + 1));
            reader.find(max).unwrap();
            reader.set_aside();
            assert!(!reader.has_room_for(count as u32));
        }
    }
}

/// A frame can take a granule more.
#[test]
fn frames_take_their_room() {
    let (max, longest) = (960, 1024);
    assert!(span(max) == 960 && span(max + FRAME_LEN as u64) == longest);
    let rest = longest - GRANULE + u64::from(CONTROL_RESERVE) * CONTROL_SPAN;
    let reader = Reader::new(rest + 25 * longest, max).framed();
    assert!(reader.has_room_for(25) && !reader.has_room_for(26));
}

/// With less than half of the smallest ring owed, and all control messages in it, the longest message still goes, wherever the ring's end is.
#[test]
fn the_smallest_ring_is_never_stuck() {
    const MAX: u64 = 1000;
    let size = size_min(MAX);
    for start in 0..size / GRANULE {
        let mut writer = Writer::new(size, MAX, 4096);
        let mut reader = Reader::new(size, MAX);
        for n in 0..start {
            writer.place(64);
            writer.release(1);
            reader.find(64).unwrap();
            reader.copied(true);
            assert!(n < start);
        }
        reader.told();
        loop {
            let mut next = reader.clone();
            next.find(64).unwrap();
            next.copied(true);
            if next.half_owed() {
                break;
            }
            reader = next;
            writer.place(64);
        }
        for _ in 0..CONTROL_RESERVE {
            writer.place(CONTROL_SPAN);
        }
        let kept = u64::from(CONTROL_RESERVE) * CONTROL_SPAN;
        assert!(writer.fits(span(MAX) + kept), "stuck from {start} on");
    }
}

#[test]
fn what_is_owed_adds_up() {
    let size = size_min(1000);
    let mut reader = Reader::new(size, 1000);
    let half = size / 2 / GRANULE;
    // Found together and copied together, set aside and owed later, in any mixture: each granule is owed once.
    let mut owed = 0;
    while owed < half {
        assert!(!reader.half_owed(), "{owed} of {half}");
        for _ in 0..2 {
            reader.find(64).unwrap();
        }
        reader.copied(true);
        reader.copied(true);
        for _ in 0..2 {
            reader.find(64).unwrap();
            reader.set_aside();
            reader.set_aside();
        }
        reader.owe_aside();
        reader.owe_aside();
        owed += 4;
    }
    assert!(reader.half_owed());
    reader.told();
    reader.find(64).unwrap();
    reader.copied(false);
    reader.copied(true);
    for _ in 0..half - 1 {
        reader.find(64).unwrap();
        reader.copied(true);
        assert!(!reader.half_owed());
    }
    reader.find(64).unwrap();
    reader.copied(true);
    assert!(reader.half_owed());
}
