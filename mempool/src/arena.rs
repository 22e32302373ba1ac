//! Arenas: memory that is registered as one piece, and where it comes from.

use crate::Kind;
use crate::size::{CHUNK, PAGE};
use std::fmt;
use std::io;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use verbs::{LKey, RemoteRegion};

/// Length of the first arena of a kind, in bytes. Each further one is twice as long, up to [`LARGEST`].
pub(crate) const FIRST: usize = 4 << 20;
/// Length of the largest arena that is shared by several allocations, in bytes.
pub(crate) const LARGEST: usize = 64 << 20;

const _: () = {
    assert!(FIRST.is_multiple_of(CHUNK) && LARGEST.is_multiple_of(FIRST));
    assert!(LARGEST / CHUNK <= u32::BITS as usize);
};

/// Registered memory of fixed address and length; released when dropped.
///
/// # Safety
/// `as_ptr()..+len` is readable and writable memory, aligned to a page and initialised, that this process alone touches (other
/// than through the device, as the kind allows) and that stays where it is until the value is dropped.
pub(crate) unsafe trait ArenaMemory: Send + Sync + fmt::Debug {
    fn as_ptr(&self) -> NonNull<u8>;
    fn len(&self) -> usize;
    fn lkey(&self) -> LKey;
    /// What peers can reach all of the arena by, if that was asked for.
    fn remote(&self) -> Option<RemoteRegion>;
    /// Puts memory behind the range (within the arena), so that touching it neither faults nor fails.
    fn populate(&self, offset: usize, len: usize) -> io::Result<()>;
}

/// Where arenas come from: a protection domain of a device, or in tests anything that can be made to fail.
pub(crate) trait ArenaSource: Send + Sync + fmt::Debug {
    fn create(&self, kind: Kind, len: usize) -> Result<Box<dyn ArenaMemory>, ArenaError>;

    /// What became of the wish for huge pages.
    fn huge_pages(&self) -> crate::stats::HugePages {
        crate::stats::HugePages::NotAsked
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
    /// The device refused to register the memory.
    #[error(transparent)]
    Register(verbs::Error),
    /// The memory is registered, but the system has none to put behind it.
    #[error("no memory behind the arena: {0}; free memory or lower the pool's budgets")]
    Populate(#[source] io::Error),
}

/// An arena with the account of its chunks.
#[derive(Debug)]
pub(crate) struct Arena {
    pub lkey: LKey,
    pub remote: Option<RemoteRegion>,
    /// Made for one allocation, which takes all of it.
    pub dedicated: bool,
    base: NonNull<u8>,
    len: usize,
    /// One bit per free chunk. Under the depot's lock.
    free: AtomicU32,
    memory: Box<dyn ArenaMemory>,
}

// SAFETY: the address is only computed with here; what the memory behind it may be used for is the slabs' matter.
unsafe impl Send for Arena {}
// SAFETY: as above.
unsafe impl Sync for Arena {}

impl Arena {
    pub fn new(dedicated: bool, memory: Box<dyn ArenaMemory>) -> Arc<Arena> {
        debug_assert_eq!(memory.as_ptr().addr().get() % PAGE, 0);
        let len = memory.len();
        let free = if dedicated { 0 } else { mask(len / CHUNK) };
        Arc::new(Arena {
            lkey: memory.lkey(),
            remote: memory.remote(),
            dedicated,
            base: memory.as_ptr(),
            len,
            free: AtomicU32::new(free),
            memory,
        })
    }

    pub fn len(&self) -> usize {
        self.len
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
        if !self.dedicated {
            let free = self.free.load(Ordering::Relaxed) | mask(count) << first;
            self.free.store(free, Ordering::Relaxed);
        }
    }

    pub fn free_chunks(&self) -> usize {
        self.free.load(Ordering::Relaxed).count_ones() as usize
    }

    /// Whether none of its chunks is in use. (A dedicated arena is always in use, until it leaves its depot.)
    pub fn is_idle(&self) -> bool {
        !self.dedicated && self.free_chunks() == self.len / CHUNK
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
