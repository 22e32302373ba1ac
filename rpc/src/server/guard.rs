//! What is looked at before a request is taken, on connections where something has to be: limits, and whether the server is stopping.

use super::conn::Conn;
use super::core::Host;
use super::peers::Ticket;
use super::responder::{Response, What};
use crate::clock::Moment;
use crate::error::Lost;
use crate::names::{Code, Method};
use crate::outgoing::Outgoing;
use crate::posted::Body;
use crate::trace::event;
use crate::wire::{Header, SlotId};

/// What a slot counts as, of what its client's address may use.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Charge {
    /// Bytes of the request in it.
    request: Option<u64>,
    /// Bytes of a reply that the client is to READ.
    kept: u64,
    /// Since when the request has been here, where that is measured.
    since: Option<Moment>,
}

impl Charge {
    /// The request has been answered: since when it has been here, where that is measured.
    #[inline]
    pub fn answered(&mut self, ticket: &Ticket) -> Option<Moment> {
        if let Some(bytes) = self.request.take() {
            ticket.discharge(bytes);
        }
        self.since.take()
    }

    /// The request has not been started: how long it was here is not interesting.
    pub fn not_started(&mut self) {
        self.since = None;
    }

    /// A reply waits for the client.
    pub fn keep(&mut self, ticket: &Ticket, bytes: u64) {
        ticket.keep(bytes);
        self.kept += bytes;
    }

    /// It is gone.
    pub fn let_go(&mut self, ticket: &Ticket) {
        if self.kept > 0 {
            ticket.let_go(std::mem::take(&mut self.kept));
        }
    }
}

impl Conn {
    /// Whether a request is taken; if not, it has been answered. Its slot is in use, and nothing else has happened.
    #[inline(never)]
    pub(super) fn guard<H>(&mut self, host: &mut Host<H>, header: &Header) -> Result<bool, Lost> {
        let method = Method(header.method);
        if method.is_of_parts() {
            self.other_part(host, header, method)?;
            return Ok(false);
        }
        if host.stopping {
            self.book.counters.turned_away.add(1);
            let why = "the server is stopping".to_owned();
            self.refuse(host, header.slot, Code::STOPPING, why)?;
            return Ok(false);
        }
        if host.book.times.is_some() {
            let arrived = *host.arrived.get_or_insert_with(Moment::now);
            self.slots[header.slot.index as usize].charge.since = Some(arrived);
        }
        let limits = &host.settings.peer;
        if !limits.meters() {
            return Ok(true);
        }
        match self.ticket.charge(limits, header.body_len) {
            Ok(()) => {
                let slot = &mut self.slots[header.slot.index as usize];
                slot.charge.request = Some(header.body_len);
                Ok(true)
            }
            Err(why) => {
                self.book.counters.overloaded.add(1);
                event!(DEBUG, core = host.index, peer = %self.peer, why = %why, "a request was refused");
                self.refuse(host, header.slot, Code::OVERLOADED, why)?;
                Ok(false)
            }
        }
    }

    /// A request for the next part of a reply, or that says that there is to be none. These go on while the server is stopping.
    fn other_part<H>(
        &mut self,
        host: &mut Host<H>,
        header: &Header,
        method: Method,
    ) -> Result<(), Lost> {
        let name = self.link.message().get(header.inline_start()..);
        let name = name.and_then(|bytes| bytes.try_into().ok());
        let name = u64::from_le_bytes(name.unwrap_or_default());
        let id = SlotId {
            index: name as u32,
            generation: (name >> 32) as u32,
        };
        let found = self.streams.iter().position(|stream| stream.id == id);
        let error = |code, message: &str| What::Error {
            started: true,
            code,
            message: message.to_owned(),
        };
        let mut answers = Vec::new();
        match found {
            Some(at) if method == Method::NEXT_PART => {
                let stream = self.streams[at].clone();
                if let Some(what) = stream.ask(host, header.slot) {
                    answers.push((header.slot, what));
                }
                if stream.is_done() {
                    self.streams.retain(|known| known.id != id);
                }
            }
            Some(at) => {
                if let Some(parked) = self.streams.swap_remove(at).close() {
                    let why = "the rest of the reply is not wanted";
                    answers.push((parked, error(Code::UNANSWERED, why)));
                }
                let nothing = What::Reply(Outgoing::Segments(Body::Empty));
                answers.push((header.slot, nothing));
            }
            None => {
                let why = "no such reply is being given in parts";
                answers.push((header.slot, error(Code::NOT_FOUND, why)));
            }
        }
        for (slot, what) in answers {
            let conn = self.id;
            self.respond(host, Response { conn, slot, what })?;
        }
        Ok(())
    }
}
