//! A sender, a receiver and the wire between, in every order that there is.
//!
//! Both have the real rules. Around them is what a device has: what is on its way, memory that is written and read at some time, one receive
//! entry for wakes. `stateright` walks through all states for a few messages; and again with each of the mistakes that the
//! rules are there to avoid, which it has to find.

use super::{FIRST_SLEEP, Rest, Ringer, Sleeper};
use stateright::{Checker, Model, Property};
use std::collections::VecDeque;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mistake {
    None,
    /// The sender looks at the flag before the count is visible.
    LooksFirst,
    /// The receiver sleeps when the flag is written, without asking.
    AsksNot,
    /// The receiver asks while the flag is on its way.
    AsksEarly,
    /// The receiver goes to sleep anew although a wake is on its way.
    SleepsAnew,
}

struct Setting {
    messages: u64,
    mistake: Mistake,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Phase {
    Idle,
    /// Only with the mistake of looking first.
    Looked,
    Counted,
    Posted,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Flying {
    Message,
    Wake,
}

/// What the receiver has posted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Op {
    Write(u64),
    Written,
    Read,
    Brought(u64),
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct State {
    ringer: Ringer,
    phase: Phase,
    /// With the mistake of looking first: what was seen.
    seen: u64,
    count: u64,
    flag: u64,
    wire: VecDeque<Flying>,
    /// Messages that lie in the ring or have been taken.
    placed: u64,
    taken: u64,
    sleeper: Sleeper,
    ops: Vec<Op>,
    entries: u32,
    wakes: u32,
    broken: Option<&'static str>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Action {
    Count,
    Post,
    Look,
    Deliver,
    Take,
    Tire,
    Execute(usize),
    Complete,
    Wake,
}

impl Setting {
    fn step(&self, s: &mut State, action: Action) -> Option<()> {
        match action {
            Action::Count => {
                let ready = match self.mistake {
                    Mistake::LooksFirst => Phase::Looked,
                    _ => Phase::Idle,
                };
                if s.phase != ready || s.ringer.posted() == self.messages {
                    return None;
                }
                s.count = s.ringer.count();
                s.phase = Phase::Counted;
            }
            Action::Post => {
                if s.phase != Phase::Counted {
                    return None;
                }
                s.wire.push_back(Flying::Message);
                s.phase = Phase::Posted;
            }
            Action::Look if self.mistake == Mistake::LooksFirst && s.phase == Phase::Idle => {
                s.seen = s.flag;
                s.phase = Phase::Looked;
            }
            Action::Look => {
                if s.phase != Phase::Posted {
                    return None;
                }
                let flag = match self.mistake {
                    Mistake::LooksFirst => s.seen,
                    _ => s.flag,
                };
                if s.ringer.must_wake(flag) {
                    s.wire.push_back(Flying::Wake);
                }
                s.phase = Phase::Idle;
            }
            Action::Deliver => match s.wire.pop_front()? {
                Flying::Message => s.placed += 1,
                Flying::Wake if s.entries == 0 => s.broken = Some("no entry for a wake"),
                Flying::Wake => {
                    s.entries -= 1;
                    s.wakes += 1;
                }
            },
            Action::Take => {
                if s.placed == s.taken || s.sleeper.is_asleep() {
                    return None;
                }
                s.taken += 1;
                s.sleeper.heard();
            }
            Action::Tire => {
                if s.sleeper.is_asleep() {
                    return None;
                }
                if self.mistake == Mistake::SleepsAnew && !s.sleeper.out {
                    s.sleeper.armed = false;
                    s.sleeper.state = super::State::Awake;
                }
                match s.sleeper.tire(s.taken) {
                    Rest::Announce(flag) => {
                        s.ops.push(Op::Write(flag));
                        if self.mistake == Mistake::AsksEarly {
                            s.sleeper.announced();
                            s.sleeper.tire(s.taken);
                            s.ops.push(Op::Read);
                        }
                    }
                    Rest::Ask => s.ops.push(Op::Read),
                    _ => return None,
                }
            }
            Action::Execute(at) => match *s.ops.get(at)? {
                Op::Write(flag) => {
                    s.flag = flag;
                    s.ops[at] = Op::Written;
                }
                Op::Read => s.ops[at] = Op::Brought(s.count),
                _ => return None,
            },
            Action::Complete => match *s.ops.first()? {
                Op::Written => {
                    s.ops.remove(0);
                    let asks = s.ops.is_empty();
                    if asks && s.sleeper.announced() && self.mistake == Mistake::AsksNot {
                        s.sleeper.state = super::State::Asleep;
                    }
                }
                Op::Brought(count) => {
                    s.ops.remove(0);
                    let most = self.messages as u32;
                    if s.sleeper.told(count, s.taken, most).is_err() {
                        s.broken = Some("an impossible count");
                    }
                }
                _ => return None,
            },
            Action::Wake => {
                s.wakes = s.wakes.checked_sub(1)?;
                s.entries += 1;
                if s.sleeper.woken().is_err() {
                    s.broken = Some("a wake that nobody asked for");
                }
            }
        }
        Some(())
    }
}

impl Model for Setting {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State {
            ringer: Ringer::default(),
            phase: Phase::Idle,
            seen: 0,
            count: 0,
            flag: FIRST_SLEEP,
            wire: VecDeque::new(),
            placed: 0,
            taken: 0,
            sleeper: Sleeper::default(),
            ops: Vec::new(),
            entries: 1,
            wakes: 0,
            broken: None,
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        use Action::*;
        let all = [Count, Post, Look, Deliver, Take, Tire, Complete, Wake];
        if state.broken.is_none() {
            actions.extend(all);
            actions.extend([Execute(0), Execute(1)]);
        }
    }

    fn next_state(&self, state: &State, action: Action) -> Option<State> {
        let mut next = state.clone();
        self.step(&mut next, action).map(|()| next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("no rule is broken", |_, s: &State| s.broken.is_none()),
            // A receiver that is awake looks; one that sleeps must have a reason to wake, or nothing to miss.
            Property::always("nobody sleeps over a message", |_, s: &State| {
                let posting = matches!(s.phase, Phase::Counted | Phase::Posted);
                let quiet = s.wire.is_empty() && !posting && s.wakes == 0;
                !(quiet && s.sleeper.is_asleep() && s.placed > s.taken)
            }),
            Property::sometimes("it sleeps at the end", |m: &Setting, s: &State| {
                s.sleeper.is_asleep() && s.taken == m.messages
            }),
            Property::sometimes("it is woken", |_, s: &State| {
                s.wakes > 0 && s.sleeper.is_asleep()
            }),
        ]
    }
}

#[test]
fn no_wake_is_lost_and_none_is_too_many() {
    let setting = Setting {
        messages: 4,
        mistake: Mistake::None,
    };
    let checker = setting.checker().spawn_bfs().join();
    checker.assert_properties();
    println!("{} states", checker.unique_state_count());
    assert!(checker.unique_state_count() > 1000);
}

#[test]
fn each_mistake_is_found() {
    for mistake in [
        Mistake::LooksFirst,
        Mistake::AsksNot,
        Mistake::AsksEarly,
        Mistake::SleepsAnew,
    ] {
        let setting = Setting {
            messages: 4,
            mistake,
        };
        // Some of them make endless states.
        let checker = setting.checker().target_state_count(200_000);
        let checker = checker.spawn_bfs().join();
        let found = ["no rule is broken", "nobody sleeps over a message"]
            .into_iter()
            .find(|name| checker.discovery(name).is_some());
        println!("{mistake:?}: {found:?}");
        assert!(found.is_some(), "{mistake:?}");
    }
}
