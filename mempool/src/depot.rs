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

use crate::Kind;
use crate::arena::{Arena, ArenaError, ArenaSource, FIRST, LARGEST};
use crate::budget::BudgetKind;
use crate::error::AllocError;
use crate::pool::Shared;
use crate::size::{CHUNK, CLASSES, PAGE};
use crate::slab::{Chunk, Run, Slab, WHOLE};
use parking_lot::{Mutex, MutexGuard};
use std::ptr::NonNull;
use std::sync::Arc;

/// What a growth step prepares at least, in bytes: a few tens of microseconds of page faults.
const STEP: usize = 64 << 10;

/// One kind's arenas and what is in them.
#[derive(Debug)]
pub(crate) struct Depot {
    kind: Kind,
    shared: *const Shared,
    growth: Mutex<()>,
    state: Mutex<State>,
}

/// What the depot's lock guards.
#[derive(Debug)]
pub(crate) struct State {
    arenas: Vec<Arc<Arena>>,
    /// The last dedicated arena that was given back, kept for the next allocation of about its size.
    spare: Option<Arc<Arena>>,
    classes: [Class; CLASSES],
    /// Length of the next shared arena.
    next_len: usize,
    /// Slabs outside of this depot; while there are any, the pool holds a reference to itself.
    pub outside: usize,
    counters: Counters,
}

/// An arena, and which of its chunks: the first one's number, and how many.
type Span = (Arc<Arena>, (usize, usize));

// SAFETY: the pointer is only passed on.
unsafe impl Send for Depot {}
// SAFETY: as above; all else is behind locks.
unsafe impl Sync for Depot {}

// SAFETY: the pointers inside are to runs and chunks that only the holder of the lock follows for their state.
unsafe impl Send for State {}

#[derive(Debug, Default, Clone)]
struct Class {
    /// Runs with slabs to give; the last is taken from.
    ready: Vec<NonNull<Run>>,
    /// Runs with slabs not yet prepared.
    unprepared: Vec<NonNull<Run>>,
    chunks: usize,
    slabs: usize,
    outside: [usize; BudgetKind::ALL.len()],
}

/// Events of a depot since the pool was made.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Counters {
    pub arenas_made: u64,
    pub arenas_failed: u64,
    pub refills: u64,
    pub returns: u64,
    pub whole_outside: u64,
    pub whole_bytes: u64,
}

/// Figures of one class, for statistics.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ClassFigures {
    pub class: usize,
    pub chunks: usize,
    pub slabs: usize,
    pub outside: usize,
}

/// Figures of a depot, for statistics.
#[derive(Debug)]
pub(crate) struct Figures {
    pub arenas: usize,
    pub arena_bytes: u64,
    pub spare_bytes: u64,
    pub free_chunks: usize,
    pub counters: Counters,
    pub classes: Vec<ClassFigures>,
}

impl Depot {
    pub fn new(kind: Kind, shared: *const Shared) -> Self {
        Depot {
            kind,
            shared,
            growth: Mutex::new(()),
            state: Mutex::new(State {
                arenas: Vec::new(),
                spare: None,
                classes: std::array::from_fn(|_| Class::default()),
                next_len: FIRST,
                outside: 0,
                counters: Counters::default(),
            }),
        }
    }

    pub fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Takes up to `count` slabs of `class`, giving each to `sink`; how many there were.
    pub fn take(
        &self,
        class: usize,
        budget: BudgetKind,
        count: usize,
        sink: impl FnMut(NonNull<Slab>),
    ) -> usize {
        let mut state = self.state.lock();
        let taken = state.take(class, budget, count, sink);
        state.went_out(taken, self.shared);
        taken
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
        let mut state = self.state.lock();
        if !state.classes[class].ready.is_empty() {
            return Ok(());
        }
        if state.classes[class].unprepared.is_empty() {
            drop(state);
            let (arena, span) = match self.chunks(1, source)? {
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
        state.prepared(run);
        Ok(())
    }

    /// A slab of `len` bytes (whole pages) that is made of whole chunks, or is an arena of its own.
    pub fn take_whole(
        &self,
        len: usize,
        source: &dyn ArenaSource,
    ) -> Result<NonNull<Slab>, AllocError> {
        let _growing = self.growth.lock();
        let (arena, span) = match self.chunks(len.div_ceil(CHUNK), source)? {
            Some(found) => found,
            None => (self.dedicated(len, source)?, (0, 0)),
        };
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
        let state = self.state.lock();
        let all = || state.arenas.iter();
        Figures {
            arenas: state.arenas.len() + state.spare.iter().count(),
            arena_bytes: all().chain(&state.spare).map(|a| a.len() as u64).sum(),
            spare_bytes: state.spare.iter().map(|a| a.len() as u64).sum(),
            free_chunks: all().map(|a| a.free_chunks()).sum(),
            counters: state.counters,
            classes: state
                .classes
                .iter()
                .enumerate()
                .filter(|(_, c)| c.slabs > 0)
                .map(|(class, c)| ClassFigures {
                    class,
                    chunks: c.chunks,
                    slabs: c.slabs,
                    outside: c.outside.iter().sum(),
                })
                .collect(),
        }
    }

    /// Takes `count` chunks in a row, making an arena if there are none; `None` if no arena to be shared would hold
    /// them. Under the growth lock.
    fn chunks(&self, count: usize, source: &dyn ArenaSource) -> Result<Option<Span>, AllocError> {
        let mut state = self.state.lock();
        if let Some(found) = state.find_chunks(count) {
            return Ok(Some(found));
        }
        state.release_idle_chunks();
        if let Some(found) = state.find_chunks(count) {
            return Ok(Some(found));
        }
        let (wished, least) = (state.next_len, FIRST.max(count * CHUNK));
        drop(state);
        if least > wished {
            return Ok(None);
        }
        let memory = self.make(wished, least, source)?;
        let arena = Arena::new(false, memory);
        let mut state = self.state.lock();
        state.next_len = (arena.len() * 2).min(LARGEST);
        state.arenas.push(arena);
        Ok(state.find_chunks(count))
    }

    /// An arena for one allocation. Under the growth lock.
    fn dedicated(&self, len: usize, source: &dyn ArenaSource) -> Result<Arc<Arena>, AllocError> {
        let spare = self.state.lock().spare.take();
        let arena = match spare {
            Some(spare) if spare.len() >= len && spare.len() - len <= len / 4 => spare,
            unfit => {
                drop(unfit);
                Arena::new(true, self.make(len, len, source)?)
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
    ) -> Result<Box<dyn crate::arena::ArenaMemory>, AllocError> {
        let mut len = wished;
        loop {
            match source.create(self.kind, len) {
                Ok(memory) => {
                    self.state.lock().counters.arenas_made += 1;
                    return Ok(memory);
                }
                Err(e) => {
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

impl State {
    fn take(
        &mut self,
        class: usize,
        budget: BudgetKind,
        count: usize,
        mut sink: impl FnMut(NonNull<Slab>),
    ) -> usize {
        let list = &mut self.classes[class];
        let mut taken = 0;
        while taken < count
            && let Some(&run) = list.ready.last()
        {
            // SAFETY: invariant A; a listed run's chunk is alive.
            let run = unsafe { run.as_ref() };
            match run.take() {
                Some(slab) => {
                    sink(slab);
                    taken += 1;
                }
                None => {
                    run.state.listed.set(false);
                    list.ready.pop();
                }
            }
        }
        list.outside[budget as usize] += taken;
        self.counters.refills += 1;
        taken
    }

    /// Puts a slab of a class back.
    ///
    /// # Safety
    /// The caller is its holder, and it is of this depot.
    pub unsafe fn put(&mut self, slab: NonNull<Slab>) {
        // SAFETY: invariants A and B.
        let (run, budget) = unsafe { (slab.as_ref().run.as_ref(), slab.as_ref().index().budget()) };
        // SAFETY: the caller's promise.
        unsafe { run.put(slab) };
        self.outside -= 1;
        let list = &mut self.classes[run.class];
        list.outside[budget as usize] -= 1;
        if !run.state.listed.replace(true) {
            list.ready.push(NonNull::from(run));
        }
        // An idle chunk goes back to its arena if the class has another to take from; else it is kept, or a
        // buffer allocated and dropped again and again would cut it anew each time.
        if run.chunk().is_idle() && list.ready.len() > 1 {
            self.release_chunk(run.chunk);
        }
    }

    /// Puts a slab made by [`Depot::take_whole`] back. What is returned is for the caller to drop without the lock.
    ///
    /// # Safety
    /// The caller is its holder, and it is of this depot.
    #[must_use]
    pub unsafe fn put_whole(&mut self, slab: NonNull<Slab>) -> Option<Arc<Arena>> {
        // SAFETY: invariants A and B.
        let run = unsafe { slab.as_ref().run.as_ref() };
        debug_assert_eq!(run.class, WHOLE);
        // SAFETY: the caller's promise.
        unsafe { run.put(slab) };
        self.outside -= 1;
        self.counters.whole_outside -= 1;
        self.counters.whole_bytes -= run.size as u64;
        self.retire_whole(run.chunk)
    }

    pub fn count_return(&mut self) {
        self.counters.returns += 1;
    }

    /// Slabs leave the depot: the first one out makes the pool keep itself alive.
    fn went_out(&mut self, count: usize, shared: *const Shared) {
        if self.outside == 0 && count > 0 {
            // SAFETY: the caller works for the pool, which is therefore alive. Whoever brings the last slab in gives
            // this reference up.
            unsafe { Arc::increment_strong_count(shared) };
        }
        self.outside += count;
    }

    /// Frees a whole chunk's metadata, and gives its span or its arena back.
    fn retire_whole(&mut self, chunk: NonNull<Chunk>) -> Option<Arc<Arena>> {
        // SAFETY: alive until freed below.
        let (arena, span) = unsafe { (chunk.as_ref().arena.clone(), chunk.as_ref().span) };
        // SAFETY: its only slab is inside or was never made, and its run is never listed.
        unsafe { Chunk::free(chunk) };
        arena.put_chunks(span);
        if !arena.dedicated {
            return None;
        }
        self.arenas.retain(|a| !Arc::ptr_eq(a, &arena));
        self.spare.replace(arena)
    }

    fn find_chunks(&mut self, count: usize) -> Option<Span> {
        self.arenas.iter().find_map(|arena| {
            let first = arena.take_chunks(count)?;
            Some((arena.clone(), (first, count)))
        })
    }

    /// Puts the runs of a new chunk on the lists of what can be prepared.
    fn enlist(&mut self, chunk: &Chunk) {
        for (i, run) in chunk.runs().enumerate() {
            let list = &mut self.classes[run.class];
            list.unprepared.push(NonNull::from(run));
            list.slabs += run.count();
            list.chunks += usize::from(i == 0);
        }
    }

    /// Moves a run with freshly prepared slabs to the list it belongs on.
    fn prepared(&mut self, run: &Run) {
        let list = &mut self.classes[run.class];
        if run.unprepared() == 0 {
            list.unprepared.retain(|r| r.as_ptr().cast_const() != run);
        }
        if !run.state.listed.replace(true) {
            list.ready.push(NonNull::from(run));
        }
    }

    /// Takes an idle chunk off all lists and gives it back to its arena.
    fn release_chunk(&mut self, chunk: NonNull<Chunk>) {
        // SAFETY: alive until freed below.
        let chunk_ref = unsafe { chunk.as_ref() };
        for (i, run) in chunk_ref.runs().enumerate() {
            let list = &mut self.classes[run.class];
            list.ready.retain(|r| r.as_ptr().cast_const() != run);
            list.unprepared.retain(|r| r.as_ptr().cast_const() != run);
            list.slabs -= run.count();
            list.chunks -= usize::from(i == 0);
        }
        chunk_ref.arena.put_chunks(chunk_ref.span);
        // SAFETY: idle, and off all lists.
        unsafe { Chunk::free(chunk) };
    }

    fn release_idle_chunks(&mut self) {
        for class in 0..CLASSES {
            let list = &self.classes[class];
            let mut idle: Vec<_> = list
                .ready
                .iter()
                .chain(&list.unprepared)
                // SAFETY: listed runs' chunks are alive.
                .map(|run| unsafe { run.as_ref() }.chunk)
                // SAFETY: as above.
                .filter(|chunk| unsafe { chunk.as_ref() }.is_idle())
                .collect();
            // A run may be on both lists.
            idle.sort_unstable();
            idle.dedup();
            for chunk in idle {
                self.release_chunk(chunk);
            }
        }
    }
}

impl Drop for State {
    fn drop(&mut self) {
        // The pool ends when no slab is outside, so that every chunk is idle, and every idle one is on a list.
        self.release_idle_chunks();
        debug_assert!(self.arenas.iter().all(|arena| arena.is_idle()));
    }
}
