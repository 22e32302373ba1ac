//! Completions of a send queue, on their way from the thread that executed the work to the thread that polls.
//!
//! A ring in private memory: what a queue pair completes for itself never touches a line that a peer writes. One producer
//! (whoever holds the send queue's lock) and one consumer (whoever holds the lock of the completion queue), so two indices
//! are enough. Invariant: slots `head..tail` are initialised and belong to the consumer, the others to the producer.

use crate::sync::{AtomicU64, Ordering};
use core::cell::UnsafeCell;

/// A completed send work request.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(crate) struct SendDone {
    pub wr_id: u64,
    /// Position in the send queue; polling this frees all slots up to it.
    pub index: u64,
    /// `ibv_wc_status`.
    pub status: u32,
    /// `ibv_wc_opcode`.
    pub opcode: u32,
    pub byte_len: u32,
}

pub(crate) struct SendDones {
    slots: Box<[UnsafeCell<SendDone>]>,
    head: AtomicU64,
    tail: AtomicU64,
}

// SAFETY: slots are handed between the two sides by the release/acquire of the indices (module invariant).
unsafe impl Sync for SendDones {}

impl SendDones {
    /// Room for `depth` completions: one for each slot of the send queue, so that a push cannot fail.
    pub fn new(depth: usize) -> SendDones {
        let slots = (0..depth.next_power_of_two())
            .map(|_| UnsafeCell::default())
            .collect();
        SendDones {
            slots,
            head: AtomicU64::new(0),
            tail: AtomicU64::new(0),
        }
    }

    fn slot(&self, pos: u64) -> *mut SendDone {
        self.slots[(pos & (self.slots.len() as u64 - 1)) as usize].get()
    }

    /// Whether something waits.
    pub fn waiting(&self) -> bool {
        self.head.load(Ordering::Relaxed) != self.tail.load(Ordering::Acquire)
    }

    /// How many wait.
    pub fn len(&self) -> usize {
        let head = self.head.load(Ordering::Relaxed);
        (self.tail.load(Ordering::Acquire) - head) as usize
    }

    /// # Safety
    ///
    /// The caller holds the lock of the send queue, and no more completions wait than the queue is deep.
    #[inline]
    pub unsafe fn push(&self, done: SendDone) {
        let tail = self.tail.load(Ordering::Relaxed);
        debug_assert!(tail - self.head.load(Ordering::Relaxed) < self.slots.len() as u64);
        // SAFETY: the slot at `tail` is the producer's (module invariant), and the caller is the only producer.
        unsafe { *self.slot(tail) = done };
        self.tail.store(tail + 1, Ordering::Release);
    }

    /// # Safety
    ///
    /// The caller holds the lock of the completion queue.
    #[inline]
    pub unsafe fn pop(&self) -> Option<SendDone> {
        let head = self.head.load(Ordering::Relaxed);
        if head == self.tail.load(Ordering::Acquire) {
            return None;
        }
        // SAFETY: slots below `tail` are the consumer's (module invariant), and the caller is the only consumer.
        let done = unsafe { *self.slot(head) };
        self.head.store(head + 1, Ordering::Release);
        Some(done)
    }

    /// Drops everything that waits.
    ///
    /// # Safety
    ///
    /// The caller holds both locks.
    pub unsafe fn clear(&self) {
        self.head
            .store(self.tail.load(Ordering::Acquire), Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(not(loom))]
    #[test]
    fn keeps_order_and_wraps() {
        let ring = SendDones::new(3);
        for round in 0..10 {
            for i in 0..4 {
                // SAFETY: one thread; at most four wait.
                unsafe {
                    ring.push(SendDone {
                        index: round * 4 + i,
                        ..SendDone::default()
                    })
                };
            }
            for i in 0..4 {
                // SAFETY: one thread.
                assert_eq!(unsafe { ring.pop() }.unwrap().index, round * 4 + i);
            }
            assert!(!ring.waiting());
        }
    }
}
