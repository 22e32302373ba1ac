//! What can go wrong with a call, and what the caller may conclude from it.

use crate::credit::CreditError;
use crate::destination::Room;
use crate::handshake::{Goodbye, HandshakeError, RefusalCode};
use crate::names::Code;
use crate::slot::SlotError;
use crate::wire::WireError;
use mempool::{AllocError, Buf, PoolError, SgList};
use std::fmt;
use std::io;
use std::sync::Arc;

/// Buffers that a call had taken and gives back.
///
/// What was sent by copy (plain bytes) is not among them.
#[derive(Default)]
pub struct Buffers(Option<Box<Inner>>);

#[derive(Default)]
struct Inner {
    segments: SgList,
    destination: Option<Room>,
}

impl Buffers {
    pub(crate) fn new(segments: Option<SgList>, destination: Option<Room>) -> Buffers {
        match (segments, destination) {
            (None, None) => Buffers(None),
            (segments, destination) => Buffers(Some(Box::new(Inner {
                segments: segments.unwrap_or_default(),
                destination,
            }))),
        }
    }

    /// The segments that are here, or others.
    pub(crate) fn or_segments(self, segments: impl FnOnce() -> Option<SgList>) -> Option<SgList> {
        match self.0 {
            Some(inner) => Some(inner.segments),
            None => segments(),
        }
    }

    /// Takes the segments of the payload, in order.
    pub fn take_segments(&mut self) -> SgList {
        match &mut self.0 {
            Some(inner) => std::mem::take(&mut inner.segments),
            None => SgList::default(),
        }
    }

    /// Takes the destination of a [`call_into`](crate::Client::call_into), if it was a buffer.
    pub fn take_destination(&mut self) -> Option<Buf> {
        let inner = self.0.as_mut()?;
        inner.destination.take_if(|room| room.is_one())?.into_buf()
    }

    /// Takes the destination of a [`call_into`](crate::Client::call_into), also if it was several buffers.
    pub fn take_destinations(&mut self) -> Vec<Buf> {
        self.take_room().map(Room::into_bufs).unwrap_or_default()
    }

    pub(crate) fn take_room(&mut self) -> Option<Room> {
        self.0.as_mut().and_then(|inner| inner.destination.take())
    }
}

impl fmt::Debug for Buffers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            None => f.write_str("Buffers(none)"),
            Some(inner) => f
                .debug_struct("Buffers")
                .field("segments", &inner.segments.segments().count())
                .field("destination", &inner.destination)
                .finish(),
        }
    }
}

/// Why a call did not bring a reply, and what may be concluded from it.
///
/// | error | was it executed? | buffers |
/// |---|---|---|
/// | [`NotSent`](CallError::NotSent) | no: safe to retry | come back |
/// | [`Overloaded`](CallError::Overloaded) | no: retry later | come back |
/// | [`Remote`](CallError::Remote) | the handler decided | come back |
/// | [`ReplyTooLarge`](CallError::ReplyTooLarge), [`NoMemory`](CallError::NoMemory), [`InParts`](CallError::InParts) | yes; only the reply is lost | come back |
/// | [`Expired`](CallError::Expired) | perhaps | freed when the device and the peer are done with them |
/// | [`MaybeExecuted`](CallError::MaybeExecuted) | perhaps | freed with the queue pair |
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CallError {
    /// The request never left: it was certainly not executed, and may be sent again.
    #[error("not sent: {0}")]
    NotSent(Box<NotSent>),
    /// The deadline passed. The request may have been executed, or may yet be.
    #[error("no reply before the deadline; the request may have been executed")]
    Expired,
    /// The connection ended with the request on its way. It may have been executed.
    #[error("connection lost with the request on its way; it may have been executed: {cause}")]
    MaybeExecuted {
        /// What ended the connection.
        cause: Arc<Lost>,
    },
    /// The handler refused, or failed.
    #[error("the server answered {code}: {message}")]
    Remote {
        /// The kind of reason.
        code: Code,
        /// The reason in words.
        message: String,
        /// What the call had taken.
        buffers: Buffers,
    },
    /// The server has too much to do, and has not started this request.
    #[error("the server is overloaded and did not start the request: {message}")]
    Overloaded {
        /// What it is short of.
        message: String,
        /// What the call had taken.
        buffers: Buffers,
    },
    /// The request was executed, but its reply does not fit into the destination, or is larger
    /// than was agreed upon.
    #[error(
        "executed, but the reply of {len} bytes is larger than the {room} bytes there are for it"
    )]
    ReplyTooLarge {
        /// Length of the reply in bytes.
        len: u64,
        /// Room there was in bytes.
        room: u64,
        /// What the call had taken, the destination included.
        buffers: Buffers,
    },
    /// The request was executed, but there is no memory for its reply.
    #[error("executed, but there is no memory for the reply of {len} bytes: {source}")]
    NoMemory {
        /// Length of the reply in bytes.
        len: u64,
        /// What the pool said.
        source: Box<AllocError>,
        /// What the call had taken.
        buffers: Buffers,
    },
    /// The reply comes in parts, and was asked for as a whole: see [`Client::submit_parts`](crate::Client::submit_parts). The request was
    /// executed, to the first part at least.
    #[error("the reply comes in parts, and was asked for as a whole")]
    InParts {
        /// What the call had taken.
        buffers: Buffers,
    },
    /// The [`Pending`](crate::Pending) is of another client. Its call goes on there, and its reply
    /// will be dropped.
    #[error("the pending call belongs to another client")]
    WrongClient,
}

impl CallError {
    pub(crate) fn not_sent(reason: NotSentReason, buffers: Buffers) -> CallError {
        CallError::NotSent(Box::new(NotSent { reason, buffers }))
    }
}

/// A request that never left.
#[derive(Debug, thiserror::Error)]
#[error("{reason}")]
pub struct NotSent {
    reason: NotSentReason,
    buffers: Buffers,
}

impl NotSent {
    /// Why not.
    pub fn reason(&self) -> &NotSentReason {
        &self.reason
    }

    /// The payload's segments, to send them again. Plain bytes, which are sent by copy, are not
    /// among them.
    pub fn buffers(mut self) -> SgList {
        self.buffers.take_segments()
    }

    /// The reason, the payload's segments, and the destination of a
    /// [`call_into`](crate::Client::call_into) if that was a buffer, see [`take_destinations`](Self::take_destinations).
    pub fn into_parts(mut self) -> (NotSentReason, SgList, Option<Buf>) {
        let segments = self.buffers.take_segments();
        let destination = self.buffers.take_destination();
        (self.reason, segments, destination)
    }

    /// Takes the destination of a [`call_into`](crate::Client::call_into), also if it was several buffers.
    pub fn take_destinations(&mut self) -> Vec<Buf> {
        self.buffers.take_destinations()
    }

    pub(crate) fn into_room(mut self) -> (NotSentReason, SgList, Option<Room>) {
        let segments = self.buffers.take_segments();
        let destination = self.buffers.take_room();
        (self.reason, segments, destination)
    }
}

/// Why a request never left.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NotSentReason {
    /// The connection had ended before.
    #[error("the connection has ended: {0}")]
    Closed(Arc<Lost>),
    /// The server is stopping. It has answered what it had started, and takes nothing more.
    #[error("the server is stopping and takes no more requests")]
    Stopping,
    /// The deadline passed while all slots or credits were taken.
    #[error("the deadline passed before the request could be sent")]
    Deadline,
    /// The connection had ended, and could not be made [again](crate::ClientBuilder::reconnect).
    #[error("the connection had ended, and could not be made again: {0}")]
    Reconnect(Box<ConnectError>),
    /// All slots or credits are taken by other requests, some of them in the same [`Batch`](crate::Batch).
    #[error(
        "as many requests as can be are on their way, or in the batch: post it, and wait for some of its calls"
    )]
    Full,
    /// The payload is larger than what both ends agreed upon.
    #[error("a payload of {len} bytes is larger than the {most} bytes agreed upon")]
    TooLarge {
        /// Its length in bytes.
        len: u64,
        /// Most that was agreed upon.
        most: u64,
    },
    /// The pool has no memory for the request.
    #[error("no memory for the request: {0}")]
    Memory(#[from] AllocError),
    /// A segment could not be registered for the server to read.
    #[error("a segment could not be registered for the server to read: {0}")]
    Register(verbs::Error),
}

/// What ended a connection.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Lost {
    /// This end closed it.
    #[error("closed by this end")]
    ClosedHere,
    /// The peer closed it, and said why.
    #[error("closed by the peer ({0:?})")]
    Goodbye(Goodbye),
    /// The control connection ended without a word: the peer is gone.
    #[error("the peer is gone (its control connection ended{})", .0.as_ref().map(|e| format!(": {e}")).unwrap_or_default())]
    Gone(Option<io::Error>),
    /// The device reported that work failed.
    #[error("{what} failed: {error}")]
    Work {
        /// The kind of work.
        what: &'static str,
        /// What the device said.
        error: verbs::WcError,
    },
    /// A verb failed.
    #[error(transparent)]
    Verbs(#[from] verbs::Error),
    /// Something could not be posted.
    #[error("posting {what} failed: {error}")]
    Post {
        /// What it was.
        what: &'static str,
        /// What the verbs layer said.
        error: String,
    },
    /// The peer broke the protocol.
    #[error("the peer broke the protocol: {0}")]
    Violation(#[from] Violation),
    /// Too many calls were given up on without the server ever answering them.
    #[error("{0} calls were given up on and never answered")]
    Unanswered(u32),
    /// There is no memory to go on.
    #[error("no memory to go on: {0}")]
    Memory(AllocError),
    /// The server has stopped, and had answered all requests that it had started.
    #[error("the server is stopping, and has answered all requests that it had started")]
    Drained,
}

/// How a peer broke the protocol.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Violation {
    /// A message that cannot be decoded.
    #[error(transparent)]
    Wire(#[from] WireError),
    /// A credit counter or message that cannot be.
    #[error(transparent)]
    Credit(#[from] CreditError),
    /// A slot or generation that cannot be.
    #[error(transparent)]
    Slot(#[from] SlotError),
    /// A frame on the control connection that cannot be.
    #[error(transparent)]
    Control(#[from] HandshakeError),
    /// A kind of message that this end does not take.
    #[error("a message of a kind that this end does not take")]
    Kind,
    /// A message that was sent instead of being written into the ring.
    #[error("a message that is not in the receive ring")]
    NotInRing,
    /// A wake-up that nobody asked for.
    #[error("a wake-up that was not asked for")]
    Wake,
    /// A count of messages that cannot be.
    #[error("a count of messages that cannot be")]
    Count,
    /// A request in a slot that is in use.
    #[error("a request in slot {0}, which is in use")]
    SlotInUse(u32),
    /// A request to leave the reply on a shelf, where there is none.
    #[error("a request whose reply is to be fetched, which was not agreed upon")]
    NoShelf,
    /// A fetched reply of which the rest is not what its beginning says.
    #[error("a fetched reply that does not fit together")]
    Fetched,
    /// More than a message may have.
    #[error("a body of {len} bytes, {most} were agreed upon")]
    TooLarge {
        /// What it says.
        len: u64,
        /// What was agreed upon.
        most: u64,
    },
}

macro_rules! violation_into_lost {
    ($($type:ty),+) => {$(
        impl From<$type> for Lost {
            fn from(error: $type) -> Lost {
                Lost::Violation(error.into())
            }
        }
    )+};
}

violation_into_lost!(WireError, CreditError, SlotError, HandshakeError);

impl Lost {
    /// What to tell the peer on the control connection.
    pub(crate) fn goodbye(&self) -> Goodbye {
        match self {
            Lost::Violation(_) => Goodbye::Violation,
            Lost::Unanswered(_) => Goodbye::Unanswered,
            Lost::Drained => Goodbye::Drained,
            Lost::Work { .. } | Lost::Verbs(_) | Lost::Post { .. } => Goodbye::Device,
            _ => Goodbye::Closing,
        }
    }
}

/// Why a client could not connect; each variant is a step.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// The address has no meaning.
    #[error("the address cannot be resolved: {0}")]
    Resolve(#[source] io::Error),
    /// No TCP connection to the server.
    #[error("no TCP connection to {addr}: {source} (is the server running there?)")]
    Tcp {
        /// The address.
        addr: std::net::SocketAddr,
        /// What the system said.
        source: io::Error,
    },
    /// No device.
    #[error("no RDMA device: {0}")]
    Device(#[from] verbs::OpenError),
    /// A verb failed while the queue pair was being made.
    #[error("creating the {what} failed: {source}")]
    Create {
        /// The object.
        what: &'static str,
        /// What the verbs layer said.
        source: verbs::Error,
    },
    /// The device lacks what a path that was asked for needs.
    #[error(
        "the device has no immediate data, which the {0} path WriteImm needs; WritePoll and Send work without"
    )]
    NoImmediate(&'static str),
    /// The device did not pass the test that a path which was asked for needs.
    #[error(
        "the {path} path WritePoll is not for this device, whose WRITEs were tried first: {why}"
    )]
    WriteOrder {
        /// Which path.
        path: &'static str,
        /// What went wrong.
        why: String,
    },
    /// The pool could not be made.
    #[error("creating the memory pool failed: {0}")]
    Pool(#[from] PoolError),
    /// No memory for the receive entries.
    #[error("allocating the receive entries failed: {0}")]
    Receives(#[from] AllocError),
    /// A receive entry could not be posted.
    #[error("posting the receive entries failed: {0}")]
    Post(String),
    /// The control connection failed during the handshake.
    #[error("the control connection failed during the handshake: {0}")]
    Control(#[source] io::Error),
    /// The server did not answer the handshake in time.
    #[error("no answer to the handshake within {0:?}")]
    Timeout(std::time::Duration),
    /// The server closed the control connection without a word.
    #[error("the server closed the control connection during the handshake")]
    Closed,
    /// The server speaks TLS, and this end was not told to. It is none the wiser about the server, but whoever listens has read the hello.
    #[error(
        "the server speaks TLS, and this client does not: give its builder a ClientTls (feature `tls`)"
    )]
    WantsTls,
    /// No control connection over TLS, because of a certificate or of what the peer is.
    #[cfg(feature = "tls")]
    #[error(transparent)]
    Tls(#[from] crate::tls::TlsError),
    /// The server does not want the connection.
    #[error("the server refused the connection ({code:?}): {text}")]
    Refused {
        /// The kind of reason.
        code: RefusalCode,
        /// The reason in words.
        text: String,
    },
    /// What the server said cannot be used.
    #[error("handshake: {0}")]
    Handshake(#[from] HandshakeError),
    /// The queue pair could not be connected.
    #[error("connecting the queue pair: {0}")]
    QueuePair(#[from] verbs::ConnectError),
    /// The thread's wake-up objects could not be made.
    #[error("preparing to wait for events: {0}")]
    Wait(#[source] io::Error),
}

/// Why a server could not start; each variant is a step.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServeError {
    /// The address cannot be listened on.
    #[error("listening on {addr}: {source}")]
    Listen {
        /// The address as it was given.
        addr: String,
        /// What the system said.
        source: io::Error,
    },
    /// The address is not loopback.
    #[error(
        "{0} can be reached from other hosts, and the control connection is not encrypted: bind to \
         loopback, or call Server::bind_tls (feature `tls`), or Server::bind_unencrypted if the \
         network is trusted"
    )]
    NotLoopback(std::net::SocketAddr),
    /// No device.
    #[error("no RDMA device: {0}")]
    Device(#[from] verbs::OpenError),
    /// A verb failed while the server was being made.
    #[error("creating the {what} failed: {source}")]
    Create {
        /// The object.
        what: &'static str,
        /// What the verbs layer said.
        source: verbs::Error,
    },
    /// The pool could not be made.
    #[error("creating the memory pool failed: {0}")]
    Pool(#[from] PoolError),
    /// A thread or its wake-up objects could not be made.
    #[error("starting {what}: {source}")]
    Start {
        /// The thread or object.
        what: &'static str,
        /// What the system said.
        source: io::Error,
    },
    /// A core's thread ended before it was ready: its handler could not be made.
    #[error("core {0} ended before it was ready (did making its handler panic?)")]
    CoreEnded(usize),
}

#[cfg(test)]
mod tests {
    use super::*;

    fn assert_error<E: std::error::Error + Send + Sync + 'static>() {}

    #[test]
    fn errors_cross_threads_and_stay_small() {
        assert_error::<CallError>();
        assert_error::<ConnectError>();
        assert_error::<ServeError>();
        assert_error::<Lost>();
        assert!(size_of::<CallError>() <= 64, "{}", size_of::<CallError>());
    }
}
