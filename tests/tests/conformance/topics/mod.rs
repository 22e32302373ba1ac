//! The cases.

mod addresses;
mod atomics;
mod completions;
mod creating;
mod destroying;
mod errors;
mod extended;
mod forking;
mod immediate;
mod keys;
mod lengths;
mod ordering;
mod processes;
mod shared;
mod states;
mod threads;
mod unconnected;
mod unreliable;
mod waiting;

use crate::case::Topic;

/// In the order of the table.
pub const ALL: &[Topic] = &[
    creating::TOPIC,
    states::TOPIC,
    keys::TOPIC,
    lengths::TOPIC,
    ordering::TOPIC,
    immediate::TOPIC,
    atomics::TOPIC,
    errors::TOPIC,
    completions::TOPIC,
    waiting::TOPIC,
    shared::TOPIC,
    unreliable::TOPIC,
    unconnected::TOPIC,
    addresses::TOPIC,
    destroying::TOPIC,
    extended::TOPIC,
    threads::TOPIC,
    processes::TOPIC,
    forking::TOPIC,
];
