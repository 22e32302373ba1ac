//! Calls to wait for later.

use super::{Client, Reply};
use crate::error::CallError;
use crate::wire::SlotId;
use std::cell::RefCell;
use std::fmt;
use std::rc::Rc;

/// What nobody will ask about any more. Shared by a client and its pending calls.
pub(super) type Dropped = Rc<RefCell<Vec<Forgotten>>>;

/// Something that nobody will ask about any more.
pub(super) enum Forgotten {
    /// A call, by key.
    Call(usize),
    /// The rest of a reply in parts, of this epoch.
    Parts(SlotId, u64),
    /// Nothing: there is something to be sent.
    Unsent,
}

/// A request on its way.
///
/// Dropping it is allowed: the request goes on, its reply is thrown away.
#[must_use = "the reply comes from wait"]
pub struct Pending {
    /// Or [`NONE`]. Two words are moved in registers: what has just been written and is then moved by its halves costs more than the rest.
    key: usize,
    dropped: Dropped,
}

/// No call's key.
const NONE: usize = usize::MAX;

impl Pending {
    #[inline(always)]
    pub(super) fn new(key: usize, dropped: &Dropped) -> Pending {
        Pending {
            key,
            dropped: Rc::clone(dropped),
        }
    }

    /// Waits for the reply, until the deadline that the request was sent with.
    ///
    /// A reply that is there is given also after the deadline.
    ///
    /// # Errors
    /// As [`Client::call`], and [`CallError::WrongClient`].
    #[inline(always)]
    pub fn wait(mut self, client: &mut Client) -> Result<Reply, CallError> {
        if !Rc::ptr_eq(&self.dropped, &client.dropped) {
            // `self` still has its key: it is dropped like any other.
            return Err(CallError::WrongClient);
        }
        let key = std::mem::replace(&mut self.key, NONE);
        client.finish_call(key)
    }

    /// Whether waiting would give an outcome at once: it is there, or the deadline has passed. Takes in what has arrived, and looks at the clock.
    pub fn is_ready(&self, client: &mut Client) -> bool {
        match self.key_at(client) {
            Some(key) => client.poll_for(key),
            None => true,
        }
    }

    /// The outcome, if it is there, or the deadline has passed; else the call comes back. Takes in what has arrived, and looks at the clock.
    ///
    /// ```
    /// # use rpc::{Client, Deadline, Method, Server};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let server = Server::bind("127.0.0.1:0")?
    /// #     .serve(|_| |_: rpc::Request<'_>, out: rpc::Responder| out.reply("done"))?;
    /// # let mut client = Client::connect(server.local_addr())?;
    /// let mut call = client.submit(Method(1), "long", Deadline::after_ms(10_000))?;
    /// let reply = loop {
    ///     match call.try_take(&mut client) {
    ///         Ok(outcome) => break outcome?,
    ///         Err(same) => call = same,
    ///     }
    ///     // Something else to do.
    ///     std::thread::yield_now();
    /// };
    /// assert_eq!(reply.bytes(), b"done");
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// The call itself, of which there is no outcome yet. The outcome's errors are those of [`wait`](Self::wait).
    pub fn try_take(self, client: &mut Client) -> Result<Result<Reply, CallError>, Pending> {
        match self.is_ready(client) {
            true => Ok(self.wait(client)),
            false => Err(self),
        }
    }

    /// Gives the call up. If its outcome is there already, this is it; else the request goes on, and its reply is thrown away when it comes: what was sent is
    /// not called back, and may be executed. Buffers in it are freed when the server and the device are done with them, and so is the slot.
    ///
    /// The same as dropping it, except that dropping is noticed when the client is used next.
    pub fn cancel(self, client: &mut Client) -> Option<Result<Reply, CallError>> {
        client.progress();
        if self
            .key_at(client)
            .is_some_and(|key| client.has_outcome(key))
        {
            return Some(self.wait(client));
        }
        drop(self);
        client.forget_dropped();
        None
    }

    /// The call's key, if it is this client's.
    pub(super) fn key_at(&self, client: &Client) -> Option<usize> {
        Rc::ptr_eq(&self.dropped, &client.dropped).then_some(self.key)
    }
}

impl Drop for Pending {
    #[inline]
    fn drop(&mut self) {
        if self.key != NONE {
            forget(&self.dropped, self.key);
        }
    }
}

/// Nobody will ask about this call any more.
#[cold]
fn forget(dropped: &RefCell<Vec<Forgotten>>, key: usize) {
    dropped.borrow_mut().push(Forgotten::Call(key));
}

impl fmt::Debug for Pending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Pending")
    }
}
