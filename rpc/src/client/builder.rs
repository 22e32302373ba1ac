//! Connecting to a server.

use super::calls::Calls;
use super::fetch::{Fetcher, Policy};
use super::flight::{Flight, Unreleased};
use super::pace::Pace;
use super::reconnect::{Reconnect, Redial};
use super::stats::Recorder;
use super::{Client, Options};
use crate::clock::Moment;
use crate::control::Control;
use crate::credit::{CONTROL_RESERVE, WINDOW_MAX, WINDOW_MIN};
use crate::error::ConnectError;
use crate::frame::Frames;
use crate::handshake::{
    Accumulator, Frame, HandshakeError, Hello, Limits, ReplyPath, RequestPath, Welcome, confirm,
    endpoint,
};
use crate::link::{PrepareError, Prepared, SMALL, send_depth};
use crate::order;
use crate::setup;
use crate::slices::Slices;
use crate::slot::SlotTable;
use crate::stream::Stream;
use crate::trace::{event, span};
use crate::turns::Turns;
use crate::wait::{Waiter, Waiting};
use crate::wire::HEADER_LEN;
use mempool::Pool;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};
use verbs::{Context, Pd, WcBatch};

/// Describes a connection before it is made.
///
/// ```no_run
/// use rpc::Client;
/// use std::time::Duration;
///
/// # fn main() -> Result<(), rpc::ConnectError> {
/// let client = Client::builder()
///     .window(128)
///     .connect_timeout(Duration::from_secs(1))
///     .connect("127.0.0.1:7471")?;
/// # Ok(()) }
/// ```
#[derive(Debug, Clone)]
#[must_use = "nothing is connected before .connect()"]
pub struct ClientBuilder {
    device: Option<Context>,
    pool: Option<(Pd, Pool)>,
    limits: Limits,
    pub(super) timeout: Duration,
    waiting: Waiting,
    read_slice: u32,
    zombies_max: Option<u32>,
    request_path: Option<RequestPath>,
    reply_path: Option<ReplyPath>,
    fetch_first: Option<usize>,
    fetch_tries: Option<u32>,
    #[cfg(feature = "tls")]
    tls: Option<crate::tls::ClientTls>,
    pub(super) reconnect: Option<Reconnect>,
}

impl ClientBuilder {
    pub(super) fn new() -> ClientBuilder {
        ClientBuilder {
            device: None,
            pool: None,
            limits: setup::LIMITS,
            timeout: Duration::from_secs(5),
            waiting: Waiting::default(),
            read_slice: setup::READ_SLICE,
            zombies_max: None,
            request_path: None,
            reply_path: None,
            fetch_first: None,
            fetch_tries: None,
            #[cfg(feature = "tls")]
            tls: None,
            reconnect: None,
        }
    }

    /// Uses this device instead of [`Device::open_default`](verbs::Device::open_default).
    pub fn device(mut self, device: &Context) -> Self {
        self.device = Some(device.clone());
        self
    }

    /// Uses this pool, whose memory belongs to the protection domain `pd`, instead of one of its
    /// own. Many clients can share a pool.
    pub fn pool(mut self, pd: &Pd, pool: &Pool) -> Self {
        self.pool = Some((pd.clone(), pool.clone()));
        self
    }

    /// Receive entries of the connection, 16 to 4096 (default 64). Up to 8 fewer requests can be
    /// on their way at once.
    pub fn window(mut self, entries: u32) -> Self {
        self.limits.window = entries.clamp(WINDOW_MIN, WINDOW_MAX);
        self
    }

    /// Largest payload in bytes that travels in one message, 512 B to 64 KiB (default 4 KiB); the
    /// server's limit counts if it is smaller.
    pub fn inline_limit(mut self, bytes: u32) -> Self {
        self.limits.inline_limit = bytes;
        self
    }

    /// Largest payload and reply in bytes, 1 GiB by default, at most 16 GiB. What is longer than [`CHUNK_MAX`](crate::CHUNK_MAX), 1 GiB,
    /// arrives in several buffers.
    pub fn max_message(mut self, bytes: u64) -> Self {
        self.limits.max_message = bytes;
        self
    }

    /// How requests travel (default: as WRITEs into a ring; with immediate data, if the device has it, else
    /// [polled](RequestPath::WritePoll), if it has passed the test for that, else as SENDs. As SENDs as well where the server's device differs in this).
    pub fn request(mut self, path: RequestPath) -> Self {
        self.request_path = Some(path);
        self
    }

    /// How replies travel (default: as for [requests](Self::request)).
    pub fn reply(mut self, path: ReplyPath) -> Self {
        self.reply_path = Some(path);
        self
    }

    /// How many bytes of a reply the first READ fetches, where replies are [fetched](ReplyPath::Fetch) (default: learnt from what replies have
    /// been long). Rounded up to 64, and the 24 bytes in front of a reply and its 40 bytes of header are among them.
    pub fn fetch_first(mut self, bytes: usize) -> Self {
        self.fetch_first = Some(bytes);
        self
    }

    /// After how many READs that find nothing, in each of two calls in a row, a [hybrid](ReplyPath::Hybrid) connection has replies pushed (default 4).
    pub fn fetch_tries(mut self, reads: u32) -> Self {
        self.fetch_tries = Some(reads);
        self
    }

    /// Size in bytes of the ring that replies arrive in, if they do; at least room for four of the
    /// largest messages and the control messages, which is what a small number gives.
    ///
    /// A small ring means fewer calls on their way at once; by default it holds as many replies as
    /// the window.
    pub fn ring_size(mut self, bytes: u64) -> Self {
        self.limits.ring = bytes.max(1);
        self
    }

    /// How long connecting may take (default 5 s).
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Makes the control connection over TLS: before a key or the number of a queue pair is said, both ends have seen the other's
    /// certificate. What travels on the queue pairs is not encrypted by it.
    #[cfg(feature = "tls")]
    pub fn tls(mut self, tls: crate::ClientTls) -> Self {
        self.tls = Some(tls);
        self
    }

    /// How to wait for replies.
    pub fn waiting(mut self, waiting: Waiting) -> Self {
        self.waiting = waiting;
        self
    }

    /// Most bytes that one READ of a large reply fetches beside other calls (default 256 KiB, at least 4 KiB). A quarter while small replies
    /// come in between; up to four times as many while the only call that is on its way is waited for, or of much, while none have come in between
    /// for long. All that a connection READs at once comes in no more than 256 packets of the path, whatever is asked for.
    pub fn read_slice(mut self, bytes: u32) -> Self {
        self.read_slice = bytes.max(setup::READ_SLICE_MIN);
        self
    }

    /// Calls that may be given up on without an answer before the connection is closed (default:
    /// half of the slots).
    pub fn max_unanswered(mut self, calls: u32) -> Self {
        self.zombies_max = Some(calls);
        self
    }

    /// Connects.
    ///
    /// # Errors
    /// [`ConnectError`] names the step that failed.
    pub fn connect(self, addr: impl ToSocketAddrs) -> Result<Client, ConnectError> {
        let addrs = addr.to_socket_addrs().map_err(ConnectError::Resolve)?;
        let addrs: Vec<SocketAddr> = addrs.collect();
        let mut client = self.dial(&addrs, self.timeout)?;
        if let Some(policy) = self.reconnect {
            // Other connections of this client share its memory.
            let builder = self.pool(&client.pd, &client.pool);
            client.redial = Some(Box::new(Redial::new(builder, addrs, policy)));
        }
        Ok(client)
    }

    /// Connects to the first of these addresses that takes it.
    pub(super) fn dial(
        &self,
        addrs: &[SocketAddr],
        timeout: Duration,
    ) -> Result<Client, ConnectError> {
        span!("connect", to = ?addrs);
        let deadline = Instant::now() + timeout.min(Duration::from_secs(86_400));
        // The device may have to be tried first, and a server waits for a hello only so long.
        let (pd, pool) = setup::memory(self.device.clone(), self.pool.clone())?;
        let mut limits = self.limits.clamped();
        limits.immediate = pd.context().has_immediate_data();
        let offer = (self.request_path, self.reply_path);
        let paths = Paths::offer(offer, limits.immediate, || order::tried(&pd))?;
        let (stream, peer) = tcp(addrs, deadline)?;
        stream.set_nodelay(true).map_err(ConnectError::Control)?;
        let limit = (deadline, timeout);
        #[cfg(feature = "tls")]
        let mut stream = match &self.tls {
            Some(tls) => super::secure::secured(tls, stream, peer.ip(), limit)?,
            None => Stream::Plain(stream),
        };
        #[cfg(not(feature = "tls"))]
        let mut stream = Stream::Plain(stream);

        let slots = limits.slots.min(limits.window - CONTROL_RESERVE);
        let context = pd.context();
        let channel = context.channel().map_err(|source| ConnectError::Create {
            what: "completion channel",
            source,
        })?;
        let depth = send_depth(slots) + limits.window;
        let cq = context
            .cq(depth)
            .channel(&channel)
            .build()
            .map_err(|source| ConnectError::Create {
                what: "completion queue",
                source,
            })?;
        // The key goes out with the hello, before it is known whether the server will use it.
        let ring = ReplyPath::ALL.into_iter().any(|path| {
            let may = path.has_ring() || path.has_shelf() && limits.immediate;
            may && path.bit() & paths.reply != 0
        });
        let ring = ring.then(|| limits.ring_size(limits.window, limits.inline_limit));
        let receives = (ring, RequestPath::WritePoll.bit() & paths.request != 0);
        let mut prepared = Prepared::new(&pd, &cq, &pool, limits.window, slots, receives)?;

        let hello = Hello {
            request_paths: paths.request,
            reply_paths: paths.reply,
            window: limits.window,
            inline_limit: limits.inline_limit,
            slots,
            max_message: limits.max_message,
            features: 0,
            endpoint: prepared.endpoint().to_bytes().to_vec(),
            ring: prepared.ring(),
            cell: prepared.cell(),
        };
        let welcome = exchange(&mut stream, &hello, limit)?;
        let terms = confirm(&welcome, &hello)?;
        let server = endpoint(&welcome.endpoint)?;
        if !terms.reply_ring {
            prepared.drop_ring();
        }
        // The server makes no requests.
        let link = prepared.connect(&server, terms, 0)?;
        stream
            .tcp()
            .set_nonblocking(true)
            .map_err(ConnectError::Control)?;

        event!(DEBUG, peer = %peer, "connected");
        let zombies_max = self.zombies_max.unwrap_or(terms.slots / 2);
        Ok(Client {
            link: Some(link),
            lost: None,
            control: Control::new(stream),
            peer,
            slots: SlotTable::new(terms.slots),
            flights: std::iter::repeat_with(Flight::default)
                .take(terms.slots as usize)
                .collect(),
            calls: Calls::with_capacity(terms.slots as usize),
            transfers: Turns::default(),
            slices: Slices::default(),
            long: 0,
            freed: Vec::with_capacity(terms.slots as usize),
            unreleased: Unreleased::new(terms.slots),
            fetcher: terms.shelf.map(|shelf| {
                let hybrid = terms.reply_path == ReplyPath::Hybrid;
                let policy = Policy::new(hybrid, self.fetch_first, self.fetch_tries);
                Box::new(Fetcher::new(shelf, terms.inline_limit, policy))
            }),
            dropped: Default::default(),
            unwanted: Vec::new(),
            unasked: 0,
            pool,
            pd,
            batch: WcBatch::with_capacity(32),
            batched: Default::default(),
            untold: false,
            draining: false,
            drained: false,
            redial: None,
            cq,
            channel,
            waiter: Waiter::new(self.waiting),
            options: Options {
                read_slice: self.read_slice,
                zombies_max,
            },
            recorder: Recorder::new(terms.inline_limit),
            control_checked: Moment::now(),
            quick: false,
            pace: Pace::new(),
            frames: Frames::default(),
            scratch: Box::new([0; HEADER_LEN + SMALL]),
            arrived: None,
        })
    }
}

/// Paths to offer, as bitmaps.
struct Paths {
    request: u8,
    reply: u8,
}

impl Paths {
    /// What was asked for, or everything that the device can do.
    ///
    /// Rings are polled where that is asked for, or where it is the best that there is and the device has passed the test.
    fn offer(
        (request, reply): (Option<RequestPath>, Option<ReplyPath>),
        immediate: bool,
        tried: impl Fn() -> Result<(), String>,
    ) -> Result<Paths, ConnectError> {
        if !immediate && request == Some(RequestPath::WriteImm) {
            return Err(ConnectError::NoImmediate("request"));
        }
        if !immediate && reply == Some(ReplyPath::WriteImm) {
            return Err(ConnectError::NoImmediate("reply"));
        }
        let asked = match (request, reply) {
            (Some(RequestPath::WritePoll), _) => Some("request"),
            (_, Some(ReplyPath::WritePoll)) => Some("reply"),
            _ => None,
        };
        let best = !immediate && (request.is_none() || reply.is_none());
        let polled = match asked {
            Some(path) => tried()
                .map(|()| true)
                .map_err(|why| ConnectError::WriteOrder { path, why })?,
            None => best && tried().is_ok(),
        };
        let able = |ring: bool, is_polled: bool| match is_polled {
            true => polled,
            false => immediate || !ring,
        };
        let all = |bits: u8, bit: u8| bits | bit;
        Ok(Paths {
            request: RequestPath::ALL
                .into_iter()
                .filter(|&path| able(path.has_ring(), path.is_polled()))
                .filter(|&path| match request {
                    Some(asked) => asked == path,
                    None => !(immediate && path.is_polled()),
                })
                .map(RequestPath::bit)
                .fold(0, all),
            reply: ReplyPath::ALL
                .into_iter()
                .filter(|&path| able(path.has_ring(), path.is_polled()))
                // Fetching is for who asks for it.
                .filter(|&path| match reply {
                    Some(asked) => asked == path,
                    None => !(path.has_shelf() || immediate && path.is_polled()),
                })
                .map(ReplyPath::bit)
                .fold(0, all),
        })
    }
}

impl From<PrepareError> for ConnectError {
    fn from(error: PrepareError) -> ConnectError {
        match error {
            PrepareError::Create(source) => ConnectError::Create {
                what: "queue pair",
                source,
            },
            PrepareError::Ring(source) => ConnectError::Create {
                what: "receive ring",
                source,
            },
            PrepareError::Receives(error) => ConnectError::Receives(error),
            PrepareError::Post(error) => ConnectError::Post(error),
            PrepareError::Connect(error) => ConnectError::QueuePair(error),
        }
    }
}

/// A TCP connection to the first address that takes one.
fn tcp(addrs: &[SocketAddr], deadline: Instant) -> Result<(TcpStream, SocketAddr), ConnectError> {
    let mut failed = None;
    for &addr in addrs {
        let left = deadline
            .saturating_duration_since(Instant::now())
            .max(Duration::from_millis(1));
        match TcpStream::connect_timeout(&addr, left) {
            Ok(stream) => return Ok((stream, addr)),
            Err(source) => failed = Some(ConnectError::Tcp { addr, source }),
        }
    }
    Err(failed.unwrap_or_else(|| {
        ConnectError::Resolve(io::Error::new(
            io::ErrorKind::NotFound,
            "the name has no address",
        ))
    }))
}

/// When the handshake has to be over, and how long that was at first.
pub(super) type Limit = (Instant, Duration);

/// Says hello and waits for the welcome.
fn exchange(stream: &mut Stream, hello: &Hello, limit: Limit) -> Result<Welcome, ConnectError> {
    stream
        .write_all(&Frame::Hello(hello.clone()).encode())
        .map_err(control)?;
    match hear(stream, limit)? {
        Frame::Welcome(welcome) => Ok(welcome),
        Frame::Refuse(refusal) => Err(ConnectError::Refused {
            code: refusal.code,
            text: refusal.text,
        }),
        _ => Err(HandshakeError::Malformed("a welcome or a refusal was expected").into()),
    }
}

/// What the server says next.
pub(super) fn hear(stream: &mut Stream, limit: Limit) -> Result<Frame, ConnectError> {
    let mut frame = Accumulator::new();
    loop {
        wait_until(stream.tcp(), limit)?;
        let n = match stream.read(frame.space()) {
            Ok(0) => return Err(ConnectError::Closed),
            Ok(n) => n,
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => continue,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
            Err(e) => return Err(control(e)),
        };
        match frame.filled(n) {
            Ok(None) => {}
            Ok(Some(frame)) => return Ok(frame),
            Err(HandshakeError::Magic([ALERT | HANDSHAKE, 3, ..])) => {
                return Err(ConnectError::WantsTls);
            }
            Err(error) => return Err(error.into()),
        }
    }
}

/// Kinds of TLS records, of version 3 and something, that a server answers with who hears no TLS.
const ALERT: u8 = 21;
const HANDSHAKE: u8 = 22;

/// Lets the next read wait for as long as there is time.
pub(super) fn wait_until(tcp: &TcpStream, (deadline, timeout): Limit) -> Result<(), ConnectError> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() {
        return Err(ConnectError::Timeout(timeout));
    }
    tcp.set_read_timeout(Some(left))
        .map_err(ConnectError::Control)
}

/// The control connection failed during the handshake.
pub(super) fn control(error: io::Error) -> ConnectError {
    #[cfg(feature = "tls")]
    if let Some(error) = crate::tls::TlsError::of(&error)
        && error != crate::tls::TlsError::Closed
    {
        return error.into();
    }
    ConnectError::Control(error)
}
