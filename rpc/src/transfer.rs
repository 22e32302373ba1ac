//! Bringing in a body that does not fit into its message: the pieces that stayed with the peer are
//! READ into one private buffer, slice by slice.

use crate::posted::{ReadSlice, Target};
use crate::wire::{Piece, PieceList};
use mempool::Buf;
use std::sync::Arc;
use verbs::{RKey, RemoteRegion};

/// A body on its way in.
#[derive(Debug)]
pub(crate) struct Transfer {
    target: Arc<Target>,
    pieces: PieceList,
    /// Piece that comes next, and how much of it has been asked for.
    piece: usize,
    asked: u64,
    /// Remote bytes that have not been asked for.
    remote_left: u64,
    /// Where in the buffer the next byte goes.
    at: usize,
    outstanding: u32,
    cancelled: bool,
}

impl Transfer {
    /// Starts with the inline bytes, which are copied to their places.
    ///
    /// `pieces` has been checked against a header whose inline bytes are `inline`, and `buf` is at
    /// least as long as the body; `None` if not.
    pub fn new(mut buf: Buf, pieces: PieceList, mut inline: &[u8]) -> Option<Transfer> {
        let mut at = 0usize;
        let mut remote_left = 0u64;
        for piece in pieces.as_slice() {
            let len = usize::try_from(piece.byte_len()).ok()?;
            let place = buf.get_mut(at..at.checked_add(len)?)?;
            if let Piece::Inline { .. } = piece {
                let (bytes, rest) = inline.split_at_checked(len)?;
                place.copy_from_slice(bytes);
                inline = rest;
            } else {
                remote_left += len as u64;
            }
            at += len;
        }
        Some(Transfer {
            target: Target::new(buf),
            pieces,
            piece: 0,
            asked: 0,
            remote_left,
            at: 0,
            outstanding: 0,
            cancelled: false,
        })
    }

    /// The next READ to post, at most `most` bytes long; `None` when all have been given out.
    pub fn next(&mut self, most: u32) -> Option<(ReadSlice, RemoteRegion)> {
        while !self.cancelled {
            match *self.pieces.as_slice().get(self.piece)? {
                Piece::Inline { len } => {
                    self.at += len as usize;
                    self.piece += 1;
                }
                Piece::Remote { addr, len, key } => {
                    let left = len - self.asked;
                    if left == 0 {
                        self.piece += 1;
                        self.asked = 0;
                        continue;
                    }
                    let now = left.min(u64::from(most.max(1))) as u32;
                    // SAFETY: `new` checked that all pieces fit into the buffer one after the
                    // other, and `at` only moves forward, so slices are disjoint.
                    let slice = unsafe { self.target.slice(self.at, now) };
                    let source = RemoteRegion {
                        addr: addr + self.asked,
                        len: u64::from(now),
                        rkey: RKey(key),
                    };
                    self.asked += u64::from(now);
                    self.remote_left -= u64::from(now);
                    self.at += now as usize;
                    self.outstanding += 1;
                    return Some((slice, source));
                }
            }
        }
        None
    }

    /// Whether [`next`](Self::next) has more to give.
    pub fn has_next(&self) -> bool {
        self.left() > 0
    }

    /// Bytes that [`next`](Self::next) has still to give.
    pub fn left(&self) -> u64 {
        match self.cancelled {
            true => 0,
            false => self.remote_left,
        }
    }

    /// One READ has completed, and its slice is gone.
    pub fn completed(&mut self) {
        debug_assert!(self.outstanding > 0);
        self.outstanding -= 1;
    }

    /// Asks for nothing more; what is outstanding still has to complete.
    pub fn cancel(&mut self) {
        self.cancelled = true;
    }

    /// Whether everything that was asked for has arrived, and nothing more will be.
    pub fn is_done(&self) -> bool {
        self.outstanding == 0 && !self.has_next()
    }

    /// The buffer, when [`is_done`](Self::is_done).
    pub fn into_buf(self) -> Option<Buf> {
        self.target.into_buf()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mempool::Pool;
    use proptest::prelude::*;
    use verbs::{Scatter, SgeList};

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        /// The slices cover every remote byte once, in order, and no inline byte.
        #[test]
        fn slices_cover_the_remote_pieces(
            shape in proptest::collection::vec((any::<bool>(), 1u64..20_000), 1..=16),
            most in 1u32..9000, spare in 0usize..100,
        ) {
            let pd = verbs::Device::open_spec("soft0").unwrap().alloc_pd().unwrap();
            let pool = Pool::builder(&pd).build().unwrap();
            let mut pieces = PieceList::new();
            let (mut inline, mut total, mut remote) = (Vec::new(), 0, Vec::new());
            for (n, &(is_inline, len)) in shape.iter().enumerate() {
                if is_inline {
                    let piece = Piece::Inline { len: len as u32 };
                    prop_assert!(pieces.push(piece));
                    inline.extend(vec![n as u8 + 1; len as usize]);
                } else {
                    let addr = 1_000_000 * n as u64;
                    let piece = Piece::Remote { addr, len, key: n as u32 };
                    prop_assert!(pieces.push(piece));
                    remote.extend((0..len).map(|at| (n as u32, addr + at, total + at)));
                }
                total += len;
            }
            let mut buf = pool.alloc(total as usize + spare).unwrap();
            buf.fill(0);
            let start = buf.as_ptr() as u64;
            let mut transfer = Transfer::new(buf, pieces, &inline).unwrap();
            let mut covered = Vec::new();
            while transfer.has_next() {
                prop_assert!(!transfer.is_done());
                let (mut slice, source) = transfer.next(most).unwrap();
                prop_assert!(source.len <= u64::from(most));
                let mut sges = SgeList::new();
                slice.scatter(&mut sges);
                let sge = sges.as_slice()[0];
                prop_assert_eq!(u64::from(sge.len), source.len);
                let place = sge.addr - start;
                covered.extend((0..source.len).map(|at| (source.rkey.0, source.addr + at, place + at)));
                drop(slice);
                transfer.completed();
            }
            prop_assert!(covered == remote);
            prop_assert!(transfer.next(most).is_none() && transfer.is_done());
            let buf = transfer.into_buf().unwrap();
            let mut at = 0;
            for (n, &(is_inline, len)) in shape.iter().enumerate() {
                let want = if is_inline { n as u8 + 1 } else { 0 };
                prop_assert!(buf[at..at + len as usize].iter().all(|&b| b == want));
                at += len as usize;
            }
        }
    }

    #[test]
    fn a_cancelled_transfer_waits_for_what_is_out() {
        let pd = verbs::Device::open_spec("soft0")
            .unwrap()
            .alloc_pd()
            .unwrap();
        let pool = Pool::builder(&pd).build().unwrap();
        let mut pieces = PieceList::new();
        let (addr, len, key) = (0, 1000, 1);
        assert!(pieces.push(Piece::Remote { addr, len, key }));
        let buf = pool.alloc(1000).unwrap();
        let mut transfer = Transfer::new(buf, pieces, &[]).unwrap();
        let (slice, _) = transfer.next(100).unwrap();
        transfer.cancel();
        assert!(transfer.next(100).is_none());
        assert!(!transfer.is_done(), "one READ is out");
        transfer.completed();
        assert!(transfer.is_done());
        drop(slice);
        // A buffer that is too short for the body is refused before anything is written.
        let short = pool.alloc(999).unwrap();
        assert!(Transfer::new(short, pieces, &[]).is_none());
    }
}
