//! Bringing in a body that does not fit into its message: the pieces that stayed with the peer are
//! READ into private memory, slice by slice: one buffer, or several for the longest.

use crate::destination::{OneOrMany, Room};
use crate::posted::{ReadSlice, Target};
use crate::wire::{Piece, PieceList};
use std::sync::Arc;
use verbs::{RKey, RemoteRegion};

/// A body on its way in.
#[derive(Debug)]
pub(crate) struct Transfer {
    targets: OneOrMany<Arc<Target>>,
    pieces: PieceList,
    /// Piece that comes next, and how much of it has been asked for.
    piece: usize,
    asked: u64,
    /// Remote bytes that have not been asked for.
    remote_left: u64,
    /// Where the next byte goes: to which buffer, and where in that.
    target: usize,
    at: usize,
    outstanding: u32,
    cancelled: bool,
}

impl Transfer {
    /// Starts with the inline bytes, which are copied to their places.
    ///
    /// `pieces` has been checked against a header whose inline bytes are `inline`, and `room` has at
    /// least as many bytes as the body; `None` if not.
    pub fn new(mut room: Room, pieces: PieceList, mut inline: &[u8]) -> Option<Transfer> {
        let (mut at, end) = (0usize, room.len());
        let mut remote_left = 0u64;
        for piece in pieces.as_slice() {
            let len = usize::try_from(piece.byte_len()).ok()?;
            let next = at.checked_add(len).filter(|next| *next <= end)?;
            if let Piece::Inline { .. } = piece {
                let (bytes, rest) = inline.split_at_checked(len)?;
                room.write_at(at, bytes);
                inline = rest;
            } else {
                remote_left += len as u64;
            }
            at = next;
        }
        Some(Transfer {
            targets: room.map(Target::new),
            pieces,
            piece: 0,
            asked: 0,
            remote_left,
            target: 0,
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
                    self.skip(len as usize);
                    self.piece += 1;
                }
                Piece::Remote { addr, len, key } => {
                    let left = len - self.asked;
                    if left == 0 {
                        self.piece += 1;
                        self.asked = 0;
                        continue;
                    }
                    let target = self.targets.as_slice().get(self.target)?;
                    let room = target.len() - self.at;
                    if room == 0 {
                        self.target += 1;
                        self.at = 0;
                        continue;
                    }
                    // A buffer has less than 4 GiB.
                    let now = left.min(u64::from(most.max(1))).min(room as u64) as u32;
                    // SAFETY: within the buffer, as `now` is at most what is left of it; `target`
                    // and `at` only move forward, so slices are disjoint.
                    let slice = unsafe { target.slice(self.at, now) };
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

    /// Moves on, over bytes that are there.
    fn skip(&mut self, mut count: usize) {
        while let Some(target) = self.targets.as_slice().get(self.target) {
            let room = target.len() - self.at;
            if count <= room {
                self.at += count;
                return;
            }
            count -= room;
            self.target += 1;
            self.at = 0;
        }
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

    /// What was given, when [`is_done`](Self::is_done).
    pub fn into_room(self) -> Option<Room> {
        self.targets.into_room(Target::into_buf)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::destination::Destination;
    use mempool::{Buf, Pool};
    use proptest::prelude::*;
    use verbs::{Scatter, SgeList};

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        /// The slices cover every remote byte once, in order, and no inline byte.
        #[test]
        fn slices_cover_the_remote_pieces(
            shape in proptest::collection::vec((any::<bool>(), 1u64..20_000), 1..=16),
            most in 1u32..9000, spare in 0usize..100, cuts in proptest::collection::vec(any::<u32>(), 0..4),
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
            let end = total as usize + spare;
            let mut cuts: Vec<usize> = cuts.iter().map(|cut| *cut as usize % (end + 1)).collect();
            cuts.extend([0, end]);
            cuts.sort_unstable();
            let lens = cuts.windows(2).map(|pair| pair[1] - pair[0]);
            let bufs: Vec<Buf> = lens.map(|len| pool.alloc_zeroed(len).unwrap()).collect();
            // Where each begins: in memory, and in the body.
            let starts: Vec<(u64, u64, u64)> = (bufs.iter().zip(&cuts))
                .map(|(buf, cut)| (buf.as_ptr() as u64, buf.len() as u64, *cut as u64))
                .collect();
            let room = match bufs.len() {
                1 => bufs.into_iter().next().unwrap().into_room(),
                _ => bufs.into_room(),
            };
            let mut transfer = Transfer::new(room, pieces, &inline).unwrap();
            let mut covered = Vec::new();
            while transfer.has_next() {
                prop_assert!(!transfer.is_done());
                let (mut slice, source) = transfer.next(most).unwrap();
                prop_assert!(source.len <= u64::from(most));
                let mut sges = SgeList::new();
                slice.scatter(&mut sges);
                let sge = sges.as_slice()[0];
                prop_assert_eq!(u64::from(sge.len), source.len);
                let inside = |(start, len, _): &&(u64, u64, u64)| {
                    (*start..*start + *len).contains(&sge.addr) && sge.addr + u64::from(sge.len) <= *start + *len
                };
                let (start, _, cut) = starts.iter().find(inside).unwrap();
                let place = sge.addr - start + cut;
                covered.extend((0..source.len).map(|at| (source.rkey.0, source.addr + at, place + at)));
                drop(slice);
                transfer.completed();
            }
            prop_assert!(covered == remote);
            prop_assert!(transfer.next(most).is_none() && transfer.is_done());
            let bufs = transfer.into_room().unwrap().into_bufs();
            let buf: Vec<u8> = bufs.iter().flat_map(|buf| buf.to_vec()).collect();
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
        let room = pool.alloc(1000).unwrap().into_room();
        let mut transfer = Transfer::new(room, pieces, &[]).unwrap();
        let (slice, _) = transfer.next(100).unwrap();
        transfer.cancel();
        assert!(transfer.next(100).is_none());
        assert!(!transfer.is_done(), "one READ is out");
        transfer.completed();
        assert!(transfer.is_done());
        drop(slice);
        // A buffer that is too short for the body is refused before anything is written.
        let short = pool.alloc(999).unwrap().into_room();
        assert!(Transfer::new(short, pieces, &[]).is_none());
    }
}
