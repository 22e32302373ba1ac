//! Datagrams (UD): each names its destination, and nobody answers for it.
//!
//! A queue pair for datagrams has a [`mailbox`] in place of a lane: a ring that every process of the user may write to. A sender
//! looks at what the destination advertises (state, key, receives posted), claims a place in its mailbox, copies the message there
//! and wakes it; the destination's poll copies the message on to the receive. So no sender ever touches the memory of a receive,
//! and nothing has to be waited for when memory or a queue pair is given back: a late sender writes into a file that nobody looks
//! at any more.
//!
//! What cannot be delivered is dropped, and its sender succeeds: nobody at that number, another key, no receive. Whether there is a
//! receive is decided when the message is sent, not when it is polled. A receive that is too short for the message and the 40 bytes
//! before it completes with an error and ends its queue pair, and the sender succeeds as well.

pub(crate) mod address;
mod inbox;
pub(crate) mod mailbox;
mod outbox;

pub(crate) use inbox::Inbox;
pub(crate) use outbox::{Outboxes, execute};

/// Bytes of a datagram: the port's MTU.
pub(crate) const MTU: usize = 4096;

/// Bytes before the message in the memory of a receive: a global routing header.
pub(crate) const GRH: usize = 40;
