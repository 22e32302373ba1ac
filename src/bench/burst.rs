//! What a call costs the server: the time that it is busy with a burst of requests that have all arrived, per call.
//!
//! A handler holds the server until the client has posted the whole burst. From then on the server never waits, until the last handler begins.
//! So the time between is all that it does for that many calls: requests taken in, handlers called, which only echo, and replies brought on their
//! way, and whatever belongs to that. The client does nothing meanwhile but look at one word.

use anyhow::{Context, Result, ensure};
use std::sync::atomic::Ordering;
use std::time::Instant;
use verbatim::rpc::{Client, Deadline, Method, Pending, Request, Responder};

use super::page::Page;
use super::spin::Spin;

/// Holds the server; the rest of the burst has as many calls as its body says.
const HOLD: Method = Method(100);
/// One of the burst.
pub const PART: Method = Method(101);

/// Calls of a burst behind the one that holds.
pub const CALLS: usize = 32;

/// The handler's side.
pub struct Held {
    page: Page,
    /// The burst that was seen last.
    seen: u64,
    left: u64,
    began: Instant,
}

impl Held {
    /// The client has created the page.
    pub fn new(path: &str) -> Result<Held> {
        Ok(Held {
            page: Page::open(path)?,
            seen: 0,
            left: 0,
            began: Instant::now(),
        })
    }

    /// To be called when a handler begins. True if the request is not for the others.
    #[inline]
    pub fn begins(&mut self, request: &Request<'_>) -> bool {
        match request.method() {
            PART => {
                self.part();
                false
            }
            HOLD => {
                self.hold(request.body());
                true
            }
            _ => false,
        }
    }

    #[inline(never)]
    fn hold(&mut self, body: &[u8]) {
        let (there, _) = self.page.words();
        let mut spin = Spin::new();
        loop {
            let burst = there.load(Ordering::Acquire);
            if burst != self.seen {
                self.seen = burst;
                break;
            }
            spin.idle();
        }
        self.left = body
            .first_chunk()
            .map_or(0, |bytes| u64::from_le_bytes(*bytes));
        self.began = Instant::now();
    }

    #[inline]
    fn part(&mut self) {
        self.left = self.left.saturating_sub(1);
        if self.left == 0 {
            let ns = self.began.elapsed().as_nanos() as u64;
            let (_, back) = self.page.words();
            back.store(ns.max(1), Ordering::Release);
        }
    }
}

/// Answers a request that holds.
pub fn release(responder: Responder) {
    responder.reply(());
}

/// The end that calls.
pub struct Bursts {
    page: Page,
    count: u64,
}

impl Bursts {
    /// With the path that the server finds the page by.
    pub fn create() -> Result<(Bursts, String)> {
        let (page, path) = Page::create()?;
        Ok((Bursts { page, count: 0 }, path))
    }

    /// The time of the server for each call of one burst, nanoseconds. `submit` posts one of [`CALLS`] calls of [`PART`], `finish` takes its reply.
    pub fn one<S>(
        &mut self,
        state: &mut S,
        client: impl Fn(&mut S) -> &mut Client,
        mut submit: impl FnMut(&mut S) -> Result<Pending>,
        mut finish: impl FnMut(&mut S, Pending) -> Result<()>,
        deadline: Deadline,
    ) -> Result<f64> {
        let (there, back) = self.page.words();
        back.store(0, Ordering::Relaxed);
        let body = (CALLS as u64).to_le_bytes();
        let hold = client(state).submit(HOLD, body, deadline)?;
        let mut calls = Vec::with_capacity(CALLS);
        for _ in 0..CALLS {
            calls.push(submit(state)?);
        }
        self.count += 1;
        there.store(self.count, Ordering::Release);
        let mut spin = Spin::new();
        let ns = loop {
            match back.load(Ordering::Acquire) {
                0 => spin.idle(),
                ns => break ns,
            }
            ensure!(
                deadline.remaining().is_none_or(|left| !left.is_zero()),
                "the server does not come to the end of a burst"
            );
        };
        hold.wait(client(state)).context("the call that holds")?;
        for call in calls {
            finish(state, call)?;
        }
        Ok(ns as f64 / CALLS as f64)
    }
}
