//! Clients that somebody else's loop looks after: a core of a server, see [`Core::drive`](crate::Core::drive).

use super::{Client, ClientGroup};
use crate::clock::Moment;
use crate::deadline::Deadline;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

/// One client or several: [`Client`], [`ClientGroup`], with typed services `ServiceClient`; and an `Option` or `Vec` of these, for clients that come later.
pub trait Clients: sealed::Each + 'static {}

mod sealed {
    /// What a core needs.
    pub trait Each {
        fn each(&mut self, with: &mut dyn FnMut(&mut super::Client));
    }
}

impl Clients for Client {}
impl sealed::Each for Client {
    fn each(&mut self, with: &mut dyn FnMut(&mut Client)) {
        with(self);
    }
}

impl Clients for ClientGroup {}
impl sealed::Each for ClientGroup {
    fn each(&mut self, with: &mut dyn FnMut(&mut Client)) {
        self.members.iter_mut().for_each(with);
    }
}

#[cfg(any(feature = "serde", feature = "zerocopy"))]
impl Clients for crate::service::ServiceClient {}
#[cfg(any(feature = "serde", feature = "zerocopy"))]
impl sealed::Each for crate::service::ServiceClient {
    fn each(&mut self, with: &mut dyn FnMut(&mut Client)) {
        with(self.client());
    }
}

impl<C: Clients> Clients for Option<C> {}
impl<C: Clients> sealed::Each for Option<C> {
    fn each(&mut self, with: &mut dyn FnMut(&mut Client)) {
        self.iter_mut().for_each(|clients| clients.each(with));
    }
}

impl<C: Clients> Clients for Vec<C> {}
impl<C: Clients> sealed::Each for Vec<C> {
    fn each(&mut self, with: &mut dyn FnMut(&mut Client)) {
        self.iter_mut().for_each(|clients| clients.each(with));
    }
}

impl Client {
    /// Takes in what has arrived; whether anything has, also what others have taken in, since this was asked last.
    pub(crate) fn turn(&mut self) -> bool {
        self.progress();
        std::mem::take(&mut self.untold)
    }

    /// Looks at the control connection, now and then.
    pub(crate) fn attend(&mut self, now: Moment) {
        self.look(Deadline::never(), now);
    }

    /// Gets ready to sleep: how long at most, or `None` if there is something to do. What comes afterwards makes one of the [descriptors](Self::fds)
    /// readable; it is to be told that it was [woken](Self::woken) then. Whoever looks at pending calls has seen those whose time was over at `seen`.
    pub(crate) fn rest(&mut self, seen: Moment) -> Option<Option<Duration>> {
        if !self.is_connected() {
            // Nothing will come.
            return Some(None);
        }
        let now = Moment::now();
        // That may be the end of the connection, and then there is something to tell: see `nod`.
        self.sweep(now);
        let most = match self.nod(now) {
            Ok(most) => most?.1,
            Err(lost) => {
                self.fail(lost);
                return None;
            }
        };
        let deadlines = self.flights.iter().filter_map(|flight| flight.deadline);
        let ahead = deadlines.filter(|deadline| !deadline.is_past_at(seen));
        let next = ahead
            .filter_map(|deadline| deadline.remaining_at(now))
            .min();
        Some(most.into_iter().chain(next).min())
    }

    /// Whether anything can come.
    pub(crate) fn is_connected(&self) -> bool {
        self.link.is_some()
    }

    /// What becomes readable when something comes; or for ever, once the connection has ended.
    pub(crate) fn fds(&self) -> [BorrowedFd<'_>; 2] {
        [self.channel.as_fd(), self.control.as_fd()]
    }

    /// After a sleep.
    pub(crate) fn woken(&mut self) {
        if !self.is_connected() {
            return;
        }
        if let Err(error) = self.channel.wait(Some(Duration::ZERO)) {
            self.fail(error.into());
        }
        self.check_control();
    }
}
