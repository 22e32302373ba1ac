//! Accepting control connections, and reading what clients open with.
//!
//! One thread watches all of them at once, so a slow, silent or hostile client holds up nobody: each
//! has a time limit, a frame has a length limit that is checked before it is read, and there is a
//! limit on how many may be in this state. Only a client that has said a sensible hello is handed
//! to a core; before that it costs a socket and half a kilobyte.

use super::books::AcceptorCounters;
use super::mailbox::{Mailbox, Seed};
use super::peers::Peers;
use super::{Settings, Tls};
use crate::control::EMPTY;
use crate::epoll::Epoll;
use crate::handshake::{
    Accumulator, Frame, HandshakeError, Hello, Refusal, RefusalCode, RequestPath, accept, endpoint,
};
use crate::order;
use crate::stream::Stream;
use crate::trace::event;
use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use verbs::Pd;

const LISTENER: u64 = 0;
const WAKE: u64 = 1;
/// Tokens from here on are clients.
const FIRST: u64 = 2;

/// After running out of descriptors or memory, accepting pauses for so long.
const PAUSE: Duration = Duration::from_millis(50);

/// Connections taken in before those that are there are looked at again.
const ACCEPTS_MAX: u32 = 64;

pub(super) struct Acceptor {
    listener: TcpListener,
    epoll: Epoll,
    tls: Tls,
    settings: Settings,
    /// To try the device with.
    pd: Pd,
    mailbox: Arc<Mailbox>,
    counters: Arc<AcceptorCounters>,
    cores: Vec<Arc<Mailbox>>,
    /// Connections there are or will be, shared with the cores.
    connections: Arc<AtomicUsize>,
    peers: Arc<Peers>,
    next_core: usize,
    /// Oldest first.
    clients: VecDeque<Client>,
    next_token: u64,
    paused_until: Option<Instant>,
}

struct Client {
    token: u64,
    stream: Stream,
    peer: SocketAddr,
    frame: Accumulator,
    deadline: Instant,
}

enum Heard {
    Nothing,
    Hello(Hello),
    Garbage,
}

impl Acceptor {
    pub fn new(
        listener: TcpListener,
        tls: Tls,
        (settings, pd): (Settings, Pd),
        mailbox: Arc<Mailbox>,
        counters: Arc<AcceptorCounters>,
        cores: Vec<Arc<Mailbox>>,
        connections: Arc<AtomicUsize>,
    ) -> io::Result<Acceptor> {
        let epoll = Epoll::new()?;
        epoll.add(&listener, LISTENER)?;
        epoll.add(&mailbox.wake, WAKE)?;
        Ok(Acceptor {
            listener,
            epoll,
            tls,
            settings,
            pd,
            mailbox,
            counters,
            cores,
            connections,
            peers: Arc::default(),
            next_core: 0,
            clients: VecDeque::new(),
            next_token: FIRST,
            paused_until: None,
        })
    }

    pub fn run(mut self) {
        while !self.mailbox.stopping() {
            let now = Instant::now();
            let next = self
                .clients
                .front()
                .map(|client| client.deadline)
                .into_iter()
                .chain(self.paused_until)
                .min();
            let timeout = next.map(|at| at.saturating_duration_since(now));
            let Ok(tokens) = self.epoll.wait(timeout) else {
                // Nothing that could be done about it here; do not spin.
                std::thread::sleep(PAUSE);
                continue;
            };
            for token in tokens {
                match token {
                    LISTENER => self.accept(),
                    WAKE => self.mailbox.wake.clear(),
                    client => self.hear(client),
                }
            }
            self.expire(Instant::now());
        }
        for client in &mut self.clients {
            refuse(
                &mut client.stream,
                RefusalCode::Stopping,
                "the server is stopping",
            );
        }
    }

    /// Takes in who wants to connect: not all of them at once, or while strangers connect as fast as they are taken in nobody else would be heard. The
    /// listener stays readable.
    fn accept(&mut self) {
        for _ in 0..ACCEPTS_MAX {
            match self.listener.accept() {
                Ok((stream, peer)) => self.greet(stream, peer),
                Err(e) => match e.kind() {
                    io::ErrorKind::WouldBlock => return,
                    io::ErrorKind::Interrupted | io::ErrorKind::ConnectionAborted => {}
                    _ => {
                        // No descriptors left, or the like: the socket stays readable, so stop
                        // looking at it for a moment.
                        if self.epoll.remove(&self.listener).is_ok() {
                            self.paused_until = Some(Instant::now() + PAUSE);
                        }
                        return;
                    }
                },
            }
        }
    }

    fn greet(&mut self, stream: TcpStream, peer: SocketAddr) {
        self.counters.accepted.add(1);
        let token = self.next_token;
        let ready = stream
            .set_nonblocking(true)
            .and_then(|()| stream.set_nodelay(true))
            .and_then(|()| self.epoll.add(&stream, token));
        let stream = match ready.and_then(|()| secured(&self.tls, stream)) {
            Ok(stream) => stream,
            Err(error) => {
                self.counters.garbage.add(1);
                event!(WARN, peer = %peer, error = %error, "a client could not be listened to");
                return;
            }
        };
        self.next_token += 1;
        event!(DEBUG, peer = %peer, "a client was accepted");
        if self.clients.len() >= self.settings.max_handshakes
            && let Some(oldest) = self.clients.pop_front()
        {
            self.counters.evicted.add(1);
            event!(WARN, peer = %oldest.peer, "a client was let go for a newer one before it had said hello");
        }
        self.clients.push_back(Client {
            token,
            stream,
            peer,
            frame: Accumulator::new(),
            deadline: Instant::now() + self.settings.handshake_timeout,
        });
    }

    /// Reads from a client; when it has said hello, passes it on.
    fn hear(&mut self, token: u64) {
        // Tokens ascend: the queue is sorted by them.
        let Ok(at) = self.clients.binary_search_by_key(&token, |c| c.token) else {
            return;
        };
        let heard = self.clients[at].read();
        if matches!(heard, Heard::Nothing) {
            return;
        }
        let Some(client) = self.clients.remove(at) else {
            return;
        };
        let _ = self.epoll.remove(&client.stream);
        match heard {
            Heard::Hello(hello) => self.pass_on(client, hello),
            _ => {
                self.counters.garbage.add(1);
                event!(WARN, peer = %client.peer, "a client said something other than hello, or hung up");
            }
        }
    }

    fn pass_on(&mut self, client: Client, hello: Hello) {
        let Client {
            mut stream, peer, ..
        } = client;
        let mut limits = self.settings.limits;
        // Tried when somebody wants it.
        let wants = RequestPath::WritePoll.bit();
        if (hello.request_paths | hello.reply_paths) & wants != 0 {
            limits.polled = order::tried(&self.pd).is_ok();
        }
        let terms = accept(&hello, &limits);
        let agreed = terms.and_then(|terms| Ok((terms, endpoint(&hello.endpoint)?)));
        let (terms, endpoint) = match agreed {
            Ok(agreed) => agreed,
            Err(error) => return self.refuse(&mut stream, peer, RefusalCode::Terms, &error),
        };
        let most = self.settings.peer.connections;
        let Some(ticket) = self.peers.enter(peer.ip(), most) else {
            let text = format!(
                "all {most} connections that {} may have are taken",
                peer.ip()
            );
            return self.refuse(&mut stream, peer, RefusalCode::Full, &text);
        };
        let most = self.settings.max_connections;
        if self.connections.fetch_add(1, Ordering::Relaxed) >= most {
            self.connections.fetch_sub(1, Ordering::Relaxed);
            let text = format!("all {most} connections are taken");
            return self.refuse(&mut stream, peer, RefusalCode::Full, &text);
        }
        let core = &self.cores[self.next_core % self.cores.len()];
        self.next_core += 1;
        core.send(Seed {
            stream,
            peer,
            terms,
            endpoint,
            ticket,
        });
    }

    fn refuse(
        &self,
        stream: &mut Stream,
        peer: SocketAddr,
        code: RefusalCode,
        why: &dyn std::fmt::Display,
    ) {
        self.counters.refused.add(1);
        event!(WARN, peer = %peer, code = ?code, why = %why, "a client was refused");
        refuse(stream, code, &why.to_string());
    }

    fn expire(&mut self, now: Instant) {
        while let Some(client) = self.clients.front()
            && client.deadline <= now
        {
            self.counters.timed_out.add(1);
            event!(WARN, peer = %client.peer, "a client took too long to say hello");
            self.clients.pop_front();
        }
        if self.paused_until.is_some_and(|at| at <= now)
            && self.epoll.add(&self.listener, LISTENER).is_ok()
        {
            self.paused_until = None;
        }
    }
}

impl Client {
    fn read(&mut self) -> Heard {
        let mut empty = 0;
        loop {
            match self.stream.read(self.frame.space()) {
                Ok(0) => return Heard::Garbage,
                Ok(n) => match self.frame.filled(n) {
                    Ok(None) => {}
                    Ok(Some(Frame::Hello(hello))) => return Heard::Hello(hello),
                    Ok(Some(_)) => return Heard::Garbage,
                    Err(error) => {
                        // Whoever speaks the protocol, if in another version, is told so.
                        if matches!(error, HandshakeError::Version(_)) {
                            refuse(&mut self.stream, RefusalCode::Terms, &error.to_string());
                        }
                        return Heard::Garbage;
                    }
                },
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Heard::Nothing,
                Err(e) if e.kind() == io::ErrorKind::Interrupted && empty < EMPTY => empty += 1,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => return Heard::Nothing,
                Err(_) => return Heard::Garbage,
            }
        }
    }
}

/// Tells a client why it is not taken, if it can be told without waiting.
pub(super) fn refuse(stream: &mut Stream, code: RefusalCode, text: &str) {
    let frame = Frame::Refuse(Refusal {
        code,
        text: text.to_owned(),
    });
    let _ = stream.write(&frame.encode());
    stream.finish();
}

#[cfg(feature = "tls")]
fn secured(tls: &Tls, tcp: TcpStream) -> io::Result<Stream> {
    Ok(match tls {
        Some(tls) => Stream::Tls(Box::new(tls.accept(tcp)?)),
        None => Stream::Plain(tcp),
    })
}

#[cfg(not(feature = "tls"))]
fn secured(_: &Tls, tcp: TcpStream) -> io::Result<Stream> {
    Ok(Stream::Plain(tcp))
}
