//! Arenas from protection domains: sealed memory files, registered whole with each of the pool's devices.

mod placement;

use crate::Kind;
use crate::arena::{ArenaError, ArenaMemory, ArenaSource};
use crate::huge::{self, Files, HugePageUse, HugePages};
use crate::limits;
use crate::stats::NumaPlacement;
use std::fmt;
use std::io;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use verbs::{Access, LKey, Memory, MemoryFile, MemoryKind, MemoryMut, Pd, Region, RemoteRegion};

/// Registers memory files with protection domains.
#[derive(Debug)]
pub(crate) struct VerbsSource {
    pds: Vec<Pd>,
    files: Files,
    numa: NumaPlacement,
    trusted_peers: bool,
    /// Arenas that are registered now.
    live: Arc<AtomicU64>,
}

impl VerbsSource {
    /// `pds` has at least one.
    pub fn new(
        pds: Vec<Pd>,
        huge_pages: HugePages,
        node: Option<usize>,
        trusted_peers: bool,
    ) -> Self {
        VerbsSource {
            pds,
            files: Files::new(huge_pages, placement::joins_pages),
            numa: node.map_or(NumaPlacement::NotAsked, placement::numa),
            trusted_peers,
            live: Arc::default(),
        }
    }

    /// Whether what is required is there at all.
    pub fn check(&self) -> Result<(), verbs::HugePageError> {
        self.files.check()
    }

    /// Says of an arena's memory where it is to come from, before there is any.
    fn place(&self, file: &MemoryFile, huge: bool) -> Result<(), ArenaError> {
        let (start, len) = (file.as_ptr(), file.len());
        // All of it is advice: where the system does not know it, the arena works without.
        // SAFETY: just mapped; none of these advices changes contents or unmaps in this process.
        unsafe {
            let _ = placement::advise(start, len, libc::MADV_DONTFORK);
            if !huge && self.files.joins() {
                let _ = placement::advise(start, len, libc::MADV_HUGEPAGE);
            }
            placement::place(start, len, &self.numa);
        }
        let bound = matches!(self.numa, NumaPlacement::Bound { .. });
        if huge && bound {
            // The pages promised may be another node's: better to know now than chunk by chunk.
            // SAFETY: as above.
            unsafe { placement::populate(start, len) }
                .map_err(|e| huge::of_node(&self.numa, len, e))?;
        }
        Ok(())
    }
}

/// What an arena is registered for.
pub(crate) fn access(kind: Kind, trusted_peers: bool) -> Access {
    let remote = match kind {
        _ if !trusted_peers => Access::empty(),
        Kind::Private | Kind::Receive => Access::empty(),
        // A `Buf` of it can be written through: what peers may read is leased, frozen, with a key of its own.
        Kind::Readable => Access::empty(),
        Kind::Exposed => Access::REMOTE_READ | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC,
    };
    Access::LOCAL_WRITE | remote
}

impl ArenaSource for VerbsSource {
    fn create(&self, kind: Kind, len: usize) -> Result<Box<dyn ArenaMemory>, ArenaError> {
        let longest = self.files.longest(len);
        for pd in &self.pds {
            limits::check(pd, longest, self.live.load(Ordering::Relaxed))?;
        }
        let file_kind = match kind {
            Kind::Private => MemoryKind::Private,
            Kind::Readable => MemoryKind::Readable,
            Kind::Receive => MemoryKind::Receive,
            Kind::Exposed => MemoryKind::Exposed,
        };
        let place = |file: &MemoryFile, huge| self.place(file, huge);
        let (file, huge) = self.files.make(len, file_kind, place)?;
        let regions = register(&self.pds, Arc::new(file), access(kind, self.trusted_peers))
            .map_err(|(_, e)| ArenaError::Register(e))?;
        self.live.fetch_add(1, Ordering::Relaxed);
        let counted = Counted(self.live.clone());
        Ok(Box::new(Registered {
            regions,
            huge,
            _counted: counted,
        }))
    }

    fn huge_pages(&self) -> HugePageUse {
        self.files.outcome()
    }

    fn numa(&self) -> NumaPlacement {
        self.numa.clone()
    }
}

/// One of the regions over the same memory, which goes with the last of them; if one cannot be deregistered, it never goes.
pub(crate) struct Common<M>(Arc<M>);

/// What of memory a region needs to know.
pub(crate) trait Span: Send + Sync + 'static {
    fn start(&self) -> *mut u8;
    fn bytes(&self) -> usize;
}

impl Span for MemoryFile {
    fn start(&self) -> *mut u8 {
        self.as_ptr()
    }
    fn bytes(&self) -> usize {
        Memory::len(self)
    }
}

// SAFETY: a span stays mapped until it is dropped, which is after this. Only regions without a view are made of it, so that
// writers are the pool's matter.
unsafe impl<M: Span> Memory for Common<M> {
    fn as_ptr(&self) -> *mut u8 {
        self.0.start()
    }
    fn len(&self) -> usize {
        self.0.bytes()
    }
}
// SAFETY: a region without a view makes no references.
unsafe impl<M: Span> MemoryMut for Common<M> {}

pub(crate) type Regions<M> = Box<[Region<Common<M>>]>;

/// Registers the same memory with each domain; or with none, and the memory comes back (unless a device does not let go of it).
pub(crate) fn register<M: Span>(
    pds: &[Pd],
    memory: Arc<M>,
    access: Access,
) -> Result<Regions<M>, (Option<M>, verbs::Error)> {
    let mut regions = Vec::with_capacity(pds.len());
    for pd in pds {
        match pd.region(Common(memory.clone()), access) {
            Ok(region) => regions.push(region),
            Err(e) => {
                let e = e.into_error();
                drop(regions);
                return Err((Arc::into_inner(memory), e));
            }
        }
    }
    Ok(regions.into())
}

/// Registered memory as an arena.
pub(crate) struct Registered<M: Span> {
    regions: Regions<M>,
    huge: bool,
    _counted: Counted,
}

impl<M: Span> Registered<M> {
    /// Memory that does not count for the pool's own.
    pub fn uncounted(regions: Regions<M>) -> Registered<M> {
        Registered {
            regions,
            huge: false,
            _counted: Counted(Arc::new(AtomicU64::new(1))),
        }
    }

    fn first(&self) -> &Region<Common<M>> {
        &self.regions[0]
    }
}

/// Counts down at the end.
struct Counted(Arc<AtomicU64>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl<M: Span> fmt::Debug for Registered<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Registered").field(&self.regions).finish()
    }
}

// SAFETY: initialised memory that the regions keep mapped until they are dropped; they hand out no references.
unsafe impl<M: Span> ArenaMemory for Registered<M> {
    fn as_ptr(&self) -> NonNull<u8> {
        NonNull::new(self.first().as_ptr()).expect("registered memory has an address")
    }

    fn len(&self) -> usize {
        self.first().len()
    }

    fn lkeys(&self) -> Box<[LKey]> {
        self.regions.iter().map(Region::lkey).collect()
    }

    fn remote(&self) -> Option<RemoteRegion> {
        self.first().remote()
    }

    fn populate(&self, offset: usize, len: usize) -> io::Result<()> {
        assert!(offset + len <= self.first().len());
        let start = self.first().as_ptr().wrapping_add(offset);
        // SAFETY: within the region, which is mapped.
        unsafe { placement::populate(start, len) }
    }

    fn is_huge(&self) -> bool {
        self.huge
    }
}
