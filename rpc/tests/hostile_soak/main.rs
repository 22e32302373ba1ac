//! A peer that got through the handshake, and from then on does what a generator says: writes anywhere in the ring, in any order
//! and in parts, completes messages that are whole, bent, or not there, names keys of its own, of others and of nobody, and says what it likes about credits.
//!
//! A real server has such clients, and a real client such a server. What must hold: nobody panics or hangs, calls end when they
//! have to, connections of others go on with the right bytes, what peers have no key to is untouched, and afterwards
//! budgets, descriptors and mappings are what they were.
//!
//! `VERBATIM_CASES` says how many cases, `VERBATIM_SEED` which. For a long run:
//! `VERBATIM_CASES=1000000 cargo test --release -p verbatim-rpc --features fuzzing --test hostile_soak -- --nocapture`.

#[path = "../common/mod.rs"]
mod common;
#[path = "../host/mod.rs"]
mod host;
#[path = "../raw/mod.rs"]
mod raw;

mod clients;
mod offender;
mod servers;

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// How many cases of each side: `of` in an ordinary run.
fn cases(of: u64) -> u64 {
    let cases = std::env::var("VERBATIM_CASES").ok();
    cases.map_or(of, |n| n.parse().expect("VERBATIM_CASES is a number"))
}

fn seed() -> u64 {
    let seed = std::env::var("VERBATIM_SEED").ok();
    seed.map_or(1, |n| n.parse().expect("VERBATIM_SEED is a number"))
}

/// How long a run of so many cases may take before it counts as hanging.
fn limit(cases: u64) -> Duration {
    common::hang() + Duration::from_millis(10) * cases as u32 * common::slowness()
}

/// One at a time: what a process holds is counted.
fn alone() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}

#[test]
fn a_server_whose_clients_do_what_they_like() {
    let _alone = alone();
    let cases = cases(12_000);
    common::bounded_by(limit(cases), move || clients::soak(seed(), cases));
}

#[test]
fn a_client_whose_server_does_what_it_likes() {
    let _alone = alone();
    let cases = cases(3_000);
    common::bounded_by(limit(cases), move || servers::soak(seed(), cases));
}
