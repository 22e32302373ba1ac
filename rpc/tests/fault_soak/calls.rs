//! Calls amid faults, and what may be concluded from how each ended.

use crate::common::{ECHO, PANIC, SOURCE, pattern, slowness};
use crate::random::Random;
use crate::service::{HOLD, LONG, Record};
use rpc::{CallError, Client, Code, Deadline, Method, Pending, Reply};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// How much later than its deadline a call may end on a busy machine.
const SLACK: Duration = Duration::from_secs(20);

struct Call {
    number: u64,
    method: Method,
    body: Vec<u8>,
    since: Instant,
    limit: Duration,
    state: State,
}

enum State {
    Pending(Pending),
    Ended(Result<Reply, CallError>),
    Dropped,
}

/// The calls of one client.
pub struct Calls {
    calls: Vec<Call>,
    next: u64,
}

/// How calls ended.
pub type Tally = BTreeMap<&'static str, u64>;

impl Calls {
    /// Numbers its calls from here on.
    pub fn numbered(first: u64) -> Calls {
        Calls {
            calls: Vec::new(),
            next: first,
        }
    }

    pub fn submit(&mut self, client: &mut Client, method: Method, len: usize, deadline: Deadline) {
        let number = self.next;
        self.next += 1;
        let mut body = number.to_le_bytes().to_vec();
        body.extend(pattern(len, number as u8));
        let limit = deadline.remaining().unwrap_or(Duration::from_secs(3600));
        let since = Instant::now();
        let state = match client.submit(method, &body[..], deadline) {
            Ok(pending) => State::Pending(pending),
            Err(error) => State::Ended(Err(error)),
        };
        self.calls.push(Call {
            number,
            method,
            body,
            since,
            limit,
            state,
        });
    }

    /// One of those that need nothing more to be answered, or one that is held.
    pub fn submit_any(
        &mut self,
        client: &mut Client,
        random: &mut Random,
        silent: bool,
        holds: bool,
    ) {
        let (method, len) = match random.below(10) {
            0..5 => (ECHO, random.pick(&[0, 50, 2000, 4000])),
            5..7 => (ECHO, random.pick(&[5000, 120_000])),
            7..9 => (SOURCE, 0),
            _ if holds => (HOLD, 0),
            _ => (ECHO, 0),
        };
        let deadline = match silent || method == HOLD {
            true => Deadline::after_ms(60),
            false => Deadline::after(Duration::from_secs(10) * slowness()),
        };
        self.submit(client, method, len, deadline);
    }

    /// Waits for all of them.
    pub fn wait(&mut self, client: &mut Client) {
        for call in &mut self.calls {
            if let State::Pending(_) = call.state {
                let State::Pending(pending) = std::mem::replace(&mut call.state, State::Dropped)
                else {
                    continue;
                };
                call.state = State::Ended(pending.wait(client));
            }
            let took = call.since.elapsed();
            let limit = call.limit + SLACK * slowness();
            assert!(took < limit, "{:?} took {took:?}", call.method);
        }
    }

    /// Compares how they ended with what the server did, which does no more.
    pub fn check(self, record: &Record, tally: &mut Tally) {
        for call in self.calls {
            let ran = record.ran(call.number);
            let what = format!(
                "call {} of {:?}, executed {ran} times",
                call.number, call.method
            );
            assert!(ran <= 1, "{what}");
            let end = match call.state {
                State::Ended(end) => end,
                _ => continue,
            };
            let (name, possible) = match end {
                Ok(reply) => {
                    match call.method {
                        ECHO | HOLD => assert!(reply.bytes() == call.body, "{what}"),
                        SOURCE => assert!(reply.bytes() == pattern(LONG, 5), "{what}"),
                        _ => {}
                    }
                    ("replies", ran == 1)
                }
                Err(CallError::NotSent(_)) => ("not sent", ran == 0),
                // Also of a handler that had no memory for its reply.
                Err(CallError::Overloaded { .. }) => ("overloaded", ran == 0),
                Err(CallError::Remote { code, .. }) => match code {
                    Code::PANICKED => ("panics", ran == 1 && call.method == PANIC),
                    Code::OVERLOADED => ("no memory there", ran == 1),
                    // Its reply could not be given to the client to read.
                    Code::INTERNAL => ("no key there", ran == 1),
                    _ => ("other answers", false),
                },
                Err(CallError::NoMemory { .. }) => ("no memory here", ran == 1),
                Err(CallError::Expired) => ("expired", true),
                Err(CallError::MaybeExecuted { .. }) => ("lost", true),
                Err(other) => panic!("{what}: {other:?}"),
            };
            assert!(possible, "{what}: {name}");
            *tally.entry(name).or_default() += 1;
        }
    }
}
