//! Sealed memory files. A memfd that can neither shrink nor grow is the only shared memory that is safe to map from
//! a process one does not control: a truncated file turns every access into SIGBUS. Files in /dev/shm refuse seals.
//! See memfd_create(2) and F_ADD_SEALS in fcntl(2).
//!
//! A descriptor of a memfd lets every process of the same user open the file again through /proc, writable, whatever
//! the mode of the descriptor it was handed. `F_SEAL_FUTURE_WRITE` ends that: the mapping its owner made before the
//! seal stays writable, every later one is read-only, for good.

use super::during;
use super::pull::{FileId, stat};
use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::ptr::NonNull;

/// What pages a memory file is made of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Pages {
    /// The system's.
    Ordinary,
    /// Huge ones of so many bytes, a power of two, which the kernel has set aside (memfd_create(2), `MFD_HUGETLB`). They are promised to
    /// the file when it is mapped, so that there is an error then and no signal later.
    Huge(usize),
}

impl Pages {
    /// Rounds up to whole pages; `None` if that does not fit.
    fn whole(self, len: usize) -> Option<usize> {
        match self {
            Pages::Ordinary => whole_pages(len),
            Pages::Huge(page) => len.checked_next_multiple_of(page),
        }
    }

    /// For memfd_create(2).
    fn flags(self) -> libc::c_uint {
        match self {
            Pages::Ordinary => 0,
            Pages::Huge(page) => libc::MFD_HUGETLB | page.trailing_zeros() << libc::MFD_HUGE_SHIFT,
        }
    }
}

/// Rounds up to whole pages; `None` if that does not fit.
pub(crate) fn whole_pages(len: usize) -> Option<usize> {
    // SAFETY: sysconf has no preconditions.
    let page = usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).ok()?;
    len.checked_next_multiple_of(page)
}

/// A shared mapping of a file, most often of all of it, taken down on drop. Not inherited by fork: a child would share the memory
/// without holding any of the queue pairs and regions in it.
#[derive(Debug)]
pub(crate) struct Mapping {
    base: NonNull<u8>,
    len: usize,
    writable: bool,
    pid: u32,
}

// SAFETY: the value is an address range it owns; it reads and writes nothing, and munmap works from any thread.
unsafe impl Send for Mapping {}
// SAFETY: as above; all methods that take `&self` return plain numbers.
unsafe impl Sync for Mapping {}

impl Mapping {
    fn new(fd: BorrowedFd<'_>, len: usize, writable: bool) -> io::Result<Mapping> {
        Mapping::part(fd, 0, len, writable).map_err(|error| during("mmap of a memory file", error))
    }

    /// Of whole pages of a file.
    pub(super) fn part(
        fd: BorrowedFd<'_>,
        offset: u64,
        len: usize,
        writable: bool,
    ) -> io::Result<Mapping> {
        let offset = libc::off_t::try_from(offset)
            .map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))?;
        let protection = match writable {
            true => libc::PROT_READ | libc::PROT_WRITE,
            false => libc::PROT_READ,
        };
        // SAFETY: the kernel chooses an unused address, so no existing mapping is touched; `fd` is open for the call.
        let base = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                len,
                protection,
                libc::MAP_SHARED,
                fd.as_raw_fd(),
                offset,
            )
        };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let mapping = Mapping {
            base: NonNull::new(base.cast()).ok_or(io::ErrorKind::Unsupported)?,
            len,
            writable,
            pid: std::process::id(),
        };
        // SAFETY: the range is the mapping just made; the advice changes what fork copies, not its contents.
        if unsafe { libc::madvise(base, len, libc::MADV_DONTFORK) } != 0 {
            return Err(during("madvise(MADV_DONTFORK)", io::Error::last_os_error()));
        }
        Ok(mapping)
    }

    /// First byte. Writes through it are a fault if the mapping is not [writable](Mapping::writable).
    pub(crate) fn as_ptr(&self) -> *mut u8 {
        self.base.as_ptr()
    }

    /// Bytes, a multiple of the page size.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Whether this process may store into it.
    pub(crate) fn writable(&self) -> bool {
        self.writable
    }

    /// False in a forked child, where the range is unmapped or by now something else's.
    pub(crate) fn is_here(&self) -> bool {
        self.pid == std::process::id()
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        if !self.is_here() {
            return;
        }
        // SAFETY: the range was mapped by `new` in this process and is given back once, here; whoever holds addresses
        // into it has promised not to outlive this value.
        unsafe { libc::munmap(self.as_ptr().cast(), self.len) };
    }
}

/// Which seals a memory file gets beyond the ones against resizing and further sealing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Peers {
    /// May map the file writable.
    Write,
    /// May map it read-only; only the mapping made here is writable.
    Read,
}

/// A memfd and this process's mapping of all of it: made here, or another process's.
#[derive(Debug)]
pub(crate) struct SealedFile {
    fd: OwnedFd,
    id: FileId,
    mapping: Mapping,
}

impl SealedFile {
    /// Makes a file of at least `len` zero bytes, maps it writable, and then seals it. `name` shows in
    /// `/proc/PID/maps`.
    ///
    /// # Errors
    /// `InvalidInput` for length zero or one that cannot be rounded up to pages; otherwise the system's, with the
    /// step that failed.
    pub(crate) fn create(
        name: &CStr,
        len: usize,
        peers: Peers,
        pages: Pages,
    ) -> io::Result<SealedFile> {
        let len = match len {
            0 => None,
            len => pages.whole(len),
        };
        let Some((len, file_len)) = len.and_then(|len| Some((len, len.try_into().ok()?))) else {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "a memory file needs a length of at least 1 byte that fits the address space",
            ));
        };
        let fd = memfd(name, pages)?;
        // SAFETY: ftruncate takes two integers; the descriptor is ours.
        if unsafe { libc::ftruncate(fd.as_raw_fd(), file_len) } != 0 {
            return Err(during(
                "ftruncate of a memory file",
                io::Error::last_os_error(),
            ));
        }
        let mapping = Mapping::new(fd.as_fd(), len, true)?;
        let mut seals = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;
        if peers == Peers::Read {
            seals |= libc::F_SEAL_FUTURE_WRITE;
        }
        // SAFETY: F_ADD_SEALS takes an integer; the descriptor is ours.
        if unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_ADD_SEALS, seals) } != 0 {
            return Err(during(
                "fcntl(F_ADD_SEALS) of a memory file (F_SEAL_FUTURE_WRITE needs Linux 5.1)",
                io::Error::last_os_error(),
            ));
        }
        if let (Peers::Read, Pages::Huge(page)) = (peers, pages) {
            refuses_writers(fd.as_fd(), page)?;
        }
        let id = FileId::of(&fd)?;
        Ok(SealedFile { fd, id, mapping })
    }

    /// Maps another process's file, after checking that it has exactly the size `len` rounds up to and can never
    /// have another one.
    ///
    /// # Errors
    /// `InvalidData` if the size or the seals are not as they must be, `PermissionDenied` if a writable mapping is
    /// asked of a file sealed against it, otherwise the system's.
    pub(crate) fn attach(fd: OwnedFd, len: u64, writable: bool) -> io::Result<SealedFile> {
        let invalid = |text: String| io::Error::new(io::ErrorKind::InvalidData, text);
        // SAFETY: F_GET_SEALS takes no argument; the descriptor is ours.
        let seals = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_GET_SEALS) };
        if seals < 0 {
            let error = io::Error::last_os_error();
            return Err(match error.raw_os_error() {
                Some(libc::EINVAL) => invalid("this file has no seals: it is not a memfd".into()),
                _ => during("fcntl(F_GET_SEALS)", error),
            });
        }
        let fixed = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW;
        if seals & fixed != fixed {
            return Err(invalid(format!(
                "a memory file with seals {seals:#x} can be truncated, so it is not mapped"
            )));
        }
        let stat = stat(&fd)?;
        let expected = usize::try_from(len).ok().and_then(whole_pages);
        let size = usize::try_from(stat.st_size).ok().filter(|&size| size > 0);
        let Some(len) = size.filter(|_| size == expected) else {
            return Err(invalid(format!(
                "a memory file of {} bytes, expected {len} rounded up to pages",
                stat.st_size
            )));
        };
        let mapping = Mapping::new(fd.as_fd(), len, writable)?;
        let id = FileId::of_stat(&stat);
        Ok(SealedFile { fd, id, mapping })
    }

    /// The descriptor.
    pub(crate) fn fd(&self) -> &OwnedFd {
        &self.fd
    }

    /// Which file it is.
    pub(crate) fn id(&self) -> FileId {
        self.id
    }

    /// The mapping.
    pub(crate) fn mapping(&self) -> &Mapping {
        &self.mapping
    }

    /// Descriptor and mapping apart, for owners that share the one and not the other.
    pub(crate) fn into_parts(self) -> (OwnedFd, FileId, Mapping) {
        (self.fd, self.id, self.mapping)
    }
}

/// Looks whether the kernel keeps `F_SEAL_FUTURE_WRITE`: before Linux 5.13 it takes the seal for a file of huge pages, and then lets
/// everybody map it writable.
fn refuses_writers(fd: BorrowedFd<'_>, page: usize) -> io::Result<()> {
    match Mapping::new(fd, page, true) {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Ok(()),
        Err(error) => Err(error),
        Ok(_) => Err(io::Error::new(
            io::ErrorKind::Unsupported,
            "this kernel does not keep others from writing to sealed files of huge pages (Linux 5.13 does)",
        )),
    }
}

/// memfd_create(2) of a file that can be sealed and not be executed. Kernels before 6.3 do not know the latter flag;
/// later ones may be set to demand it (`vm.memfd_noexec`).
fn memfd(name: &CStr, pages: Pages) -> io::Result<OwnedFd> {
    let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING | pages.flags();
    let create = |flags: libc::c_uint| {
        // SAFETY: the name is NUL-terminated and lives across the call.
        let fd: RawFd = unsafe { libc::memfd_create(name.as_ptr(), flags) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the call succeeded, so this is a fresh descriptor that nothing else owns.
        Ok(unsafe { OwnedFd::from_raw_fd(fd) })
    };
    create(flags | libc::MFD_NOEXEC_SEAL)
        .or_else(|error| match error.raw_os_error() {
            Some(libc::EINVAL) => create(flags),
            _ => Err(error),
        })
        .map_err(|error| during("memfd_create", error))
}

/// Memory the device itself shares with peers: the segment of advertisements (its owner writes) and the lanes (both
/// sides write).
#[derive(Debug)]
pub(crate) struct ControlFile {
    file: SealedFile,
}

impl ControlFile {
    /// A new file of at least `len` zero bytes, mapped writable here.
    ///
    /// # Errors
    /// As [`SealedFile::create`].
    pub(crate) fn create(len: usize, peer_writable: bool) -> io::Result<ControlFile> {
        let (name, peers) = match peer_writable {
            true => (c"verbatim-lane", Peers::Write),
            false => (c"verbatim-segment", Peers::Read),
        };
        let file = SealedFile::create(name, len, peers, Pages::Ordinary)?;
        Ok(ControlFile { file })
    }

    /// A peer's file. What is read from it may change at any time: copy once, then check.
    ///
    /// # Errors
    /// As [`SealedFile::attach`].
    pub(crate) fn attach(
        fd: OwnedFd,
        expected_len: usize,
        writable: bool,
    ) -> io::Result<ControlFile> {
        let file = SealedFile::attach(fd, expected_len as u64, writable)?;
        Ok(ControlFile { file })
    }

    /// First byte. Stores through it are a fault if the file was attached read-only.
    pub(crate) fn as_ptr(&self) -> *mut u8 {
        self.file.mapping().as_ptr()
    }

    /// Bytes, a multiple of the page size.
    pub(crate) fn len(&self) -> usize {
        self.file.mapping().len()
    }

    /// The descriptor, whose number peers open through /proc.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.file.fd().as_fd()
    }

    /// Which file it is, for peers to check.
    pub(crate) fn id(&self) -> FileId {
        self.file.id()
    }
}
