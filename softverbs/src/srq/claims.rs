//! Claims: which initiator takes which entry of a shared receive queue.
//!
//! The owner posts an entry at the next *position* (counted from 1) of a ring in its segment, which names the entry's *slot*; the
//! slot's word in the file of claims says that it is free at this position. An initiator looks for the first position that is free and
//! claims it by compare-and-swap, with the queue pair of the owner's that will complete it. So whatever happens to an
//! initiator after that, the owner knows whose the entry is, and takes it back once that queue pair has no producer any more.
//!
//! The file is the one thing of a receive queue that peers write, and is believed by nobody: the owner completes by its private
//! table, in which each position is complete once; initiators mask what they read. A peer that scribbles here can make
//! others find no entry, or find that theirs has been completed by somebody else, as long as it lives.

use crate::layout::{Line, MAX_QP};
use crate::os::memfd::ControlFile;
use core::mem::size_of;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::io;
use std::os::fd::OwnedFd;

/// Bits of a slot number.
pub(super) const SLOT_BITS: u32 = 16;
/// In a claim word: not free any more.
const CLAIMED: u64 = 1 << 15;

static_assertions::const_assert!(crate::device::MAX_QP_WR <= 1 << SLOT_BITS);
static_assertions::const_assert!(MAX_QP as u64 <= CLAIMED);

/// An entry as lanes name it. The slot is in the low bits, so that it is found as the entry of any other queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Place {
    pub position: u64,
    pub slot: usize,
}

impl Place {
    pub fn to_index(self) -> u64 {
        self.position << SLOT_BITS | self.slot as u64
    }

    pub fn from_index(index: u64) -> Place {
        Place {
            position: index >> SLOT_BITS,
            slot: (index & ((1 << SLOT_BITS) - 1)) as usize,
        }
    }
}

fn free(position: u64) -> u64 {
    position << SLOT_BITS
}

fn claimed(position: u64, qp: usize) -> u64 {
    position << SLOT_BITS | CLAIMED | qp as u64
}

/// What lies before the words.
#[repr(C)]
struct Head {
    /// A position before which none is free: where to begin to look. If it is wrong, finding takes longer.
    hint: Line<AtomicU64>,
    /// Not 0: somebody waits for an entry.
    parked: Line<AtomicU64>,
}

/// The file of claims, mapped.
pub(crate) struct Claims {
    file: ControlFile,
    slots: usize,
}

impl Claims {
    fn bytes(slots: usize) -> usize {
        size_of::<Head>() + slots * size_of::<AtomicU64>()
    }

    /// A file in which nothing is free.
    pub fn create(order: u32) -> io::Result<Claims> {
        let slots = 1 << order;
        let file = ControlFile::create(Self::bytes(slots), true)?;
        Ok(Claims { file, slots })
    }

    /// A peer's.
    pub fn attach(fd: OwnedFd, order: u32) -> io::Result<Claims> {
        if order > SLOT_BITS {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let slots = 1 << order;
        let file = ControlFile::attach(fd, Self::bytes(slots), true)?;
        Ok(Claims { file, slots })
    }

    pub fn file(&self) -> &ControlFile {
        &self.file
    }

    fn head(&self) -> &Head {
        // SAFETY: the file is mapped as long as `self` lives, page-aligned and at least as long as `Head`; atomics only.
        unsafe { &*self.file.as_ptr().cast() }
    }

    fn words(&self) -> &[AtomicU64] {
        // SAFETY: as above; the words follow the head, and the file has room for all of them.
        unsafe {
            let first = self.file.as_ptr().add(size_of::<Head>()).cast();
            core::slice::from_raw_parts(first, self.slots)
        }
    }

    /// By the owner: the entry in `slot` can be had.
    pub fn offer(&self, place: Place) {
        self.words()[place.slot].store(free(place.position), Ordering::Release);
    }

    /// Whether nobody has claimed the entry.
    pub fn is_free(&self, place: Place) -> bool {
        self.words()[place.slot].load(Ordering::Acquire) == free(place.position)
    }

    /// Whether the entry was claimed for this queue pair of the owner's.
    pub fn is_claimed(&self, place: Place, qp: usize) -> bool {
        self.words()[place.slot].load(Ordering::Acquire) == claimed(place.position, qp)
    }

    /// Claims the first entry that is free, of those at the positions up to `posted`, for queue pair `qp` of the owner's.
    pub fn claim(&self, ring: &[AtomicU32], posted: u64, qp: usize) -> Option<Place> {
        let hint = &self.head().hint.0;
        // Nobody posts more in a lifetime; a peer may say anything.
        let posted = posted.min(u64::MAX >> SLOT_BITS);
        // Free ones are as many as the ring is long at most.
        let first = (posted + 1).saturating_sub(ring.len() as u64).max(1);
        let from = hint.load(Ordering::Relaxed).clamp(first, posted + 1);
        let found = (from..=posted).find_map(|at| self.try_claim(ring, at, qp));
        let place = found.or_else(|| (first..from).find_map(|at| self.try_claim(ring, at, qp)))?;
        hint.store(place.position + 1, Ordering::Relaxed);
        Some(place)
    }

    /// Whether more than `count` entries are free, of those at the positions up to `posted`.
    pub fn has_more_than(&self, ring: &[AtomicU32], posted: u64, count: u64) -> bool {
        let posted = posted.min(u64::MAX >> SLOT_BITS);
        let first = (posted + 1).saturating_sub(ring.len() as u64).max(1);
        // The newest are the most likely to be free.
        let mut found = (first..=posted).rev().filter(|&position| {
            let slot = ring[position as usize & (ring.len() - 1)].load(Ordering::Relaxed) as usize;
            let word = self.words().get(slot);
            word.is_some_and(|word| word.load(Ordering::Relaxed) == free(position))
        });
        usize::try_from(count).is_ok_and(|count| found.nth(count).is_some())
    }

    fn try_claim(&self, ring: &[AtomicU32], position: u64, qp: usize) -> Option<Place> {
        let slot = ring[position as usize & (ring.len() - 1)].load(Ordering::Relaxed) as usize;
        let word = self.words().get(slot)?;
        // Loaded first: the swap takes the line away from whoever has it.
        let taken = word.load(Ordering::Relaxed) == free(position)
            && word
                .compare_exchange(
                    free(position),
                    claimed(position, qp),
                    Ordering::AcqRel,
                    Ordering::Relaxed,
                )
                .is_ok();
        taken.then_some(Place { position, slot })
    }

    /// By an initiator that found nothing: it waits, as its own advertisement says in more detail.
    pub fn park(&self) {
        // Read, modified and written, so that the owner sees what each of several wrote before.
        self.head().parked.0.fetch_add(1, Ordering::AcqRel);
    }

    /// By the owner: whether somebody has parked since the last call.
    #[inline]
    pub fn unpark(&self) -> bool {
        let parked = &self.head().parked.0;
        parked.load(Ordering::Relaxed) != 0 && parked.swap(0, Ordering::AcqRel) != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn posted(claims: &Claims, ring: &[AtomicU32], positions: std::ops::RangeInclusive<u64>) {
        for position in positions {
            let slot = (position % ring.len() as u64) as usize;
            claims.offer(Place { position, slot });
            ring[slot].store(slot as u32, Ordering::Relaxed);
        }
    }

    #[test]
    fn each_is_claimed_once_whatever_the_hint_says() {
        let ring: Vec<_> = (0..8).map(|_| AtomicU32::new(0)).collect();
        let claims = Claims::create(3).unwrap();
        assert_eq!(claims.claim(&ring, 0, 1), None);
        posted(&claims, &ring, 1..=5);
        let mut got = Vec::new();
        for lie in [0, u64::MAX, 3, 9, 0] {
            claims.head().hint.0.store(lie, Ordering::Relaxed);
            got.push(claims.claim(&ring, 5, 7).unwrap().position);
        }
        got.sort();
        assert_eq!(got, [1, 2, 3, 4, 5]);
        assert_eq!(claims.claim(&ring, 5, 7), None);
        posted(&claims, &ring, 6..=6);
        let place = claims.claim(&ring, 6, 7).unwrap();
        assert!(claims.is_claimed(place, 7) && !claims.is_claimed(place, 6));
        assert!(!claims.is_free(place));
    }

    #[test]
    fn threads_share_what_is_posted() {
        const COUNT: u64 = 20_000;
        let ring: Vec<_> = (0..16).map(|_| AtomicU32::new(0)).collect();
        let claims = Claims::create(4).unwrap();
        let (last, done) = (AtomicU64::new(0), AtomicU64::new(0));
        let mut all: Vec<u64> = std::thread::scope(|s| {
            let claimers: Vec<_> = (0..3)
                .map(|qp| {
                    let (claims, ring, last, done) = (&claims, &ring, &last, &done);
                    s.spawn(move || {
                        let mut mine = Vec::new();
                        while done.load(Ordering::Relaxed) < COUNT {
                            match claims.claim(ring, last.load(Ordering::Acquire), qp) {
                                Some(place) => {
                                    mine.push(place.position);
                                    done.fetch_add(1, Ordering::Relaxed);
                                }
                                None => std::thread::yield_now(),
                            }
                        }
                        mine
                    })
                })
                .collect();
            for position in 1..=COUNT {
                while position - done.load(Ordering::Relaxed) > 16 {
                    std::thread::yield_now();
                }
                posted(&claims, &ring, position..=position);
                last.store(position, Ordering::Release);
            }
            claimers
                .into_iter()
                .flat_map(|c| c.join().unwrap())
                .collect()
        });
        all.sort();
        assert!(all.into_iter().eq(1..=COUNT));
    }

    #[test]
    fn parking_is_told_once() {
        let claims = Claims::create(0).unwrap();
        assert!(!claims.unpark());
        claims.park();
        claims.park();
        assert!(claims.unpark() && !claims.unpark());
    }

    proptest::proptest! {
        /// Whatever a peer writes, nothing is claimed that is not there.
        #[test]
        fn rubbish_is_survived(words: [u64; 4], numbers: [u32; 4], hint: u64, posted in proptest::prop_oneof![0u64..100, u64::MAX - 9..=u64::MAX, proptest::num::u64::ANY]) {
            let ring: Vec<_> = numbers.into_iter().map(AtomicU32::new).collect();
            let claims = Claims::create(2).unwrap();
            claims.head().hint.0.store(hint, Ordering::Relaxed);
            for (to, word) in claims.words().iter().zip(words) { to.store(word, Ordering::Relaxed); }
            if let Some(place) = claims.claim(&ring, posted, 3) {
                assert!(place.slot < 4 && (1..=posted).contains(&place.position));
                assert_eq!(Place::from_index(place.to_index()), place);
            }
        }
    }
}
