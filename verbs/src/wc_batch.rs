//! The batches that polls fill.

use std::fmt;

use ibverbs_sys::ibv_wc;

use crate::{Completion, CqId};

/// Completions taken from a completion queue, oldest first. It owns them: the queue is not borrowed.
///
/// Allocated once; polls fill what room is left. One batch can serve several completion queues.
pub struct WcBatch {
    /// As the device wrote them, and looked at when they are taken: from `next` up to `filled`, each once.
    wcs: Box<[ibv_wc]>,
    /// Where all of them came from, unless they are `mixed`.
    cq: CqId,
    /// Where each came from, if they are.
    cqs: Box<[CqId]>,
    mixed: bool,
    next: usize,
    filled: usize,
}

impl WcBatch {
    /// A batch of up to `capacity` completions (at least one).
    pub fn with_capacity(capacity: usize) -> WcBatch {
        let capacity = capacity.max(1);
        WcBatch {
            wcs: vec![ibv_wc::default(); capacity].into(),
            cq: CqId(0),
            cqs: vec![CqId(0); capacity].into(),
            mixed: false,
            next: 0,
            filled: 0,
        }
    }

    /// Takes the oldest completion.
    #[inline(always)]
    pub fn pop(&mut self) -> Option<Completion> {
        let at = self.next;
        if at == self.filled {
            return None;
        }
        self.next += 1;
        Some(Completion::from_sys(self.cq_at(at)?, self.wcs.get(at)?))
    }

    #[inline(always)]
    fn cq_at(&self, at: usize) -> Option<CqId> {
        match self.mixed {
            false => Some(self.cq),
            true => self.cqs.get(at).copied(),
        }
    }

    /// Completions not yet taken.
    #[inline]
    pub fn len(&self) -> usize {
        self.filled - self.next
    }

    /// Whether all are taken.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Completions it can hold.
    pub fn capacity(&self) -> usize {
        self.wcs.len()
    }

    /// Gives the room of what was taken back.
    #[inline]
    pub(crate) fn make_room(&mut self) {
        if self.next == self.filled {
            (self.next, self.filled) = (0, 0);
        } else if self.next > 0 {
            self.wcs.copy_within(self.next..self.filled, 0);
            self.cqs.copy_within(self.next..self.filled, 0);
            (self.next, self.filled) = (0, self.filled - self.next);
        }
    }

    /// The room there is, for a device to write to.
    #[inline]
    pub(crate) fn room(&mut self) -> &mut [ibv_wc] {
        &mut self.wcs[self.filled..]
    }

    /// The first `count` entries of [`room`](Self::room) have come from this queue.
    #[inline]
    pub(crate) fn came(&mut self, cq: CqId, count: usize) {
        if self.cq != cq || self.mixed {
            self.note(cq, count);
        }
        self.filled += count;
    }

    /// Writes down where the next `count` come from: not all from the queue that was polled before.
    #[cold]
    fn note(&mut self, cq: CqId, count: usize) {
        if self.is_empty() {
            (self.cq, self.mixed) = (cq, false);
            return;
        }
        if !self.mixed {
            self.cqs[self.next..self.filled].fill(self.cq);
            self.mixed = true;
        }
        self.cqs[self.filled..self.filled + count].fill(cq);
    }

    /// Only with room.
    pub(crate) fn push(&mut self, completion: &Completion) {
        self.room()[0] = completion.to_sys();
        self.came(completion.cq(), 1);
    }
}

impl fmt::Debug for WcBatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WcBatch")
            .field("len", &self.len())
            .field("capacity", &self.capacity())
            .finish()
    }
}
