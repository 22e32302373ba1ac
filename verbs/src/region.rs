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

use std::fmt;
use std::io;
use std::mem::{ManuallyDrop, MaybeUninit};
use std::ptr::NonNull;

use ibverbs_sys::ibv_mr;

use crate::errno;
use crate::{
    Access, Error, Gather, LKey, Memory, MemoryMut, Pd, RKey, RegisterError, RemoteRegion, Scatter,
    SgeList,
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
    mr: NonNull<ibv_mr>,
    ptr: NonNull<u8>,
    len: usize,
    lkey: LKey,
    rkey: RKey,
    access: Access,
    pd: Pd,
    /// Initialised until the region is dropped or taken apart.
    memory: MaybeUninit<M>,
}

// SAFETY: the verbs may be called from any thread; the memory may move to another as `M` may.
unsafe impl<M: Send> Send for Region<M> {}
// SAFETY: through `&Region` only its description is reached, not `M` and not the bytes.
unsafe impl<M: Send> Sync for Region<M> {}

impl<M: Memory> Region<M> {
    /// Registers for `access`, which the caller has found fit for the kind of memory.
    #[doc(alias = "ibv_reg_mr")]
    pub(crate) fn new(pd: &Pd, memory: M, access: Access) -> Result<Region<M>, RegisterError<M>> {
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
        let api = pd.api();
        // SAFETY: the domain is alive; the memory stays mapped for the life of `memory`, which the region owns.
        let mr = unsafe {
            ibverbs_sys::inline::ibv_reg_mr(api, pd.raw(), addr.cast(), len, access.bits())
        };
        match errno::object(mr) {
            Ok(mr) => {
                // SAFETY: a region just created; its keys do not change.
                let (lkey, rkey) = unsafe { (LKey(mr.as_ref().lkey), RKey(mr.as_ref().rkey)) };
                Ok(Region {
                    mr,
                    ptr,
                    len,
                    lkey,
                    rkey,
                    access,
                    pd: pd.clone(),
                    memory,
                })
            }
            Err(e) => {
                let hint = why_not(pd, len, &e);
                refused(memory, Error::hinted("ibv_reg_mr", e, hint))
            }
        }
    }
}

impl<M> Region<M> {
    /// First byte. Good for writing if the memory is [`MemoryMut`].
    pub fn as_ptr(&self) -> *mut u8 {
        self.ptr.as_ptr()
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it is empty, which no region is.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The key for this process's own work requests.
    pub fn lkey(&self) -> LKey {
        self.lkey
    }

    /// What it was registered for.
    pub fn access(&self) -> Access {
        self.access
    }

    /// The protection domain it belongs to.
    pub fn pd(&self) -> &Pd {
        &self.pd
    }

    /// Description for peers; `None` when nothing remote was asked for.
    pub fn remote(&self) -> Option<RemoteRegion> {
        self.access
            .intersects(Access::REMOTE)
            .then(|| self.describe())
    }

    pub(crate) fn describe(&self) -> RemoteRegion {
        RemoteRegion {
            addr: self.ptr.as_ptr() as u64,
            len: self.len as u64,
            rkey: self.rkey,
        }
    }

    /// Deregisters and gives the memory back.
    ///
    /// # Errors
    /// [`ReleaseError`], with the region, when the device refuses; it can be tried again.
    pub fn into_inner(self) -> Result<M, ReleaseError<Region<M>>> {
        let mut this = ManuallyDrop::new(self);
        match this.deregister() {
            Ok(()) => {
                // SAFETY: the region is not used again and not dropped; each field is taken out or dropped once.
                unsafe {
                    std::ptr::drop_in_place(&mut this.pd);
                    Ok(this.memory.assume_init_read())
                }
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
        // SAFETY: registered, and after success the callers do not come here again.
        errno::check(unsafe { (self.pd.api().ibv_dereg_mr)(self.mr.as_ptr()) })
    }

    #[inline(always)]
    pub(crate) fn push_to(&self, out: &mut SgeList) {
        out.push_bytes(self.ptr.as_ptr() as u64, self.len, self.lkey);
    }
}

impl<M> Drop for Region<M> {
    fn drop(&mut self) {
        match self.deregister() {
            // SAFETY: initialised until here, and the device has given the memory up.
            Ok(()) => unsafe { self.memory.assume_init_drop() },
            // The device may still use the memory, and the region its domain.
            Err(_) => std::mem::forget(self.pd.clone()),
        }
    }
}

// SAFETY: owned memory that stays where it is; the region lets nobody reference it.
unsafe impl<M: MemoryMut> Gather for Region<M> {
    #[inline(always)]
    fn gather(&self, out: &mut SgeList) {
        self.push_to(out);
    }
}

// SAFETY: as above.
unsafe impl<M: MemoryMut> Scatter for Region<M> {
    #[inline(always)]
    fn scatter(&mut self, out: &mut SgeList) {
        self.push_to(out);
    }
}

impl<M> fmt::Debug for Region<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Region")
            .field("ptr", &self.ptr)
            .field("len", &self.len)
            .field("lkey", &self.lkey)
            .field("access", &self.access)
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
fn why_not(pd: &Pd, len: usize, e: &io::Error) -> String {
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
