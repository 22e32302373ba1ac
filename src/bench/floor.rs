//! The floor: one cache line each way, in memory that both processes have mapped.

use anyhow::{Context, Result};
use std::fs::File;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::measure::{Figures, Group, serial};
use super::spin::Spin;

/// One end.
pub struct Floor {
    page: Page,
    /// What the end that measures wrote last, or what the other end saw last.
    last: u64,
}

/// Ends a round.
const END: u64 = u64::MAX;

impl Floor {
    /// The end that measures, and the path that the other one finds the memory by.
    pub fn create() -> Result<(Floor, String)> {
        // SAFETY: the name is NUL-terminated.
        let fd = unsafe { libc::memfd_create(c"verbatim-bench".as_ptr(), libc::MFD_CLOEXEC) };
        if fd < 0 {
            return Err(std::io::Error::last_os_error()).context("no memory to share");
        }
        // SAFETY: the kernel has just given us this descriptor.
        let file = File::from(unsafe { OwnedFd::from_raw_fd(fd) });
        file.set_len(Page::LEN as u64)?;
        let path = format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd());
        let page = Page::map(file)?;
        Ok((Floor { page, last: 0 }, path))
    }

    /// The end that answers.
    pub fn open(path: &str) -> Result<Floor> {
        let file = File::options()
            .read(true)
            .write(true)
            .open(path)
            .with_context(|| format!("{path}: the other process's memory cannot be opened"))?;
        Ok(Floor {
            page: Page::map(file)?,
            last: 0,
        })
    }

    /// Answers until the round ends.
    pub fn serve(&mut self) {
        let (there, back) = self.page.words();
        loop {
            let mut spin = Spin::new();
            self.last = loop {
                let seen = there.load(Ordering::Acquire);
                if seen != self.last {
                    break seen;
                }
                spin.idle();
            };
            if self.last == END {
                return;
            }
            back.store(self.last, Ordering::Release);
        }
    }

    /// Measures round trips; the other end is in [`serve`](Self::serve), or about to be.
    pub fn round(&mut self, limit: Duration) -> Result<Figures> {
        let (there, back) = self.page.words();
        let figures = serial(limit, Group::Sixteen, || {
            self.last += 1;
            there.store(self.last, Ordering::Release);
            let mut spin = Spin::new();
            while back.load(Ordering::Acquire) != self.last {
                spin.idle();
            }
            Ok(())
        });
        there.store(END, Ordering::Release);
        figures
    }
}

/// Memory that both processes have mapped.
struct Page {
    base: NonNull<u8>,
    /// Kept open, since the other process finds the memory by its number.
    _file: File,
}

impl Page {
    const LEN: usize = 4096;
    /// Of the word that goes back: on another line, and not on that which is fetched together with the first.
    const BACK: usize = 256;

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
    fn words(&self) -> (&AtomicU64, &AtomicU64) {
        let word = |offset: usize| {
            // SAFETY: within the mapping, which is page-aligned and lives as long as `self`; both processes use the words as
            // atomics only.
            unsafe { AtomicU64::from_ptr(self.base.as_ptr().add(offset).cast()) }
        };
        (word(0), word(Page::BACK))
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        // SAFETY: mapped by `map`, and the references that `words` gave are gone.
        unsafe { libc::munmap(self.base.as_ptr().cast(), Page::LEN) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;

    #[test]
    fn rounds_end_and_others_can_follow() {
        let (mut here, path) = Floor::create().unwrap();
        let (say, hear) = channel();
        let there = std::thread::spawn(move || {
            let mut there = Floor::open(&path).unwrap();
            for _ in 0..3 {
                there.serve();
                say.send(()).unwrap();
            }
        });
        for _ in 0..3 {
            let figures = here.round(Duration::from_millis(1)).unwrap();
            assert!(figures.p50_ns > 0.0 && figures.p99_ns > 0.0);
            hear.recv().unwrap();
        }
        there.join().unwrap();
    }
}
