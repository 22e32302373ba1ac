//! Registering memory that is not the pool's, as buffers like all others.

use crate::Kind;
use crate::arena::{ArenaError, ArenaMemory};
use crate::budget::{BudgetId, BudgetKind};
use crate::buf::Buf;
use crate::exposed::ExposedBuf;
use crate::pool::Pool;
use crate::slab::{Slab, StackIndex, WHOLE};
use crate::source::{Registered, Span, access, register};
use std::fmt;
use std::panic::Location;
use std::ptr::NonNull;
use std::sync::Arc;
use verbs::MemoryMut;

/// Memory that others may write while it is adopted: maps of files, memory shared with other processes or with other code here.
///
/// Implemented by [`SharedMap`](crate::SharedMap), and for all that is [`MemoryMut`].
///
/// # Safety
/// Until the value is dropped, and for ever if it is forgotten, `start()..start()+bytes()` is mapped, readable and writable, initialised, and stays where it
/// is, also when the value is moved; and this process makes no references to it other than to atomics.
pub unsafe trait CellMemory: Send + 'static {
    /// First byte.
    fn start(&self) -> *mut u8;
    /// Length in bytes.
    fn bytes(&self) -> usize;
}

// SAFETY: stays where it is and is initialised; the value has it alone, and whoever adopts it has the value.
unsafe impl<M: MemoryMut> CellMemory for M {
    fn start(&self) -> *mut u8 {
        self.as_ptr()
    }
    fn bytes(&self) -> usize {
        self.len()
    }
}

/// Memory could not be adopted. It is still there, unless a device that had it registered did not let go of it.
pub struct AdoptError<M> {
    /// The memory.
    pub memory: Option<M>,
    /// What failed.
    pub kind: Box<AdoptErrorKind>,
}

/// What failed when memory was to be adopted.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AdoptErrorKind {
    /// There are no bytes.
    #[error("there are no bytes to adopt")]
    Empty,
    /// A buffer cannot be so long.
    #[error(
        "a buffer has less than 4 GiB, and {len} bytes were to be adopted; map and adopt it in parts"
    )]
    TooLong {
        /// Length in bytes.
        len: usize,
    },
    /// A device does not register it.
    #[error(transparent)]
    Arena(#[from] ArenaError),
}

impl<M> fmt::Display for AdoptError<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.kind.fmt(f)
    }
}

impl<M> fmt::Debug for AdoptError<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AdoptError")
            .field("kind", &self.kind)
            .finish_non_exhaustive()
    }
}

impl<M> std::error::Error for AdoptError<M> {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.kind.source()
    }
}

/// The memory as regions know it.
struct Adopted<M>(M);

// SAFETY: the value is only kept, and dropped by whoever has it last; its memory's address is asked for before it is shared.
unsafe impl<M: Send> Sync for Adopted<M> {}

/// Address and length with what they belong to.
struct Fixed<M> {
    start: *mut u8,
    bytes: usize,
    memory: Adopted<M>,
}

// SAFETY: the address is only passed on.
unsafe impl<M: Send> Send for Fixed<M> {}
// SAFETY: as above, and by what `Adopted` says.
unsafe impl<M: Send> Sync for Fixed<M> {}

impl<M: CellMemory> Span for Fixed<M> {
    fn start(&self) -> *mut u8 {
        self.start
    }
    fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Pool {
    /// Registers memory that others may write with all of the pool's devices, as one buffer of cells: a map of a file
    /// ([`SharedMap`](crate::SharedMap)), memory shared with another process, huge pages ([`verbs::Mmap::huge`]).
    ///
    /// It is a buffer like all others, with keys that are known at once, splits, leases; only that it counts for no budget, and that the memory
    /// is deregistered and dropped with its last part. For memory without a view there is [`adopt_dmabuf`](Pool::adopt_dmabuf).
    ///
    /// # Errors
    /// [`AdoptError`] gives the memory back.
    #[track_caller]
    pub fn adopt<M: CellMemory>(&self, memory: M) -> Result<ExposedBuf, AdoptError<M>> {
        let (slab, len) = self.adopt_as(Kind::Exposed, memory, Location::caller())?;
        // SAFETY: of so many bytes, and of an exposed arena.
        Ok(unsafe { ExposedBuf::new(slab, len) })
    }

    /// Registers memory that its value has alone with all of the pool's devices, as one buffer. See [`adopt`](Pool::adopt).
    ///
    /// # Errors
    /// [`AdoptError`] gives the memory back.
    #[track_caller]
    pub fn adopt_owned<M: MemoryMut>(&self, memory: M) -> Result<Buf, AdoptError<M>> {
        let (slab, len) = self.adopt_as(Kind::Private, memory, Location::caller())?;
        // SAFETY: of so many bytes, not of an exposed arena, and nobody else's by the contract of the trait.
        Ok(unsafe { Buf::new(slab, len) })
    }

    /// Registers memory that others *could* write as a buffer with slices. See [`adopt`](Pool::adopt).
    ///
    /// # Errors
    /// [`AdoptError`] gives the memory back.
    ///
    /// # Safety
    /// As long as the buffer or any part of it exists, nobody else writes the memory: no other map of it in this process or another,
    /// no write(2) to its file. Nor is the file truncated, which would make touching it a fault.
    #[track_caller]
    pub unsafe fn adopt_private<M: CellMemory>(&self, memory: M) -> Result<Buf, AdoptError<M>> {
        let (slab, len) = self.adopt_as(Kind::Private, memory, Location::caller())?;
        // SAFETY: of so many bytes, not of an exposed arena, and nobody else's by the caller's promise.
        Ok(unsafe { Buf::new(slab, len) })
    }

    #[allow(
        clippy::type_complexity,
        reason = "what the constructors of buffers take"
    )]
    fn adopt_as<M: CellMemory>(
        &self,
        kind: Kind,
        memory: M,
        site: &'static Location<'static>,
    ) -> Result<((NonNull<Slab>, StackIndex), usize), AdoptError<M>> {
        let failed = |memory, kind: AdoptErrorKind| AdoptError {
            memory,
            kind: Box::new(kind),
        };
        let (start, len) = (memory.start(), memory.bytes());
        if len == 0 {
            return Err(failed(Some(memory), AdoptErrorKind::Empty));
        }
        if len > u32::MAX as usize {
            return Err(failed(Some(memory), AdoptErrorKind::TooLong { len }));
        }
        let shared = &self.shared;
        for pd in &shared.pds {
            if let Err(e) = crate::limits::check(pd, len, 0) {
                return Err(failed(Some(memory), ArenaError::from(e).into()));
            }
        }
        let fixed = Arc::new(Fixed {
            start,
            bytes: len,
            memory: Adopted(memory),
        });
        let access = access(kind, shared.trusted_peers);
        let regions = register(&shared.pds, fixed, access).map_err(|(fixed, e)| {
            let memory = fixed.map(|fixed| fixed.memory.0);
            failed(memory, ArenaError::Register(e).into())
        })?;
        let memory = Box::new(Registered::uncounted(regions));
        Ok((self.adopted(kind, memory, site), len))
    }

    /// Registered memory as a slab.
    pub(crate) fn adopted(
        &self,
        kind: Kind,
        memory: Box<dyn ArenaMemory>,
        site: &'static Location<'static>,
    ) -> (NonNull<Slab>, StackIndex) {
        let (shared, len) = (&self.shared, memory.len());
        let slab = shared.depot(kind).adopt(memory);
        let index = StackIndex::new(BudgetId::of(BudgetKind::User), kind, WHOLE);
        crate::refill::hand_to(slab, shared.stockless.stack(index));
        shared.watch(slab, len, site);
        (slab, index)
    }
}
