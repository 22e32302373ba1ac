//! Mapping what `ibv_reg_dmabuf_mr` is given.
//!
//! This device is a processor, so it can use such memory only where the exporter lets processors map it (dma_buf(9); udmabuf and most memory
//! of graphics cards in system memory do). In their place it takes memory files that are sealed against shrinking, so that programs for
//! dmabufs can be tried where there are none. Other files are refused: they could be truncated, which would make touching
//! them a signal.

use super::memfd::Mapping;
use super::pull::stat;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd};

/// `DMA_BUF_MAGIC` of linux/magic.h.
const DMA_BUF_MAGIC: u32 = 0x444d_4142;

/// Bytes of a dmabuf, mapped until dropped.
#[derive(Debug)]
pub(crate) struct DmabufMapping {
    mapping: Mapping,
    skip: usize,
}

impl DmabufMapping {
    /// Maps `len` bytes of it from `offset` on.
    ///
    /// # Errors
    /// `EINVAL` if it is neither a dmabuf nor a sealed memory file, or the bytes do not lie within; what mmap(2) says.
    pub(crate) fn new(
        fd: BorrowedFd<'_>,
        offset: u64,
        len: usize,
        writable: bool,
    ) -> io::Result<DmabufMapping> {
        let invalid = || io::Error::from_raw_os_error(libc::EINVAL);
        if !is_dmabuf(fd)? && !cannot_shrink(fd) {
            return Err(invalid());
        }
        let stat = stat(fd)?;
        let end = offset.checked_add(len as u64).ok_or_else(invalid)?;
        if len == 0 || u64::try_from(stat.st_size).is_ok_and(|size| end > size) {
            return Err(invalid());
        }
        // That of huge pages is theirs.
        let page = u64::try_from(stat.st_blksize).unwrap_or(0).max(4096);
        let start = offset - offset % page;
        let whole = usize::try_from((end - start).next_multiple_of(page)).map_err(|_| invalid())?;
        Ok(DmabufMapping {
            mapping: Mapping::part(fd, start, whole, writable)?,
            skip: (offset - start) as usize,
        })
    }

    /// Address of the first byte.
    pub(crate) fn addr(&self) -> u64 {
        (self.mapping.as_ptr().addr() + self.skip) as u64
    }
}

fn is_dmabuf(fd: BorrowedFd<'_>) -> io::Result<bool> {
    let mut of = MaybeUninit::<libc::statfs>::uninit();
    // SAFETY: the kernel looks whether the descriptor is one, and writes at most one `struct statfs`.
    if unsafe { libc::fstatfs(fd.as_raw_fd(), of.as_mut_ptr()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call succeeded and so filled it.
    let of = unsafe { of.assume_init() };
    Ok(of.f_type as u32 == DMA_BUF_MAGIC)
}

fn cannot_shrink(fd: BorrowedFd<'_>) -> bool {
    // SAFETY: takes two integers.
    let seals = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_GET_SEALS) };
    seals >= 0 && seals & libc::F_SEAL_SHRINK != 0
}
