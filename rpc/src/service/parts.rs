//! Typed replies that come in parts.

use super::client::ServiceClient;
use super::error::ServiceError;
use super::method::Method;
use super::pending::{Outcome, typed};
use super::received::Received;
use crate::client;
use std::fmt;
use std::marker::PhantomData;

/// A reply that comes in parts, each with a header and a rest of its own, as [`rpc::Parts`](crate::Parts).
///
/// Dropping it tells the server, when the client is used next, that the rest is not wanted.
#[must_use = "the parts come from next"]
pub struct Parts<M: Method> {
    parts: client::Parts,
    /// Whether the first of the segments that were sent is a header.
    header_sent: bool,
    method: PhantomData<fn() -> M>,
}

/// The parts of a reply, as an iterator: made by [`ServiceClient::call_parts`].
#[must_use = "the parts come from next"]
pub struct PartsIter<'c, M: Method> {
    pub(super) client: &'c mut ServiceClient,
    pub(super) parts: Parts<M>,
}

impl<M: Method> Parts<M> {
    pub(super) fn new(parts: client::Parts, header_sent: bool) -> Parts<M> {
        Parts {
            parts,
            header_sent,
            method: PhantomData,
        }
    }

    /// The next part; `None` after the last. What was sent behind the request's header comes back with the first.
    ///
    /// When it returns, the part after it has been asked for.
    ///
    /// # Errors
    /// [`ServiceError`]. There are no more parts then, unless it is [`ServiceError::Reply`].
    pub fn next(
        &mut self,
        client: &mut ServiceClient,
    ) -> Result<Option<Received<M::Reply>>, ServiceError> {
        match self.parts.next(client.client()) {
            Ok(None) => Ok(None),
            Ok(Some(part)) => typed::<M>(Ok(part), self.header_sent).map(Some),
            Err(error) => typed::<M>(Err(error), self.header_sent).map(Some),
        }
    }

    /// Whether the last part has been taken.
    pub fn is_finished(&self) -> bool {
        self.parts.is_finished()
    }
}

impl<M: Method> Iterator for PartsIter<'_, M> {
    type Item = Outcome<M>;

    fn next(&mut self) -> Option<Self::Item> {
        self.parts.next(self.client).transpose()
    }
}

impl<M: Method> fmt::Debug for Parts<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Parts({}, {:?})", M::NAME, self.parts)
    }
}

impl<M: Method> fmt::Debug for PartsIter<'_, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.parts.fmt(f)
    }
}
