//! Where messages arrive: in the memory of receive entries, or in the receive ring, with a completion or without.
//!
//! The message at hand, at most one, stays in here until its entry is posted again: what has just been written and is then moved costs
//! the processor more than the checks of a small message.

use super::poll::Polled;
use crate::credit::{CreditError, Credits};
use crate::error::{Lost, Violation};
use crate::kept::Kept;
use crate::posted::{NoMemory, Posted};
use crate::ring::span;
use mempool::{Buf, ExposedLease};
use std::hint::cold_path;
use verbs::{Completion, QueueId, Received, ReceivedBy, RecvQueue, SendQueue, WcError};

/// Which it is, is a byte of its own: to work it out from what a variant holds takes some instructions each time.
#[repr(u8)]
pub(super) enum Inbox {
    /// Messages are written into the ring; entries only say that they have been.
    Ring {
        queue: RecvQueue<NoMemory>,
        ring: ExposedLease,
        /// The message at hand, in memory that the peer cannot change.
        copy: Box<[u8]>,
        /// Its length.
        len: usize,
    },
    /// Each entry has memory for a message.
    Entries {
        queue: RecvQueue<Buf>,
        at_hand: Option<Received<Buf>>,
        /// What earlier messages arrived in, to be posted again.
        aside: Vec<Buf>,
    },
    /// Messages are written into the ring, and looked for there; entries are for wakes.
    Polled(Box<Polled>),
}

impl Inbox {
    #[inline]
    pub fn id(&self) -> QueueId {
        match self {
            Inbox::Entries { queue, .. } => queue.id(),
            Inbox::Ring { queue, .. } => queue.id(),
            Inbox::Polled(polled) => polled.queue.id(),
        }
    }

    /// Takes the message that has arrived; false if its completion belongs to nobody.
    #[inline(always)]
    pub fn take(&mut self, completion: Completion, credits: &mut Credits) -> Result<bool, Lost> {
        match self {
            Inbox::Entries { queue, at_hand, .. } => match queue.redeem(completion) {
                Ok(Ok(received)) => {
                    *at_hand = Some(received);
                    Ok(true)
                }
                Ok(Err(failed)) => Err(failure(failed.error())),
                Err(_) => Ok(false),
            },
            Inbox::Ring {
                queue,
                ring,
                copy,
                len,
            } => {
                let bytes = match queue.redeem(completion) {
                    Ok(Ok(received)) if received.by() == ReceivedBy::WriteWithImm => {
                        received.byte_len()
                    }
                    Ok(Ok(_)) => return Err(Violation::NotInRing.into()),
                    Ok(Err(failed)) => return Err(failure(failed.error())),
                    Err(_) => return Ok(false),
                };
                let offset = credits.find(bytes)?;
                *len = bytes as usize;
                // Whole granules: the last words come with the others. `find` has checked the length, and all offsets are in the ring.
                let out = copy.get_mut(..span(bytes.into()) as usize);
                match out.map(|out| ring.read_at(offset as usize, out)) {
                    Some(Ok(())) => Ok(true),
                    _ => Err(CreditError::Length(bytes.into()).into()),
                }
            }
            Inbox::Polled(polled) => {
                cold_path();
                woken(polled, completion).map(|()| false)
            }
        }
    }

    /// The message at hand.
    #[inline(always)]
    pub fn message(&self) -> &[u8] {
        match self {
            Inbox::Entries { at_hand, .. } => at_hand.as_ref().map_or(&[], Received::bytes),
            Inbox::Ring { copy, len, .. } => copy.get(..*len).unwrap_or_default(),
            Inbox::Polled(polled) => {
                cold_path();
                polled.message()
            }
        }
    }

    /// The message at hand from an offset on, without another copy, if that is worth it; it is not at hand any more then.
    pub fn keep(&mut self, from: usize) -> Option<Kept> {
        match self {
            Inbox::Entries { .. } | Inbox::Polled(_) => None,
            Inbox::Ring { copy, len, .. } => {
                let kept = Kept::take(copy, from..*len)?;
                *len = 0;
                Some(kept)
            }
        }
    }

    /// Whether messages come without completions, and so have no entries.
    #[inline]
    pub fn is_polled(&self) -> bool {
        matches!(self, Inbox::Polled(_))
    }

    /// The message at hand is over; its entry is posted again later, by [`post`](Self::post).
    #[inline(always)]
    pub fn set_aside(&mut self) {
        if let Inbox::Entries { at_hand, aside, .. } = self
            && let Some(received) = at_hand.take()
        {
            // Allocates for the first few.
            aside.push(received.into_inner());
        }
    }

    /// Posts the entry of the message at hand again, which is over.
    pub fn repost(&mut self) -> Result<(), Lost> {
        match self {
            Inbox::Entries { queue, at_hand, .. } => match at_hand.take() {
                Some(received) => queue
                    .post(received.into_inner())
                    .map_err(|e| not_posted(&e)),
                None => Ok(()),
            },
            Inbox::Ring { queue, .. } => queue.post(NoMemory).map_err(|e| not_posted(&e)),
            // It had none, and its place was cleared when it was copied out.
            Inbox::Polled(_) => Ok(()),
        }
    }

    /// Posts so many entries: those that were set aside.
    pub fn post(&mut self, count: u32) -> Result<(), Lost> {
        let posted = match self {
            Inbox::Entries { queue, aside, .. } => {
                debug_assert_eq!(aside.len(), count as usize);
                queue
                    .post_many(aside.drain(..))
                    .map_err(|e| not_posted(&e))?
            }
            Inbox::Ring { queue, .. } => queue
                .post_many((0..count).map(|_| NoMemory))
                .map_err(|e| not_posted(&e))?,
            // None is set aside.
            Inbox::Polled(_) => 0,
        };
        debug_assert_eq!(posted, count as usize);
        Ok(())
    }

    /// Destroys the queue pair, and frees what was received; what was in the send queue comes back.
    pub fn destroy(self, tx: SendQueue<Posted>) -> Vec<Posted> {
        // A queue pair that cannot be destroyed leaks its memory: the device may still use it.
        match self {
            Inbox::Entries {
                queue,
                at_hand,
                aside,
            } => {
                let posted = verbs::destroy(tx, queue).map(|(posted, _)| posted);
                drop((at_hand, aside));
                posted.unwrap_or_default()
            }
            Inbox::Ring { queue, ring, .. } => {
                let posted = verbs::destroy(tx, queue).map(|(posted, _)| posted);
                // Only now is the ring's key withdrawn.
                drop(ring);
                posted.unwrap_or_default()
            }
            Inbox::Polled(polled) => {
                let Polled { queue, ring, .. } = *polled;
                let posted = verbs::destroy(tx, queue).map(|(posted, _)| posted);
                drop(ring);
                posted.unwrap_or_default()
            }
        }
    }
}

/// Takes in the completion of a wake.
#[cold]
fn woken(polled: &mut Polled, completion: Completion) -> Result<(), Lost> {
    match polled.queue.redeem(completion) {
        Ok(Ok(received)) if received.by() == ReceivedBy::Send && received.byte_len() == 0 => {
            polled.woken()
        }
        Ok(Ok(_)) => Err(Violation::NotInRing.into()),
        Ok(Err(failed)) => Err(failure(failed.error())),
        Err(_) => Ok(()),
    }
}

#[cold]
fn failure(error: WcError) -> Lost {
    Lost::Work {
        what: "a receive",
        error,
    }
}

#[cold]
pub(super) fn not_posted(error: &dyn std::fmt::Display) -> Lost {
    Lost::Post {
        what: "a receive entry",
        error: error.to_string(),
    }
}
