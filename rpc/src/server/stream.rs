//! Replies in parts.
//!
//! Each part is the answer to a request: the first to the client's own, each further one to one that the client's end sends when it has the part before.
//! So credits, leases and fetching are those of ordinary answers, and a client that does not go on costs a bounded number of parts.
//!
//! A stream is shared by whoever gives the parts and the connection. What was given and not asked for waits in it; so does the request that was
//! made and has no part yet.

use super::core::Host;
use super::peers::Meter;
use super::responder::{ConnId, Outbox, Responder, Response, What};
use crate::names::Code;
use crate::outgoing::{Copies, Outgoing};
use crate::payload::Payload;
use crate::posted::Body;
use crate::wire::SlotId;
use mempool::{AllocError, Pool};
use std::cell::RefCell;
use std::collections::VecDeque;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;

/// Parts that may wait for their client.
const PARTS_AHEAD: usize = 4;

/// Answers a request in parts: made by [`Responder::in_parts`].
///
/// Dropped before [`finish`](Self::finish) or [`fail`](Self::fail), it ends the reply with [`Code::UNANSWERED`].
#[must_use = "dropping it ends the reply with an error"]
pub struct PartsResponder {
    outbox: Rc<Outbox>,
    stream: Rc<Stream>,
    inline_limit: u32,
    ended: bool,
}

/// Why a part was not taken.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PartError<P> {
    /// As many parts as may wait for the client are waiting. The part comes back, to be given when the client has taken some.
    #[error("{PARTS_AHEAD} parts wait for the client to take them")]
    Full(P),
    /// The pool has no memory to copy the part.
    #[error("no memory for the part: {1}")]
    Memory(P, AllocError),
    /// The part of a typed service has no encoding.
    #[cfg(any(feature = "serde", feature = "zerocopy"))]
    #[error("{1}")]
    Encode(P, crate::service::EncodeError),
    /// The client does not want the rest, or is gone.
    #[error("the client does not want the rest")]
    Gone,
}

/// A reply in parts.
pub(super) struct Stream {
    conn: ConnId,
    /// Of the request that is answered.
    pub id: SlotId,
    inner: RefCell<Inner>,
}

struct Inner {
    /// The request that is to be answered with the next part.
    parked: Option<SlotId>,
    waiting: VecDeque<Step>,
    /// Counts what waits, where the client's address has a limit.
    meter: Option<Meter>,
    source: Option<Source>,
    gone: bool,
    done: bool,
}

/// Makes the next part when it is asked for.
type Source = Box<dyn FnMut(&Outbox) -> Step>;

pub(super) enum Step {
    Part(Outgoing),
    /// The last.
    End(What),
}

impl Step {
    /// Bytes of the payload.
    fn len(&self) -> u64 {
        match self {
            Step::Part(outgoing) | Step::End(What::Reply(outgoing)) => outgoing.len(),
            Step::End(_) => 0,
        }
    }

    fn error(code: Code, message: &str) -> Step {
        Step::End(What::Error {
            started: true,
            code,
            message: message.to_owned(),
        })
    }
}

/// Takes a part in; on failure there was no memory to copy it.
fn take<P: Payload>(
    payload: P,
    outbox: &Outbox,
    inline_limit: u32,
) -> Result<Outgoing, (P, AllocError)> {
    let mut copies: Copies = outbox.copies.get();
    let taken = match payload.as_bytes() {
        Some(bytes) => match Outgoing::take(bytes, &outbox.pool, inline_limit, &mut copies) {
            Ok(outgoing) => Ok(outgoing),
            Err(error) => return Err((payload, error)),
        },
        // Taken without allocating.
        None => Ok(Outgoing::Segments(Body::from_list(payload.into_segments()))),
    };
    outbox.copies.set(copies);
    taken
}

impl Responder {
    /// Answers in parts, each a payload of its own, for a client that asks with [`Client::submit_parts`](crate::Client::submit_parts) or
    /// [`call_parts`](crate::Client::call_parts). Any other call of such a method ends as [`CallError::InParts`](crate::CallError::InParts), unless it is finished without parts.
    pub fn in_parts(self) -> PartsResponder {
        let inline_limit = self.inline_limit();
        let (outbox, conn, id) = self.into_raw();
        let stream = Rc::new(Stream {
            conn,
            id,
            inner: RefCell::new(Inner {
                parked: Some(id),
                waiting: VecDeque::new(),
                meter: None,
                source: None,
                gone: false,
                done: false,
            }),
        });
        PartsResponder {
            outbox,
            stream,
            inline_limit,
            ended: false,
        }
    }

    /// Answers in parts that are made one by one, on this core, when the client asks for them: so one at a time is in memory here, however many there are.
    /// An `Err` ends the reply with that error; if the client does not want the rest, the iterator is dropped.
    ///
    /// A panic of the iterator ends the reply with [`Code::PANICKED`].
    pub fn stream<P, I>(self, parts: I)
    where
        P: Payload,
        I: IntoIterator<Item = Result<P, (Code, String)>>,
        I::IntoIter: 'static,
    {
        let mut parts = parts.into_iter();
        let mut responder = self.in_parts();
        let inline_limit = responder.inline_limit;
        let mut source: Source = Box::new(move |outbox: &Outbox| match parts.next() {
            Some(Ok(payload)) => match take(payload, outbox, inline_limit) {
                Ok(outgoing) => Step::Part(outgoing),
                Err((_, error)) => Step::error(Code::OVERLOADED, &error.to_string()),
            },
            Some(Err((code, message))) => Step::error(code, &message),
            None => Step::End(What::Reply(Outgoing::Segments(Body::Empty))),
        });
        // What it leaves behind when it panics is its own.
        let step = run(&mut source, &responder.outbox);
        responder.ended = true;
        if matches!(step, Step::Part(_)) {
            responder.stream.inner.borrow_mut().source = Some(source);
        }
        responder.stream.give(&responder.outbox, step);
    }
}

/// One step of a source.
fn run(source: &mut Source, outbox: &Outbox) -> Step {
    match catch_unwind(AssertUnwindSafe(|| source(outbox))) {
        Ok(step) => step,
        Err(payload) => {
            outbox.panics.set(outbox.panics.get() + 1);
            // Dropping what it panicked with may panic as well.
            drop_quietly(payload);
            Step::error(Code::PANICKED, "the parts of the reply panicked")
        }
    }
}

/// Drops what is the application's: should that panic, the core goes on.
fn drop_quietly(what: impl Sized) {
    if let Err(again) = catch_unwind(AssertUnwindSafe(|| drop(what))) {
        std::mem::forget(again);
    }
}

impl PartsResponder {
    /// Gives one more part. It does not wait: a few parts may wait for the client, others are given back.
    ///
    /// A part may be empty, and is one all the same.
    ///
    /// # Errors
    /// [`PartError`].
    pub fn part<P: Payload>(&mut self, payload: P) -> Result<(), PartError<P>> {
        match self.room() {
            None => Err(PartError::Gone),
            Some(0) => Err(PartError::Full(payload)),
            Some(_) => {
                let outgoing = take(payload, &self.outbox, self.inline_limit)
                    .map_err(|(payload, error)| PartError::Memory(payload, error))?;
                self.stream.give(&self.outbox, Step::Part(outgoing));
                Ok(())
            }
        }
    }

    /// How many parts would be taken now; `None` if the client does not want the rest.
    pub fn room(&self) -> Option<usize> {
        let inner = self.stream.inner.borrow();
        (!inner.gone).then(|| PARTS_AHEAD - inner.waiting.len().min(PARTS_AHEAD))
    }

    /// The server's pool.
    pub fn pool(&self) -> &Pool {
        &self.outbox.pool
    }

    /// There are no more parts.
    pub fn finish(self) {
        self.end(Step::End(What::Reply(Outgoing::Segments(Body::Empty))));
    }

    /// Ends the reply with an error, which the client gets after the parts that were given.
    pub fn fail(self, code: Code, message: impl Into<String>) {
        self.end(Step::error(code, &message.into()));
    }

    fn end(mut self, step: Step) {
        self.ended = true;
        self.stream.give(&self.outbox, step);
    }
}

impl Drop for PartsResponder {
    fn drop(&mut self) {
        if !self.ended {
            let step = match std::thread::panicking() {
                true => Step::error(Code::PANICKED, "the handler panicked amid its parts"),
                false => Step::error(
                    Code::UNANSWERED,
                    "the handler dropped the request amid its parts",
                ),
            };
            self.stream.give(&self.outbox, step);
        }
    }
}

impl fmt::Debug for PartsResponder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PartsResponder")
            .field("room", &self.room())
            .finish_non_exhaustive()
    }
}

impl Stream {
    /// Takes a step: to the request that waits, or until one comes.
    fn give(self: &Rc<Stream>, outbox: &Outbox, step: Step) {
        let mut inner = self.inner.borrow_mut();
        if inner.gone {
            return;
        }
        match inner.parked.take() {
            Some(slot) => {
                let conn = self.conn;
                inner.done = matches!(step, Step::End(_));
                let what = self.what(step);
                outbox.push(Response { conn, slot, what });
            }
            None => {
                if let Some(meter) = &mut inner.meter {
                    meter.add(step.len());
                }
                inner.waiting.push_back(step);
            }
        }
    }

    /// Counts what waits, from now on.
    pub fn count_by(&self, mut meter: Meter) {
        let mut inner = self.inner.borrow_mut();
        meter.add(inner.waiting.iter().map(Step::len).sum());
        inner.meter = Some(meter);
    }

    fn what(self: &Rc<Stream>, step: Step) -> What {
        match step {
            Step::Part(outgoing) => What::Part(outgoing, Rc::clone(self)),
            Step::End(what) => what,
        }
    }

    /// A request for the next part: what to answer it with, if there is something; else it waits.
    pub fn ask<H>(self: &Rc<Stream>, host: &Host<H>, slot: SlotId) -> Option<What> {
        let mut inner = self.inner.borrow_mut();
        if inner.done {
            return Some(What::Error {
                started: true,
                code: Code::NOT_FOUND,
                message: "the reply has ended".to_owned(),
            });
        }
        if inner.parked.is_some() {
            return Some(What::Error {
                started: true,
                code: Code::INVALID,
                message: "the part before has not been given yet".to_owned(),
            });
        }
        let mut step = inner.waiting.pop_front();
        if let (Some(step), Some(meter)) = (&step, &mut inner.meter) {
            meter.take(step.len());
        }
        if step.is_none()
            && let Some(mut source) = inner.source.take()
        {
            // It is the application's code.
            drop(inner);
            let next = run(&mut source, &host.outbox);
            let source = match next {
                Step::Part(_) => Some(source),
                Step::End(_) => {
                    drop_quietly(source);
                    None
                }
            };
            inner = self.inner.borrow_mut();
            inner.source = source;
            step = Some(next);
        }
        match step {
            Some(step) => {
                inner.done = matches!(step, Step::End(_));
                Some(self.what(step))
            }
            None => {
                inner.parked = Some(slot);
                None
            }
        }
    }

    /// Nobody wants the rest; the request that was waiting for a part.
    pub fn close(&self) -> Option<SlotId> {
        let mut inner = self.inner.borrow_mut();
        inner.gone = true;
        inner.done = true;
        let (waiting, source) = (std::mem::take(&mut inner.waiting), inner.source.take());
        inner.meter = None;
        let parked = inner.parked.take();
        // Dropping them runs the application's code.
        drop(inner);
        drop_quietly(waiting);
        drop_quietly(source);
        parked
    }

    /// Whether the last step has been answered with, or never will be.
    pub fn is_done(&self) -> bool {
        self.inner.borrow().done
    }
}
