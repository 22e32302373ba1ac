//! Memory for small replies, used again and again.
//!
//! A reply of some bytes goes through several hands by value, and what has just been written and is then moved costs more than the
//! rest of taking it in. So the bytes lie behind a pointer. To ask the heap or the pool for each would cost as much; every thread keeps some spare ones
//! instead.

use crate::link::SMALL;
use std::cell::RefCell;
use std::fmt;

/// Spare ones that a thread keeps.
const SPARE_MAX: usize = 64;

/// Rooms as they are handed on.
type Rooms = Vec<Box<Room>>;

thread_local!(static SPARE: RefCell<Rooms> = const { RefCell::new(Vec::new()) });

/// On lines of its own: one thread may read what another's neighbour is written to.
#[repr(align(64))]
struct Room {
    bytes: [u8; SMALL],
    len: usize,
}

/// The bytes of a small reply.
pub(super) struct SmallReply(Option<Box<Room>>);

impl SmallReply {
    /// Longest in bytes.
    pub const MOST: usize = SMALL;

    /// A copy; `None` if there are too many.
    #[inline(always)]
    pub fn copy(bytes: &[u8]) -> Option<SmallReply> {
        if bytes.len() > SMALL {
            return None;
        }
        let spare = SPARE
            .try_with(|spare| spare.borrow_mut().pop())
            .ok()
            .flatten();
        let mut room = spare.unwrap_or_else(new_room);
        room.bytes[..bytes.len()].copy_from_slice(bytes);
        room.len = bytes.len();
        Some(SmallReply(Some(room)))
    }

    #[inline]
    pub fn bytes(&self) -> &[u8] {
        match &self.0 {
            Some(room) => room.bytes.get(..room.len).unwrap_or_default(),
            None => &[],
        }
    }
}

#[cold]
fn new_room() -> Box<Room> {
    Box::new(Room {
        bytes: [0; SMALL],
        len: 0,
    })
}

impl Drop for SmallReply {
    #[inline]
    fn drop(&mut self) {
        if let Some(room) = self.0.take() {
            // While the thread ends there is nothing to keep it for.
            let _ = SPARE.try_with(|spare| {
                let mut spare = spare.borrow_mut();
                if spare.len() < SPARE_MAX {
                    spare.push(room);
                }
            });
        }
    }
}

impl fmt::Debug for SmallReply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("SmallReply").field(&self.bytes()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_used_again() {
        let address = |reply: &SmallReply| reply.bytes().as_ptr();
        let first = SmallReply::copy(b"one").unwrap();
        let second = SmallReply::copy(b"").unwrap();
        assert_eq!((first.bytes(), second.bytes()), (&b"one"[..], &b""[..]));
        let at = address(&first);
        drop(first);
        let third = SmallReply::copy(b"three").unwrap();
        assert_eq!(address(&third), at);
        assert_eq!(third.bytes(), b"three");
        assert_eq!(SmallReply::copy(&[7; SMALL]).unwrap().bytes(), [7; SMALL]);
        assert!(SmallReply::copy(&[7; SMALL + 1]).is_none());
    }

    #[test]
    fn a_thread_keeps_a_bounded_number() {
        let many: Vec<_> = (0..2 * SPARE_MAX)
            .map(|_| SmallReply::copy(b"x").unwrap())
            .collect();
        drop(many);
        assert_eq!(SPARE.with_borrow(Vec::len), SPARE_MAX);
        // One that is dropped by another thread stays there.
        let moved = SmallReply::copy(b"moved").unwrap();
        std::thread::spawn(move || drop(moved)).join().unwrap();
        assert_eq!(SPARE.with_borrow(Vec::len), SPARE_MAX - 1);
    }
}
