//! What an end may do, and what happens then. Follows `link.rs`, and breaks the state where a device would fail.

use super::end::{Life, Message, Work};
use super::{Class, End, Setting, State, What};
use crate::credit::CONTROL_RESERVE;

impl Setting {
    /// Whether an end can do that now.
    pub fn can(&self, state: &State, at: usize, what: What) -> bool {
        let end = &state.ends[at];
        let peer = &state.ends[1 - at];
        match what {
            What::Flush => return end.life == Life::Failed && has_work(end),
            What::Destroy => return end.life == Life::Failed && !has_work(end),
            What::Free => return end.life == Life::Destroyed,
            _ if !end.is_live() => return false,
            _ => {}
        }
        let room = (self.wire == 0 || peer.inbox.len() < self.wire)
            && self
                .depth
                .is_none_or(|depth| (end.queue.len() as u32) < depth);
        let may = |class| room && end.credits.may_send(class);
        match what {
            What::Request(..) => end.in_use() < self.slots[at] && may(Class::Request),
            // I2: it waits for the own send queue, and for nothing else.
            What::Answer(_) => end.to_answer != [0; 2] && room,
            What::Take => !end.inbox.is_empty() && end.held.len() < self.hold[at],
            What::Repost => !end.held.is_empty(),
            What::PostLate => end.credits.late() > 0,
            What::GiveBack => end.credits.must_return() && may(Class::Credit),
            What::Control => end.control > 0 && may(Class::Control),
            What::Shelve => end.to_answer != [0; 2],
            What::FetchFirst => !end.shelf.is_empty(),
            What::FetchLast => end.shelf.len() > 1,
            // Nothing completes any more when the peer is dead, but with an error.
            What::Complete => peer.is_live() && end.queue.iter().any(|&work| work != Work::Quiet),
            What::Read => {
                let depth = self.depth.unwrap_or(u32::MAX);
                let free = depth - end.queue.len() as u32;
                end.pulling > end.reads && end.reads < self.reads && free > CONTROL_RESERVE
            }
            What::Die => peer.is_live(),
            What::Vanish => !peer.is_live() && !end.inbox.is_empty(),
            What::Notice => !peer.is_live(),
            What::Flush | What::Destroy | What::Free => false,
        }
    }

    /// Does it; it must be possible.
    pub fn act(&self, state: &mut State, at: usize, what: What) {
        match what {
            What::Request(len, body) => {
                let end = &mut state.ends[at];
                if !end.credits.covers(end.in_use() + 1) {
                    post_late(end);
                }
                end.unanswered += 1;
                self.send(state, at, Class::Request, len, body);
            }
            What::Answer(len) => {
                let end = &mut state.ends[at];
                if !end.credits.may_send(Class::Answer) {
                    state.broken = Some("I2: an answer waits for credit");
                    return;
                }
                answered(end);
                self.send(state, at, Class::Answer, len, false);
            }
            What::Shelve => {
                let end = &mut state.ends[at];
                answered(end);
                let counter = end.credits.shelve();
                if state.ends[1 - at].is_live() {
                    state.ends[1 - at].shelf.push_back(counter);
                }
            }
            What::FetchFirst | What::FetchLast => {
                let end = &mut state.ends[at];
                let counter = match what {
                    What::FetchFirst => end.shelf.pop_front(),
                    _ => end.shelf.pop_back(),
                };
                match end.credits.fetched(counter.unwrap_or_default()) {
                    Ok(()) => end.unanswered -= 1,
                    Err(_) => state.broken = Some("an honest peer's shelf is refused"),
                }
            }
            What::Take => self.take(state, at),
            What::Repost => {
                let end = &mut state.ends[at];
                let count = if self.together { end.held.len() } else { 1 };
                for class in end.held.drain(..count) {
                    end.posted += 1;
                    end.credits.reposted(class);
                    if class == Class::Answer {
                        end.unanswered -= 1;
                    }
                }
            }
            What::PostLate => post_late(&mut state.ends[at]),
            What::GiveBack => self.send(state, at, Class::Credit, self.control_length, false),
            What::Control => {
                if self.control[at] != u32::MAX {
                    state.ends[at].control -= 1;
                }
                self.send(state, at, Class::Control, self.control_length, false);
            }
            What::Complete => complete(&mut state.ends[at]),
            What::Read => {
                let end = &mut state.ends[at];
                end.reads += 1;
                end.quiet = 0;
                end.queue.push_back(Work::Read);
                if end.reads > self.reads {
                    state.broken = Some("I5: more READs than allowed");
                }
            }
            What::Die => {
                state.ends[at] = End::dead(self, at);
                // With its memory.
                state.ends[1 - at].shelf.clear();
            }
            What::Vanish => {
                state.ends[at].inbox.pop_back();
                // Its entry is as if it had never been used.
                state.ends[at].posted += 1;
            }
            What::Notice => state.ends[at].life = Life::Failed,
            What::Flush => flush(&mut state.ends[at]),
            What::Destroy => state.ends[at].life = Life::Destroyed,
            What::Free => {
                let end = &mut state.ends[at];
                // Every call fails, and what the handlers had of the peer is dropped.
                (end.unanswered, end.pulling, end.buffers) = (0, 0, 0);
                end.to_answer = [0; 2];
                end.held.clear();
                end.credits = End::dead(self, at).credits;
                (end.quiet, end.control) = (0, 0);
                end.life = Life::Over;
            }
        }
    }

    fn send(&self, state: &mut State, at: usize, class: Class, len: usize, body: bool) {
        let end = &mut state.ends[at];
        let sent = end.credits.send(class, len);
        if let Some(depth) = self.depth {
            let signal = body || end.quiet + 1 >= (depth / 4).max(1);
            end.quiet = if signal { 0 } else { end.quiet + 1 };
            end.queue.push_back(match signal {
                true if body => Work::Owned,
                true => Work::Signaled,
                false => Work::Quiet,
            });
            if end.queue.len() as u32 > depth {
                state.broken = Some("I3: more work than the send queue has room for");
                return;
            }
        }
        let peer = &mut state.ends[1 - at];
        if !peer.is_live() {
            return;
        }
        if peer.posted == 0 {
            state.broken = Some("receiver not ready");
            return;
        }
        let covers = |m: &Message| {
            let (a, b) = (m.offset, sent.offset);
            a.zip(b)
                .is_some_and(|(a, b)| a < b + len as u64 && b < a + u64::from(m.len))
        };
        if peer.inbox.iter().any(covers) {
            state.broken = Some("I1: written over a message in the ring");
            return;
        }
        peer.posted -= 1;
        peer.inbox.push_back(Message {
            class,
            counter: sent.counter,
            len: len as u32,
            offset: sent.offset,
            body,
        });
    }

    fn take(&self, state: &mut State, at: usize) {
        let end = &mut state.ends[at];
        let Some(message) = end.inbox.pop_front() else {
            return;
        };
        let class = message.class;
        if let Some(offset) = message.offset
            && end.credits.find(message.len) != Ok(offset)
        {
            state.broken = Some("the ends disagree about a place in the ring");
            return;
        }
        if end.credits.receive(class, message.counter).is_err() {
            state.broken = Some("an honest peer is refused");
            return;
        }
        match class {
            // I8: bodies go to the user's buffers; without one the request is answered with an error. Entries are another matter.
            Class::Request if message.body && end.buffers < self.buffers => {
                end.buffers += 1;
                end.pulling += 1;
            }
            Class::Request => end.to_answer[0] += 1,
            Class::Answer if message.offset.is_some() => end.unanswered -= 1,
            _ => {}
        }
        if message.offset.is_none() {
            end.held.push_back(class);
        } else if class.is_control() {
            post_late(end);
            end.posted += 1;
            end.credits.reposted(class);
        } else {
            end.credits.set_aside();
            if end.credits.late() >= self.late {
                post_late(end);
            }
        }
    }
}

/// One of the requests to answer is answered; the body that it may have had is no longer needed.
fn answered(end: &mut End) {
    if end.to_answer[1] > 0 {
        end.to_answer[1] -= 1;
        end.buffers -= 1;
    } else {
        end.to_answer[0] -= 1;
    }
}

fn post_late(end: &mut End) {
    end.posted += end.credits.late();
    end.credits.reposted_late();
}

/// The next completion retires all work up to its own.
fn complete(end: &mut End) {
    while let Some(work) = end.queue.pop_front() {
        match work {
            Work::Quiet => continue,
            Work::Signaled | Work::Owned => {}
            Work::Read => {
                end.reads -= 1;
                end.pulling -= 1;
                end.to_answer[1] += 1;
            }
        }
        return;
    }
}

/// Whether the queue pair still has something.
fn has_work(end: &End) -> bool {
    !end.queue.is_empty() || !end.inbox.is_empty() || end.posted > 0 || end.credits.late() > 0
}

/// What the error state gives back, in its order.
fn flush(end: &mut End) {
    if let Some(work) = end.queue.pop_front() {
        end.reads -= u32::from(work == Work::Read);
    } else if end.inbox.pop_front().is_none() {
        end.posted = 0;
        end.credits.late = 0;
    }
}
