//! Frames: registered memory that messages of medium length leave from.
//!
//! What is too long for the device to copy while it is posted, and short enough to be worth a copy, is put together in a frame: one segment, of which nobody
//! has to be told when it has left. Frames are used again and again, so that posting from one does not allocate.
//!
//! Why this is safe: a frame owns its buffer. To be posted it moves into the send queue, which gives it back with the completion, so nobody reaches its bytes, or
//! frees them, while a device may read them. With the queue pair destroyed it is freed.

use crate::wire::HEADER_LEN;
use mempool::{BudgetKind, Buf, Kind, Pool, SgList};
use verbs::{LKey, Sge, SgeList};

/// Longest payload in bytes that goes into a frame.
pub(crate) const MEDIUM: usize = 4096;

/// Frames that are kept for messages to come.
const SPARE_MAX: usize = 64;

/// Room for a header and a payload behind it.
#[derive(Debug)]
pub(crate) struct Frame {
    /// Of all frames as long as it can be.
    buf: Buf,
    lkey: LKey,
    /// Bytes of the message, header included.
    len: usize,
}

impl Frame {
    /// Length of the message in bytes.
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// The message will have a payload of so many bytes, at most [`MEDIUM`]: where it goes.
    #[inline]
    pub fn payload(&mut self, len: usize) -> Option<&mut [u8]> {
        let room = self.buf.get_mut(HEADER_LEN..HEADER_LEN + len)?;
        self.len = HEADER_LEN + len;
        Some(room)
    }

    /// Where the header goes.
    #[inline]
    pub fn header(&mut self) -> Option<&mut [u8; HEADER_LEN]> {
        self.buf.first_chunk_mut()
    }

    /// Names the message, for a device to read.
    #[inline(always)]
    pub fn gather(&self, out: &mut SgeList) {
        // `payload` has made sure that it is within the buffer.
        out.push(Sge {
            addr: self.buf.as_ptr() as u64,
            len: self.len as u32,
            lkey: self.lkey,
        });
    }
}

/// Frames of one pool that nothing is posted from.
#[derive(Debug, Default)]
pub(crate) struct Frames {
    #[expect(clippy::vec_box, reason = "the queue takes boxes")]
    spare: Vec<Box<Frame>>,
}

impl Frames {
    /// The one that was used last, or another of the pool, from its control budget; `None` if there is no memory.
    #[inline]
    pub fn take(&mut self, pool: &Pool) -> Option<Box<Frame>> {
        match self.spare.pop() {
            Some(frame) => Some(frame),
            None => new_frame(pool),
        }
    }

    /// Gives all of them back to the pool.
    pub fn clear(&mut self) {
        self.spare.clear();
    }

    /// Keeps one for later, unless there are enough.
    #[inline]
    pub fn give(&mut self, frame: Box<Frame>) {
        if self.spare.len() < SPARE_MAX {
            self.spare.push(frame);
        }
    }
}

/// Longest piece in bytes that [`copy`] hands to the C library at once: below the length from which that uses a string instruction.
const STEP: usize = 1024;

/// Copies bytes into room of the same length.
///
/// Some processors take 25 times as long for a string instruction whose destination lies up to 32 bytes behind its source, modulo 4096, and others longer to start one:
/// where somebody's buffer happens to lie, a page is not to take more than a microsecond.
#[inline]
pub(crate) fn copy(bytes: &[u8], room: &mut [u8]) {
    debug_assert_eq!(bytes.len(), room.len());
    for (from, to) in bytes.chunks(STEP).zip(room.chunks_mut(STEP)) {
        to.copy_from_slice(from);
    }
}

/// Copies all segments, one behind the other, into room of the same length.
pub(crate) fn copy_segments(list: &SgList, mut room: &mut [u8]) {
    for segment in list.segments() {
        let bytes = segment.as_slice();
        let Some((place, rest)) = room.split_at_mut_checked(bytes.len()) else {
            debug_assert!(false, "a list of another length");
            return;
        };
        copy(bytes, place);
        room = rest;
    }
}

#[cold]
fn new_frame(pool: &Pool) -> Option<Box<Frame>> {
    let len = HEADER_LEN + MEDIUM;
    let buf = pool
        .alloc_in(BudgetKind::Control, Kind::Private, len)
        .ok()?;
    Some(Box::new(Frame {
        lkey: buf.lkey(),
        buf,
        len: HEADER_LEN,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use verbs::Device;

    #[test]
    fn frames_name_what_they_hold_and_are_used_again() {
        let pd = Device::open_spec("soft0").unwrap().alloc_pd().unwrap();
        let pool = Pool::builder(&pd).build().unwrap();
        let mut frames = Frames::default();
        let mut frame = frames.take(&pool).unwrap();
        assert!(frame.payload(MEDIUM + 1).is_none());
        for len in [0, 1, 100, MEDIUM] {
            frame.payload(len).unwrap().fill(len as u8);
            let mut list = SgeList::new();
            frame.gather(&mut list);
            let [sge] = list.as_slice() else {
                panic!("one segment")
            };
            assert_eq!(sge.len as usize, HEADER_LEN + len);
            assert_eq!(sge.len as usize, frame.len());
            assert_eq!(sge.addr, frame.header().unwrap().as_ptr() as u64);
        }
        let at = frame.header().unwrap().as_ptr();
        frames.give(frame);
        assert_eq!(frames.take(&pool).unwrap().header().unwrap().as_ptr(), at);
    }

    #[test]
    fn copies_of_any_length_are_whole() {
        let bytes: Vec<u8> = (0..3 * STEP + 2).map(|n| (n % 251) as u8).collect();
        for len in [0, 1, STEP - 1, STEP, STEP + 1, 2 * STEP, bytes.len()] {
            let mut room = vec![0xFF; len];
            copy(&bytes[..len], &mut room);
            assert_eq!(room, bytes[..len], "{len}");
        }
    }

    #[test]
    fn a_bounded_number_is_kept() {
        let pd = Device::open_spec("soft0").unwrap().alloc_pd().unwrap();
        let pool = Pool::builder(&pd).build().unwrap();
        let mut frames = Frames::default();
        let many: Vec<_> = (0..2 * SPARE_MAX)
            .map(|_| frames.take(&pool).unwrap())
            .collect();
        for frame in many {
            frames.give(frame);
        }
        assert_eq!(frames.spare.len(), SPARE_MAX);
    }
}
