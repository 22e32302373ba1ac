//! Arenas from a protection domain: sealed memory files, registered whole.

use crate::Kind;
use crate::arena::{ArenaError, ArenaMemory, ArenaSource};
use crate::stats::HugePages;
use std::fs;
use std::io;
use std::ptr::NonNull;
use verbs::{Access, LKey, MemoryFile, MemoryKind, Pd, Region, RemoteRegion};

/// Registers memory files with a protection domain.
#[derive(Debug)]
pub(crate) struct VerbsSource {
    pd: Pd,
    huge_pages: HugePages,
    trusted_peers: bool,
}

impl VerbsSource {
    pub fn new(pd: Pd, huge_pages: bool, trusted_peers: bool) -> Self {
        VerbsSource {
            pd,
            huge_pages: if huge_pages {
                huge_pages_of(fs::read_to_string(SHMEM_ENABLED).as_deref())
            } else {
                HugePages::NotAsked
            },
            trusted_peers,
        }
    }

    fn access(&self, kind: Kind) -> Access {
        let remote = match kind {
            _ if !self.trusted_peers => Access::empty(),
            Kind::Private | Kind::Receive => Access::empty(),
            // A `Buf` of it can be written through: what peers may read is leased, frozen, with a key of its own.
            Kind::Readable => Access::empty(),
            Kind::Exposed => Access::REMOTE_READ | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC,
        };
        Access::LOCAL_WRITE | remote
    }
}

impl ArenaSource for VerbsSource {
    fn create(&self, kind: Kind, len: usize) -> Result<Box<dyn ArenaMemory>, ArenaError> {
        let file_kind = match kind {
            Kind::Private => MemoryKind::Private,
            Kind::Readable => MemoryKind::Readable,
            Kind::Receive => MemoryKind::Receive,
            Kind::Exposed => MemoryKind::Exposed,
        };
        let file = MemoryFile::create(len, file_kind).map_err(ArenaError::Create)?;
        let (start, len) = (verbs::Memory::as_ptr(&file), verbs::Memory::len(&file));
        // Both are advice: where the system does not know it, the arena works without.
        let _ = advise(start, len, libc::MADV_DONTFORK);
        if self.huge_pages == HugePages::Used {
            let _ = advise(start, len, libc::MADV_HUGEPAGE);
        }
        let region = self
            .pd
            .region(file, self.access(kind))
            .map_err(|e| ArenaError::Register(e.into_error()))?;
        Ok(Box::new(Registered(region)))
    }

    fn huge_pages(&self) -> HugePages {
        self.huge_pages.clone()
    }
}

#[derive(Debug)]
struct Registered(Region<MemoryFile>);

// SAFETY: a memory file is page-aligned, zeroed memory that only this process maps writable by itself; the region keeps it
// mapped until it is dropped, and hands out no references.
unsafe impl ArenaMemory for Registered {
    fn as_ptr(&self) -> NonNull<u8> {
        NonNull::new(self.0.as_ptr()).expect("registered memory has an address")
    }

    fn len(&self) -> usize {
        self.0.len()
    }

    fn lkey(&self) -> LKey {
        self.0.lkey()
    }

    fn remote(&self) -> Option<RemoteRegion> {
        self.0.remote()
    }

    fn populate(&self, offset: usize, len: usize) -> io::Result<()> {
        assert!(offset + len <= self.0.len());
        match advise(
            self.0.as_ptr().wrapping_add(offset),
            len,
            libc::MADV_POPULATE_WRITE,
        ) {
            // Before Linux 5.14: the pages come when they are touched.
            Err(e) if e.raw_os_error() == Some(libc::EINVAL) => Ok(()),
            other => other,
        }
    }
}

/// madvise(2) of a part of a memory file that is mapped.
fn advise(start: *mut u8, len: usize, advice: libc::c_int) -> io::Result<()> {
    // SAFETY: none of the advices used here changes contents or unmaps in this process.
    match unsafe { libc::madvise(start.cast(), len, advice) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

const SHMEM_ENABLED: &str = "/sys/kernel/mm/transparent_hugepage/shmem_enabled";

/// Whether memory files can have huge pages, from the system's setting.
fn huge_pages_of(setting: Result<&str, &io::Error>) -> HugePages {
    let chosen = setting.map(|s| s.split(['[', ']']).nth(1).unwrap_or("").to_owned());
    match chosen.as_deref() {
        Ok("always" | "within_size" | "advise" | "force") => HugePages::Used,
        Ok(other) => HugePages::Unavailable(format!(
            "{SHMEM_ENABLED} is \"{other}\"; set it to \"advise\""
        )),
        Err(e) => HugePages::Unavailable(format!("{SHMEM_ENABLED}: {e}")),
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn the_system_s_setting_is_understood() {
        let of = |s| huge_pages_of(Ok(s));
        assert_eq!(
            of("always within_size [advise] never deny force\n"),
            HugePages::Used
        );
        let HugePages::Unavailable(why) = of("always within_size advise [never] deny force\n")
        else {
            panic!("never means never")
        };
        assert!(why.contains("\"never\""), "{why}");
        let gone = io::Error::from_raw_os_error(libc::ENOENT);
        assert!(matches!(
            huge_pages_of(Err(&gone)),
            HugePages::Unavailable(_)
        ));
    }
}
