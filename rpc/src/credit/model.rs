//! Two accounts, two wires and the loss of either end, in every order that there is.
//!
//! The ends of the model have the real [`Credits`], with the real rings, and around them what a device has: receive entries,
//! messages on their way, a send queue. `stateright` then walks through all states that can be reached. Streams
//! of requests do not end: counters are [rebased](rebase) after each step, so there are finitely many states all the same.
//!
//! What is looked at in each state:
//!
//! * No rule is broken: no message without a receive entry, none over another in a ring, no answer that waits for anything but the own send
//!   queue, no work beyond the queues' depth, no READ beyond the limit, nothing that `Credits` itself asserts.
//! * No end counts on an entry before it is posted, and what is kept for control messages is there until as many of these are on their way.
//! * Nobody has to wait for ever: if all but the handlers go on, each end can come to have a request in every slot; if the handlers go on as well,
//!   every request is answered.
//! * Whoever has lost its peer ends with everything freed, and frees nothing before its queue pair is gone.

mod checks;
mod end;
mod rebase;
mod rules;
mod settings;

use super::{Class, Credits};
use end::{End, Life};
use stateright::{Model, Property};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// How the two ends are made, and what they do.
#[derive(Debug, Clone, Default)]
struct Setting {
    window: [u32; 2],
    /// Most requests that each end keeps unanswered; 0 makes none.
    slots: [u32; 2],
    /// The ring that each end reads from: its size.
    ring: [Option<u64>; 2],
    /// Longest message in rings.
    max: u64,
    /// Most entries that are late, where there is a ring.
    late: u32,
    /// Lengths of requests and answers.
    lengths: Vec<usize>,
    /// Length of control messages.
    control_length: usize,
    /// How many control messages each end sends of its own accord, as who asks does to release large replies; `u32::MAX` for any number.
    control: [u32; 2],
    /// Whether answers can be left to be fetched, and whether all are.
    shelves: bool,
    shelves_only: bool,
    /// Depth of the send queues; `None` for queues that complete at once.
    depth: Option<u32>,
    /// Most READs of an end; with some, requests can have bodies to READ.
    reads: u32,
    /// Buffers that each end's user has for such bodies.
    buffers: u32,
    /// Most messages whose entries are not posted again before the next is dealt with.
    hold: [usize; 2],
    /// Most messages that are on their way to an end; 0 for any number.
    wire: usize,
    /// Whether entries with memory are posted again all together.
    together: bool,
    /// Whether an end can die.
    loss: bool,
}

/// Both ends, and whether a rule was broken on the way here.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct State {
    ends: [End; 2],
    broken: Option<&'static str>,
}

/// What one end does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum What {
    /// Sends a request of this length; with a body to READ?
    Request(usize, bool),
    Answer(usize),
    /// Leaves an answer to be fetched.
    Shelve,
    /// Fetches the answer that was left first, or last.
    FetchFirst,
    FetchLast,
    /// Deals with the next message that has arrived.
    Take,
    /// Posts the entry of a message again that had memory.
    Repost,
    PostLate,
    /// Returns credits by a message for just that.
    GiveBack,
    /// Any other control message.
    Control,
    /// Polls the next completion of the send queue.
    Complete,
    /// READs a body.
    Read,
    Die,
    /// A message of the dead is not delivered: the last of them.
    Vanish,
    /// Learns that the peer is dead: the queue pair goes to its error state.
    Notice,
    /// Takes back what the device had.
    Flush,
    Destroy,
    Free,
}

type Action = (usize, What);

impl Setting {
    /// All that could be done; `can` says what is possible.
    fn menu(&self, end: usize, out: &mut Vec<Action>) {
        let mut add = |what| out.push((end, what));
        for &len in &self.lengths {
            add(What::Request(len, false));
            if self.reads > 0 {
                add(What::Request(len, true));
            }
            if !self.shelves_only {
                add(What::Answer(len));
            }
        }
        add(What::Take);
        add(What::Repost);
        add(What::PostLate);
        add(What::GiveBack);
        add(What::Control);
        if self.shelves {
            add(What::Shelve);
            add(What::FetchFirst);
            add(What::FetchLast);
        }
        add(What::Complete);
        add(What::Read);
        if self.loss {
            add(What::Die);
            add(What::Vanish);
            add(What::Notice);
            add(What::Flush);
            add(What::Destroy);
            add(What::Free);
        }
    }

    /// Does one thing that is possible; whatever the real code asserts on the way counts as a broken rule.
    fn go(&self, state: &State, (end, what): Action) -> State {
        let mut next = state.clone();
        let done = catch_unwind(AssertUnwindSafe(|| {
            self.act(&mut next, end, what);
            rebase::both(&mut next);
        }));
        if done.is_err() {
            // What the panic left is of no use.
            next = state.clone();
            next.broken = Some("an assertion failed");
        }
        next
    }
}

impl Model for Setting {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State {
            ends: [End::new(self, 0), End::new(self, 1)],
            broken: None,
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        if state.broken.is_some() {
            return;
        }
        self.menu(0, actions);
        self.menu(1, actions);
        actions.retain(|&(end, what)| self.can(state, end, what));
    }

    fn next_state(&self, state: &State, action: Action) -> Option<State> {
        Some(self.go(state, action))
    }

    fn properties(&self) -> Vec<Property<Self>> {
        checks::properties()
    }
}
