//! What the acceptor hands to a core, and how it is told to stop.

use crate::handshake::Terms;
use crate::stream::Stream;
use crate::wait::WakeUp;
use parking_lot::Mutex;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use verbs::Endpoint;

/// A client that has said hello, with terms that both can live with.
pub(super) struct Seed {
    pub stream: Stream,
    pub peer: SocketAddr,
    pub terms: Terms,
    pub endpoint: Endpoint,
}

/// One thread's mailbox. Its owner looks at a flag; the lock is only taken when there is mail.
pub(super) struct Mailbox {
    seeds: Mutex<Vec<Seed>>,
    mail: AtomicBool,
    stop: AtomicBool,
    pub wake: WakeUp,
}

impl Mailbox {
    pub fn new() -> io::Result<Mailbox> {
        Ok(Mailbox {
            seeds: Mutex::default(),
            mail: AtomicBool::new(false),
            stop: AtomicBool::new(false),
            wake: WakeUp::new()?,
        })
    }

    pub fn send(&self, seed: Seed) {
        self.seeds.lock().push(seed);
        self.mail.store(true, Ordering::Release);
        self.wake.wake();
    }

    pub fn stop(&self) {
        self.stop.store(true, Ordering::Release);
        self.wake.wake();
    }

    #[inline]
    pub fn stopping(&self) -> bool {
        self.stop.load(Ordering::Acquire)
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
