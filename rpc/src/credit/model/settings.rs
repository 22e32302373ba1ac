//! The settings that are walked through.
//!
//! Those that run always are the smallest that have all there is to have; those that are ignored have more slots, more kinds of messages at once, and
//! take minutes: `cargo test --release -p verbatim-rpc --lib credit::model -- --ignored --nocapture --test-threads 1`.

use super::Setting;
use crate::credit::{CONTROL_RESERVE, WINDOW_MIN};
use crate::ring::{CONTROL_SPAN, GRANULE, size_min, span};
use stateright::{Checker, Model};

/// Walks through all states of a setting, of which there are at least so many: otherwise it has lost something.
fn check(name: &str, setting: Setting, least: usize) {
    let started = std::time::Instant::now();
    let checker = setting.checker().threads(2).spawn_bfs().join();
    let states = checker.unique_state_count();
    println!("{name}: {states} states in {:.1?}", started.elapsed());
    checker.assert_properties();
    assert!(
        states >= least,
        "{name}: only {states} states, at least {least} are expected"
    );
}

/// The smallest windows, messages into memory of their own; one end asks.
fn sent(slots: u32) -> Setting {
    Setting {
        window: [WINDOW_MIN; 2],
        slots: [slots, 0],
        max: 1000,
        late: 1,
        hold: usize::MAX,
        lengths: vec![1000],
        control_length: 40,
        loss: true,
        ..Setting::default()
    }
}

/// Longest message in rings, eight times as long as those for control: so their places are few.
const MAX: u64 = 8 * CONTROL_SPAN;

/// The smallest rings, and what does not fit in front of their ends is skipped.
fn written(slots: u32) -> Setting {
    Setting {
        ring: [Some(size_min(MAX) + 2 * GRANULE); 2],
        max: MAX,
        late: 3,
        lengths: vec![MAX as usize],
        control_length: CONTROL_SPAN as usize,
        ..sent(slots)
    }
}

/// The smallest windows in which both ends can ask.
fn both(setting: Setting) -> Setting {
    let slots = setting.slots[0];
    Setting {
        window: [2 * (slots + 2 * CONTROL_RESERVE); 2],
        slots: [slots; 2],
        // Room for answers beside the half that may be owed.
        ring: setting
            .ring
            .map(|size| size.map(|size| size + u64::from(2 * slots) * span(MAX))),
        ..setting
    }
}

/// With send queues that are full at times, and requests with bodies to READ.
fn queues(setting: Setting, depth: u32) -> Setting {
    Setting {
        depth: Some(depth),
        reads: 1,
        buffers: 1,
        ..setting
    }
}

/// Who asks sends control messages of its own accord, so many.
fn control(setting: Setting, messages: u32) -> Setting {
    Setting {
        control: [messages, 0],
        ..setting
    }
}

/// Answers are left to be fetched: all, or some.
fn shelves(setting: Setting, all: bool) -> Setting {
    Setting {
        shelves: true,
        shelves_only: all,
        // As links do. If server and client held many entries for long, nobody would be left to say so: nothing but requests goes to the server.
        hold: 1,
        ..setting
    }
}

/// Messages of several lengths.
fn lengths(setting: Setting) -> Setting {
    Setting {
        lengths: vec![CONTROL_SPAN as usize, MAX as usize],
        ..setting
    }
}

fn safe(setting: Setting) -> Setting {
    Setting {
        loss: false,
        ..setting
    }
}

/// With late entries, and something to skip.
#[test]
fn rings() {
    check("rings", written(2), 200_000);
}

#[test]
fn rings_and_control() {
    check("rings, control", safe(control(written(1), 2)), 100_000);
}

#[test]
fn memory() {
    check("memory", sent(2), 70_000);
}

#[test]
fn memory_and_control() {
    let setting = safe(control(sent(1), u32::MAX));
    check("memory, control", setting, 100_000);
}

#[test]
fn shelf() {
    check("shelf", shelves(sent(3), true), 400);
}

#[test]
fn shelf_and_rings() {
    check("shelf, rings", safe(shelves(written(1), true)), 100_000);
}

#[test]
fn bodies() {
    check("bodies", safe(queues(sent(1), 8)), 500_000);
}

#[test]
fn both_ask_in_rings() {
    check("both ask, rings", safe(both(written(1))), 150_000);
}

#[test]
#[ignore = "takes minutes"]
fn long_memory() {
    check("memory", sent(4), 500_000);
    check("memory, control", control(sent(1), u32::MAX), 200_000);
}

#[test]
#[ignore = "takes minutes"]
fn long_rings() {
    check("rings", written(3), 500_000);
    check("rings, control", control(written(1), 4), 400_000);
    check("rings, lengths", safe(lengths(written(1))), 2_600_000);
}

#[test]
#[ignore = "takes minutes"]
fn long_shelf() {
    check("shelf", shelves(sent(6), true), 400);
    check("some answers fetched", shelves(sent(1), false), 100_000);
}

#[test]
#[ignore = "takes minutes"]
fn long_both() {
    check("both ask", both(sent(1)), 380_000);
    check("both ask, rings", both(written(1)), 200_000);
    check("bodies", queues(sent(1), 8), 600_000);
}
