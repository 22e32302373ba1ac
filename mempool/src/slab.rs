//! Metadata of slabs, rows and chunks. All of it lies in ordinary heap memory, never in an arena.
//!
//! Invariants (the comments of `unsafe` blocks in this crate name them by these letters):
//!
//! * **A** A [`Slab`], its [`Run`], its [`Chunk`] and its arena stay allocated while the slab is outside the depot. A chunk is
//!   freed only when all of its slabs are inside and nothing pins it.
//! * **B** A slab that no handle refers to has exactly one holder: the depot (under its lock), a thread's stack, or
//!   a remote list. Only the holder writes `home` and the link.
//! * **C** `count` is the number of handles ([`Buf`](crate::Buf), [`SharedBuf`](crate::SharedBuf), ...) on the slab, and 1 while there are none, so that handing a slab out
//!   writes nothing.
//! * **D** The pool's [`Shared`] lives while any slab is outside its depots.

use crate::Kind;
use crate::arena::Arena;
use crate::budget::{Budget, BudgetId};
use crate::count::Count;
use crate::pool::Shared;
use crate::remote::{Link, Node};
use crate::size::{CLASSES, Row, SCALE, SIZES};
use crate::stack::Stack;
use std::cell::{Cell, UnsafeCell};
use std::mem::MaybeUninit;
use std::ptr::{self, NonNull};
use std::sync::Arc;
use verbs::LKey;

/// Class of an allocation that takes whole chunks.
pub(crate) const WHOLE: usize = CLASSES;

const PER_LANE: usize = CLASSES + 1;
const PER_BUDGET: usize = Kind::ALL.len() * PER_LANE;

const _: () = assert!(Budget::MOST * PER_BUDGET * SCALE <= u32::MAX as usize);

/// Number of a thread's stack: budget, kind and class in one.
///
/// Kept as the stack's distance from the first in bytes, which is what the hot path wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct StackIndex(u32);

impl StackIndex {
    /// Where it does not matter.
    pub const ANY: StackIndex = StackIndex(0);

    pub fn new(budget: BudgetId, kind: Kind, class: usize) -> Self {
        StackIndex::of_scaled(budget, kind, class * SCALE)
    }

    /// Of a class that is multiplied by [`SCALE`] already.
    #[inline(always)]
    pub fn of_scaled(budget: BudgetId, kind: Kind, class: usize) -> Self {
        debug_assert!(class < PER_LANE * SCALE);
        let lane = budget.index() * Kind::ALL.len() + kind as usize;
        StackIndex((lane * PER_LANE * SCALE + class) as u32)
    }

    pub const fn get(self) -> usize {
        self.offset() as usize / SCALE
    }

    /// Distance from the first stack in bytes.
    #[inline(always)]
    pub const fn offset(self) -> u32 {
        self.0
    }

    /// What was the [`offset`](StackIndex::offset) of a stack before.
    #[inline(always)]
    pub fn from_offset(offset: u32) -> Self {
        StackIndex(offset)
    }

    /// All of so many budgets.
    pub fn all(budgets: usize) -> impl Iterator<Item = StackIndex> {
        (0..budgets * PER_BUDGET).map(|index| StackIndex((index * SCALE) as u32))
    }

    pub fn budget(self) -> BudgetId {
        BudgetId::from_index(self.get() / PER_BUDGET)
    }

    pub fn kind(self) -> Kind {
        Kind::ALL[self.get() / PER_LANE % Kind::ALL.len()]
    }

    pub fn class(self) -> usize {
        self.get() % PER_LANE
    }
}

/// Descriptor of one slab. Handles point at it.
#[derive(Debug)]
pub(crate) struct Slab {
    pub addr: NonNull<u8>,
    pub run: NonNull<Run>,
    /// The thread's stack that it comes from and goes back to. It also says what budget is charged.
    pub home: Cell<*const Stack>,
    /// Lies apart, with the run: what other threads write when they give slabs back is eight to a cache line then, and the descriptors stay in
    /// the caches of all, who only read them. (Measured, freeing 64 bytes by another thread takes half the time.)
    link: NonNull<Link<Slab>>,
    pub count: Count,
}

impl Node for Slab {
    #[inline]
    fn link(&self) -> &Link<Slab> {
        // SAFETY: the run owns the links of its slabs, and they are written with them.
        unsafe { self.link.as_ref() }
    }
}

impl Slab {
    fn new(addr: NonNull<u8>, run: NonNull<Run>, link: NonNull<Link<Slab>>) -> Self {
        Slab {
            addr,
            run,
            home: Cell::new(ptr::null()),
            link,
            count: Count::new(),
        }
    }

    /// Number of the stack that it goes back to.
    pub fn index(&self) -> StackIndex {
        // SAFETY: a slab outside has been handed to a stack, which stays (invariant G).
        unsafe { (*self.home.get()).index }
    }

    #[inline]
    pub fn run(&self) -> &Run {
        // SAFETY: invariant A.
        unsafe { self.run.as_ref() }
    }
}

/// A row of equal slabs in a chunk: their descriptors, and which of them are in the depot.
#[derive(Debug)]
pub(crate) struct Run {
    pub chunk: NonNull<Chunk>,
    pub class: usize,
    /// Bytes of a slab.
    pub size: usize,
    /// What a budget is charged for a slab: nothing for memory that is not the pool's.
    pub charge: u64,
    pub lkey: LKey,
    row: Row,
    slabs: Box<[UnsafeCell<MaybeUninit<Slab>>]>,
    links: Box<[UnsafeCell<MaybeUninit<Link<Slab>>>]>,
    /// Written under the depot's lock only.
    pub state: RunState,
}

/// The part of a [`Run`] that the depot's lock guards.
#[derive(Debug)]
pub(crate) struct RunState {
    free: Cell<*mut Slab>,
    /// Slabs that have been handed out at least once.
    taken: Cell<usize>,
    /// Slabs with a descriptor and memory behind them.
    ready: Cell<usize>,
    /// Whether the run is on its class's list of those with slabs to give.
    pub listed: Cell<bool>,
}

impl Run {
    fn new(chunk: NonNull<Chunk>, row: Row, size: usize, lkey: LKey, charged: bool) -> Box<Run> {
        let slabs = Box::<[UnsafeCell<MaybeUninit<Slab>>]>::new_uninit_slice(row.count);
        // SAFETY: cells of what may be uninitialised need no initialisation. (Nor do the pages of the heap get touched.)
        let slabs = unsafe { slabs.assume_init() };
        let links = Box::<[UnsafeCell<MaybeUninit<Link<Slab>>>]>::new_uninit_slice(row.count);
        // SAFETY: as above.
        let links = unsafe { links.assume_init() };
        Box::new(Run {
            chunk,
            class: row.class,
            size,
            charge: if charged { size as u64 } else { 0 },
            lkey,
            row,
            slabs,
            links,
            state: RunState {
                free: Cell::new(ptr::null_mut()),
                taken: Cell::new(0),
                ready: Cell::new(0),
                listed: Cell::new(false),
            },
        })
    }

    pub fn chunk(&self) -> &Chunk {
        // SAFETY: a chunk owns its runs.
        unsafe { self.chunk.as_ref() }
    }

    pub fn count(&self) -> usize {
        self.row.count
    }

    /// Slabs with memory behind them.
    pub fn prepared(&self) -> usize {
        self.state.ready.get()
    }

    /// Slabs that still need [`prepare`](Run::prepare). Under the depot's lock, as all below but `prepare`.
    pub fn unprepared(&self) -> usize {
        self.row.count - self.state.ready.get()
    }

    /// The bytes of the chunk in which the next `count` slabs to prepare lie: offset and length.
    pub fn span_of_next(&self, count: usize) -> (usize, usize) {
        let from = self.state.ready.get();
        let start = self.row.offset + from * self.row.stride;
        (start, (count - 1) * self.row.stride + self.size)
    }

    /// Writes the descriptors of the next `count` slabs; [`publish`](Run::publish) makes them available.
    ///
    /// # Safety
    /// Under the depot's *growth* lock, and there is memory behind [`span_of_next`](Run::span_of_next).
    pub unsafe fn prepare(&self, count: usize) {
        let from = self.state.ready.get();
        for i in from..from + count {
            // SAFETY: within the chunk, by `size::cut`'s arithmetic (or slab 0 of a whole one).
            let addr = unsafe { self.chunk().base.add(self.row.offset + i * self.row.stride) };
            // SAFETY: not yet published, so the growth lock makes this access exclusive.
            let link = unsafe { (*self.links[i].get()).write(Link::new()) };
            let slab = Slab::new(addr, NonNull::from(self), NonNull::from(link));
            // SAFETY: as above.
            unsafe { (*self.slabs[i].get()).write(slab) };
        }
    }

    pub fn publish(&self, count: usize) {
        self.state.ready.set(self.state.ready.get() + count);
    }

    /// Takes one slab; the caller becomes its holder.
    pub fn take(&self) -> Option<NonNull<Slab>> {
        let state = &self.state;
        let slab = match NonNull::new(state.free.get()) {
            Some(slab) => {
                // SAFETY: invariant B, the depot holds it and its lock is taken.
                state.free.set(unsafe { slab.as_ref().link().get() });
                slab
            }
            None if state.taken.get() < state.ready.get() => {
                let i = state.taken.get();
                state.taken.set(i + 1);
                // SAFETY: below `ready`, so it is initialised; a pointer within the run.
                unsafe { NonNull::new_unchecked(self.slabs[i].get().cast::<Slab>()) }
            }
            None => return None,
        };
        self.chunk().pin();
        Some(slab)
    }

    /// Puts a slab back.
    ///
    /// # Safety
    /// The caller is the holder of `slab`, which is of this run.
    pub unsafe fn put(&self, slab: NonNull<Slab>) {
        // SAFETY: invariant B.
        unsafe { slab.as_ref().link().set(self.state.free.get()) };
        self.state.free.set(slab.as_ptr());
        self.chunk().unpin();
    }
}

/// A piece of an arena, cut into one or two rows of slabs; or, for large allocations, several chunks as one slab.
#[derive(Debug)]
pub(crate) struct Chunk {
    pub arena: Arc<Arena>,
    pub shared: *const Shared,
    /// Which of the arena's chunks these are: the first one's number, and how many.
    pub span: (usize, usize),
    base: NonNull<u8>,
    runs: [Option<Box<Run>>; 2],
    /// Slabs outside the depot, and passing needs of the depot itself. Under its lock.
    pins: Cell<usize>,
}

impl Chunk {
    /// A chunk at `base`, cut into `rows` of slabs of the given size. Freed by [`Chunk::free`].
    pub fn new(
        arena: &Arc<Arena>,
        shared: *const Shared,
        span: (usize, usize),
        rows: [Option<(Row, usize)>; 2],
    ) -> NonNull<Chunk> {
        let chunk = NonNull::from(Box::leak(Box::new(Chunk {
            base: arena.chunk_base(span.0),
            arena: arena.clone(),
            shared,
            span,
            runs: [None, None],
            pins: Cell::new(0),
        })));
        let (lkey, charged) = (arena.lkey(), !arena.is_adopted());
        let run_of = |(row, size)| Run::new(chunk, row, size, lkey, charged);
        // SAFETY: just leaked, and nobody else knows of it yet.
        unsafe { (*chunk.as_ptr()).runs = rows.map(|row| row.map(run_of)) };
        chunk
    }

    /// The rows of a chunk of `class`.
    pub fn classed_rows(class: usize) -> [Option<(Row, usize)>; 2] {
        let (main, second) = crate::size::cut(class);
        [Some(main), second].map(|row| row.map(|row| (row, SIZES[row.class] as usize)))
    }

    /// The one row of an allocation of `len` bytes that takes whole chunks.
    pub fn whole_row(len: usize) -> [Option<(Row, usize)>; 2] {
        let row = Row {
            class: WHOLE,
            offset: 0,
            stride: len,
            count: 1,
        };
        [Some((row, len)), None]
    }

    /// Slabs outside the depot, and passing needs.
    pub fn pins(&self) -> usize {
        self.pins.get()
    }

    /// Frees the metadata; the span is the caller's to give back.
    ///
    /// # Safety
    /// The chunk is idle, and none of its runs is on a list.
    pub unsafe fn free(chunk: NonNull<Chunk>) {
        // SAFETY: made by `new`; no slab is outside (invariant A).
        drop(unsafe { Box::from_raw(chunk.as_ptr()) });
    }

    pub fn runs(&self) -> impl Iterator<Item = &Run> {
        self.runs.iter().flatten().map(|run| &**run)
    }

    pub fn pin(&self) {
        self.pins.set(self.pins.get() + 1);
        self.arena.mark_used();
    }

    pub fn unpin(&self) {
        self.pins.set(self.pins.get() - 1);
    }

    /// Whether the chunk can be given back to its arena.
    pub fn is_idle(&self) -> bool {
        self.pins.get() == 0
    }
}
