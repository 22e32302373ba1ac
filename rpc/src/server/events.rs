//! Where a core's completions and wake-ups come from, and how it waits for them.

use super::Settings;
use super::core_loop::{CoreLoop, RETRY};
use super::mailbox::Mailbox;
use super::request::Request;
use super::responder::Responder;
use crate::bell::Rest;
use crate::clock::Moment;
use crate::credit::CONTROL_RESERVE;
use crate::epoll::Epoll;
use crate::error::{Lost, ServeError};
use crate::link::send_depth;
use crate::wait::DOZE;
use std::io;
use std::os::fd::AsFd;
use std::time::Duration;
use verbs::{Channel, Cq, Pd};

const CHANNEL: u64 = 0;
const WAKE: u64 = 1;
/// Of clients that the core looks after.
const DRIVEN: u64 = u64::MAX;
/// Tokens from here on are connections, by key.
pub(super) const FIRST: u64 = 2;

/// How often control connections are looked at while there is no time to sleep on them.
const CONTROL_EVERY: Duration = Duration::from_micros(500);

/// Where a core's completions and wake-ups come from.
pub(super) struct Events {
    pub cq: Cq,
    channel: Channel,
    pub epoll: Epoll,
    /// Whether the channel has an event.
    rang: bool,
}

impl Events {
    pub fn new(pd: &Pd, settings: &Settings, mailbox: &Mailbox) -> Result<Events, ServeError> {
        let context = pd.context();
        let create = |what| move |source| ServeError::Create { what, source };
        let channel = context.channel().map_err(create("completion channel"))?;
        // I4: as many entries as the queues of all connections can have outstanding. Where the
        // device has fewer, connections are refused when it is full.
        let limits = &settings.limits;
        let slots = limits.slots.min(limits.window - CONTROL_RESERVE);
        let each = send_depth(slots) + limits.window;
        let wanted = u64::from(each).saturating_mul(settings.max_connections as u64);
        let most = u64::from(context.query_device().max_cqe);
        let depth = wanted.clamp(1, most.max(1)) as u32;
        let cq = context
            .cq(depth)
            .channel(&channel)
            .build()
            .map_err(create("completion queue"))?;
        let start = |source| ServeError::Start {
            what: "a core's event queue",
            source,
        };
        let epoll = Epoll::new().map_err(start)?;
        epoll.add(&channel, CHANNEL).map_err(start)?;
        epoll.add(&mailbox.wake, WAKE).map_err(start)?;
        Ok(Events {
            cq,
            channel,
            epoll,
            rang: false,
        })
    }

    /// Has a descriptor of a client's end a sleep.
    pub fn watch(&self, fd: impl AsFd) -> io::Result<()> {
        match self.epoll.add(fd, DRIVEN) {
            // Watched already, for another action.
            Err(error) if error.raw_os_error() == Some(libc::EEXIST) => Ok(()),
            done => done,
        }
    }

    /// No longer.
    pub fn unwatch(&self, fd: impl AsFd) {
        // One that is not watched is none the worse.
        let _ = self.epoll.remove(fd);
    }
}

impl<H> CoreLoop<H>
where
    H: FnMut(Request<'_>, Responder),
{
    /// Looks at the control connections, now and then.
    pub(super) fn look(&mut self, now: Moment) {
        if now.since(self.looked) >= CONTROL_EVERY {
            self.looked = now;
            self.wait_for_events(Some(Duration::ZERO));
            self.hear();
            self.tire(false);
            if !self.host.driven.is_empty() {
                self.attend_driven(now);
            }
        }
    }

    /// Sleeps until there is something to do, for so long at most, unless the state has changed; false if it was just dozing, so that there is no
    /// reason to look for long.
    pub(super) fn sleep(&mut self, state: u8, most: Option<Duration>) -> bool {
        let doze = match self.tire(true) {
            Rest::Asleep => None,
            Rest::Doze => Some(DOZE),
            _ => return true,
        };
        if let Err(error) = self.events.cq.arm(false) {
            self.rebuild(error);
            return true;
        }
        // What came before the queue was armed wakes nobody.
        if self.pass(1) > 0 || self.mailbox.has_mail() || self.mailbox.state() != state {
            return true;
        }
        let rest = match self.host.driven.is_empty() {
            true => None,
            false => match self.rest_driven() {
                Some(rest) => rest,
                None => return true,
            },
        };
        let retry = self.active.iter().any(|&key| {
            self.conns
                .get(key)
                .is_some_and(|conn| !conn.unsent.is_empty() || conn.owes_credits())
        });
        let timeout = retry.then_some(RETRY).into_iter().chain(doze);
        let timeout = timeout.chain(most).chain(rest).min();
        self.wait_for_events(timeout);
        if !self.host.driven.is_empty() {
            self.wake_driven();
        }
        let mut done = 0;
        if self.events.rang {
            // Who has woken us waits for its answer: first that, and then the system calls that make the descriptor quiet.
            self.host.arrived = None;
            done = self.pass(1);
        }
        self.hear();
        self.looked = Moment::now();
        doze.is_none() || done > 0
    }

    /// Takes the event of the completion queue, if there is one.
    fn hear(&mut self) {
        if std::mem::take(&mut self.events.rang)
            && let Err(error) = self.events.channel.wait(Some(Duration::ZERO))
        {
            self.rebuild(error);
        }
    }

    fn wait_for_events(&mut self, timeout: Option<Duration>) {
        let Ok(tokens) = self.events.epoll.wait(timeout) else {
            // Cannot be, short of a descriptor closed by somebody else; do not spin on it.
            std::thread::sleep(RETRY);
            return;
        };
        for token in tokens {
            match token {
                CHANNEL => self.events.rang = true,
                WAKE => self.mailbox.wake.clear(),
                DRIVEN => {}
                token => {
                    let key = (token - FIRST) as usize;
                    let state = self.conns.get_mut(key).map(|conn| conn.control.check());
                    if let Some(Err(lost)) = state {
                        self.close(key, &lost);
                    }
                }
            }
        }
    }

    /// The completion queue is broken, and with it every connection of this core: all end, and
    /// others can come.
    pub(super) fn rebuild(&mut self, error: verbs::Error) {
        let lost = Lost::Verbs(error);
        self.close_all(&lost);
        while self.batch.pop().is_some() {}
        match Events::new(&self.host.pd, &self.host.settings, &self.mailbox) {
            Ok(events) => self.events = events,
            // The device is gone for good, perhaps; do not spin on it.
            Err(_) => std::thread::sleep(Duration::from_millis(100)),
        }
    }
}
