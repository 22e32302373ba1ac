//! A case, what it must see, and what is known to be seen elsewhere.

use crate::device::{Bed, Kind};

/// One thing that devices do.
#[derive(Clone, Copy)]
pub struct Case {
    /// Says what is tried, in a few words; the row of the table.
    pub name: &'static str,
    /// Where it is specified.
    pub source: &'static str,
    /// Tries it and says what was seen.
    pub run: fn(&Bed) -> String,
    /// What must be seen.
    pub expect: &'static str,
    /// The devices that do something else.
    known: [Option<Known>; Kind::ALL.len()],
}

/// A difference that is known.
#[derive(Clone, Copy)]
pub struct Known {
    pub seen: &'static str,
    pub why: &'static str,
}

/// A case without differences.
pub const fn case(
    name: &'static str,
    run: fn(&Bed) -> String,
    source: &'static str,
    expect: &'static str,
) -> Case {
    Case {
        name,
        source,
        run,
        expect,
        known: [None; Kind::ALL.len()],
    }
}

impl Case {
    /// The device sees something else, because of `why` (one sentence).
    pub const fn but(mut self, kind: Kind, seen: &'static str, why: &'static str) -> Case {
        self.known[kind as usize] = Some(Known { seen, why });
        self
    }

    /// What is known to be different on a device.
    pub fn known(&self, kind: Kind) -> Option<Known> {
        self.known[kind as usize]
    }

    /// What a device must see; `None` for one that is not in the table.
    pub fn wanted(&self, kind: Option<Kind>) -> &'static str {
        kind.and_then(|kind| self.known(kind))
            .map_or(self.expect, |known| known.seen)
    }
}

/// Cases about one thing.
pub struct Topic {
    pub name: &'static str,
    pub cases: &'static [Case],
}
