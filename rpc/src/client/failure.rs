//! Giving up: on a call, or on the connection.
//!
//! A call that is given up on leaves its slot behind as a zombie: what was posted for it may still
//! be touched, so its memory stays until the server has answered or the queue pair is gone. When
//! the connection ends, the queue pair is destroyed first; then everything that belongs to slots
//! is freed, and every call gets its error.

use super::Client;
use super::flight::Flight;
use super::pending::Forgotten;
use crate::clock::Moment;
use crate::deadline::Deadline;
use crate::error::{Buffers, CallError, Lost, NotSentReason};
use crate::handshake::Goodbye;
use crate::link::Link;
use crate::posted::Posted;
use crate::trace::event;
use std::sync::Arc;

impl Client {
    pub(super) fn has_outcome(&self, key: usize) -> bool {
        self.calls.has_outcome(key)
    }

    /// Nobody waits any longer for a call without an outcome.
    pub(super) fn expire(&mut self, key: usize) {
        let Some(slot) = self.calls.forget(key).0 else {
            return;
        };
        self.recorder.expired += 1;
        let index = slot.index as usize;
        if self.slots.current(slot.index) != Some(slot) {
            debug_assert!(false, "the slot of a call without an outcome is in use");
            return;
        }
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
        let all = std::mem::take(&mut *self.dropped.borrow_mut());
        for forgotten in all {
            match forgotten {
                Forgotten::Call(key) => {
                    let (slot, more) = self.calls.forget(key);
                    self.unasked = self.unasked.saturating_sub(u32::from(more));
                    if let Some(slot) = slot {
                        self.detach(slot.index as usize);
                    }
                }
                Forgotten::Parts(stream, epoch) if epoch == self.epoch() => {
                    self.unwanted.push(stream);
                }
                Forgotten::Parts(..) | Forgotten::Unsent => {}
            }
        }
        self.settle();
        self.send_unwanted();
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
        // What is here as a whole is not lost with what came behind it.
        self.settle();
        let lost = self.look_behind(lost);
        if matches!(lost, Lost::Drained) {
            self.take_last();
        }
        self.fail_with(Arc::new(lost));
    }

    /// What really ended the connection: work also fails because the server has stopped, and then it has said so before.
    fn look_behind(&mut self, lost: Lost) -> Lost {
        match lost {
            Lost::Goodbye(Goodbye::Drained) => Lost::Drained,
            Lost::Work { .. } | Lost::Post { .. } | Lost::Verbs(_) if self.link.is_some() => {
                match self.control.check() {
                    _ if self.drained => Lost::Drained,
                    Err(Lost::Goodbye(Goodbye::Drained)) => Lost::Drained,
                    _ => lost,
                }
            }
            lost => lost,
        }
    }

    /// Takes in what came before the server's last word: what it has answered, it has executed. Completions of work that failed since can lie before it.
    fn take_last(&mut self) {
        for _ in 0..self.last_passes() {
            while let Some(completion) = self.batch.pop() {
                let _ = self.dispatch(completion);
            }
            if !matches!(self.cq.poll_into(&mut self.batch), Ok(1..)) {
                break;
            }
        }
        // Of some there are none.
        if self.link.as_ref().is_some_and(Link::polls) {
            for _ in 0..self.last_passes() {
                if !matches!(self.look_into_ring(1), Ok(1..)) {
                    break;
                }
            }
        }
        self.settle();
    }

    /// How often to look, at most, for what came before the end: enough for an answer to each request that is on its way. A peer that goes on sending
    /// does not keep the caller, who has a deadline.
    pub(super) fn last_passes(&self) -> u32 {
        /// Of messages in a pass, which takes in several times as many if they are there.
        const FEW: u32 = 8;
        4 + self.slots.in_use() / FEW
    }

    /// Ends the connection.
    pub(super) fn fail_with(&mut self, lost: Arc<Lost>) {
        let Some(link) = self.link.take() else {
            return;
        };
        self.untold = true;
        self.recorder.rnr += link.rnr();
        let pending = self.slots.in_use();
        event!(INFO, peer = %self.peer, pending, why = %lost, "the connection has ended");
        if !matches!(*lost, Lost::Gone(_) | Lost::Goodbye(_)) {
            self.control.goodbye(match *lost {
                // The server knows.
                Lost::Drained => Goodbye::Closing,
                _ => lost.goodbye(),
            });
        }
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
        let posted = link.destroy();
        if matches!(self.lost.as_deref(), Some(Lost::Drained)) {
            self.give_back(posted);
        }
        while self.batch.pop().is_some() {}
        self.transfers.clear();
        if let Some(fetcher) = &mut self.fetcher {
            fetcher.clear();
        }
        self.freed.clear();
        // They went with the connection.
        self.unwanted.clear();
        self.flights.fill_with(Flight::default);
    }
}

impl Client {
    /// What the server has not answered although it is done, it has not started: these calls never happened. The queue pair is gone.
    fn give_back(&mut self, posted: Vec<Posted>) {
        for posted in posted {
            if let Posted::Message(message) = posted
                && let Some(slot) = message.owner
                && let Some(flight) = self.flights.get_mut(slot.index as usize)
            {
                flight.sent = message.body;
            }
        }
        for flight in &mut self.flights {
            // What has been answered was started.
            let Some(key) = flight.call.take_if(|_| flight.answer.is_none()) else {
                continue;
            };
            let flight = std::mem::take(flight);
            let restore = || Some(flight.held.restore(flight.sent));
            let segments = flight.given.or_segments(restore);
            let buffers = Buffers::new(segments, flight.destination);
            let error = CallError::not_sent(NotSentReason::Stopping, buffers);
            self.recorder.failed += 1;
            self.calls.end(key, Err(error));
        }
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
