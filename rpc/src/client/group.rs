//! Several connections to one server, usually to a core each, as one.

use super::{Client, ClientBuilder, ClientStats, Pending, Reply};
use crate::deadline::Deadline;
use crate::destination::{Destination, Room};
use crate::error::{CallError, ConnectError, NotSentReason};
use crate::names::Method;
use crate::payload::Payload;
use mempool::{Pool, SgList};
use std::fmt;
use std::net::ToSocketAddrs;

/// Several connections to one server, on one thread: made by [`Client::connect_many`].
///
/// A server deals its connections out to its cores in turn. So as many connections as it has cores give a client all of them, as long as no
/// other client connects at the same moment.
///
/// Calls are spread over the connections, as [`Spread`] says, or by a key, so that all calls for one thing meet the same core. A
/// connection that has ended is passed over; a request that it had not sent goes to another one, all others end with their error, as with
/// a single connection. While one connection is waited for, the others rest: what arrives there is taken in when they are used or
/// [polled](Self::poll).
///
/// ```
/// use rpc::{Client, Deadline, Method, Server};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let server = Server::bind("127.0.0.1:0")?.cores(2).serve(|core| {
///     let index = core.index() as u8;
///     move |_: rpc::Request<'_>, responder: rpc::Responder| responder.reply([index])
/// })?;
/// let mut group = Client::connect_many(server.local_addr(), 2)?;
/// let deadline = Deadline::after_ms(10_000);
/// let a = group.submit(Method(1), "one of them", deadline)?;
/// let b = group.submit(Method(1), "the other", deadline)?;
/// assert_ne!(a.wait(&mut group)?.bytes(), b.wait(&mut group)?.bytes());
/// let first = group.call_keyed(42, Method(1), "always the same", deadline)?;
/// let again = group.call_keyed(42, Method(1), "always the same", deadline)?;
/// assert_eq!(first.bytes(), again.bytes());
/// # Ok(()) }
/// ```
pub struct ClientGroup {
    pub(super) members: Vec<Client>,
    spread: Spread,
    next: usize,
}

/// How calls without a key are spread over the connections of a [`ClientGroup`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Spread {
    /// In turn.
    #[default]
    RoundRobin,
    /// To the one with the fewest calls on their way; in turn among equals. Looks for what has arrived first, so it costs a poll of each connection
    /// that has any.
    LeastPending,
}

/// A call of a [`ClientGroup`], to wait for later.
#[must_use = "the reply comes from wait"]
#[derive(Debug)]
pub struct GroupPending {
    member: usize,
    pending: Pending,
}

/// A payload that can be given to one connection after the other.
enum Source<'a> {
    Bytes(&'a [u8]),
    Segments(SgList),
}

impl Payload for Source<'_> {
    fn as_bytes(&self) -> Option<&[u8]> {
        match self {
            Source::Bytes(bytes) => Some(bytes),
            Source::Segments(_) => None,
        }
    }

    fn into_segments(self) -> SgList {
        match self {
            Source::Bytes(_) => SgList::new(),
            Source::Segments(list) => list,
        }
    }
}

impl Client {
    /// Makes so many connections to one server, at least one, with the defaults of [`builder`](Self::builder).
    ///
    /// # Errors
    /// [`ConnectError`] names the step.
    pub fn connect_many(
        addr: impl ToSocketAddrs,
        connections: usize,
    ) -> Result<ClientGroup, ConnectError> {
        Client::builder().connect_many(addr, connections)
    }
}

impl ClientBuilder {
    /// Makes so many connections to one server, at least one. They share device and pool.
    ///
    /// # Errors
    /// [`ConnectError`] names the step that failed; then none is left.
    pub fn connect_many(
        self,
        addr: impl ToSocketAddrs,
        connections: usize,
    ) -> Result<ClientGroup, ConnectError> {
        let addrs: Vec<_> = addr
            .to_socket_addrs()
            .map_err(ConnectError::Resolve)?
            .collect();
        let first = self.clone().connect(&addrs[..])?;
        let builder = self.pool(&first.pd, &first.pool);
        let mut members = vec![first];
        for _ in 1..connections {
            members.push(builder.clone().connect(&addrs[..])?);
        }
        Ok(ClientGroup {
            members,
            spread: Spread::default(),
            next: 0,
        })
    }
}

impl ClientGroup {
    /// Chooses how calls without a key are spread.
    pub fn set_spread(&mut self, spread: Spread) {
        self.spread = spread;
    }

    /// Connections, those that have ended included.
    pub fn len(&self) -> usize {
        self.members.len()
    }

    /// Whether there are none: never.
    pub fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    /// Connections that have not ended, as far as this end knows.
    pub fn alive(&self) -> usize {
        self.members.iter().filter(|c| c.is_open()).count()
    }

    /// Makes the connections again that have ended, of a group that [connects again](ClientBuilder::reconnect); how many there are then. A call does so
    /// by itself only when all have ended.
    pub fn reconnect(&mut self, deadline: Deadline) -> usize {
        for client in &mut self.members {
            if client.wants_redial() {
                // What cannot be made stays as it is.
                let _ = client.reconnect(deadline);
            }
        }
        self.alive()
    }

    /// One of the connections, from 0.
    ///
    /// # Panics
    /// When there are fewer.
    pub fn client(&mut self, index: usize) -> &mut Client {
        &mut self.members[index]
    }

    /// The connections' pool.
    pub fn pool(&self) -> &Pool {
        self.members[0].pool()
    }

    /// Takes in what has arrived on any connection, without waiting; true if there was anything.
    pub fn poll(&mut self) -> bool {
        self.members
            .iter_mut()
            .fold(false, |any, client| client.poll() | any)
    }

    /// Figures of all connections together. `fetch_first` and `fetch_tries` are the largest of any.
    pub fn stats(&self) -> ClientStats {
        ClientStats::sum(&self.members)
    }

    /// The connection that calls with this key go to; it changes only when that connection ends, or is there again.
    pub fn for_key(&self, key: u64) -> usize {
        let all = 0..self.members.len();
        let open = |&at: &usize| self.members[at].is_open();
        // The highest score: when a connection goes, only its keys move.
        let best = |at: &usize| score(key, *at as u64);
        let picked = all.clone().filter(open).max_by_key(best);
        picked.or_else(|| all.max_by_key(best)).unwrap_or(0)
    }

    /// Sends a request over one of the connections, and waits for its reply.
    ///
    /// # Errors
    /// As [`Client::call`]; [`CallError::NotSent`] when no connection could send it.
    pub fn call(
        &mut self,
        method: Method,
        payload: impl Payload,
        deadline: Deadline,
    ) -> Result<Reply, CallError> {
        let call = self.submit(method, payload, deadline)?;
        call.wait(self)
    }

    /// Like [`call`](Self::call), with a destination as for [`Client::call_into`].
    ///
    /// # Errors
    /// As [`Client::call_into`].
    pub fn call_into<D: Destination>(
        &mut self,
        method: Method,
        payload: impl Payload,
        destination: D,
        deadline: Deadline,
    ) -> Result<(Reply, D), CallError> {
        let room = Some(destination.into_room());
        let call = self.start(None, method, payload, room, deadline)?;
        let mut reply = call.wait(self)?;
        let room = reply.take_room();
        Ok((reply, D::from_room(room)))
    }

    /// Like [`call`](Self::call), over the connection that belongs to the key.
    ///
    /// # Errors
    /// As [`call`](Self::call).
    pub fn call_keyed(
        &mut self,
        key: u64,
        method: Method,
        payload: impl Payload,
        deadline: Deadline,
    ) -> Result<Reply, CallError> {
        let call = self.submit_keyed(key, method, payload, deadline)?;
        call.wait(self)
    }

    /// Sends a request over one of the connections, to wait for its reply later.
    ///
    /// # Errors
    /// [`CallError::NotSent`].
    pub fn submit(
        &mut self,
        method: Method,
        payload: impl Payload,
        deadline: Deadline,
    ) -> Result<GroupPending, CallError> {
        self.start(None, method, payload, None, deadline)
    }

    /// Like [`submit`](Self::submit), over the connection that belongs to the key.
    ///
    /// # Errors
    /// [`CallError::NotSent`].
    pub fn submit_keyed(
        &mut self,
        key: u64,
        method: Method,
        payload: impl Payload,
        deadline: Deadline,
    ) -> Result<GroupPending, CallError> {
        self.start(Some(key), method, payload, None, deadline)
    }

    fn start(
        &mut self,
        key: Option<u64>,
        method: Method,
        payload: impl Payload,
        destination: Option<Room>,
        deadline: Deadline,
    ) -> Result<GroupPending, CallError> {
        match payload.as_bytes() {
            Some(bytes) => {
                let source = Source::Bytes(bytes);
                self.start_source(key, method, source, destination, deadline)
            }
            None => {
                let source = Source::Segments(payload.into_segments());
                self.start_source(key, method, source, destination, deadline)
            }
        }
    }

    /// Sends a request by one connection after the other, until one has sent it.
    fn start_source(
        &mut self,
        key: Option<u64>,
        method: Method,
        source: Source<'_>,
        destination: Option<Room>,
        deadline: Deadline,
    ) -> Result<GroupPending, CallError> {
        let (mut source, mut destination) = (source, destination);
        for left in (0..self.members.len()).rev() {
            let member = match key {
                Some(key) => self.for_key(key),
                None => self.pick(),
            };
            // While there are others, it does not wait for a connection of its own.
            let waits = !self.has_others(member);
            let client = &mut self.members[member];
            let redial = client.redial.take_if(|_| !waits);
            let bytes = match &source {
                Source::Bytes(bytes) => Some(*bytes),
                Source::Segments(_) => None,
            };
            let started = match destination.take() {
                None => client.submit(method, source, deadline),
                Some(buf) => client.submit_into(method, source, buf, deadline),
            };
            if redial.is_some() {
                client.redial = redial;
            }
            let failed = match started {
                Ok(pending) => return Ok(GroupPending { member, pending }),
                Err(CallError::NotSent(failed)) => failed,
                Err(error) => return Err(error),
            };
            // It has ended, and it is no longer among those that are picked, if there are others.
            let ended = matches!(
                failed.reason(),
                NotSentReason::Closed(_) | NotSentReason::Stopping
            );
            if !ended || left == 0 || self.alive() == 0 {
                return Err(CallError::NotSent(failed));
            }
            let (_, segments, buf) = failed.into_room();
            destination = buf;
            source = match bytes {
                Some(bytes) => Source::Bytes(bytes),
                None => Source::Segments(segments),
            };
        }
        unreachable!("a group has a connection at least, and the last try returns")
    }

    /// Whether a connection that would be made again has others beside it.
    fn has_others(&self, member: usize) -> bool {
        let mut all = self.members.iter().enumerate();
        let redials = self.members[member].redial.is_some();
        redials && all.any(|(at, client)| at != member && client.is_open())
    }

    /// The next connection; one that has ended only if all have.
    fn pick(&mut self) -> usize {
        let count = self.members.len();
        if self.spread == Spread::LeastPending {
            for client in self.members.iter_mut().filter(|c| c.slots.in_use() > 0) {
                client.poll();
            }
        }
        let from = self.next;
        let turn = (0..count).map(|n| (from + n) % count);
        let spread = self.spread;
        let members = &self.members;
        let picked = turn
            .filter(|&at| members[at].is_open())
            // The first of the smallest: the next in turn.
            .min_by_key(|&at| match spread {
                Spread::RoundRobin => 0,
                Spread::LeastPending => members[at].slots.in_use(),
            })
            .unwrap_or(from % count);
        self.next = (picked + 1) % count;
        picked
    }
}

/// A number that looks random, of two.
fn score(key: u64, member: u64) -> u64 {
    // The finalizer of splitmix64, whose outputs differ in half of their bits when the input differs in one.
    let mut x = key ^ (member + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

impl GroupPending {
    /// Which connection it is on, from 0.
    pub fn connection(&self) -> usize {
        self.member
    }

    /// Waits for the reply, as [`Pending::wait`].
    ///
    /// # Errors
    /// As [`Client::call`], and [`CallError::WrongClient`] if it is another group's.
    pub fn wait(self, group: &mut ClientGroup) -> Result<Reply, CallError> {
        match group.members.get_mut(self.member) {
            Some(client) => self.pending.wait(client),
            None => Err(CallError::WrongClient),
        }
    }

    /// Whether waiting would give an outcome at once, as [`Pending::is_ready`]. Takes in what has arrived for its connection.
    pub fn is_ready(&self, group: &mut ClientGroup) -> bool {
        match group.members.get_mut(self.member) {
            Some(client) => self.pending.is_ready(client),
            None => true,
        }
    }

    /// The outcome, if it is there, as [`Pending::try_take`].
    ///
    /// # Errors
    /// The call itself, of which there is no outcome yet.
    pub fn try_take(
        self,
        group: &mut ClientGroup,
    ) -> Result<Result<Reply, CallError>, GroupPending> {
        let GroupPending { member, pending } = self;
        match group.members.get_mut(member) {
            Some(client) => pending
                .try_take(client)
                .map_err(|pending| GroupPending { member, pending }),
            None => Ok(Err(CallError::WrongClient)),
        }
    }

    /// Gives the call up, as [`Pending::cancel`].
    pub fn cancel(self, group: &mut ClientGroup) -> Option<Result<Reply, CallError>> {
        let client = group.members.get_mut(self.member)?;
        self.pending.cancel(client)
    }
}

impl fmt::Debug for ClientGroup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientGroup")
            .field("members", &self.members)
            .field("spread", &self.spread)
            .finish_non_exhaustive()
    }
}
