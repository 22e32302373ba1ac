//! One connection on its core: requests in, bodies pulled, handlers run.
//!
//! Normal operation. A request that is whole is handled right where it arrived, in its receive entry
//! or the link's copy, which is given back afterwards. One whose body stayed with the client is
//! pulled: what it arrived in is given back at once, the pieces are READ into one private buffer, a slice at a time, and the handler
//! runs when the last has arrived. Answers are posted by `respond.rs`. What an answer leaves for the
//! client to READ stays with the slot until the client uses the slot again, or releases it.
//!
//! Failure. Any error ends the connection: [`Conn::destroy`] takes the queue pair down before it
//! frees what slots hold. Answers to requests of a connection that is gone are dropped.

use super::books::ConnBook;
use super::core::{Host, Job};
use super::guard::Charge;
use super::peers::Ticket;
use super::request::Request;
use super::responder::{ConnId, Responder, Response, What};
use super::stream::Stream;
use crate::clock::Moment;
use crate::control::Control;
use crate::credit::Class;
use crate::deadline::Deadline;
use crate::destination::Room;
use crate::error::{Lost, Violation};
use crate::handshake::ReplyPath;
use crate::link::{Link, SMALL, Sent};
use crate::names::{Code, Method};
use crate::outgoing::Held;
use crate::shelf::Shelf;
use crate::slot::SlotError;
use crate::trace::event;
use crate::transfer::Transfer;
use crate::turns::Turns;
use crate::wire::{Header, Kind, PieceList, SlotId, decode_release};
use mempool::AllocError;
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use verbs::Completion;

/// Most messages that are taken out of a ring before others have their turn.
const LOOKS_MAX: usize = 16;

pub(super) struct Conn {
    pub(super) id: ConnId,
    pub(super) link: Link,
    pub(super) control: Control,
    /// Where answers are left that the client fetches.
    pub(super) shelf: Option<Shelf>,
    pub(super) slots: Vec<Slot>,
    /// Answers for which there was no room in the send queue, or no memory.
    pub(super) unsent: VecDeque<Response>,
    /// Whether the core has it on its list of connections with something to do.
    pub(super) listed: bool,
    /// Whether the core has it on its list of connections with receive entries to post.
    pub(super) late: bool,
    /// Whether its ring has to be looked into: it is polled, and the connection does not sleep.
    pub(super) awake: bool,
    /// Whether something was there since it was asked last.
    pub(super) heard: bool,
    /// Whether something has to be looked at before a request is taken: see `guard.rs`.
    pub(super) guarded: bool,
    /// Whether the client has been told that the server is stopping.
    pub(super) told: bool,
    /// Replies that are given in parts.
    pub(super) streams: Vec<Rc<Stream>>,
    /// What the connection counts as.
    pub(super) ticket: Ticket,
    /// Where it counts.
    pub(super) book: Arc<ConnBook>,
    pub(super) peer: SocketAddr,
    /// Slots with READs to post.
    transfers: Turns,
    /// Slots whose bodies have arrived, for `handle_pulled`.
    pulled: Vec<SlotId>,
}

/// A slot, on the side that answers.
#[derive(Default)]
pub(super) struct Slot {
    pub generation: u32,
    pub state: State,
    /// How much of the answer the client will READ first; 0 if it is to be pushed.
    pub fetch: u16,
    /// When the request arrived, where that is told.
    pub arrived: Option<Moment>,
    /// What the last answer left for the client to READ.
    pub held: Held,
    /// What the request in it counts as, and what is held, where that is counted.
    pub charge: Charge,
}

#[derive(Default)]
pub(super) enum State {
    /// Answered, or never used.
    #[default]
    Idle,
    /// The body is to be READ, into a buffer that is allocated when it is its turn.
    Waiting(Box<Waiting>),
    /// The body is being READ.
    Pulling(Box<Pull>),
    /// The handler has it, or has had it.
    Running,
}

impl State {
    /// Becomes another one. Mostly nothing is lost by that, which to find out here costs less than to call what drops it.
    #[inline(always)]
    pub fn become_now(&mut self, next: State) {
        match std::mem::replace(self, next) {
            State::Idle | State::Running => {}
            lost => drop(lost),
        }
    }
}

pub(super) struct Waiting {
    pieces: PieceList,
    /// Of the body.
    len: u64,
    method: Method,
    deadline: Deadline,
}

pub(super) struct Pull {
    transfer: Transfer,
    method: Method,
    deadline: Deadline,
}

impl Conn {
    pub fn new(
        id: ConnId,
        link: Link,
        shelf: Option<Shelf>,
        control: Control,
        (peer, ticket): (SocketAddr, Ticket),
        book: Arc<ConnBook>,
    ) -> Conn {
        let slots = link.terms().slots as usize;
        Conn {
            id,
            link,
            control,
            shelf,
            slots: std::iter::repeat_with(Slot::default).take(slots).collect(),
            unsent: VecDeque::new(),
            listed: false,
            late: false,
            awake: false,
            heard: false,
            guarded: false,
            told: false,
            ticket,
            book,
            streams: Vec::new(),
            peer,
            transfers: Turns::default(),
            pulled: Vec::new(),
        }
    }

    /// Whether it has something to do that no completion will remind of.
    #[inline]
    pub fn is_active(&self) -> bool {
        !self.transfers.is_empty() || !self.unsent.is_empty() || self.link.credits().must_return()
    }

    /// Takes a message in.
    #[inline]
    pub fn received<H>(&mut self, host: &mut Host<H>, completion: Completion) -> Result<(), Lost>
    where
        H: FnMut(Request<'_>, Responder),
    {
        if !self.link.received(completion)? {
            return Ok(());
        }
        self.message(host)
    }

    /// Takes messages out of the ring that nobody has told of; how many.
    pub fn look<H>(&mut self, host: &mut Host<H>) -> Result<usize, Lost>
    where
        H: FnMut(Request<'_>, Responder),
    {
        let mut found = 0;
        while self.awake && found < LOOKS_MAX && self.link.look()? {
            self.heard = true;
            found += 1;
            self.message(host)?;
        }
        Ok(found)
    }

    /// Takes in the message at hand.
    #[inline(always)]
    fn message<H>(&mut self, host: &mut Host<H>) -> Result<(), Lost>
    where
        H: FnMut(Request<'_>, Responder),
    {
        let mut header = Header::new(Kind::Credit);
        header.read(self.link.message())?;
        if header.kind == Kind::Request {
            self.link.account(Class::Request, header.credit)?;
            self.request(host, &header)
        } else {
            self.control_message(header)
        }
    }

    /// Takes in what is no request. The header is a copy: that of a request is never in memory.
    #[inline(never)]
    fn control_message(&mut self, header: Header) -> Result<(), Lost> {
        let class = match header.kind {
            Kind::Credit => Class::Credit,
            Kind::Release => Class::Control,
            _ => return Err(Violation::Kind.into()),
        };
        self.link.account(class, header.credit)?;
        if header.kind == Kind::Release {
            for index in decode_release(&header, self.link.message())? {
                let slot = self.slots.get_mut(index as usize);
                let slot = slot.ok_or(SlotError::Unknown(index))?;
                slot.held = Held::Nothing;
                slot.charge.let_go(&self.ticket);
            }
        }
        self.link.repost(class)
    }

    #[inline(always)]
    fn request<H>(&mut self, host: &mut Host<H>, header: &Header) -> Result<(), Lost>
    where
        H: FnMut(Request<'_>, Responder),
    {
        let (id, most) = (header.slot, self.link.terms().max_message);
        let slot = self
            .slots
            .get_mut(id.index as usize)
            .ok_or(SlotError::Unknown(id.index))?;
        if !matches!(slot.state, State::Idle) {
            return Err(Violation::SlotInUse(id.index).into());
        }
        // Generations only move forward; they wrap.
        if id.generation.wrapping_sub(slot.generation).cast_signed() <= 0 {
            return Err(SlotError::Generation {
                index: id.index,
                generation: id.generation,
            }
            .into());
        }
        if header.body_len > most {
            let len = header.body_len;
            return Err(Violation::TooLarge { len, most }.into());
        }
        slot.generation = id.generation;
        slot.state.become_now(State::Running);
        if self.shelf.is_some() {
            slot.fetch = header.code;
            // Only a client that can choose wants to know.
            if self.link.terms().reply_path == ReplyPath::Hybrid {
                slot.arrived = Some(*host.arrived.get_or_insert_with(Moment::now));
            }
        } else if header.code != 0 {
            return Err(Violation::NoShelf.into());
        }
        // The client has what the last answer left.
        if !slot.held.is_nothing() {
            slot.held = Held::Nothing;
            slot.charge.let_go(&self.ticket);
        }
        self.book.counters.bytes_received.add(header.body_len);

        let method = Method(header.method);
        // The rest of a reply can be unwanted before there is a first part, and be asked for by who makes it up.
        if (self.guarded || method.is_of_parts()) && !self.guard(host, header)? {
            return self.link.repost(Class::Request);
        }
        let deadline = match header.remaining_us {
            0 => Deadline::never(),
            us => {
                let arrived = match host.arrived {
                    Some(arrived) => arrived,
                    None => *host.arrived.insert(Moment::now()),
                };
                let deadline = Deadline::from_wire(us, arrived);
                if host.lateness.is_too_late(us, arrived, deadline) {
                    self.refuse_expired(host, id)?;
                    return self.link.repost(Class::Request);
                }
                deadline
            }
        };
        if header.pieces > 0 {
            let whole = self.pull(host, *header, method, deadline)?;
            self.link.repost(Class::Request)?;
            return if whole {
                self.handle_pulled(host)
            } else {
                Ok(())
            };
        }
        self.handle(host, id, (method, deadline), header.inline_start())?;
        self.link.repost(Class::Request)
    }

    /// Starts to bring in a body; true if nothing of it has to be READ.
    #[inline(never)]
    fn pull<H>(
        &mut self,
        host: &mut Host<H>,
        header: Header,
        method: Method,
        deadline: Deadline,
    ) -> Result<bool, Lost> {
        let message = self.link.message();
        let pieces = PieceList::decode(&header, message)?;
        let (slot, len) = (header.slot, header.body_len);
        if header.inline_len == 0 && len > 0 {
            let waiting = Waiting {
                pieces,
                len,
                method,
                deadline,
            };
            self.slots[slot.index as usize].state = State::Waiting(Box::new(waiting));
            self.transfers.add(slot, len);
            return Ok(false);
        }
        // Some of it is here, and goes to its place now: what it arrived in is given back.
        let inline = message.get(header.inline_start()..).unwrap_or_default();
        let room = match Room::alloc(&host.pool, len as usize) {
            Ok(room) => room,
            Err(error) => return self.refuse_memory(host, slot, &error).map(|()| false),
        };
        let transfer = start(room, pieces, inline, len)?;
        let (whole, left) = (transfer.is_done(), transfer.left());
        self.slots[slot.index as usize].state = State::Pulling(Box::new(Pull {
            transfer,
            method,
            deadline,
        }));
        if whole {
            self.pulled.push(slot);
        } else {
            self.transfers.add(slot, left);
        }
        Ok(whole)
    }

    /// Takes in what the device is done with.
    pub fn sent<H>(&mut self, host: &mut Host<H>, completion: Completion) -> Result<(), Lost>
    where
        H: FnMut(Request<'_>, Responder),
    {
        let (slots, pulled) = (&mut self.slots, &mut self.pulled);
        let mut frames = host.outbox.frames.borrow_mut();
        self.link.sent(completion, &mut frames, |sent| {
            if let Sent::Read(read) = sent {
                let slot = read.slot;
                // The slice goes first: it keeps the buffer busy.
                drop(read);
                if let State::Pulling(pull) = &mut slots[slot.index as usize].state {
                    pull.transfer.completed();
                    if pull.transfer.is_done() {
                        pulled.push(slot);
                    }
                }
            }
            Ok(())
        })?;
        // Handlers take some.
        drop(frames);
        if self.pulled.is_empty() {
            Ok(())
        } else {
            self.handle_pulled(host)
        }
    }

    /// Runs the handler for requests whose bodies have arrived.
    fn handle_pulled<H>(&mut self, host: &mut Host<H>) -> Result<(), Lost>
    where
        H: FnMut(Request<'_>, Responder),
    {
        while let Some(id) = self.pulled.pop() {
            let state = &mut self.slots[id.index as usize].state;
            let State::Pulling(pull) = std::mem::replace(state, State::Running) else {
                continue;
            };
            let Some(room) = pull.transfer.into_room() else {
                debug_assert!(false, "a READ is still out");
                continue;
            };
            if pull.deadline.is_past() {
                self.refuse_expired(host, id)?;
                continue;
            }
            host.pulled = Some(room);
            host.long = true;
            self.handle(host, id, (pull.method, pull.deadline), 0)?;
        }
        Ok(())
    }

    /// Runs the handler for what has been pulled, or else for the message at hand from `inline` on, and posts what it answers.
    #[inline(always)]
    fn handle<H>(
        &mut self,
        host: &mut Host<H>,
        slot: SlotId,
        (method, deadline): (Method, Deadline),
        inline: usize,
    ) -> Result<(), Lost>
    where
        H: FnMut(Request<'_>, Responder),
    {
        // What can leave at once need not wait in the outbox.
        let (small, medium) = match self.slots[slot.index as usize].fetch {
            0 => (self.link.small(), self.link.medium()),
            // No device has to copy it.
            _ => (Some(SMALL), None),
        };
        if self.unsent.is_empty() && self.link.may_post(Class::Answer) {
            host.outbox.expect(self.id, slot, small, medium);
        }
        self.book.counters.calls.add(1);
        host.run(&mut Job {
            conn: self.id,
            slot,
            method,
            deadline,
            inline_limit: self.link.terms().inline_limit,
            peer: &self.peer,
            inline: self.link.message().get(inline..).unwrap_or_default(),
        });
        self.answer_small(host, slot)?;
        if host.outbox.is_empty() {
            Ok(())
        } else {
            self.answer_own(host)
        }
    }

    fn refuse_memory<H>(
        &mut self,
        host: &mut Host<H>,
        slot: SlotId,
        error: &AllocError,
    ) -> Result<(), Lost> {
        self.book.counters.overloaded.add(1);
        event!(DEBUG, core = host.index, peer = %self.peer, why = %error, "a request was refused");
        self.refuse(host, slot, Code::OVERLOADED, error.to_string())
    }

    fn refuse_expired<H>(&mut self, host: &mut Host<H>, slot: SlotId) -> Result<(), Lost> {
        self.book.counters.expired.add(1);
        let why = "the caller's time was over before the request could be started";
        self.refuse(host, slot, Code::EXPIRED, why.to_owned())
    }

    /// Answers a request that is not started.
    pub(super) fn refuse<H>(
        &mut self,
        host: &mut Host<H>,
        slot: SlotId,
        code: Code,
        message: String,
    ) -> Result<(), Lost> {
        self.slots[slot.index as usize].charge.not_started();
        let response = Response {
            conn: self.id,
            slot,
            what: What::Error {
                started: false,
                code,
                message,
            },
        };
        self.respond(host, response)
    }

    /// Posts one READ, so that other requests get their turn in between.
    pub fn post_reads<H>(&mut self, host: &mut Host<H>) -> Result<usize, Lost> {
        while let Some(id) = self.transfers.next() {
            let alone = self.transfers.is_one() && !self.link.is_reading();
            let most = host.slices.most(host.settings.read_slice, alone);
            let Some(most) = self.link.room_to_read(most) else {
                break;
            };
            let state = &mut self.slots[id.index as usize].state;
            if let State::Waiting(waiting) = state {
                let Waiting {
                    pieces,
                    len,
                    method,
                    deadline,
                } = **waiting;
                if deadline.is_past() {
                    *state = State::Running;
                    self.transfers.took(0);
                    self.refuse_expired(host, id)?;
                    continue;
                }
                let room = match Room::alloc(&host.pool, len as usize) {
                    Ok(room) => room,
                    Err(error) => {
                        *state = State::Running;
                        self.transfers.took(0);
                        self.refuse_memory(host, id, &error)?;
                        continue;
                    }
                };
                let transfer = start(room, pieces, &[], len)?;
                *state = State::Pulling(Box::new(Pull {
                    transfer,
                    method,
                    deadline,
                }));
            }
            let State::Pulling(pull) = state else {
                self.transfers.took(0);
                continue;
            };
            let next = pull.transfer.next(most);
            // Off the list with its last READ: the slot may be used again when that completes.
            self.transfers.took(pull.transfer.left());
            if let Some((slice, source)) = next {
                host.slices.asked(source.len);
                self.link.read(slice, source, id)?;
                self.book.counters.reads.add(1);
                return Ok(1);
            }
        }
        Ok(0)
    }

    /// Whether requests have not been answered, or answers not been posted.
    pub fn is_busy(&self) -> bool {
        let idle = |slot: &Slot| matches!(slot.state, State::Idle);
        let done = |stream: &Rc<Stream>| stream.is_done();
        !self.unsent.is_empty() || !self.slots.iter().all(idle) || !self.streams.iter().all(done)
    }

    /// Takes the queue pair down, then frees everything.
    pub fn destroy(self) {
        let Conn {
            link,
            slots,
            unsent,
            shelf,
            ticket,
            streams,
            ..
        } = self;
        let first_parts = unsent.iter().filter_map(|response| match &response.what {
            What::Part(_, stream) => Some(stream),
            _ => None,
        });
        for stream in streams.iter().chain(first_parts) {
            stream.close();
        }
        drop(link.destroy());
        for mut slot in slots.iter().map(|slot| slot.charge) {
            slot.answered(&ticket);
            slot.let_go(&ticket);
        }
        drop((slots, unsent, shelf));
    }
}

/// A body of which the inline bytes are here.
fn start(room: Room, pieces: PieceList, inline: &[u8], len: u64) -> Result<Transfer, Lost> {
    // The pieces add up to the body, for which there is room.
    Transfer::new(room, pieces, inline).ok_or_else(|| Violation::TooLarge { len, most: len }.into())
}
