//! Arenas of ordinary memory, which can be told to fail.

use crate::Kind;
use crate::arena::{ArenaError, ArenaMemory, ArenaSource};
use crate::size::PAGE;
use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::io;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, AtomicUsize, Ordering::SeqCst};
use verbs::{LKey, RKey, RemoteRegion};

#[derive(Debug)]
pub struct HeapSource {
    made: AtomicU32,
    live: AtomicI64,
    live_bytes: AtomicI64,
    /// Arenas from this number on (the first is 0) are refused.
    pub refuse_from: AtomicU32,
    /// Longer arenas are refused.
    pub refuse_above: AtomicUsize,
    /// Whether there is no memory to put behind arenas.
    pub refuse_populate: AtomicBool,
}

impl Default for HeapSource {
    fn default() -> Self {
        HeapSource {
            made: AtomicU32::new(0),
            live: AtomicI64::new(0),
            live_bytes: AtomicI64::new(0),
            refuse_from: AtomicU32::new(u32::MAX),
            refuse_above: AtomicUsize::new(usize::MAX),
            refuse_populate: AtomicBool::new(false),
        }
    }
}

impl HeapSource {
    /// Arenas that exist.
    pub fn live(&self) -> i64 {
        self.live.load(SeqCst)
    }

    /// Their bytes.
    pub fn live_bytes(&self) -> i64 {
        self.live_bytes.load(SeqCst)
    }

    /// Arenas that were ever made.
    pub fn made(&self) -> u32 {
        self.made.load(SeqCst)
    }
}

impl ArenaSource for Arc<HeapSource> {
    fn create(&self, _kind: Kind, len: usize) -> Result<Box<dyn ArenaMemory>, ArenaError> {
        let refused =
            self.made() >= self.refuse_from.load(SeqCst) || len > self.refuse_above.load(SeqCst);
        if refused {
            let error = io::Error::from_raw_os_error(libc::ENOMEM);
            return Err(ArenaError::Create(error));
        }
        let layout = Layout::from_size_align(len, PAGE).unwrap();
        // SAFETY: arenas are never empty.
        let start = NonNull::new(unsafe { alloc_zeroed(layout) }).unwrap();
        self.live.fetch_add(1, SeqCst);
        self.live_bytes.fetch_add(len as i64, SeqCst);
        Ok(Box::new(HeapArena {
            start,
            layout,
            number: self.made.fetch_add(1, SeqCst),
            source: self.clone(),
        }))
    }
}

#[derive(Debug)]
struct HeapArena {
    start: NonNull<u8>,
    layout: Layout,
    number: u32,
    source: Arc<HeapSource>,
}

// SAFETY: the memory is owned by the value.
unsafe impl Send for HeapArena {}
// SAFETY: as above.
unsafe impl Sync for HeapArena {}

// SAFETY: allocated at a page, zeroed, and freed on drop only.
unsafe impl ArenaMemory for HeapArena {
    fn as_ptr(&self) -> NonNull<u8> {
        self.start
    }

    fn len(&self) -> usize {
        self.layout.size()
    }

    fn lkeys(&self) -> Box<[LKey]> {
        Box::new([LKey(self.number + 1)])
    }

    fn remote(&self) -> Option<RemoteRegion> {
        Some(RemoteRegion {
            addr: self.start.addr().get() as u64,
            len: self.len() as u64,
            rkey: RKey(self.number + 1),
        })
    }

    fn populate(&self, offset: usize, len: usize) -> io::Result<()> {
        assert!(offset.is_multiple_of(PAGE) && len > 0 && offset + len <= self.len());
        if self.source.refuse_populate.load(SeqCst) {
            return Err(io::Error::from_raw_os_error(libc::ENOMEM));
        }
        Ok(())
    }
}

impl Drop for HeapArena {
    fn drop(&mut self) {
        self.source.live.fetch_sub(1, SeqCst);
        self.source
            .live_bytes
            .fetch_sub(self.layout.size() as i64, SeqCst);
        // SAFETY: allocated with this layout, and dropped once.
        unsafe { dealloc(self.start.as_ptr(), self.layout) };
    }
}
