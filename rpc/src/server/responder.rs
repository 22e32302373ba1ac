//! Answering requests.

use super::stream::Stream;
use crate::frame::{self, Frame, Frames, copy_segments};
use crate::link::SMALL;
use crate::names::Code;
use crate::outgoing::{Copies, Outgoing};
use crate::payload::Payload;
use crate::ring::span;
use crate::shelf::ENTRY_HEAD;
use crate::wire::{HEADER_LEN, SlotId};
use mempool::{Pool, SgList};
use std::cell::{Cell, RefCell, RefMut};
use std::collections::VecDeque;
use std::fmt;
use std::rc::Rc;

/// Where answers of one core wait to be posted.
pub(super) struct Outbox {
    /// The answer to the request whose handler is running, if it is small or of medium length.
    small: RefCell<Small>,
    /// For answers of medium length.
    pub frames: RefCell<Frames>,
    queue: RefCell<VecDeque<Response>>,
    pub pool: Pool,
    /// Copies made while taking payloads in.
    pub copies: Cell<Copies>,
    /// Times that what makes parts of a reply panicked.
    pub panics: Cell<u64>,
}

impl Outbox {
    pub fn new(pool: Pool) -> Outbox {
        Outbox {
            small: RefCell::default(),
            frames: RefCell::default(),
            queue: RefCell::new(VecDeque::with_capacity(64)),
            pool,
            copies: Cell::default(),
            panics: Cell::default(),
        }
    }

    /// The next reply to this request need not wait in the queue, if it is small: of at most `most` bytes; or if it takes a frame: of at most `medium` bytes.
    #[inline]
    pub fn expect(&self, conn: ConnId, slot: SlotId, most: Option<usize>, medium: Option<usize>) {
        let limit = |most: Option<usize>| most.map_or(0, |most| most + 1);
        let mut small = self.small.borrow_mut();
        small.of = Some((conn, slot));
        small.limit = limit(most).min(SMALL + 1);
        small.medium = limit(medium);
    }

    /// The reply of medium length, if there is one.
    #[inline]
    pub fn take_frame(&self) -> Option<Box<Frame>> {
        self.small.borrow_mut().frame.take()
    }

    /// Takes a reply in if it is the expected one and short enough; `fill` writes it.
    fn put_frame(
        &self,
        conn: ConnId,
        slot: SlotId,
        len: usize,
        fill: impl FnOnce(&mut [u8]),
    ) -> bool {
        let mut small = self.small.borrow_mut();
        if small.of != Some((conn, slot)) || len >= small.medium {
            return false;
        }
        let Some(mut frame) = self.frames.borrow_mut().take(&self.pool) else {
            return false;
        };
        let Some(room) = frame.payload(len) else {
            debug_assert!(false, "longer than a frame");
            return false;
        };
        fill(room);
        small.of = None;
        small.frame = Some(frame);
        true
    }

    /// The small reply, if there is one, behind room for a header, and behind that for the head of an entry of a shelf; and the length of header and reply.
    /// None is expected any more.
    #[inline]
    pub fn take_small(&self) -> Option<(RefMut<'_, [u8; ROOM]>, usize)> {
        let mut small = self.small.borrow_mut();
        small.of = None;
        let len = HEADER_LEN + small.len.take()?;
        Some((RefMut::map(small, |small| &mut small.message), len))
    }

    /// Takes a reply in if it is the expected one and small enough.
    #[inline]
    fn put_small(&self, conn: ConnId, slot: SlotId, bytes: &[u8]) -> bool {
        let mut small = self.small.borrow_mut();
        if small.of != Some((conn, slot)) || bytes.len() >= small.limit {
            return false;
        }
        small.of = None;
        small.len = Some(bytes.len());
        small.message[FRONT..FRONT + bytes.len()].copy_from_slice(bytes);
        true
    }

    #[inline(always)]
    pub fn is_empty(&self) -> bool {
        self.queue.borrow().is_empty()
    }

    pub fn pop(&self) -> Option<Response> {
        self.queue.borrow_mut().pop_front()
    }

    pub fn push(&self, response: Response) {
        self.queue.borrow_mut().push_back(response);
    }
}

/// A small reply on its way from the handler to the device, which copies it.
struct Small {
    /// Whose it is to be.
    of: Option<(ConnId, SlotId)>,
    /// It must be shorter.
    limit: usize,
    /// It must be shorter to go into a frame.
    medium: usize,
    /// Once it is there.
    len: Option<usize>,
    /// Once there is one that is not small.
    frame: Option<Box<Frame>>,
    /// It is written where it leaves from: behind room for its header.
    message: [u8; ROOM],
}

/// What precedes a small reply where it is put together.
const FRONT: usize = ENTRY_HEAD + HEADER_LEN;

/// Whole lines, as entries of a shelf are.
pub(super) const ROOM: usize = span((FRONT + SMALL) as u64) as usize;

impl Default for Small {
    fn default() -> Self {
        Small {
            of: None,
            limit: 0,
            medium: 0,
            len: None,
            frame: None,
            message: [0; ROOM],
        }
    }
}

/// A connection of a core; never the same for two of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ConnId {
    pub key: usize,
    pub epoch: u64,
}

/// An answer that waits to be posted.
pub(super) struct Response {
    pub conn: ConnId,
    pub slot: SlotId,
    pub what: What,
}

pub(super) enum What {
    Reply(Outgoing),
    /// A part of a reply, with more to come.
    Part(Outgoing, Rc<Stream>),
    /// A payload that found no memory when it was taken in.
    Bytes(Box<[u8]>),
    Error {
        started: bool,
        code: Code,
        message: String,
    },
}

/// The right, and the duty, to answer one request.
///
/// It can be kept, and used later on the same core. Dropped without an answer, it answers with
/// [`Code::UNANSWERED`].
#[must_use = "dropping it answers with an error"]
pub struct Responder {
    outbox: Rc<Outbox>,
    conn: ConnId,
    slot: SlotId,
    inline_limit: u32,
    answered: bool,
}

impl Responder {
    #[inline(always)]
    pub(super) fn new(
        outbox: &Rc<Outbox>,
        conn: ConnId,
        slot: SlotId,
        inline_limit: u32,
    ) -> Responder {
        Responder {
            outbox: Rc::clone(outbox),
            conn,
            slot,
            inline_limit,
            answered: false,
        }
    }

    /// The server's pool, for replies.
    pub fn pool(&self) -> &Pool {
        &self.outbox.pool
    }

    pub(super) fn inline_limit(&self) -> u32 {
        self.inline_limit
    }

    /// The duty to answer goes to who takes this.
    pub(super) fn into_raw(mut self) -> (Rc<Outbox>, ConnId, SlotId) {
        self.answered = true;
        (Rc::clone(&self.outbox), self.conn, self.slot)
    }

    /// Answers with a payload. Pool buffers of more than 4 KiB together leave without a copy; large ones stay where they are
    /// until the client has READ them.
    // Not inlined: it would be moved first, and what has just been written and is moved at another width waits for all that was written before,
    // the last message included.
    #[inline(never)]
    pub fn reply(mut self, payload: impl Payload) {
        if let Some(bytes) = payload.as_bytes()
            && self.outbox.put_small(self.conn, self.slot, bytes)
        {
            self.answered = true;
        } else {
            self.reply_longer(payload);
        }
    }

    fn reply_longer(self, payload: impl Payload) {
        match payload.as_bytes() {
            Some(bytes) => self.reply_bytes(bytes),
            None => self.reply_list(payload.into_segments()),
        }
    }

    #[inline(never)]
    fn reply_bytes(mut self, bytes: &[u8]) {
        let copy = |room: &mut [u8]| frame::copy(bytes, room);
        if self
            .outbox
            .put_frame(self.conn, self.slot, bytes.len(), copy)
        {
            self.answered = true;
        } else {
            self.reply_queued(bytes);
        }
    }

    #[inline(never)]
    fn reply_list(mut self, list: SgList) {
        let copy = |room: &mut [u8]| copy_segments(&list, room);
        if self
            .outbox
            .put_frame(self.conn, self.slot, list.len(), copy)
        {
            self.answered = true;
        } else {
            self.reply_queued(list);
        }
    }

    fn reply_queued(self, payload: impl Payload) {
        // Needed if there is no memory to take the payload in.
        let mut copies = self.outbox.copies.get();
        let len = payload.as_bytes().map(<[u8]>::len);
        let what = match len {
            Some(_) => self.take_bytes(payload, &mut copies),
            None => {
                let pool = &self.outbox.pool;
                match Outgoing::take(payload, pool, self.inline_limit, &mut copies) {
                    Ok(outgoing) => What::Reply(outgoing),
                    // Segments are taken without allocating.
                    Err(error) => What::Error {
                        started: true,
                        code: Code::INTERNAL,
                        message: error.to_string(),
                    },
                }
            }
        };
        self.outbox.copies.set(copies);
        self.answer(what);
    }

    fn take_bytes(&self, payload: impl Payload, copies: &mut Copies) -> What {
        let bytes = payload.as_bytes().unwrap_or_default();
        match Outgoing::take(bytes, &self.outbox.pool, self.inline_limit, copies) {
            Ok(outgoing) => What::Reply(outgoing),
            Err(_) => What::Bytes(bytes.into()),
        }
    }

    /// Answers with an error. A message longer than the inline limit is cut.
    pub fn fail(self, code: Code, message: impl Into<String>) {
        self.answer(What::Error {
            started: true,
            code,
            message: message.into(),
        });
    }

    fn answer(mut self, what: What) {
        self.answered = true;
        self.push(what);
    }

    fn push(&self, what: What) {
        self.outbox.push(Response {
            conn: self.conn,
            slot: self.slot,
            what,
        });
    }
}

impl Drop for Responder {
    #[inline]
    fn drop(&mut self) {
        if !self.answered {
            unanswered(&self.outbox, self.conn, self.slot);
        }
    }
}

/// Answers a request of which the responder was dropped.
#[cold]
fn unanswered(outbox: &Outbox, conn: ConnId, slot: SlotId) {
    let (code, message) = if std::thread::panicking() {
        (Code::PANICKED, "the handler panicked")
    } else {
        (
            Code::UNANSWERED,
            "the handler dropped the request without an answer",
        )
    };
    let what = What::Error {
        started: true,
        code,
        message: message.to_owned(),
    };
    outbox.push(Response { conn, slot, what });
}

impl fmt::Debug for Responder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Responder")
            .field("slot", &self.slot)
            .finish_non_exhaustive()
    }
}
