//! Stopping when all is done.
//!
//! Requests that arrive from now on are refused as not started. Those that had arrived are answered, by handlers that run when a
//! body has come in, and by whoever holds a responder. Each client is told. A connection is closed
//!
//! * when its client has said goodbye, as it does once it has been told and has all answers; or
//! * when all has been answered, the device is done with the answers, and nothing is left here for the client to READ: then its client
//!   has them. It may be busy elsewhere, and have posted requests that nobody will ever start; the last word on the control connection says so; or
//! * at the deadline.

use super::conn::Conn;
use super::core::Host;
use super::core_loop::CoreLoop;
use super::mailbox::DRAIN;
use super::request::Request;
use super::responder::Responder;
use crate::clock::Moment;
use crate::credit::Class;
use crate::error::Lost;
use crate::outgoing::header_buf;
use crate::posted::Body;
use crate::trace::{event, span};
use crate::wait::{Next, Waiter};
use crate::wire::{Header, Kind};
use std::time::Duration;

/// How long to sleep at most while a message waits for room or memory.
const RETRY: Duration = Duration::from_millis(1);

/// Rounds with something to do, after which the control connections are looked at.
const BUSY_ROUNDS: u32 = 64;

/// How far a connection has come.
enum Stage {
    /// Answers are to be given or to complete, or the client is to say goodbye.
    Waiting,
    /// A message could not be posted yet.
    Again,
    /// Its client has everything.
    Done,
}

impl<H> CoreLoop<H>
where
    H: FnMut(Request<'_>, Responder),
{
    /// Finishes what there is, if that is wanted; until the deadline, or until told to stop at once.
    pub(super) fn drain(&mut self) {
        if self.mailbox.state() != DRAIN {
            return;
        }
        let (core, connections) = (self.host.index, self.conns.len());
        span!("drain", core);
        event!(INFO, core, connections, "a core drains");
        self.finish();
        let left = self.conns.len();
        event!(INFO, core, left, "a core has drained");
    }

    /// Until nothing is left, or the deadline, or told to stop at once.
    fn finish(&mut self) {
        let until = self.mailbox.until();
        for (_, conn) in &mut self.conns {
            conn.guarded = true;
        }
        self.host.begin_to_drain();
        self.deliver();
        let mut waiter = Waiter::new(self.host.settings.waiting);
        let mut busy = 0u32;
        loop {
            self.turn_all_away();
            let passed = self.pass(waiter.row());
            let again = self.part();
            if self.conns.is_empty() || self.mailbox.state() != DRAIN {
                return;
            }
            if passed > 0 {
                waiter.found();
                busy += 1;
                // Each time: there can be a handler in each, for what has come in.
                let now = Moment::now();
                if until.is_past_at(now) {
                    return;
                }
                if busy.is_multiple_of(BUSY_ROUNDS) {
                    self.settle();
                    self.look(now);
                }
                continue;
            }
            match waiter.idle() {
                Next::Poll => {}
                Next::Look(now) => {
                    if until.is_past_at(now) {
                        return;
                    }
                    self.look(now);
                    self.host.arrived = None;
                }
                Next::Sleep(now) => {
                    if until.is_past_at(now) {
                        return;
                    }
                    let left = until.remaining_at(now);
                    let most = again.then_some(RETRY).into_iter().chain(left).min();
                    let slept = self.sleep(DRAIN, most);
                    self.host.arrived = None;
                    if slept {
                        waiter.found();
                    }
                }
            }
        }
    }

    /// Tells clients, and closes what is done; whether to try again soon.
    fn part(&mut self) -> bool {
        let mut again = false;
        let mut ended = Vec::new();
        for (key, conn) in &mut self.conns {
            match conn.part(&mut self.host) {
                Ok(Stage::Waiting) => {}
                Ok(Stage::Again) => again = true,
                Ok(Stage::Done) => ended.push((key, Lost::Drained)),
                Err(lost) => ended.push((key, lost)),
            }
        }
        for (key, why) in ended {
            self.close(key, &why);
        }
        again
    }
}

impl Conn {
    /// Tells the client, if that has not been done, and whether it has everything.
    fn part<H>(&mut self, host: &mut Host<H>) -> Result<Stage, Lost> {
        if !self.told {
            return self.tell(host);
        }
        let left = self.shelf.is_some() || self.slots.iter().any(|slot| !slot.held.is_nothing());
        match self.is_busy() || left || !self.link.is_drained() {
            true => Ok(Stage::Waiting),
            false => Ok(Stage::Done),
        }
    }

    fn tell<H>(&mut self, host: &mut Host<H>) -> Result<Stage, Lost> {
        if !self.link.may_post(Class::Control) {
            return Ok(Stage::Again);
        }
        let Ok(buf) = header_buf(&host.pool, 0) else {
            return Ok(Stage::Again);
        };
        // The device is to say of each answer when it is done with it.
        self.link.signal_all();
        let header = Header::new(Kind::GoAway);
        self.link
            .post(Class::Control, header, buf, Body::Empty, None)?;
        self.told = true;
        Ok(Stage::Waiting)
    }
}
