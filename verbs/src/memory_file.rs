//! Sealed memory files: memory that can be given to the user-space device without copies, and to nobody else.
//!
//! With the feature `soft` they are softverbs' own, announced to the device, so that peers can map what a region in them
//! exposes. Without it they are the same sealed files with nobody to tell.

use std::fmt;
use std::io;

use crate::{HugePageError, HugePageSize, Memory, MemoryMut};

/// What a memory file is for: the kernel lets peers map it accordingly, whatever they try.
///
/// The kind bounds what the user-space device's peers can reach by mapping; the access of the region decides what their keys
/// allow. Memory of other kinds and other devices work the same, only slower on `soft0`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MemoryKind {
    /// Never mapped by peers.
    Private,
    /// Mapped by peers for reading; the kernel refuses them a writable map.
    Readable,
    /// Mapped by peers for writing messages into posted receives; no keys are given for it.
    Receive,
    /// Mapped by peers for WRITE and atomics.
    Exposed,
}

/// Zeroed memory in an anonymous file that cannot shrink, grow or be sealed otherwise.
#[doc(alias = "memfd_create")]
pub struct MemoryFile {
    inner: imp::File,
    kind: MemoryKind,
}

impl MemoryFile {
    /// A file of at least `len` bytes, mapped into this process; `len` is rounded up to whole pages.
    ///
    /// # Errors
    /// `InvalidInput` for a length of 0; else what the kernel says.
    pub fn create(len: usize, kind: MemoryKind) -> io::Result<MemoryFile> {
        Ok(MemoryFile {
            inner: imp::create(len, kind, None)?,
            kind,
        })
    }

    /// A file of huge pages, of at least `len` bytes: fewer entries in the tables of the device and of this process, and of the peers on
    /// `soft0`, which map it as they map all others. `len` is rounded up to whole pages.
    ///
    /// ```
    /// # use verbs::{HugePageSize, MemoryFile, MemoryKind};
    /// let file = match MemoryFile::huge(1 << 20, MemoryKind::Private, HugePageSize::Mib2) {
    ///     Ok(file) => file,
    ///     Err(e) => {
    ///         eprintln!("{e}"); // how many there are, and how to have more
    ///         MemoryFile::create(1 << 20, MemoryKind::Private)?
    ///     }
    /// };
    /// # std::io::Result::Ok(())
    /// ```
    ///
    /// # Errors
    /// [`HugePageError`] says how many there are. They are promised here, so that touching them later does not fail, unless a cgroup or
    /// a NUMA policy forbids those that there are.
    #[doc(alias = "MFD_HUGETLB")]
    pub fn huge(
        len: usize,
        kind: MemoryKind,
        size: HugePageSize,
    ) -> Result<MemoryFile, HugePageError> {
        let inner = imp::create(len, kind, Some(size.bytes()))
            .map_err(|source| HugePageError::new(len, size, source))?;
        Ok(MemoryFile { inner, kind })
    }

    /// What it is for.
    pub fn kind(&self) -> MemoryKind {
        self.kind
    }
}

impl fmt::Debug for MemoryFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "MemoryFile({:?}, {} bytes at {:p})",
            self.kind,
            self.len(),
            self.as_ptr()
        )
    }
}

// SAFETY: mapped until dropped, wherever the value is, and sealed against truncation. Peers of the user-space device write it
// only where a key or a posted receive lets them.
unsafe impl Memory for MemoryFile {
    fn as_ptr(&self) -> *mut u8 {
        self.inner.as_ptr()
    }
    fn len(&self) -> usize {
        self.inner.len()
    }
}
// SAFETY: nothing else in this process points into the mapping.
unsafe impl MemoryMut for MemoryFile {}

#[cfg(feature = "soft")]
mod imp {
    use super::{MemoryKind, io};
    use softverbs::memory::Kind;
    pub(super) use softverbs::memory::MemoryFile as File;

    /// Of huge pages of so many bytes, if any are named.
    pub(super) fn create(len: usize, kind: MemoryKind, page: Option<usize>) -> io::Result<File> {
        let kind = match kind {
            MemoryKind::Private => Kind::Private,
            MemoryKind::Readable => Kind::Readable,
            MemoryKind::Receive => Kind::Receive,
            MemoryKind::Exposed => Kind::Exposed,
        };
        match page {
            None => File::create(len, kind),
            Some(page) => File::create_huge(len, kind, page),
        }
    }
}

#[cfg(not(feature = "soft"))]
mod imp {
    use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
    use std::ptr::NonNull;

    use super::{MemoryKind, io};

    /// The mapping; the descriptor is closed once it is made.
    pub(super) struct File {
        ptr: NonNull<u8>,
        len: usize,
    }

    // SAFETY: owned by the value, unmapped by any thread; nothing is reached through a reference.
    unsafe impl Send for File {}
    // SAFETY: as above.
    unsafe impl Sync for File {}

    /// Of huge pages of so many bytes, if any are named.
    pub(super) fn create(len: usize, _kind: MemoryKind, page: Option<usize>) -> io::Result<File> {
        if len == 0 {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "a memory file must not be empty",
            ));
        }
        let huge = match page {
            Some(page) => libc::MFD_HUGETLB | page.trailing_zeros() << libc::MFD_HUGE_SHIFT,
            None => 0,
        };
        // SAFETY: asks for a number.
        let ordinary = || unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
        let page = page.unwrap_or_else(|| usize::try_from(ordinary()).unwrap_or(4096));
        let too_long = || {
            io::Error::new(
                io::ErrorKind::InvalidInput,
                "a memory file must fit the address space",
            )
        };
        let len = len.checked_next_multiple_of(page).ok_or_else(too_long)?;
        let size = libc::off_t::try_from(len).map_err(|_| too_long())?;
        // SAFETY: a terminated name; a valid result is a descriptor that nobody else has.
        let fd = unsafe {
            let fd = libc::memfd_create(
                c"verbs-memory".as_ptr(),
                libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING | huge,
            );
            if fd < 0 {
                return Err(io::Error::last_os_error());
            }
            OwnedFd::from_raw_fd(fd)
        };
        // SAFETY: the descriptor is open; a new shared mapping at an address of the kernel's choice touches nothing.
        unsafe {
            if libc::ftruncate(fd.as_raw_fd(), size) != 0 {
                return Err(io::Error::last_os_error());
            }
            let prot = libc::PROT_READ | libc::PROT_WRITE;
            let ptr = libc::mmap(
                std::ptr::null_mut(),
                len,
                prot,
                libc::MAP_SHARED,
                fd.as_raw_fd(),
                0,
            );
            if ptr == libc::MAP_FAILED {
                return Err(io::Error::last_os_error());
            }
            let file = File {
                ptr: NonNull::new_unchecked(ptr.cast()),
                len,
            };
            let seals = libc::F_SEAL_SHRINK
                | libc::F_SEAL_GROW
                | libc::F_SEAL_FUTURE_WRITE
                | libc::F_SEAL_SEAL;
            if libc::fcntl(fd.as_raw_fd(), libc::F_ADD_SEALS, seals) != 0 {
                return Err(io::Error::last_os_error());
            }
            Ok(file)
        }
    }

    impl File {
        pub(super) fn as_ptr(&self) -> *mut u8 {
            self.ptr.as_ptr()
        }

        pub(super) fn len(&self) -> usize {
            self.len
        }
    }

    impl Drop for File {
        fn drop(&mut self) {
            // SAFETY: exactly the mapping made above.
            unsafe { libc::munmap(self.ptr.as_ptr().cast(), self.len) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_zeroed_and_paged() {
        let f = MemoryFile::create(5000, MemoryKind::Receive).unwrap();
        assert_eq!(f.len() % 4096, 0);
        assert!(f.len() >= 5000);
        // SAFETY: mapped, and nobody writes it.
        let bytes = unsafe { std::slice::from_raw_parts(f.as_ptr(), f.len()) };
        assert!(bytes.iter().all(|b| *b == 0));
        assert_eq!(
            MemoryFile::create(0, MemoryKind::Private)
                .unwrap_err()
                .kind(),
            io::ErrorKind::InvalidInput
        );
    }
}
