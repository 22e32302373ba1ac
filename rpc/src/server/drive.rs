//! Clients that a core looks after, see [`Core::drive`](super::Core::drive).
//!
//! They are polled in each pass, as the core's own connections are. When the core sleeps, their descriptors are watched with its own; for that they are
//! added each time, since a client that connects again has others.

use super::core_loop::{CoreLoop, RETRY};
use super::request::Request;
use super::responder::Responder;
use crate::client::{Client, Clients};
use crate::clock::Moment;
use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

/// Clients, and what is to be done when something has come for them.
pub(super) struct Driven<C, F> {
    pub clients: Rc<RefCell<C>>,
    pub action: F,
}

pub(super) trait Drive {
    /// Does something with each client; not if the application has them in use, which only can be if it keeps a borrow for ever.
    fn each(&mut self, with: &mut dyn FnMut(&mut Client));

    /// Runs the application's action.
    fn act(&mut self);
}

impl<C: Clients, F: FnMut(&mut C)> Drive for Driven<C, F> {
    fn each(&mut self, with: &mut dyn FnMut(&mut Client)) {
        if let Ok(mut clients) = self.clients.try_borrow_mut() {
            clients.each(with);
        }
    }

    fn act(&mut self) {
        if let Ok(mut clients) = self.clients.try_borrow_mut() {
            (self.action)(&mut clients);
        }
    }
}

impl<H> CoreLoop<H>
where
    H: FnMut(Request<'_>, Responder),
{
    /// Takes in what has arrived for clients that this core looks after; for how many there was something. The application is told then, or `always`.
    pub(super) fn drive(&mut self, always: bool) -> usize {
        let mut driven = std::mem::take(&mut self.host.driven);
        let mut done = 0;
        for one in &mut driven {
            let mut some = false;
            one.each(&mut |client| some |= client.turn());
            if some || always {
                self.host.run_between(|| one.act());
                // It may have taken a while.
                self.host.arrived = None;
            }
            done += usize::from(some);
        }
        self.host.driven = driven;
        self.deliver();
        done
    }

    /// Looks whether the servers of these clients are still there, now and then, and has the application look at the clock.
    #[cold]
    pub(super) fn attend_driven(&mut self, now: Moment) {
        for one in &mut self.host.driven {
            one.each(&mut |client| client.attend(now));
        }
        self.drive(true);
    }

    /// Gets the clients ready to sleep: for how long at most, or `None` if one of them has something to do.
    #[cold]
    pub(super) fn rest_driven(&mut self) -> Option<Option<Duration>> {
        let now = Moment::now();
        // What is over by now is to be seen; what will be is waited for.
        if self.drive(true) > 0 {
            return None;
        }
        let (mut most, mut awake): (Option<Duration>, bool) = (None, false);
        for one in &mut self.host.driven {
            one.each(&mut |client| match client.rest(now) {
                Some(time) => most = most.into_iter().chain(time).min(),
                None => awake = true,
            });
        }
        if awake {
            self.drive(true);
            return None;
        }
        for one in &mut self.host.driven {
            one.each(&mut |client| {
                for fd in client.fds() {
                    // One that is lost would wake us for ever.
                    if client.is_connected() && self.events.watch(fd).is_err() {
                        // Out of memory: look again soon instead.
                        most = Some(RETRY);
                    }
                }
            });
        }
        Some(most)
    }

    /// After a sleep.
    #[cold]
    pub(super) fn wake_driven(&mut self) {
        for one in &mut self.host.driven {
            one.each(&mut |client| {
                for fd in client.fds() {
                    self.events.unwatch(fd);
                }
                client.woken();
            });
        }
        self.drive(true);
    }
}
