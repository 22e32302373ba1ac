//! Fetching replies from the server's shelf.
//!
//! Every request that asks for it is on the list here until its reply is whole. The first READ is put off until the reply is expected, and fetches
//! as much as replies have been long; what it does not find is asked for again, after a growing pause; the rest of a long reply is READ by itself.
//!
//! On a hybrid connection [`Policy`] decides with every request whether its reply is to be fetched or pushed.

mod policy;

pub(super) use policy::Policy;

use super::Client;
use crate::clock::Moment;
use crate::deadline::Deadline;
use crate::error::{Lost, Violation};
use crate::posted::Fetch;
use crate::shelf::{self, ENTRY_HEAD, Fetched};
use crate::slot::SlotError;
use crate::wire::{Header, Kind, SlotId};
use mempool::{BudgetKind, Pool};
use verbs::RemoteRegion;

/// Buffers that are kept for the next fetch.
const SPARE_MAX: usize = 16;

/// How long to wait for memory, in nanoseconds.
const NO_MEMORY: u64 = 100_000;

/// After so many nanoseconds without a reply the server may sleep. How long it takes to wake up says nothing of how long requests take, and
/// is no reason to look for the reply less and less often.
const RESTED: u64 = 50_000;

/// What a connection with a shelf has beside the others.
pub(super) struct Fetcher {
    shelf: RemoteRegion,
    inline_limit: u32,
    pub policy: Policy,
    awaited: Vec<Awaited>,
    /// What completions have brought, to be looked at.
    #[expect(clippy::vec_box, reason = "the queue takes boxes")]
    pub landed: Vec<Box<Fetch>>,
    #[expect(clippy::vec_box, reason = "the queue takes boxes")]
    spare: Vec<Box<Fetch>>,
    pub counts: Counts,
    /// When something was fetched last.
    last: Moment,
}

/// A reply that is to be fetched.
struct Awaited {
    slot: SlotId,
    /// How much of it the first READ fetches, as the request said.
    units: u16,
    /// Whether the server has to READ the request first.
    long: bool,
    /// Whether the server may have fallen asleep before.
    rested: bool,
    failed: u32,
    requested: Moment,
    /// When the next READ is to be posted, unless one is out.
    due: Moment,
    posted: Moment,
    reading: bool,
    /// What is there of a long one.
    part: Option<Part>,
}

struct Part {
    /// Here unless it is out.
    fetch: Option<Box<Fetch>>,
    /// Length of the message.
    len: usize,
    /// Checksum of the rest.
    rest: u64,
}

/// What is counted.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Counts {
    pub reads: u64,
    pub replies: u64,
    pub failed: u64,
    pub wasted: u64,
}

impl Counts {
    /// Those of an earlier connection as well.
    pub fn add(&mut self, other: &Counts) {
        self.reads += other.reads;
        self.replies += other.replies;
        self.failed += other.failed;
        self.wasted += other.wasted;
    }
}

impl Fetcher {
    pub fn new(shelf: RemoteRegion, inline_limit: u32, policy: Policy) -> Fetcher {
        Fetcher {
            shelf,
            inline_limit,
            policy,
            awaited: Vec::new(),
            landed: Vec::new(),
            spare: Vec::new(),
            counts: Counts::default(),
            last: Moment::now(),
        }
    }

    /// A request has been posted whose reply will be on the shelf. It is `long` if the server has to READ it first.
    ///
    /// Whatever others have taken, it is looked for in the first half of the time until its deadline.
    pub fn expect(
        &mut self,
        slot: SlotId,
        (units, long): (u16, bool),
        now: Moment,
        deadline: Deadline,
    ) {
        let after = self.policy.first_after(long);
        let after = after.min(deadline.leaves_ns(now) / 2);
        self.awaited.push(Awaited {
            slot,
            units,
            long,
            rested: self.awaited.is_empty() && now.ns_since(self.last) > RESTED,
            failed: 0,
            requested: now,
            due: now.after_ns(after),
            posted: now,
            reading: false,
            part: None,
        });
    }

    /// Whether there is something that no completion will remind of.
    pub fn is_waiting(&self) -> bool {
        !self.awaited.is_empty()
    }

    /// When the next READ is due.
    pub fn due(&self) -> Option<Moment> {
        let idle = self.awaited.iter().filter(|awaited| !awaited.reading);
        idle.map(|awaited| awaited.due).min()
    }

    pub fn clear(&mut self) {
        self.awaited.clear();
        self.landed.clear();
    }

    fn entry(&self, slot: SlotId) -> RemoteRegion {
        let stride = shelf::stride(self.inline_limit) as u64;
        RemoteRegion {
            addr: self.shelf.addr + u64::from(slot.index) * stride,
            len: stride,
            rkey: self.shelf.rkey,
        }
    }

    /// A buffer for an entry.
    fn buffer(&mut self, slot: SlotId, pool: &Pool) -> Option<Box<Fetch>> {
        if let Some(mut fetch) = self.spare.pop() {
            fetch.reuse(slot);
            return Some(fetch);
        }
        let len = shelf::stride(self.inline_limit);
        let buf = pool
            .alloc_in(BudgetKind::Receive, mempool::Kind::Private, len)
            .ok()?;
        Some(Box::new(Fetch::new(buf, slot)))
    }

    fn keep(&mut self, fetch: Box<Fetch>) {
        if self.spare.len() < SPARE_MAX {
            self.spare.push(fetch);
        }
    }
}

/// A reply that has been fetched whole.
struct Whole {
    fetch: Box<Fetch>,
    len: usize,
}

impl Client {
    /// Looks at what READs have brought; how much there was to do.
    pub(super) fn fetch_landed(&mut self) -> Result<usize, Lost> {
        let mut done = 0;
        while let Some(fetch) = self.fetcher.as_mut().and_then(|f| f.landed.pop()) {
            done += 1;
            if let Some(whole) = self.landed(fetch)? {
                self.take_fetched(&whole)?;
                if let Some(fetcher) = &mut self.fetcher {
                    fetcher.keep(whole.fetch);
                }
            }
        }
        self.settle();
        Ok(done)
    }

    /// Takes in what one READ has brought.
    fn landed(&mut self, fetch: Box<Fetch>) -> Result<Option<Whole>, Lost> {
        let Some(fetcher) = &mut self.fetcher else {
            return Ok(None);
        };
        let slot = fetch.slot();
        let position = fetcher.awaited.iter().position(|a| a.slot == slot);
        let Some(at) = position else {
            fetcher.keep(fetch);
            return Ok(None);
        };
        let now = Moment::now();
        let awaited = &mut fetcher.awaited[at];
        awaited.reading = false;
        fetcher.policy.read_took(now.ns_since(awaited.posted));
        let (from, to) = fetch.part();
        let len = match &awaited.part {
            Some(part) => {
                let rest = fetch.bytes().get(from..).unwrap_or_default();
                if !shelf::rest_is_right(rest, part.rest) {
                    return Err(Violation::Fetched.into());
                }
                part.len
            }
            None => match shelf::check(fetch.bytes(), slot.generation, fetcher.inline_limit) {
                Fetched::There { len, rest } => {
                    let waited = awaited.posted.ns_since(awaited.requested);
                    let policy = &fetcher.policy;
                    let found = match awaited.rested {
                        // It was looked for more often than usual.
                        true => (ENTRY_HEAD + len, policy.usual(awaited.long, waited), None),
                        false => (ENTRY_HEAD + len, awaited.failed, Some(waited)),
                    };
                    fetcher.policy.fetched(awaited.long, found);
                    fetcher.last = now;
                    if ENTRY_HEAD + len > to {
                        let mut fetch = fetch;
                        // Within the entry, by the check.
                        fetch.aim(to, ENTRY_HEAD + len);
                        awaited.due = now;
                        let fetch = Some(fetch);
                        awaited.part = Some(Part { fetch, len, rest });
                        return Ok(None);
                    }
                    fetcher.counts.wasted += (to - ENTRY_HEAD - len) as u64;
                    len
                }
                Fetched::NotYet | Fetched::Torn => {
                    awaited.failed += 1;
                    let mut pause = fetcher.policy.pause(awaited.failed);
                    if awaited.rested {
                        pause = pause.min(now.ns_since(awaited.requested) / 8);
                    }
                    awaited.due = now.after_ns(pause);
                    fetcher.counts.failed += 1;
                    fetcher.counts.wasted += to as u64;
                    fetcher.keep(fetch);
                    return Ok(None);
                }
            },
        };
        fetcher.awaited.swap_remove(at);
        fetcher.counts.replies += 1;
        Ok(Some(Whole { fetch, len }))
    }

    /// Takes in a reply that was fetched whole.
    fn take_fetched(&mut self, whole: &Whole) -> Result<(), Lost> {
        let slot = whole.fetch.slot();
        let bytes = whole.fetch.bytes();
        let bytes = bytes.get(ENTRY_HEAD..ENTRY_HEAD + whole.len);
        let bytes = bytes.unwrap_or_default();
        let mut header = Header::new(Kind::Credit);
        header.read(bytes)?;
        if !matches!(
            header.kind,
            Kind::Reply | Kind::Error | Kind::NotStarted | Kind::Part
        ) {
            return Err(Violation::Kind.into());
        }
        if header.slot != slot {
            return Err(SlotError::Generation {
                index: header.slot.index,
                generation: header.slot.generation,
            }
            .into());
        }
        if let Some(link) = &mut self.link {
            link.fetched(header.credit)?;
        }
        if self.end_small(&header, Some(bytes))? {
            return Ok(());
        }
        if self.answer(&header, Some(bytes))? && self.slots.fetched(slot)? {
            self.freed.push(slot);
        }
        Ok(())
    }

    /// Posts the READs that are due; how many.
    pub(super) fn post_fetches(&mut self) -> Result<usize, Lost> {
        let (Some(fetcher), Some(link)) = (&mut self.fetcher, &mut self.link) else {
            return Ok(0);
        };
        if fetcher.awaited.is_empty() {
            return Ok(0);
        }
        let now = Moment::now();
        let mut posted = 0;
        let mut at = 0;
        while at < fetcher.awaited.len() && link.may_read() {
            let awaited = &mut fetcher.awaited[at];
            if awaited.reading || awaited.due > now {
                at += 1;
                continue;
            }
            let slot = awaited.slot;
            if self.slots.current(slot.index) != Some(slot) {
                // Answered in another way.
                fetcher.awaited.swap_remove(at);
                continue;
            }
            let units = awaited.units;
            let rest = awaited.part.as_mut().and_then(|part| part.fetch.take());
            let fetch = match rest {
                Some(fetch) => Some(fetch),
                None => fetcher.buffer(slot, &self.pool).map(|mut fetch| {
                    fetch.aim(0, shelf::first_read(units, fetcher.inline_limit));
                    fetch
                }),
            };
            let entry = fetcher.entry(slot);
            let awaited = &mut fetcher.awaited[at];
            at += 1;
            let Some(fetch) = fetch else {
                awaited.due = now.after_ns(NO_MEMORY);
                continue;
            };
            awaited.reading = true;
            awaited.posted = now;
            link.fetch(fetch, entry)?;
            fetcher.counts.reads += 1;
            posted += 1;
        }
        Ok(posted)
    }
}
