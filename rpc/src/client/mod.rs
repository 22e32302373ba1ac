//! The client: one connection, on the thread that made it.
//!
//! Life of a call: [`submit`](Client::submit) takes a slot and posts the request; completions and
//! replies are taken in by whichever function of the client runs next (`progress.rs`); a reply that
//! is whole ends the slot and becomes the call's outcome, where [`Pending::wait`] finds it. The
//! client has no thread of its own.

mod batch;
mod builder;
mod calls;
mod failure;
mod fetch;
mod flight;
mod group;
mod guest;
mod medium;
mod pace;
mod parts;
mod pending;
mod progress;
mod reconnect;
mod reply;
#[cfg(feature = "tls")]
mod secure;
mod small;
mod small_batch;
mod small_reply;
mod stats;
mod submit;
mod waiting;

pub use batch::Batch;
pub use builder::ClientBuilder;
pub use group::{ClientGroup, GroupPending, Spread};
pub use guest::Clients;
pub use parts::{Parts, PartsIter};
pub use pending::Pending;
pub use reconnect::Reconnect;
pub use reply::Reply;
pub use stats::ClientStats;

use crate::clock::Moment;
use crate::control::Control;
use crate::deadline::Deadline;
use crate::destination::Destination;
use crate::error::{CallError, Lost};
use crate::frame::Frames;
use crate::handshake::{ReplyPath, RequestPath};
use crate::link::{Link, SMALL};
use crate::names::Method;
use crate::payload::Payload;
use crate::slices::Slices;
use crate::slot::SlotTable;
use crate::turns::Turns;
use crate::wait::Waiter;
use crate::wire::{HEADER_LEN, SlotId};
use calls::Calls;
use fetch::Fetcher;
use flight::{Flight, Unreleased};
use mempool::Pool;
use pace::Pace;
use stats::Recorder;
use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use verbs::{Channel, Cq, WcBatch};

/// A connection to a server.
///
/// It lives on the thread that uses it, and is not `Send`; other threads make clients of their own.
///
/// ```
/// use rpc::{Client, Deadline, Method, Server};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let server = Server::bind("127.0.0.1:0")?.serve(|_core| {
///     |request: rpc::Request<'_>, responder: rpc::Responder| {
///         let text = request.head().to_ascii_uppercase();
///         responder.reply(text)
///     }
/// })?;
///
/// let mut client = Client::connect(server.local_addr())?;
/// let reply = client.call(Method(1), "hello", Deadline::after_ms(10_000))?;
/// assert_eq!(reply.bytes(), b"HELLO");
/// # Ok(()) }
/// ```
pub struct Client {
    /// `None` once the connection has ended; `lost` then says why.
    link: Option<Link>,
    lost: Option<Arc<Lost>>,
    control: Control,
    peer: SocketAddr,

    slots: SlotTable,
    flights: Vec<Flight>,
    calls: Calls,
    /// Slots with READs to post.
    transfers: Turns,
    /// How long these are.
    slices: Slices,
    /// Long replies that came in whole since it was looked at.
    long: usize,
    /// Slots that have become free, for `settle`.
    freed: Vec<SlotId>,
    unreleased: Unreleased,
    /// On connections with a shelf. Boxed: the others have none.
    fetcher: Option<Box<Fetcher>>,
    dropped: pending::Dropped,
    /// Replies in parts of which the server is to be told that the rest is not wanted.
    unwanted: Vec<SlotId>,
    /// Parts that are here and whose next has not been asked for.
    unasked: u32,

    pool: Pool,
    pd: verbs::Pd,
    batch: WcBatch,
    /// Whether something has been taken in of which a core that [looks after](crate::Core::drive) the client has not been told.
    untold: bool,
    /// Whether the server takes no more requests.
    draining: bool,
    /// Whether the server has said that it is done.
    drained: bool,
    /// How to connect again, if that is wanted. Boxed: most clients have none.
    redial: Option<Box<reconnect::Redial>>,
    /// Requests that are to be posted together.
    batched: batch::Batched,
    /// Whether what ends next is a call that has been waited for since it was made, as the only one, and for so short that nobody has looked at
    /// the clock.
    quick: bool,
    pace: Pace,
    /// Where requests of medium length are put together.
    frames: Frames,
    /// Where small requests are put together, behind room for their headers.
    scratch: Box<[u8; HEADER_LEN + SMALL]>,
    /// When the messages at hand were taken from the completion queue, once somebody has asked.
    arrived: Option<Moment>,
    cq: Cq,
    channel: Channel,

    options: Options,
    waiter: Waiter,
    recorder: Recorder,
    control_checked: Moment,
}

#[derive(Debug, Clone, Copy)]
struct Options {
    read_slice: u32,
    zombies_max: u32,
}

impl Client {
    /// Begins to describe a connection.
    pub fn builder() -> ClientBuilder {
        ClientBuilder::new()
    }

    /// Connects with the defaults of [`builder`](Self::builder).
    ///
    /// # Errors
    /// [`ConnectError`](crate::ConnectError) names the step.
    pub fn connect(addr: impl std::net::ToSocketAddrs) -> Result<Client, crate::ConnectError> {
        ClientBuilder::new().connect(addr)
    }

    /// Sends a request and waits for its reply.
    ///
    /// # Errors
    /// [`CallError`]: what happened, and whether the request may have been executed.
    #[inline]
    pub fn call(
        &mut self,
        method: Method,
        payload: impl Payload,
        deadline: Deadline,
    ) -> Result<Reply, CallError> {
        let key = self.start(method, payload, deadline)?;
        self.quick = self.slots.in_use() == 1;
        self.finish_call(key)
    }

    /// Like [`call`](Self::call), but the reply's bytes go into `destination`, large ones without
    /// a copy.
    ///
    /// The first [`Reply::len`] bytes of the buffer that comes back are the reply; the others are
    /// as they were. A `Vec` of buffers is filled from the first one on, and so takes replies above [`CHUNK_MAX`](crate::CHUNK_MAX) as well. After `Expired` and `MaybeExecuted` the buffer is freed once nothing touches
    /// it any more; other errors give it back.
    ///
    /// # Errors
    /// As [`call`](Self::call), and [`CallError::ReplyTooLarge`].
    pub fn call_into<D: Destination>(
        &mut self,
        method: Method,
        payload: impl Payload,
        destination: D,
        deadline: Deadline,
    ) -> Result<(Reply, D), CallError> {
        let room = Some(destination.into_room());
        let key = self.start_into(method, payload, room, deadline)?;
        let mut reply = self.finish_call(key)?;
        let room = reply.take_room();
        Ok((reply, D::from_room(room)))
    }

    /// Sends a request, to wait for its reply later.
    ///
    /// When all slots or credits are taken, it waits for one.
    ///
    /// # Errors
    /// [`CallError::NotSent`].
    #[inline(always)]
    pub fn submit(
        &mut self,
        method: Method,
        payload: impl Payload,
        deadline: Deadline,
    ) -> Result<Pending, CallError> {
        self.quick = false;
        let key = self.start(method, payload, deadline)?;
        Ok(Pending::new(key, &self.dropped))
    }

    /// Like [`submit`](Self::submit), with a destination as for [`call_into`](Self::call_into);
    /// [`Reply::take_destination`] gives it back, or [`Reply::take_destinations`] if it is several buffers.
    ///
    /// # Errors
    /// [`CallError::NotSent`].
    pub fn submit_into(
        &mut self,
        method: Method,
        payload: impl Payload,
        destination: impl Destination,
        deadline: Deadline,
    ) -> Result<Pending, CallError> {
        let room = Some(destination.into_room());
        let key = self.start_into(method, payload, room, deadline)?;
        Ok(Pending::new(key, &self.dropped))
    }

    /// Takes in what has arrived, without waiting; true if there was anything.
    ///
    /// A program that keeps [`Pending`] calls for long while it does something else can call this
    /// now and then, so that large replies come in meanwhile. Where nothing has arrived it looks at the clock, and every few milliseconds (a
    /// system call) whether the server is still there.
    pub fn poll(&mut self) -> bool {
        self.poll_all()
    }

    /// How many requests could be [submitted](Self::submit) now, one after the other, without waiting for the server; 0 where the connection has
    /// ended or its server is stopping, also for clients that would [connect again](ClientBuilder::reconnect) when something is submitted. Takes in
    /// what has arrived.
    pub fn room(&mut self) -> usize {
        self.progress();
        match self.draining {
            true => 0,
            false => self.room_in_batch(),
        }
    }

    /// Why the connection has ended, if it has.
    pub fn lost(&self) -> Option<&Lost> {
        self.lost.as_deref()
    }

    /// Which connection this is, of those that the client has had.
    fn epoch(&self) -> u64 {
        self.recorder.reconnects
    }

    /// Whether requests can be sent, as far as this end knows.
    fn is_open(&self) -> bool {
        self.link.is_some() && !self.draining
    }

    /// The server's address.
    pub fn peer(&self) -> SocketAddr {
        self.peer
    }

    /// The pool of this connection, for requests and destinations.
    pub fn pool(&self) -> &Pool {
        &self.pool
    }

    /// Most requests that can be on their way at once.
    pub fn slots(&self) -> u32 {
        self.slots.count()
    }

    /// Largest payload in bytes that travels in one message.
    pub fn inline_limit(&self) -> usize {
        self.recorder.inline_limit as usize
    }

    /// How requests travel and how replies do, as agreed upon with the server; `None` once the
    /// connection has ended.
    pub fn paths(&self) -> Option<(RequestPath, ReplyPath)> {
        let terms = self.link.as_ref()?.terms();
        Some((terms.request_path, terms.reply_path))
    }

    /// Figures since the connection was made.
    pub fn stats(&self) -> ClientStats {
        ClientStats::sum(std::slice::from_ref(self))
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client")
            .field("peer", &self.peer)
            .field("slots", &self.slots.count())
            .field("in_use", &self.slots.in_use())
            .field("lost", &self.lost)
            .finish_non_exhaustive()
    }
}
