//! What comes back of a send queue.

use std::fmt;

use crate::completion::Words;
use crate::qp::Outcome;
use crate::ring::Ring;
use crate::{Completion, QueueId, SendQueue, Stale, Wc, WcError};

/// The right to take the buffers that a completion retired, with [`SendQueue::take`].
///
/// Not bound to the queue by a borrow, so that the queue can be used while taking. What an old token could take may have been
/// taken with a newer one; it then yields nothing.
#[derive(Debug)]
#[must_use = "take the buffers with SendQueue::take: until then their slots are in use"]
pub struct Done {
    queue: QueueId,
    /// The position in the ring behind the last.
    end: u64,
}

impl<T: Send + 'static, K> SendQueue<T, K> {
    /// Takes note of a completion: its work and all older work of this queue is done. The buffers are then taken with
    /// [`take`](Self::take).
    ///
    /// # Errors
    /// [`Stale`] when the completion does not belong to work in flight here; it can be had back from the error.
    #[inline(always)]
    pub fn retire(&mut self, completion: Completion) -> Result<Done, Stale> {
        let queue = self.half.id;
        if completion.cq() == self.half.cq
            && let Some(end) = self
                .half
                .ring()
                .retire(completion.wr_id(), completion.report())
        {
            return Ok(Done { queue, end });
        }
        Err(Stale { completion, queue })
    }

    /// As [`retire`](Self::retire) and [`take`](Self::take) in one: the buffers of the work that has completed, oldest first, each with how its
    /// work ended. Quicker than the two, since what the completion said is not kept: take them all, or know of the
    /// [rest](Redeemed) only whether it succeeded. Who leaves buffers for later and wants to know how much was read retires and takes.
    ///
    /// # Errors
    /// [`Stale`] when the completion does not belong to work in flight here; it can be had back from the error.
    #[inline(always)]
    pub fn redeem(&mut self, completion: Completion) -> Result<Redeemed<'_, T>, Stale> {
        let cq = self.half.cq;
        // All that is usual in one condition, and all else in one place, far away: so what of the completion is only looked at there is not even
        // read here.
        let unusual = completion.differs_from_success_on(cq)
            | self
                .half
                .ring_ref()
                .differs_from_settling(completion.wr_id());
        let wc = completion.success();
        let end = match unusual {
            0 => {
                self.half.ring().settle(completion.wr_id());
                None
            }
            _ => match self.retire_words(completion.into_words()) {
                Ok(done) => Some(done.end),
                Err(stale) => return Err(stale),
            },
        };
        let ring = self.half.ring();
        Ok(Redeemed { ring, wc, end })
    }

    /// A failure, or there is older work that waits to be taken, or it is not of this queue.
    #[cold]
    #[inline(never)]
    fn retire_words(&mut self, completion: Words) -> Result<Done, Stale> {
        self.retire(Completion::from_words(completion))
    }

    /// The next buffer that `done` covers, oldest first, and how its work ended; `None` when there is no more.
    ///
    /// Older work that was not signalled succeeded, since failures have completions of their own. But when the completion said
    /// [`WR_FLUSH_ERR`](crate::WcStatus::WR_FLUSH_ERR), something before it had failed or the queue pair was given up, and if the completion
    /// that told was dropped, nobody knows what it was: older work without a completion then ends like this one.
    #[inline(always)]
    pub fn take(&mut self, done: &mut Done) -> Option<(T, Result<Wc, WcError>)> {
        if done.queue != self.half.id {
            return None;
        }
        let (value, report) = self.half.ring().pop(done.end)?;
        Some((value, ended(report)))
    }

    /// Drops what `done` covers, oldest first, up to the first buffer that `which` does not name, or whose work has not succeeded. Quicker
    /// than [taking](Self::take) what nobody wants back.
    #[inline(always)]
    pub fn discard(&mut self, done: &Done, which: impl Fn(&T) -> bool) {
        if done.queue == self.half.id {
            self.half.ring().discard(done.end, |value, report| {
                report.is_none_or(|report| report.outcome().is_ok()) && which(value)
            });
        }
    }
}

/// The buffers of work that has completed, oldest first, each with how its work ended; made by [`SendQueue::redeem`].
///
/// What is not taken stays in the queue, and its slots in use. It comes with the next that is redeemed or retired, a failure as the failure that it was.
/// Of work that succeeded nothing else is known then: its [`Wc`] is that of work [without a completion of its own](Wc::signaled), whose
/// [length](Wc::byte_len) is 0, also that of a READ.
#[must_use = "take the buffers: until then their slots are in use"]
pub struct Redeemed<'q, T> {
    ring: &'q mut Ring<T, Outcome>,
    /// Of the last. All succeeded, and nothing was said of the others.
    wc: Wc,
    /// Where it was not so: the position behind the last. The ring knows what was said.
    end: Option<u64>,
}

/// How work ended of which a completion said this, or nothing.
#[inline(always)]
fn ended(report: Option<Outcome>) -> Result<Wc, WcError> {
    report.map_or(Ok(Wc::IMPLIED), |report| report.outcome())
}

impl<T> Iterator for Redeemed<'_, T> {
    type Item = (T, Result<Wc, WcError>);

    #[inline(always)]
    fn next(&mut self) -> Option<(T, Result<Wc, WcError>)> {
        let Some(end) = self.end else {
            let (value, last) = self.ring.take_oldest()?;
            return Some((value, Ok(if last { self.wc } else { Wc::IMPLIED })));
        };
        let (value, report) = self.ring.pop(end)?;
        Some((value, ended(report)))
    }
}

impl<T> fmt::Debug for Redeemed<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Redeemed").finish_non_exhaustive()
    }
}
