//! Looking after work that waits.

use super::{Reason, SendQueue};
use crate::qp::QpCore;
use crate::transfer::Mover;
use core::sync::atomic::Ordering;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How often waiting work is tried again whose peer gives no notice.
const TICK: Duration = Duration::from_millis(1);
/// And if the peer does give notice.
const IDLE: Duration = Duration::from_millis(50);

impl QpCore {
    /// Looks after waiting work: called by polls, and by the watcher.
    pub fn attend(self: &Arc<Self>) {
        if let Some(mut sq) = self.send.try_lock() {
            self.attend_locked(&mut sq);
        }
    }

    /// As [`attend`](Self::attend), and tells after how long to look again; `None` if nothing waits.
    pub fn attend_and_wait(self: &Arc<Self>) -> Option<Duration> {
        let waiting = {
            let mut sq = self.send.lock();
            self.attend_locked(&mut sq);
            (sq.is_pending() && self.state().sends())
                .then_some(sq.waiting)
                .flatten()
        };
        if self.unquiet.load(Ordering::Acquire) {
            let producing = self.producing();
            if producing.is_some_and(|p| p.is_busy()) {
                return Some(TICK);
            }
            self.unquiet.store(false, Ordering::Release);
            self.recv_cq.wake_own(true);
        }
        if !self.attend_shared() || self.mail_is_blocked() {
            return Some(TICK);
        }
        let waiting = waiting?;
        let left = waiting.until.map_or(IDLE, |until| {
            until
                .saturating_duration_since(Instant::now())
                .max(Duration::from_micros(10))
        });
        Some(
            if matches!(waiting.reason, Reason::Peer | Reason::Delayed) {
                left.min(TICK)
            } else {
                left
            },
        )
    }

    pub(crate) fn attend_locked(self: &Arc<Self>, sq: &mut SendQueue) {
        if self.peer_says_fatal() && self.state().sends() {
            self.fail();
        }
        let Some(helper) = self.helper.as_ref().filter(|_| self.state().sends()) else {
            sq.progress(self, &mut Mover::Now, usize::MAX);
            return;
        };
        // Work that has not been begun is the helper's; what waits is tried here, where deadlines are looked at.
        if sq.waiting.is_some() {
            sq.progress(self, &mut Mover::Now, 1);
        }
        if sq.may_go_on() && sq.waiting.is_none() {
            helper.enqueue(self);
        }
        sq.tell_drained(self);
    }
}
