//! Memory files: memory that peers on this machine can map.
//!
//! Any memory can be registered, and a peer then reaches it by process_vm, a system call per operation. Memory
//! from a [`MemoryFile`] is better: registering a range of it lets peers map the file as its [`Kind`] allows, so
//! that their operations become plain loads and stores. To that end every file is announced, from its creation to its
//! drop, in a list of the process in which `ibv_reg_mr` looks.

use crate::os::memfd::{Mapping, Pages, Peers, SealedFile};
use crate::os::pull::FileId;
use crate::sync::Mutex;
use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Who may touch the memory, decided once for the whole file and enforced by the kernel's seals and page tables.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum Kind {
    /// The owner only. No peer ever maps it.
    Private = 0,
    /// The owner writes, peers read. A peer cannot map it writable even if it wants to.
    Readable = 1,
    /// Peers write arriving messages into it, at places the owner has posted. No remote key is given for it.
    Receive = 2,
    /// The owner and peers read and write at any time.
    Exposed = 3,
}

impl Kind {
    /// The number by which the kind is stored in shared memory.
    pub(crate) fn code(self) -> u8 {
        self as u8
    }

    /// The kind stored under a number; `None` if there is none, as a peer may have written anything.
    pub(crate) fn from_code(code: u8) -> Option<Kind> {
        [Kind::Private, Kind::Readable, Kind::Receive, Kind::Exposed]
            .into_iter()
            .find(|kind| kind.code() == code)
    }

    fn peers(self) -> Peers {
        match self {
            Kind::Private | Kind::Readable => Peers::Read,
            Kind::Receive | Kind::Exposed => Peers::Write,
        }
    }
}

/// Memory of this process in a sealed file, zeroed at first. Its address is stable until it is dropped; moving the
/// value does not move the memory. A forked child does not inherit it.
///
/// ```
/// use softverbs::memory::{Kind, MemoryFile};
/// let file = MemoryFile::create(10_000, Kind::Exposed)?;
/// assert!(file.len() >= 10_000);
/// # std::io::Result::Ok(())
/// ```
#[derive(Debug)]
pub struct MemoryFile {
    mapping: Mapping,
    kind: Kind,
}

impl MemoryFile {
    /// Makes a file of `len` bytes, rounded up to whole pages, and announces it to the device.
    ///
    /// # Errors
    /// `InvalidInput` if `len` is zero or exceeds the address space; `OutOfMemory` and the other errors of
    /// memfd_create(2), ftruncate(2), mmap(2), with the failed step in the text.
    pub fn create(len: usize, kind: Kind) -> io::Result<MemoryFile> {
        MemoryFile::of_pages(len, kind, Pages::Ordinary)
    }

    /// Makes a file of huge pages of `page` bytes each, rounded up to whole ones, and announces it to the device. The kernel promises the
    /// pages here, so that touching them later does not fail.
    ///
    /// # Errors
    /// As [`create`](MemoryFile::create). `InvalidInput` if `page` is no power of two; what the system says if it has no pages of that size
    /// (`ENODEV`, `EINVAL`) or too few of them (`ENOMEM`), in the step named; `Unsupported` where it does not keep the seals of such a
    /// file (before Linux 5.13).
    pub fn create_huge(len: usize, kind: Kind, page: usize) -> io::Result<MemoryFile> {
        if !page.is_power_of_two() {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "the size of a huge page is a power of two",
            ));
        }
        MemoryFile::of_pages(len, kind, Pages::Huge(page))
    }

    fn of_pages(len: usize, kind: Kind, pages: Pages) -> io::Result<MemoryFile> {
        let file = SealedFile::create(c"verbatim-memory", len, kind.peers(), pages)?;
        let (fd, id, mapping) = file.into_parts();
        static SERIAL: AtomicU64 = AtomicU64::new(1);
        let announced = Announced {
            fd: Arc::new(fd),
            id,
            len: mapping.len(),
            kind,
            serial: SERIAL.fetch_add(1, Ordering::Relaxed),
            pid: std::process::id(),
        };
        ANNOUNCED.lock().insert(mapping.as_ptr().addr(), announced);
        Ok(MemoryFile { mapping, kind })
    }

    /// First byte, aligned to a page.
    pub fn as_ptr(&self) -> *mut u8 {
        self.mapping.as_ptr()
    }

    /// Bytes, a multiple of the page size.
    #[allow(clippy::len_without_is_empty, reason = "a memory file is never empty")]
    pub fn len(&self) -> usize {
        self.mapping.len()
    }

    /// What it was made for.
    pub fn kind(&self) -> Kind {
        self.kind
    }
}

impl Drop for MemoryFile {
    fn drop(&mut self) {
        // Before the mapping goes: afterwards the addresses may be another file's. A forked child leaves its copy of
        // the list alone, whose lock another thread may have held at the fork.
        if self.mapping.is_here() {
            ANNOUNCED.lock().remove(&self.mapping.as_ptr().addr());
        }
    }
}

/// All memory files of this process by address. Control path only: reg_mr, and making and dropping files.
static ANNOUNCED: Mutex<BTreeMap<usize, Announced>> = Mutex::new(BTreeMap::new());

struct Announced {
    fd: Arc<OwnedFd>,
    id: FileId,
    len: usize,
    kind: Kind,
    serial: u64,
    pid: u32,
}

/// The part of a memory file that holds some range of addresses.
#[derive(Clone, Debug)]
pub(crate) struct Backing {
    /// The file. Open as long as any clone lives, also after the [`MemoryFile`] is dropped.
    pub(crate) fd: Arc<OwnedFd>,
    /// Which file it is, for peers to check.
    pub(crate) id: FileId,
    /// Where in the file the range begins.
    pub(crate) offset: u64,
    /// Length of the whole file.
    pub(crate) file_len: u64,
    /// What peers may do with it.
    pub(crate) kind: Kind,
    /// Number of the file within this process, never given twice.
    pub(crate) serial: u64,
}

/// The memory file of this process that contains all of the range, if one does. An empty range must begin inside.
pub(crate) fn lookup(addr: usize, len: usize) -> Option<Backing> {
    let files = ANNOUNCED.lock();
    let (&base, file) = files.range(..=addr).next_back()?;
    let offset = addr - base;
    let fits = offset < file.len && len <= file.len - offset;
    // Files of the process we were forked from are not mapped here.
    if !fits || file.pid != std::process::id() {
        return None;
    }
    Some(Backing {
        fd: Arc::clone(&file.fd),
        id: file.id,
        offset: offset as u64,
        file_len: file.len as u64,
        kind: file.kind,
        serial: file.serial,
    })
}

/// A peer's memory file in this process, unmapped on drop.
#[derive(Debug)]
pub(crate) struct PeerMapping {
    mapping: Mapping,
}

impl PeerMapping {
    /// First byte. Stores through it are a fault unless it is [writable](PeerMapping::writable).
    pub(crate) fn as_ptr(&self) -> *mut u8 {
        self.mapping.as_ptr()
    }

    /// Bytes, a multiple of the page size.
    pub(crate) fn len(&self) -> usize {
        self.mapping.len()
    }

    /// Whether this process may store into it.
    pub(crate) fn writable(&self) -> bool {
        self.mapping.writable()
    }
}

/// Maps a peer's memory file of `len` bytes as its kind allows: writable for receive and exposed memory, read-only
/// for readable memory.
///
/// # Errors
/// `PermissionDenied` for private memory; `InvalidData` if the file's size is another or could be changed (then it
/// has to be reached by process_vm); otherwise the system's.
pub(crate) fn map_peer(fd: OwnedFd, len: u64, kind: Kind) -> io::Result<PeerMapping> {
    let writable = match kind {
        Kind::Private => {
            return Err(io::Error::new(
                io::ErrorKind::PermissionDenied,
                "private memory of a peer is never mapped",
            ));
        }
        Kind::Readable => false,
        Kind::Receive | Kind::Exposed => true,
    };
    let (_, _, mapping) = SealedFile::attach(fd, len, writable)?.into_parts();
    Ok(PeerMapping { mapping })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::os::fd::{AsRawFd, FromRawFd};

    fn duplicate(backing: &Backing) -> OwnedFd {
        backing.fd.try_clone().unwrap()
    }

    #[test]
    fn lengths_are_rounded_up_to_pages_and_zero_is_refused() {
        let page = crate::os::memfd::whole_pages(1).unwrap();
        for (asked, got) in [(1, page), (page, page), (page + 1, 2 * page)] {
            let file = MemoryFile::create(asked, Kind::Private).unwrap();
            assert_eq!(file.len(), got);
            assert_eq!(file.as_ptr().addr() % page, 0);
        }
        for impossible in [0, usize::MAX, usize::MAX - page, isize::MAX as usize + 1] {
            let error = MemoryFile::create(impossible, Kind::Private).unwrap_err();
            assert_eq!(
                error.kind(),
                io::ErrorKind::InvalidInput,
                "{impossible}: {error}"
            );
        }
    }

    #[test]
    fn more_than_the_address_space_names_the_failed_step() {
        let error = MemoryFile::create(1 << 60, Kind::Exposed).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::OutOfMemory, "{error}");
        assert!(error.to_string().contains("mmap"), "{error}");
    }

    #[test]
    fn a_file_is_zeroed_and_writable_by_its_owner_whatever_its_kind() {
        for kind in [Kind::Private, Kind::Readable, Kind::Receive, Kind::Exposed] {
            let file = MemoryFile::create(4096, kind).unwrap();
            assert_eq!(file.kind(), kind);
            // SAFETY: the memory is ours, `len` bytes long, and no peer knows it.
            let bytes = unsafe { std::slice::from_raw_parts_mut(file.as_ptr(), file.len()) };
            assert!(bytes.iter().all(|&byte| byte == 0));
            bytes.fill(1);
            assert_eq!(Kind::from_code(kind.code()), Some(kind));
        }
        assert_eq!(Kind::from_code(4), None);
    }

    #[test]
    fn ranges_inside_are_found_and_others_are_not() {
        let file = MemoryFile::create(8192, Kind::Receive).unwrap();
        let (base, len) = (file.as_ptr().addr(), file.len());
        for (offset, part) in [(0, len), (1, 1), (len - 1, 1), (5, len - 5), (7, 0)] {
            let found = lookup(base + offset, part).unwrap();
            assert_eq!(found.offset, offset as u64);
            assert_eq!(found.file_len, len as u64);
            assert_eq!(found.kind, Kind::Receive);
            assert_eq!(FileId::of(&*found.fd).unwrap(), found.id);
        }
        for (addr, part) in [
            (base, len + 1),
            (base + 1, len),
            (base + 1, usize::MAX),
            (base - 1, 2),
            (8, 1),
        ] {
            assert!(lookup(addr, part).is_none(), "{addr:#x} {part}");
        }
    }

    #[test]
    fn the_end_of_a_file_is_not_inside_even_if_another_follows() {
        let files: Vec<_> = (0..8)
            .map(|_| MemoryFile::create(4096, Kind::Exposed).unwrap())
            .collect();
        for file in &files {
            let (base, len) = (file.as_ptr().addr(), file.len());
            assert!(lookup(base, len + 1).is_none());
            assert!(lookup(base + len - 1, 2).is_none());
            let after = lookup(base + len, 0).map(|found| found.serial);
            assert_ne!(after, Some(lookup(base, len).unwrap().serial));
        }
    }

    #[test]
    fn a_dropped_file_is_forgotten_but_a_backing_keeps_it_open() {
        let file = MemoryFile::create(4096, Kind::Exposed).unwrap();
        // SAFETY: the memory is ours and at least a page long.
        unsafe { file.as_ptr().write(9) };
        let addr = file.as_ptr().addr();
        let backing = lookup(addr, 4096).unwrap();
        drop(file);
        // Another test's file may be at the address by now, but not this one.
        let now = lookup(addr, 1).map(|found| found.serial);
        assert_ne!(now, Some(backing.serial));
        let mapping = map_peer(duplicate(&backing), 4096, Kind::Exposed).unwrap();
        // SAFETY: the mapping is at least a page long and nobody writes to it.
        assert_eq!(unsafe { mapping.as_ptr().read() }, 9);
    }

    #[test]
    fn a_peer_file_of_another_size_or_kind_is_not_mapped() {
        let file = MemoryFile::create(8192, Kind::Exposed).unwrap();
        let backing = lookup(file.as_ptr().addr(), 1).unwrap();
        for len in [0, 1, 4096, 8193, u64::MAX] {
            let error = map_peer(duplicate(&backing), len, Kind::Exposed).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidData, "{len}: {error}");
        }
        let mapping = map_peer(duplicate(&backing), 8192, Kind::Exposed).unwrap();
        assert!(mapping.writable() && mapping.len() == 8192);
        let mapping = map_peer(duplicate(&backing), 8192, Kind::Readable).unwrap();
        assert!(!mapping.writable());
        let error = map_peer(duplicate(&backing), 8192, Kind::Private).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::PermissionDenied);

        // A peer that claims its readable memory to be exposed gets nobody to write to it.
        let file = MemoryFile::create(8192, Kind::Readable).unwrap();
        let backing = lookup(file.as_ptr().addr(), 1).unwrap();
        let error = map_peer(duplicate(&backing), 8192, Kind::Exposed).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::PermissionDenied);
    }

    #[test]
    fn a_file_that_can_be_truncated_is_not_mapped() {
        let unsealed = |seals: libc::c_int| {
            // SAFETY: the name is NUL-terminated; the descriptor made is fresh and given to `File`.
            let file = unsafe {
                let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
                File::from_raw_fd(libc::memfd_create(c"test".as_ptr(), flags))
            };
            file.set_len(4096).unwrap();
            // SAFETY: takes two integers.
            let added = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, seals) };
            assert_eq!(added, 0);
            OwnedFd::from(file)
        };
        for seals in [0, libc::F_SEAL_SHRINK, libc::F_SEAL_GROW, libc::F_SEAL_SEAL] {
            let error = map_peer(unsealed(seals), 4096, Kind::Exposed).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidData, "{seals}: {error}");
        }
        let fixed = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW;
        map_peer(unsealed(fixed), 4096, Kind::Exposed).unwrap();
        let plain = File::open("/proc/self/exe").unwrap();
        let error = map_peer(plain.into(), 4096, Kind::Readable).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData, "{error}");
    }
}
