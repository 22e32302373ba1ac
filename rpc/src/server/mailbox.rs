//! What the acceptor hands to a core, and how it is told to stop.

use super::peers::Ticket;
use crate::deadline::Deadline;
use crate::handshake::Terms;
use crate::stream::Stream;
use crate::wait::WakeUp;
use parking_lot::Mutex;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use verbs::Endpoint;

/// A client that has said hello, with terms that both can live with.
pub(super) struct Seed {
    pub stream: Stream,
    pub peer: SocketAddr,
    pub terms: Terms,
    pub endpoint: Endpoint,
    pub ticket: Ticket,
}

/// Serve.
pub(super) const RUN: u8 = 0;
/// Finish what there is, then stop.
pub(super) const DRAIN: u8 = 1;
/// Stop.
pub(super) const STOP: u8 = 2;

/// One thread's mailbox. Its owner looks at a flag; the lock is only taken when there is mail.
pub(super) struct Mailbox {
    seeds: Mutex<Vec<Seed>>,
    mail: AtomicBool,
    state: AtomicU8,
    /// When draining is to end.
    until: Mutex<Deadline>,
    pub wake: WakeUp,
}

impl Mailbox {
    pub fn new() -> io::Result<Mailbox> {
        Ok(Mailbox {
            seeds: Mutex::default(),
            mail: AtomicBool::new(false),
            state: AtomicU8::new(RUN),
            until: Mutex::new(Deadline::never()),
            wake: WakeUp::new()?,
        })
    }

    pub fn send(&self, seed: Seed) {
        self.seeds.lock().push(seed);
        self.mail.store(true, Ordering::Release);
        self.wake.wake();
    }

    /// Stop at once.
    pub fn stop(&self) {
        self.state.fetch_max(STOP, Ordering::AcqRel);
        self.wake.wake();
    }

    /// Take nothing more, finish what there is until then, and stop.
    pub fn drain(&self, until: Deadline) {
        *self.until.lock() = until;
        self.state.fetch_max(DRAIN, Ordering::AcqRel);
        self.wake.wake();
    }

    /// Whether it has been told to stop, at once or not.
    #[inline]
    pub fn stopping(&self) -> bool {
        self.state() != RUN
    }

    /// [`RUN`], [`DRAIN`] or [`STOP`].
    #[inline]
    pub fn state(&self) -> u8 {
        self.state.load(Ordering::Acquire)
    }

    /// When draining is to end.
    pub fn until(&self) -> Deadline {
        *self.until.lock()
    }

    #[inline]
    pub fn has_mail(&self) -> bool {
        self.mail.load(Ordering::Acquire)
    }

    pub fn take(&self) -> Vec<Seed> {
        self.mail.store(false, Ordering::Release);
        std::mem::take(&mut *self.seeds.lock())
    }
}
