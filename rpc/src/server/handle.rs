//! Starting a server, and the handle on a running one.

use super::acceptor::{Acceptor, refuse};
use super::books::{AcceptorCounters, CoreBook};
use super::core::{Core, Host};
use super::core_loop::CoreLoop;
use super::events::Events;
use super::lateness::Lateness;
use super::mailbox::Mailbox;
use super::request::Request;
use super::responder::{Outbox, Responder};
use super::stats::{ConnectionStats, ServerStats};
use super::{Server, Settings};
use crate::deadline::Deadline;
use crate::error::ServeError;
use crate::handshake::RefusalCode;
use crate::histogram::{Histogram, SharedHistogram};
use crate::outgoing::Copies;
use crate::setup;
use crate::slices::Slices;
use mempool::Pool;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::mpsc;
use std::thread::{Builder, JoinHandle};
use verbs::Pd;

/// A running server. Dropping it stops the server.
pub struct ServerHandle {
    addr: SocketAddr,
    pool: Pool,
    mailboxes: Vec<Arc<Mailbox>>,
    threads: Vec<JoinHandle<()>>,
    acceptor: Arc<AcceptorCounters>,
    cores: Vec<Arc<CoreBook>>,
}

impl ServerHandle {
    /// The address that clients connect to.
    pub fn local_addr(&self) -> SocketAddr {
        self.addr
    }

    /// The pool of the server.
    pub fn pool(&self) -> &Pool {
        &self.pool
    }

    /// Figures since the server started, all cores together.
    ///
    /// This, [`core_stats`](Self::core_stats) and [`connections`](Self::connections) read what cores count anyway. They wait for no core, and may be
    /// called from handlers. They take time for each connection that is open: they are not for the path of calls.
    pub fn stats(&self) -> ServerStats {
        ServerStats::of(&self.acceptor, &self.cores)
    }

    /// Figures of each core since the server started. What happens before a connection has a core is in [`stats`](Self::stats) alone: here `accepted`,
    /// `garbage`, `timed_out` and `evicted` are 0, and `refused` is what the core refused.
    pub fn core_stats(&self) -> Vec<ServerStats> {
        let cores = self.cores.iter();
        cores.map(|core| ServerStats::of_core(core)).collect()
    }

    /// How long requests took on each core, from arrival to answer, with what was READ or [deferred](Responder) in between; for a server that
    /// was told to [measure](crate::Server::time_requests) it, else empty. Requests that were not started are not among them.
    pub fn request_times(&self) -> Vec<Histogram> {
        let times = self.cores.iter().filter_map(|core| core.times.as_ref());
        times.map(SharedHistogram::snapshot).collect()
    }

    /// The connections that are open, core by core, the oldest of each first.
    pub fn connections(&self) -> Vec<ConnectionStats> {
        let mut list = Vec::new();
        for (index, core) in self.cores.iter().enumerate() {
            core.list_into(index, &mut list);
        }
        list
    }

    /// Tells the server to stop: no new connections; handlers that run finish, then connections are
    /// closed. Their clients' pending calls end with
    /// [`MaybeExecuted`](crate::CallError::MaybeExecuted). Does not wait for it: see
    /// [`join`](Self::join).
    pub fn shutdown(&self) {
        for mailbox in &self.mailboxes {
            mailbox.stop();
        }
    }

    /// Tells the server to stop when it is done. It takes no more connections and no more requests: from now on calls end as
    /// [`NotSent`](crate::CallError::NotSent) with [`NotSentReason::Stopping`](crate::NotSentReason::Stopping), and can be made elsewhere. What has arrived before
    /// is answered, requests whose bodies are still being READ and deferred ones included: see [`Core::on_drain`].
    ///
    /// A connection is closed once its client has all answers. Of pushed replies in one message the server knows by itself when that is; of fetched ones,
    /// and of those that the client READs, when the client says so, which it does while it waits for something or
    /// [polls](crate::Client::poll). What is left at the deadline is closed as by [`shutdown`](Self::shutdown). A handler that is running is
    /// waited for.
    ///
    /// Does not wait: see [`join`](Self::join). A later `shutdown` ends it at once.
    pub fn drain(&self, deadline: Deadline) {
        // The acceptor first, which is the last.
        for mailbox in self.mailboxes.iter().rev() {
            mailbox.drain(deadline);
        }
    }

    /// Waits until the server has stopped: for ever, unless it has been told to by
    /// [`shutdown`](Self::shutdown) or [`drain`](Self::drain).
    pub fn join(mut self) {
        self.wait();
    }

    fn wait(&mut self) {
        for thread in self.threads.drain(..) {
            // Handlers' panics are caught; another one has been reported by its hook.
            let _ = thread.join();
        }
        // A client may have been handed to a core that was just leaving.
        for mailbox in &self.mailboxes {
            for mut seed in mailbox.take() {
                refuse(
                    &mut seed.stream,
                    RefusalCode::Stopping,
                    "the server is stopping",
                );
            }
        }
    }
}

impl Drop for ServerHandle {
    fn drop(&mut self) {
        self.shutdown();
        self.wait();
    }
}

impl fmt::Debug for ServerHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServerHandle")
            .field("addr", &self.addr)
            .field("cores", &self.cores.len())
            .finish_non_exhaustive()
    }
}

/// What a core's thread starts from.
struct CoreSeed {
    index: usize,
    /// The processor to run on, if not any.
    processor: Option<usize>,
    pd: Pd,
    pool: Pool,
    settings: Settings,
    mailbox: Arc<Mailbox>,
    book: Arc<CoreBook>,
    connections: Arc<AtomicUsize>,
}

pub(super) fn start<F, H>(server: Server, make_handler: F) -> Result<ServerHandle, ServeError>
where
    F: Fn(&Core) -> H + Send + Sync + 'static,
    H: FnMut(Request<'_>, Responder) + 'static,
{
    let Server {
        listener,
        tls,
        addr,
        cores,
        processors,
        device,
        pool,
        mut settings,
    } = server;
    settings.limits = settings.limits.clamped();
    let (pd, pool) = setup::memory(device, pool)?;
    settings.limits.immediate = pd.context().has_immediate_data();
    let start_error = |what| move |source| ServeError::Start { what, source };
    let connections = Arc::new(AtomicUsize::new(0));
    let mut handle = ServerHandle {
        addr,
        pool: pool.clone(),
        mailboxes: Vec::new(),
        threads: Vec::new(),
        acceptor: Arc::default(),
        cores: Vec::new(),
    };

    // From here on, returning an error drops the handle, which stops what has been started.
    let make_handler = Arc::new(make_handler);
    let mut reports = Vec::new();
    for index in 0..cores {
        let mailbox = Arc::new(Mailbox::new().map_err(start_error("a core's mailbox"))?);
        let book = Arc::new(CoreBook::new(settings.timed));
        handle.mailboxes.push(Arc::clone(&mailbox));
        handle.cores.push(Arc::clone(&book));
        let seed = CoreSeed {
            index,
            processor: processors.get(index % processors.len().max(1)).copied(),
            pd: pd.clone(),
            pool: pool.clone(),
            settings,
            mailbox,
            book,
            connections: Arc::clone(&connections),
        };
        let make_handler = Arc::clone(&make_handler);
        let (report, reported) = mpsc::channel();
        reports.push(reported);
        let thread = Builder::new()
            .name(format!("rpc-core-{index}"))
            .spawn(move || serve(seed, &*make_handler, &report))
            .map_err(start_error("a core's thread"))?;
        handle.threads.push(thread);
    }
    for (index, reported) in reports.iter().enumerate() {
        reported
            .recv()
            .map_err(|_| ServeError::CoreEnded(index))??;
    }

    let mailbox = Arc::new(Mailbox::new().map_err(start_error("the acceptor's mailbox"))?);
    let acceptor = Acceptor::new(
        listener,
        tls,
        (settings, pd),
        Arc::clone(&mailbox),
        Arc::clone(&handle.acceptor),
        handle.mailboxes.clone(),
        connections,
    )
    .map_err(start_error("the acceptor"))?;
    handle.mailboxes.push(mailbox);
    let thread = Builder::new()
        .name("rpc-acceptor".to_owned())
        .spawn(move || acceptor.run())
        .map_err(start_error("the acceptor's thread"))?;
    handle.threads.push(thread);
    Ok(handle)
}

/// The whole life of a core's thread.
fn serve<F, H>(seed: CoreSeed, make_handler: &F, report: &mpsc::Sender<Result<(), ServeError>>)
where
    F: Fn(&Core) -> H,
    H: FnMut(Request<'_>, Responder) + 'static,
{
    let CoreSeed {
        index,
        processor,
        pd,
        pool,
        settings,
        mailbox,
        book,
        connections,
    } = seed;
    if let Some(processor) = processor
        && let Err(source) = pin(processor)
    {
        let what = "a core's thread on the processor it was pinned to";
        let _ = report.send(Err(ServeError::Start { what, source }));
        return;
    }
    let events = match Events::new(&pd, &settings, &mailbox) {
        Ok(events) => events,
        Err(error) => {
            let _ = report.send(Err(error));
            return;
        }
    };
    let core = Core::new(index, pool.clone());
    let handler = make_handler(&core);
    let (on_drain, driven) = core.into_parts();
    let host = Host {
        index,
        handler,
        on_drain,
        driven,
        stopping: false,
        outbox: Rc::new(Outbox::new(pool.clone())),
        pool,
        pd,
        book,
        settings,
        arrived: None,
        lateness: Lateness::new(),
        slices: Slices::default(),
        long: false,
        copies: Copies::default(),
        pulled: None,
    };
    if report.send(Ok(())).is_ok() {
        CoreLoop::new(host, events, mailbox, connections).run();
    }
}

/// Has this thread run on one processor alone.
fn pin(processor: usize) -> io::Result<()> {
    // SAFETY: plain bits, for which zero is a value.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    if processor >= libc::CPU_SETSIZE as usize {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    // SAFETY: within the set, as just checked.
    unsafe { libc::CPU_SET(processor, &mut set) };
    // SAFETY: a set of our own, read during the call.
    match unsafe { libc::sched_setaffinity(0, size_of_val(&set), &raw const set) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
