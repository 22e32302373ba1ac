//! Taking in completions and answers.

use super::Client;
use super::flight::Answer;
use super::reply::{Bytes, Reply};
use crate::clock::Moment;
use crate::credit::Class;
use crate::destination::Room;
use crate::error::{Buffers, CallError, Lost, NotSentReason, Violation};
use crate::link::{Link, Sent};
use crate::names::Code;
use crate::outgoing::header_buf;
use crate::posted::Body;
use crate::slices;
use crate::transfer::Transfer;
use crate::wire::{HEADER_LEN, Header, Kind, PieceList, SlotId, encode_release};
use verbs::Completion;

/// Once the server holds so much for us, it is told that we have it, without waiting for the next
/// request.
const RELEASE_AT: u64 = 64 << 10;

/// Most messages that are taken out of a ring before anything else has its turn.
const LOOKS_MAX: usize = 32;

impl Client {
    /// Takes in what has arrived and posts what can be posted; how much there was to do.
    ///
    /// A failure ends the connection, and so every call.
    #[inline]
    pub(super) fn progress(&mut self) -> usize {
        self.progress_polling(1)
    }

    /// The same, for who has nothing else to do: if there is nothing, looks again so many times in all.
    pub(super) fn progress_polling(&mut self, polls: u32) -> usize {
        self.forget_dropped();
        if self.link.is_none() {
            return 0;
        }
        let done = match self.try_progress(polls) {
            Ok(done) => done,
            Err(lost) => {
                self.fail(lost);
                1
            }
        };
        match done {
            0 => self.pace.pause(),
            _ => self.untold = true,
        }
        done
    }

    fn try_progress(&mut self, polls: u32) -> Result<usize, Lost> {
        let mut found = self.cq.poll_into(&mut self.batch)?;
        let unanswered = self.slots.in_use();
        if self.link.as_ref().is_some_and(Link::polls) {
            // Also beside other work: nobody else tells of what is there.
            found += self.look_into_ring(if found == 0 { polls } else { 1 })?;
        } else if found == 0 {
            // Nothing but looking, which finds what comes the sooner.
            let fetching = self.fetcher.as_ref().is_some_and(|f| f.is_waiting());
            let mut left = if self.transfers.is_empty() && !fetching {
                polls - 1
            } else {
                0
            };
            while found == 0 && left > 0 {
                found = self.cq.poll_into(&mut self.batch)?;
                left -= 1;
            }
            // What was left for such a moment.
            if found == 0
                && let Some(link) = &mut self.link
            {
                link.settle()?;
            }
        }
        self.arrived = None;
        let mut fetches = 0;
        while let Some(completion) = self.batch.pop() {
            self.dispatch(completion)?;
        }
        self.settle();
        if self.fetcher.is_some() {
            let landed = self.fetch_landed()?;
            fetches = self.post_fetches()?;
            found += landed + fetches;
        }
        if self.unreleased.bytes() >= RELEASE_AT {
            self.control(Kind::Release)?;
        }
        let posted = if self.transfers.is_empty() {
            0
        } else {
            // A slice can take a while: neither who waits for an answer that is here, nor one that may be here in a moment, is to wait for it.
            let ended = unanswered.saturating_sub(self.slots.in_use()) as usize;
            let urgent = fetches > 0 || ended > 0;
            if ended > std::mem::take(&mut self.long) {
                self.slices.interrupted();
            }
            match self.transfers.leave_out(urgent) {
                true => 0,
                // Only who waits polls more than once.
                false => self.post_reads(polls > 1)?,
            }
        };
        if let Some(link) = &self.link
            && link.credits().must_return()
        {
            self.control(Kind::Credit)?;
        }
        if self.draining && self.slots.in_use() == 0 && self.unasked == 0 {
            // All is here that the server will ever give.
            return Err(Lost::Drained);
        }
        Ok(found + posted)
    }

    /// Takes messages out of the ring that nobody has told of; looks so many times for the first.
    #[inline(never)]
    pub(super) fn look_into_ring(&mut self, polls: u32) -> Result<usize, Lost> {
        self.arrived = None;
        let mut found = 0;
        let mut left = polls;
        while let Some(link) = &mut self.link {
            if link.look()? {
                self.message()?;
                found += 1;
                left = 1;
                if found == LOOKS_MAX {
                    break;
                }
                continue;
            }
            left -= 1;
            if left == 0 {
                break;
            }
        }
        Ok(found)
    }

    /// The server takes no more requests.
    #[cold]
    fn set_draining(&mut self) {
        self.draining = true;
        if let Some(link) = &mut self.link {
            // The short ways are over: the other one looks whether requests are taken.
            link.no_copies();
        }
    }

    pub(super) fn dispatch(&mut self, completion: Completion) -> Result<(), Lost> {
        let Some(link) = &mut self.link else {
            return Ok(());
        };
        if completion.queue() == link.recv_id() {
            return if link.received(completion)? {
                self.message()
            } else {
                Ok(())
            };
        }
        let (slots, flights, freed) = (&mut self.slots, &mut self.flights, &mut self.freed);
        let fetcher = &mut self.fetcher;
        link.sent(completion, &mut self.frames, |sent| {
            match sent {
                Sent::Message(owner, body) => {
                    if let Some(slot) = owner {
                        flights[slot.index as usize].sent = body;
                        if slots.local_done(slot)? {
                            freed.push(slot);
                        }
                    }
                }
                Sent::Fetch(fetch) => {
                    if let Some(fetcher) = fetcher {
                        fetcher.landed.push(fetch);
                    }
                }
                Sent::Read(read) => {
                    let slot = read.slot;
                    // The slice goes first: it keeps the buffer busy.
                    drop(read);
                    if let Some(transfer) = &mut flights[slot.index as usize].transfer {
                        transfer.completed();
                        if transfer.is_done() && slots.fetched(slot)? {
                            freed.push(slot);
                        }
                    }
                }
            }
            Ok(())
        })
    }

    /// Takes in the message at hand.
    #[inline(always)]
    fn message(&mut self) -> Result<(), Lost> {
        let Some(link) = &mut self.link else {
            return Ok(());
        };
        let mut header = Header::new(Kind::Credit);
        header.read(link.message())?;
        if header.kind == Kind::Reply {
            link.account(Class::Answer, header.credit)?;
            if let Some(fetcher) = &mut self.fetcher {
                fetcher.policy.pushed(header.remaining_us);
            }
            if self.end_small(&header, None)? {
                return match &mut self.link {
                    Some(link) => link.repost(Class::Answer),
                    None => Ok(()),
                };
            }
        }
        self.other_message(header)
    }

    /// Takes in a message that does not end a small call with a reply. The header is a copy: that of a small reply is never in memory.
    #[inline(never)]
    fn other_message(&mut self, header: Header) -> Result<(), Lost> {
        let class = match header.kind {
            Kind::Reply | Kind::Error | Kind::NotStarted | Kind::Part => Class::Answer,
            Kind::Credit => Class::Credit,
            Kind::GoAway => {
                self.set_draining();
                Class::Control
            }
            Kind::Request | Kind::Release => return Err(Violation::Kind.into()),
        };
        let Some(link) = &mut self.link else {
            return Ok(());
        };
        if header.kind != Kind::Reply {
            link.account(class, header.credit)?;
        }
        let whole = class == Class::Answer && self.answer(&header, None)?;
        if let Some(link) = &mut self.link {
            link.repost(class)?;
        }
        if whole && self.slots.fetched(header.slot)? {
            self.freed.push(header.slot);
        }
        Ok(())
    }

    /// Takes an answer in, which is at hand or has been fetched; true if nothing of it has to be fetched any more.
    pub(super) fn answer(&mut self, header: &Header, fetched: Option<&[u8]>) -> Result<bool, Lost> {
        self.slots.answer(header.slot)?;
        let Some(link) = &self.link else {
            return Ok(true);
        };
        let most = link.terms().max_message;
        if header.body_len > most {
            let len = header.body_len;
            return Err(Violation::TooLarge { len, most }.into());
        }
        let bytes = match fetched {
            Some(bytes) => bytes,
            None => link.message(),
        };
        let inline = bytes.get(header.inline_start()..).unwrap_or_default();
        let is_reply = matches!(header.kind, Kind::Reply | Kind::Part);
        let flight = &mut self.flights[header.slot.index as usize];
        flight.more = header.kind == Kind::Part;
        if header.pieces > 0 {
            if !is_reply {
                return Err(Violation::Kind.into());
            }
            flight.leased = header.body_len;
        }
        if flight.call.is_none() {
            flight.answer = Some(Answer::Unwanted);
            return Ok(true);
        }
        if !is_reply {
            flight.answer = Some(Answer::Refused {
                started: header.kind == Kind::Error,
                code: Code(header.code),
                message: String::from_utf8_lossy(inline).into_owned(),
            });
            return Ok(true);
        }

        let len = header.body_len as usize;
        if let Some(room) = flight.destination.as_ref().map(|buf| buf.len())
            && room < len
        {
            flight.answer = Some(Answer::TooLarge {
                len: len as u64,
                room: room as u64,
            });
            return Ok(true);
        }
        if header.pieces == 0 {
            flight.answer = Some(Answer::Reply(match &mut flight.destination {
                Some(room) => {
                    // It fits: checked above.
                    room.write_at(0, inline);
                    Bytes::Destination(len)
                }
                None => Bytes::copy(inline, &self.pool),
            }));
            return Ok(true);
        }
        let pieces = PieceList::decode(header, bytes)?;
        let into = flight.destination.is_some();
        let room = match flight.destination.take() {
            Some(room) => room,
            None => match Room::alloc(&self.pool, len) {
                Ok(room) => room,
                Err(error) => {
                    let len = len as u64;
                    flight.answer = Some(Answer::NoMemory { len, error });
                    return Ok(true);
                }
            },
        };
        // The pieces add up to the body, which fits: checked above.
        let Some(transfer) = Transfer::new(room, pieces, inline) else {
            return Err(Violation::TooLarge {
                len: header.body_len,
                most,
            }
            .into());
        };
        let (whole, left) = (transfer.is_done(), transfer.left());
        flight.transfer = Some(Box::new(transfer));
        flight.answer = Some(Answer::Coming { len, into });
        if !whole {
            self.transfers.add(header.slot, left);
        }
        Ok(whole)
    }

    /// Posts one READ, if there is any, so that other things get their turn in between.
    ///
    /// Where there are none, because the caller `waits` for the only call that there is, it is a larger one.
    fn post_reads(&mut self, waits: bool) -> Result<usize, Lost> {
        let alone = waits && self.slots.in_use() == 1;
        let Some(link) = &mut self.link else {
            return Ok(0);
        };
        while let Some(slot) = self.transfers.next() {
            let Some(transfer) = &mut self.flights[slot.index as usize].transfer else {
                self.transfers.took(0);
                continue;
            };
            let slice = self.options.read_slice;
            // Not all of a body at once: between READs it is looked at deadlines, and at the control connection.
            let most = match alone {
                true => slice.saturating_mul(slices::longer(slice, transfer.left())),
                false => {
                    let alone = self.transfers.is_one() && !link.is_reading();
                    self.slices.most(slice, alone)
                }
            };
            let Some(most) = link.room_to_read(most) else {
                break;
            };
            let next = transfer.next(most);
            // Off the list with its last READ: the slot may be used again when that completes.
            self.transfers.took(transfer.left());
            if let Some((slice, source)) = next {
                self.slices.asked(source.len);
                link.read(slice, source, slot)?;
                self.recorder.reads += 1;
                return Ok(1);
            }
        }
        Ok(0)
    }

    /// Ends the calls whose slots have become free.
    pub(super) fn settle(&mut self) {
        if self.freed.is_empty() {
            return;
        }
        let now = Moment::now();
        while let Some(slot) = self.freed.pop() {
            self.end(slot, now);
        }
    }

    fn end(&mut self, slot: SlotId, now: Moment) {
        let flight = std::mem::take(&mut self.flights[slot.index as usize]);
        if flight.leased > 0 {
            // Only now is the reply here: the server may let go of it.
            self.unreleased.add(slot.index, flight.leased);
        }
        if flight.more && (flight.call.is_none() || flight.parts.is_none()) {
            // Nobody will ask for the rest.
            self.unwanted(flight.parts.unwrap_or(slot));
        }
        let Some(key) = flight.call else {
            return;
        };
        let Some(started) = self.calls.get(key).map(|call| call.started) else {
            return;
        };
        let segments = flight.given.or_segments(|| {
            let held = !flight.held.is_nothing() || !matches!(flight.sent, Body::Empty);
            held.then(|| flight.held.restore(flight.sent))
        });
        self.long += usize::from(flight.transfer.is_some());
        let mut destination = flight.destination;
        let inline_limit = self.recorder.inline_limit;
        let answer = flight.answer.unwrap_or(Answer::Unwanted);
        let bytes = match answer {
            Answer::Reply(bytes) => Ok(bytes),
            Answer::Coming { len, into } => {
                let room = flight.transfer.and_then(|t| t.into_room());
                debug_assert!(room.is_some(), "a READ is still out");
                if into {
                    destination = room;
                    Ok(Bytes::Destination(len))
                } else {
                    Ok(match room.map(Room::into_parts) {
                        None => Bytes::Empty,
                        Some(Ok(buf)) => Bytes::Buf(buf),
                        Some(Err(bufs)) => Bytes::Chunks(bufs),
                    })
                }
            }
            other => Err(other),
        };
        let buffers = Buffers::new(segments, destination);
        let outcome = match bytes {
            Ok(_) if flight.more && flight.parts.is_none() => Err(CallError::InParts { buffers }),
            Ok(bytes) => Ok(Reply::new(bytes, inline_limit, buffers).with_more(flight.more)),
            Err(Answer::TooLarge { len, room }) => {
                Err(CallError::ReplyTooLarge { len, room, buffers })
            }
            Err(Answer::NoMemory { len, error }) => Err(CallError::NoMemory {
                len,
                source: Box::new(error),
                buffers,
            }),
            Err(Answer::Refused {
                started,
                code,
                message,
            }) => Err(match code {
                Code::EXPIRED if !started => CallError::Expired,
                Code::STOPPING if !started => {
                    self.set_draining();
                    CallError::not_sent(NotSentReason::Stopping, buffers)
                }
                Code::OVERLOADED if !started => CallError::Overloaded { message, buffers },
                _ => CallError::Remote {
                    code,
                    message,
                    buffers,
                },
            }),
            Err(_) => Err(CallError::Expired),
        };
        match &outcome {
            Ok(reply) => {
                self.unasked += u32::from(reply.has_more());
                self.recorder.bytes_received += reply.len() as u64;
                match started {
                    Moment::NEVER => self.recorder.unmeasured += 1,
                    _ => self.recorder.latency.record(now.ns_since(started), 1),
                }
            }
            Err(_) => self.recorder.failed += 1,
        }
        self.calls.end(key, outcome);
    }

    /// Tells the server, before going to sleep, which replies it need not keep.
    pub(super) fn release(&mut self) -> Result<(), Lost> {
        if self.unreleased.is_empty() {
            return Ok(());
        }
        self.control(Kind::Release)
    }

    /// Sends a control message, if one may be sent now; if not, there will be another time.
    fn control(&mut self, kind: Kind) -> Result<(), Lost> {
        let class = match kind {
            Kind::Credit => Class::Credit,
            _ => Class::Control,
        };
        let Some(link) = &mut self.link else {
            return Ok(());
        };
        if !link.may_post(class) {
            return Ok(());
        }
        let mut header = Header::new(kind);
        let extra = match kind {
            Kind::Release => self.unreleased.bitmap_len(),
            _ => 0,
        };
        if let Some(most) = link.small()
            && extra <= most
        {
            let message = &mut self.scratch[..HEADER_LEN + extra];
            let len = match kind {
                Kind::Release => encode_release(self.unreleased.take(), &mut message[HEADER_LEN..]),
                _ => 0,
            };
            return link.post_small(class, header, &mut message[..HEADER_LEN + len]);
        }
        let mut buf = header_buf(&self.pool, extra).map_err(Lost::Memory)?;
        if kind == Kind::Release {
            let start = buf.len() - extra;
            let len = encode_release(self.unreleased.take(), &mut buf[start..]);
            buf.truncate(start + len);
            header.inline_len = len as u32;
            header.body_len = len as u64;
        }
        link.post(class, header, buf, Body::Empty, None)?;
        Ok(())
    }
}
