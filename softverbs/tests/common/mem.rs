//! Registered memory.

use super::{Dev, api};
use ibverbs_sys::*;
use softverbs::memory::{Kind, MemoryFile};
use std::ptr::null_mut;

/// Registered memory.
pub struct Mem {
    pub mr: *mut ibv_mr,
    ptr: *mut u8,
    len: usize,
    _file: Option<MemoryFile>,
    _vec: Vec<u8>,
}

impl Mem {
    /// Plain memory.
    pub fn plain(dev: &Dev, len: usize, access: u32) -> Mem {
        let mut vec = vec![0u8; len];
        Mem::register(dev, vec.as_mut_ptr(), len, access, None, vec)
    }

    /// A memory file.
    pub fn file(dev: &Dev, len: usize, access: u32, kind: Kind) -> Mem {
        let file = MemoryFile::create(len, kind).unwrap();
        Mem::register(dev, file.as_ptr(), len, access, Some(file), Vec::new())
    }

    fn register(
        dev: &Dev,
        ptr: *mut u8,
        len: usize,
        access: u32,
        _file: Option<MemoryFile>,
        _vec: Vec<u8>,
    ) -> Mem {
        let mr = unsafe { (api().ibv_reg_mr)(dev.pd, ptr.cast(), len, access as i32) };
        assert!(!mr.is_null(), "{}", std::io::Error::last_os_error());
        Mem {
            mr,
            ptr,
            len,
            _file,
            _vec,
        }
    }

    pub fn addr(&self) -> u64 {
        self.ptr as u64
    }

    pub fn key(&self) -> u32 {
        unsafe { (*self.mr).lkey }
    }

    pub fn sge(&self, off: usize, len: usize) -> ibv_sge {
        ibv_sge {
            addr: self.addr() + off as u64,
            length: len as u32,
            lkey: self.key(),
        }
    }

    pub fn fill(&self, off: usize, bytes: &[u8]) {
        assert!(off + bytes.len() <= self.len);
        unsafe { std::ptr::copy(bytes.as_ptr(), self.ptr.add(off), bytes.len()) };
    }

    pub fn get(&self, off: usize, len: usize) -> Vec<u8> {
        assert!(off + len <= self.len);
        (off..off + len)
            .map(|i| unsafe { self.ptr.add(i).read_volatile() })
            .collect()
    }

    pub fn dereg(&mut self) {
        if !self.mr.is_null() {
            assert_eq!(unsafe { (api().ibv_dereg_mr)(self.mr) }, 0);
            self.mr = null_mut();
        }
    }
}

impl Drop for Mem {
    fn drop(&mut self) {
        self.dereg();
    }
}
