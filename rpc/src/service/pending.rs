//! Typed calls to wait for later.

use super::client::{ServiceClient, bad_reply, without_header};
use super::error::ServiceError;
use super::method::Method;
use super::received::Received;
use crate::client;
use crate::error::CallError;
use std::fmt;
use std::marker::PhantomData;

/// What a typed call brings.
pub(super) type Outcome<M> = Result<Received<<M as Method>::Reply>, ServiceError>;

/// A request of a [`ServiceClient`] on its way, as [`rpc::Pending`](crate::Pending).
///
/// Dropping it is allowed: the request goes on, its reply is thrown away.
#[must_use = "the reply comes from wait"]
pub struct Pending<M: Method> {
    call: client::Pending,
    /// Whether the first of the segments that were sent is a header.
    header_sent: bool,
    method: PhantomData<fn() -> M>,
}

impl<M: Method> Pending<M> {
    pub(super) fn new(call: client::Pending, header_sent: bool) -> Pending<M> {
        Pending {
            call,
            header_sent,
            method: PhantomData,
        }
    }

    /// Waits for the reply, until the deadline that the request was sent with.
    ///
    /// # Errors
    /// [`ServiceError`].
    pub fn wait(self, client: &mut ServiceClient) -> Outcome<M> {
        typed::<M>(self.call.wait(client.client()), self.header_sent)
    }

    /// Whether waiting would give an outcome at once. Takes in what has arrived, and looks at the clock.
    pub fn is_ready(&self, client: &mut ServiceClient) -> bool {
        self.call.is_ready(client.client())
    }

    /// The outcome, if it is there, or the deadline has passed; else the call comes back.
    ///
    /// # Errors
    /// The call itself, of which there is no outcome yet.
    pub fn try_take(self, client: &mut ServiceClient) -> Result<Outcome<M>, Pending<M>> {
        match self.is_ready(client) {
            true => Ok(self.wait(client)),
            false => Err(self),
        }
    }

    /// Gives the call up, as [`rpc::Pending::cancel`](crate::Pending::cancel).
    pub fn cancel(self, client: &mut ServiceClient) -> Option<Outcome<M>> {
        let outcome = self.call.cancel(client.client())?;
        Some(typed::<M>(outcome, self.header_sent))
    }
}

/// An outcome with its reply taken apart.
pub(super) fn typed<M: Method>(
    outcome: Result<client::Reply, CallError>,
    header_sent: bool,
) -> Outcome<M> {
    let mut reply = match (outcome, header_sent) {
        (Ok(reply), _) => reply,
        (Err(error), true) => return Err(without_header(error)),
        (Err(error), false) => return Err(error.into()),
    };
    let destination = reply.take_destination();
    Received::new(reply, destination, M::VERSION, header_sent).map_err(bad_reply::<M>)
}

impl<M: Method> fmt::Debug for Pending<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pending({})", M::NAME)
    }
}
