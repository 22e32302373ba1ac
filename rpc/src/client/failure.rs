//! Giving up: on a call, or on the connection.
//!
//! A call that is given up on leaves its slot behind as a zombie: what was posted for it may still
//! be touched, so its memory stays until the server has answered or the queue pair is gone. When
//! the connection ends, the queue pair is destroyed first; then everything that belongs to slots
//! is freed, and every call gets its error.

use super::Client;
use super::flight::Flight;
use crate::clock::Moment;
use crate::deadline::Deadline;
use crate::error::{CallError, Lost};
use crate::handshake::Goodbye;
use std::sync::Arc;

impl Client {
    pub(super) fn has_outcome(&self, key: usize) -> bool {
        self.calls.has_outcome(key)
    }

    /// Nobody waits any longer for a call without an outcome.
    pub(super) fn expire(&mut self, key: usize) {
        let Some(slot) = self.calls.forget(key) else {
            return;
        };
        self.recorder.expired += 1;
        let index = slot.index as usize;
        self.flights[index].deadline = None;
        self.detach(index);
        // It is in use: the call had no outcome.
        let _ = self.slots.abandon(slot);
        self.check_zombies();
    }

    /// Takes note of pending calls that were dropped.
    pub(super) fn forget_dropped(&mut self) {
        if self.dropped.borrow().is_empty() {
            return;
        }
        let keys = std::mem::take(&mut *self.dropped.borrow_mut());
        for key in keys {
            if let Some(slot) = self.calls.forget(key) {
                self.detach(slot.index as usize);
            }
        }
        self.settle();
    }

    /// The slot goes on without a caller: no more than necessary is fetched.
    fn detach(&mut self, index: usize) {
        let flight = &mut self.flights[index];
        flight.call = None;
        if let Some(transfer) = &mut flight.transfer {
            transfer.cancel();
            self.transfers.remove(index as u32);
            // With nothing outstanding, no completion will come that ends it.
            if transfer.is_done()
                && let Some(slot) = self.slots.current(index as u32)
                && let Ok(true) = self.slots.fetched(slot)
            {
                self.freed.push(slot);
            }
        }
        self.settle();
    }

    /// Slots whose callers dropped their pending calls count as zombies once their time is over.
    pub(super) fn sweep(&mut self, now: Moment) {
        let mut found = false;
        for (index, flight) in self.flights.iter_mut().enumerate() {
            if flight.call.is_none()
                && flight.deadline.is_some_and(|at| at.is_past_at(now))
                && let Some(slot) = self.slots.current(index as u32)
            {
                flight.deadline = None;
                found |= self.slots.abandon(slot).is_ok();
            }
        }
        if found {
            self.check_zombies();
        }
    }

    /// When the next slot becomes one for [`sweep`](Self::sweep).
    pub(super) fn next_sweep(&self) -> Option<Deadline> {
        let dropped = self.flights.iter().filter(|flight| flight.call.is_none());
        dropped
            .filter_map(|flight| flight.deadline)
            .min_by_key(|deadline| deadline.moment())
    }

    fn check_zombies(&mut self) {
        let zombies = self.slots.zombies();
        if zombies > self.options.zombies_max {
            self.fail(Lost::Unanswered(zombies));
        }
    }

    /// Ends the connection.
    pub(super) fn fail(&mut self, lost: Lost) {
        let Some(link) = self.link.take() else {
            return;
        };
        self.recorder.rnr = link.rnr();
        if !matches!(lost, Lost::Gone(_) | Lost::Goodbye(_)) {
            self.control.goodbye(lost.goodbye());
        }
        let lost = Arc::new(lost);
        self.lost = Some(Arc::clone(&lost));
        self.close(link);
        let failed = &mut self.recorder.failed;
        self.calls.end_all(|| {
            *failed += 1;
            let cause = Arc::clone(&lost);
            CallError::MaybeExecuted { cause }
        });
    }

    /// The queue pair first, then the memory.
    fn close(&mut self, link: crate::link::Link) {
        link.destroy();
        while self.batch.pop().is_some() {}
        self.transfers.clear();
        if let Some(fetcher) = &mut self.fetcher {
            fetcher.clear();
        }
        self.freed.clear();
        self.flights.fill_with(Flight::default);
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        if let Some(link) = self.link.take() {
            self.control.goodbye(Goodbye::Closing);
            self.close(link);
        }
    }
}
