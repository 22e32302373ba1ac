//! The short way of small calls: plain bytes out, and a reply that comes in one message.
//!
//! The request is copied by the device while it is posted, so nothing of it stays here, and its slot waits for the answer only.
//! Such a call needs neither the workshop nor most of a flight. Whatever is not as usual is left to `submit.rs` and `progress.rs`, before anything
//! has happened.

use super::Client;
use super::small_reply::SmallReply;
use crate::clock::Moment;
use crate::credit::Class;
use crate::deadline::Deadline;
use crate::error::Lost;
use crate::names::Method;
use crate::payload::Payload;
use crate::wire::{HEADER_LEN, Header, Kind, SlotId};

impl Client {
    /// Sends a small request; the key of its call. `None` if this is no case for it, or the connection has just broken.
    ///
    /// Not inlined, and what it gives fits into registers: what is written to memory behind a post and read again at another width waits until the
    /// message has left the processor.
    #[inline(never)]
    pub(super) fn start_small(
        &mut self,
        method: Method,
        payload: &impl Payload,
        deadline: Deadline,
    ) -> Option<usize> {
        let payload = payload.as_bytes()?;
        let (slot, started) = match self.post_small(method, payload, deadline) {
            Ok(posted) => posted?,
            Err(lost) => {
                self.fail(lost);
                return None;
            }
        };
        let key = self.calls.begin(started, deadline, slot);
        self.flights[slot.index as usize].call = Some(key);
        Some(key)
    }

    /// Posts a small request: its slot, and when that was.
    #[inline(always)]
    fn post_small(
        &mut self,
        method: Method,
        payload: &[u8],
        deadline: Deadline,
    ) -> Result<Option<(SlotId, Moment)>, Lost> {
        // How long a READ takes is measured by it.
        let beside = self.slots.in_use() > 0 && self.fetcher.is_none();
        let (now, exact) = self.pace.now(beside, deadline);
        let Some(link) = &mut self.link else {
            return Ok(None);
        };
        if link.small().is_none_or(|most| payload.len() > most)
            || deadline.is_past_at(now)
            || !link.may_post(Class::Request)
        {
            return Ok(None);
        }
        let Some(slot) = self.slots.acquire_sent() else {
            return Ok(None);
        };
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
        let message = &mut self.scratch[..HEADER_LEN + payload.len()];
        message[HEADER_LEN..].copy_from_slice(payload);
        let posted = link
            .cover(self.slots.in_use())
            .and_then(|()| link.post_small(Class::Request, header, message));
        if let Err(lost) = posted {
            let _ = self.slots.cancel(slot);
            return Err(lost);
        }
        if header.code != 0
            && let Some(fetcher) = &mut self.fetcher
        {
            fetcher.expect(slot, (header.code, false), now, deadline);
        }
        let flight = &mut self.flights[slot.index as usize];
        flight.small = true;
        flight.parts = None;
        flight.deadline = (!deadline.is_never()).then_some(deadline);
        self.recorder.calls += 1;
        self.recorder.bytes_sent += payload.len() as u64;
        // Not to be measured, if that is not known.
        Ok(Some((slot, if exact { now } else { Moment::NEVER })))
    }

    /// Takes in the answer to a small call, which is at hand or has been fetched, if that is what it is and it is a whole reply; false if not.
    ///
    /// # Errors
    /// When the peer broke the rules.
    #[inline(always)]
    pub(super) fn end_small(
        &mut self,
        header: &Header,
        fetched: Option<&[u8]>,
    ) -> Result<bool, Lost> {
        let (Some(flight), Some(link)) =
            (self.flights.get_mut(header.slot.index as usize), &self.link)
        else {
            return Ok(false);
        };
        if !flight.small
            || header.kind != Kind::Reply
            || header.pieces > 0
            || header.body_len > SmallReply::MOST as u64
            || header.body_len > link.terms().max_message
        {
            return self.end_medium(header, fetched);
        }
        self.slots.answer_whole(header.slot)?;
        flight.small = false;
        flight.deadline = None;
        // Nobody wants to know, perhaps.
        let Some(key) = flight.call.take() else {
            return Ok(true);
        };
        let bytes = match fetched {
            Some(bytes) => bytes,
            None => link.message(),
        };
        let bytes = bytes.get(header.inline_start()..);
        if let Some(started) = self.calls.end_small(key, bytes.unwrap_or_default()) {
            self.recorder.bytes_received += header.body_len;
            self.measure(started);
        }
        Ok(true)
    }

    /// Notes how long a call took that has just ended, if it is one to be measured.
    #[inline(always)]
    pub(super) fn measure(&mut self, started: Moment) {
        if started == Moment::NEVER {
            self.recorder.unmeasured += 1;
        } else if !(self.quick && self.recorder.quick.skip()) {
            self.record(started);
        }
    }

    fn record(&mut self, started: Moment) {
        let now = match self.arrived {
            Some(now) => now,
            None => *self.arrived.insert(Moment::now()),
        };
        let count = match self.quick {
            true => self.recorder.quick.measured(),
            false => 1,
        };
        let count = count + std::mem::take(&mut self.recorder.unmeasured);
        self.recorder.latency.record(now.ns_since(started), count);
    }
}
