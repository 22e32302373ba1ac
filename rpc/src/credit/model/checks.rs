//! What must hold in every state, and the settings that are walked through.

use super::end::{End, Life};
use super::{Setting, State, What};
use stateright::{Model, Property};
use std::panic::{AssertUnwindSafe, catch_unwind};

pub fn properties() -> Vec<Property<Setting>> {
    vec![
        Property::always("no rule is broken", |_, state: &State| {
            state.broken.is_none()
        }),
        Property::always("entries are neither lost nor made", entries),
        Property::always("nobody counts on an entry before it is posted", told),
        Property::always("credits can be returned at any time", returns),
        Property::always("completion queues have room", completions),
        Property::always("something can happen", moves),
        Property::always("slow handlers hold up nobody", |setting, state: &State| {
            !both_live(state) || fills_slots(setting, state)
        }),
        Property::always("every request is answered", |setting, state: &State| {
            !both_live(state) || answers_all(setting, state)
        }),
        Property::always("a survivor frees everything", survives),
        Property::sometimes("credits return by themselves", |setting, state: &State| {
            // Not where they come with every answer, at once.
            let needless = setting.shelves && setting.ring == [None; 2];
            needless
                || [0, 1]
                    .iter()
                    .any(|&end| setting.can(state, end, What::GiveBack))
        }),
    ]
}

fn both_live(state: &State) -> bool {
    state.broken.is_none() && state.ends.iter().all(|end| end.life == Life::Live)
}

/// I8, I9: an entry is with the device, or belongs to a message, whatever the user's memory is used for.
fn entries(setting: &Setting, state: &State) -> bool {
    state.ends.iter().enumerate().all(|(at, end)| {
        let arrived = (end.inbox.len() + end.held.len()) as u32;
        end.life != Life::Live
            || state.broken.is_some()
            || end.posted + arrived + end.credits.late() == setting.window[at]
    })
}

/// I9, and with it that the room in a ring is free.
fn told(_: &Setting, state: &State) -> bool {
    let [a, b] = &state.ends;
    let holds = |sender: &End, receiver: &End| sender.credits.available() <= receiver.posted;
    !both_live(state) || (holds(a, b) && holds(b, a))
}

/// I1: what is kept for control messages is there, in entries and in the ring, until as many of them are on their way.
fn returns(_: &Setting, state: &State) -> bool {
    !both_live(state) || state.ends.iter().all(End::may_return)
}

/// I4, I5.
fn completions(setting: &Setting, state: &State) -> bool {
    state.ends.iter().enumerate().all(|(at, end)| {
        let room = setting.window[at] as usize + setting.depth.unwrap_or(0) as usize;
        end.inbox.len() + end.queue.len() <= room
            && end.reads <= setting.reads
            && end.buffers <= setting.buffers
    })
}

/// Whether this is something that an end does by itself when it can, rather than something that befalls it.
fn is_due(what: What) -> bool {
    !matches!(what, What::Control | What::Die | What::Vanish)
}

fn moves(setting: &Setting, state: &State) -> bool {
    if state.broken.is_some()
        || state
            .ends
            .iter()
            .all(|e| matches!(e.life, Life::Dead | Life::Over))
    {
        return true;
    }
    let mut actions = Vec::new();
    setting.actions(state, &mut actions);
    actions.iter().any(|&(_, what)| is_due(what))
}

/// Lets both ends do what they must, until nothing moves. Entries that are late are posted when there is nothing else to do.
fn settle(setting: &Setting, state: &State, may: impl Fn(What) -> bool) -> State {
    let mut menu = Vec::new();
    for end in [0, 1] {
        setting.menu(end, &mut menu);
    }
    menu.retain(|&(_, what)| is_due(what) && may(what));
    menu.sort_by_key(|&(_, what)| what == What::PostLate);
    let run = || {
        let mut state = state.clone();
        // Far more than any setting takes: if it does not end, it goes round.
        for _ in 0..10_000 {
            let mut moved = false;
            for &(end, what) in &menu {
                // Late entries wait until there is nothing else to do.
                while (what != What::PostLate || !moved) && setting.can(&state, end, what) {
                    setting.act(&mut state, end, what);
                    moved = true;
                    if state.broken.is_some() {
                        return state;
                    }
                }
            }
            if !moved {
                return state;
            }
        }
        state.broken = Some("goes round for ever");
        state
    };
    catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|_| State {
        broken: Some("an assertion failed"),
        ..state.clone()
    })
}

fn is_answer(what: What) -> bool {
    matches!(what, What::Answer(_) | What::Shelve)
}

fn fills_slots(setting: &Setting, state: &State) -> bool {
    let end = settle(setting, state, |what| !is_answer(what));
    let full = |at: usize| end.ends[at].in_use() == setting.slots[at];
    end.broken.is_none() && full(0) && full(1)
}

fn answers_all(setting: &Setting, state: &State) -> bool {
    let idle = |state: &State| {
        state.broken.is_none()
            && state.ends.iter().all(|end| {
                end.in_use() + end.pulling + end.buffers + end.reads == 0
                    && end.to_answer == [0; 2]
                    && end.inbox.is_empty()
            })
    };
    let pushing = |what| !matches!(what, What::Request(..) | What::Shelve);
    let shelving = |what| !matches!(what, What::Request(..) | What::Answer(_));
    (setting.shelves_only || idle(&settle(setting, state, pushing)))
        && (!setting.shelves || idle(&settle(setting, state, shelving)))
}

fn survives(setting: &Setting, state: &State) -> bool {
    let over = |life: Life| matches!(life, Life::Over | Life::Dead);
    if !state.ends.iter().any(|end| over(end.life)) || state.broken.is_some() {
        return true;
    }
    let end = settle(setting, state, |what| {
        !matches!(what, What::Request(..)) && !is_answer(what)
    });
    end.broken.is_none() && end.ends.iter().all(|end| over(end.life) && end.is_empty())
}
