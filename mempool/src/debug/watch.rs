//! What is noted of each buffer, and the checks.

use super::{DebugMode, Finding, LiveBuffer};
use crate::Kind;
use crate::pool::{Pool, Shared};
use crate::slab::{Slab, StackIndex};
use crate::trace::event;
use parking_lot::Mutex;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::panic::Location;
use std::ptr::NonNull;
use std::slice;

/// Fills buffers that were just allocated,
const FRESH: u8 = 0xa5;
/// the room behind them up to the end of the slab,
const GUARD: u8 = 0xc7;
/// and memory that was freed.
const FREED: u8 = 0xdb;

/// Notes of a pool in debug mode.
#[derive(Debug)]
pub(crate) struct Watch {
    mode: DebugMode,
    /// A forked child has this value too, and not the memory.
    process: u32,
    notes: Mutex<Notes>,
}

#[derive(Debug, Default)]
struct Notes {
    /// Of buffers in use, by their slab.
    live: HashMap<usize, Note>,
    /// Of freed buffers whose slabs are kept out of use, oldest first.
    quarantine: VecDeque<(NonNull<Slab>, Note)>,
    findings: u64,
}

// SAFETY: the slabs in quarantine are held by the watch (invariant B), whichever thread looks at it.
unsafe impl Send for Notes {}

#[derive(Debug, Clone, Copy)]
struct Note {
    addr: usize,
    len: usize,
    posted: bool,
    site: &'static Location<'static>,
}

impl Watch {
    pub fn new(mode: DebugMode) -> Watch {
        Watch {
            mode,
            process: std::process::id(),
            notes: Mutex::default(),
        }
    }

    fn report(&self, finding: &Finding) {
        self.notes.lock().findings += 1;
        event!(ERROR, finding = %finding, "misuse of a buffer");
        (self.mode.report)(finding);
    }

    /// Checks a slab that leaves quarantine.
    fn check_freed(&self, slab: NonNull<Slab>, note: &Note) {
        // SAFETY: invariants A and B: the watch held it, and nobody else has it.
        let Some(bytes) = (unsafe { bytes_of(slab) }) else {
            return;
        };
        if let Some(offset) = bytes.iter().position(|b| *b != FREED) {
            self.report(&Finding::WrittenAfterFree {
                addr: bytes.as_ptr().addr(),
                len: note.len,
                offset,
                site: note.site,
            });
        }
    }
}

/// The bytes of a slab that the pool may write patterns into: not those of memory that is not its own, nor those that peers may
/// write at any time.
///
/// # Safety
/// The caller is the holder of `slab`, and lets go of the reference first.
unsafe fn bytes_of<'a>(slab: NonNull<Slab>) -> Option<&'a mut [u8]> {
    // SAFETY: invariant A.
    let slab = unsafe { slab.as_ref() };
    let run = slab.run();
    if run.chunk().arena.is_adopted() || slab.index().kind() == Kind::Exposed {
        return None;
    }
    // SAFETY: mapped and initialised; the caller has it alone.
    Some(unsafe { slice::from_raw_parts_mut(slab.addr.as_ptr(), run.size) })
}

fn key(slab: NonNull<Slab>) -> usize {
    slab.addr().get()
}

impl Shared {
    /// In debug mode, notes that a slab was handed out, and prepares its bytes.
    pub fn watch(&self, slab: NonNull<Slab>, len: usize, site: &'static Location<'static>) {
        let Some(watch) = &self.debug else {
            return;
        };
        // SAFETY: just taken from the depot: the caller is the holder.
        if let Some(bytes) = unsafe { bytes_of(slab) } {
            let (payload, guard) = bytes.split_at_mut(len.min(bytes.len()));
            payload.fill(FRESH);
            guard.fill(GUARD);
        }
        let note = Note {
            // SAFETY: invariant A.
            addr: unsafe { slab.as_ref() }.addr.addr().get(),
            len,
            posted: false,
            site,
        };
        watch.notes.lock().live.insert(key(slab), note);
    }

    /// Gives a slab back; in debug mode after checks, and later.
    ///
    /// # Safety
    /// The caller is the holder of `slab`, or believes so in debug mode; the pool is kept alive.
    pub unsafe fn give_back_watched(&self, slab: NonNull<Slab>) {
        let here = |watch: &&Watch| watch.process == std::process::id();
        let Some(watch) = self.debug.as_ref().filter(here) else {
            // SAFETY: the caller's promise.
            return unsafe { self.give_back([slab]) };
        };
        let mut notes = watch.notes.lock();
        let Some(note) = notes.live.remove(&key(slab)) else {
            let waiting = notes.quarantine.iter().find(|(other, _)| *other == slab);
            let site = waiting.map(|(_, note)| note.site);
            drop(notes);
            // SAFETY: a slab's descriptor stays as long as its chunk, which is as long as somebody uses the class.
            let addr = unsafe { slab.as_ref() }.addr.addr().get();
            return watch.report(&Finding::DoubleFree { addr, site });
        };
        drop(notes);
        // SAFETY: as above; it was live, so the caller is the holder.
        self.look_for_owner(watch, unsafe { slab.as_ref() }, &note);
        // SAFETY: it was live, so the caller is the holder.
        if let Some(bytes) = unsafe { bytes_of(slab) } {
            let guard = &bytes[note.len.min(bytes.len())..];
            if let Some(beyond) = guard.iter().position(|b| *b != GUARD) {
                watch.report(&Finding::Overrun {
                    addr: bytes.as_ptr().addr(),
                    len: note.len,
                    offset: note.len + beyond,
                    site: note.site,
                });
            }
            bytes.fill(FREED);
        }
        let mut out = Vec::new();
        let mut notes = watch.notes.lock();
        notes.quarantine.push_back((slab, note));
        // SAFETY: invariant A; the watch holds it.
        let adopted = unsafe { slab.as_ref() }.run().chunk().arena.is_adopted();
        // Its owner wants it back, somebody waits for room, or nobody will ever allocate again: then nothing is kept.
        let keep = match adopted || self.ledger.somebody_waits() || self.is_closed() {
            true => 0,
            false => watch.mode.quarantine,
        };
        while notes.quarantine.len() > keep {
            out.extend(notes.quarantine.pop_front());
        }
        drop(notes);
        out.iter()
            .for_each(|(slab, note)| watch.check_freed(*slab, note));
        // SAFETY: out of quarantine, so they are ours.
        unsafe { self.give_back(out.into_iter().map(|(slab, _)| slab)) };
    }

    /// Asks the devices whether they are done with a buffer that is being freed.
    fn look_for_owner(&self, watch: &Watch, slab: &Slab, note: &Note) {
        let lkeys = slab.run().chunk().arena.lkeys();
        let found = self.pds.iter().zip(lkeys).find_map(|(pd, lkey)| {
            let addr = slab.addr.as_ptr();
            pd.context().pending_work(*lkey, addr, note.len)
        });
        if let Some(work) = found {
            watch.report(&Finding::FreedInFlight {
                addr: note.addr,
                len: note.len,
                work,
                site: note.site,
            });
        }
    }

    /// Moves what is kept out of use to `out`, after checks.
    pub fn flush_quarantine(&self, out: &mut Vec<NonNull<Slab>>) {
        if let Some(watch) = &self.debug {
            let freed = std::mem::take(&mut watch.notes.lock().quarantine);
            for (slab, note) in freed {
                watch.check_freed(slab, &note);
                out.push(slab);
            }
        }
    }

    /// Budget, class, kind and charge of each slab that is kept out of use.
    pub fn kept(&self) -> Vec<(StackIndex, u64)> {
        let Some(watch) = &self.debug else {
            return Vec::new();
        };
        let notes = watch.notes.lock();
        // SAFETY: invariants A and B: the watch holds them, as long as its notes are locked.
        let of = |(slab, _): &(NonNull<Slab>, Note)| unsafe {
            (slab.as_ref().index(), slab.as_ref().run().charge)
        };
        notes.quarantine.iter().map(of).collect()
    }

    /// Notes that a device was given a slab's bytes.
    #[cfg(feature = "debug")]
    pub fn note_posted(&self, slab: NonNull<Slab>) {
        if let Some(watch) = &self.debug
            && let Some(note) = watch.notes.lock().live.get_mut(&key(slab))
        {
            note.posted = true;
        }
    }

    /// Reports what is still out.
    pub fn report_live(&self) {
        let Some(watch) = &self.debug else {
            return;
        };
        let mut sites = BTreeMap::<&Location<'static>, (usize, usize, usize)>::new();
        for note in watch.notes.lock().live.values() {
            let (buffers, bytes, posted) = sites.entry(note.site).or_default();
            *buffers += 1;
            *bytes += note.len;
            *posted += usize::from(note.posted);
        }
        for (site, (buffers, bytes, posted)) in sites {
            watch.report(&Finding::StillOut {
                buffers,
                bytes,
                posted,
                site,
            });
        }
    }
}

impl Pool {
    /// Buffers that were not dropped yet, by address. Empty unless the pool is in [debug mode](DebugMode).
    pub fn live_buffers(&self) -> Vec<LiveBuffer> {
        let Some(watch) = &self.shared.debug else {
            return Vec::new();
        };
        let notes = watch.notes.lock();
        let live = |note: &Note| LiveBuffer {
            addr: note.addr,
            len: note.len,
            posted: note.posted,
            site: note.site,
        };
        let mut all: Vec<LiveBuffer> = notes.live.values().map(live).collect();
        all.sort_by_key(|buffer| buffer.addr);
        all
    }

    /// How many [findings](crate::Finding) there were; 0 unless the pool is in [debug mode](DebugMode). Freed buffers that are kept out of use are checked
    /// first, and given up.
    pub fn findings(&self) -> u64 {
        let Some(watch) = &self.shared.debug else {
            return 0;
        };
        let mut out = Vec::new();
        self.shared.flush_quarantine(&mut out);
        // SAFETY: out of quarantine, so they are ours; this handle keeps the pool alive.
        unsafe { self.shared.give_back(out) };
        watch.notes.lock().findings
    }
}
