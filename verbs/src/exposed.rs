//! Memory that peers may write.

use std::fmt;
use std::sync::atomic::AtomicU64;

use crate::{
    Access, Cells, Gather, LKey, Memory, MemoryMut, Mmap, OutOfBounds, Pd, Region, RegisterError,
    ReleaseError, RemoteRegion, Scatter, SgeList,
};

/// Cell memory: peers with its key may WRITE it, READ it or use atomics on it, as its [`Access`] says, at any moment.
///
/// There are no slices of it. Bytes are copied in and out; a copy taken while a peer writes may mix old and new bytes, and
/// what it holds is the peer's choice: check before use. Words to synchronise on are atomics.
///
/// ```
/// # use verbs::{Access, Device, Exposed};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let pd = Device::open_spec("soft0")?.alloc_pd()?;
/// let shared: Exposed = pd.expose(4096, Access::REMOTE_WRITE)?;
/// shared.write_at(8, b"ping")?;
/// let mut copy = [0; 4];
/// shared.read_at(8, &mut copy)?;
/// assert_eq!(&copy, b"ping");
/// assert!(shared.read_at(4094, &mut copy).is_err());
/// # Ok(()) }
/// ```
pub struct Exposed<M = Mmap>(Region<M>);

/// An access to cell memory was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CellError {
    /// The range does not lie within the memory.
    #[error(transparent)]
    OutOfBounds(#[from] OutOfBounds),
    /// An atomic word needs an address that is a multiple of its size.
    #[error("offset {offset} is not aligned for an atomic of {size} bytes")]
    Misaligned {
        /// Offset asked for.
        offset: usize,
        /// Size of the word.
        size: usize,
    },
}

impl<M: MemoryMut> Exposed<M> {
    pub(crate) fn new(pd: &Pd, memory: M, access: Access) -> Result<Exposed<M>, RegisterError<M>> {
        if !access.intersects(Access::REMOTE) {
            let error = crate::Error::Access {
                access,
                kind: "exposed",
                hint: "give at least one of REMOTE_WRITE, REMOTE_READ and REMOTE_ATOMIC, or use Pd::register",
            };
            return Err(RegisterError::new(memory, error));
        }
        Region::new(pd, memory, access, None).map(Exposed)
    }
}

impl<M> Exposed<M> {
    pub(crate) fn region(&self) -> &Region<M> {
        &self.0
    }

    /// Length in bytes.
    #[allow(
        clippy::len_without_is_empty,
        reason = "registered memory is never empty"
    )]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Description for peers: address, length and key.
    pub fn remote(&self) -> RemoteRegion {
        self.0.describe()
    }

    /// The key for this process's own work requests.
    pub fn lkey(&self) -> LKey {
        self.0.lkey()
    }

    /// Withdraws the key and gives the memory back.
    ///
    /// # Errors
    /// [`ReleaseError`], with the region, when the device refuses.
    pub fn into_inner(self) -> Result<M, ReleaseError<Exposed<M>>> {
        self.0.into_inner().map_err(|e| e.map(Exposed))
    }
}

impl<M: Memory> Exposed<M> {
    #[inline]
    fn cells(&self) -> Cells<'_> {
        // SAFETY: mapped as long as `self` lives, and nobody in this process reaches the memory but through this type: as these cells.
        unsafe { Cells::new(self.0.as_ptr(), self.0.len()) }
    }

    /// Copies `out.len()` bytes from `offset`.
    ///
    /// # Errors
    /// [`OutOfBounds`] when they do not lie within the memory.
    #[inline]
    pub fn read_at(&self, offset: usize, out: &mut [u8]) -> Result<(), OutOfBounds> {
        self.cells().read_at(offset, out)
    }

    /// Copies `bytes` to `offset`.
    ///
    /// # Errors
    /// [`OutOfBounds`] when they do not fit.
    #[inline]
    pub fn write_at(&self, offset: usize, bytes: &[u8]) -> Result<(), OutOfBounds> {
        self.cells().write_at(offset, bytes)
    }

    /// The eight bytes at `offset` as an atomic, in this machine's byte order.
    ///
    /// A peer's WRITE of an aligned word is seen whole. A peer's atomics and this processor's are atomic towards each other
    /// only on devices that say so (`IBV_ATOMIC_GLOB`): use one kind per word.
    ///
    /// # Errors
    /// [`CellError`] when it does not lie within the memory or is not aligned.
    #[inline]
    pub fn atomic_u64(&self, offset: usize) -> Result<&AtomicU64, CellError> {
        self.cells().atomic_u64(offset)
    }
}

// SAFETY: owned memory that stays where it is, and no references to it but to atomics.
unsafe impl<M: MemoryMut> Gather for Exposed<M> {
    #[inline(always)]
    fn gather(&self, out: &mut SgeList) {
        self.0.push_to(out);
    }
}

// SAFETY: as above.
unsafe impl<M: MemoryMut> Scatter for Exposed<M> {
    #[inline(always)]
    fn scatter(&mut self, out: &mut SgeList) {
        self.0.push_to(out);
    }
}

impl<M> fmt::Debug for Exposed<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "Exposed({} bytes at {:p})",
            self.0.len(),
            self.0.as_ptr()
        )
    }
}
