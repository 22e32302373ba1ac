//! A server and clients in one process, on the default device (`soft0`, unless `VERBATIM_DEVICE` names another); and a limit
//! on how long a test may hang.
#![allow(dead_code, reason = "each test file uses its part")]

pub mod alone;
pub mod processors;

use mempool::{Budget, Pool};
use rpc::{
    Client, ClientBuilder, Code, Deadline, Method, ReplyPath, Request, RequestPath, Responder,
    Server, ServerHandle,
};
use std::cell::Cell;
use std::sync::mpsc;
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::Duration;
use verbs::{Context, Device, Pd};

pub const ECHO: Method = Method(1);
/// Replies with nothing.
pub const SINK: Method = Method(2);
/// Replies with as many bytes as the request, a little-endian u64, says.
pub const SOURCE: Method = Method(3);
/// Takes as many milliseconds as the request, a little-endian u64, says.
pub const SLOW: Method = Method(4);
pub const PANIC: Method = Method(5);
/// Drops its responder.
pub const DROP: Method = Method(6);
/// Replies with the sum of the bytes and their number.
pub const SUM: Method = Method(7);
/// Replies with the length of `head`, as u64.
pub const HEAD: Method = Method(8);
/// Replies with the body taken by value.
pub const TAKE: Method = Method(9);

/// How many times slower this machine is than usual, by the word of whoever runs the tests.
pub fn slowness() -> u32 {
    let slowness = std::env::var("VERBATIM_TEST_SLOWNESS").ok();
    slowness.and_then(|s| s.parse().ok()).unwrap_or(1)
}

/// How long anything may take before it counts as hanging; slow machines multiply it.
pub fn hang() -> Duration {
    Duration::from_secs(120) * slowness()
}

pub fn patient() -> Deadline {
    Deadline::after(hang())
}

type Memory = (Context, Pd, Pool);

fn memory_on(context: Context) -> Memory {
    let pd = context.alloc_pd().expect("a domain");
    let pool = Pool::builder(&pd)
        .budget(Budget::user(4 << 30))
        .budget(Budget::receive(256 << 20))
        .budget(Budget::control(64 << 20))
        .build()
        .expect("a pool");
    (context, pd, pool)
}

/// Device, domain and pool that the tests of one file share.
pub fn memory() -> &'static Memory {
    static MEMORY: OnceLock<Memory> = OnceLock::new();
    MEMORY.get_or_init(|| memory_on(Device::open_default().expect("a device")))
}

/// The same for clients: on the device that `VERBATIM_PEER_DEVICE` names, if it is another.
pub fn client_memory() -> &'static Memory {
    static MEMORY: OnceLock<Option<Memory>> = OnceLock::new();
    let other = MEMORY.get_or_init(|| {
        let name = std::env::var("VERBATIM_PEER_DEVICE").ok()?;
        let same = name.is_empty() || name == memory().0.device_name();
        (!same).then(|| memory_on(Device::open_spec(&name).expect("the peer's device")))
    });
    other.as_ref().unwrap_or_else(memory)
}

pub fn server() -> Server {
    let (_, pd, pool) = memory();
    let server = Server::bind("127.0.0.1:0").expect("bind");
    // In emulation it can take longer than anywhere else.
    server.handshake_timeout(hang()).pool(pd, pool)
}

pub fn pattern(len: usize, seed: u8) -> Vec<u8> {
    let mut state = u64::from(seed) | 0x9e37_79b9_7f4a_7c15;
    let mut out = vec![0; len];
    for chunk in out.chunks_mut(8) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        chunk.copy_from_slice(&state.to_le_bytes()[..chunk.len()]);
    }
    out
}

pub fn sum(bytes: &[u8]) -> [u8; 16] {
    let sum = bytes
        .iter()
        .fold(0u64, |sum, &b| sum.wrapping_mul(31).wrapping_add(b.into()));
    let mut out = [0; 16];
    out[..8].copy_from_slice(&sum.to_le_bytes());
    out[8..].copy_from_slice(&(bytes.len() as u64).to_le_bytes());
    out
}

fn number(request: &Request<'_>) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&request.body()[..8]);
    u64::from_le_bytes(word)
}

pub fn handler(pool: Pool) -> impl FnMut(Request<'_>, Responder) {
    move |request, responder| match request.method() {
        ECHO => responder.reply(request.body()),
        SINK => responder.reply(()),
        SOURCE => {
            let len = number(&request) as usize;
            let mut buf = match pool.alloc(len) {
                Ok(buf) => buf,
                Err(error) => return responder.fail(Code::OVERLOADED, error.to_string()),
            };
            buf.copy_from_slice(&pattern(len, 1));
            responder.reply(buf);
        }
        SLOW => {
            thread::sleep(Duration::from_millis(number(&request)));
            responder.reply("done");
        }
        PANIC => panic!("a handler's panic, on purpose"),
        DROP => drop(responder),
        SUM => responder.reply(sum(request.body())),
        HEAD => responder.reply((request.head().len() as u64).to_le_bytes()),
        TAKE => match request.take_body() {
            Ok(buf) => responder.reply(buf),
            Err(error) => responder.fail(Code::OVERLOADED, error.to_string()),
        },
        _ => responder.fail(Code::UNIMPLEMENTED, "no such method"),
    }
}

pub fn serve(server: Server) -> ServerHandle {
    server
        .serve(|core| handler(core.pool().clone()))
        .expect("serve")
}

/// How requests travel, and how replies do.
pub type Paths = (RequestPath, ReplyPath);

/// All there are.
pub const PATHS: [Paths; 14] = [
    (RequestPath::WriteImm, ReplyPath::WriteImm),
    (RequestPath::WriteImm, ReplyPath::Send),
    (RequestPath::Send, ReplyPath::WriteImm),
    (RequestPath::Send, ReplyPath::Send),
    (RequestPath::WriteImm, ReplyPath::Fetch),
    (RequestPath::Send, ReplyPath::Fetch),
    (RequestPath::WriteImm, ReplyPath::Hybrid),
    (RequestPath::WritePoll, ReplyPath::WritePoll),
    (RequestPath::WritePoll, ReplyPath::WriteImm),
    (RequestPath::WritePoll, ReplyPath::Send),
    (RequestPath::WriteImm, ReplyPath::WritePoll),
    (RequestPath::Send, ReplyPath::WritePoll),
    (RequestPath::WritePoll, ReplyPath::Fetch),
    (RequestPath::WritePoll, ReplyPath::Hybrid),
];

/// Those with the same in both directions.
pub const ALIKE: [Paths; 3] = [PATHS[0], PATHS[3], PATHS[7]];

thread_local! {
    static CHOSEN: Cell<Paths> = const { Cell::new(PATHS[0]) };
}

/// The paths that [`client`] asks for on this thread: both by WRITE, as is the default, unless
/// [`over_all_paths`] says otherwise.
pub fn paths() -> Paths {
    CHOSEN.get()
}

/// Has [`paths`] be these on this thread.
pub fn choose(paths: Paths) {
    CHOSEN.set(paths);
}

/// A client to be, with the paths of this thread.
pub fn builder() -> ClientBuilder {
    let (_, pd, pool) = client_memory();
    let (request, reply) = paths();
    Client::builder()
        .pool(pd, pool)
        .request(request)
        .reply(reply)
        .connect_timeout(hang())
}

pub fn client(server: &ServerHandle) -> Client {
    let client = builder().connect(server.local_addr()).expect("connect");
    assert_eq!(client.paths(), Some(paths()));
    client
}

/// Runs a test's body once for each combination of paths, each as [`bounded`] does.
pub fn over_all_paths(body: impl Fn() + Send + Sync + 'static) {
    over(&PATHS, hang(), body);
}

/// The same for these combinations, each with a limit of its own.
pub fn over(paths: &[Paths], limit: Duration, body: impl Fn() + Send + Sync + 'static) {
    let body = Arc::new(body);
    for &paths in paths {
        let body = Arc::clone(&body);
        // Shown when it fails.
        println!("{paths:?}");
        bounded_by(limit, move || {
            choose(paths);
            body();
        });
    }
}

/// Runs a test's body on a thread of its own, and fails if it hangs.
pub fn bounded(body: impl FnOnce() + Send + 'static) {
    bounded_by(hang(), body);
}

/// The same with another limit.
pub fn bounded_by(limit: Duration, body: impl FnOnce() + Send + 'static) {
    let (done, over) = mpsc::channel();
    let thread = thread::spawn(move || {
        body();
        let _ = done.send(());
    });
    match over.recv_timeout(limit) {
        Ok(()) => thread.join().expect("joined"),
        Err(mpsc::RecvTimeoutError::Disconnected) => {
            if let Err(panic) = thread.join() {
                std::panic::resume_unwind(panic);
            }
        }
        Err(mpsc::RecvTimeoutError::Timeout) => panic!("hangs"),
    }
}
