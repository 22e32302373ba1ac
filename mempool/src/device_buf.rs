//! Memory without a view for the processor, as buffers of a pool.

use crate::Kind;
use crate::adopt::{AdoptError, AdoptErrorKind};
use crate::arena::{ArenaError, ArenaMemory};
use crate::handle::Handle;
use crate::pool::Pool;
use crate::source::access;
use std::fmt;
use std::io;
use std::panic::Location;
use std::ptr::NonNull;
use verbs::{Dmabuf, DmabufRegion, Gather, LKey, RemoteRegion, Scatter, SgeList};

/// A buffer that only devices see: a part of a dmabuf, adopted with [`Pool::adopt_dmabuf`]. It has a length and a key, and can be parted, sent,
/// received into and READ into; it has no bytes, so it is sent by itself and is no part of an [`SgList`](crate::SgList).
pub struct DeviceBuf(Handle);

impl Pool {
    /// Registers a part of a dmabuf with all of the pool's devices, as one buffer without a view: the same look-up of keys and
    /// the same parts as other buffers. It counts for no budget, and is deregistered with its last part.
    ///
    /// # Errors
    /// [`AdoptError`] gives the handle back; [`ArenaError::Register`] with [`verbs::Error::Unsupported`] where a device cannot.
    #[track_caller]
    pub fn adopt_dmabuf(&self, memory: Dmabuf) -> Result<DeviceBuf, AdoptError<Dmabuf>> {
        let failed = |memory, kind: AdoptErrorKind| AdoptError {
            memory: Some(memory),
            kind: Box::new(kind),
        };
        let len = memory.len();
        if len > u32::MAX as usize {
            return Err(failed(memory, AdoptErrorKind::TooLong { len }));
        }
        let access = access(Kind::Exposed, self.shared.trusted_peers);
        let mut regions = Vec::with_capacity(self.shared.pds.len());
        for pd in &self.shared.pds {
            let made = crate::limits::check(pd, len, 0)
                .map_err(ArenaError::from)
                .and_then(|()| {
                    let made = pd.register_dmabuf(&memory, access);
                    made.map_err(ArenaError::Register)
                });
            match made {
                Ok(region) => regions.push(region),
                Err(e) => return Err(failed(memory, e.into())),
            }
        }
        let arena = Box::new(Viewless {
            memory,
            regions: regions.into(),
        });
        let slab = self.adopted(Kind::Exposed, arena, Location::caller());
        // SAFETY: just adopted, of so many bytes.
        Ok(DeviceBuf(unsafe { Handle::new(slab, len) }))
    }
}

/// A registered part of a dmabuf as an arena.
#[derive(Debug)]
struct Viewless {
    memory: Dmabuf,
    regions: Box<[DmabufRegion]>,
}

// SAFETY: without a view: the addresses are reserved as long as `memory` lives. It is adopted, as buffers that nobody touches.
unsafe impl ArenaMemory for Viewless {
    fn as_ptr(&self) -> NonNull<u8> {
        NonNull::new(self.memory.addr()).expect("reserved addresses are not 0")
    }

    fn len(&self) -> usize {
        self.memory.len()
    }

    fn lkeys(&self) -> Box<[LKey]> {
        self.regions.iter().map(DmabufRegion::lkey).collect()
    }

    fn remote(&self) -> Option<RemoteRegion> {
        self.regions[0].remote()
    }

    fn populate(&self, _offset: usize, _len: usize) -> io::Result<()> {
        Ok(())
    }
}

impl DeviceBuf {
    pub(crate) fn as_handle(&self) -> &Handle {
        &self.0
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.0.len() == 0
    }

    /// The local key of the memory.
    pub fn lkey(&self) -> LKey {
        self.0.lkey()
    }

    /// What peers can reach these bytes by; `None` unless the pool was built with
    /// [`trusted_peers`](crate::PoolBuilder::trusted_peers).
    pub fn remote(&self) -> Option<RemoteRegion> {
        self.0.remote()
    }

    /// Keeps `..at` and returns `at..`. Nothing is copied.
    ///
    /// # Panics
    /// If there are fewer bytes.
    pub fn split_off(&mut self, at: usize) -> DeviceBuf {
        DeviceBuf(self.0.split_off(at))
    }

    /// Keeps `..len`, if there are more.
    pub fn truncate(&mut self, len: usize) {
        self.0.truncate(len);
    }

    /// Joins with what lies directly behind.
    ///
    /// # Errors
    /// Gives `other` back if it does not lie there.
    pub fn unsplit(&mut self, other: DeviceBuf) -> Result<(), DeviceBuf> {
        self.0.join(other.0).map_err(DeviceBuf)
    }

    fn push_to(&self, out: &mut SgeList) {
        self.0.push_to(out);
        out.without_view();
    }
}

impl fmt::Debug for DeviceBuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DeviceBuf({} bytes)", self.0.len())
    }
}

// SAFETY: the slab stays out of the pool, and the memory registered, until the handle is dropped, or for ever if it is forgotten; there are
// no references to such memory.
unsafe impl Gather for DeviceBuf {
    fn gather(&self, out: &mut SgeList) {
        self.push_to(out);
    }
}

// SAFETY: as above; no other handle covers the bytes.
unsafe impl Scatter for DeviceBuf {
    fn scatter(&mut self, out: &mut SgeList) {
        self.push_to(out);
    }
}
