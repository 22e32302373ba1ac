//! Pieces of ordinary memory, from allocators that are not this program's own.

use std::alloc::{GlobalAlloc, Layout, System};
use std::fmt;
use std::marker::PhantomData;
use std::ptr::NonNull;

use super::Source;

/// An allocator without state of its own.
pub trait Heap: GlobalAlloc + 'static {
    /// It.
    const HEAP: Self;
}

impl Heap for System {
    const HEAP: System = System;
}

#[cfg(feature = "allocators")]
impl Heap for tikv_jemallocator::Jemalloc {
    const HEAP: Self = tikv_jemallocator::Jemalloc;
}

/// mimalloc by its quickest functions, which know no alignment.
#[cfg(feature = "allocators")]
pub struct Mimalloc;

#[cfg(feature = "allocators")]
impl Heap for Mimalloc {
    const HEAP: Mimalloc = Mimalloc;
}

// SAFETY: memory of at least that length, aligned to 16 bytes (8 if it is shorter), that stays until it is freed. Layouts that want more are
// not asked for here.
#[cfg(feature = "allocators")]
unsafe impl GlobalAlloc for Mimalloc {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: takes any length.
        unsafe { libmimalloc_sys::mi_malloc(layout.size()).cast() }
    }

    #[inline]
    unsafe fn dealloc(&self, memory: *mut u8, _: Layout) {
        // SAFETY: the caller's promise that it comes from `alloc`.
        unsafe { libmimalloc_sys::mi_free(memory.cast()) };
    }
}

/// There is no memory.
#[derive(Debug)]
pub struct Exhausted;

impl fmt::Display for Exhausted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("there is no memory to allocate")
    }
}

impl std::error::Error for Exhausted {}

/// Pieces of this length.
pub struct FromHeap<H> {
    layout: Layout,
    heap: PhantomData<fn() -> H>,
}

impl<H: Heap> FromHeap<H> {
    /// Pieces of `len` bytes, which is not 0.
    pub fn new(len: usize) -> FromHeap<H> {
        assert!(len > 0);
        let layout = Layout::array::<u64>(len.div_ceil(size_of::<u64>()));
        FromHeap {
            layout: layout.expect("a length that memory can have"),
            heap: PhantomData,
        }
    }
}

impl<H: Heap> Source for FromHeap<H> {
    type Piece = Piece<H>;
    type Error = Exhausted;
    #[inline(always)]
    fn alloc(&self) -> Result<Piece<H>, Exhausted> {
        // SAFETY: not of 0 bytes.
        let memory = unsafe { H::HEAP.alloc(self.layout) };
        Ok(Piece {
            memory: NonNull::new(memory).ok_or(Exhausted)?,
            layout: self.layout,
            heap: PhantomData,
        })
    }
}

/// Freed when dropped.
pub struct Piece<H: Heap> {
    memory: NonNull<u8>,
    layout: Layout,
    heap: PhantomData<H>,
}

// SAFETY: it is the only pointer to the memory, and each of the allocators may free what another thread has allocated.
unsafe impl<H: Heap> Send for Piece<H> {}

impl<H: Heap> Drop for Piece<H> {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: allocated with this layout.
        unsafe { H::HEAP.dealloc(self.memory.as_ptr(), self.layout) };
    }
}
