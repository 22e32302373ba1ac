//! Replies that stay where they were copied to when they arrived.
//!
//! What arrives in a ring is copied out once, into memory that no peer can change. A reply of some length is handed on in that memory, and the next message gets other
//! memory: what has been given back by replies that are over. That needs no memory of the pool, and every thread keeps some of it.

use std::cell::RefCell;
use std::fmt;
use std::ops::Range;

/// Spare ones that a thread keeps.
const SPARE_MAX: usize = 64;

/// Bytes of memory for each byte that is kept, at most; what is shorter is better copied.
const WASTE: usize = 5;

thread_local!(static SPARE: RefCell<Vec<Box<[u8]>>> = const { RefCell::new(Vec::new()) });

/// The bytes of a reply, in memory that is longer.
pub(crate) struct Kept {
    memory: Box<[u8]>,
    start: u32,
    end: u32,
}

impl Kept {
    /// Takes memory that this part is to be kept of, and leaves other memory in its place, which is as long. `None` if too little of it would be of use.
    pub fn take(memory: &mut Box<[u8]>, part: Range<usize>) -> Option<Kept> {
        let len = memory.len();
        if part.start > part.end || part.end > len || len > WASTE * part.len() {
            return None;
        }
        let (start, end) = (part.start.try_into().ok()?, part.end.try_into().ok()?);
        let spare = SPARE.try_with(|spare| spare.borrow_mut().pop());
        let other = match spare.ok().flatten() {
            Some(other) if other.len() == len => other,
            // Connections differ.
            _ => new(len),
        };
        Some(Kept {
            memory: std::mem::replace(memory, other),
            start,
            end,
        })
    }

    #[inline]
    pub fn bytes(&self) -> &[u8] {
        let part = self.start as usize..self.end as usize;
        self.memory.get(part).unwrap_or_default()
    }
}

#[cold]
fn new(len: usize) -> Box<[u8]> {
    vec![0; len].into()
}

impl Drop for Kept {
    fn drop(&mut self) {
        let memory = std::mem::take(&mut self.memory);
        // While the thread ends there is nothing to keep it for.
        let _ = SPARE.try_with(|spare| {
            let mut spare = spare.borrow_mut();
            if spare.len() < SPARE_MAX {
                spare.push(memory);
            }
        });
    }
}

impl fmt::Debug for Kept {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Kept").field(&self.bytes().len()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_handed_on_and_used_again() {
        let mut memory: Box<[u8]> = (0..100).collect();
        let at = memory.as_ptr();
        let kept = Kept::take(&mut memory, 10..50).unwrap();
        assert_eq!(kept.bytes(), (10..50).collect::<Vec<u8>>());
        assert_eq!(kept.bytes().as_ptr(), at.wrapping_add(10));
        // The next message cannot reach it.
        assert!(memory.len() == 100 && memory.as_ptr() != at);
        memory.fill(0xFF);
        assert_eq!(kept.bytes()[0], 10);
        drop(kept);
        let next = Kept::take(&mut memory, 0..100).unwrap();
        assert_eq!(memory.as_ptr(), at);
        drop(next);
        // Of another length nothing can be used.
        let mut other: Box<[u8]> = vec![0; 64].into();
        Kept::take(&mut other, 0..64).unwrap();
        assert_eq!(other.len(), 64);
    }

    #[test]
    fn what_is_short_or_impossible_is_not_kept() {
        let mut memory: Box<[u8]> = vec![0; 100].into();
        assert!(Kept::take(&mut memory, 0..19).is_none());
        assert!(Kept::take(&mut memory, 0..101).is_none());
        assert!(Kept::take(&mut memory, Range { start: 60, end: 40 }).is_none());
        assert!(Kept::take(&mut memory, 0..20).is_some());
    }

    #[test]
    fn a_thread_keeps_a_bounded_number() {
        let mut memory: Box<[u8]> = vec![0; 100].into();
        let many: Vec<_> = (0..2 * SPARE_MAX)
            .map(|_| Kept::take(&mut memory, 0..100).unwrap())
            .collect();
        drop(many);
        assert_eq!(SPARE.with_borrow(Vec::len), SPARE_MAX);
    }
}
