//! What connections of a core share: the handler, the pool, the counters.

use super::Settings;
use super::request::Request;
use super::responder::{Outbox, Responder};
use super::stats::CoreCounters;
use crate::outgoing::Copies;
use mempool::Pool;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;
use verbs::Pd;

/// A core, as the function that makes its handler sees it.
#[derive(Debug)]
pub struct Core {
    pub(super) index: usize,
    pub(super) pool: Pool,
}

impl Core {
    /// Which core this is, from 0.
    pub fn index(&self) -> usize {
        self.index
    }

    /// The pool for replies.
    pub fn pool(&self) -> &Pool {
        &self.pool
    }
}

pub(super) struct Host<H> {
    pub handler: H,
    pub pool: Pool,
    pub pd: Pd,
    pub outbox: Rc<Outbox>,
    pub counters: Arc<CoreCounters>,
    pub settings: Settings,
    /// When the messages at hand were taken from the completion queue, once somebody has asked.
    pub arrived: Option<Instant>,
    /// Copies that have not been counted yet.
    pub copies: Copies,
}

impl<H> Host<H>
where
    H: FnMut(Request<'_>, Responder),
{
    /// Runs the handler. If it panics, the responder it was given answers, or has answered.
    pub fn run<'a>(&'a mut self, request: impl FnOnce(&'a Pool) -> Request<'a>, to: Responder) {
        self.counters.calls.add(1);
        let request = request(&self.pool);
        let handler = &mut self.handler;
        // What a handler leaves behind when it panics is its own; nothing of ours is touched by it.
        let result = catch_unwind(AssertUnwindSafe(|| handler(request, to)));
        if let Err(payload) = result {
            self.counters.panics.add(1);
            // Dropping what it panicked with may panic as well; a second one is forgotten.
            if let Err(again) = catch_unwind(AssertUnwindSafe(|| drop(payload))) {
                std::mem::forget(again);
            }
        }
    }
}

impl<H> Host<H> {
    /// Publishes copies made since the last time.
    pub fn count_copies(&mut self) {
        let taken = self.outbox.copies.take();
        let made = std::mem::take(&mut self.copies);
        let copies = taken.copies + made.copies;
        if copies > 0 {
            self.counters.copies.add(copies);
            self.counters.bytes_copied.add(taken.bytes + made.bytes);
        }
    }
}
