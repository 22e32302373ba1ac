//! Arenas: memory that is registered as one piece, and where it comes from.

use crate::Kind;
use crate::huge::HugePageUse;
use crate::limits::LimitError;
use crate::size::{CHUNK, PAGE};
use crate::slab::Chunk;
use std::cell::Cell;
use std::fmt;
use std::io;
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use verbs::{LKey, RemoteRegion};

/// Length of the first arena of a kind, in bytes. Each further one is twice as long, up to [`LARGEST`].
pub(crate) const FIRST: usize = 4 << 20;
/// Length of the largest arena that is shared by several allocations, in bytes.
pub(crate) const LARGEST: usize = 64 << 20;
/// How many chunks the largest has.
const CHUNKS: usize = LARGEST / CHUNK;

const _: () = {
    assert!(FIRST.is_multiple_of(CHUNK) && LARGEST.is_multiple_of(FIRST));
    assert!(CHUNKS <= u32::BITS as usize);
};

/// Registered memory of fixed address and length; released when dropped.
///
/// # Safety
/// `as_ptr()..+len` is readable and writable memory, initialised, that this process alone touches (other than through the device, as the
/// kind allows) and that stays where it is until the value is dropped. Memory of others may be touched by them where it is only seen
/// as cells. Memory without a view (of a dmabuf) is adopted only, as buffers that nobody touches; its addresses are nothing else's.
pub(crate) unsafe trait ArenaMemory: Send + Sync + fmt::Debug {
    fn as_ptr(&self) -> NonNull<u8>;
    fn len(&self) -> usize;
    /// The key of each of the pool's devices, in their order; at least one.
    fn lkeys(&self) -> Box<[LKey]>;
    /// What peers can reach all of the arena by, if that was asked for.
    fn remote(&self) -> Option<RemoteRegion>;
    /// Puts memory behind the range (within the arena), so that touching it neither faults nor fails.
    fn populate(&self, offset: usize, len: usize) -> io::Result<()>;
    /// Whether it is of huge pages that were set aside.
    fn is_huge(&self) -> bool {
        false
    }
}

/// Where arenas come from: a protection domain of a device, or in tests anything that can be made to fail.
pub(crate) trait ArenaSource: Send + Sync + fmt::Debug {
    fn create(&self, kind: Kind, len: usize) -> Result<Box<dyn ArenaMemory>, ArenaError>;

    /// What became of the wish for huge pages.
    fn huge_pages(&self) -> HugePageUse {
        HugePageUse::NotAsked
    }

    /// What became of the wish for a NUMA node.
    fn numa(&self) -> crate::stats::NumaPlacement {
        crate::stats::NumaPlacement::NotAsked
    }
}

/// Why memory for the pool could not be had.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ArenaError {
    /// The memory file could not be made: too little memory or address space, or too many open files.
    #[error(
        "cannot make a memory file: {0}; check free memory, the cgroup's limit and `ulimit -n`"
    )]
    Create(#[source] io::Error),
    /// Huge pages were required, and there are too few of them.
    #[error("{0}; the pool does without if told HugePages::Try")]
    HugePages(#[from] verbs::HugePageError),
    /// Huge pages of one NUMA node were required, and it has too few of them, whatever others have.
    #[error(
        "NUMA node {node} has not {pages} free huge pages of 2 MiB: {source}; set more aside: write their number to \
         /sys/devices/system/node/node{node}/hugepages/hugepages-2048kB/nr_hugepages. The pool does without if told HugePages::Try"
    )]
    HugePagesOfNode {
        /// The node.
        node: usize,
        /// How many were asked for.
        pages: usize,
        /// What the kernel said.
        source: io::Error,
    },
    /// A limit was found to be in the way before anything was tried.
    #[error(transparent)]
    Limit(#[from] LimitError),
    /// The device refused to register the memory.
    #[error(transparent)]
    Register(verbs::Error),
    /// The memory is registered, but the system has none to put behind it.
    #[error("no memory behind the arena: {0}; free memory or lower the pool's budgets")]
    Populate(#[source] io::Error),
}

/// What an arena is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Use {
    /// Chunks for anybody.
    Shared,
    /// One allocation, which takes all of it.
    Dedicated,
    /// Memory that is not the pool's.
    Adopted,
}

/// An arena with the account of its chunks.
#[derive(Debug)]
pub(crate) struct Arena {
    pub remote: Option<RemoteRegion>,
    what: Use,
    lkeys: Box<[LKey]>,
    base: NonNull<u8>,
    len: usize,
    /// One bit per free chunk. Under the depot's lock, as the next.
    free: AtomicU32,
    /// What each chunk that is not free belongs to, if it was cut.
    chunks: [Cell<*const Chunk>; CHUNKS],
    /// Whether anything of it was handed out since somebody last asked.
    used: AtomicBool,
    memory: Box<dyn ArenaMemory>,
}

// SAFETY: the address is only computed with here, and what the memory behind it may be used for is the slabs' matter; the chunks are
// looked at under the depot's lock.
unsafe impl Send for Arena {}
// SAFETY: as above.
unsafe impl Sync for Arena {}

impl Arena {
    pub fn new(what: Use, memory: Box<dyn ArenaMemory>) -> Arc<Arena> {
        debug_assert!(what == Use::Adopted || memory.as_ptr().addr().get().is_multiple_of(PAGE));
        let len = memory.len();
        let free = match what {
            Use::Shared => mask(len / CHUNK),
            Use::Dedicated | Use::Adopted => 0,
        };
        Arc::new(Arena {
            remote: memory.remote(),
            what,
            lkeys: memory.lkeys(),
            base: memory.as_ptr(),
            len,
            free: AtomicU32::new(free),
            chunks: [const { Cell::new(ptr::null()) }; CHUNKS],
            used: AtomicBool::new(true),
            memory,
        })
    }

    /// The key of the pool's first device.
    pub fn lkey(&self) -> LKey {
        self.lkeys[0]
    }

    /// The keys of all devices.
    pub fn lkeys(&self) -> &[LKey] {
        &self.lkeys
    }

    /// Made for one allocation, which takes all of it.
    pub fn is_dedicated(&self) -> bool {
        self.what != Use::Shared
    }

    /// Whether it is memory that is not the pool's.
    pub fn is_adopted(&self) -> bool {
        self.what == Use::Adopted
    }

    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it is of huge pages that were set aside.
    pub fn is_huge(&self) -> bool {
        self.memory.is_huge()
    }

    pub fn mark_used(&self) {
        self.used.store(true, Ordering::Relaxed);
    }

    /// Whether anything of it was handed out since this was last asked.
    pub fn was_used(&self) -> bool {
        self.used.swap(false, Ordering::Relaxed)
    }

    /// Notes (or forgets, if null) what a chunk belongs to. Under the depot's lock, as the next.
    pub fn note(&self, first: usize, chunk: *const Chunk) {
        if let Some(slot) = self.chunks.get(first) {
            slot.set(chunk);
        }
    }

    /// What its chunks belong to: number and chunk, each once.
    pub fn cut(&self) -> impl Iterator<Item = (usize, NonNull<Chunk>)> {
        let noted = |(at, slot): (usize, &Cell<*const Chunk>)| {
            Some((at, NonNull::new(slot.get().cast_mut())?))
        };
        self.chunks.iter().enumerate().filter_map(noted)
    }

    pub fn chunk_base(&self, chunk: usize) -> NonNull<u8> {
        debug_assert!(chunk * CHUNK < self.len);
        // SAFETY: within the arena's memory.
        unsafe { self.base.add(chunk * CHUNK) }
    }

    pub fn populate(&self, offset: usize, len: usize) -> Result<(), ArenaError> {
        debug_assert!(offset + len <= self.len);
        self.memory
            .populate(offset, len)
            .map_err(ArenaError::Populate)
    }

    /// What peers can reach `len` bytes at `addr` of this arena by.
    pub fn remote_of(&self, addr: NonNull<u8>, len: usize) -> Option<RemoteRegion> {
        let offset = (addr.addr().get() - self.base.addr().get()) as u64;
        self.remote?.slice(offset..offset + len as u64).ok()
    }

    /// Takes `count` chunks in a row; the number of the first.
    pub fn take_chunks(&self, count: usize) -> Option<usize> {
        let free = self.free.load(Ordering::Relaxed);
        let first = find_row(free, count)?;
        let rest = free & !(mask(count) << first);
        self.free.store(rest, Ordering::Relaxed);
        Some(first)
    }

    /// Gives back what [`take_chunks`](Arena::take_chunks) gave.
    pub fn put_chunks(&self, (first, count): (usize, usize)) {
        if !self.is_dedicated() {
            let free = self.free.load(Ordering::Relaxed) | mask(count) << first;
            self.free.store(free, Ordering::Relaxed);
        }
    }

    /// Whether that chunk is free.
    pub fn is_free(&self, chunk: usize) -> bool {
        self.free.load(Ordering::Relaxed) >> chunk & 1 == 1
    }

    pub fn free_chunks(&self) -> usize {
        self.free.load(Ordering::Relaxed).count_ones() as usize
    }

    /// Whether none of its chunks is in use. (A dedicated arena is always in use, until it leaves its depot.)
    pub fn is_idle(&self) -> bool {
        !self.is_dedicated() && self.free_chunks() == self.len / CHUNK
    }
}

/// `count` ones.
fn mask(count: usize) -> u32 {
    match count {
        0 => 0,
        _ => u32::MAX >> (u32::BITS - count as u32),
    }
}

/// The lowest place where `count` ones stand in a row.
fn find_row(bits: u32, count: usize) -> Option<usize> {
    if count == 0 || count > u32::BITS as usize {
        return None;
    }
    // Each step keeps the ones that have another one above them.
    let starts = (1..count).fold(bits, |starts, _| starts & (starts >> 1));
    (starts != 0).then(|| starts.trailing_zeros() as usize)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_row_is_found_where_a_search_finds_it(bits: u32, count in 0usize..40) {
            let expected = (0..32).find(|&first| {
                count > 0 && first + count <= 32 && (first..first + count).all(|i| bits >> i & 1 == 1)
            });
            // The fold above shifts in zeros, and a row of ones found by it is a real one.
            prop_assert_eq!(find_row(bits, count), expected);
        }
    }

    #[test]
    fn masks() {
        assert_eq!(
            (mask(0), mask(1), mask(31), mask(32)),
            (0, 1, u32::MAX >> 1, u32::MAX)
        );
    }
}
