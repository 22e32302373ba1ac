//! Memory of huge pages.

use std::io;

use crate::Mmap;

/// Sizes of huge pages; which of them a machine has, its kernel says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum HugePageSize {
    /// 2 MiB.
    Mib2,
    /// 1 GiB.
    Gib1,
}

impl HugePageSize {
    /// In bytes.
    pub const fn bytes(self) -> usize {
        1 << self.log()
    }

    const fn log(self) -> u32 {
        match self {
            HugePageSize::Mib2 => 21,
            HugePageSize::Gib1 => 30,
        }
    }

    /// Pages of this size that the kernel has set aside, and how many of them are free; `None` when it has no such size.
    fn pages(self) -> Option<(u64, u64)> {
        let count = |what: &str| {
            let kib = self.bytes() >> 10;
            let path = format!("/sys/kernel/mm/hugepages/hugepages-{kib}kB/{what}_hugepages");
            std::fs::read_to_string(path).ok()?.trim().parse().ok()
        };
        Some((count("nr")?, count("free")?))
    }
}

/// There are not as many huge pages as asked for.
#[derive(Debug, thiserror::Error)]
#[error(
    "{pages} huge pages of {} MiB could not be mapped: {source} ({}; set more aside: write their number to {}, for one NUMA node to the \
     same below /sys/devices/system/node/node<N>, or boot with hugepagesz={}M hugepages=<number>; or use ordinary pages)",
    .size.bytes() >> 20, set_aside(*.there_are), where_to(*.size), .size.bytes() >> 20
)]
#[non_exhaustive]
pub struct HugePageError {
    /// Size of the pages.
    pub size: HugePageSize,
    /// How many were asked for.
    pub pages: usize,
    /// How many the kernel has set aside, and how many of them are free; `None` when it has none of this size.
    pub there_are: Option<(u64, u64)>,
    /// What the kernel said.
    pub source: io::Error,
}

fn where_to(size: HugePageSize) -> String {
    let file = format!("hugepages/hugepages-{}kB/nr_hugepages", size.bytes() >> 10);
    match size {
        HugePageSize::Mib2 => format!("/proc/sys/vm/nr_hugepages or /sys/kernel/mm/{file}"),
        HugePageSize::Gib1 => format!("/sys/kernel/mm/{file}"),
    }
}

fn set_aside(pages: Option<(u64, u64)>) -> String {
    match pages {
        None => "this kernel has no pages of that size".to_owned(),
        Some((all, free)) => {
            format!("{all} are set aside, of which {free} are free and may be promised to others")
        }
    }
}

impl HugePageError {
    /// For `len` bytes.
    pub(crate) fn new(len: usize, size: HugePageSize, source: io::Error) -> HugePageError {
        HugePageError {
            size,
            pages: len.div_ceil(size.bytes()),
            there_are: size.pages(),
            source,
        }
    }
}

impl Mmap {
    /// Maps at least `len` bytes of huge pages, zeroed; the length is rounded up to whole pages.
    ///
    /// # Errors
    /// [`HugePageError`] says how many there are. They are promised here, so that touching them later does not fail.
    #[doc(alias = "MAP_HUGETLB")]
    pub fn huge(len: usize, size: HugePageSize) -> Result<Mmap, HugePageError> {
        let refused = |source| HugePageError::new(len, size, source);
        if len == 0 {
            let empty = io::Error::new(io::ErrorKind::InvalidInput, "a mapping must not be empty");
            return Err(refused(empty));
        }
        let whole = len
            .checked_next_multiple_of(size.bytes())
            .ok_or_else(|| refused(io::Error::from_raw_os_error(libc::ENOMEM)))?;
        let flags = libc::MAP_HUGETLB | (size.log() << libc::MAP_HUGE_SHIFT) as libc::c_int;
        Mmap::map(whole, flags).map_err(refused)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Memory;

    #[test]
    fn there_are_some_or_the_error_says_how_many() {
        for size in [HugePageSize::Mib2, HugePageSize::Gib1] {
            match Mmap::huge(1, size) {
                Ok(map) => {
                    assert_eq!(
                        (map.len(), map.as_ptr().addr() % size.bytes()),
                        (size.bytes(), 0)
                    );
                    // SAFETY: mapped and nobody else's.
                    unsafe { map.as_ptr().add(size.bytes() - 1).write(1) };
                }
                Err(e) => {
                    let text = e.to_string();
                    assert!(
                        text.contains("1 huge pages of") && text.contains("/nr_hugepages"),
                        "{text}"
                    );
                    assert!(
                        text.contains("set aside") || text.contains("no pages of that size"),
                        "{text}"
                    );
                }
            }
            // More than any machine has, and more than there are addresses.
            for len in [1 << 46, usize::MAX] {
                let e = Mmap::huge(len, size).unwrap_err();
                assert_eq!(e.pages, len.div_ceil(size.bytes()));
            }
            let e = Mmap::huge(0, size).unwrap_err();
            assert_eq!(e.source.kind(), io::ErrorKind::InvalidInput);
        }
    }
}
