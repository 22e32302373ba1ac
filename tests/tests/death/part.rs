//! What the processes of a test do when they are asked: serve, call, count what they hold, come to grief.
//!
//! | asked | does | answers |
//! |---|---|---|
//! | `serve` | starts a server | its address |
//! | `serve ADDRESS` | the same, there | its address |
//! | `address` | | the server's address |
//! | `count` | | what the server holds, see [`Part::count`] |
//! | `shutdown` | stops the server | the milliseconds that took |
//! | `connect ADDRESS PATH` | makes a connection by [`PATHS`] | `connected` |
//! | `echo COUNT` | makes calls, one after the other | the microseconds that the longest took |
//! | `storm` | keeps calls of all kinds on their way | `storming`, and when the connection is lost, `lost` |
//! | `leave COUNT` | asks for long replies and never looks for them | `left` |
//! | `drop` | lets go of the connection | the milliseconds that took |
//! | `inject STEP NTH` | will stop in the middle of its own work | `injected` |
//! | `end` | ends | |

use mempool::{Budget, BudgetKind, Buf, Pool};
use rpc::{
    CallError, Client, ClientBuilder, Code, Deadline, Method, ReplyPath, Request, RequestPath,
    Responder, Server, ServerHandle,
};
use softverbs::faults::{Action, Fault, Step, inject};
use std::collections::{HashSet, VecDeque};
use std::os::linux::fs::MetadataExt;
use std::time::Instant;
use verbatim_tests::{Control, HANG, fill, is_pattern, pattern};
use verbs::{Context, Device, Pd};

pub const ECHO: Method = Method(1);
/// The request is a pattern; the reply is its length.
pub const CHECK: Method = Method(2);
/// The request is a length; the reply is a pattern of that length.
pub const MAKE: Method = Method(3);
/// Is not answered before the server ends.
pub const HOLD: Method = Method(4);

pub const SEED: u64 = 4711;
/// Longer than what travels in one message.
pub const LONG: usize = 128 << 10;

/// How requests travel, and how replies do.
pub const PATHS: [(RequestPath, ReplyPath); 5] = [
    (RequestPath::WriteImm, ReplyPath::WriteImm),
    (RequestPath::WriteImm, ReplyPath::Send),
    (RequestPath::Send, ReplyPath::WriteImm),
    (RequestPath::WritePoll, ReplyPath::WritePoll),
    (RequestPath::Send, ReplyPath::Send),
];

/// Far above what a call takes whose server runs.
pub fn patient() -> Deadline {
    Deadline::after(HANG)
}

/// Device and memory of one server or client.
pub struct Host {
    _device: Context,
    pub pd: Pd,
    pub pool: Pool,
}

impl Host {
    pub fn new() -> Host {
        let device = Device::open_spec("soft0").expect("soft0 can be opened");
        let pd = device.alloc_pd().expect("a protection domain");
        let pool = Pool::builder(&pd)
            .budget(Budget::user(1 << 30))
            .build()
            .expect("a pool");
        Host {
            _device: device,
            pd,
            pool,
        }
    }

    /// Bytes in buffers, by budget: user, receive, control.
    pub fn live(&self) -> [u64; 3] {
        let stats = self.pool.stats();
        BudgetKind::ALL.map(|kind| {
            let budget = stats.budget(kind);
            budget.in_use - budget.stocked
        })
    }

    /// A request that [`CHECK`] takes, and that is left to be fetched.
    pub fn long(&self) -> Buf {
        let mut long = self.pool.alloc(LONG).expect("memory");
        fill(&mut long, SEED);
        long
    }

    /// A connection to be, over `PATHS[path]`.
    pub fn client(&self, path: usize) -> ClientBuilder {
        let (request, reply) = PATHS[path];
        Client::builder()
            .pool(&self.pd, &self.pool)
            .request(request)
            .reply(reply)
            .connect_timeout(HANG)
    }
}

/// Does what it is asked until it may end.
pub fn play(mut control: Control) {
    let mut part = Part::default();
    loop {
        let asked = String::from_utf8(control.receive()).expect("commands are text");
        let words: Vec<&str> = asked.split(' ').collect();
        let number = |i: usize| words[i].parse::<usize>().expect("a number");
        let answer = match words[0] {
            "end" => return,
            "serve" => part.serve(words.get(1).unwrap_or(&"127.0.0.1:0")),
            "address" => part.serving().handle.local_addr().to_string(),
            "count" => part.count(),
            "shutdown" => part.shutdown(),
            "connect" => part.connect(words[1], number(2)),
            "echo" => part.echo(number(1)),
            "storm" => part.storm(&mut control),
            "leave" => part.leave(number(1)),
            "drop" => part.drop_client(),
            "inject" => {
                // In force for good.
                std::mem::forget(inject(Fault::At {
                    qp: None,
                    step: Step::ALL[number(1)],
                    nth: number(2) as u64,
                    action: Action::Stop,
                }));
                "injected".to_owned()
            }
            other => panic!("{other}?"),
        };
        control.send(answer);
    }
}

/// What such a process has.
#[derive(Default)]
struct Part {
    serving: Option<Serving>,
    calling: Option<(Client, Host)>,
}

struct Serving {
    handle: ServerHandle,
    host: Host,
}

impl Part {
    fn serve(&mut self, address: &str) -> String {
        let host = Host::new();
        let replies = host.pool.clone();
        let handle = Server::bind(address)
            .expect("an address")
            .pool(&host.pd, &host.pool)
            .serve(move |_core| handler(replies.clone()))
            .expect("a server");
        let address = handle.local_addr().to_string();
        self.serving = Some(Serving { handle, host });
        address
    }

    fn serving(&self) -> &Serving {
        self.serving.as_ref().expect("it serves")
    }

    /// What the server holds: open connections, and bytes in buffers by budget, which is requests that are being fetched, replies
    /// that are being sent or left to be fetched, and what messages arrive in. And what the process does: descriptors, and
    /// memory files of its own and of its peers that it has mapped, both without the arenas of its pool.
    fn count(&self) -> String {
        let serving = self.serving();
        let [user, receive, control] = serving.host.live();
        let stats = serving.host.pool.stats();
        let arenas: usize = stats.kinds.iter().map(|kind| kind.arenas).sum();
        format!(
            "connections {} user {user} receive {receive} control {control} descriptors {} mapped {}",
            serving.handle.stats().connections,
            descriptors() - arenas,
            mapped_files().len() - arenas,
        )
    }

    fn shutdown(&mut self) -> String {
        let serving = self.serving.take().expect("it serves");
        let begin = Instant::now();
        serving.handle.shutdown();
        serving.handle.join();
        begin.elapsed().as_millis().to_string()
    }

    fn connect(&mut self, address: &str, path: usize) -> String {
        let host = Host::new();
        let client = host.client(path).connect(address).expect("a connection");
        assert_eq!(client.paths(), Some(PATHS[path]));
        self.calling = Some((client, host));
        "connected".to_owned()
    }

    fn client(&mut self) -> &mut Client {
        &mut self.calling.as_mut().expect("it is connected").0
    }

    fn drop_client(&mut self) -> String {
        let (client, _host) = self.calling.take().expect("it is connected");
        let begin = Instant::now();
        drop(client);
        begin.elapsed().as_millis().to_string()
    }

    fn echo(&mut self, count: usize) -> String {
        let client = self.client();
        let mut longest = 0;
        for i in 0..count {
            let begin = Instant::now();
            let message = pattern(64 + i % 2000, i as u64);
            let reply = client.call(ECHO, &message[..], patient()).expect("a reply");
            assert_eq!(reply.bytes(), message);
            longest = longest.max(begin.elapsed().as_micros());
        }
        longest.to_string()
    }

    fn storm(&mut self, control: &mut Control) -> String {
        let (client, host) = self.calling.as_mut().expect("it is connected");
        let long = host.long().freeze();
        let mut held = Vec::new();
        for _ in 0..4 {
            held.push(client.submit(HOLD, "held", Deadline::never()));
            held.push(client.submit(HOLD, long.clone(), Deadline::never()));
        }
        let mut calls = VecDeque::new();
        for i in 0.. {
            if calls.len() < 8 {
                let call = match i % 3 {
                    0 => client.submit(CHECK, long.clone(), Deadline::never()),
                    1 => client.submit(MAKE, LONG.to_le_bytes(), Deadline::never()),
                    _ => client.submit(CHECK, pattern(4000, SEED), Deadline::never()),
                };
                match call {
                    Ok(call) => calls.push_back(call),
                    Err(CallError::NotSent(_)) if i > 24 => break,
                    Err(error) => panic!("{error:?}"),
                }
                continue;
            }
            match calls.pop_front().expect("eight of them").wait(client) {
                Ok(reply) => assert!(reply.len() == 8 || is_pattern(reply.bytes(), SEED)),
                Err(CallError::MaybeExecuted { .. }) if i > 24 => break,
                Err(error) => panic!("{error:?}"),
            }
            if i == 24 {
                control.send("storming");
            }
        }
        for call in held
            .into_iter()
            .map(|call| call.expect("it was sent"))
            .chain(calls)
        {
            let error = call.wait(client).map(|reply| reply.len());
            assert!(
                matches!(error, Ok(8 | LONG) | Err(CallError::MaybeExecuted { .. })),
                "{error:?}"
            );
        }
        "lost".to_owned()
    }

    fn leave(&mut self, count: usize) -> String {
        let client = self.client();
        for _ in 0..count {
            let call = client.submit(MAKE, LONG.to_le_bytes(), Deadline::never());
            std::mem::forget(call.expect("it is sent"));
        }
        "left".to_owned()
    }
}

fn handler(pool: Pool) -> impl FnMut(Request<'_>, Responder) {
    let mut held = Vec::new();
    move |request, responder| match request.method() {
        ECHO => responder.reply(request.body()),
        CHECK => {
            assert!(is_pattern(request.body(), SEED), "a request arrives whole");
            responder.reply((request.body().len() as u64).to_le_bytes());
        }
        MAKE => {
            let len = usize::from_le_bytes(request.body().try_into().expect("a length"));
            match pool.alloc(len) {
                Ok(mut reply) => {
                    fill(&mut reply, SEED);
                    responder.reply(reply);
                }
                Err(error) => responder.fail(Code::OVERLOADED, error.to_string()),
            }
        }
        HOLD => held.push(responder),
        _ => responder.fail(Code::UNIMPLEMENTED, "no such method"),
    }
}

/// How many descriptors are open, without the one that looks.
fn descriptors() -> usize {
    let folder = std::fs::read_dir("/proc/self/fd").expect("a process sees its descriptors");
    folder.count() - 1
}

/// The device's memory files that are mapped, by inode: one can have several mappings.
fn mapped_files() -> HashSet<u64> {
    files_mapped_by("self")
}

/// The same of another process; none if it has ended.
pub fn files_mapped_by(pid: &str) -> HashSet<u64> {
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default();
    let ours = maps.lines().filter(|line| line.contains("/memfd:verbatim"));
    ours.filter_map(|line| line.split_whitespace().nth(4)?.parse().ok())
        .collect()
}

/// Memory files of the device that a process has open, by inode; none if it has ended.
pub fn files_opened_by(pid: &str) -> HashSet<u64> {
    opened(pid).map(|(_, inode)| inode).collect()
}

/// Those among them that it has made.
pub fn files_made_by(pid: &str) -> HashSet<u64> {
    let made = opened(pid).filter(|(fd, _)| {
        let info = std::fs::read_to_string(format!("/proc/{pid}/fdinfo/{fd}")).unwrap_or_default();
        let flags = info.lines().find_map(|line| line.strip_prefix("flags:"));
        let flags = flags.and_then(|flags| i32::from_str_radix(flags.trim(), 8).ok());
        // What is opened by way of another's /proc entry is opened so as not to block.
        flags.is_some_and(|flags| flags & libc::O_NONBLOCK == 0)
    });
    made.map(|(_, inode)| inode).collect()
}

/// Descriptors and inodes.
fn opened(pid: &str) -> impl Iterator<Item = (String, u64)> {
    let folder = std::fs::read_dir(format!("/proc/{pid}/fd"));
    folder.into_iter().flatten().flatten().filter_map(|entry| {
        let link = std::fs::read_link(entry.path()).ok()?;
        let ours = link.to_string_lossy().starts_with("/memfd:verbatim");
        let file = ours.then(|| std::fs::metadata(entry.path()).ok())??;
        Some((
            entry.file_name().to_string_lossy().into_owned(),
            file.st_ino(),
        ))
    })
}
