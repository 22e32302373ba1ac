//! A page of memory that both processes have mapped: two words, on lines far apart.

use anyhow::{Context, Result};
use std::fs::File;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;

/// Memory that both processes have mapped.
pub struct Page {
    base: NonNull<u8>,
    /// Kept open, since the other process finds the memory by its number.
    _file: File,
}

impl Page {
    const LEN: usize = 4096;
    /// Of the word that goes back: on another line, and not on that which is fetched together with the first.
    const BACK: usize = 256;

    /// New memory, and the path that the other process finds it by.
    pub fn create() -> Result<(Page, String)> {
        // SAFETY: the name is NUL-terminated.
        let fd = unsafe { libc::memfd_create(c"verbatim-bench".as_ptr(), libc::MFD_CLOEXEC) };
        if fd < 0 {
            return Err(std::io::Error::last_os_error()).context("no memory to share");
        }
        // SAFETY: the kernel has just given us this descriptor.
        let file = File::from(unsafe { OwnedFd::from_raw_fd(fd) });
        file.set_len(Page::LEN as u64)?;
        let path = format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd());
        Ok((Page::map(file)?, path))
    }

    /// What another process has created.
    pub fn open(path: &str) -> Result<Page> {
        let file = File::options()
            .read(true)
            .write(true)
            .open(path)
            .with_context(|| format!("{path}: the other process's memory cannot be opened"))?;
        Page::map(file)
    }

    fn map(file: File) -> Result<Page> {
        // SAFETY: a new mapping, at a place that the kernel chooses.
        let base = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                Page::LEN,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED | libc::MAP_POPULATE,
                file.as_raw_fd(),
                0,
            )
        };
        if base == libc::MAP_FAILED {
            return Err(std::io::Error::last_os_error()).context("shared memory cannot be mapped");
        }
        Ok(Page {
            base: NonNull::new(base.cast()).context("shared memory was mapped nowhere")?,
            _file: file,
        })
    }

    /// The words that go there and back.
    pub fn words(&self) -> (&AtomicU64, &AtomicU64) {
        let word = |offset: usize| {
            // SAFETY: within the mapping, which is page-aligned and lives as long as `self`; both processes use the words as
            // atomics only.
            unsafe { AtomicU64::from_ptr(self.base.as_ptr().add(offset).cast()) }
        };
        (word(0), word(Page::BACK))
    }
}

// SAFETY: the mapping belongs to the process; its words are used as atomics only.
unsafe impl Send for Page {}
// SAFETY: as above.
unsafe impl Sync for Page {}

impl Drop for Page {
    fn drop(&mut self) {
        // SAFETY: mapped by `map`, and the references that `words` gave are gone.
        unsafe { libc::munmap(self.base.as_ptr().cast(), Page::LEN) };
    }
}
