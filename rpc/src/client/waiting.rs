//! Waiting for something to happen to the connection.

use super::small_reply::SmallReply;
use super::{Client, Reply};
use crate::bell::Rest;
use crate::clock::Moment;
use crate::deadline::Deadline;
use crate::error::{CallError, Lost};
use crate::handshake::Goodbye;
use crate::link::Link;
use crate::wait::{DOZE, Next, POLLS, sleep};
use std::os::fd::AsFd;
use std::time::Duration;

/// How often the control connection is looked at while there is no time to sleep on it.
const CONTROL_EVERY: Duration = Duration::from_micros(500);

/// Rounds with something to do, after which clock and control connection are looked at.
const BUSY_ROUNDS: u32 = 8;

impl Client {
    /// Waits for a call's outcome until its deadline; the outcome.
    #[inline(always)]
    pub(super) fn finish_call(&mut self, key: usize) -> Result<Reply, CallError> {
        match self.finish_small(key) {
            Some(small) => Ok(Reply::small(small, self.recorder.inline_limit)),
            None => self.take_other(key),
        }
    }

    /// Waits for a call's outcome until its deadline; the outcome, if it is a small reply. It fits into a register, so that the reply is put
    /// together where it is used.
    #[inline(never)]
    fn finish_small(&mut self, key: usize) -> Option<SmallReply> {
        self.wait_for(key);
        self.calls.take_small(key)
    }

    /// Waits for a call's outcome until its deadline.
    #[inline(always)]
    pub(super) fn wait_for(&mut self, key: usize) {
        if !self.has_outcome(key) {
            let deadline = self
                .calls
                .get(key)
                .map_or(Deadline::never(), |call| call.deadline);
            self.wait_until(deadline, |client| client.has_outcome(key));
        }
    }

    /// The outcome of a call that has not ended with a small reply, if it has ended.
    #[inline(never)]
    pub(super) fn take_other(&mut self, key: usize) -> Result<Reply, CallError> {
        self.calls.take(key).unwrap_or_else(|| {
            self.expire(key);
            Err(CallError::Expired)
        })
    }

    /// Makes progress until the condition holds or the deadline has passed.
    ///
    /// The condition must hold once the connection has ended.
    pub(super) fn wait_until(&mut self, deadline: Deadline, done: impl Fn(&Client) -> bool) {
        let mut busy = 0;
        loop {
            if self.progress_polling(POLLS) > 0 {
                self.waiter.found();
                if done(self) {
                    return;
                }
                busy += 1;
                if busy % BUSY_ROUNDS == 0 && self.look(deadline, Moment::now()) {
                    return;
                }
                continue;
            }
            if done(self) {
                return;
            }
            match self.waiter.idle() {
                Next::Poll => {}
                Next::Look(now) => {
                    if self.look(deadline, now) {
                        return;
                    }
                }
                Next::Sleep(now) => {
                    if self.look(deadline, now) {
                        return;
                    }
                    match self.sleep(deadline, now) {
                        Ok(false) => {}
                        Ok(true) => self.waiter.found(),
                        Err(lost) => self.fail(lost),
                    }
                    busy = 0;
                }
            }
        }
    }

    /// For those who do not wait: takes in what has arrived, and looks at the clock. Whether the call has an outcome, or its time is over.
    pub(super) fn poll_for(&mut self, key: usize) -> bool {
        self.progress();
        if self.has_outcome(key) {
            return true;
        }
        let deadline = self.calls.get(key).map(|call| call.deadline);
        let over = self.look(deadline.unwrap_or(Deadline::never()), Moment::now());
        // The look may have ended the connection.
        over || self.has_outcome(key)
    }

    /// The same without a call of its own: whether anything has arrived.
    pub(super) fn poll_all(&mut self) -> bool {
        let some = self.progress() > 0;
        if !some {
            self.look(Deadline::never(), Moment::now());
        }
        some
    }

    /// Looks at the clock and the control connection; true if the deadline has passed.
    pub(super) fn look(&mut self, deadline: Deadline, now: Moment) -> bool {
        self.quick = false;
        if now.since(self.control_checked) >= CONTROL_EVERY {
            self.control_checked = now;
            self.check_control();
            self.sweep(now);
        }
        deadline.is_past_at(now)
    }

    /// If the control connection has ended, so has this one; what has arrived still counts.
    pub(super) fn check_control(&mut self) {
        if self.link.is_some()
            && let Err(lost) = self.control.check()
        {
            // It is said once, and what comes in now may fail because of it.
            self.drained = matches!(lost, Lost::Goodbye(Goodbye::Drained));
            for _ in 0..self.last_passes() {
                if self.progress() == 0 {
                    break;
                }
            }
            self.fail(lost);
        }
    }

    /// Sleeps until something happens; false if it was just dozing, so that there is no reason to look for long.
    fn sleep(&mut self, deadline: Deadline, now: Moment) -> Result<bool, Lost> {
        let Some((doze, most)) = self.nod(now)? else {
            return Ok(true);
        };
        let timeout = deadline.remaining_at(now).into_iter().chain(most).min();
        let fds = [self.channel.as_fd(), self.control.as_fd()];
        let ready = sleep(&fds, timeout).map_err(|e| Lost::Gone(Some(e)))?;
        let mut done = 0;
        if ready & 1 != 0 {
            // What has come first, and then the system calls that make the descriptor quiet. Twice, as who waits does.
            done = self.progress_polling(2);
            self.channel.wait(Some(Duration::ZERO))?;
        }
        if ready & 2 != 0 {
            self.check_control();
        }
        Ok(!doze || done > 0)
    }

    /// Gets ready to sleep: what comes from now on wakes who waits for the channel or the control connection. Whether that is a doze, and for how long
    /// it may be at most; `None` if there is something to do.
    pub(super) fn nod(&mut self, now: Moment) -> Result<Option<(bool, Option<Duration>)>, Lost> {
        self.release()?;
        let doze = match &mut self.link {
            Some(link) if link.polls() => match link.tire()? {
                Rest::Asleep => None,
                Rest::Doze => Some(DOZE),
                _ => return Ok(None),
            },
            _ => None,
        };
        self.cq.arm(false)?;
        // What came before the queue was armed wakes nobody. Twice, as who waits does.
        if self.progress_polling(2) > 0 || self.link.is_none() {
            return Ok(None);
        }
        // Calls that were dropped become zombies when their time is over; that may end the wait.
        let sweep = self.next_sweep().and_then(|at| at.remaining_at(now));
        // With as many READs out as there may be, the completion of one comes first.
        let may_read = self.link.as_ref().is_some_and(Link::may_read);
        let due = self.fetcher.as_ref().filter(|_| may_read);
        let due = due.and_then(|f| f.due()).map(|due| due.since(now));
        let most = sweep.into_iter().chain(due).chain(doze).min();
        Ok(Some((doze.is_some(), most)))
    }
}
