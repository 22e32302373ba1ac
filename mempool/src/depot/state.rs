//! What a depot's lock guards: arenas, the runs of each class, and the figures.

use crate::arena::{Arena, FIRST};
use crate::budget::{Budget, BudgetId};
use crate::pool::Shared;
use crate::size::{CHUNK, CLASSES};
use crate::slab::{Chunk, Run, Slab, WHOLE};
use std::ptr::NonNull;
use std::sync::Arc;

/// What the depot's lock guards.
#[derive(Debug)]
pub(crate) struct State {
    pub(super) arenas: Vec<Arc<Arena>>,
    /// The last dedicated arena that was given back, kept for the next allocation of about its size.
    pub(super) spare: Option<Arc<Arena>>,
    pub(super) classes: [Class; CLASSES],
    /// Length of the next shared arena.
    pub(super) next_len: usize,
    /// Slabs outside of this depot; while there are any, the pool holds a reference to itself.
    pub outside: usize,
    pub(super) counters: Counters,
}

/// An arena, and which of its chunks: the first one's number, and how many.
pub(super) type Span = (Arc<Arena>, (usize, usize));

// SAFETY: the pointers inside are to runs and chunks that only the holder of the lock follows for their state.
unsafe impl Send for State {}

#[derive(Debug, Default, Clone)]
pub(super) struct Class {
    /// Runs with slabs to give; the last is taken from.
    pub(super) ready: Vec<NonNull<Run>>,
    /// Runs with slabs not yet prepared.
    pub(super) unprepared: Vec<NonNull<Run>>,
    chunks: usize,
    slabs: usize,
    /// Slabs with memory behind them.
    prepared: usize,
    outside: [usize; Budget::MOST],
}

impl Class {
    fn outside(&self) -> usize {
        self.outside.iter().sum()
    }
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
    pub adopted: u64,
    pub adopted_bytes: u64,
}

/// Figures of one class, for statistics.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ClassFigures {
    pub class: usize,
    pub chunks: usize,
    pub slabs: usize,
    pub prepared: usize,
    pub outside: usize,
}

/// Figures of a depot, for statistics.
#[derive(Debug)]
pub(crate) struct Figures {
    pub arenas: usize,
    pub arena_bytes: u64,
    pub huge_bytes: u64,
    pub spare_bytes: u64,
    pub free_chunks: usize,
    pub counters: Counters,
    pub classes: Vec<ClassFigures>,
}

impl State {
    pub fn new() -> State {
        State {
            arenas: Vec::new(),
            spare: None,
            classes: std::array::from_fn(|_| Class::default()),
            next_len: FIRST,
            outside: 0,
            counters: Counters::default(),
        }
    }

    pub fn figures(&self) -> Figures {
        let all = || self.arenas.iter().filter(|a| !a.is_adopted());
        Figures {
            arenas: all().count() + self.spare.iter().count(),
            arena_bytes: all().chain(&self.spare).map(|a| a.len() as u64).sum(),
            huge_bytes: all()
                .chain(&self.spare)
                .filter(|a| a.is_huge())
                .map(|a| a.len() as u64)
                .sum(),
            spare_bytes: self.spare.iter().map(|a| a.len() as u64).sum(),
            free_chunks: all().map(|a| a.free_chunks()).sum(),
            counters: self.counters,
            classes: self
                .classes
                .iter()
                .enumerate()
                .filter(|(_, c)| c.slabs > 0)
                .map(|(class, c)| ClassFigures {
                    class,
                    chunks: c.chunks,
                    slabs: c.slabs,
                    prepared: c.prepared,
                    outside: c.outside(),
                })
                .collect(),
        }
    }

    /// Slabs of a class that can be taken.
    pub(super) fn available(&self, class: usize) -> usize {
        let class = &self.classes[class];
        class.prepared - class.outside()
    }

    pub(super) fn classes_in_use(&self) -> Vec<usize> {
        (0..CLASSES)
            .filter(|class| self.classes[*class].chunks > 0)
            .collect()
    }

    pub(super) fn take(
        &mut self,
        class: usize,
        budget: BudgetId,
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
        list.outside[budget.index()] += taken;
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
        list.outside[budget.index()] -= 1;
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
        let (count, bytes) = match run.chunk().arena.is_adopted() {
            true => (&mut self.counters.adopted, &mut self.counters.adopted_bytes),
            false => (
                &mut self.counters.whole_outside,
                &mut self.counters.whole_bytes,
            ),
        };
        *count -= 1;
        *bytes -= run.size as u64;
        self.retire_whole(run.chunk)
    }

    pub fn count_return(&mut self) {
        self.counters.returns += 1;
    }

    /// Slabs leave the depot: the first one out makes the pool keep itself alive.
    pub(super) fn went_out(&mut self, count: usize, shared: *const Shared) {
        if self.outside == 0 && count > 0 {
            // SAFETY: the caller works for the pool, which is therefore alive. Whoever brings the last slab in gives
            // this reference up.
            unsafe { Arc::increment_strong_count(shared) };
        }
        self.outside += count;
    }

    /// Frees a whole chunk's metadata, and gives its span or its arena back.
    pub(super) fn retire_whole(&mut self, chunk: NonNull<Chunk>) -> Option<Arc<Arena>> {
        // SAFETY: alive until freed below.
        let (arena, span) = unsafe { (chunk.as_ref().arena.clone(), chunk.as_ref().span) };
        // SAFETY: its only slab is inside or was never made, and its run is never listed.
        unsafe { Chunk::free(chunk) };
        arena.put_chunks(span);
        if !arena.is_dedicated() {
            return None;
        }
        self.arenas.retain(|a| !Arc::ptr_eq(a, &arena));
        match arena.is_adopted() {
            true => Some(arena),
            false => self.spare.replace(arena),
        }
    }

    pub(super) fn find_chunks(&mut self, count: usize) -> Option<Span> {
        self.arenas.iter().find_map(|arena| {
            let first = arena.take_chunks(count)?;
            Some((arena.clone(), (first, count)))
        })
    }

    /// Puts the runs of a new chunk on the lists of what can be prepared.
    pub(super) fn enlist(&mut self, chunk: &Chunk) {
        chunk.arena.note(chunk.span.0, chunk);
        for (i, run) in chunk.runs().enumerate() {
            let list = &mut self.classes[run.class];
            list.unprepared.push(NonNull::from(run));
            list.slabs += run.count();
            list.chunks += usize::from(i == 0);
        }
    }

    /// Moves a run with freshly prepared slabs to the list it belongs on.
    pub(super) fn prepared(&mut self, run: &Run, count: usize) {
        let list = &mut self.classes[run.class];
        list.prepared += count;
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
            list.prepared -= run.prepared();
            list.chunks -= usize::from(i == 0);
        }
        chunk_ref.arena.note(chunk_ref.span.0, std::ptr::null());
        chunk_ref.arena.put_chunks(chunk_ref.span);
        // SAFETY: idle, and off all lists.
        unsafe { Chunk::free(chunk) };
    }

    pub(super) fn release_idle_chunks(&mut self) {
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

/// What the grower does with arenas that nobody uses.
impl State {
    /// Takes out the arenas, and the spare one, that were not used since this was called the last time, as long as `keep` bytes
    /// stay that nobody uses.
    pub(super) fn take_unused(&mut self, keep: u64) -> (Vec<Arc<Arena>>, Option<Arc<Arena>>) {
        let mut unused: u64 = self.arenas.iter().map(|a| unused_bytes(a)).sum();
        let mut gone = Vec::new();
        let mut at = 0;
        while let Some(arena) = self.arenas.get(at) {
            let len = arena.len() as u64;
            let idle = !arena.is_dedicated() && unused_bytes(arena) == len;
            // What is in use was used lately, as far as the next look is concerned.
            let lately = !idle || arena.was_used();
            if lately || unused - len < keep {
                if !idle {
                    arena.mark_used();
                }
                at += 1;
                continue;
            }
            let arena = self.arenas.swap_remove(at);
            let chunks: Vec<_> = arena.cut().map(|(_, chunk)| chunk).collect();
            chunks.into_iter().for_each(|c| self.release_chunk(c));
            unused -= len;
            gone.push(arena);
        }
        let spare = self.spare.take_if(|spare| !spare.was_used());
        (gone, spare)
    }
}

/// Bytes of its chunks of which nothing is outside.
fn unused_bytes(arena: &Arena) -> u64 {
    // SAFETY: noted chunks are alive.
    let idle = |(_, chunk): &(usize, NonNull<Chunk>)| unsafe { chunk.as_ref() }.is_idle();
    ((arena.free_chunks() + arena.cut().filter(idle).count()) * CHUNK) as u64
}

impl Drop for State {
    fn drop(&mut self) {
        // The pool ends when no slab is outside, so that every chunk is idle, and every idle one is on a list.
        self.release_idle_chunks();
        debug_assert!(self.arenas.iter().all(|arena| arena.is_idle()));
    }
}
