//! Anonymous memory, by the page.

use std::fmt;
use std::io;
use std::ptr::NonNull;

use crate::{Memory, MemoryMut};

/// Zeroed anonymous memory, private to this process, starting at a page.
#[doc(alias = "mmap")]
pub struct Mmap {
    ptr: NonNull<u8>,
    len: usize,
}

// SAFETY: the mapping is owned by the value and can be unmapped by any thread.
unsafe impl Send for Mmap {}
// SAFETY: `&Mmap` reads nothing but its own fields.
unsafe impl Sync for Mmap {}

impl Mmap {
    /// Maps `len` bytes.
    ///
    /// # Errors
    /// `InvalidInput` for a length of 0; else what `mmap(2)` says.
    pub fn anonymous(len: usize) -> io::Result<Mmap> {
        if len == 0 {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "a mapping must not be empty",
            ));
        }
        Mmap::map(len, 0)
    }

    /// Addresses that nothing else here gets, and that are no memory: touching them is a fault.
    pub(crate) fn reserve(len: usize) -> io::Result<Mmap> {
        let map = Mmap::map(len, libc::MAP_NORESERVE)?;
        // SAFETY: the map just made, which nobody uses yet.
        match unsafe { libc::mprotect(map.ptr.as_ptr().cast(), len, libc::PROT_NONE) } {
            0 => Ok(map),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Maps `len` bytes, which are not 0, with further flags.
    pub(crate) fn map(len: usize, flags: libc::c_int) -> io::Result<Mmap> {
        // SAFETY: a new anonymous mapping at an address of the kernel's choice touches nothing that exists.
        let ptr = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                len,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | flags,
                -1,
                0,
            )
        };
        if ptr == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        NonNull::new(ptr.cast())
            .map(|ptr| Mmap { ptr, len })
            .ok_or_else(|| io::Error::other("mmap returned address 0"))
    }
}

impl Drop for Mmap {
    fn drop(&mut self) {
        // SAFETY: exactly the mapping made above; whoever used it has given it up with the value.
        unsafe { libc::munmap(self.ptr.as_ptr().cast(), self.len) };
    }
}

impl fmt::Debug for Mmap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Mmap({} bytes at {:p})", self.len, self.ptr)
    }
}

// SAFETY: mapped and zeroed until dropped, wherever the value is; private to the process.
unsafe impl Memory for Mmap {
    fn as_ptr(&self) -> *mut u8 {
        self.ptr.as_ptr()
    }
    fn len(&self) -> usize {
        self.len
    }
}
// SAFETY: nothing else points into the mapping.
unsafe impl MemoryMut for Mmap {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths() {
        assert_eq!(
            Mmap::anonymous(0).unwrap_err().kind(),
            io::ErrorKind::InvalidInput
        );
        assert!(Mmap::anonymous(usize::MAX).is_err());
        let m = Mmap::anonymous(5000).unwrap();
        assert_eq!((m.len(), m.as_ptr() as usize % 4096), (5000, 0));
    }
}
