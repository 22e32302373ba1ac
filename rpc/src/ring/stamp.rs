//! What is in front of a message in a ring of which no completion tells: a stamp, and a checksum.
//!
//! ```text
//!  0 length of the message (u32)   4 its number, from 1 (u32, wraps)
//!  8 checksum of the stamp and the message
//! 16 the message, as in `wire`
//! ```
//!
//! The receiver looks at the place where the next message begins until the stamp there is that message's, copies all of it out, and takes the
//! copy if the checksum fits; if not, it is still being written, and is looked at again.
//!
//! **Why a checksum, and one WRITE.** Nothing says in what order the bytes of one WRITE arrive: adapters write packets and cache lines as
//! they see fit, and copies by a processor overlap and go by its own units. So a stamp in the last word would not do. Two WRITEs, message
//! and then stamp, would, on devices that keep WRITEs in order; but a second work request costs more than a checksum at either end: on `soft0` some
//! 300 instructions beside 110, for a message of 64 bytes. And this way what is taken is whole even on a device that does not keep order.
//!
//! **Old bytes.** What lay in the ring a lap before can be any bytes, also such that look like a message with its stamp. So whoever
//! copies a message out stores 0 in the first word of each granule it took, which is where a stamp could be looked for, before the
//! credit for it returns; and a stamp is never 0.
//!
//! **The ring's end.** A message that does not fit there begins at the start. It is in one place only, and the other has no stamp,
//! so the receiver looks at both where both are possible.

use xxhash_rust::xxh3::{Xxh3, xxh3_64_with_seed};

/// Length of the frame in bytes.
pub const FRAME_LEN: usize = 16;

/// The stamp of message `number`, counted from 0.
#[inline]
pub fn stamp(number: u64, len: usize) -> u64 {
    u64::from(len as u32) | u64::from((number as u32).wrapping_add(1)) << 32
}

/// The length in a stamp if it is that of message `number`.
#[inline]
pub fn stamped(stamp: u64, number: u64) -> Option<usize> {
    let right = (stamp >> 32) as u32 == (number as u32).wrapping_add(1);
    // A message is never empty.
    (right && stamp as u32 != 0).then_some(stamp as u32 as usize)
}

/// The frame of message `number`, which is in one piece.
#[inline]
pub fn frame(number: u64, message: &[u8]) -> [u8; FRAME_LEN] {
    let stamp = stamp(number, message.len());
    join(stamp, xxh3_64_with_seed(message, stamp))
}

/// The frame of message `number` of `len` bytes, whose pieces `each` gives in order.
pub fn frame_of_pieces(
    number: u64,
    len: usize,
    each: impl FnOnce(&mut dyn FnMut(&[u8])),
) -> [u8; FRAME_LEN] {
    let stamp = stamp(number, len);
    let mut sum = Xxh3::with_seed(stamp);
    each(&mut |bytes| sum.update(bytes));
    join(stamp, sum.digest())
}

#[inline]
fn join(stamp: u64, sum: u64) -> [u8; FRAME_LEN] {
    let mut out = [0; FRAME_LEN];
    out[..8].copy_from_slice(&stamp.to_le_bytes());
    out[8..].copy_from_slice(&sum.to_le_bytes());
    out
}

/// The message in a private copy that begins with its frame, if the stamp is `stamp` and everything is there.
#[inline]
pub fn whole(copy: &[u8], stamp: u64) -> bool {
    let Some((frame, rest)) = copy.split_first_chunk::<FRAME_LEN>() else {
        return false;
    };
    match rest.get(..stamp as u32 as usize) {
        Some(message) => *frame == join(stamp, xxh3_64_with_seed(message, stamp)),
        None => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn stamps_are_of_one_message_and_never_zero() {
        for number in [0, 1, 7, u64::from(u32::MAX) - 1, u64::from(u32::MAX)] {
            let of = stamp(number, 104);
            assert_ne!(of, 0);
            assert_eq!(stamped(of, number), Some(104));
            assert_eq!(stamped(of, number + 1), None);
            assert_eq!(stamped(0, number), None);
        }
    }

    proptest! {
        /// A message is taken with all of its bytes or not at all, however it was put together.
        #[test]
        fn only_whole_messages_are_taken(
            number: u64, message in proptest::collection::vec(any::<u8>(), 1..700),
            cuts in (any::<u16>(), any::<u16>()), wrong in (any::<u16>(), 1u8..),
        ) {
            let of = stamp(number, message.len());
            let at = |n: u16| usize::from(n) % (message.len() + 1);
            let (a, b) = (at(cuts.0).min(at(cuts.1)), at(cuts.0).max(at(cuts.1)));
            let pieces = [&message[..a], &message[a..b], &message[b..]];
            let of_pieces = frame_of_pieces(number, message.len(), |each| {
                pieces.into_iter().for_each(each);
            });
            prop_assert_eq!(of_pieces, frame(number, &message));
            let mut copy = of_pieces.to_vec();
            copy.extend(&message);
            prop_assert!(whole(&copy, of));
            prop_assert!(!whole(&copy[..copy.len() - 1], of));
            prop_assert!(!whole(&copy, stamp(number.wrapping_add(1), message.len())));
            let at = usize::from(wrong.0) % copy.len();
            copy[at] ^= wrong.1;
            prop_assert!(!whole(&copy, of));
        }
    }
}
