//! The settings that are walked through.
//!
//! Those that run always are the smallest that have all there is to have. Those that are ignored have more slots, more kinds of messages at once, and up to
//! 2.5 million states; in an optimised build each takes less than a minute: `cargo test --release -p verbatim-rpc --lib credit::model -- --include-ignored --nocapture --test-threads 1`.
//!
//! What has been broken on purpose, and which setting saw it:
//!
//! | broken | seen by |
//! |---|---|
//! | requests use the entries that are kept for control | memory |
//! | requests are counted ahead with those entries | memory |
//! | requests use the room that is kept for control | full rings |
//! | a counter tells of an entry that is late | rings, both ask in rings, full rings |
//! | a counter tells of the entry of the message at hand | memory, rings, both ask in rings |
//! | the counter on an answer that is left to be fetched does | shelf and rings |
//! | late entries are not posted before a request whose answer needs their room | full rings |
//! | a skip is forgotten where room is looked for | long skips, and nothing smaller: the room that is kept for control hides skips that are shorter |
//! | a skip is forgotten where requests are counted ahead | full rings |
//!
//! Not seen by any setting, but by the [bounds](super::super::bounds) or by the [simulation](super::super::tests) of two ends in rings: requests that use the entries, or the room, of
//! answers (it takes both ends and more slots than can be walked through); late entries that are not posted before a request whose answer needs the entry; a skip that is forgotten where
//! late entries are weighed; and whatever only wastes credits, or lets a peer go too far.

use super::Setting;
use crate::credit::{CONTROL_RESERVE, WINDOW_MIN};
use crate::ring::{CONTROL_SPAN, GRANULE, size_min, span};
use stateright::{Checker, HasDiscoveries, Model};

/// Walks through all states of a setting, of which there are at least so many: otherwise it has lost something.
fn check(name: &str, setting: Setting, least: usize) {
    let started = std::time::Instant::now();
    let checker = setting
        .checker()
        .threads(2)
        .finish_when(HasDiscoveries::AnyFailures)
        .spawn_bfs()
        .join();
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
        hold: [usize::MAX; 2],
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
        hold: [1; 2],
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

/// Few messages are on their way at once, where these are not what a setting is about.
fn near(setting: Setting) -> Setting {
    Setting {
        wire: 1,
        ..safe(setting)
    }
}

/// Requests of two lengths into a ring whose end is in the way of the longest; answers elsewhere. Nothing is kept in it for answers, and there are slots
/// enough to fill it, so that a request waits for room, with a skip longer than what is kept for control.
fn skips() -> Setting {
    Setting {
        ring: [None, Some(52 * CONTROL_SPAN)],
        max: MAX,
        hold: [1; 2],
        control_length: CONTROL_SPAN as usize,
        ..lengths(near(sent(6)))
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

/// As many slots as the rings hold answers: requests wait for room, and late entries are in the way of answers.
#[test]
fn full_rings() {
    check("full rings", near(written(4)), 300_000);
}

#[test]
fn memory() {
    check("memory", sent(2), 70_000);
}

#[test]
fn memory_and_late() {
    let setting = Setting { late: 2, ..sent(2) };
    check("memory, late", setting, 70_000);
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
#[ignore = "for optimised builds"]
fn long_memory() {
    check("memory", sent(4), 500_000);
    check("memory, control", control(sent(1), 3), 200_000);
}

#[test]
#[ignore = "for optimised builds"]
fn long_rings() {
    check("rings", written(3), 380_000);
    check("full rings", safe(written(4)), 870_000);
}

#[test]
#[ignore = "for optimised builds"]
fn long_skips() {
    check("rings, skips", skips(), 2_400_000);
}

#[test]
#[ignore = "for optimised builds"]
fn long_shelf() {
    check("shelf", shelves(sent(6), true), 80_000);
    check("some answers fetched", shelves(sent(3), false), 50_000);
}

#[test]
#[ignore = "for optimised builds"]
fn long_both() {
    check("both ask", both(sent(1)), 760_000);
    check("both ask, rings", both(written(1)), 200_000);
    check("bodies", queues(sent(1), 8), 600_000);
    check(
        "both ask, two slots",
        near(Setting {
            together: true,
            ..both(sent(2))
        }),
        1_700_000,
    );
}
