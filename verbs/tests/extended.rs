//! The tests of what one does with queue pairs once more, with pairs of extended ones and extended completion queues: nobody is to notice a
//! difference. `common::extended` tells that it is this binary.
#![allow(
    clippy::duplicate_mod,
    reason = "each brings its copy of what they share"
)]

#[path = "atomics.rs"]
mod atomics;
#[path = "batch.rs"]
mod batch;
#[path = "flow.rs"]
mod flow;
#[path = "forgotten.rs"]
mod forgotten;
#[path = "lifetime.rs"]
mod lifetime;
#[path = "messages.rs"]
mod messages;
#[path = "one_sided.rs"]
mod one_sided;
#[path = "scope.rs"]
mod scope;
#[path = "small.rs"]
mod small;
#[path = "waiting.rs"]
mod waiting;
