//! Calls of the `rpc` crate, answered with as many bytes as they bring.

use anyhow::{Context, Result, ensure};
use std::collections::VecDeque;
use std::sync::Barrier;
use std::time::{Duration, Instant};
use verbatim::mempool::{BudgetKind, Buf, Kind, SgList};
use verbatim::rpc::{
    Client, Deadline, Method, Pending, Reply, Request, Responder, Server, ServerHandle,
};
use verbatim::verbs::Pd;

use super::burst::{self, Bursts, Held};
use super::control::Hello;
use super::link::{FILLING, Host};
use super::measure::{Busy, Figures, Group, Pipeline, pipelined, serial};
use super::rounds::median;
use super::shape::{Flow, Size, WINDOW};
use super::wake;
use super::workload::{Bulk, Calls, FEW, Start};
use crate::quantile::nearest_rank;

const ECHO: Method = Method(1);
/// A long request and an empty reply.
const TAKE: Method = Method(2);
/// An empty request and a long reply.
const GIVE: Method = Method(3);

/// Receive entries of each end: the crate keeps some for itself, and [`WINDOW`] calls must fit beside them.
const ENTRIES: u32 = 2 * WINDOW as u32;

/// Bytes of the server's ring: a whole burst of the longest requests in one message must fit, since the server takes none while it is held.
const RING: u64 = 1 << 20;

/// Far above what a round takes, so that only a hang meets it.
const LIMIT: Duration = Duration::from_secs(60);

/// Length of the calls beside others.
const BULK: Size = Size::MiB1;
/// How many.
const BULK_CALLS: usize = 2;

/// Bytes that either end READs at once, of what is long, unless it has reason to do otherwise.
const SLICE: usize = 256 << 10;
/// Long calls alone, of which the median is taken.
const LONG_CALLS: usize = 16;

/// Serves until it is dropped. Requests of a cache line are echoed; longer ones are answered from memory that is kept, as they
/// are by the end of a queue pair that they are compared with.
pub fn serve(host: &Host, size: Size, page: &str) -> Result<ServerHandle> {
    let longest = size.bytes().max(BULK.bytes());
    let mut kept = host
        .pool
        .alloc_in(BudgetKind::User, Kind::Readable, longest)?;
    kept.fill(FILLING);
    let all = kept.freeze();
    let (kept, bulk) = (all.slice(..size.bytes()), all.slice(..BULK.bytes()));
    let page = page.to_owned();
    // Opened here once, so that it is said if it cannot be.
    Held::new(&page)?;
    let small = Size::B64.bytes();
    Ok(Server::bind("127.0.0.1:0")?
        .window(ENTRIES)
        .ring_size(RING)
        .pool(&host.pd, &host.pool)
        .serve(move |_core| {
            let (kept, bulk) = (kept.clone(), bulk.clone());
            let mut held = Held::new(&page).ok();
            move |request: Request<'_>, responder: Responder| {
                if let Some(held) = &mut held
                    && held.begins(&request)
                {
                    return burst::release(responder);
                }
                let body = request.body();
                match request.method() {
                    TAKE => responder.reply(()),
                    GIVE => responder.reply(bulk.clone()),
                    _ if body.len() <= small => responder.reply(body),
                    _ => responder.reply(kept.clone()),
                }
            }
        })?)
}

/// The end that calls.
pub struct Caller {
    client: Client,
    calls: Calls,
    stock: Stock,
    bursts: Bursts,
    /// The process of the server.
    pid: u32,
    /// Where it is, and what other clients are made of.
    address: String,
    pd: Pd,
}

/// What calls are made of, if they are longer than a cache line; comes back with each reply.
struct Stock {
    size: Size,
    requests: Vec<SgList>,
    /// Where replies go that are too long for one message.
    destinations: Vec<Buf>,
}

impl Stock {
    /// For so many calls on their way, of requests in so many parts.
    fn new(host: &Host, size: Size, parts: usize, count: usize, into: bool) -> Result<Stock> {
        let mut stock = Stock {
            size,
            requests: Vec::with_capacity(count),
            destinations: Vec::with_capacity(count),
        };
        if size.bytes() <= Size::B64.bytes() {
            return Ok(stock);
        }
        for _ in 0..count {
            let mut request = SgList::new();
            for _ in 0..parts {
                // Memory that the server can READ from as it is.
                let mut part =
                    host.pool
                        .alloc_in(BudgetKind::User, Kind::Readable, size.bytes() / parts)?;
                part.fill(FILLING);
                request.push(part)?;
            }
            stock.requests.push(request);
            if into {
                stock
                    .destinations
                    .push(host.pool.alloc_zeroed(size.bytes())?);
            }
        }
        Ok(stock)
    }

    #[inline]
    fn submit(
        &mut self,
        client: &mut Client,
        method: Method,
        deadline: Deadline,
    ) -> Result<Pending> {
        Ok(match self.size {
            Size::B0 => client.submit(method, [], deadline)?,
            Size::B64 => client.submit(method, [FILLING; Size::B64.bytes()], deadline)?,
            _ => {
                let request = self.requests.pop().context("an earlier call failed")?;
                match self.destinations.pop() {
                    Some(to) => client.submit_into(method, request, to, deadline)?,
                    None => client.submit(method, request, deadline)?,
                }
            }
        })
    }

    /// A call of more than a cache line, from beginning to end.
    fn call(&mut self, client: &mut Client, deadline: Deadline) -> Result<()> {
        let request = self.requests.pop().context("an earlier call failed")?;
        let mut reply = match self.destinations.pop() {
            Some(to) => {
                let (reply, to) = client.call_into(ECHO, request, to, deadline)?;
                ensure!(to.first() == Some(&FILLING), "a call was answered wrongly");
                self.destinations.push(to);
                reply
            }
            None => {
                let reply = client.call(ECHO, request, deadline)?;
                let first = reply.bytes().first();
                ensure!(first == Some(&FILLING), "a call was answered wrongly");
                reply
            }
        };
        self.check_len(&reply)?;
        self.requests.push(reply.take_segments());
        Ok(())
    }

    #[inline]
    fn check_len(&self, reply: &Reply) -> Result<()> {
        ensure!(
            reply.len() == self.size.bytes(),
            "a call was answered with {} bytes",
            reply.len()
        );
        Ok(())
    }

    /// Checks the reply, and takes back what was sent.
    #[inline]
    fn answered(&mut self, mut reply: Reply) -> Result<()> {
        self.check_len(&reply)?;
        match self.size {
            Size::B0 => {}
            Size::B64 => ensure!(
                reply.bytes() == [FILLING; Size::B64.bytes()],
                "a call was answered wrongly"
            ),
            _ => {
                let destination = reply.take_destination();
                let first = destination.as_deref().unwrap_or(reply.bytes()).first();
                ensure!(first == Some(&FILLING), "a call was answered wrongly");
                self.destinations.extend(destination);
                self.requests.push(reply.take_segments());
            }
        }
        Ok(())
    }
}

impl Caller {
    /// Connects to the server.
    pub fn connect(host: &Host, server: &Hello, calls: Calls, bursts: Bursts) -> Result<Caller> {
        let address = server.address.as_deref();
        let address = address.context("the server has no address")?;
        let (request, reply) = calls.path().parts();
        let client = Client::builder()
            .request(request)
            .reply(reply)
            .window(ENTRIES)
            .pool(&host.pd, &host.pool)
            .connect(address)?;
        let (size, window) = (calls.size(), calls.window());
        let most = match calls.has_bursts() {
            true => window.max(burst::CALLS + 1),
            false => window,
        };
        ensure!(
            client.slots() as usize >= most + BULK_CALLS,
            "only {} calls can be on their way at once",
            client.slots()
        );
        let into = size.bytes() > client.inline_limit();
        let stock = Stock::new(host, size, calls.parts(), most, into)?;
        Ok(Caller {
            client,
            calls,
            stock,
            bursts,
            address: address.to_owned(),
            pd: host.pd.clone(),
            pid: server.pid.context("the server has no number")?,
        })
    }

    /// Measures calls.
    pub fn round(&mut self, limit: Duration) -> Result<Figures> {
        let deadline = Deadline::after(LIMIT);
        let server_busy_ns = match self.calls.has_bursts() {
            true => Some(self.server_busy(deadline)?),
            false => None,
        };
        let figures = match self.calls {
            Calls::Burst { .. } => self.bursts(limit, deadline)?,
            Calls::Beside { bulk, .. } => self.beside(bulk, limit, deadline)?,
            Calls::Many(_, clients) => self.many(clients, limit, deadline)?,
            Calls::Idle(_) => self.after_idle(limit, deadline)?,
            Calls::Few { start, .. } => self.few(start, limit, deadline)?,
            Calls::Plain { .. } | Calls::Gathered(_) => match self.calls.flow() {
                Flow::Serial => self.one_by_one(limit, deadline)?,
                Flow::Pipelined => {
                    let window = self.calls.flow().window(self.calls.size());
                    let mut several = Several {
                        waiting: VecDeque::with_capacity(window),
                        caller: self,
                        deadline,
                    };
                    pipelined(limit, window, &mut several)?
                }
            },
        };
        Ok(Figures {
            server_busy_ns,
            ..figures
        })
    }

    fn one_by_one(&mut self, limit: Duration, deadline: Deadline) -> Result<Figures> {
        let Caller { client, stock, .. } = self;
        let group = stock.size.group();
        match stock.size {
            Size::B0 => serial(limit, group, || {
                let reply = client.call(ECHO, [], deadline)?;
                ensure!(reply.is_empty(), "a call was answered wrongly");
                Ok(())
            }),
            Size::B64 => {
                let message = [FILLING; Size::B64.bytes()];
                serial(limit, group, || {
                    let reply = client.call(ECHO, message, deadline)?;
                    ensure!(reply.bytes() == message, "a call was answered wrongly");
                    Ok(())
                })
            }
            _ => serial(limit, group, || stock.call(client, deadline)),
        }
    }

    /// Calls of several clients at once. The times are those of a call of a client in the mean, and of the slowest.
    fn many(&self, clients: usize, limit: Duration, deadline: Deadline) -> Result<Figures> {
        // Long beside what a thread may have the processor for at a time.
        let limit = limit.max(Duration::from_millis(250));
        let (request, reply) = self.calls.path().parts();
        let ready = Barrier::new(clients);
        let (pd, pool, address) = (&self.pd, self.client.pool(), self.address.as_str());
        let one = || -> Result<(u64, Duration)> {
            let connected = Client::builder()
                .request(request)
                .reply(reply)
                .pool(pd, pool)
                .connect(address);
            ready.wait();
            let mut client = connected?;
            let message = [FILLING; Size::B64.bytes()];
            let (start, mut count) = (Instant::now(), 0);
            while start.elapsed() < limit {
                let reply = client.call(ECHO, message, deadline)?;
                ensure!(reply.bytes() == message, "a call was answered wrongly");
                count += 1;
            }
            Ok((count, start.elapsed()))
        };
        let counts: Result<Vec<_>> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..clients).map(|_| scope.spawn(one)).collect();
            let ends = threads.into_iter().map(|thread| {
                let end = thread.join();
                end.map_err(|_| anyhow::anyhow!("a client panicked"))?
            });
            ends.collect()
        });
        let counts = counts?;
        let rates = counts
            .iter()
            .map(|(n, took)| *n as f64 / took.as_secs_f64());
        let rate: f64 = rates.clone().sum();
        let mean = rate / clients as f64;
        let least = rates.fold(f64::INFINITY, f64::min);
        ensure!(least > 0.0, "a client was not served");
        Ok(Figures {
            p50_ns: 1e9 / mean,
            p99_ns: 1e9 / least,
            rate,
            server_busy_ns: None,
            slowest: Some(least / mean),
            busy: None,
            slice_ns: None,
        })
    }

    /// Calls that wake the server; and, a quarter of the time, calls one right after the other.
    fn after_idle(&mut self, limit: Duration, deadline: Deadline) -> Result<Figures> {
        let Caller { client, pid, .. } = self;
        let message = [FILLING; Size::B64.bytes()];
        let mut call = || {
            let reply = client.call(ECHO, message, deadline)?;
            ensure!(reply.bytes() == message, "a call was answered wrongly");
            anyhow::Ok(())
        };
        let busy = serial(limit / 4, Size::B64.group(), &mut call)?;
        let figures = wake::after_sleep(*pid, limit / 4 * 3, call)?;
        Ok(Figures {
            busy: Some(Busy {
                p50_ns: busy.p50_ns,
                p99_ns: busy.p99_ns,
            }),
            ..figures
        })
    }

    /// So many calls at once, again and again. The times are those of a call.
    fn few(&mut self, start: Start, limit: Duration, deadline: Deadline) -> Result<Figures> {
        let Caller { client, stock, .. } = self;
        let mut calls = Vec::with_capacity(FEW);
        let figures = serial(limit, Group::One, || {
            match start {
                Start::Together => {
                    let mut batch = client.batch();
                    for _ in 0..FEW {
                        batch.add(ECHO, [FILLING; Size::B64.bytes()], deadline)?;
                    }
                    calls.extend(batch.post());
                }
                Start::Apart => {
                    for _ in 0..FEW {
                        calls.push(client.submit(ECHO, [FILLING; Size::B64.bytes()], deadline)?);
                    }
                }
            }
            for call in calls.drain(..) {
                stock.answered(call.wait(client)?)?;
            }
            anyhow::Ok(())
        })?;
        let each = FEW as f64;
        Ok(Figures {
            p50_ns: figures.p50_ns / each,
            p99_ns: figures.p99_ns / each,
            rate: figures.rate * each,
            ..figures
        })
    }

    /// The time that the server is busy with a call, nanoseconds.
    fn server_busy(&mut self, deadline: Deadline) -> Result<f64> {
        const BURSTS: usize = 5;
        let times: Result<Vec<f64>> = (0..BURSTS).map(|_| self.burst(deadline)).collect();
        Ok(median(times?.into_iter()))
    }

    fn burst(&mut self, deadline: Deadline) -> Result<f64> {
        let Caller {
            client,
            stock,
            bursts,
            ..
        } = self;
        bursts.one(
            &mut (client, stock),
            |(client, _)| client,
            |(client, stock)| stock.submit(client, burst::PART, deadline),
            |(client, stock), call| stock.answered(call.wait(client)?),
            deadline,
        )
    }

    /// The same as a case of its own: the times are those of the server.
    fn bursts(&mut self, limit: Duration, deadline: Deadline) -> Result<Figures> {
        let start = Instant::now();
        let mut times = Vec::new();
        while times.is_empty() || start.elapsed() < limit {
            times.push(self.burst(deadline)?);
        }
        times.sort_unstable_by(f64::total_cmp);
        let p50_ns = nearest_rank(&times, 50);
        Ok(Figures {
            p50_ns,
            p99_ns: nearest_rank(&times, 99),
            rate: 1e9 / p50_ns,
            server_busy_ns: None,
            slowest: None,
            busy: None,
            slice_ns: None,
        })
    }

    /// The time of a slice, nanoseconds: its part of the time of a long call, while there is nothing else.
    fn slice_ns(&mut self, bulk: Bulk, deadline: Deadline) -> Result<f64> {
        let client = &mut self.client;
        let pool = client.pool().clone();
        let memory = pool.alloc_in(BudgetKind::User, Kind::Readable, BULK.bytes())?;
        let mut request = SgList::from(memory);
        let mut destination = pool.alloc_zeroed(BULK.bytes())?;
        let mut times = Vec::with_capacity(LONG_CALLS);
        for _ in 0..LONG_CALLS {
            let before = Instant::now();
            match bulk {
                Bulk::Requests => {
                    request = client.call(TAKE, request, deadline)?.take_segments();
                }
                Bulk::Replies => {
                    (_, destination) = client.call_into(GIVE, [], destination, deadline)?;
                }
            }
            times.push(before.elapsed().as_nanos() as f64);
        }
        let slices = BULK.bytes() / SLICE;
        Ok(median(times.into_iter()) / slices as f64)
    }

    /// Small calls one by one, while long ones are on their way. Only the small ones are timed.
    fn beside(&mut self, bulk: Bulk, limit: Duration, deadline: Deadline) -> Result<Figures> {
        let slice_ns = Some(self.slice_ns(bulk, deadline)?);
        let Caller { client, stock, .. } = self;
        let pool = client.pool().clone();
        let mut requests = Vec::new();
        let mut destinations = Vec::new();
        for _ in 0..BULK_CALLS {
            match bulk {
                Bulk::Requests => requests.push(SgList::from(pool.alloc_in(
                    BudgetKind::User,
                    Kind::Readable,
                    BULK.bytes(),
                )?)),
                Bulk::Replies => destinations.push(pool.alloc_zeroed(BULK.bytes())?),
            }
        }
        let mut long: VecDeque<Pending> = VecDeque::new();
        let mut times = Vec::with_capacity(1 << 12);
        // The first quarter fills the caches, and is not timed.
        let (start, mut timed) = (Instant::now(), None);
        while times.is_empty() || start.elapsed() < limit {
            while let Some(request) = requests.pop() {
                long.push_back(client.submit(TAKE, request, deadline)?);
            }
            while let Some(destination) = destinations.pop() {
                long.push_back(client.submit_into(GIVE, [], destination, deadline)?);
            }
            let before = Instant::now();
            let call = stock.submit(client, ECHO, deadline)?;
            stock.answered(call.wait(client)?)?;
            if before - start >= limit / 4 {
                timed.get_or_insert(before);
                times.push(before.elapsed().as_nanos() as f64);
            }
            while long.front().is_some_and(|call| call.is_ready(client)) {
                let call = long.pop_front().context("a call was lost")?;
                let mut reply = call.wait(client)?;
                match bulk {
                    Bulk::Requests => requests.push(reply.take_segments()),
                    Bulk::Replies => destinations.extend(reply.take_destination()),
                }
            }
        }
        let elapsed = timed.unwrap_or(start).elapsed();
        for call in long {
            call.wait(client)?;
        }
        let count = times.len();
        times.sort_unstable_by(f64::total_cmp);
        Ok(Figures {
            p50_ns: nearest_rank(&times, 50),
            p99_ns: nearest_rank(&times, 99),
            rate: count as f64 / elapsed.as_secs_f64(),
            server_busy_ns: None,
            slowest: None,
            busy: None,
            slice_ns,
        })
    }
}

/// Several calls on their way.
struct Several<'a> {
    caller: &'a mut Caller,
    waiting: VecDeque<Pending>,
    deadline: Deadline,
}

impl Pipeline for Several<'_> {
    type Error = anyhow::Error;

    #[inline]
    fn submit(&mut self) -> Result<()> {
        let Caller { client, stock, .. } = &mut *self.caller;
        let call = stock.submit(client, ECHO, self.deadline)?;
        self.waiting.push_back(call);
        Ok(())
    }

    #[inline]
    fn complete(&mut self) -> Result<usize> {
        let Caller { client, stock, .. } = &mut *self.caller;
        let call = self.waiting.pop_front().context("no call is on its way")?;
        stock.answered(call.wait(client)?)?;
        Ok(1)
    }
}
