//! The calls that somebody may ask about, by key.
//!
//! Every call passes through here, and small ones spend a good part of their time on memory that was just written and is moved before the
//! processor is done writing it. So an entry is filled where it stays, and the bytes of a small reply lie behind a pointer.

use super::reply::Reply;
use super::small_reply::SmallReply;
use crate::clock::Moment;
use crate::deadline::Deadline;
use crate::error::CallError;
use crate::wire::SlotId;

/// A call.
pub(super) struct Call {
    /// [`NEVER`](Moment::NEVER) if that is not known.
    pub started: Moment,
    pub deadline: Deadline,
    pub slot: SlotId,
    state: State,
    small: Option<SmallReply>,
    /// Whether the outcome is a part, of the connection there is now, whose next has not been asked for.
    unasked: bool,
    /// Any other outcome.
    outcome: Option<Result<Reply, CallError>>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    /// Nobody's.
    Free,
    Waiting,
    /// With a reply in `small`.
    Small,
    /// With an outcome in `outcome`.
    Ended,
}

/// All of them.
pub(super) struct Calls {
    entries: Vec<Call>,
    free: Vec<usize>,
}

impl Calls {
    /// Room for so many, before it allocates.
    pub fn with_capacity(count: usize) -> Calls {
        let mut calls = Calls {
            entries: Vec::with_capacity(count),
            free: Vec::with_capacity(count),
        };
        for _ in 0..count {
            calls.add();
        }
        calls
    }

    #[cold]
    fn add(&mut self) {
        self.free.push(self.entries.len());
        self.entries.push(Call {
            started: Moment::NEVER,
            deadline: Deadline::never(),
            slot: SlotId::default(),
            state: State::Free,
            small: None,
            unasked: false,
            outcome: None,
        });
    }

    /// A call has begun; its key.
    #[inline(always)]
    pub fn begin(&mut self, started: Moment, deadline: Deadline, slot: SlotId) -> usize {
        if self.free.is_empty() {
            self.add();
        }
        let key = self.free.pop().unwrap_or_default();
        let call = &mut self.entries[key];
        debug_assert!(call.state == State::Free && call.outcome.is_none());
        call.started = started;
        call.deadline = deadline;
        call.slot = slot;
        call.state = State::Waiting;
        key
    }

    /// The call with this key.
    #[inline]
    pub fn get(&self, key: usize) -> Option<&Call> {
        self.entries
            .get(key)
            .filter(|call| call.state != State::Free)
    }

    /// A call that has no outcome yet.
    #[inline(always)]
    fn waiting(&mut self, key: usize) -> Option<&mut Call> {
        self.entries
            .get_mut(key)
            .filter(|call| call.state == State::Waiting)
    }

    /// Whether asking for the outcome would give one at once; also if there is no such call.
    #[inline]
    pub fn has_outcome(&self, key: usize) -> bool {
        self.entries
            .get(key)
            .is_none_or(|call| call.state != State::Waiting)
    }

    /// A call ends with a whole reply of at most [`SmallReply::MOST`] bytes, others are not taken: when it began.
    #[inline(always)]
    pub fn end_small(&mut self, key: usize, bytes: &[u8]) -> Option<Moment> {
        let call = self.waiting(key)?;
        call.small = Some(SmallReply::copy(bytes)?);
        call.state = State::Small;
        Some(call.started)
    }

    /// When a call began, if it has no outcome yet.
    #[inline]
    pub fn waits_since(&self, key: usize) -> Option<Moment> {
        let call = self.entries.get(key)?;
        (call.state == State::Waiting).then_some(call.started)
    }

    /// A call ends.
    pub fn end(&mut self, key: usize, outcome: Result<Reply, CallError>) {
        if let Some(call) = self.waiting(key) {
            call.unasked = matches!(&outcome, Ok(reply) if reply.has_more());
            call.outcome = Some(outcome);
            call.state = State::Ended;
        }
    }

    /// All calls that have no outcome end so.
    pub fn end_all(&mut self, mut outcome: impl FnMut() -> CallError) {
        for key in 0..self.entries.len() {
            if self.waiting(key).is_some() {
                self.end(key, Err(outcome()));
            }
        }
    }

    /// The reply of a call, if it has ended with a small one; the call is then over.
    #[inline(always)]
    pub fn take_small(&mut self, key: usize) -> Option<SmallReply> {
        let call = self.entries.get_mut(key)?;
        if call.state != State::Small {
            return None;
        }
        call.state = State::Free;
        self.free.push(key);
        call.small.take()
    }

    /// The outcome of a call, if there is another; the call is then over.
    pub fn take(&mut self, key: usize) -> Option<Result<Reply, CallError>> {
        let call = self.entries.get_mut(key)?;
        if call.state != State::Ended {
            return None;
        }
        call.state = State::Free;
        call.unasked = false;
        self.free.push(key);
        call.outcome.take()
    }

    /// The connection that outcomes came by has ended: nobody can ask for what comes next.
    pub fn leave(&mut self) {
        for call in &mut self.entries {
            call.unasked = false;
        }
    }

    /// Forgets a call; its slot, if it had no outcome, and whether it had one that was a part, whose next has not been asked for.
    pub fn forget(&mut self, key: usize) -> (Option<SlotId>, bool) {
        let Some(call) = self.entries.get_mut(key) else {
            return (None, false);
        };
        if call.state == State::Free {
            return (None, false);
        }
        let slot = (call.state == State::Waiting).then_some(call.slot);
        let unasked = std::mem::take(&mut call.unasked);
        call.state = State::Free;
        call.outcome = None;
        call.small = None;
        self.free.push(key);
        (slot, unasked)
    }
}
