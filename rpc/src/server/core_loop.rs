//! The loop of a core.

use super::Settings;
use super::acceptor::refuse;
use super::books::ConnBook;
use super::conn::Conn;
use super::core::Host;
use super::mailbox::{Mailbox, RUN, Seed};
use super::request::Request;
use super::responder::{ConnId, Responder, What};
use crate::bell::Rest;
use crate::clock::Moment;
use crate::control::Control;
use crate::credit::CONTROL_RESERVE;
use crate::epoll::Epoll;
use crate::error::{Lost, ServeError};
use crate::handshake::{Frame, Goodbye, PUSHED_INTO_RING, RefusalCode, Welcome};
use crate::link::{Link, PrepareError, Prepared, TO_SLEEP, send_depth};
use crate::shelf::{Shelf, ShelfError};
use crate::trace::{event, span};
use crate::wait::{DOZE, Next, Waiter};
use slab::Slab;
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use verbs::{Channel, Completion, Cq, Pd, QueueId, WcBatch};

const CHANNEL: u64 = 0;
const WAKE: u64 = 1;
/// Of clients that the core looks after.
pub(super) const DRIVEN: u64 = u64::MAX;
/// Tokens from here on are connections, by key.
const FIRST: u64 = 2;

/// Completions taken in one poll.
const BATCH: usize = 64;

/// How often control connections are looked at while there is no time to sleep on them.
const CONTROL_EVERY: Duration = Duration::from_micros(500);

/// Rounds with something to do, after which the clock is looked at.
const BUSY_ROUNDS: u32 = 64;

/// Rounds with something to do, after which clients may run that share the core: few, or those on other processors have been answered that
/// much more often.
const WAY_ROUNDS: u32 = 8;

/// How long to sleep at most while an answer waits for memory that another core may free.
pub(super) const RETRY: Duration = Duration::from_millis(1);

pub(super) struct CoreLoop<H> {
    pub(super) host: Host<H>,
    pub(super) conns: Slab<Conn>,
    routes: HashMap<QueueId, Route, BuildHasherDefault<IdHasher>>,
    /// The route found last: the next completion is often of the same queue.
    last: Option<(QueueId, Route)>,
    /// Connections with something to do that no completion will remind of.
    pub(super) active: Vec<usize>,
    /// Connections with receive entries to post when there is time.
    late: Vec<usize>,
    epoch: u64,
    batch: WcBatch,
    pub(super) events: Events,
    pub(super) mailbox: Arc<Mailbox>,
    connections: Arc<AtomicUsize>,
    looked: Moment,
    /// Whether the last turn of those with something to do went to a READ.
    reading: bool,
}

/// Where a core's completions and wake-ups come from.
pub(super) struct Events {
    cq: Cq,
    channel: Channel,
    epoll: Epoll,
    /// Whether the channel has an event.
    rang: bool,
}

/// A connection that is ready, and what to tell the client.
type Admitted = (Link, Option<Shelf>, Welcome);

#[derive(Clone, Copy)]
struct Route {
    key: usize,
    of: Of,
}

/// What completions of a queue are of.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Of {
    Message,
    Work,
    /// Of a wake, on a connection whose ring is polled.
    Wake,
}

impl Events {
    pub fn new(pd: &Pd, settings: &Settings, mailbox: &Mailbox) -> Result<Events, ServeError> {
        let context = pd.context();
        let create = |what| move |source| ServeError::Create { what, source };
        let channel = context.channel().map_err(create("completion channel"))?;
        // I4: as many entries as the queues of all connections can have outstanding. Where the
        // device has fewer, connections are refused when it is full.
        let limits = &settings.limits;
        let slots = limits.slots.min(limits.window - CONTROL_RESERVE);
        let each = send_depth(slots) + limits.window;
        let wanted = u64::from(each) * settings.max_connections as u64;
        let most = u64::from(context.query_device().max_cqe);
        let depth = wanted.clamp(1, most.max(1)) as u32;
        let cq = context
            .cq(depth)
            .channel(&channel)
            .build()
            .map_err(create("completion queue"))?;
        let start = |source| ServeError::Start {
            what: "a core's event queue",
            source,
        };
        let epoll = Epoll::new().map_err(start)?;
        epoll.add(&channel, CHANNEL).map_err(start)?;
        epoll.add(&mailbox.wake, WAKE).map_err(start)?;
        Ok(Events {
            cq,
            channel,
            epoll,
            rang: false,
        })
    }

    /// Has a descriptor of a client's end a sleep.
    pub fn watch(&self, fd: impl AsFd) -> io::Result<()> {
        match self.epoll.add(fd, DRIVEN) {
            // Watched already, for another action.
            Err(error) if error.raw_os_error() == Some(libc::EEXIST) => Ok(()),
            done => done,
        }
    }

    /// No longer.
    pub fn unwatch(&self, fd: impl AsFd) {
        // One that is not watched is none the worse.
        let _ = self.epoll.remove(fd);
    }
}

impl<H> CoreLoop<H>
where
    H: FnMut(Request<'_>, Responder),
{
    pub fn new(
        host: Host<H>,
        events: Events,
        mailbox: Arc<Mailbox>,
        connections: Arc<AtomicUsize>,
    ) -> CoreLoop<H> {
        CoreLoop {
            host,
            conns: Slab::new(),
            routes: HashMap::default(),
            last: None,
            active: Vec::new(),
            late: Vec::new(),
            epoch: 0,
            batch: WcBatch::with_capacity(BATCH),
            events,
            mailbox,
            connections,
            looked: Moment::now(),
            reading: false,
        }
    }

    /// Serves until told to stop.
    pub fn run(mut self) {
        let mut waiter = Waiter::new(self.host.settings.waiting);
        let mut busy = 0u32;
        while !self.mailbox.stopping() {
            if self.mailbox.has_mail() {
                for seed in self.mailbox.take() {
                    self.admit(seed);
                }
                self.host.arrived = None;
            }
            if self.pass(waiter.row()) > 0 {
                waiter.found();
                busy = busy.wrapping_add(1);
                if busy.is_multiple_of(WAY_ROUNDS) && waiter.gives_way() {
                    waiter.give_way();
                }
                if busy.is_multiple_of(BUSY_ROUNDS) {
                    self.settle();
                    let now = Moment::now();
                    self.look(now);
                    if waiter.way_is_due(now) {
                        waiter.give_way();
                    }
                }
                continue;
            }
            match waiter.idle() {
                Next::Poll => {}
                Next::Look(now) => {
                    self.look(now);
                    self.host.arrived = None;
                }
                Next::Sleep(_) => {
                    let slept = self.sleep(RUN, None);
                    self.host.arrived = None;
                    if slept {
                        // What woke us is usually followed by more.
                        waiter.found();
                    }
                }
            }
        }
        self.drain();
        self.stop();
    }

    /// Takes in completions and posts what can be posted; how much there was to do. If there is nothing, looks again, so many
    /// times in all: with nothing but looking between, what comes is found the sooner.
    pub(super) fn pass(&mut self, polls: u32) -> usize {
        let mut left = polls;
        if !self.active.is_empty() {
            left = 1;
            self.host.arrived = None;
        }
        let mut first = true;
        let mut done = loop {
            left = left.saturating_sub(1);
            match self.events.cq.poll_into(&mut self.batch) {
                Ok(0) if left > 0 => {
                    // What comes next has not come yet. While nobody waits is the time to look at the clock.
                    if first {
                        self.host.arrived = Some(Moment::now());
                        first = false;
                    }
                }
                Ok(found) => break found,
                Err(error) => {
                    self.rebuild(error);
                    return 1;
                }
            }
        };
        if done == 0 {
            // What was left for such a moment.
            self.settle();
        }
        while let Some(completion) = self.batch.pop() {
            self.dispatch(completion);
            self.deliver();
        }
        let served = self.host.lateness.renew();
        if done > 0 {
            self.host.arrived = None;
        }
        if !self.active.is_empty() {
            done += self.attend(served);
        }
        if !self.host.driven.is_empty() {
            done += self.drive(false);
        }
        done
    }

    fn dispatch(&mut self, completion: Completion) {
        let queue = completion.queue();
        let Route { key, of } = match self.last {
            Some((last, route)) if last == queue => route,
            _ => match self.routes.get(&queue) {
                Some(&route) => self.last.insert((queue, route)).1,
                // Left over from a connection that is gone.
                None => return,
            },
        };
        let Some(conn) = self.conns.get_mut(key) else {
            return;
        };
        let result = match of {
            Of::Message => conn.received(&mut self.host, completion),
            Of::Work => conn.sent(&mut self.host, completion),
            Of::Wake => return self.wake(key, completion),
        };
        match result {
            Ok(()) => self.list(key),
            Err(lost) => self.close(key, &lost),
        }
    }

    /// Posts answers that were given outside of their own connection's turn.
    #[inline(always)]
    pub(super) fn deliver(&mut self) {
        if !self.host.outbox.is_empty() {
            self.deliver_all();
        }
    }

    #[inline(never)]
    fn deliver_all(&mut self) {
        while let Some(response) = self.host.outbox.pop() {
            let ConnId { key, epoch } = response.conn;
            let Some(conn) = self.conns.get_mut(key).filter(|c| c.id.epoch == epoch) else {
                if let What::Part(_, stream) = response.what {
                    stream.close();
                }
                continue;
            };
            match conn.respond(&mut self.host, response) {
                Ok(()) => self.list(key),
                Err(lost) => self.close(key, &lost),
            }
        }
    }

    #[inline]
    fn list(&mut self, key: usize) {
        let Some(conn) = self.conns.get_mut(key) else {
            return;
        };
        if !conn.listed && conn.is_active() {
            conn.listed = true;
            self.active.push(key);
        }
        if !conn.late && conn.link.is_late() {
            conn.late = true;
            self.late.push(key);
        }
    }

    /// Posts the receive entries that are late.
    pub(super) fn settle(&mut self) {
        while let Some(key) = self.late.pop() {
            let Some(conn) = self.conns.get_mut(key) else {
                continue;
            };
            conn.late = false;
            match conn.link.settle() {
                Ok(()) => self.list(key),
                Err(lost) => self.close(key, &lost),
            }
        }
    }

    /// Gives every connection with something to do its turn, and one of them its READ: a slice can take the device a while, and whoever calls with
    /// little is not to wait for more than one.
    ///
    /// `served` is whether handlers have run since the last time.
    fn attend(&mut self, served: bool) -> usize {
        self.disturbed(served);
        let (mut done, mut reads, mut looked) = (0, 0, 0);
        let mut turn = std::mem::take(&mut self.active);
        // Whose READ it was the last time comes last.
        turn.rotate_left(1);
        for &key in &turn {
            let Some(conn) = self.conns.get_mut(key) else {
                continue;
            };
            conn.listed = false;
            let host = &mut self.host;
            let result = conn
                .look(host)
                .and_then(|n| {
                    looked += n;
                    Ok(n + conn.flush(host)?)
                })
                .and_then(|n| {
                    if reads > 0 {
                        return Ok(n);
                    }
                    reads = conn.post_reads(host)?;
                    Ok(n + reads)
                })
                .and_then(|n| Ok(n + conn.return_credits(host)?));
            match result {
                Ok(n) => {
                    done += n;
                    let awake = conn.awake && !std::mem::replace(&mut conn.listed, true);
                    if awake {
                        self.active.push(key);
                    }
                    self.list(key);
                }
                Err(lost) => {
                    done += 1;
                    // Handlers may have run before it came to that, and have answered others.
                    looked += 1;
                    self.close(key, &lost);
                }
            }
            if looked > 0 {
                self.deliver();
                self.host.arrived = None;
                let served = self.host.lateness.renew();
                self.disturbed(served);
                looked = 0;
            }
        }
        self.reading = reads > 0;
        done
    }

    /// Notes whether somebody was served between two READs, for whom nothing had to be READ.
    fn disturbed(&mut self, served: bool) {
        let long = std::mem::take(&mut self.host.long);
        if served && !long && self.reading {
            self.host.slices.interrupted();
        }
    }

    /// Makes a connection out of a seed.
    fn admit(&mut self, mut seed: Seed) {
        span!("admit", core = self.host.index, peer = %seed.peer);
        match self.connect(&mut seed) {
            Ok((link, shelf, welcome)) => {
                // Counted before the client can know.
                self.epoch += 1;
                let (epoch, terms) = (self.epoch, &seed.terms);
                let book = ConnBook::new(seed.peer, (terms.request_path, terms.reply_path));
                let core = &self.host.book;
                core.enter(epoch, Arc::clone(&book));
                core.counters.opened.add(1);
                let bytes = Frame::Welcome(welcome).encode();
                if !matches!(seed.stream.write(&bytes), Ok(n) if n == bytes.len()) {
                    link.destroy();
                    drop(shelf);
                    self.gone();
                    self.host.book.leave(epoch);
                    return self.host.book.counters.closed.add(1);
                }
                self.insert(seed, link, shelf, (epoch, book));
            }
            Err((code, text)) => self.turn_away(&mut seed, code, &text),
        }
    }

    fn connect(&self, seed: &mut Seed) -> Result<Admitted, (RefusalCode, String)> {
        let terms = &seed.terms;
        let refuse = |error: PrepareError| {
            let code = match error {
                PrepareError::Receives(_) => RefusalCode::Full,
                PrepareError::Create(verbs::Error::CqTooSmall { .. }) => RefusalCode::Full,
                _ => RefusalCode::Device,
            };
            (code, error.to_string())
        };
        let limits = &self.host.settings.limits;
        let ring = terms.request_path.has_ring();
        let ring = ring.then(|| limits.ring_size(terms.window, terms.inline_limit));
        let prepared = Prepared::new(
            &self.host.pd,
            &self.events.cq,
            &self.host.pool,
            terms.window,
            terms.slots,
            (ring, terms.peer_polls),
        )
        .map_err(refuse)?;
        let shelf = match terms.reply_path.has_shelf() {
            true => {
                let (pd, pool) = (&self.host.pd, &self.host.pool);
                let shelf = Shelf::new(pd, pool, terms.slots, terms.inline_limit);
                Some(shelf.map_err(|error| match error {
                    ShelfError::Memory(error) => (RefusalCode::Full, error.to_string()),
                    ShelfError::Register(error) => (RefusalCode::Device, error.to_string()),
                })?)
            }
            false => None,
        };
        let welcome = Welcome {
            request_path: terms.request_path as u8,
            reply_path: terms.reply_path as u8,
            window: terms.window,
            inline_limit: terms.inline_limit,
            slots: terms.slots,
            max_message: terms.max_message,
            features: match terms.reply_ring {
                true => PUSHED_INTO_RING,
                false => 0,
            },
            endpoint: prepared.endpoint().to_bytes().to_vec(),
            ring: prepared.ring(),
            shelf: shelf.as_ref().map(Shelf::remote),
            cell: prepared.cell(),
        };
        // The client keeps as many requests unanswered as there are slots.
        let link = prepared
            .connect(&seed.endpoint, seed.terms, terms.slots)
            .map_err(refuse)?;
        Ok((link, shelf, welcome))
    }

    fn insert(
        &mut self,
        seed: Seed,
        link: Link,
        shelf: Option<Shelf>,
        (epoch, book): (u64, Arc<ConnBook>),
    ) {
        let entry = self.conns.vacant_entry();
        let key = entry.key();
        let id = ConnId { key, epoch };
        let route = |of| Route { key, of };
        let polls = link.polls();
        let received = if polls { Of::Wake } else { Of::Message };
        self.routes.insert(link.send_id(), route(Of::Work));
        self.routes.insert(link.recv_id(), route(received));
        let watched = self.events.epoll.add(&seed.stream, FIRST + key as u64);
        let control = Control::new(seed.stream);
        event!(DEBUG, core = self.host.index, connection = epoch, peer = %seed.peer, "a connection was opened");
        let mut conn = Conn::new(id, link, shelf, control, (seed.peer, seed.ticket), book);
        conn.guarded = self.host.settings.peer.meters() || self.host.book.times.is_some();
        conn.awake = polls;
        self.host.book.counters.woken.add(u64::from(polls));
        conn.listed = polls;
        entry.insert(conn);
        // It may be there still, of one that had this key before: not twice, or it would stay so.
        if polls && !self.active.contains(&key) {
            self.active.push(key);
        }
        if let Err(error) = watched {
            return self.close(key, &Lost::Gone(Some(error)));
        }
        // What came right behind the hello may be here already, so that the descriptor will not tell.
        if let Some(Err(lost)) = self.conns.get_mut(key).map(|conn| conn.control.check()) {
            self.close(key, &lost);
        }
    }

    pub(super) fn turn_away(&mut self, seed: &mut Seed, code: RefusalCode, text: &str) {
        refuse(&mut seed.stream, code, text);
        event!(WARN, peer = %seed.peer, code = ?code, why = %text, "a client was refused");
        self.gone();
    }

    /// A seed that did not become a connection.
    fn gone(&mut self) {
        self.connections.fetch_sub(1, Ordering::Relaxed);
        self.host.book.counters.refused.add(1);
    }

    /// Ends a connection.
    pub(super) fn close(&mut self, key: usize, why: &Lost) {
        let Some(mut conn) = self.conns.try_remove(key) else {
            return;
        };
        self.last = None;
        self.routes.remove(&conn.link.send_id());
        self.routes.remove(&conn.link.recv_id());
        // Work also fails because the client has gone; before it went, it has said so.
        let behind;
        let why = match why {
            Lost::Work { .. } | Lost::Post { .. } | Lost::Verbs(_) => match conn.control.check() {
                Err(lost @ (Lost::Gone(_) | Lost::Goodbye(_))) => {
                    behind = lost;
                    &behind
                }
                _ => why,
            },
            _ => why,
        };
        let counters = &self.host.book.counters;
        counters.rnr.add(conn.link.rnr());
        counters.rested.add(u64::from(conn.awake));
        let broken = match why {
            Lost::Gone(_) | Lost::ClosedHere | Lost::Drained => false,
            Lost::Work { what: TO_SLEEP, .. } => false,
            Lost::Goodbye(goodbye) => *goodbye != Goodbye::Closing,
            _ => true,
        };
        let (core, epoch, peer) = (self.host.index, conn.id.epoch, conn.peer);
        if broken {
            counters.broken.add(1);
            event!(WARN, core, connection = epoch, peer = %peer, why = %why, "a connection broke");
        } else {
            event!(DEBUG, core, connection = epoch, peer = %peer, why = %why, "a connection was closed");
        }
        if !matches!(why, Lost::Gone(_) | Lost::Goodbye(_)) {
            conn.control.goodbye(why.goodbye());
        }
        conn.destroy();
        if self.conns.is_empty() {
            // Without clients there is nothing to keep them for.
            self.host.outbox.frames.borrow_mut().clear();
        }
        self.host.book.leave(epoch);
        // Only now is there room for another; and whoever sees it counted as closed finds it.
        self.connections.fetch_sub(1, Ordering::Relaxed);
        counters.closed.add(1);
    }

    /// Looks at the control connections, now and then.
    pub(super) fn look(&mut self, now: Moment) {
        if now.since(self.looked) >= CONTROL_EVERY {
            self.looked = now;
            self.wait_for_events(Some(Duration::ZERO));
            self.hear();
            self.tire(false);
            if !self.host.driven.is_empty() {
                self.attend_driven(now);
            }
        }
    }

    /// Sleeps until there is something to do, for so long at most, unless the state has changed; false if it was just dozing, so that there is no
    /// reason to look for long.
    pub(super) fn sleep(&mut self, state: u8, most: Option<Duration>) -> bool {
        let doze = match self.tire(true) {
            Rest::Asleep => None,
            Rest::Doze => Some(DOZE),
            _ => return true,
        };
        if let Err(error) = self.events.cq.arm(false) {
            self.rebuild(error);
            return true;
        }
        // What came before the queue was armed wakes nobody.
        if self.pass(1) > 0 || self.mailbox.has_mail() || self.mailbox.state() != state {
            return true;
        }
        let rest = match self.host.driven.is_empty() {
            true => None,
            false => match self.rest_driven() {
                Some(rest) => rest,
                None => return true,
            },
        };
        let retry = self.active.iter().any(|&key| {
            self.conns
                .get(key)
                .is_some_and(|conn| !conn.unsent.is_empty())
        });
        let timeout = retry.then_some(RETRY).into_iter().chain(doze);
        let timeout = timeout.chain(most).chain(rest).min();
        self.wait_for_events(timeout);
        if !self.host.driven.is_empty() {
            self.wake_driven();
        }
        let mut done = 0;
        if self.events.rang {
            // Who has woken us waits for its answer: first that, and then the system calls that make the descriptor quiet.
            self.host.arrived = None;
            done = self.pass(1);
        }
        self.hear();
        self.looked = Moment::now();
        doze.is_none() || done > 0
    }

    /// Takes the event of the completion queue, if there is one.
    fn hear(&mut self) {
        if std::mem::take(&mut self.events.rang)
            && let Err(error) = self.events.channel.wait(Some(Duration::ZERO))
        {
            self.rebuild(error);
        }
    }

    fn wait_for_events(&mut self, timeout: Option<Duration>) {
        let Ok(tokens) = self.events.epoll.wait(timeout) else {
            // Cannot be, short of a descriptor closed by somebody else; do not spin on it.
            std::thread::sleep(RETRY);
            return;
        };
        for token in tokens {
            match token {
                CHANNEL => self.events.rang = true,
                WAKE => self.mailbox.wake.clear(),
                DRIVEN => {}
                token => {
                    let key = (token - FIRST) as usize;
                    let state = self.conns.get_mut(key).map(|conn| conn.control.check());
                    if let Some(Err(lost)) = state {
                        self.close(key, &lost);
                    }
                }
            }
        }
    }

    /// The completion queue is broken, and with it every connection of this core: all end, and
    /// others can come.
    fn rebuild(&mut self, error: verbs::Error) {
        let lost = Lost::Verbs(error);
        self.close_all(&lost);
        while self.batch.pop().is_some() {}
        match Events::new(&self.host.pd, &self.host.settings, &self.mailbox) {
            Ok(events) => self.events = events,
            // The device is gone for good, perhaps; do not spin on it.
            Err(_) => std::thread::sleep(Duration::from_millis(100)),
        }
    }

    fn close_all(&mut self, why: &Lost) {
        let keys: Vec<usize> = self.conns.iter().map(|(key, _)| key).collect();
        for key in keys {
            self.close(key, why);
        }
    }

    /// No more connections are made.
    pub(super) fn turn_all_away(&mut self) {
        for mut seed in self.mailbox.take() {
            self.turn_away(&mut seed, RefusalCode::Stopping, "the server is stopping");
        }
    }

    fn stop(mut self) {
        self.turn_all_away();
        self.close_all(&Lost::ClosedHere);
    }
}

/// Queue ids are numbers that differ in their low bits: mixing them is enough.
#[derive(Default)]
struct IdHasher(u64);

impl Hasher for IdHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u64(u64::from(byte));
        }
    }

    fn write_u64(&mut self, n: u64) {
        // The odd number nearest to 2^64 divided by the golden ratio spreads consecutive numbers.
        self.0 = (self.0 ^ n)
            .wrapping_mul(0x9e37_79b9_7f4a_7c15)
            .rotate_left(32);
    }
}
