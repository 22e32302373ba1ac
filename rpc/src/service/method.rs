//! What methods and services are.

use super::dispatch::Methods;
use super::encoding::Encoding;

/// The number of the method that lists all others; no other may have it.
pub const LISTING: u16 = u16::MAX;

/// A method of a service, as a type: both ends share it.
pub trait Method: 'static {
    /// Its number on the wire, any but [`LISTING`].
    const NUMBER: u16;
    /// Raised by whoever changes the encoding of request or reply, or their meaning. A server can offer several versions of one method.
    const VERSION: u16;
    /// For messages to people.
    const NAME: &'static str;
    /// Whether a request may be executed more than once without harm. Then [`ServiceClient::call`](super::ServiceClient::call) is
    /// [`Client::call_idempotent`](crate::Client::call_idempotent).
    const IDEMPOTENT: bool = false;
    /// How the header of a request is encoded.
    type Request: Encoding;
    /// How the header of a reply is encoded.
    type Reply: Encoding;
}

/// A server's state, with the methods that it offers.
pub trait Service: Sized + 'static {
    /// What clients are told.
    const NAME: &'static str;

    /// Adds all methods; called once for each core.
    fn methods(methods: &mut Methods<Self>);
}
