//! Memory regions: memory, and the right of a device to use it, as one value.
//!
//! Why this is sound:
//!
//! * The region owns the memory, so nobody frees it under the device. It is given back or dropped only after `ibv_dereg_mr`
//!   succeeded; if that fails, the memory is leaked.
//! * A region alone has raw pointers but no slices. What references may exist is decided by the kinds built on it:
//!   [`Private`](crate::Private) (no remote key), [`Readable`](crate::Readable) (remote reading only), and
//!   [`Exposed`](crate::Exposed) (no references).
//! * The owner of the memory is kept in a `MaybeUninit`: moving a `Box` or a `&mut` asserts that nobody else uses what it
//!   points to, and a device may just be doing that.
//! * What belongs to the region lies in an allocation of its own, so that a region is one pointer: into a queue and out again it
//!   is moved several times for each message, and registering costs more than an allocation.

use std::fmt;
use std::io;
use std::marker::PhantomData;
use std::mem::{ManuallyDrop, MaybeUninit};
use std::ptr::NonNull;

use ibverbs_sys::{ibv_mr, ibv_rereg_mr_flags as flags};

use crate::errno;
use crate::{
    Access, Error, Gather, LKey, Memory, MemoryMut, Pd, RKey, RegisterError, RemoteRegion, Scatter,
    Sge, SgeList,
};

/// Registered memory without a view of it: the layer below the three kinds, for those who manage memory themselves.
///
/// The bytes can be reached through [`as_ptr`](Self::as_ptr) by `unsafe` code, whose author then answers for the device and for
/// peers with a key.
///
/// Dropping deregisters, then drops the memory. If the device refuses to deregister, the memory is leaked, because the device
/// may still use it.
#[doc(alias = "ibv_mr")]
pub struct Region<M> {
    parts: NonNull<Parts<M>>,
    owns: PhantomData<Parts<M>>,
}

/// The region itself.
struct Parts<M> {
    mr: NonNull<ibv_mr>,
    ptr: NonNull<u8>,
    /// What work requests call the first byte.
    iova: u64,
    len: usize,
    lkey: LKey,
    rkey: RKey,
    access: Access,
    pd: Pd,
    /// Initialised until the region is dropped or taken apart.
    memory: MaybeUninit<M>,
}

// SAFETY: the region owns its parts; the verbs may be called from any thread; the memory may move to another as `M` may.
unsafe impl<M: Send> Send for Region<M> {}
// SAFETY: through `&Region` only its description is reached, not `M` and not the bytes.
unsafe impl<M: Send> Sync for Region<M> {}

impl<M: Memory> Region<M> {
    /// Registers for `access`, which the caller has found fit for the kind of memory, under addresses from `iova` on, or the
    /// memory's own.
    #[doc(alias = "ibv_reg_mr")]
    #[doc(alias = "ibv_reg_mr_iova2")]
    pub(crate) fn new(
        pd: &Pd,
        memory: M,
        access: Access,
        iova: Option<u64>,
    ) -> Result<Region<M>, RegisterError<M>> {
        let access = access.for_region();
        // In its final wrapper before its address is taken: moving it bare afterwards would assert uniqueness.
        let memory = MaybeUninit::new(memory);
        // SAFETY: initialised above.
        let (addr, len) = unsafe {
            (
                memory.assume_init_ref().as_ptr(),
                memory.assume_init_ref().len(),
            )
        };
        let refused = |memory: MaybeUninit<M>, error| {
            // SAFETY: initialised above, and not registered.
            Err(RegisterError::new(unsafe { memory.assume_init() }, error))
        };
        let Some(ptr) = NonNull::new(addr).filter(|_| len > 0) else {
            return refused(
                memory,
                Error::Empty {
                    what: "registered memory",
                },
            );
        };
        let registered = match iova {
            None => {
                // SAFETY: the domain is alive; the memory stays mapped for the life of `memory`, which the region owns.
                errno::object(unsafe {
                    let api = pd.api();
                    ibverbs_sys::inline::ibv_reg_mr(api, pd.raw(), addr.cast(), len, access.bits())
                })
                .map_err(|e| {
                    let hint = why_not(pd, len, &e);
                    Error::hinted("ibv_reg_mr", e, hint)
                })
            }
            Some(iova) => register_at(pd, addr, len, access, iova),
        };
        match registered {
            Ok(mr) => {
                let iova = iova.unwrap_or(ptr.as_ptr() as u64);
                // SAFETY: just registered, with these values.
                Ok(unsafe { Region::of(pd, mr, (ptr, iova, len), access, memory) })
            }
            Err(error) => refused(memory, error),
        }
    }
}

impl<M> Region<M> {
    /// A region of what was just registered.
    ///
    /// # Safety
    /// `mr` was registered with `pd` for `access`: so many bytes, which work requests know by addresses from `iova` on. They stay what they
    /// are as long as `memory` is there, which is initialised. Nobody else deregisters it.
    pub(crate) unsafe fn of(
        pd: &Pd,
        mr: NonNull<ibv_mr>,
        (ptr, iova, len): (NonNull<u8>, u64, usize),
        access: Access,
        memory: MaybeUninit<M>,
    ) -> Region<M> {
        // SAFETY: a region just created; its keys do not change.
        let (lkey, rkey) = unsafe { (LKey(mr.as_ref().lkey), RKey(mr.as_ref().rkey)) };
        let parts = Box::new(Parts {
            mr,
            ptr,
            iova,
            len,
            lkey,
            rkey,
            access,
            pd: pd.clone(),
            memory,
        });
        Region {
            parts: NonNull::from(Box::leak(parts)),
            owns: PhantomData,
        }
    }
}

/// Registers memory that work requests know by addresses from `iova` on.
fn register_at(
    pd: &Pd,
    addr: *mut u8,
    len: usize,
    access: Access,
    iova: u64,
) -> Result<NonNull<ibv_mr>, Error> {
    let (api, device) = (pd.api(), pd.context().device_name());
    const WHAT: &str = "registration under other addresses (ibv_reg_mr_iova2)";
    let max = u64::MAX - len as u64;
    Error::in_range("iova", iova, 0, max)?;
    let Some(register) = api.ibv_reg_mr_iova2 else {
        return Err(Error::Unsupported {
            what: WHAT,
            device: device.to_owned(),
            source: io::Error::from_raw_os_error(libc::EOPNOTSUPP),
        });
    };
    // SAFETY: as in `new`.
    errno::object(unsafe { register(pd.raw(), addr.cast(), len, iova, access.bits()) }).map_err(
        |e| {
            let hint = format!(
                "{}; asked for the address {iova:#x} for memory at {addr:p}: some devices want both to agree below the size of a page",
                why_not(pd, len, &e)
            );
            Error::unless_unsupported(device, WHAT, "ibv_reg_mr_iova2", e, hint)
        },
    )
}

impl<M> Region<M> {
    #[inline(always)]
    fn parts(&self) -> &Parts<M> {
        // SAFETY: the region owns its parts, until it is dropped or taken apart.
        unsafe { self.parts.as_ref() }
    }

    fn parts_mut(&mut self) -> &mut Parts<M> {
        // SAFETY: as above.
        unsafe { self.parts.as_mut() }
    }

    /// First byte. Good for writing if the memory is [`MemoryMut`].
    #[inline]
    pub fn as_ptr(&self) -> *mut u8 {
        self.parts().ptr.as_ptr()
    }

    /// What work requests, this process's and peers', call the first byte: its address, unless another was
    /// [chosen](Pd::region_at).
    #[inline]
    pub fn iova(&self) -> u64 {
        self.parts().iova
    }

    /// Length in bytes.
    #[inline]
    pub fn len(&self) -> usize {
        self.parts().len
    }

    /// Whether it is empty, which no region is.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The key for this process's own work requests.
    #[inline]
    pub fn lkey(&self) -> LKey {
        self.parts().lkey
    }

    /// What it was registered for.
    pub fn access(&self) -> Access {
        self.parts().access
    }

    /// The protection domain it belongs to.
    pub fn pd(&self) -> &Pd {
        &self.parts().pd
    }

    /// Description for peers; `None` when nothing remote was asked for.
    pub fn remote(&self) -> Option<RemoteRegion> {
        self.access()
            .intersects(Access::REMOTE)
            .then(|| self.describe())
    }

    pub(crate) fn describe(&self) -> RemoteRegion {
        RemoteRegion {
            addr: self.iova(),
            len: self.len() as u64,
            rkey: self.parts().rkey,
        }
    }

    /// One segment of it, by offset.
    ///
    /// # Errors
    /// [`SegmentError`] names region, offset and length, when they do not fit.
    #[inline]
    pub fn segment(&self, offset: usize, len: usize) -> Result<Sge, SegmentError> {
        let parts = self.parts();
        match (offset.checked_add(len), u32::try_from(len)) {
            (Some(end), Ok(len)) if end <= parts.len => Ok(Sge {
                addr: parts.iova + offset as u64,
                len,
                lkey: parts.lkey,
            }),
            _ => Err(self.outside(offset, len)),
        }
    }

    #[cold]
    pub(crate) fn outside(&self, offset: usize, len: usize) -> SegmentError {
        let parts = self.parts();
        SegmentError {
            region_addr: parts.iova,
            region_len: parts.len,
            lkey: parts.lkey,
            offset,
            len,
        }
    }

    /// Changes what it is registered for, without pinning the memory again. Keys may change: peers need the new
    /// [description](Self::remote).
    ///
    /// Whoever uses the old rights or keys at that moment gets an error.
    ///
    /// # Errors
    /// [`Error::Unsupported`] when the device cannot; the region is as it was then. Otherwise the region may not be usable any more:
    /// work with it then ends in error completions.
    #[doc(alias = "ibv_rereg_mr")]
    pub fn change_access(&mut self, access: Access) -> Result<(), Error>
    where
        M: MemoryMut,
    {
        const WHAT: &str = "changes of a registration (ibv_rereg_mr)";
        let access = access.for_region();
        let parts = self.parts_mut();
        let device = parts.pd.context().device_name();
        let Some(change) = parts.pd.api().ibv_rereg_mr else {
            return Err(Error::Unsupported {
                what: WHAT,
                device: device.to_owned(),
                source: io::Error::from_raw_os_error(libc::EOPNOTSUPP),
            });
        };
        let (mr, what) = (parts.mr.as_ptr(), flags::IBV_REREG_MR_CHANGE_ACCESS.0);
        // SAFETY: registered; domain, address and length are not looked at when only the access changes.
        let ret = unsafe {
            change(
                mr,
                what as i32,
                std::ptr::null_mut(),
                std::ptr::null_mut(),
                0,
                access.bits() as i32,
            )
        };
        if ret != 0 {
            let e = io::Error::last_os_error();
            let hint = format!("code {ret}, to {access:?}");
            return Err(Error::unless_unsupported(
                device,
                WHAT,
                "ibv_rereg_mr",
                e,
                hint,
            ));
        }
        // SAFETY: registered still, under keys that may be new.
        let (lkey, rkey) = unsafe { (LKey((*mr).lkey), RKey((*mr).rkey)) };
        (parts.lkey, parts.rkey, parts.access) = (lkey, rkey, access);
        Ok(())
    }

    /// Deregisters and gives the memory back.
    ///
    /// # Errors
    /// [`ReleaseError`], with the region, when the device refuses; it can be tried again.
    pub fn into_inner(self) -> Result<M, ReleaseError<Region<M>>> {
        let mut this = ManuallyDrop::new(self);
        match this.deregister() {
            Ok(()) => {
                // SAFETY: the region is not used again and not dropped; made from a box, and this is the end of it.
                let parts = unsafe { Box::from_raw(this.parts.as_ptr()) };
                // SAFETY: initialised until here, and the device has given the memory up.
                Ok(unsafe { parts.memory.assume_init() })
            }
            Err(source) => Err(ReleaseError {
                region: ManuallyDrop::into_inner(this),
                source,
            }),
        }
    }

    /// After success neither region nor memory may be deregistered again.
    #[doc(alias = "ibv_dereg_mr")]
    fn deregister(&mut self) -> io::Result<()> {
        let parts = self.parts();
        // SAFETY: registered, and after success the callers do not come here again.
        errno::check(unsafe { (parts.pd.api().ibv_dereg_mr)(parts.mr.as_ptr()) })
    }

    #[inline(always)]
    pub(crate) fn push_to(&self, out: &mut SgeList) {
        let parts = self.parts();
        out.push_bytes(parts.iova, parts.len, parts.lkey);
    }

    /// The same of a region whose addresses may be others than the processor's.
    #[inline(always)]
    pub(crate) fn push_renamed_to(&self, out: &mut SgeList) {
        self.push_to(out);
        if self.iova() != self.as_ptr().addr() as u64 {
            out.without_view();
        }
    }
}

impl<M> Drop for Region<M> {
    fn drop(&mut self) {
        if self.deregister().is_err() {
            // The device may still use the memory, and the region its domain: all of the parts stay.
            return;
        }
        // SAFETY: made from a box, and this is the end of it.
        let mut parts = unsafe { Box::from_raw(self.parts.as_ptr()) };
        // SAFETY: initialised until here, and the device has given the memory up.
        unsafe { parts.memory.assume_init_drop() };
    }
}

/// A segment does not lie within its region.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{len} bytes at offset {offset} do not lie within the region at {region_addr:#x} of {region_len} bytes with {lkey:?}, or are \
     more than a segment holds (2^32-1)"
)]
#[non_exhaustive]
pub struct SegmentError {
    /// What work requests call the region's first byte.
    pub region_addr: u64,
    /// Length of the region in bytes.
    pub region_len: usize,
    /// The region's local key.
    pub lkey: LKey,
    /// Where the segment was to begin.
    pub offset: usize,
    /// How long it was to be.
    pub len: usize,
}

// SAFETY: owned memory that stays where it is; the region lets nobody reference it.
unsafe impl<M: MemoryMut> Gather for Region<M> {
    #[inline(always)]
    fn gather(&self, out: &mut SgeList) {
        self.push_renamed_to(out);
    }
}

// SAFETY: as above.
unsafe impl<M: MemoryMut> Scatter for Region<M> {
    #[inline(always)]
    fn scatter(&mut self, out: &mut SgeList) {
        self.push_renamed_to(out);
    }
}

impl<M> fmt::Debug for Region<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Region")
            .field("ptr", &self.as_ptr())
            .field("len", &self.len())
            .field("lkey", &self.lkey())
            .field("access", &self.access())
            .finish()
    }
}

/// The device refused to deregister a region.
#[derive(Debug)]
pub struct ReleaseError<R> {
    region: R,
    source: io::Error,
}

impl<R> ReleaseError<R> {
    /// The region, still registered.
    pub fn into_region(self) -> R {
        self.region
    }

    pub(crate) fn map<S>(self, f: impl FnOnce(R) -> S) -> ReleaseError<S> {
        ReleaseError {
            region: f(self.region),
            source: self.source,
        }
    }
}

impl<R> fmt::Display for ReleaseError<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "ibv_dereg_mr failed: {} (a memory window or work in progress may still use the region)",
            self.source
        )
    }
}

impl<R: fmt::Debug> std::error::Error for ReleaseError<R> {}

impl<R> From<ReleaseError<R>> for Error {
    fn from(e: ReleaseError<R>) -> Error {
        Error::verb("ibv_dereg_mr", e.source)
    }
}

/// What usually stands behind a refused registration.
pub(crate) fn why_not(pd: &Pd, len: usize, e: &io::Error) -> String {
    let attr = pd.context().query_device();
    match e.raw_os_error() {
        Some(libc::ENOMEM | libc::EAGAIN | libc::EPERM) => {
            let mut limit = libc::rlimit {
                rlim_cur: 0,
                rlim_max: 0,
            };
            // SAFETY: `limit` is writable.
            let known = unsafe { libc::getrlimit(libc::RLIMIT_MEMLOCK, &mut limit) } == 0;
            let locked = match limit.rlim_cur {
                _ if !known => "unknown".to_owned(),
                libc::RLIM_INFINITY => "unlimited".to_owned(),
                n => format!("{n} bytes"),
            };
            format!(
                "{len} bytes; RLIMIT_MEMLOCK is {locked}, and registered memory counts against it: raise it with ulimit -l or \
                 LimitMEMLOCK; the device takes {} regions of up to {} bytes",
                attr.max_mr, attr.max_mr_size
            )
        }
        Some(libc::EINVAL) if len as u64 > attr.max_mr_size => {
            format!(
                "{len} bytes; the device takes regions of up to {} bytes",
                attr.max_mr_size
            )
        }
        Some(libc::EFAULT) => "the memory is not mapped, or cannot be pinned".to_owned(),
        Some(libc::EOPNOTSUPP) => {
            "the device does not offer this kind of memory or access".to_owned()
        }
        _ => format!("{len} bytes"),
    }
}
