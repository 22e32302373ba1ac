//! Maps of files: memory that others can write.

use crate::adopt::CellMemory;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::ptr::NonNull;

/// A part of a file, mapped for reading and writing and shared with everybody else who has the file: an ordinary one, one on
/// hugetlbfs, a memory file.
///
/// Others can write it, so it is adopted as cells ([`Pool::adopt`](crate::Pool::adopt)). If the file is truncated, touching what is gone
/// ends the process (SIGBUS); what a device does then is the device's matter.
///
/// ```no_run
/// # use mempool::{Pool, SharedMap};
/// # use std::fs::File;
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let pd = verbs::Device::open_spec("soft0")?.alloc_pd()?;
/// let pool = Pool::builder(&pd).build()?;
/// let file = File::options().read(true).write(true).open("data")?;
/// let cells = pool.adopt(SharedMap::of(&file, 0, 1 << 20)?)?; // can be sent, leased, read and written as cells
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct SharedMap {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: the map is owned by the value, and can be unmapped by any thread.
unsafe impl Send for SharedMap {}
// SAFETY: `&SharedMap` reads nothing but its own fields.
unsafe impl Sync for SharedMap {}

impl SharedMap {
    /// Maps `len` bytes of `file` from `offset` on, which is a multiple of the page.
    ///
    /// # Errors
    /// `InvalidInput` for a length of 0, and for what does not lie within the file; else what `mmap(2)` says, `EACCES` for a file that is
    /// not open for reading and writing.
    #[doc(alias = "mmap")]
    pub fn of(file: &File, offset: u64, len: usize) -> io::Result<SharedMap> {
        let invalid = |why: String| io::Error::new(io::ErrorKind::InvalidInput, why);
        if len == 0 {
            return Err(invalid("a map must not be empty".to_owned()));
        }
        let size = file.metadata()?.len();
        if offset.checked_add(len as u64).is_none_or(|end| end > size) {
            return Err(invalid(format!(
                "{len} bytes from {offset} on do not lie within the file's {size}"
            )));
        }
        let at = libc::off_t::try_from(offset).map_err(|e| invalid(e.to_string()))?;
        // SAFETY: a new map at an address of the kernel's choice touches nothing that exists.
        let start = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                len,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                file.as_raw_fd(),
                at,
            )
        };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let start = NonNull::new(start.cast());
        let start = start.ok_or_else(|| io::Error::other("mmap returned address 0"))?;
        Ok(SharedMap { start, len })
    }
}

impl Drop for SharedMap {
    fn drop(&mut self) {
        // SAFETY: exactly the map made above; whoever used it has given it up with the value.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.len) };
    }
}

// SAFETY: mapped until dropped, wherever the value is; no references are made to it here.
unsafe impl CellMemory for SharedMap {
    fn start(&self) -> *mut u8 {
        self.start.as_ptr()
    }
    fn bytes(&self) -> usize {
        self.len
    }
}
