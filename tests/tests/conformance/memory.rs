//! Registered memory.

use crate::device::{Side, errno_code};
use ibverbs_sys::{ibv_access_flags as Flags, ibv_mr, ibv_sge};
use std::ptr::null_mut;

pub const LOCAL: u32 = Flags::IBV_ACCESS_LOCAL_WRITE.0;
pub const READ: u32 = Flags::IBV_ACCESS_REMOTE_READ.0;
pub const WRITE: u32 = Flags::IBV_ACCESS_REMOTE_WRITE.0;
pub const ATOMIC: u32 = Flags::IBV_ACCESS_REMOTE_ATOMIC.0;
pub const ALL: u32 = LOCAL | READ | WRITE | ATOMIC;

/// Memory and its registration. The memory is reached by its address alone, since the device uses it too.
pub struct Mem {
    side: Side,
    mr: *mut ibv_mr,
    key: u32,
    words: *mut [u64],
}

impl Mem {
    /// `len` bytes, aligned to 8, all zero.
    pub fn new(side: &Side, len: usize, access: u32) -> Mem {
        Mem::try_new(side, len, access).expect("memory can be registered")
    }

    /// The same, or an errno.
    pub fn try_new(side: &Side, len: usize, access: u32) -> Result<Mem, i32> {
        let words = Box::into_raw(vec![0u64; len.div_ceil(8)].into_boxed_slice());
        // SAFETY: the domain is alive, and the memory until `drop`.
        let mr = unsafe { (side.api.ibv_reg_mr)(side.pd, words.cast(), len, access as i32) };
        let error = errno_code();
        if mr.is_null() {
            // SAFETY: made by `into_raw` above, and not registered.
            drop(unsafe { Box::from_raw(words) });
            return Err(error);
        }
        Ok(Mem {
            side: *side,
            mr,
            // SAFETY: the registration is alive.
            key: unsafe { (*mr).lkey },
            words,
        })
    }

    /// With these bytes, for sending.
    pub fn of(side: &Side, bytes: &[u8]) -> Mem {
        let mem = Mem::new(side, bytes.len(), LOCAL);
        mem.fill(0, bytes);
        mem
    }

    pub fn addr(&self) -> u64 {
        self.words.cast::<u8>().addr() as u64
    }

    pub fn lkey(&self) -> u32 {
        self.key
    }

    pub fn rkey(&self) -> u32 {
        // SAFETY: asked for while the registration is alive.
        unsafe { (*self.mr).rkey }
    }

    pub fn sge(&self, offset: usize, len: usize) -> ibv_sge {
        ibv_sge {
            addr: self.addr() + offset as u64,
            length: len as u32,
            lkey: self.key,
        }
    }

    fn at(&self, offset: usize, len: usize) -> *mut u8 {
        assert!(offset + len <= self.words.len() * 8);
        // SAFETY: within the memory.
        unsafe { self.words.cast::<u8>().add(offset) }
    }

    pub fn fill(&self, offset: usize, bytes: &[u8]) {
        let to = self.at(offset, bytes.len());
        // SAFETY: `at` has checked the bounds.
        unsafe { to.copy_from(bytes.as_ptr(), bytes.len()) };
    }

    pub fn get(&self, offset: usize, len: usize) -> Vec<u8> {
        let from = self.at(offset, len);
        // SAFETY: `at` has checked the bounds; volatile, since the device writes here.
        (0..len)
            .map(|i| unsafe { from.add(i).read_volatile() })
            .collect()
    }

    /// As characters.
    pub fn text(&self, offset: usize, len: usize) -> String {
        let shown = |byte: u8| if byte == 0 { '.' } else { byte as char };
        self.get(offset, len).into_iter().map(shown).collect()
    }

    pub fn word(&self) -> u64 {
        u64::from_ne_bytes(self.get(0, 8).try_into().expect("8 bytes"))
    }

    pub fn set_word(&self, word: u64) {
        self.fill(0, &word.to_ne_bytes());
    }

    /// Ends the registration; the memory stays.
    pub fn dereg(&mut self) -> i32 {
        // SAFETY: alive until this succeeds, and null afterwards.
        let result = unsafe { (self.side.api.ibv_dereg_mr)(self.mr) };
        if result == 0 {
            self.mr = null_mut();
        }
        result
    }
}

impl Drop for Mem {
    fn drop(&mut self) {
        if self.mr.is_null() || self.dereg() == 0 {
            // SAFETY: made by `into_raw`, and no longer registered.
            drop(unsafe { Box::from_raw(self.words) });
        }
    }
}
