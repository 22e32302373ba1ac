//! Connecting again, for who has asked for it.
//!
//! A new connection is a new epoch: nothing of the old one is used any more, and all of its calls have ended before. Only calls that
//! the caller says are idempotent are made again after they may have been executed. The client sleeps between tries.

use super::{Client, ClientBuilder, Reply};
use crate::clock::Moment;
use crate::deadline::Deadline;
use crate::error::{CallError, ConnectError, Lost, NotSentReason};
use crate::handshake::RefusalCode;
use crate::names::Method;
use crate::payload::Payload;
use crate::trace::event;
use std::net::SocketAddr;
use std::time::Duration;

/// Whether and how a client connects again: see [`ClientBuilder::reconnect`].
///
/// The first try is made at once. The pauses between further ones double, from the first to the longest. A connection that has lived for
/// longer than the longest pause counts as good; after one that has not, the pauses go on as if it had failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reconnect {
    first: Duration,
    longest: Duration,
    tries: u32,
}

impl Default for Reconnect {
    fn default() -> Self {
        Reconnect {
            first: Duration::from_millis(10),
            longest: Duration::from_secs(1),
            tries: u32::MAX,
        }
    }
}

impl Reconnect {
    /// As often as it takes, with pauses from 10 ms to 1 s.
    pub fn new() -> Reconnect {
        Reconnect::default()
    }

    /// The pause after the first try that fails; at least a millisecond.
    pub fn first_pause(mut self, pause: Duration) -> Self {
        self.first = pause.max(Duration::from_millis(1));
        self
    }

    /// The longest pause.
    pub fn longest_pause(mut self, pause: Duration) -> Self {
        self.longest = pause.max(Duration::from_millis(1));
        self
    }

    /// Most tries for one call, at least one. Without this, a call without a deadline may wait for its server for ever.
    pub fn tries(mut self, count: u32) -> Self {
        self.tries = count.max(1);
        self
    }

    /// How long to wait before a try that follows so many failures.
    fn pause(&self, failures: u32) -> Duration {
        match failures {
            0 => Duration::ZERO,
            n => {
                let doubled = self.first.saturating_mul(1 << (n - 1).min(16));
                doubled.min(self.longest)
            }
        }
    }
}

/// What is needed to connect again.
pub(super) struct Redial {
    builder: ClientBuilder,
    addrs: Vec<SocketAddr>,
    policy: Reconnect,
    /// Connections in a row that could not be made, or did not live long.
    failures: u32,
    connected: Moment,
}

impl ClientBuilder {
    /// Has the client connect again, by itself, when it is used after its connection has ended. Not done unless asked for.
    ///
    /// Calls that were on their way have ended as [`MaybeExecuted`](CallError::MaybeExecuted), and stay so: only
    /// [`Client::call_idempotent`] makes them again. What has not been sent waits for the new connection, until its deadline.
    ///
    /// ```no_run
    /// use rpc::{Client, Deadline, Method, Reconnect};
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let mut client = Client::builder().reconnect(Reconnect::new()).connect("127.0.0.1:7471")?;
    /// // While the server is restarted, this waits for it, and is made once more if need be.
    /// let reply = client.call_idempotent(Method(1), "etc/hosts", Deadline::after_ms(30_000))?;
    /// # Ok(()) }
    /// ```
    pub fn reconnect(mut self, policy: Reconnect) -> Self {
        self.reconnect = Some(policy);
        self
    }
}

impl Redial {
    pub fn new(builder: ClientBuilder, addrs: Vec<SocketAddr>, policy: Reconnect) -> Redial {
        Redial {
            builder,
            addrs,
            policy,
            failures: 0,
            connected: Moment::now(),
        }
    }

    /// Connects, if need be several times, until the deadline.
    fn dial(&mut self, deadline: Deadline) -> Result<Client, ConnectError> {
        if Moment::now().since(self.connected) > self.policy.longest {
            self.failures = 0;
        }
        let mut tries = 0;
        loop {
            let pause = self.policy.pause(self.failures);
            let left = deadline.remaining();
            std::thread::sleep(left.map_or(pause, |left| pause.min(left)));
            let timeout = self.builder.timeout;
            let timeout = match deadline.remaining() {
                Some(left) if left.is_zero() && tries == 0 => {
                    return Err(ConnectError::Timeout(left));
                }
                Some(left) => timeout.min(left),
                None => timeout,
            };
            // Counts as failed until it has lived for a while.
            self.failures = self.failures.saturating_add(1);
            tries += 1;
            match self.builder.dial(&self.addrs, timeout) {
                Ok(client) => {
                    self.connected = Moment::now();
                    event!(INFO, peer = %client.peer, tries, "connected again");
                    return Ok(client);
                }
                Err(error) => {
                    event!(INFO, tries, error = %error, "could not connect again");
                    if !may_pass(&error) || tries >= self.policy.tries || deadline.is_past() {
                        return Err(error);
                    }
                }
            }
        }
    }
}

/// Whether another try may bring what this one did not.
fn may_pass(error: &ConnectError) -> bool {
    match error {
        ConnectError::Tcp { .. }
        | ConnectError::Timeout(_)
        | ConnectError::Closed
        | ConnectError::Control(_) => true,
        ConnectError::Refused { code, .. } => *code != RefusalCode::Terms,
        // As `Closed`: it spoke TLS before, and went away amid the handshake.
        #[cfg(feature = "tls")]
        ConnectError::Tls(error) => *error == crate::tls::TlsError::Closed,
        _ => false,
    }
}

impl Client {
    /// As [`call`](Self::call), for requests that may be executed more than once without harm: one that
    /// [may have been executed](CallError::MaybeExecuted), or that its server refused because it is stopping, is sent again over a new connection,
    /// until it is answered or its deadline has passed.
    ///
    /// That is so for clients that [connect again](ClientBuilder::reconnect); for others it is `call`. The payload has to be such that
    /// it can be sent again: plain bytes, or a [`SharedBuf`](mempool::SharedBuf).
    ///
    /// # Errors
    /// As [`call`](Self::call).
    pub fn call_idempotent(
        &mut self,
        method: Method,
        payload: impl Payload + Clone,
        deadline: Deadline,
    ) -> Result<Reply, CallError> {
        loop {
            let error = match self.call(method, payload.clone(), deadline) {
                Ok(reply) => return Ok(reply),
                Err(error) => error,
            };
            let again = match &error {
                CallError::MaybeExecuted { .. } => true,
                CallError::NotSent(failed) => matches!(
                    failed.reason(),
                    NotSentReason::Stopping | NotSentReason::Closed(_)
                ),
                _ => false,
            };
            if !again || self.redial.is_none() || deadline.is_past() {
                return Err(error);
            }
            self.recorder.resent += 1;
        }
    }

    /// Whether there is no connection to send by, but there could be.
    pub(super) fn wants_redial(&self) -> bool {
        self.redial.is_some() && !self.is_open()
    }

    /// Connects again.
    #[cold]
    pub(super) fn reconnect(&mut self, deadline: Deadline) -> Result<(), NotSentReason> {
        // A server that is stopping still answers what it has.
        self.wait_until(deadline, |client| {
            client.link.is_none() || client.slots.in_use() == 0
        });
        if self.link.is_some() && self.slots.in_use() == 0 {
            // Only replies in parts keep it, whose next part nobody asks for: who could is here, and waits.
            self.fail(Lost::Drained);
        }
        let Some(mut redial) = self.redial.take_if(|_| self.link.is_none()) else {
            return Err(self.closed());
        };
        let dialed = redial.dial(deadline);
        self.redial = Some(redial);
        match dialed {
            Ok(fresh) => {
                self.adopt(fresh);
                Ok(())
            }
            Err(error) => Err(NotSentReason::Reconnect(Box::new(error))),
        }
    }

    /// Takes over a connection that has just been made, in place of one that has ended.
    fn adopt(&mut self, mut fresh: Client) {
        debug_assert!(self.link.is_none());
        let Client {
            link,
            slots,
            flights,
            unreleased,
            fetcher,
            cq,
            channel,
            control,
            recorder,
            ..
        } = &mut fresh;
        // What is left of the old one goes with `fresh`.
        std::mem::swap(&mut self.link, link);
        std::mem::swap(&mut self.slots, slots);
        std::mem::swap(&mut self.flights, flights);
        std::mem::swap(&mut self.unreleased, unreleased);
        std::mem::swap(&mut self.fetcher, fetcher);
        std::mem::swap(&mut self.cq, cq);
        std::mem::swap(&mut self.channel, channel);
        std::mem::swap(&mut self.control, control);
        if let (Some(now), Some(before)) = (&mut self.fetcher, fetcher) {
            now.counts.add(&before.counts);
            now.policy.count_on(&before.policy);
        }
        self.recorder.inline_limit = recorder.inline_limit;
        self.recorder.reconnects += 1;
        self.options = fresh.options;
        self.peer = fresh.peer;
        self.control_checked = fresh.control_checked;
        self.lost = None;
        self.draining = false;
        self.drained = false;
        self.quick = false;
        self.arrived = None;
        // Of the old connection.
        self.unwanted.clear();
        self.unasked = 0;
        self.calls.leave();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_the_longest() {
        let policy = Reconnect::new()
            .first_pause(Duration::from_millis(10))
            .longest_pause(Duration::from_millis(70));
        let ms = |failures| policy.pause(failures).as_millis();
        assert_eq!(
            [0, 1, 2, 3, 4, 5, 1000].map(ms),
            [0, 10, 20, 40, 70, 70, 70]
        );
        let least = Reconnect::new()
            .first_pause(Duration::ZERO)
            .longest_pause(Duration::ZERO);
        assert_eq!(
            least.pause(9),
            Duration::from_millis(1),
            "never a busy loop"
        );
    }
}
