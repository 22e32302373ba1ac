//! Where an arena's memory lies, and in pages of what size. All of it is advice: an arena without is an arena still, and the pool's
//! figures say why.

use crate::stats::NumaPlacement;
use std::fs;
use std::io;

/// madvise(2) of a mapped range.
///
/// # Safety
/// The range is mapped, and the advice neither changes contents nor unmaps in this process.
pub(super) unsafe fn advise(start: *mut u8, len: usize, advice: libc::c_int) -> io::Result<()> {
    // SAFETY: the caller's promise.
    match unsafe { libc::madvise(start.cast(), len, advice) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Puts memory behind a mapped range.
///
/// # Safety
/// The range is mapped.
pub(super) unsafe fn populate(start: *mut u8, len: usize) -> io::Result<()> {
    // SAFETY: the caller's promise; only memory is put behind it.
    match unsafe { advise(start, len, libc::MADV_POPULATE_WRITE) } {
        // Before Linux 5.14: the pages come when they are touched.
        Err(e) if e.raw_os_error() == Some(libc::EINVAL) => Ok(()),
        other => other,
    }
}

const SHMEM_ENABLED: &str = "/sys/kernel/mm/transparent_hugepage/shmem_enabled";

/// Whether the system joins ordinary pages of memory files to huge ones, or why not.
pub(super) fn joins_pages() -> Result<(), String> {
    joins_by(fs::read_to_string(SHMEM_ENABLED).as_deref())
}

/// The same, from the system's setting.
fn joins_by(setting: Result<&str, &io::Error>) -> Result<(), String> {
    let chosen = setting.map(|s| s.split(['[', ']']).nth(1).unwrap_or("").to_owned());
    match chosen.as_deref() {
        Ok("always" | "within_size" | "advise" | "force") => Ok(()),
        Ok(other) => Err(format!(
            "{SHMEM_ENABLED} is \"{other}\"; set it to \"advise\""
        )),
        Err(e) => Err(format!("{SHMEM_ENABLED}: {e}")),
    }
}

/// `MPOL_BIND` of set_mempolicy(2): memory of no other node, or none.
const MPOL_BIND: libc::c_int = 2;
/// As many nodes as the kernel can have on any architecture.
const MOST_NODES: usize = 1024;

/// Makes the range's memory come from one NUMA node. It has no memory behind it yet. See mbind(2).
///
/// # Safety
/// The range is mapped, and begins at a page.
unsafe fn bind(start: *mut u8, len: usize, node: usize) -> io::Result<()> {
    let mut mask = [0u64; MOST_NODES / u64::BITS as usize];
    mask[node / u64::BITS as usize] |= 1 << (node % u64::BITS as usize);
    // One more than there are bits: the kernel takes one off.
    let bits = MOST_NODES + 1;
    // SAFETY: the mask has as many bits as said; only the range's policy is changed.
    let ret = unsafe {
        libc::syscall(
            libc::SYS_mbind,
            start,
            len,
            MPOL_BIND,
            mask.as_ptr(),
            bits,
            0,
        )
    };
    match ret {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

const ONLINE: &str = "/sys/devices/system/node/online";

/// What becomes of the wish for a node, found out with a page of memory.
pub(super) fn numa(node: usize) -> NumaPlacement {
    let unavailable = |why| NumaPlacement::Unavailable { node, why };
    if node >= MOST_NODES {
        return unavailable(format!("no machine has {MOST_NODES} nodes"));
    }
    let Ok(page) = verbs::Mmap::anonymous(crate::size::PAGE) else {
        return unavailable("no memory to try it with".to_owned());
    };
    let (start, len) = (verbs::Memory::as_ptr(&page), verbs::Memory::len(&page));
    // SAFETY: just mapped.
    match unsafe { bind(start, len, node) } {
        Ok(()) => NumaPlacement::Bound { node },
        Err(e) => {
            let online = fs::read_to_string(ONLINE);
            let online = online.as_deref().map_or("not known", str::trim);
            unavailable(match e.raw_os_error() {
                Some(libc::ENOSYS) => "this kernel knows no NUMA nodes".to_owned(),
                Some(libc::EPERM) => "a filter of system calls forbids mbind".to_owned(),
                _ => format!("mbind: {e}; nodes with memory that are online: {online}"),
            })
        }
    }
}

/// Binds an arena as was found possible.
///
/// # Safety
/// As [`bind`].
pub(super) unsafe fn place(start: *mut u8, len: usize, numa: &NumaPlacement) {
    if let NumaPlacement::Bound { node } = *numa {
        // SAFETY: the caller's promise. It worked when the pool was made; if it does not now (say the process's own nodes were changed),
        // the memory comes from elsewhere.
        let _ = unsafe { bind(start, len, node) };
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn the_system_s_setting_is_understood() {
        let of = |s| joins_by(Ok(s));
        assert_eq!(of("always within_size [advise] never deny force\n"), Ok(()));
        let why = of("always within_size advise [never] deny force\n").unwrap_err();
        assert!(why.contains("\"never\""), "{why}");
        let gone = io::Error::from_raw_os_error(libc::ENOENT);
        assert!(joins_by(Err(&gone)).is_err());
    }

    #[test]
    fn a_node_is_bound_to_or_it_is_said_why_not() {
        match numa(0) {
            NumaPlacement::Bound { node: 0 } => {}
            // Kernels without NUMA, and filters.
            NumaPlacement::Unavailable { why, .. } => assert!(
                why.contains("knows no NUMA") || why.contains("forbids mbind"),
                "{why}"
            ),
            other => panic!("{other:?}"),
        }
        for node in [MOST_NODES - 1, MOST_NODES, usize::MAX] {
            assert!(matches!(numa(node), NumaPlacement::Unavailable { node: n, .. } if n == node));
        }
    }
}
