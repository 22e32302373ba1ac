//! The server: an acceptor, and cores that serve connections.
//!
//! ```text
//!   TCP --> acceptor: reads the Hello, with a limit on time, size and number
//!              | seeds, round robin
//!              v
//!   core 0 .. n-1, a thread each: queue pairs, completion queue, handler
//! ```
//!
//! A connection stays on its core, and so does everything that belongs to it: there is no lock, and
//! no memory shared between cores, between a request and its reply.

mod acceptor;
mod admission;
mod books;
mod conn;
mod core;
mod core_loop;
mod doze;
mod drain;
mod drive;
mod events;
mod guard;
mod handle;
mod lateness;
mod mailbox;
mod peers;
mod request;
mod respond;
mod responder;
mod routes;
mod stats;
mod stream;

pub use self::core::Core;
pub use handle::ServerHandle;
pub use request::Request;
pub use responder::Responder;
pub use stats::{ConnectionStats, ServerStats};
pub use stream::{PartError, PartsResponder};

use crate::credit::{WINDOW_MAX, WINDOW_MIN};
use crate::error::ServeError;
use crate::handshake::Limits;
use crate::setup;
use crate::wait::Waiting;
use mempool::Pool;
use peers::PeerLimits;
use std::net::{SocketAddr, TcpListener, ToSocketAddrs};
use std::time::Duration;
use verbs::{Context, Pd};

/// A server before it serves: address and settings.
///
/// ```
/// use rpc::{Client, Code, Deadline, Method, Server};
///
/// const ECHO: Method = Method(1);
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let server = Server::bind("127.0.0.1:0")?.cores(1).serve(|_core| {
///     |request: rpc::Request<'_>, responder: rpc::Responder| match request.method() {
///         ECHO => responder.reply(request.body()),
///         _ => responder.fail(Code::UNIMPLEMENTED, "no such method"),
///     }
/// })?;
///
/// let mut client = Client::connect(server.local_addr())?;
/// let reply = client.call(ECHO, "hello", Deadline::after_ms(10_000))?;
/// assert_eq!(reply.bytes(), b"hello");
/// server.shutdown();
/// # Ok(()) }
/// ```
#[derive(Debug)]
#[must_use = "nothing is served before .serve()"]
pub struct Server {
    listener: TcpListener,
    tls: Tls,
    addr: SocketAddr,
    cores: usize,
    processors: Vec<usize>,
    device: Option<Context>,
    pool: Option<(Pd, Pool)>,
    settings: Settings,
}

/// How control connections are secured, if they are.
#[cfg(feature = "tls")]
type Tls = Option<crate::tls::ServerTls>;
#[cfg(not(feature = "tls"))]
type Tls = Option<std::convert::Infallible>;

/// What acceptor and cores need to know.
#[derive(Debug, Clone, Copy)]
struct Settings {
    limits: Limits,
    waiting: Waiting,
    read_slice: u32,
    max_connections: usize,
    handshake_timeout: Duration,
    max_handshakes: usize,
    /// Whether it is measured how long requests take.
    timed: bool,
    peer: PeerLimits,
}

impl Server {
    /// Listens on a loopback address for control connections; port 0 takes a free one.
    ///
    /// # Errors
    /// [`ServeError::Listen`]; [`ServeError::NotLoopback`] for other addresses, which need `bind_tls` (of the feature `tls`) or
    /// [`bind_unencrypted`](Self::bind_unencrypted).
    pub fn bind(addr: impl ToSocketAddrs + std::fmt::Debug) -> Result<Server, ServeError> {
        let server = Server::listen(addr)?;
        if !server.addr.ip().is_loopback() {
            return Err(ServeError::NotLoopback(server.addr));
        }
        Ok(server)
    }

    /// Like [`bind`](Self::bind), for any address and with control connections over TLS: only clients whose certificates are of the roots in
    /// `tls` are told anything, and nobody else can read what they are told.
    ///
    /// What travels on the queue pairs is not encrypted by it.
    ///
    /// # Errors
    /// [`ServeError::Listen`].
    #[cfg(feature = "tls")]
    pub fn bind_tls(
        addr: impl ToSocketAddrs + std::fmt::Debug,
        tls: crate::ServerTls,
    ) -> Result<Server, ServeError> {
        Ok(Server::listen(addr)?.tls(tls))
    }

    /// Takes control connections over TLS alone, as [`bind_tls`](Self::bind_tls) does.
    ///
    /// The [time for a hello](Self::handshake_timeout) is that of TLS as well. A client that has not said hello takes some ten
    /// kilobytes instead of half of one, and a millisecond or so of the acceptor's time.
    #[cfg(feature = "tls")]
    pub fn tls(mut self, tls: crate::ServerTls) -> Self {
        self.tls = Some(tls);
        self
    }

    /// Like [`bind`](Self::bind), for any address.
    ///
    /// Queue pair numbers and keys travel over the control connection as they are: whoever can read
    /// or change its traffic can read and change what the queue pairs carry.
    ///
    /// # Errors
    /// [`ServeError::Listen`].
    pub fn bind_unencrypted(
        addr: impl ToSocketAddrs + std::fmt::Debug,
    ) -> Result<Server, ServeError> {
        Server::listen(addr)
    }

    fn listen(addr: impl ToSocketAddrs + std::fmt::Debug) -> Result<Server, ServeError> {
        let text = format!("{addr:?}");
        let failed = |source| ServeError::Listen {
            addr: text.clone(),
            source,
        };
        let listener = TcpListener::bind(addr).map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        let addr = listener.local_addr().map_err(failed)?;
        Ok(Server {
            listener,
            tls: None,
            addr,
            cores: 1,
            processors: Vec::new(),
            device: None,
            pool: None,
            settings: Settings {
                limits: Limits {
                    ring_most: setup::SERVER_RING,
                    ..setup::LIMITS
                },
                waiting: Waiting::default(),
                read_slice: setup::READ_SLICE,
                max_connections: 128,
                handshake_timeout: Duration::from_secs(2),
                max_handshakes: 64,
                timed: false,
                peer: PeerLimits::NONE,
            },
        })
    }

    /// The address that is listened on.
    pub fn local_addr(&self) -> SocketAddr {
        self.addr
    }

    /// How many cores serve (default 1): a thread and a handler each.
    pub fn cores(mut self, count: usize) -> Self {
        self.cores = count.max(1);
        self
    }

    /// Pins the threads of the cores, each to one of these processors, in order, and again from the first where there are fewer. By default they run where
    /// the system lets them.
    ///
    /// [`serve`](Self::serve) fails with [`ServeError::Start`] where a processor does not exist or is not this process's to use (`sched_setaffinity(2)`).
    pub fn pin(mut self, processors: impl IntoIterator<Item = usize>) -> Self {
        self.processors = processors.into_iter().collect();
        self
    }

    /// Uses this device instead of [`Device::open_default`](verbs::Device::open_default).
    pub fn device(mut self, device: &Context) -> Self {
        self.device = Some(device.clone());
        self
    }

    /// Uses this pool, whose memory belongs to the protection domain `pd`, instead of one of its
    /// own.
    pub fn pool(mut self, pd: &Pd, pool: &Pool) -> Self {
        self.pool = Some((pd.clone(), pool.clone()));
        self
    }

    /// Receive entries for each connection, 16 to 4096 (default 64).
    ///
    /// Each takes the inline limit and 424 bytes of the receive budget, rounded up to a slab.
    pub fn window(mut self, entries: u32) -> Self {
        self.settings.limits.window = entries.clamp(WINDOW_MIN, WINDOW_MAX);
        self
    }

    /// Largest payload in bytes that travels in one message, 512 B to 64 KiB (default 4 KiB); a
    /// client's limit counts if it is smaller.
    pub fn inline_limit(mut self, bytes: u32) -> Self {
        self.settings.limits.inline_limit = bytes;
        self
    }

    /// Largest request and reply in bytes, 1 GiB by default, at most 16 GiB. What is longer than [`CHUNK_MAX`](crate::CHUNK_MAX), 1 GiB,
    /// arrives in several buffers.
    pub fn max_message(mut self, bytes: u64) -> Self {
        self.settings.limits.max_message = bytes;
        self
    }

    /// Size in bytes of the ring that the requests of a connection arrive in, if they do; at least
    /// room for four of the largest messages and the control messages, which is what a small number
    /// gives. By default it is 64 KiB, or less if the window cannot fill that.
    pub fn ring_size(mut self, bytes: u64) -> Self {
        self.settings.limits.ring = bytes.max(1);
        self
    }

    /// Most connections at once (default 128), all cores together. What a device can carry may be
    /// less; it is refused then.
    pub fn max_connections(mut self, count: usize) -> Self {
        self.settings.max_connections = count.max(1);
        self
    }

    /// Most connections at once of one client address (default: as many as there are). Further ones are refused.
    ///
    /// An address is that of the control connection, without its port: programs of one host share it.
    pub fn max_connections_per_peer(mut self, count: usize) -> Self {
        self.settings.peer.connections = count.max(1);
        self
    }

    /// Most requests in flight at once of one client address, on all of its connections and all cores (default: what the windows of its connections
    /// allow). A request is in flight from its arrival to its answer. Further ones are not started:
    /// [`CallError::Overloaded`](crate::CallError::Overloaded).
    ///
    /// This or [`max_bytes_per_peer`](Self::max_bytes_per_peer) makes every request count in memory that the cores share.
    pub fn max_requests_per_peer(mut self, count: u64) -> Self {
        self.settings.peer.requests = Some(count.max(1));
        self
    }

    /// Most bytes in flight of one client address, on all of its connections and all cores (default: without a limit): of requests, from arrival to
    /// answer, of replies that the client is to READ, until it has, and of parts of replies that wait until the client asks for them. A request that would be too much is not started:
    /// [`CallError::Overloaded`](crate::CallError::Overloaded). So one of more bytes than this never is. Replies are not refused, so they can be
    /// more; then no request is taken before the client has READ some.
    pub fn max_bytes_per_peer(mut self, bytes: u64) -> Self {
        self.settings.peer.bytes = Some(bytes);
        self
    }

    /// How long a client may take to say hello (default 2 s, at most a day).
    pub fn handshake_timeout(mut self, timeout: Duration) -> Self {
        self.settings.handshake_timeout = timeout.min(Duration::from_secs(86_400));
        self
    }

    /// How many clients may be about to say hello at once (default 64). When one more comes, the
    /// oldest is let go.
    pub fn max_handshakes(mut self, count: usize) -> Self {
        self.settings.max_handshakes = count.max(1);
        self
    }

    /// Measures how long requests take, for [`ServerHandle::request_times`]. Not done unless asked for: it costs two looks at the clock for each.
    pub fn time_requests(mut self, timed: bool) -> Self {
        self.settings.timed = timed;
        self
    }

    /// How cores wait for requests.
    pub fn waiting(mut self, waiting: Waiting) -> Self {
        self.settings.waiting = waiting;
        self
    }

    /// Most bytes that one READ of a large request fetches beside other calls (default 256 KiB, at least 4 KiB). A quarter while small requests are
    /// answered in between; up to four times as many of much, while nobody else has called for long. All that a connection READs at once comes in no more than 256 packets of the path, whatever is asked for.
    pub fn read_slice(mut self, bytes: u32) -> Self {
        self.settings.read_slice = bytes.max(setup::READ_SLICE_MIN);
        self
    }

    /// Starts to serve. `make_handler` is called once on each core's thread; the handler it returns
    /// is called there for every request, one at a time.
    ///
    /// A handler that panics fails the one request with
    /// [`Code::PANICKED`](crate::Code::PANICKED); the connection goes on, and so does the handler.
    ///
    /// # Errors
    /// [`ServeError`] names the step that failed; nothing is left running then.
    pub fn serve<F, H>(self, make_handler: F) -> Result<ServerHandle, ServeError>
    where
        F: Fn(&Core) -> H + Send + Sync + 'static,
        H: FnMut(Request<'_>, Responder) + 'static,
    {
        handle::start(self, make_handler)
    }
}
