//! The short way of calls of medium length: requests that leave from a frame, and replies that come in one message.
//!
//! The request is copied into a frame, so its slot waits for the answer only, and what it was made of can be given back with that. Whatever is not as usual is
//! left to `submit.rs` and `progress.rs`, before anything has happened.

use super::Client;
use super::reply::{Bytes, Reply};
use super::small_reply::SmallReply;
use crate::clock::Moment;
use crate::credit::Class;
use crate::deadline::Deadline;
use crate::error::{Buffers, CallError, Lost};
use crate::frame::{copy as copy_into, copy_segments};
use crate::names::Method;
use crate::wire::{Header, Kind};
use mempool::SgList;

impl Client {
    /// Sends a request of medium length; the key of its call. `None` if this is no case for it, or the connection has just broken.
    #[inline(never)]
    pub(super) fn start_medium(
        &mut self,
        method: Method,
        payload: &[u8],
        deadline: Deadline,
    ) -> Option<usize> {
        self.start_framed(method, payload.len(), deadline, |room| {
            copy_into(payload, room);
        })
    }

    /// Sends a request of segments, which come back with the reply; the key of its call.
    #[inline(never)]
    pub(super) fn start_list(
        &mut self,
        method: Method,
        payload: SgList,
        deadline: Deadline,
    ) -> Result<usize, CallError> {
        let len = payload.len();
        let framed = self.start_framed(method, len, deadline, |room| {
            copy_segments(&payload, room);
        });
        let Some(key) = framed else {
            return self.start_into(method, payload, None, deadline);
        };
        if let Some(slot) = self.calls.get(key).map(|call| call.slot) {
            let flight = &mut self.flights[slot.index as usize];
            (flight.small, flight.medium) = (false, true);
            flight.given = Buffers::new(Some(payload), None);
        }
        Ok(key)
    }

    #[inline(always)]
    fn start_framed(
        &mut self,
        method: Method,
        len: usize,
        deadline: Deadline,
        fill: impl FnOnce(&mut [u8]),
    ) -> Option<usize> {
        let now = Moment::now();
        let link = self.link.as_mut()?;
        if link.medium().is_none_or(|most| len > most)
            || deadline.is_past_at(now)
            || !link.may_post(Class::Request)
            || !self.slots.has_free()
        {
            return None;
        }
        let mut frame = self.frames.take(&self.pool)?;
        fill(frame.payload(len)?);
        let slot = self.slots.acquire_sent()?;
        if !self.unreleased.is_empty() {
            self.unreleased.reused(slot.index);
        }
        let mut header = Header::new(Kind::Request);
        header.method = method.0;
        header.slot = slot;
        header.remaining_us = deadline.to_wire(now);
        if let Some(fetcher) = &self.fetcher {
            header.code = fetcher.policy.units();
        }
        let posted = link
            .cover(self.slots.in_use())
            .and_then(|()| link.post_frame(Class::Request, header, frame));
        if let Err(lost) = posted {
            let _ = self.slots.cancel(slot);
            self.fail(lost);
            return None;
        }
        if header.code != 0
            && let Some(fetcher) = &mut self.fetcher
        {
            fetcher.expect(slot, (header.code, false), now, deadline);
        }
        let key = self.calls.begin(now, deadline, slot);
        let flight = &mut self.flights[slot.index as usize];
        flight.small = true;
        flight.parts = None;
        flight.deadline = (!deadline.is_never()).then_some(deadline);
        flight.call = Some(key);
        self.recorder.calls += 1;
        self.recorder.bytes_sent += len as u64;
        Some(key)
    }

    /// Takes in the answer to a call of medium length, or of which the reply is, as [`end_small`](Self::end_small) does.
    #[inline(never)]
    pub(super) fn end_medium(
        &mut self,
        header: &Header,
        fetched: Option<&[u8]>,
    ) -> Result<bool, Lost> {
        let (Some(flight), Some(link)) = (
            self.flights.get_mut(header.slot.index as usize),
            &mut self.link,
        ) else {
            return Ok(false);
        };
        if !(flight.small || flight.medium)
            || header.kind != Kind::Reply
            || header.pieces > 0
            || header.body_len > link.terms().max_message
        {
            return Ok(false);
        }
        self.slots.answer_whole(header.slot)?;
        (flight.small, flight.medium) = (false, false);
        flight.deadline = None;
        let given = std::mem::take(&mut flight.given);
        // Nobody wants to know, perhaps.
        let Some(key) = flight.call.take() else {
            return Ok(true);
        };
        let Some(started) = self.calls.waits_since(key) else {
            return Ok(true);
        };
        let start = header.inline_start();
        let bytes = match fetched {
            Some(bytes) => copy(bytes, start, &self.pool),
            None => match link.keep(start) {
                Some(kept) => Bytes::Kept(kept),
                None => copy(link.message(), start, &self.pool),
            },
        };
        let reply = Reply::new(bytes, self.recorder.inline_limit, given);
        self.calls.end(key, Ok(reply));
        self.recorder.bytes_received += header.body_len;
        self.measure(started);
        Ok(true)
    }
}

/// A copy of a message from an offset on.
fn copy(message: &[u8], start: usize, pool: &mempool::Pool) -> Bytes {
    let bytes = message.get(start..).unwrap_or_default();
    match SmallReply::copy(bytes) {
        Some(small) => Bytes::Small(small),
        None => Bytes::copy(bytes, pool),
    }
}
