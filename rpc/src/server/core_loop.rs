//! The loop of a core.

use super::conn::Conn;
use super::core::Host;
use super::events::Events;
use super::mailbox::{Mailbox, RUN};
use super::request::Request;
use super::responder::{ConnId, Responder, What};
use super::routes::{Of, Route, Routes};
use crate::clock::Moment;
use crate::error::Lost;
use crate::wait::{Next, Waiter};
use slab::Slab;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::Duration;
use verbs::{Completion, WcBatch};

/// Completions taken in one poll.
const BATCH: usize = 64;

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
    pub(super) routes: Routes,
    /// Connections with something to do that no completion will remind of.
    pub(super) active: Vec<usize>,
    /// Connections with receive entries to post when there is time.
    late: Vec<usize>,
    pub(super) epoch: u64,
    pub(super) batch: WcBatch,
    pub(super) events: Events,
    pub(super) mailbox: Arc<Mailbox>,
    pub(super) connections: Arc<AtomicUsize>,
    pub(super) looked: Moment,
    /// Whether the last turn of those with something to do went to a READ.
    reading: bool,
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
            routes: Routes::default(),
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
        // Also without one: what is dropped with a connection can be what was to answer another.
        self.deliver();
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
        let Some(Route { key, of }) = self.routes.find(queue) else {
            return;
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

    fn stop(mut self) {
        self.turn_all_away();
        self.close_all(&Lost::ClosedHere);
    }
}
