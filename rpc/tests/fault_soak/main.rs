//! Faults by the hundred, one at a time and each checked: calls over all paths, and something breaks: a queue pair at any step, a
//! verb, a completion queue, the control connection, memory, a handler, the server, or the client itself.
//!
//! Every time: each call ends within its bound with an error that is true (what was not sent was not executed, and
//! nothing was executed twice), those beside it notice nothing, and afterwards bytes of each budget, connections, descriptors and mappings
//! are what they were before.
//!
//! An ordinary run has 60 faults. `VERBATIM_CASES` says how many, `VERBATIM_SEED` which:
//! `VERBATIM_CASES=1000 cargo test --release -p verbatim-rpc --test fault_soak -- --nocapture`, and once more with
//! `VERBATIM_ASYNC=1`.

#[path = "../common/mod.rs"]
mod common;
#[path = "../host/mod.rs"]
mod host;
#[path = "../../src/fuzzing/random.rs"]
#[allow(dead_code, reason = "what this test does not need")]
mod random;

mod calls;
mod fault;
mod service;
mod stage;
mod wire;

use calls::{Calls, Tally};
use common::{ECHO, PANIC, patient};
use fault::{InForce, KINDS, Kind};
use host::{Held, hold_again, holds};
use random::Random;
use rpc::{CallError, Client};
use service::{GO, HOLD};
use stage::Stage;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use wire::{Relay, Wire};

fn number(variable: &str, otherwise: u64) -> u64 {
    let value = std::env::var(variable).ok();
    value.map_or(otherwise, |n| n.parse().expect("a number"))
}

/// Numbers of calls that belong to nobody in particular.
const ANY: [u8; 8] = u64::MAX.to_le_bytes();

/// A client that must notice nothing of what happens beside it: on the same core, with a call under way.
struct Near {
    client: Client,
    held: rpc::Pending,
}

impl Near {
    fn new(stage: &Stage, random: &mut Random) -> Near {
        let addr = stage.server().local_addr();
        let mut client = stage.connect(random, addr).expect("a connection");
        let held = client.submit(HOLD, ANY, patient()).expect("sent");
        // Behind it: so it has arrived.
        client.call(ECHO, ANY, patient()).expect("a reply");
        Near { client, held }
    }

    /// Its call goes on, unless the whole core was lost.
    fn check(self, kind: Kind) {
        let Near { mut client, held } = self;
        let go = client.call(GO, ANY, patient());
        let held = held.wait(&mut client);
        if kind.takes_all() {
            let lost = |end: &Result<rpc::Reply, CallError>| {
                matches!(
                    end,
                    Err(CallError::MaybeExecuted { .. } | CallError::NotSent(_))
                )
            };
            // The fault may not have been reached.
            assert!(
                held.is_ok() || lost(&held) && (lost(&go) || go.is_ok()),
                "{held:?} {go:?}"
            );
        } else {
            assert_eq!(held.expect("its reply").bytes(), ANY);
            assert_eq!(go.expect("its reply").bytes(), b"gone");
        }
    }
}

/// Runs one fault.
fn round(stage: &mut Stage, random: &mut Random, kind: Kind, first: u64, tally: &mut Tally) {
    let near = Near::new(stage, random);
    let mut calls = Calls::numbered(first);
    let relay = Relay::to(stage.server().local_addr());
    let mut fault = InForce::default();
    if kind == Kind::Connect {
        fault = fault::while_connecting(random);
    }
    let connected = stage.connect(random, relay.addr);
    let wire = relay.wire();
    match (connected, &wire) {
        (Ok(mut client), Some(wire)) => {
            act(
                stage,
                random,
                kind,
                &mut client,
                wire,
                &mut calls,
                &mut fault,
            );
            if kind == Kind::Drop || random.once_in(3) {
                drop(client);
            } else {
                calls.wait(&mut client);
            }
        }
        (Err(error), _) if kind == Kind::Connect => {
            *tally.entry("not connected").or_default() += 1;
            // It says which step it was.
            assert!(!error.to_string().is_empty());
        }
        (connected, _) => panic!("{connected:?}"),
    }
    drop(fault);
    stage.record.open();
    if let Some(wire) = wire {
        wire.close();
    }
    near.check(kind);
    stage.settled();
    calls.check(&stage.record, tally);
    stage.record.clear();
    let reply = stage.far.call(ECHO, "far", patient()).expect("a reply");
    assert_eq!(reply.bytes(), b"far");
}

/// Some calls, with the fault coming before, between or behind them.
fn act(
    stage: &mut Stage,
    random: &mut Random,
    kind: Kind,
    client: &mut Client,
    wire: &Wire,
    calls: &mut Calls,
    fault: &mut InForce,
) {
    let (count, holds) = (1 + random.below(14), random.once_in(3));
    let when = random.below(count + 1);
    for n in 0..=count {
        if n == when && kind != Kind::Connect {
            *fault = fault::put(kind, random, stage, client, wire, calls);
        }
        if kind == Kind::Panic && random.once_in(3) {
            calls.submit(client, PANIC, random.pick(&[0, 9000]), patient());
        }
        calls.submit_any(client, random, kind.is_silent(), holds);
        if random.once_in(4) {
            client.poll();
        }
    }
}

fn soak(seed: u64, faults: u64) {
    let mut stage = Stage::new();
    let mut random = Random::new(seed);
    let mut tally = Tally::new();
    let start = Instant::now();
    let mut before: Option<Held> = None;
    for n in 0..faults {
        // All kinds, each as often as any other.
        let kind = KINDS[n as usize % KINDS.len()];
        println!("fault {n}: {kind:?}");
        round(&mut stage, &mut random, kind, n * 1000, &mut tally);
        let hosts = [&stage.server_host, &stage.client_host];
        match &before {
            // What is made once is there after the first.
            None => before = Some(holds(&hosts)),
            Some(before) => hold_again(&hosts, before),
        }
    }
    println!("{faults} faults in {:?}: {tally:?}", start.elapsed());
    for what in [
        "replies",
        "lost",
        "expired",
        "not sent",
        "panics",
        "overloaded",
    ] {
        assert!(tally.contains_key(what), "{what}: {tally:?}");
    }
}

/// One at a time: what a process holds is counted, and faults are for all of it.
fn alone() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}

#[test]
fn faults_end_calls_and_nothing_else() {
    let _alone = alone();
    let faults = number("VERBATIM_CASES", 60);
    let limit = common::hang() + Duration::from_secs(1) * faults as u32 * common::slowness();
    common::bounded_by(limit, move || soak(number("VERBATIM_SEED", 1), faults));
}

/// Not a fault at all: all calls of a round are answered, which shows that it is the faults that are seen.
#[test]
fn without_a_fault_all_calls_are_answered() {
    let _alone = alone();
    common::bounded(|| {
        let stage = Stage::new();
        let mut random = Random::new(number("VERBATIM_SEED", 1));
        let mut tally = Tally::new();
        for n in 0..10 {
            let mut calls = Calls::numbered(n * 1000);
            let addr = stage.server().local_addr();
            let mut client = stage.connect(&mut random, addr).expect("a connection");
            for _ in 0..20 {
                calls.submit_any(&mut client, &mut random, false, false);
            }
            calls.wait(&mut client);
            calls.check(&stage.record, &mut tally);
        }
        assert_eq!(tally, Tally::from([("replies", 200)]));
    });
}
