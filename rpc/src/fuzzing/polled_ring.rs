//! A receive ring of which no completion tells, whose peer writes what it likes, also while a message is being taken out.

use super::ring_contents::{self, INLINE, WINDOW, dealt_with, written};
use crate::credit::Credits;
use crate::ring::longest_framed;
use crate::ring::stamp::frame;
use crate::ring::taker::{Memory, Taker};
use crate::wire::longest;
use std::cell::RefCell;

/// A step that writes: offset (u16), length (u8), and as many bytes.
pub(super) const WRITE: u8 = 0;
/// A step that looks for a message: what was put off is written meanwhile. Two bytes mean nothing.
pub(super) const LOOK: u8 = 1;
/// As [`WRITE`], but put off until there is a look, and then done between two reads.
pub(super) const LATER: u8 = 2;

/// The size of the ring.
pub(super) fn size() -> u64 {
    ring_contents::size()
}

/// A message in a ring that is polled, the `number`th from 0: its frame, and its bytes.
pub fn framed(number: u64, message: &[u8]) -> Vec<u8> {
    let mut out = frame(number, message).to_vec();
    out.extend_from_slice(message);
    out
}

/// Bytes, and what will be written to them between two reads.
struct Shared {
    bytes: RefCell<Vec<u8>>,
    later: RefCell<Vec<(usize, Vec<u8>)>>,
}

impl Shared {
    fn write(&self, at: usize, bytes: &[u8]) {
        let mut all = self.bytes.borrow_mut();
        // The key ends where the ring does.
        let at = at % all.len();
        let end = (at + bytes.len()).min(all.len());
        all[at..end].copy_from_slice(&bytes[..end - at]);
    }

    fn interfere(&self) {
        let next = self.later.borrow_mut().pop();
        if let Some((at, bytes)) = next {
            self.write(at, &bytes);
        }
    }
}

impl Memory for Shared {
    fn word(&self, at: u64) -> Option<u64> {
        self.interfere();
        let all = self.bytes.borrow();
        let word = all.get(at as usize..)?.first_chunk().copied()?;
        Some(u64::from_le_bytes(word))
    }

    fn copy(&self, at: u64, out: &mut [u8]) -> bool {
        for (n, line) in out.chunks_mut(64).enumerate() {
            let at = at as usize + 64 * n;
            match self.bytes.borrow().get(at..at + line.len()) {
                Some(bytes) => line.copy_from_slice(bytes),
                None => return false,
            }
            self.interfere();
        }
        true
    }

    fn clear(&self, at: u64) {
        self.write(at as usize, &[0; 8]);
    }
}

/// A script of what a peer does to the ring: steps of a kind ([`WRITE`], [`LOOK`], [`LATER`]) and what belongs to it. True if all looks
/// find a message that is whole.
///
/// The receiving end is that of `link/poll.rs`, the checks on what was copied out are those of the server.
pub fn polled_ring(mut bytes: &[u8]) -> bool {
    let max = longest(INLINE) as u64;
    assert!(max < longest_framed(INLINE));
    let shared = Shared {
        bytes: RefCell::new(vec![0; size() as usize]),
        later: RefCell::default(),
    };
    let mut account = Credits::new(WINDOW, WINDOW, WINDOW)
        .writing(size(), max)
        .writing_framed(max)
        .reading(size(), max)
        .reading_framed();
    let mut taker = Taker::new(max as usize);
    let mut whole = false;
    while let Some((&kind, rest)) = bytes.split_first() {
        let Some((&low, rest)) = rest.split_first_chunk::<2>() else {
            return false;
        };
        bytes = rest;
        if kind % 3 != LOOK {
            let Some((written, rest)) = written(rest) else {
                return false;
            };
            let at = usize::from(u16::from_le_bytes(low));
            match kind % 3 {
                WRITE => shared.write(at, written),
                _ => shared.later.borrow_mut().push((at, written.to_vec())),
            }
            bytes = rest;
            continue;
        }
        match taker.look(&shared, &mut account) {
            Ok(true) => {}
            Ok(false) | Err(_) => return false,
        }
        assert!(taker.message().len() as u64 <= max && !taker.message().is_empty());
        if !dealt_with(taker.message(), &mut account) {
            return false;
        }
        whole = true;
    }
    whole
}
