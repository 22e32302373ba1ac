//! The short way of batches of small requests: plain bytes out, as in `small.rs`, and one doorbell for all of them.
//!
//! The bytes are copied behind room for their headers, and nothing else is made ready; the device copies them while it is posted. A batch is so as a
//! whole, or not at all: what is not small turns those before it into ordinary ones.

use super::Client;
use crate::clock::Moment;
use crate::deadline::Deadline;
use crate::error::{Buffers, CallError, NotSentReason};
use crate::names::Method;
use crate::wire::{HEADER_LEN, Header, Kind, SlotId};

/// Small requests that are to be posted together. The memory stays for the next ones.
#[derive(Default)]
pub(super) struct SmallBatch {
    requests: Vec<Small>,
    /// Of each, room for its header and its bytes.
    messages: Vec<u8>,
    /// How many more there is surely room for.
    left: u32,
}

struct Small {
    method: Method,
    deadline: Deadline,
    /// Of the message.
    len: usize,
}

impl SmallBatch {
    pub fn clear(&mut self) {
        self.requests.clear();
        self.messages.clear();
        self.left = 0;
    }

    #[inline]
    pub fn len(&self) -> usize {
        self.requests.len()
    }

    /// Nobody knows any more how many others there is room for.
    pub fn look_again(&mut self) {
        self.left = 0;
    }

    /// Method, deadline and bytes of each.
    pub fn each(&self) -> impl Iterator<Item = (Method, Deadline, &[u8])> {
        let mut rest = &self.messages[..];
        self.requests.iter().map(move |small| {
            let (message, behind) = rest.split_at_checked(small.len).unwrap_or_default();
            rest = behind;
            let bytes = message.get(HEADER_LEN..).unwrap_or_default();
            (small.method, small.deadline, bytes)
        })
    }
}

impl Client {
    /// Adds a request to the batch, if it and all others in it are small; false if it is no case for that, or there is no room.
    #[inline]
    pub(super) fn add_small(&mut self, method: Method, bytes: &[u8], deadline: Deadline) -> bool {
        let Some(link) = &self.link else {
            return false;
        };
        if !self.batched.items.is_empty()
            || link.copies().is_none_or(|most| bytes.len() > most)
            || deadline.is_past_at(Moment::now())
        {
            return false;
        }
        let len = HEADER_LEN + bytes.len();
        let taken = link.room_of(len);
        if self.batched.small.left == 0 {
            self.batched.small.left = self.room_in_batch() as u32;
            // It may have made progress, and so learnt that the connection is over.
            if self.batched.small.left == 0 || self.link.is_none() || self.draining {
                self.batched.small.left = 0;
                return false;
            }
        }
        let small = &mut self.batched.small;
        // Nothing else is sent before the batch is posted, and none takes more room than the longest, which was counted.
        small.left -= 1;
        small.messages.extend_from_slice(&[0; HEADER_LEN]);
        small.messages.extend_from_slice(bytes);
        small.requests.push(Small {
            method,
            deadline,
            len,
        });
        self.batched.bytes += taken;
        true
    }

    /// Posts all of them; the keys of their calls, in order.
    pub(super) fn post_small_batch(&mut self, small: &mut SmallBatch, keys: &mut Vec<usize>) {
        self.quick = false;
        self.recorder.batches += u64::from(self.link.is_some());
        let now = Moment::now();
        let covered = match &mut self.link {
            Some(link) => link.cover(self.slots.in_use() + small.len() as u32),
            None => Ok(()),
        };
        if let Err(lost) = covered {
            self.fail(lost);
        }
        let Some(link) = &mut self.link else {
            return self.small_not_sent(small, keys, |client| client.closed());
        };
        if self.slots.free() < small.len() as u32 {
            // Their number was looked at when each was added, and nothing takes slots meanwhile.
            debug_assert!(false, "no slot for a request of a batch");
            return self.small_not_sent(small, keys, |_| NotSentReason::Full);
        }
        let (slots, calls, flights) = (&mut self.slots, &mut self.calls, &mut self.flights);
        let (unreleased, recorder) = (&mut self.unreleased, &mut self.recorder);
        let fetcher = &mut self.fetcher;
        let mut rest = &mut small.messages[..];
        let requests = small.requests.iter().map(|small| {
            let (message, behind) = std::mem::take(&mut rest)
                .split_at_mut_checked(small.len)
                .unwrap_or_default();
            rest = behind;
            // There are enough.
            let slot = slots.acquire_sent().unwrap_or_default();
            if !unreleased.is_empty() {
                unreleased.reused(slot.index);
            }
            let mut header = Header::new(Kind::Request);
            header.method = small.method.0;
            header.slot = slot;
            header.remaining_us = small.deadline.to_wire(now);
            if let Some(fetcher) = fetcher {
                header.code = fetcher.policy.units();
                if header.code != 0 {
                    fetcher.expect(slot, (header.code, false), now, small.deadline);
                }
            }
            let key = calls.begin(now, small.deadline, slot);
            keys.push(key);
            let flight = &mut flights[slot.index as usize];
            flight.small = true;
            flight.parts = None;
            flight.deadline = (!small.deadline.is_never()).then_some(small.deadline);
            flight.call = Some(key);
            recorder.calls += 1;
            recorder.batched += 1;
            recorder.bytes_sent += (small.len - HEADER_LEN) as u64;
            (header, message)
        });
        if let Err(several) = link.post_copies(requests) {
            self.post_failed(keys, several);
        }
        small.clear();
    }

    /// None of them was sent.
    #[cold]
    fn small_not_sent(
        &mut self,
        small: &mut SmallBatch,
        keys: &mut Vec<usize>,
        why: impl Fn(&Client) -> NotSentReason,
    ) {
        let now = Moment::now();
        for (_, deadline, _) in small.each() {
            let key = self.calls.begin(now, deadline, SlotId::default());
            let error = CallError::not_sent(why(self), Buffers::default());
            self.calls.end(key, Err(error));
            keys.push(key);
        }
        small.clear();
    }
}
