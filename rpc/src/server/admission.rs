//! How connections of a core begin and end.

use super::acceptor::refuse;
use super::books::ConnBook;
use super::conn::Conn;
use super::core_loop::CoreLoop;
use super::events::FIRST;
use super::mailbox::Seed;
use super::request::Request;
use super::responder::{ConnId, Responder};
use super::routes::Of;
use crate::control::Control;
use crate::error::Lost;
use crate::handshake::{Frame, Goodbye, PUSHED_INTO_RING, RefusalCode, Welcome};
use crate::link::{Link, PrepareError, Prepared, TO_SLEEP};
use crate::shelf::{Shelf, ShelfError};
use crate::trace::{event, span};
use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// A connection that is ready, and what to tell the client.
type Admitted = (Link, Option<Shelf>, Welcome);

impl<H> CoreLoop<H>
where
    H: FnMut(Request<'_>, Responder),
{
    /// Makes a connection out of a seed.
    pub(super) fn admit(&mut self, mut seed: Seed) {
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
        let polls = link.polls();
        let received = if polls { Of::Wake } else { Of::Message };
        self.routes.insert(link.send_id(), key, Of::Work);
        self.routes.insert(link.recv_id(), key, received);
        let watched = self.events.epoll.add(&seed.stream, FIRST + key as u64);
        let control = Control::new(seed.stream);
        event!(DEBUG, core = self.host.index, connection = epoch, peer = %seed.peer, "a connection was opened");
        let mut conn = Conn::new(id, link, shelf, control, (seed.peer, seed.ticket), book);
        conn.guarded = self.host.settings.peer.meters() || self.host.book.times.is_some();
        // It may be on the list still, of one that had this key before: not twice, or it would stay so.
        conn.listed = polls && self.active.contains(&key);
        entry.insert(conn);
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
        self.routes
            .remove([conn.link.send_id(), conn.link.recv_id()]);
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

    pub(super) fn close_all(&mut self, why: &Lost) {
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
}
