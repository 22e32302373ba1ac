//! Posting answers.
//!
//! An answer always has a credit: the client left room for it before it asked (I2). What it may have
//! to wait for is room in the send queue, or memory for a header; both return when the device is done
//! with earlier messages.

use super::conn::{Conn, Slot, State};
use super::core::Host;
use super::peers::PeerLimits;
use super::responder::{ROOM, Response, What};
use super::stream::Stream;
use crate::clock::Moment;
use crate::credit::Class;
use crate::error::Lost;
use crate::frame::copy;
use crate::names::Code;
use crate::outgoing::{Held, NotReady, Outgoing, Ready, Workshop, header_buf};
use crate::posted::Body;
use crate::shelf::ENTRY_HEAD;
use crate::wire::{HEADER_LEN, Header, Kind, SlotId};
use std::rc::Rc;

impl Conn {
    /// Posts the answers to this connection's own requests that its handler has just given.
    pub(super) fn answer_own<H>(&mut self, host: &mut Host<H>) -> Result<(), Lost> {
        // Usually one, and ours. Others are for the core to deliver.
        while let Some(response) = host.outbox.pop() {
            if response.conn != self.id {
                host.outbox.push(response);
                return Ok(());
            }
            self.respond(host, response)?;
        }
        Ok(())
    }

    /// Posts the small reply that the handler has just given to the request in `id`, if it has.
    #[inline]
    pub(super) fn answer_small<H>(&mut self, host: &mut Host<H>, id: SlotId) -> Result<(), Lost> {
        let Some((mut room, len)) = host.outbox.take_small() else {
            return self.answer_medium(host, id);
        };
        self.book.counters.bytes_sent.add((len - HEADER_LEN) as u64);
        if self.shelf.is_some() {
            self.shelve_small(id, &mut room, len)?;
        } else {
            // Here alone, and its address never taken: it goes from registers into the message.
            let mut header = Header::new(Kind::Reply);
            header.slot = id;
            let message = &mut room[ENTRY_HEAD..ENTRY_HEAD + len];
            self.link.post_small(Class::Answer, header, message)?;
        }
        self.slots[id.index as usize].state.become_now(State::Idle);
        if self.guarded {
            self.answered(host, id);
        }
        Ok(())
    }

    /// What an answer means for limits and times.
    fn answered<H>(&mut self, host: &Host<H>, id: SlotId) {
        let slot = &mut self.slots[id.index as usize];
        if let Some(since) = slot.charge.answered(&self.ticket)
            && let Some(times) = &host.book.times
        {
            times.record(Moment::now().ns_since(since));
        }
    }

    /// Posts the reply of medium length that the handler has just given to the request in `id`, if it has.
    #[inline(never)]
    fn answer_medium<H>(&mut self, host: &mut Host<H>, id: SlotId) -> Result<(), Lost> {
        let Some(frame) = host.outbox.take_frame() else {
            return Ok(());
        };
        let len = frame.len() - HEADER_LEN;
        self.book.counters.bytes_sent.add(len as u64);
        let mut header = Header::new(Kind::Reply);
        header.slot = id;
        let slot = &mut self.slots[id.index as usize];
        slot.state.become_now(State::Idle);
        if self.guarded {
            self.answered(host, id);
        }
        if self.shelf.is_some() {
            let slot = &self.slots[id.index as usize];
            header.remaining_us = self.served(slot);
        }
        self.link.post_frame(Class::Answer, header, frame)
    }

    /// Leaves a small reply for the client, or pushes it if it is to be pushed after all. Header and reply have `len` bytes.
    #[inline(never)]
    fn shelve_small(&mut self, id: SlotId, room: &mut [u8; ROOM], len: usize) -> Result<(), Lost> {
        let mut header = Header::new(Kind::Reply);
        header.slot = id;
        let slot = &self.slots[id.index as usize];
        let units = slot.fetch;
        header.remaining_us = self.served(slot);
        let message = &mut room[ENTRY_HEAD..ENTRY_HEAD + len];
        if units == 0 {
            return self.link.post_small(Class::Answer, header, message);
        }
        header.credit = self.link.shelve();
        header.inline_len = (len - HEADER_LEN) as u32;
        header.body_len = (len - HEADER_LEN) as u64;
        if let Some(front) = message.first_chunk_mut() {
            header.encode(front);
        }
        if let Some(shelf) = &self.shelf {
            shelf.publish_entry(header.slot.index, header.slot.generation, room, len, units);
        }
        Ok(())
    }

    /// How long a request has been here, as it travels in an answer: in nanoseconds, where the client wants to know.
    #[inline]
    fn served(&self, slot: &Slot) -> u32 {
        let ns = slot.arrived.map_or(0, |at| Moment::now().ns_since(at));
        u32::try_from(ns).unwrap_or(u32::MAX)
    }

    /// Leaves an answer for the client. What is in the message is copied; what stays here is for the client to READ as well.
    fn shelve(&mut self, mut header: Header, ready: &Ready, units: u16) {
        let len = ready.header.len() + ready.body.len();
        let Some(shelf) = &mut self.shelf else {
            return;
        };
        let Some(room) = shelf.room(len) else {
            debug_assert!(false, "longer than agreed upon");
            return;
        };
        header.credit = self.link.shelve();
        let (front, mut rest) = room.split_at_mut(ready.header.len());
        front.copy_from_slice(&ready.header);
        if let Some(front) = front.first_chunk_mut() {
            header.encode(front);
        }
        ready.body.each(|bytes| {
            let (place, left) = std::mem::take(&mut rest).split_at_mut(bytes.len());
            copy(bytes, place);
            rest = left;
        });
        shelf.publish(header.slot.index, header.slot.generation, len, units);
    }

    /// Posts an answer, or keeps it until there is room.
    pub(super) fn respond<H>(
        &mut self,
        host: &mut Host<H>,
        response: Response,
    ) -> Result<(), Lost> {
        if self.unsent.is_empty() && self.link.may_post(Class::Answer) {
            self.post_answer(host, response)?;
        } else {
            self.unsent.push_back(response);
        }
        if !self.unsent.is_empty() {
            self.book.counters.answer_stalls.add(1);
        }
        Ok(())
    }

    /// Posts answers that had to wait; how many.
    pub(super) fn flush<H>(&mut self, host: &mut Host<H>) -> Result<usize, Lost> {
        let mut posted = 0;
        while self.link.may_post(Class::Answer)
            && let Some(response) = self.unsent.pop_front()
        {
            let waiting = self.unsent.len();
            self.post_answer(host, response)?;
            if self.unsent.len() > waiting {
                // Back again, for want of memory.
                break;
            }
            posted += 1;
        }
        Ok(posted)
    }

    /// Whether credits are due that could be returned, but for want of memory.
    pub(super) fn owes_credits(&self) -> bool {
        self.link.credits().must_return() && self.link.may_post(Class::Credit)
    }

    /// Returns credits by themselves, when they are due and nothing else has taken them along.
    pub(super) fn return_credits<H>(&mut self, host: &mut Host<H>) -> Result<usize, Lost> {
        if !self.owes_credits() {
            return Ok(0);
        }
        let Ok(buf) = header_buf(&host.pool, 0) else {
            return Ok(0);
        };
        let header = Header::new(Kind::Credit);
        self.link
            .post(Class::Credit, header, buf, Body::Empty, None)?;
        Ok(1)
    }

    fn post_answer<H>(&mut self, host: &mut Host<H>, response: Response) -> Result<(), Lost> {
        let Response { slot: id, what, .. } = response;
        let slot = &self.slots[id.index as usize];
        if slot.generation != id.generation || !matches!(slot.state, State::Running) {
            debug_assert!(false, "answered twice");
            return Ok(());
        }
        let mut header = Header::new(Kind::Reply);
        header.slot = id;
        let mut stream = None;
        let made = match what {
            What::Part(outgoing, part_of) if self.has_stream(&host.settings.peer, &part_of) => {
                header.kind = Kind::Part;
                let made = self.make_reply(host, outgoing, &mut header);
                // It may have become an error, which is the end of it.
                stream = Some(part_of);
                made
            }
            What::Part(_, part_of) => {
                part_of.close();
                let message = "too many replies are being given in parts".to_owned();
                self.make_error(host, true, Code::OVERLOADED, message, &mut header)
            }
            What::Reply(outgoing) => self.make_reply(host, outgoing, &mut header),
            What::Bytes(bytes) => {
                let (pool, limit) = (&host.pool, self.link.terms().inline_limit);
                match Outgoing::take(&bytes[..], pool, limit, &mut host.copies) {
                    Ok(outgoing) => self.make_reply(host, outgoing, &mut header),
                    Err(_) => Err(What::Bytes(bytes)),
                }
            }
            What::Error {
                started,
                code,
                message,
            } => self.make_error(host, started, code, message, &mut header),
        };
        let ready = match made {
            Ok(ready) => ready,
            Err(what) => {
                let what = match (what, stream) {
                    (What::Reply(outgoing), Some(stream)) => What::Part(outgoing, stream),
                    (what, Some(stream)) => {
                        // An error instead of a part is the last there is.
                        stream.close();
                        what
                    }
                    (what, None) => what,
                };
                // No memory for a header; it returns when the device is done with other messages.
                self.unsent.push_front(Response {
                    conn: self.id,
                    slot: id,
                    what,
                });
                return Ok(());
            }
        };
        host.count_outbox();
        if let Some(stream) = stream
            && header.kind != Kind::Part
        {
            stream.close();
        }
        if matches!(header.kind, Kind::Reply | Kind::Part) {
            self.book.counters.bytes_sent.add(ready.body_len);
        } else {
            self.book.counters.failed.add(1);
        }
        ready.describe(&mut header);
        let slot = &self.slots[id.index as usize];
        header.remaining_us = self.served(slot);
        match slot.fetch {
            0 => {
                let owner = (!ready.body.is_empty()).then_some(id);
                self.link
                    .post(Class::Answer, header, ready.header, ready.body, owner)?;
            }
            units => self.shelve(header, &ready, units),
        }
        self.slots[id.index as usize].state = State::Idle;
        self.answered(host, id);
        let slot = &mut self.slots[id.index as usize];
        if ready.held.has_leases() {
            slot.held = ready.held;
            if host.settings.peer.meters() {
                slot.charge.keep(&self.ticket, ready.body_len);
            }
        }
        Ok(())
    }

    /// Whether this reply in parts is one of the connection's, as it becomes with its first part, unless there are too many.
    fn has_stream(&mut self, limits: &PeerLimits, stream: &Rc<Stream>) -> bool {
        if self.streams.iter().any(|known| Rc::ptr_eq(known, stream)) {
            return true;
        }
        self.streams.retain(|known| !known.is_done());
        let room = self.streams.len() < self.slots.len();
        if room {
            self.streams.push(Rc::clone(stream));
            if limits.bytes.is_some() {
                stream.count_by(self.ticket.meter());
            }
            // Requests for further parts are not for the handler.
            self.guarded = true;
        }
        room
    }

    /// A reply, or the error that takes its place; what cannot be made now comes back.
    fn make_reply<H>(
        &self,
        host: &mut Host<H>,
        outgoing: Outgoing,
        header: &mut Header,
    ) -> Result<Ready, What> {
        let most = self.link.terms().max_message;
        if outgoing.len() > most {
            let message = format!(
                "a reply of {} bytes, {most} were agreed upon",
                outgoing.len()
            );
            return self.make_error(host, true, Code::TOO_LARGE, message, header);
        }
        let mut workshop = Workshop {
            pool: &host.pool,
            pd: &host.pd,
            inline_limit: self.link.terms().inline_limit,
            max_sge: self.link.max_sge(),
            copies: &mut host.copies,
        };
        match workshop.prepare(outgoing) {
            Ok(ready) => Ok(ready),
            Err(NotReady::Memory(_, outgoing)) => Err(What::Reply(outgoing)),
            Err(NotReady::Register(error, _)) => {
                let message = format!("the reply could not be registered: {error}");
                self.make_error(host, true, Code::INTERNAL, message, header)
            }
        }
    }

    fn make_error<H>(
        &self,
        host: &mut Host<H>,
        started: bool,
        code: Code,
        message: String,
        header: &mut Header,
    ) -> Result<Ready, What> {
        let mut len = message.len().min(self.link.terms().inline_limit as usize);
        while !message.is_char_boundary(len) {
            len -= 1;
        }
        let Ok(mut buf) = header_buf(&host.pool, len) else {
            return Err(What::Error {
                started,
                code,
                message,
            });
        };
        buf[HEADER_LEN..].copy_from_slice(&message.as_bytes()[..len]);
        header.kind = if started {
            Kind::Error
        } else {
            Kind::NotStarted
        };
        header.code = code.0;
        Ok(Ready {
            header: buf,
            body: Body::Empty,
            held: Held::Nothing,
            inline_len: len as u32,
            body_len: len as u64,
            pieces: 0,
        })
    }
}
