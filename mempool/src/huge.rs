//! Huge pages: the wish for them, and what became of it.

use crate::arena::ArenaError;
use crate::stats::NumaPlacement;
use crate::trace::event;
use parking_lot::Mutex;
use std::io;
use verbs::{HugePageError, HugePageSize, MemoryFile, MemoryKind};

/// What arenas of huge pages are made of.
pub(crate) const SIZE: HugePageSize = HugePageSize::Mib2;

/// Whether arenas are to be of huge pages (2 MiB) that the system has set aside: fewer entries in the tables of processors and devices.
/// For [`PoolBuilder::huge_pages`](crate::PoolBuilder::huge_pages).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum HugePages {
    /// They are of ordinary pages.
    #[default]
    Never,
    /// They are of huge pages as long as there are any. Others are of ordinary ones, which the system is advised to join to huge ones;
    /// [`PoolStats::huge_pages`](crate::PoolStats::huge_pages) says why.
    Try,
    /// They are of huge pages, or it is an error that says how to set more aside.
    Require,
}

/// What became of the wish for huge pages.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum HugePageUse {
    /// Nobody asked for them.
    NotAsked,
    /// No arena has had to do without so far.
    SetAside,
    /// Arenas are of ordinary pages since there were too few huge ones, for the reason given. The system was advised to join them, and says
    /// that it does so where it can.
    Advised(String),
    /// Arenas are of ordinary pages since there were too few huge ones, and the system does not join ordinary ones; the reasons of
    /// both.
    Unavailable(String),
}

/// Makes memory files as they were wished for.
#[derive(Debug)]
pub(crate) struct Files {
    wish: HugePages,
    /// Whether the system joins ordinary pages of memory files, or why not.
    joins: Result<(), String>,
    /// Why the last arena of ordinary pages is of those.
    without: Mutex<Option<String>>,
}

impl Files {
    /// `joins` is what the system says of ordinary pages; not asked for nothing.
    pub fn new(wish: HugePages, joins: impl FnOnce() -> Result<(), String>) -> Files {
        Files {
            wish,
            joins: match wish {
                HugePages::Try => joins(),
                HugePages::Never | HugePages::Require => Ok(()),
            },
            without: Mutex::default(),
        }
    }

    /// Whether there is a huge page, where they are required.
    pub fn check(&self) -> Result<(), HugePageError> {
        match self.wish {
            HugePages::Require => MemoryFile::huge(1, MemoryKind::Private, SIZE).map(drop),
            HugePages::Never | HugePages::Try => Ok(()),
        }
    }

    /// How long a file for `len` bytes is at most.
    pub fn longest(&self, len: usize) -> usize {
        match self.wish {
            HugePages::Never => len,
            _ => len.next_multiple_of(SIZE.bytes()),
        }
    }

    /// A file of at least `len` bytes, after `place` has seen it, and whether it is of huge pages.
    pub fn make(
        &self,
        len: usize,
        kind: MemoryKind,
        place: impl Fn(&MemoryFile, bool) -> Result<(), ArenaError>,
    ) -> Result<(MemoryFile, bool), ArenaError> {
        if self.wish != HugePages::Never {
            let made = MemoryFile::huge(len, kind, SIZE).map_err(ArenaError::from);
            match made.and_then(|file| place(&file, true).map(|()| file)) {
                Ok(file) => return Ok((file, true)),
                Err(e) if self.wish == HugePages::Require => return Err(e),
                Err(e) => self.goes_without(&e),
            }
        }
        let file = MemoryFile::create(len, kind).map_err(ArenaError::Create)?;
        place(&file, false)?;
        Ok((file, false))
    }

    /// Whether ordinary pages are to be joined.
    pub fn joins(&self) -> bool {
        self.wish == HugePages::Try && self.joins.is_ok()
    }

    fn goes_without(&self, why: &ArenaError) {
        let why = why.to_string();
        let mut without = self.without.lock();
        // Once for each reason: what follows can be seen in the figures.
        if without.as_ref() != Some(&why) {
            event!(WARN, reason = %why, "an arena is of ordinary pages");
            *without = Some(why);
        }
    }

    pub fn outcome(&self) -> HugePageUse {
        if self.wish == HugePages::Never {
            return HugePageUse::NotAsked;
        }
        match (self.without.lock().clone(), &self.joins) {
            (None, _) => HugePageUse::SetAside,
            (Some(why), Ok(())) => HugePageUse::Advised(why),
            (Some(why), Err(joins)) => HugePageUse::Unavailable(format!("{why}; {joins}")),
        }
    }
}

/// A node has too few huge pages for an arena.
pub(crate) fn of_node(numa: &NumaPlacement, len: usize, source: io::Error) -> ArenaError {
    let pages = len / SIZE.bytes();
    match *numa {
        NumaPlacement::Bound { node } => ArenaError::HugePagesOfNode {
            node,
            pages,
            source,
        },
        _ => ArenaError::Populate(source),
    }
}
