//! Memory regions: registration, the checks of keys, and giving memory back.
//!
//! A region's entry in the process's own segment is also what local checks read: nobody else can write it.

use crate::layout::MrAdvert;
use crate::memory::{self, Kind};
use crate::process::Process;
use crate::quiet;
use core::sync::atomic::{AtomicU32, Ordering, fence};
use ibverbs_sys::ibv_access_flags;
use std::io;

pub(crate) const LOCAL_WRITE: u32 = ibv_access_flags::IBV_ACCESS_LOCAL_WRITE.0;
pub(crate) const REMOTE_WRITE: u32 = ibv_access_flags::IBV_ACCESS_REMOTE_WRITE.0;
pub(crate) const REMOTE_READ: u32 = ibv_access_flags::IBV_ACCESS_REMOTE_READ.0;
pub(crate) const REMOTE_ATOMIC: u32 = ibv_access_flags::IBV_ACCESS_REMOTE_ATOMIC.0;
/// Any right of a peer's.
pub(crate) const REMOTE: u32 = REMOTE_WRITE | REMOTE_READ | REMOTE_ATOMIC;
/// Flags that change nothing here: the device may always do what they allow.
const HINTS: u32 =
    ibv_access_flags::IBV_ACCESS_RELAXED_ORDERING.0 | ibv_access_flags::IBV_ACCESS_HUGETLB.0;

pub(crate) struct RegionCore {
    process: &'static Process,
    index: usize,
    pub key: u32,
    arena_serial: u64,
}

/// Changes with each registration, so that an old key of a reused entry is not valid again soon.
static TAG: AtomicU32 = AtomicU32::new(1);

impl RegionCore {
    /// `ibv_reg_mr_iova2`.
    ///
    /// # Errors
    ///
    /// `EINVAL`: remote write or atomic without local write, any remote right to a memory file of the receive kind, or a range
    /// that wraps. `EOPNOTSUPP`: a flag of the verbs that
    /// this device has not got (on-demand paging, zero-based, memory window binding). `EFAULT`: not all of it is mapped, or
    /// it is mapped read-only and the device shall write to it.
    /// `ENOMEM`: no entry left.
    pub fn register(
        process: &'static Process,
        pd: u32,
        addr: u64,
        len: u64,
        iova: u64,
        access: u32,
    ) -> io::Result<RegionCore> {
        let errno = |e| io::Error::from_raw_os_error(e);
        if access & (REMOTE_WRITE | REMOTE_ATOMIC) != 0 && access & LOCAL_WRITE == 0 {
            return Err(errno(libc::EINVAL));
        }
        if access & !(LOCAL_WRITE | REMOTE | HINTS) != 0 {
            return Err(errno(libc::EOPNOTSUPP));
        }
        if len == 0 || addr.checked_add(len).is_none() || iova.checked_add(len).is_none() {
            return Err(errno(libc::EINVAL));
        }
        let backing = memory::lookup(addr as usize, len as usize);
        if backing.is_none() {
            // A memory file is mapped here, writable, for as long as it is announced: nothing has to be looked at.
            check_mapped(addr, len)?;
            if access & LOCAL_WRITE != 0 {
                check_writable(addr, len)?;
            }
        }
        if access & REMOTE != 0 && backing.as_ref().is_some_and(|b| b.kind == Kind::Receive) {
            // Peers map it writable, so its promise is that nobody has a key to it.
            return Err(errno(libc::EINVAL));
        }
        let index = process.take_mr().ok_or_else(|| errno(libc::ENOMEM))?;
        let tag = TAG.fetch_add(1, Ordering::Relaxed) & 0xff;
        let key = (index as u32) << 8 | tag;
        let advert = process.segment.mr(index);
        let (arena, serial, off) = match backing {
            Some(backing) => {
                let off = backing.offset;
                let (arena, serial) = process.take_arena(backing);
                (arena, serial, off)
            }
            None => (0, 0, 0),
        };
        advert
            .access
            .store(access & (LOCAL_WRITE | REMOTE), Ordering::Relaxed);
        advert.pd.store(pd, Ordering::Relaxed);
        advert.arena.store(arena, Ordering::Relaxed);
        advert.arena_serial.store(serial, Ordering::Relaxed);
        advert.arena_off.store(off, Ordering::Relaxed);
        advert.iova.store(iova, Ordering::Relaxed);
        advert.len.store(len, Ordering::Relaxed);
        advert.addr.store(addr, Ordering::Relaxed);
        advert.key.store(key, Ordering::Release);
        Ok(RegionCore {
            process,
            index,
            key,
            arena_serial: serial,
        })
    }

    /// Takes the key back and waits until nothing touches the memory any more; `EBUSY` if somebody who is alive but stopped
    /// does. The key is gone either way, and the call can be repeated.
    pub fn invalidate(&self) -> io::Result<()> {
        self.process
            .segment
            .mr(self.index)
            .key
            .store(0, Ordering::Release);
        let access = self
            .process
            .segment
            .mr(self.index)
            .access
            .load(Ordering::Relaxed);
        quiet::region(self.process, self.key, access & !REMOTE_READ != 0)
    }

    /// Gives the entry back after [`invalidate`](Self::invalidate).
    pub fn release(self) {
        self.process.give_arena(self.arena_serial);
        self.process.give_mr(self.index);
    }
}

/// Whether `[addr, addr + len)` is mapped; `mincore` looks without touching.
fn check_mapped(addr: u64, len: u64) -> io::Result<()> {
    const PAGE: u64 = 4096;
    const STEP: u64 = 64 << 20;
    let mut seen = vec![0u8; (STEP.min(len.saturating_add(PAGE)) / PAGE + 2) as usize];
    let end = (addr + len).checked_next_multiple_of(PAGE);
    let end = end.ok_or_else(|| io::Error::from_raw_os_error(libc::EFAULT))?;
    let mut at = addr & !(PAGE - 1);
    while at < end {
        let n = STEP.min(end - at);
        // SAFETY: mincore only writes one byte a page to `seen`, which is large enough.
        if unsafe { libc::mincore(at as *mut _, n as usize, seen.as_mut_ptr()) } != 0 {
            let error = io::Error::last_os_error();
            return Err(if error.raw_os_error() == Some(libc::ENOMEM) {
                io::Error::from_raw_os_error(libc::EFAULT)
            } else {
                error
            });
        }
        at += n;
    }
    Ok(())
}

/// Whether the process may write to all of `[addr, addr + len)`, which is mapped. Only for memory that is not a memory file of
/// ours: reading the list of mappings takes tens of microseconds.
fn check_writable(addr: u64, len: u64) -> io::Result<()> {
    // Without /proc the copy finds out.
    let Ok(maps) = std::fs::read_to_string("/proc/self/maps") else {
        return Ok(());
    };
    if maps.lines().any(|line| denies_writing(line, addr, len)) {
        Err(io::Error::from_raw_os_error(libc::EFAULT))
    } else {
        Ok(())
    }
}

/// Whether a line of /proc/PID/maps is a mapping of some of the range that may not be written to.
fn denies_writing(line: &str, addr: u64, len: u64) -> bool {
    let mapping = || {
        let (range, rest) = line.split_once(' ')?;
        let (from, to) = range.split_once('-')?;
        let number = |hex| u64::from_str_radix(hex, 16).ok();
        Some((number(from)?, number(to)?, rest.as_bytes().get(1)? == &b'w'))
    };
    mapping().is_some_and(|(from, to, writable)| !writable && from < addr + len && addr < to)
}

/// Why a key does not let an access through.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Refused;

/// Checks an access and gives the offset of `addr` in the region: key, protection domain, rights, bounds.
#[inline(always)]
pub(crate) fn check(
    advert: &MrAdvert,
    key: u32,
    pd: u32,
    addr: u64,
    len: u64,
    need: u32,
) -> Result<u64, Refused> {
    if advert.key.load(Ordering::Acquire) != key
        || key == 0
        || advert.pd.load(Ordering::Relaxed) != pd
        || advert.access.load(Ordering::Relaxed) & need != need
    {
        return Err(Refused);
    }
    let off = addr.wrapping_sub(advert.iova.load(Ordering::Relaxed));
    let have = advert.len.load(Ordering::Relaxed);
    // Once more: what was read between belongs to one registration.
    fence(Ordering::Acquire);
    if advert.key.load(Ordering::Relaxed) != key || off > have || len > have - off {
        Err(Refused)
    } else {
        Ok(off)
    }
}

/// The region entry that a key names.
#[inline]
pub(crate) fn index_of(key: u32) -> usize {
    (key >> 8) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_mappings() {
        let line = "7f0000001000-7f0000003000 r--p 00000000 00:1f 1234   /some file";
        let denies = |line: &str, addr, len| denies_writing(line, addr, len);
        assert!(denies(line, 0x7f00_0000_1000, 1));
        assert!(denies(line, 0x7f00_0000_0000, 0x1001));
        assert!(denies(line, 0x7f00_0000_2fff, 10));
        assert!(!denies(line, 0x7f00_0000_0000, 0x1000));
        assert!(!denies(line, 0x7f00_0000_3000, 10));
        assert!(!denies(&line.replace("r--p", "rw-p"), 0x7f00_0000_1000, 1));
        assert!(!denies("rubbish", 0, u64::MAX));
    }
}
