//! One end: its account, and what its device has.

use super::{Class, Credits, Setting};
use crate::credit::CONTROL_RESERVE;
use std::collections::VecDeque;

/// A message on its way, or arrived and not looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Message {
    pub class: Class,
    pub counter: u32,
    pub len: u32,
    pub offset: Option<u64>,
    /// There is a body to READ.
    pub body: bool,
}

/// What a send queue holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Work {
    /// A message whose completion nobody asked for.
    Quiet,
    Signaled,
    /// A request whose slot is not free before its completion; signaled.
    Owned,
    Read,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Life {
    Live,
    Dead,
    /// The peer is dead, and this end knows; the queue pair is in its error state.
    Failed,
    /// The queue pair is gone.
    Destroyed,
    /// All is over.
    Over,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct End {
    pub life: Life,
    pub credits: Credits,
    /// What has been sent to this end.
    pub inbox: VecDeque<Message>,
    /// Receive entries that the device holds.
    pub posted: u32,
    /// Messages dealt with whose entries, which have memory, are to be posted again.
    pub held: VecDeque<Class>,
    /// The send queue.
    pub queue: VecDeque<Work>,
    /// Messages since the last signaled one.
    pub quiet: u32,
    /// READs in the queue.
    pub reads: u32,
    /// Requests whose bodies are to be READ.
    pub pulling: u32,
    /// The user's buffers that bodies are in.
    pub buffers: u32,
    /// Requests to answer that have no body, and those that have.
    pub to_answer: [u32; 2],
    /// Counters on answers that the peer has left for this end to fetch.
    pub shelf: VecDeque<u32>,
    /// Control messages that it may still send of its own accord.
    pub control: u32,
    /// Own requests that no answer was seen to.
    pub unanswered: u32,
}

impl End {
    pub fn new(setting: &Setting, at: usize) -> End {
        let peer = 1 - at;
        let window = setting.window[at];
        let mut credits = Credits::new(window, setting.window[peer], setting.slots[peer]);
        if let Some(size) = setting.ring[peer] {
            credits = credits.writing(size, setting.max);
        }
        if let Some(size) = setting.ring[at] {
            credits = credits.reading(size, setting.max);
        }
        End {
            life: Life::Live,
            credits,
            inbox: VecDeque::new(),
            posted: window,
            held: VecDeque::new(),
            queue: VecDeque::new(),
            quiet: 0,
            reads: 0,
            pulling: 0,
            buffers: 0,
            to_answer: [0; 2],
            shelf: VecDeque::new(),
            control: setting.control[at],
            unanswered: 0,
        }
    }

    /// What is left of it, as its peer sees it: nothing.
    pub fn dead(setting: &Setting, at: usize) -> End {
        End {
            life: Life::Dead,
            posted: 0,
            control: 0,
            ..End::new(setting, at)
        }
    }

    pub fn is_live(&self) -> bool {
        self.life == Life::Live
    }

    /// Whether credits could be returned now, or nothing but the number of control messages on their way is against it.
    pub fn may_return(&self) -> bool {
        let credits = &self.credits;
        let on_their_way = credits
            .control_sent
            .unacknowledged(credits.told_by_peer, credits.peer_window);
        on_their_way >= CONTROL_RESERVE as usize || credits.may_send(Class::Credit)
    }

    /// Slots in use: no answer yet, or the device still has the request.
    pub fn in_use(&self) -> u32 {
        let owned = self.queue.iter().filter(|&&work| work == Work::Owned);
        self.unanswered.max(owned.count() as u32)
    }

    /// Nothing of the connection is left.
    pub fn is_empty(&self) -> bool {
        self.inbox.is_empty()
            && self.shelf.is_empty()
            && self.held.is_empty()
            && self.queue.is_empty()
            && self.posted + self.reads + self.pulling + self.buffers + self.unanswered == 0
            && self.to_answer == [0; 2]
            && self.credits.late() == 0
    }
}
