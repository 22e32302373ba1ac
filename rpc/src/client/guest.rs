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

/// So far apart can two looks at the clock be, beside the time between them, in nanoseconds.
const CLOCKS_APART: u64 = 50_000;

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
        if self.untold {
            // Taken in while the application looked at other calls: of that there will be no other word.
            return None;
        }
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
        // Who looked may have been a little behind, when the clock was compared in between.
        let seen = seen.before_ns(CLOCKS_APART);
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Lost, Method, Request, Responder, Server};

    /// Its own dropped calls can end a connection while a core goes to sleep: that is something to tell, and the core stays awake for it.
    #[test]
    fn an_end_that_comes_on_the_way_to_sleep_is_told() {
        let server = Server::bind("127.0.0.1:0").unwrap().serve(|_core| {
            let mut parked = Vec::new();
            move |_: Request<'_>, out: Responder| parked.push(out)
        });
        let server = server.unwrap();
        let client = Client::builder().max_unanswered(0);
        let mut client = client.connect(server.local_addr()).unwrap();
        let soon = Deadline::after_ms(20);
        drop(client.submit(Method(1), "", soon).unwrap());
        // Its slot is nobody's, and its time is not over.
        client.turn();
        while !soon.is_past() {
            std::hint::spin_loop();
        }
        // It comes to sleep at once, without a look at the clock before.
        let rest = client.rest(Moment::now());
        assert!(matches!(client.lost(), Some(Lost::Unanswered(1))));
        assert_eq!(rest, None, "sleeps, with the end of the connection untold");
        // Afterwards nothing will come.
        assert!(client.turn());
        assert_eq!(client.rest(Moment::now()), Some(None));
    }

    /// Who looks at one call takes in the answers to all: those that he has looked at before are there now, and nobody will tell.
    #[test]
    fn what_comes_while_others_are_looked_at_is_told() {
        let server = Server::bind("127.0.0.1:0").unwrap().serve(|_core| {
            let (mut first, mut parked) = (None, Vec::new());
            move |request: Request<'_>, out: Responder| match request.body() {
                b"first" => first = Some(out),
                b"second" => parked.push(out),
                _ => {
                    out.reply("done");
                    if let Some(out) = first.take() {
                        out.reply("done");
                    }
                }
            }
        });
        let server = server.unwrap();
        let mut client = Client::connect(server.local_addr()).unwrap();
        let mut other = Client::connect(server.local_addr()).unwrap();
        let never = Deadline::never();
        let first = client.submit(Method(1), "first", never).unwrap();
        let second = client.submit(Method(1), "second", never).unwrap();
        while server.stats().calls < 2 {
            std::thread::yield_now();
        }
        assert!(!first.is_ready(&mut client));
        client.turn();
        other.call(Method(1), "answer", never).unwrap();
        let key = first.key_at(&client).unwrap();
        while !client.has_outcome(key) {
            assert!(!second.is_ready(&mut client));
        }
        let rest = client.rest(Moment::now());
        assert_eq!(rest, None, "sleeps, with an answer untold");
        assert!(client.turn());
        assert!(first.try_take(&mut client).is_ok());
        // The same with the end of all.
        drop(server);
        while !second.is_ready(&mut client) {}
        let rest = client.rest(Moment::now());
        assert_eq!(rest, None, "sleeps, with the end untold");
        assert!(client.turn());
        assert_eq!(client.rest(Moment::now()), Some(None));
    }
}
