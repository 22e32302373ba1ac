//! Replies that come in parts.
//!
//! A part is a reply that says that there is more. Having it, the client asks for the next, by a request that names the first one's slot; so there is
//! always one part on its way, or waiting for the caller, and never more. When a caller loses interest, the server is told.

use super::pending::{Dropped, Forgotten};
use super::{Client, Pending, Reply};
use crate::deadline::Deadline;
use crate::error::{Buffers, CallError, Lost, NotSentReason};
use crate::names::Method;
use crate::payload::Payload;
use crate::wire::SlotId;
use std::fmt;
use std::rc::Rc;
use std::sync::Arc;

/// A reply that comes in parts, one after the other.
///
/// Dropping it tells the server, when the client is used next, that the rest is not wanted.
#[must_use = "the parts come from next"]
pub struct Parts {
    /// Names the reply.
    stream: SlotId,
    /// The connection that it comes by.
    epoch: u64,
    deadline: Deadline,
    /// Whether there has been a part.
    begun: bool,
    next: Next,
    dropped: Dropped,
}

enum Next {
    Coming(Pending),
    /// It could not be asked for.
    Failed(CallError),
    /// There is none.
    None,
}

/// The parts of a reply, as an iterator: made by [`Client::call_parts`].
#[must_use = "the parts come from next"]
pub struct PartsIter<'c> {
    client: &'c mut Client,
    parts: Parts,
}

impl Client {
    /// Sends a request whose reply comes in parts, to take them later, one by one, with [`Parts::next`]. All of them have to come before the
    /// deadline.
    ///
    /// A reply that comes as a whole is one part, or none if it is empty.
    ///
    /// # Errors
    /// [`CallError::NotSent`].
    pub fn submit_parts(
        &mut self,
        method: Method,
        payload: impl Payload,
        deadline: Deadline,
    ) -> Result<Parts, CallError> {
        self.quick = false;
        let key = self.start(method, payload, deadline)?;
        let stream = self.calls.get(key).map(|call| call.slot);
        let stream = stream.unwrap_or_default();
        Ok(Parts {
            stream,
            epoch: self.epoch(),
            deadline,
            begun: false,
            next: Next::Coming(self.coming(key, stream)),
            dropped: Rc::clone(&self.dropped),
        })
    }

    /// Sends a request whose reply comes in parts, and iterates over them.
    ///
    /// ```
    /// # use rpc::{Client, Code, Deadline, Method, Server};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let server = Server::bind("127.0.0.1:0")?.serve(|_core| {
    ///     |_: rpc::Request<'_>, responder: rpc::Responder| {
    ///         // Made one by one, when the client asks for them.
    ///         responder.stream((0..5).map(|n| Ok::<_, (Code, String)>(format!("part {n}"))))
    ///     }
    /// })?;
    /// let mut client = Client::connect(server.local_addr())?;
    /// for part in client.call_parts(Method(1), "all", Deadline::after_ms(10_000))? {
    ///     println!("{}", String::from_utf8_lossy(part?.bytes()));
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`CallError::NotSent`]; other errors come from the iterator, which ends with them.
    pub fn call_parts(
        &mut self,
        method: Method,
        payload: impl Payload,
        deadline: Deadline,
    ) -> Result<PartsIter<'_>, CallError> {
        let parts = self.submit_parts(method, payload, deadline)?;
        let client = self;
        Ok(PartsIter { client, parts })
    }

    /// A call that brings a part of a reply.
    fn coming(&mut self, key: usize, stream: SlotId) -> Pending {
        if let Some(slot) = self.calls.get(key).map(|call| call.slot) {
            self.flights[slot.index as usize].parts = Some(stream);
        }
        Pending::new(key, &self.dropped)
    }

    /// Asks for the next part.
    fn ask(&mut self, stream: SlotId, deadline: Deadline) -> Next {
        match self.start(Method::NEXT_PART, name(stream), deadline) {
            Ok(key) => Next::Coming(self.coming(key, stream)),
            Err(error) => Next::Failed(cut_off(error)),
        }
    }

    /// The rest of a reply is not wanted. The server is told when the client is used next: while calls are ended, slots are free whose flights are not.
    pub(super) fn unwanted(&mut self, stream: SlotId) {
        self.unwanted.push(stream);
        self.dropped.borrow_mut().push(Forgotten::Unsent);
    }

    /// Tells the server which replies are not wanted, as far as that can be sent now.
    pub(super) fn send_unwanted(&mut self) {
        while let Some(&stream) = self.unwanted.last() {
            if self.link.is_none() {
                self.unwanted.clear();
                return;
            }
            // The slots and the credits that there are were promised to the requests of a batch.
            if self.has_batch() {
                self.dropped.borrow_mut().push(Forgotten::Unsent);
                return;
            }
            // What there is no room for now is tried again: what was dropped is looked at whenever the client is used.
            let (method, name, never) = (Method::NO_MORE_PARTS, name(stream), Deadline::never());
            let key = match self.start_small(method, &name, never) {
                None if self.may_send() => self.start_into(method, name, None, never).ok(),
                key => key,
            };
            let Some(key) = key else {
                self.dropped.borrow_mut().push(Forgotten::Unsent);
                return;
            };
            self.unwanted.pop();
            if let Some(slot) = self.calls.forget(key).0 {
                self.flights[slot.index as usize].call = None;
            }
        }
    }
}

/// What became of a reply of which there have been parts: that it was not asked for the next one is no reason to ask for all of it again as if nothing had been
/// executed.
#[cold]
fn cut_off(error: CallError) -> CallError {
    let CallError::NotSent(failed) = error else {
        return error;
    };
    match failed.into_room().0 {
        NotSentReason::Deadline => CallError::Expired,
        NotSentReason::Memory(source) => CallError::NoMemory {
            len: 0,
            source: Box::new(source),
            buffers: Buffers::default(),
        },
        NotSentReason::Closed(cause) => CallError::MaybeExecuted { cause },
        // The connection has ended because its server has.
        _ => CallError::MaybeExecuted {
            cause: Arc::new(Lost::Drained),
        },
    }
}

/// As it travels.
fn name(stream: SlotId) -> [u8; 8] {
    let name = u64::from(stream.index) | u64::from(stream.generation) << 32;
    name.to_le_bytes()
}

impl Parts {
    /// The next part; `None` after the last.
    ///
    /// When it returns, the part after it has been asked for, so that comes in while this one is being used.
    ///
    /// # Errors
    /// As [`Client::call`], and [`CallError::WrongClient`]: there are no more parts then. Behind the first part none of them is
    /// [`CallError::NotSent`], since the request has been executed.
    pub fn next(&mut self, client: &mut Client) -> Result<Option<Reply>, CallError> {
        let reply = match std::mem::replace(&mut self.next, Next::None) {
            Next::Coming(pending) => match pending.wait(client) {
                Ok(reply) => reply,
                Err(error) => {
                    // With an error of the server's the reply has ended.
                    if !matches!(error, CallError::Remote { .. }) {
                        self.leave();
                    }
                    return Err(match self.begun {
                        true => cut_off(error),
                        false => error,
                    });
                }
            },
            Next::Failed(error) => return Err(error),
            Next::None => return Ok(None),
        };
        self.begun = true;
        if reply.has_more() && self.epoch != client.epoch() {
            // The rest was with the connection that it came by.
            let cause = Arc::new(Lost::Gone(None));
            self.next = Next::Failed(CallError::MaybeExecuted { cause });
        } else if reply.has_more() {
            self.next = client.ask(self.stream, self.deadline);
            client.unasked = client.unasked.saturating_sub(1);
            if let Next::Failed(_) = self.next {
                self.leave();
            }
        } else if reply.is_empty() {
            return Ok(None);
        }
        Ok(Some(reply))
    }

    /// Has the server told that the rest is not wanted, by the client that it belongs to.
    fn leave(&self) {
        let forgotten = Forgotten::Parts(self.stream, self.epoch);
        self.dropped.borrow_mut().push(forgotten);
    }

    /// Whether the last part has been taken.
    pub fn is_finished(&self) -> bool {
        matches!(self.next, Next::None)
    }
}

impl Drop for Parts {
    fn drop(&mut self) {
        if let Next::Coming(_) = self.next {
            self.leave();
        }
    }
}

impl Iterator for PartsIter<'_> {
    type Item = Result<Reply, CallError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.parts.next(self.client).transpose()
    }
}

impl fmt::Debug for Parts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Parts")
            .field("finished", &self.is_finished())
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for PartsIter<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.parts.fmt(f)
    }
}
