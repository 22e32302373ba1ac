//! The depot: per kind of arena, what is in nobody's hands.
//!
//! ```text
//! Depot ── arenas ── [chunk][chunk][chunk][ free ]...        registered memory
//!   │                   │
//!   │                 Chunk ── Run (slabs of one class) ── descriptors        heap
//!   │                     └─── Run (what the first leaves over)
//!   └─ class lists: runs that have slabs to give
//! ```
//!
//! Two locks: the depot's own, held for a batch of pointer moves, and a growth lock around the slow things (making and
//! populating memory), under which the depot's own lock is taken for moments only, so that buffers can be given back meanwhile.

mod picture;
mod state;

pub(crate) use picture::ArenaPicture;
pub(crate) use state::State;
use state::{Figures, Span};

use crate::Kind;
use crate::arena::{Arena, ArenaError, ArenaMemory, ArenaSource, FIRST, LARGEST, Use};
use crate::budget::BudgetId;
use crate::error::AllocError;
use crate::pool::Shared;
use crate::size::{CHUNK, PAGE, SIZES};
use crate::slab::{Chunk, Slab};
use crate::trace::event;
use parking_lot::{Mutex, MutexGuard};
use std::ptr::NonNull;
use std::sync::Arc;

/// What a growth step prepares at least, in bytes: a few tens of microseconds of page faults.
const STEP: usize = 64 << 10;

/// Whether chunks of which nothing is out may be cut anew for somebody else.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Idle {
    MayGo,
    Stays,
}

/// What became of a [`Depot::take`].
#[derive(Debug, Clone, Copy)]
pub(crate) struct Taken {
    /// How many slabs there were.
    pub count: usize,
    /// Bytes of the class that are still there, ready.
    pub left: u64,
}

/// One kind's arenas and what is in them.
#[derive(Debug)]
pub(crate) struct Depot {
    kind: Kind,
    shared: *const Shared,
    growth: Mutex<()>,
    state: Mutex<State>,
}

// SAFETY: the pointer is only passed on.
unsafe impl Send for Depot {}
// SAFETY: as above; all else is behind locks.
unsafe impl Sync for Depot {}

impl Depot {
    pub fn new(kind: Kind, shared: *const Shared) -> Self {
        Depot {
            kind,
            shared,
            growth: Mutex::new(()),
            state: Mutex::new(State::new()),
        }
    }

    pub fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Takes up to `count` slabs of `class`, giving each to `sink`.
    pub fn take(
        &self,
        class: usize,
        budget: BudgetId,
        count: usize,
        sink: impl FnMut(NonNull<Slab>),
    ) -> Taken {
        let mut state = self.state.lock();
        let count = state.take(class, budget, count, sink);
        state.went_out(count, self.shared);
        Taken {
            count,
            left: (state.available(class) * SIZES[class] as usize) as u64,
        }
    }

    /// Gives up the reference to the pool that was taken when the first slab went out.
    ///
    /// # Safety
    /// The last slab came in, and nobody else gives the reference up; the caller has one of its own.
    pub unsafe fn let_go(&self) {
        // SAFETY: the caller's promise.
        unsafe { Arc::decrement_strong_count(self.shared) };
    }

    /// Prepares slabs of `class`, so that a [`take`](Depot::take) after it finds some (unless another thread is faster).
    pub fn grow(&self, class: usize, source: &dyn ArenaSource) -> Result<(), AllocError> {
        let _growing = self.growth.lock();
        if self.state.lock().available(class) > 0 {
            return Ok(());
        }
        self.step(class, Idle::MayGo, source)
    }

    /// Prepares slabs of `class` until there are `enough`.
    pub fn grow_ahead(
        &self,
        class: usize,
        enough: usize,
        source: &dyn ArenaSource,
    ) -> Result<(), AllocError> {
        let _growing = self.growth.lock();
        while self.state.lock().available(class) < enough {
            // What was made ready before is no room for this.
            self.step(class, Idle::Stays, source)?;
        }
        Ok(())
    }

    /// Prepares a few more slabs. Under the growth lock.
    fn step(&self, class: usize, idle: Idle, source: &dyn ArenaSource) -> Result<(), AllocError> {
        let mut state = self.state.lock();
        if state.classes[class].unprepared.is_empty() {
            drop(state);
            let (arena, span) = match self.chunks(1, idle, source)? {
                Some(found) => found,
                None => unreachable!("one chunk fits any arena"),
            };
            let chunk = Chunk::new(&arena, self.shared, span, Chunk::classed_rows(class));
            state = self.state.lock();
            // SAFETY: just made.
            state.enlist(unsafe { chunk.as_ref() });
        }
        let run = state.classes[class].unprepared.last();
        // SAFETY: invariant A, and the pin below keeps the chunk until the end. The list is not empty, by the above.
        let run = unsafe { run.expect("a run to prepare").as_ref() };
        let chunk = run.chunk();
        chunk.pin();
        drop(state);

        let count = (STEP / run.size).clamp(1, run.unprepared());
        let (offset, len) = run.span_of_next(count);
        let populated = populate(chunk, offset, len);
        if populated.is_ok() {
            // SAFETY: the growth lock is held, and there is memory.
            unsafe { run.prepare(count) };
        }

        let mut state = self.state.lock();
        chunk.unpin();
        populated.map_err(|e| self.cannot_grow(len, e))?;
        run.publish(count);
        state.prepared(run, count);
        Ok(())
    }

    /// A slab of `len` bytes (whole pages) that is made of whole chunks, or is an arena of its own.
    pub fn take_whole(
        &self,
        len: usize,
        source: &dyn ArenaSource,
    ) -> Result<NonNull<Slab>, AllocError> {
        let _growing = self.growth.lock();
        let (arena, span) = match self.chunks(len.div_ceil(CHUNK), Idle::MayGo, source)? {
            Some(found) => found,
            None => (self.dedicated(len, source)?, (0, 0)),
        };
        arena.mark_used();
        let chunk = Chunk::new(&arena, self.shared, span, Chunk::whole_row(len));
        // SAFETY: just made.
        let chunk_ref = unsafe { chunk.as_ref() };
        let run = chunk_ref.runs().next().expect("a whole chunk has one run");
        match populate(chunk_ref, 0, len) {
            Ok(()) => {
                // SAFETY: the growth lock is held, and there is memory.
                unsafe { run.prepare(1) };
                let mut state = self.state.lock();
                run.publish(1);
                state.counters.whole_outside += 1;
                state.counters.whole_bytes += len as u64;
                state.went_out(1, self.shared);
                Ok(run.take().expect("one slab was published"))
            }
            Err(e) => {
                let mut state = self.state.lock();
                let gone = (state.retire_whole(chunk), state.spare.take());
                drop(state);
                drop(gone);
                Err(self.cannot_grow(len, e))
            }
        }
    }

    /// Memory that is not the pool's, as one slab.
    pub fn adopt(&self, memory: Box<dyn ArenaMemory>) -> NonNull<Slab> {
        let len = memory.len();
        let arena = Arena::new(Use::Adopted, memory);
        let chunk = Chunk::new(&arena, self.shared, (0, 0), Chunk::whole_row(len));
        // SAFETY: just made, and nobody else knows of it.
        let run = unsafe { chunk.as_ref() }.runs().next();
        let run = run.expect("a whole chunk has one run");
        // SAFETY: as above; there is memory.
        unsafe { run.prepare(1) };
        let mut state = self.state.lock();
        state.arenas.push(arena);
        run.publish(1);
        state.counters.adopted += 1;
        state.counters.adopted_bytes += len as u64;
        state.went_out(1, self.shared);
        run.take().expect("one slab was published")
    }

    /// Makes an arena if there is less than `bytes` in free chunks, for a kind that is in use.
    pub fn stock_up(&self, bytes: u64, source: &dyn ArenaSource) -> Result<(), AllocError> {
        let _growing = self.growth.lock();
        let state = self.state.lock();
        let in_use = !state.arenas.is_empty();
        let free: usize = state.arenas.iter().map(|a| a.free_chunks()).sum();
        let wished = state.next_len;
        drop(state);
        if !in_use || (free * CHUNK) as u64 >= bytes {
            return Ok(());
        }
        self.add_arena(wished, FIRST, source)
    }

    /// Puts all that is ready of these classes to at least `bytes`.
    pub fn keep_ready(&self, bytes: u64, source: &dyn ArenaSource) -> Result<(), AllocError> {
        let in_use = self.state.lock().classes_in_use();
        for class in in_use {
            let enough = (bytes as usize).div_ceil(SIZES[class] as usize);
            self.grow_ahead(class, enough, source)?;
        }
        Ok(())
    }

    /// Gives arenas back to the system that were not used since this was called the last time, as long as `keep` bytes stay that
    /// nobody uses. Returns bytes released.
    pub fn release_unused(&self, keep: u64) -> u64 {
        let _growing = self.growth.lock();
        let mut state = self.state.lock();
        let (gone, spare) = state.take_unused(keep);
        // Deregistering takes its time: not under the lock.
        drop(state);
        let bytes = gone.iter().chain(&spare).map(|a| a.len() as u64).sum();
        if bytes > 0 {
            event!(DEBUG, kind = %self.kind, bytes, "arenas that nobody used were given back");
        }
        bytes
    }

    /// What is in each arena.
    pub fn picture(&self) -> Vec<ArenaPicture> {
        self.state.lock().picture(self.kind)
    }

    /// Gives idle arenas back to the system. Returns bytes released.
    pub fn trim(&self) -> u64 {
        let _growing = self.growth.lock();
        let mut state = self.state.lock();
        state.release_idle_chunks();
        let (idle, busy): (Vec<_>, Vec<_>) = std::mem::take(&mut state.arenas)
            .into_iter()
            .partition(|arena| arena.is_idle());
        state.arenas = busy;
        let spare = state.spare.take();
        // Deregistering takes its time: not under the lock.
        drop(state);
        idle.iter().chain(&spare).map(|a| a.len() as u64).sum()
    }

    pub fn figures(&self) -> Figures {
        self.state.lock().figures()
    }

    /// Takes `count` chunks in a row, making an arena if there are none; `None` if no arena to be shared would hold
    /// them. Under the growth lock.
    fn chunks(
        &self,
        count: usize,
        idle: Idle,
        source: &dyn ArenaSource,
    ) -> Result<Option<Span>, AllocError> {
        let mut state = self.state.lock();
        if let Some(found) = state.find_chunks(count) {
            return Ok(Some(found));
        }
        if idle == Idle::MayGo {
            state.release_idle_chunks();
            if let Some(found) = state.find_chunks(count) {
                return Ok(Some(found));
            }
        }
        let (wished, least) = (state.next_len, FIRST.max(count * CHUNK));
        drop(state);
        if least > wished {
            return Ok(None);
        }
        self.add_arena(wished, least, source)?;
        Ok(self.state.lock().find_chunks(count))
    }

    /// Makes an arena to be shared. Under the growth lock.
    fn add_arena(
        &self,
        wished: usize,
        least: usize,
        source: &dyn ArenaSource,
    ) -> Result<(), AllocError> {
        let memory = self.make(wished, least, source)?;
        let arena = Arena::new(Use::Shared, memory);
        let mut state = self.state.lock();
        state.next_len = (arena.len() * 2).min(LARGEST);
        state.arenas.push(arena);
        Ok(())
    }

    /// An arena for one allocation. Under the growth lock.
    fn dedicated(&self, len: usize, source: &dyn ArenaSource) -> Result<Arc<Arena>, AllocError> {
        let spare = self.state.lock().spare.take();
        let arena = match spare {
            Some(spare) if spare.len() >= len && spare.len() - len <= len / 4 => spare,
            unfit => {
                drop(unfit);
                Arena::new(Use::Dedicated, self.make(len, len, source)?)
            }
        };
        self.state.lock().arenas.push(arena.clone());
        Ok(arena)
    }

    /// Makes memory of `wished` bytes, or, when that is refused, of less, down to `least`.
    fn make(
        &self,
        wished: usize,
        least: usize,
        source: &dyn ArenaSource,
    ) -> Result<Box<dyn ArenaMemory>, AllocError> {
        let mut len = wished;
        loop {
            match source.create(self.kind, len) {
                Ok(memory) => {
                    event!(DEBUG, kind = %self.kind, len, "an arena was made");
                    self.state.lock().counters.arenas_made += 1;
                    return Ok(memory);
                }
                Err(e) => {
                    event!(WARN, kind = %self.kind, len, error = %e, "an arena could not be made");
                    self.state.lock().counters.arenas_failed += 1;
                    if len == least {
                        return Err(self.cannot_grow(len, e));
                    }
                    // A limit that refuses this much may still allow less.
                    len = (len / 2).next_multiple_of(CHUNK).max(least);
                }
            }
        }
    }

    fn cannot_grow(&self, len: usize, source: ArenaError) -> AllocError {
        AllocError::Grow {
            kind: self.kind,
            len,
            source: Box::new(source),
        }
    }
}

/// Puts memory behind a part of the chunk.
fn populate(chunk: &Chunk, offset: usize, len: usize) -> Result<(), ArenaError> {
    let start = offset / PAGE * PAGE;
    let end = (offset + len).next_multiple_of(PAGE);
    chunk
        .arena
        .populate(chunk.span.0 * CHUNK + start, end - start)
}
