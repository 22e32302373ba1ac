//! Memory files: memory that peers on this machine can map.
//!
//! Any memory can be registered, and a peer then reaches it by process_vm, a system call per operation. Memory
//! from a [`MemoryFile`] is better: registering a range of it lets peers map the file as its [`Kind`] allows, so
//! that their operations become plain loads and stores. To that end every file is announced, from its creation to its
//! drop, in a list of the process in which `ibv_reg_mr` looks.

use crate::os::memfd::{Mapping, Peers, SealedFile};
use crate::os::pull::FileId;
use parking_lot::Mutex;
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
        let file = SealedFile::create(c"verbatim-memory", len, kind.peers())?;
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
