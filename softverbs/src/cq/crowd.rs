//! Polling a completion queue of many queue pairs: only those are visited of which the [board](crate::board), or this process, says that there is
//! something.
//!
//! For each member is kept how far its lane was said to be when nothing was left there. Where the board says otherwise there may be something. It is read
//! before the lane is, so what comes later makes it differ again. A member with something to do that nobody will say anew (work that waits, flushes)
//! is never settled.

use super::{CqCore, Members};
use crate::board::Board;
use crate::layout::MAX_QP;
use crate::qp::QpCore;
use crate::qp_state::{Service, State};
use core::sync::atomic::Ordering;
use ibverbs_sys::ibv_wc;
use std::sync::Arc;

/// Members that are visited all, one after the other: as few are near, and what is new is seen a line earlier than by way of the board.
const FEW: usize = 32;

/// After so many polls all are visited: the board is a hint.
const ALL_AFTER: u32 = 1024;

/// The same once, after members have come or gone.
const SOON: u32 = 16;

/// Members looked up before the first of them is visited: what lies there comes together.
const AHEAD: usize = 16;

/// What is kept of the members of a crowded queue, in the order of the list; empty otherwise.
#[derive(Default)]
pub(super) struct Crowd {
    /// Their words on the board.
    indices: Vec<u32>,
    /// What these said when a member had nothing left.
    seen: Vec<u32>,
    /// Where this process notes what it has for them itself.
    places: Vec<u32>,
    polls: u32,
}

/// A word that is not this one, nor will be soon.
fn other_than(word: u32) -> u32 {
    word ^ 1 << 31
}

impl Crowd {
    #[inline(always)]
    pub fn is_there(&self) -> bool {
        !self.indices.is_empty()
    }

    /// All members are to be visited.
    fn forget(&mut self, board: &Board) {
        self.polls = 0;
        for (seen, &index) in self.seen.iter_mut().zip(&self.indices) {
            *seen = other_than(board.words()[index as usize].load(Ordering::Relaxed));
        }
    }

    /// A member is to be visited.
    fn unsettle(&mut self, at: usize, board: &Board) {
        let word = &board.words()[self.indices[at] as usize];
        self.seen[at] = other_than(word.load(Ordering::Relaxed));
    }
}

impl CqCore {
    /// The members are others: takes stock of them, and tells senders whether to use the board.
    pub(super) fn count_anew(&self, members: &mut Members) {
        let list = &members.list;
        let crowded = list.len() > FEW && list.iter().all(|qp| qp.service != Service::Ud);
        members.crowd = Crowd::default();
        if crowded {
            let place = |qp: &Arc<QpCore>| match self.is(&qp.send_cq) {
                true => qp.index() as u32,
                false => (MAX_QP + qp.index()) as u32,
            };
            members.crowd = Crowd {
                indices: list.iter().map(|qp| qp.index() as u32).collect(),
                seen: vec![0; list.len()],
                places: list.iter().map(place).collect(),
                polls: 0,
            };
            members.crowd.forget(&self.process.board);
            // Who does not see yet that they are many says nothing to the board: what that is about is found when all are visited again, soon.
            members.crowd.polls = ALL_AFTER - SOON;
        }
        self.crowded.store(crowded, Ordering::Relaxed);
        let advert = self.process.segment.cq(self.index as usize);
        advert.crowded.store(crowded.into(), Ordering::Release);
    }

    /// All members are looked at once more.
    pub fn doubt(&self) {
        self.unsure.store(true, Ordering::Release);
    }

    /// Nobody writes to the lane of queue pair `index` any more. What was said of it says nothing of its next one, whose entries are counted from the
    /// beginning: told as many, a poll would take the new ones for the old ones.
    pub fn unsay(&self, index: usize) {
        self.process.board.words()[index % MAX_QP].store(0, Ordering::Relaxed);
        self.doubt();
    }

    /// Notes that a queue pair has something that no peer told the board of.
    #[inline]
    pub fn note(&self, place: usize) {
        if self.crowded.load(Ordering::Relaxed) {
            self.process.notes.set(place);
            self.noted.store(true, Ordering::Release);
        }
    }

    #[cold]
    fn take_notes(&self, crowd: &mut Crowd) {
        self.noted.swap(false, Ordering::AcqRel);
        for at in 0..crowd.places.len() {
            if self.process.notes.take(crowd.places[at] as usize) {
                crowd.unsettle(at, &self.process.board);
            }
        }
    }

    /// As [`poll_members`](Self::poll_members), of a crowd.
    #[inline(never)]
    pub(super) fn poll_crowd<const FIRST: bool>(
        &self,
        members: &mut Members,
        out: &mut [ibv_wc],
        mut frees: impl FnMut(&Arc<QpCore>, u64),
        waits: &mut bool,
    ) -> usize {
        let Members {
            list, next, crowd, ..
        } = members;
        let (board, words) = (&*self.process.board, self.process.board.words());
        crowd.polls += 1;
        if crowd.polls >= ALL_AFTER || self.unsure.load(Ordering::Relaxed) {
            // In one step: a doubt that comes beside a plain store would go with it, and lanes be looked at before.
            self.unsure.swap(false, Ordering::AcqRel);
            crowd.forget(board);
        }
        if self.noted.load(Ordering::Relaxed) {
            self.take_notes(crowd);
        }
        let (mut at, mut left, mut filled) = (*next, list.len(), 0);
        loop {
            let mut ready = [0; AHEAD];
            let mut count = 0;
            while left > 0 && count < AHEAD {
                let word = &words[crowd.indices[at] as usize % MAX_QP];
                if word.load(Ordering::Relaxed) != crowd.seen[at] {
                    ready[count] = at;
                    count += 1;
                    list[at].will_poll();
                }
                at = if at + 1 == list.len() { 0 } else { at + 1 };
                left -= 1;
            }
            let ready = &ready[..count];
            if ready.is_empty() {
                *next = at;
                return filled;
            }
            for &member in ready {
                // SAFETY: this is the completion queue of its receives, if it is looked at at all, and we hold its lock.
                unsafe { list[member].will_take_in(self.is(&list[member].recv_cq)) };
            }
            for &member in ready {
                let qp = &list[member];
                let word = words[crowd.indices[member] as usize % MAX_QP].load(Ordering::Acquire);
                let mut skipped = false;
                filled +=
                    self.poll_member::<FIRST>(qp, &mut out[filled..], &mut frees, &mut skipped);
                *waits |= skipped;
                if filled == out.len() {
                    // There may be more here, but it is the others' turn.
                    *next = if member + 1 == list.len() {
                        0
                    } else {
                        member + 1
                    };
                    return filled;
                }
                // Who was passed over for work that waited was not looked at, also if that work is done by now.
                if !skipped && !qp.attention() && qp.state() != State::Err {
                    crowd.seen[member] = word;
                }
            }
        }
    }
}
