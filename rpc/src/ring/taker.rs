//! Taking messages out of a ring of which no completion tells.
//!
//! The peer can change the ring at any time, between any two reads. Each word is read once to decide on it, and what a message is made of is a
//! private copy whose checksum fits; whatever else the ring holds, no more can come of it than a message that the peer might have
//! sent, or the end of the connection.

use super::stamp::{FRAME_LEN, stamp, stamped, whole};
use super::{GRANULE, span};
use crate::credit::{CreditError, Credits};

/// A ring's memory, which somebody else writes to.
pub trait Memory {
    /// The word at a multiple of 8, of which what is read later was written later; `None` outside.
    fn word(&self, at: u64) -> Option<u64>;
    /// Copies from a multiple of 64 as many; false if they do not lie within.
    fn copy(&self, at: u64, out: &mut [u8]) -> bool;
    /// Stores 0 in the word.
    fn clear(&self, at: u64);
}

/// The receiver's place in such a ring, and the message at hand.
#[derive(Debug)]
pub struct Taker {
    /// The message at hand with its frame.
    copy: Box<[u8]>,
    /// Its length without the frame.
    len: usize,
    /// Longest message in bytes.
    max: usize,
    /// Messages taken so far.
    taken: u64,
}

impl Taker {
    /// For messages of at most `max` bytes, in a ring that has been [cleared](clear).
    pub fn new(max: usize) -> Taker {
        Taker {
            copy: vec![0; span((FRAME_LEN + max) as u64) as usize].into(),
            len: 0,
            max,
            taken: 0,
        }
    }

    /// Messages taken so far.
    #[inline]
    pub fn taken(&self) -> u64 {
        self.taken
    }

    /// The message at hand.
    #[inline]
    pub fn message(&self) -> &[u8] {
        let end = FRAME_LEN + self.len;
        self.copy.get(FRAME_LEN..end).unwrap_or_default()
    }

    /// Takes the next message out of the ring, if it is there.
    ///
    /// # Errors
    /// [`CreditError`] when what is there can be no message.
    #[inline]
    pub fn look(&mut self, ring: &impl Memory, credits: &mut Credits) -> Result<bool, CreditError> {
        let Some((here, or_start)) = credits.next() else {
            return Ok(false);
        };
        let stamp_at = |at| ring.word(at).and_then(|word| stamped(word, self.taken));
        if let Some(len) = stamp_at(here) {
            return self.take(ring, credits, here, len);
        }
        if or_start && let Some(len) = stamp_at(0) {
            return self.take(ring, credits, 0, len);
        }
        Ok(false)
    }

    /// Copies the message out that is stamped with this length; false if not all of it is there.
    #[inline(always)]
    fn take(
        &mut self,
        ring: &impl Memory,
        credits: &mut Credits,
        at: u64,
        len: usize,
    ) -> Result<bool, CreditError> {
        let wrong = CreditError::Length(len as u64);
        if len > self.max {
            return Err(wrong);
        }
        let room = span((FRAME_LEN + len) as u64);
        let copy = self.copy.get_mut(..room as usize).ok_or(wrong)?;
        // One that lies across the ring's end is none.
        if !ring.copy(at, copy) {
            return Err(wrong);
        }
        if !whole(copy, stamp(self.taken, len)) {
            return Ok(false);
        }
        // Where it has to be, by its length.
        if credits.find(len as u32)? != at {
            return Err(wrong);
        }
        // Before its room returns to the peer (I9): what is left there is not taken for a message of the next lap.
        for at in (at..at + room).step_by(GRANULE as usize) {
            ring.clear(at);
        }
        self.len = len;
        self.taken += 1;
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::super::stamp::frame;
    use super::*;
    use crate::credit::Class;
    use crate::ring::size_min;
    use std::cell::RefCell;

    const MAX: u64 = 700;

    struct Bytes(RefCell<Vec<u8>>);

    impl Bytes {
        fn write(&self, at: u64, bytes: &[u8]) {
            let at = at as usize;
            self.0.borrow_mut()[at..at + bytes.len()].copy_from_slice(bytes);
        }
    }

    impl Memory for Bytes {
        fn word(&self, at: u64) -> Option<u64> {
            let bytes = self.0.borrow();
            let word = bytes.get(at as usize..)?.first_chunk()?;
            Some(u64::from_le_bytes(*word))
        }

        fn copy(&self, at: u64, out: &mut [u8]) -> bool {
            let bytes = self.0.borrow();
            let from = bytes.get(at as usize..at as usize + out.len());
            from.map(|from| out.copy_from_slice(from)).is_some()
        }

        fn clear(&self, at: u64) {
            self.write(at, &[0; 8]);
        }
    }

    /// Both ends of a ring.
    struct Ends {
        ring: Bytes,
        sender: Credits,
        receiver: Credits,
        taker: Taker,
        sent: u64,
    }

    impl Ends {
        fn new() -> Ends {
            let size = size_min(MAX + FRAME_LEN as u64);
            Ends {
                ring: Bytes(RefCell::new(vec![0; size as usize])),
                sender: Credits::new(64, 64, 1)
                    .writing(size, MAX)
                    .writing_framed(MAX),
                receiver: Credits::new(64, 64, 64).reading(size, MAX).reading_framed(),
                taker: Taker::new(MAX as usize),
                sent: 0,
            }
        }

        /// Where a message goes, and what is written there.
        fn next(&mut self, message: &[u8]) -> (u64, Vec<u8>) {
            let sent = self.sender.send(Class::Request, message.len());
            let mut framed = frame(self.sent, message).to_vec();
            framed.extend(message);
            self.sent += 1;
            (sent.offset.expect("there is a ring"), framed)
        }

        fn look(&mut self) -> Result<bool, CreditError> {
            self.taker.look(&self.ring, &mut self.receiver)
        }

        /// A message there, taken, answered, and its credit back; where it was.
        fn pass(&mut self, message: &[u8]) -> u64 {
            let (at, framed) = self.next(message);
            assert_eq!(self.look(), Ok(false), "before it is written");
            self.ring.write(at, &framed);
            assert_eq!(self.look(), Ok(true));
            assert_eq!(self.taker.message(), message);
            let counter = self.sender.posted_for_tests();
            self.receiver.receive(Class::Request, counter).unwrap();
            self.receiver.reposted(Class::Request);
            let answer = self.receiver.send(Class::Answer, 40);
            self.sender.receive(Class::Answer, answer.counter).unwrap();
            self.sender.reposted(Class::Answer);
            at
        }
    }

    /// A message whose bytes are a whole other message, with the right frame, where a later one will be looked for.
    #[test]
    fn old_bytes_are_no_message() {
        let mut ends = Ends::new();
        // Three granules; the second begins with a message that has the number of the one that will be there in the next lap.
        let forge = |number: u64| {
            let mut message = vec![7; 64 - FRAME_LEN];
            message.extend(frame(number, &[1; 40]));
            message.extend([1; 40]);
            message.resize(150, 7);
            message
        };
        // How many messages there are in a lap that begins with such a one.
        let mut probe = Ends::new();
        probe.pass(&forge(0));
        let mut lap = 1;
        while probe.pass(&[2; 40]) != 0 {
            lap += 1;
        }
        assert_eq!(ends.pass(&forge(lap + 1)), 0);
        for _ in 1..lap {
            assert_ne!(ends.pass(&[2; 40]), 0);
        }
        // One granule, and then the next is looked for where the forged one was.
        assert_eq!(ends.pass(&[3; 40]), 0);
        assert_eq!(ends.look(), Ok(false), "what was there a lap before");
        assert_eq!(ends.pass(&[4; 200]), 64);
    }

    #[test]
    fn what_is_not_whole_is_waited_for_and_what_cannot_be_is_an_error() {
        let mut ends = Ends::new();
        let (at, framed) = ends.next(&[5; 500]);
        ends.ring.write(at, &framed[..400]);
        assert_eq!(ends.look(), Ok(false));
        ends.ring.write(at, &framed);
        assert_eq!(ends.look(), Ok(true));
        for len in [MAX as u32 + 1, u32::MAX, 0] {
            let mut ends = Ends::new();
            let stamp = u64::from(len) | 1 << 32;
            ends.ring.write(0, &stamp.to_le_bytes());
            let wrong = Err(CreditError::Length(len.into()));
            assert_eq!(ends.look(), if len == 0 { Ok(false) } else { wrong });
        }
        // A message that fits before the ring's end, at its start.
        let mut ends = Ends::new();
        let mut at = ends.pass(&[6; 300]);
        let size = ends.ring.0.borrow().len() as u64;
        while at + 320 + span(MAX + FRAME_LEN as u64) <= size {
            at = ends.pass(&[6; 300]);
        }
        let mut framed = frame(ends.sent, &[8; 40]).to_vec();
        framed.extend([8; 40]);
        ends.ring.write(0, &framed);
        assert_eq!(ends.look(), Err(CreditError::Length(40)));
    }
}
