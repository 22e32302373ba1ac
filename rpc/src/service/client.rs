//! The client of a typed service.

use super::error::{ServiceError, Unsent, UnsentReason};
use super::frame;
use super::listing::Listing;
use super::method::{LISTING, Method};
use super::parts::{Parts, PartsIter};
use super::pending::{Pending, typed};
use super::received::{Received, without_first};
use crate::client::Client;
use crate::deadline::Deadline;
use crate::destination::Destination;
use crate::error::{Buffers, CallError};
use crate::names;
use mempool::{Buf, SgList};

/// A [`Client`] that knows which methods its peer has.
#[derive(Debug)]
pub struct ServiceClient {
    client: Client,
    listing: Listing,
    /// Where messages without segments are put together.
    scratch: Vec<u8>,
}

impl ServiceClient {
    /// Asks the peer which methods it has. They stay the same for the life of the connection.
    ///
    /// # Errors
    /// [`ServiceError::Call`] with [`Code::UNIMPLEMENTED`](crate::Code::UNIMPLEMENTED), usually, if the server is no typed service;
    /// [`ServiceError::Listing`] if it says what this end does not understand.
    pub fn new(client: Client, deadline: Deadline) -> Result<ServiceClient, ServiceError> {
        let mut client = client;
        let reply = client.call(names::Method(LISTING), (), deadline)?;
        let listing = Listing::decode(reply.bytes()).map_err(ServiceError::Listing)?;
        Ok(ServiceClient {
            client,
            listing,
            scratch: Vec::new(),
        })
    }

    /// What the peer has.
    pub fn listing(&self) -> &Listing {
        &self.listing
    }

    /// The connection, for its pool and figures, and for calls of other kinds.
    pub fn client(&mut self) -> &mut Client {
        &mut self.client
    }

    /// Gives the connection back.
    pub fn into_client(self) -> Client {
        self.client
    }

    /// Sends a request that is nothing but its header, and waits for the reply.
    ///
    /// # Errors
    /// [`ServiceError`].
    pub fn call<M: Method>(
        &mut self,
        header: &<M::Request as super::Encoding>::Value,
        deadline: Deadline,
    ) -> Result<Received<M::Reply>, ServiceError> {
        if let Err(reason) = self.encode::<M>(header) {
            return Err(unsent::<M>(reason, SgList::new(), None));
        }
        let method = names::Method(M::NUMBER);
        let reply = match M::IDEMPOTENT {
            true => self
                .client
                .call_idempotent(method, &self.scratch, deadline)?,
            false => self.client.call(method, &self.scratch, deadline)?,
        };
        Received::new(reply, None, M::VERSION, false).map_err(bad_reply::<M>)
    }

    /// Sends a header and segments behind it, which leave from where they are.
    ///
    /// # Errors
    /// [`ServiceError`].
    pub fn call_with<M: Method>(
        &mut self,
        header: &<M::Request as super::Encoding>::Value,
        rest: impl Into<SgList>,
        deadline: Deadline,
    ) -> Result<Received<M::Reply>, ServiceError> {
        let payload = self.payload::<M>(header, rest.into(), None)?.0;
        let method = names::Method(M::NUMBER);
        typed::<M>(self.client.call(method, payload, deadline), true)
    }

    /// Like [`call_with`](Self::call_with), but the reply goes into `destination`, its prefix of 8 bytes and its header in front of the rest;
    /// [`Received::into_rest`] gives back the part that the rest is in, large ones without a copy.
    ///
    /// # Errors
    /// [`ServiceError`].
    pub fn call_into<M: Method>(
        &mut self,
        header: &<M::Request as super::Encoding>::Value,
        rest: impl Into<SgList>,
        destination: Buf,
        deadline: Deadline,
    ) -> Result<Received<M::Reply>, ServiceError> {
        let (payload, destination) = self.payload::<M>(header, rest.into(), Some(destination))?;
        let (method, destination) = (names::Method(M::NUMBER), destination.unwrap_or_default());
        let called = self
            .client
            .call_into(method, payload, destination, deadline);
        let (reply, buf) = called.map_err(without_header)?;
        Received::new(reply, Some(buf), M::VERSION, true).map_err(bad_reply::<M>)
    }

    /// Sends a header and segments behind it, to wait for the reply later.
    ///
    /// # Errors
    /// [`ServiceError::Call`] with [`CallError::NotSent`], and [`ServiceError::NotSent`].
    pub fn submit<M: Method>(
        &mut self,
        header: &<M::Request as super::Encoding>::Value,
        rest: impl Into<SgList>,
        deadline: Deadline,
    ) -> Result<Pending<M>, ServiceError> {
        let number = names::Method(M::NUMBER);
        let list = self.ready::<M>(header, rest.into())?;
        let header_sent = list.is_some();
        let call = match list {
            None => self.client.submit(number, &self.scratch, deadline)?,
            Some(list) => {
                let call = self.client.submit(number, list, deadline);
                call.map_err(without_header)?
            }
        };
        Ok(Pending::new(call, header_sent))
    }

    /// Like [`submit`](Self::submit), with a destination as for [`call_into`](Self::call_into).
    ///
    /// # Errors
    /// [`ServiceError::Call`] with [`CallError::NotSent`], and [`ServiceError::NotSent`].
    pub fn submit_into<M: Method>(
        &mut self,
        header: &<M::Request as super::Encoding>::Value,
        rest: impl Into<SgList>,
        destination: Buf,
        deadline: Deadline,
    ) -> Result<Pending<M>, ServiceError> {
        let (payload, destination) = self.payload::<M>(header, rest.into(), Some(destination))?;
        let (method, destination) = (names::Method(M::NUMBER), destination.unwrap_or_default());
        let call = self
            .client
            .submit_into(method, payload, destination, deadline);
        Ok(Pending::new(call.map_err(without_header)?, true))
    }

    /// Sends a request whose reply comes in parts, to take them later, one by one, with [`Parts::next`].
    ///
    /// # Errors
    /// [`ServiceError::Call`] with [`CallError::NotSent`], and [`ServiceError::NotSent`].
    pub fn submit_parts<M: Method>(
        &mut self,
        header: &<M::Request as super::Encoding>::Value,
        rest: impl Into<SgList>,
        deadline: Deadline,
    ) -> Result<Parts<M>, ServiceError> {
        let number = names::Method(M::NUMBER);
        let list = self.ready::<M>(header, rest.into())?;
        let header_sent = list.is_some();
        let parts = match list {
            None => self.client.submit_parts(number, &self.scratch, deadline)?,
            Some(list) => {
                let parts = self.client.submit_parts(number, list, deadline);
                parts.map_err(without_header)?
            }
        };
        Ok(Parts::new(parts, header_sent))
    }

    /// Sends a request whose reply comes in parts, and iterates over them.
    ///
    /// # Errors
    /// [`ServiceError::Call`] with [`CallError::NotSent`], and [`ServiceError::NotSent`]; other errors come from the iterator.
    pub fn call_parts<M: Method>(
        &mut self,
        header: &<M::Request as super::Encoding>::Value,
        rest: impl Into<SgList>,
        deadline: Deadline,
    ) -> Result<PartsIter<'_, M>, ServiceError> {
        let parts = self.submit_parts::<M>(header, rest, deadline)?;
        Ok(PartsIter {
            client: self,
            parts,
        })
    }

    /// Puts prefix and header into `scratch`, if the peer understands them.
    fn encode<M: Method>(
        &mut self,
        header: &<M::Request as super::Encoding>::Value,
    ) -> Result<(), UnsentReason> {
        if !self.listing.has::<M>() {
            let theirs: Vec<u16> = self.listing.versions(M::NUMBER).collect();
            return Err(if theirs.is_empty() {
                UnsentReason::NoMethod
            } else if theirs.contains(&M::VERSION) {
                UnsentReason::Encoding
            } else {
                let ours = M::VERSION;
                UnsentReason::Version { ours, theirs }
            });
        }
        frame::encode::<M::Request>(M::VERSION, header, &mut self.scratch)?;
        Ok(())
    }

    /// Header and segments as one list, if there are segments; else the header is in `scratch`, to be sent as bytes.
    fn ready<M: Method>(
        &mut self,
        header: &<M::Request as super::Encoding>::Value,
        rest: SgList,
    ) -> Result<Option<SgList>, ServiceError> {
        if rest.segment_count() > 0 {
            return Ok(Some(self.payload::<M>(header, rest, None)?.0));
        }
        let encoded = self.encode::<M>(header);
        encoded.map_err(|reason| unsent::<M>(reason, rest, None))?;
        Ok(None)
    }

    /// Header and segments as one list; the destination is passed through, to come back with an error.
    fn payload<M: Method>(
        &mut self,
        header: &<M::Request as super::Encoding>::Value,
        rest: SgList,
        destination: Option<Buf>,
    ) -> Result<(SgList, Option<Buf>), ServiceError> {
        let head = self.encode::<M>(header).and_then(|()| {
            if rest.segment_count() == SgList::MAX {
                return Err(UnsentReason::Segments);
            }
            Ok(self.client.pool().alloc_from_slice(&self.scratch)?)
        });
        match head {
            Ok(head) => Ok((frame_list(head, rest), destination)),
            Err(reason) => Err(unsent::<M>(reason, rest, destination)),
        }
    }
}

/// A list that begins with one more segment; there is room for it.
pub(super) fn frame_list(head: Buf, rest: SgList) -> SgList {
    let mut list = SgList::from(head);
    for segment in rest.into_segments() {
        let pushed = list.push(segment);
        debug_assert!(pushed.is_ok(), "the caller has counted");
    }
    list
}

#[cold]
fn unsent<M: Method>(
    reason: UnsentReason,
    segments: SgList,
    destination: Option<Buf>,
) -> ServiceError {
    ServiceError::NotSent(Box::new(Unsent {
        method: M::NAME,
        reason,
        segments,
        destination,
    }))
}

#[cold]
pub(super) fn bad_reply<M: Method>(source: super::DecodeError) -> ServiceError {
    ServiceError::Reply {
        method: M::NAME,
        source,
    }
}

/// Takes the header out of what comes back.
#[cold]
pub(super) fn without_header(error: CallError) -> ServiceError {
    let own = |mut buffers: Buffers| {
        let segments = without_first(buffers.take_segments());
        Buffers::new(Some(segments), buffers.take_room())
    };
    ServiceError::Call(match error {
        CallError::NotSent(unsent) => {
            let (reason, segments, destination) = unsent.into_parts();
            let destination = destination.map(Destination::into_room);
            let segments = without_first(segments);
            CallError::not_sent(reason, Buffers::new(Some(segments), destination))
        }
        CallError::Remote {
            code,
            message,
            buffers,
        } => CallError::Remote {
            code,
            message,
            buffers: own(buffers),
        },
        CallError::Overloaded { message, buffers } => CallError::Overloaded {
            message,
            buffers: own(buffers),
        },
        CallError::InParts { buffers } => CallError::InParts {
            buffers: own(buffers),
        },
        CallError::ReplyTooLarge { len, room, buffers } => CallError::ReplyTooLarge {
            len,
            room,
            buffers: own(buffers),
        },
        CallError::NoMemory {
            len,
            source,
            buffers,
        } => CallError::NoMemory {
            len,
            source,
            buffers: own(buffers),
        },
        // Nothing comes back.
        other @ (CallError::Expired | CallError::MaybeExecuted { .. } | CallError::WrongClient) => {
            other
        }
    })
}
