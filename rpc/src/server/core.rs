//! What connections of a core share: the handler, the pool, the counters.

use super::Settings;
use super::books::CoreBook;
use super::drive::{Drive, Driven};
use super::lateness::Lateness;
use super::request::{Bytes, Request};
use super::responder::{ConnId, Outbox, Responder};
use crate::client::Clients;
use crate::clock::Moment;
use crate::deadline::Deadline;
use crate::destination::Room;
use crate::names::Method;
use crate::outgoing::Copies;
use crate::slices::Slices;
use crate::trace::event;
use crate::wire::SlotId;
use mempool::Pool;
use std::any::Any;
use std::cell::RefCell;
use std::fmt;
use std::net::SocketAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::sync::Arc;
use verbs::Pd;

/// A core, as the function that makes its handler sees it.
pub struct Core {
    index: usize,
    pool: Pool,
    on_drain: RefCell<Vec<OnDrain>>,
    driven: RefCell<Vec<Box<dyn Drive>>>,
}

/// What is to be done when the server begins to drain.
type OnDrain = Box<dyn FnMut()>;

impl Core {
    pub(super) fn new(index: usize, pool: Pool) -> Core {
        Core {
            index,
            pool,
            on_drain: RefCell::default(),
            driven: RefCell::default(),
        }
    }

    /// What it was told: what to do on draining, and which clients to look after.
    pub(super) fn into_parts(self) -> (Vec<OnDrain>, Vec<Box<dyn Drive>>) {
        (self.on_drain.into_inner(), self.driven.into_inner())
    }

    /// Which core this is, from 0.
    pub fn index(&self) -> usize {
        self.index
    }

    /// The pool for replies.
    pub fn pool(&self) -> &Pool {
        &self.pool
    }

    /// Has `action` run on the core's thread, once, when the server begins to [drain](crate::ServerHandle::drain). No handler will be called
    /// for new requests then, so here is the last occasion to answer deferred ones: by their [`Responder`]s, which handler and
    /// action share, in an `Rc<RefCell<..>>` for example. A panic in it is caught.
    pub fn on_drain(&self, action: impl FnMut() + 'static) {
        self.on_drain.borrow_mut().push(Box::new(action));
    }

    /// Has the core look after clients of this thread, so that handlers can call other servers without waiting: a handler
    /// [submits](crate::Client::submit), and keeps the call with its [`Responder`]; when the reply comes, it is `action` that finds it,
    /// by [`try_take`](crate::Pending::try_take), and answers.
    ///
    /// `action` runs on the core's thread, between handlers, when something has arrived for one of the clients, when the time of a call is over, and sometimes
    /// for nothing. A panic in it is caught. Handlers share the clients, in the `Rc<RefCell<..>>`. They should see whether there is [room](crate::Client::room) first: a
    /// `submit` that has to wait for it keeps the whole core waiting, and two servers that call each other would wait for each other. So does one that has to
    /// connect again first: for that, look whether the connection is [lost](crate::Client::lost), and when the other server may be back. To be called once for the same clients.
    ///
    /// ```
    /// use rpc::{Client, Code, Deadline, Method, Pending, Request, Responder, Server};
    /// use std::{cell::RefCell, rc::Rc};
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let store = Server::bind("127.0.0.1:0")?
    ///     .serve(|_| |req: Request<'_>, out: Responder| out.reply(req.body().to_ascii_uppercase()))?;
    /// let address = store.local_addr();
    /// // Asks the store, and serves others while it waits.
    /// let front = Server::bind("127.0.0.1:0")?.serve(move |core| {
    ///     let client = Client::connect(address).expect("the store");
    ///     let client = Rc::new(RefCell::new(client));
    ///     let calls = Rc::new(RefCell::new(Vec::<(Pending, Responder)>::new()));
    ///     let pending = Rc::clone(&calls);
    ///     core.drive(&client, move |client| {
    ///         for (call, out) in pending.take() {
    ///             match call.try_take(client) {
    ///                 Ok(Ok(reply)) => out.reply(reply.bytes()),
    ///                 Ok(Err(error)) => out.fail(Code::INTERNAL, error.to_string()),
    ///                 Err(call) => pending.borrow_mut().push((call, out)),
    ///             }
    ///         }
    ///     });
    ///     move |req: Request<'_>, out: Responder| {
    ///         let mut client = client.borrow_mut();
    ///         if client.room() == 0 {
    ///             return out.fail(Code::OVERLOADED, "the store has enough to do");
    ///         }
    ///         match client.submit(req.method(), req.body(), req.deadline()) {
    ///             Ok(call) => calls.borrow_mut().push((call, out)),
    ///             Err(error) => out.fail(Code::INTERNAL, error.to_string()),
    ///         }
    ///     }
    /// })?;
    /// let mut client = Client::connect(front.local_addr())?;
    /// let reply = client.call(Method(1), "hello", Deadline::after_ms(10_000))?;
    /// assert_eq!(reply.bytes(), b"HELLO");
    /// # Ok(()) }
    /// ```
    pub fn drive<C: Clients>(
        &self,
        clients: &Rc<RefCell<C>>,
        action: impl FnMut(&mut C) + 'static,
    ) {
        let clients = Rc::clone(clients);
        let driven = Driven { clients, action };
        self.driven.borrow_mut().push(Box::new(driven));
    }
}

impl fmt::Debug for Core {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Core")
            .field("index", &self.index)
            .finish_non_exhaustive()
    }
}

pub(super) struct Host<H> {
    /// Which core this is, from 0.
    pub index: usize,
    pub handler: H,
    pub on_drain: Vec<OnDrain>,
    pub driven: Vec<Box<dyn Drive>>,
    /// Whether no more requests are taken.
    pub stopping: bool,
    pub pool: Pool,
    pub pd: Pd,
    pub outbox: Rc<Outbox>,
    pub book: Arc<CoreBook>,
    pub settings: Settings,
    /// About when the messages at hand arrived, if that is known.
    pub arrived: Option<Moment>,
    /// Whether a handler has kept the messages at hand waiting.
    pub lateness: Lateness,
    /// Copies that have not been counted yet.
    pub copies: Copies,
    /// The body of the request that the handler is about to be run for, if it had to be READ.
    pub pulled: Option<Room>,
    /// How long READs are.
    pub slices: Slices,
    /// Whether the handler was run for what had been READ, since it was looked at.
    pub long: bool,
}

impl<H> Host<H>
where
    H: FnMut(Request<'_>, Responder),
{
    /// Runs the handler. If it panics, the responder it was given answers, or has answered.
    #[inline(always)]
    pub fn run(&mut self, job: &mut Job<'_>) {
        self.lateness.delay();
        let mut run = Run { host: self, job };
        // What a handler leaves behind when it panics is its own; nothing of ours is touched by it.
        if let Err(payload) = catch_unwind(AssertUnwindSafe(|| run.call())) {
            let Run { host, job } = run;
            host.count_panic(payload, Some((job.peer, job.method)));
        }
    }
}

/// What a handler is run for.
pub(super) struct Job<'a> {
    pub conn: ConnId,
    pub slot: SlotId,
    pub method: Method,
    pub deadline: Deadline,
    pub inline_limit: u32,
    pub peer: &'a SocketAddr,
    /// The bytes of the request, unless the host has them as [`pulled`](Host::pulled).
    pub inline: &'a [u8],
}

/// One run of a handler. Request and responder are made where they are handed over: what has just been made costs more to move than
/// to make.
struct Run<'a, 'b, H> {
    host: &'a mut Host<H>,
    job: &'a mut Job<'b>,
}

impl<H> Run<'_, '_, H>
where
    H: FnMut(Request<'_>, Responder),
{
    #[inline(always)]
    fn call(&mut self) {
        let Run { host, job } = self;
        let request = Request {
            method: job.method,
            bytes: match host.pulled.take() {
                None => Bytes::Inline(job.inline),
                Some(room) => match room.into_parts() {
                    Ok(buf) => Bytes::Buf(buf),
                    Err(bufs) => Bytes::Chunks(bufs),
                },
            },
            inline_limit: job.inline_limit,
            deadline: job.deadline,
            peer: job.peer,
            pool: &host.pool,
        };
        // Last, with nothing between that may panic: so it is put together where it is handed over.
        let responder = Responder::new(&host.outbox, job.conn, job.slot, job.inline_limit);
        (host.handler)(request, responder);
    }
}

impl<H> Host<H> {
    #[cold]
    fn count_panic(
        &mut self,
        payload: Box<dyn Any + Send>,
        request: Option<(&SocketAddr, Method)>,
    ) {
        self.book.counters.panics.add(1);
        let core = self.index;
        match request {
            Some((peer, Method(method))) => {
                event!(ERROR, core, peer = %peer, method, "a handler panicked");
            }
            None => event!(
                ERROR,
                core,
                "what a core was to do between handlers panicked"
            ),
        }
        // Dropping what it panicked with may panic as well; a second one is forgotten.
        if let Err(again) = catch_unwind(AssertUnwindSafe(|| drop(payload))) {
            std::mem::forget(again);
        }
    }

    /// Gives the application the occasion to answer what it has deferred.
    pub fn begin_to_drain(&mut self) {
        self.stopping = true;
        for action in std::mem::take(&mut self.on_drain) {
            // Dropping it may panic as well.
            self.run_between(action);
        }
    }

    /// Runs what is the application's. As with handlers: what it leaves behind when it panics is its own.
    pub fn run_between(&mut self, action: impl FnOnce()) {
        if let Err(payload) = catch_unwind(AssertUnwindSafe(action)) {
            self.count_panic(payload, None);
        }
    }

    /// Publishes what the outbox has counted since the last time.
    pub fn count_outbox(&mut self) {
        let panics = self.outbox.panics.take();
        if panics > 0 {
            self.book.counters.panics.add(panics);
        }
        let taken = self.outbox.copies.take();
        let made = std::mem::take(&mut self.copies);
        let copies = taken.copies + made.copies;
        if copies > 0 {
            self.book.counters.copies.add(copies);
            self.book
                .counters
                .bytes_copied
                .add(taken.bytes + made.bytes);
        }
    }
}
