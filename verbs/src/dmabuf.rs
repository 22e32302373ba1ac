//! Memory of other drivers, as a dmabuf: a device reaches it without the processor seeing it.

use std::fmt;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;

use crate::region::why_not;
use crate::{
    Access, Error, Gather, LKey, Memory, Mmap, Pd, Region, ReleaseError, RemoteRegion, Scatter,
    SegmentError, Sge, SgeList, errno,
};

/// A part of a dmabuf: memory of a graphics card, a camera, a drive, that its driver gave out as a file descriptor.
///
/// It has no view for the processor, so there are neither slices nor cells of it; devices alone read and write it. In work requests it is known by
/// addresses that are reserved for it in this process and are no memory. A handle: clones are the same part.
#[derive(Clone)]
pub struct Dmabuf(Arc<Inner>);

struct Inner {
    fd: OwnedFd,
    offset: u64,
    len: usize,
    /// Where work requests say it lies, in pages.
    addresses: Mmap,
    /// How far within the first page it begins: devices want that to be so in the dmabuf as well as by address.
    within: usize,
}

impl Dmabuf {
    /// `len` bytes of it from `offset` on. Whether it is a dmabuf, and so long, is found out when it is registered.
    ///
    /// # Errors
    /// `InvalidInput` for a length of 0; what mmap(2) says if there are not so many addresses.
    pub fn new(fd: impl Into<OwnedFd>, offset: u64, len: usize) -> io::Result<Dmabuf> {
        const PAGE: usize = 4096;
        let invalid = |why: &str| io::Error::new(io::ErrorKind::InvalidInput, why);
        if len == 0 {
            return Err(invalid("a part of a dmabuf must not be empty"));
        }
        // On any page of up to 64 KiB, so that one offset within it is right for all.
        const LARGEST_PAGE: usize = 64 << 10;
        let within = (offset % LARGEST_PAGE as u64) as usize;
        let room = len
            .checked_add(within + LARGEST_PAGE)
            .and_then(|len| len.checked_next_multiple_of(PAGE))
            .ok_or_else(|| invalid("a part of a dmabuf must fit the address space"))?;
        let addresses = Mmap::reserve(room)?;
        let start = addresses.as_ptr().addr();
        let within = start.next_multiple_of(LARGEST_PAGE) - start + within;
        Ok(Dmabuf(Arc::new(Inner {
            fd: fd.into(),
            offset,
            len,
            addresses,
            within,
        })))
    }

    /// Length in bytes.
    #[allow(clippy::len_without_is_empty, reason = "a part is never empty")]
    pub fn len(&self) -> usize {
        self.0.len
    }

    /// Where in the dmabuf it begins.
    pub fn offset(&self) -> u64 {
        self.0.offset
    }

    /// What work requests call its first byte. It is no memory: touching it is a fault.
    pub fn addr(&self) -> *mut u8 {
        self.0.addresses.as_ptr().wrapping_add(self.0.within)
    }
}

impl fmt::Debug for Dmabuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "Dmabuf({} bytes from {} of descriptor {})",
            self.0.len,
            self.0.offset,
            self.0.fd.as_raw_fd()
        )
    }
}

/// Registered memory of a dmabuf: to send from, to receive into, to READ into, and for peers if the access says so.
///
/// Dropping deregisters. If the device refuses, the dmabuf stays open for good, because the device may still use it.
pub struct DmabufRegion(Region<Dmabuf>);

impl Pd {
    /// Registers a part of a dmabuf. Needs a device whose driver can reach the exporter's memory; `soft0` takes dmabufs that can be mapped, and
    /// in their place memory files that are sealed against shrinking.
    ///
    /// ```no_run
    /// # use verbs::{Access, Device, Dmabuf};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let exported: std::os::fd::OwnedFd = std::fs::File::open("/dev/null")?.into();
    /// let pd = Device::open_default()?.alloc_pd()?;
    /// let picture = Dmabuf::new(exported, 0, 8 << 20)?; // the descriptor comes from the other driver
    /// let region = pd.register_dmabuf(&picture, Access::LOCAL_WRITE)?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`Error::Unsupported`] when the device, its library or the kernel cannot; otherwise what the device says.
    #[doc(alias = "ibv_reg_dmabuf_mr")]
    pub fn register_dmabuf(&self, memory: &Dmabuf, access: Access) -> Result<DmabufRegion, Error> {
        const VERB: &str = "ibv_reg_dmabuf_mr";
        const WHAT: &str = "registration of a dmabuf (ibv_reg_dmabuf_mr)";
        let access = access.for_region();
        let device = self.context().device_name();
        let Some(register) = self.api().ibv_reg_dmabuf_mr else {
            return Err(Error::Unsupported {
                what: WHAT,
                device: device.to_owned(),
                source: io::Error::from_raw_os_error(libc::EOPNOTSUPP),
            });
        };
        let Dmabuf(inner) = memory;
        let (ptr, len) = (memory.addr(), inner.len);
        let iova = ptr.addr() as u64;
        let (fd, bits) = (inner.fd.as_raw_fd(), access.bits() as i32);
        // SAFETY: the domain is alive and the descriptor open; the device keeps the dmabuf itself.
        let made = unsafe { register(self.raw(), inner.offset, len, iova, fd, bits) };
        let mr = errno::object(made).map_err(|e| {
            let hint = format!("{memory:?}; {}", why_not_dmabuf(self, len, &e));
            Error::unless_unsupported(device, WHAT, VERB, e, hint)
        })?;
        let ptr = NonNull::new(ptr).unwrap_or(NonNull::dangling());
        let memory = MaybeUninit::new(memory.clone());
        // SAFETY: just registered, with these values.
        Ok(DmabufRegion(unsafe {
            Region::of(self, mr, (ptr, iova, len), access, memory)
        }))
    }
}

fn why_not_dmabuf(pd: &Pd, len: usize, e: &io::Error) -> String {
    match e.raw_os_error() {
        Some(libc::EINVAL) => {
            "is it a dmabuf, and do the bytes lie within? The device may not reach this exporter's memory"
                .to_owned()
        }
        Some(libc::EBADF) => "it is no open descriptor of a dmabuf".to_owned(),
        _ => why_not(pd, len, e),
    }
}

impl DmabufRegion {
    /// Length in bytes.
    #[allow(clippy::len_without_is_empty, reason = "a region is never empty")]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// What work requests call the first byte.
    pub fn iova(&self) -> u64 {
        self.0.iova()
    }

    /// The key for this process's own work requests.
    pub fn lkey(&self) -> LKey {
        self.0.lkey()
    }

    /// What it was registered for.
    pub fn access(&self) -> Access {
        self.0.access()
    }

    /// The protection domain it belongs to.
    pub fn pd(&self) -> &Pd {
        self.0.pd()
    }

    /// Description for peers; `None` when nothing remote was asked for.
    pub fn remote(&self) -> Option<RemoteRegion> {
        self.0.remote()
    }

    /// One segment of it, by offset.
    ///
    /// # Errors
    /// [`SegmentError`] names region, offset and length, when they do not fit.
    pub fn segment(&self, offset: usize, len: usize) -> Result<Sge, SegmentError> {
        self.0.segment(offset, len)
    }

    /// Deregisters.
    ///
    /// # Errors
    /// [`ReleaseError`], with the region, when the device refuses; it can be tried again.
    pub fn into_inner(self) -> Result<Dmabuf, ReleaseError<DmabufRegion>> {
        self.0.into_inner().map_err(|e| e.map(DmabufRegion))
    }
}

impl fmt::Debug for DmabufRegion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

// SAFETY: the addresses are the region's, which keeps the dmabuf, and the registration, until it is dropped; there are no references to
// such memory.
unsafe impl Gather for DmabufRegion {
    #[inline]
    fn gather(&self, out: &mut SgeList) {
        self.0.push_to(out);
        out.without_view();
    }
}

// SAFETY: as above.
unsafe impl Scatter for DmabufRegion {
    #[inline]
    fn scatter(&mut self, out: &mut SgeList) {
        self.0.push_to(out);
        out.without_view();
    }
}
