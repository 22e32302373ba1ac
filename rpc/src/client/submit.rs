//! Sending a request.

use super::Client;
use super::flight::Flight;
use crate::clock::Moment;
use crate::credit::Class;
use crate::deadline::Deadline;
use crate::destination::Room;
use crate::error::{Buffers, CallError, Lost, NotSentReason};
use crate::link::NotPosted;
use crate::names::Method;
use crate::outgoing::{NotReady, Outgoing, Ready, Workshop};
use crate::payload::Payload;
use crate::wire::{Header, Kind};
use mempool::SgList;
use std::sync::Arc;

/// Why a request was not sent, with its segments.
pub(super) type Unsent = Box<(NotSentReason, Option<SgList>)>;

pub(super) fn unsent(reason: NotSentReason, payload: Outgoing) -> Unsent {
    Box::new((reason, payload.into_list()))
}

impl Client {
    /// Sends a request whose reply goes to a buffer of the pool; the key of its call.
    #[inline(always)]
    pub(super) fn start(
        &mut self,
        method: Method,
        payload: impl Payload,
        deadline: Deadline,
    ) -> Result<usize, CallError> {
        match self.start_small(method, &payload, deadline) {
            Some(key) => Ok(key),
            None => self.start_longer(method, payload, deadline),
        }
    }

    #[inline(never)]
    fn start_longer(
        &mut self,
        method: Method,
        payload: impl Payload,
        deadline: Deadline,
    ) -> Result<usize, CallError> {
        let Some(bytes) = payload.as_bytes() else {
            return self.start_list(method, payload.into_segments(), deadline);
        };
        if let Some(key) = self.start_medium(method, bytes, deadline) {
            return Ok(key);
        }
        self.start_into(method, payload, None, deadline)
    }

    /// Sends a request; the key of its call.
    #[inline(never)]
    pub(super) fn start_into(
        &mut self,
        method: Method,
        payload: impl Payload,
        destination: Option<Room>,
        deadline: Deadline,
    ) -> Result<usize, CallError> {
        let mut destination = destination;
        self.try_start(method, payload, &mut destination, deadline)
            .map_err(|unsent| {
                let (reason, segments) = *unsent;
                CallError::not_sent(reason, Buffers::new(segments, destination))
            })
    }

    fn try_start(
        &mut self,
        method: Method,
        payload: impl Payload,
        destination: &mut Option<Room>,
        deadline: Deadline,
    ) -> Result<usize, Unsent> {
        // Of a reply in parts, which goes on until it ends, and with its connection.
        let goes_on = method.is_of_parts();
        if self.wants_redial()
            && !goes_on
            && let Err(reason) = self.reconnect(deadline)
        {
            let segments = payload.as_bytes().is_none();
            let segments = segments.then(|| payload.into_segments());
            return Err(Box::new((reason, segments)));
        }
        let mut outgoing = self.take_in(payload)?;
        let len = outgoing.len();
        while let Err(reason) = self.admit(deadline, goes_on) {
            if goes_on || !self.wants_redial() || deadline.is_past() {
                return Err(unsent(reason, outgoing));
            }
            // It ended while this one waited for others, which were sent.
            if let Err(reason) = self.reconnect(deadline) {
                return Err(unsent(reason, outgoing));
            }
            outgoing = self.fit(outgoing.under(self.recorder.inline_limit))?;
        }
        let now = Moment::now();
        if deadline.is_past_at(now) {
            return Err(unsent(NotSentReason::Deadline, outgoing));
        }
        let ready = self.make(outgoing)?;
        let Some(link) = &mut self.link else {
            return Err(Box::new((self.closed(), Some(ready.restore()))));
        };
        let Some(slot) = self.slots.acquire() else {
            // `admit` made sure that there is one.
            return Err(Box::new((NotSentReason::Deadline, Some(ready.restore()))));
        };
        self.unreleased.reused(slot.index);

        let mut header = Header::new(Kind::Request);
        header.method = method.0;
        header.slot = slot;
        header.remaining_us = deadline.to_wire(now);
        let units = self.fetcher.as_ref().map_or(0, |f| f.policy.units());
        header.code = units;
        ready.describe(&mut header);
        // What was copied is the header's own: nobody waits for it to come back.
        let owner = (!ready.body.is_empty()).then_some(slot);
        let posted = match link.cover(self.slots.in_use()) {
            Ok(()) => link.post(Class::Request, header, ready.header, ready.body, owner),
            Err(lost) => Err(NotPosted::before(lost, ready.body)),
        };
        if let Err(NotPosted { lost, body }) = posted {
            let _ = self.slots.cancel(slot);
            self.fail(lost);
            let segments = ready.held.restore(body);
            return Err(Box::new((self.closed(), Some(segments))));
        }
        if units != 0
            && let Some(fetcher) = &mut self.fetcher
        {
            fetcher.expect(slot, (units, header.pieces > 0), now, deadline);
        }
        if owner.is_none() {
            // Cannot free the slot: it has not been answered.
            let _ = self.slots.local_done(slot);
        }
        let key = self.calls.begin(now, deadline, slot);
        self.flights[slot.index as usize] = Flight {
            call: Some(key),
            deadline: (!deadline.is_never()).then_some(deadline),
            held: ready.held,
            destination: destination.take(),
            ..Flight::default()
        };
        self.recorder.calls += 1;
        self.recorder.bytes_sent += len;
        Ok(key)
    }

    /// Takes a payload that is not too long.
    pub(super) fn take_in(&mut self, payload: impl Payload) -> Result<Outgoing, Unsent> {
        let inline_limit = self.recorder.inline_limit;
        let copies = &mut self.recorder.copies;
        let outgoing = Outgoing::take(payload, &self.pool, inline_limit, copies)
            .map_err(|error| Box::new((error.into(), None)))?;
        self.fit(outgoing)
    }

    /// Takes what is not longer than agreed upon.
    fn fit(&self, outgoing: Outgoing) -> Result<Outgoing, Unsent> {
        let len = outgoing.len();
        match self.link.as_ref().map(|link| link.terms().max_message) {
            Some(most) if len > most => {
                Err(unsent(NotSentReason::TooLarge { len, most }, outgoing))
            }
            _ => Ok(outgoing),
        }
    }

    /// Makes a message of a payload.
    pub(super) fn make(&mut self, outgoing: Outgoing) -> Result<Ready, Unsent> {
        let Some(link) = &self.link else {
            return Err(unsent(self.closed(), outgoing));
        };
        let mut workshop = Workshop {
            pool: &self.pool,
            pd: &self.pd,
            inline_limit: self.recorder.inline_limit,
            max_sge: link.max_sge(),
            copies: &mut self.recorder.copies,
        };
        workshop.prepare(outgoing).map_err(|failed| match failed {
            NotReady::Memory(error, payload) => unsent(error.into(), payload),
            NotReady::Register(error, payload) => unsent(NotSentReason::Register(error), payload),
        })
    }

    /// Waits until there is a slot and a credit for one more request.
    ///
    /// A server that is stopping takes none, but those that `go_on` with what it has begun.
    fn admit(&mut self, deadline: Deadline, go_on: bool) -> Result<(), NotSentReason> {
        if self.draining && !go_on || self.link.is_none() {
            return Err(self.closed());
        }
        if self.may_send() {
            return Ok(());
        }
        self.recorder.stalls += 1;
        self.wait_until(deadline, |client| {
            client.link.is_none() || client.draining && !go_on || client.may_send()
        });
        if self.draining && !go_on || self.link.is_none() {
            Err(self.closed())
        } else if self.may_send() {
            Ok(())
        } else {
            Err(NotSentReason::Deadline)
        }
    }

    pub(super) fn may_send(&self) -> bool {
        self.slots.has_free()
            && self
                .link
                .as_ref()
                .is_some_and(|link| link.may_post(Class::Request))
    }

    /// Why nothing can be sent any more.
    pub(super) fn closed(&self) -> NotSentReason {
        match &self.lost {
            None if self.draining => NotSentReason::Stopping,
            None => NotSentReason::Closed(Arc::new(Lost::ClosedHere)),
            Some(lost) if matches!(**lost, Lost::Drained) => NotSentReason::Stopping,
            Some(lost) => NotSentReason::Closed(Arc::clone(lost)),
        }
    }
}
