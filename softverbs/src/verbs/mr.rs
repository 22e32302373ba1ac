//! Memory regions.

use super::context::{Pd, context, pd};
use super::{fail, null, rc};
use crate::faults::{self, Verb};
use crate::os::dmabuf::DmabufMapping;
use crate::region::{LOCAL_WRITE, RegionCore};
use core::ffi::{c_int, c_uint, c_void};
use core::sync::atomic::Ordering;
use ibverbs_sys::*;
use std::io;
use std::os::fd::BorrowedFd;

#[repr(C)]
struct Mr {
    mr: ibv_mr,
    region: RegionCore,
    /// What of a dmabuf this device maps. Goes after the region.
    _mapping: Option<DmabufMapping>,
}

/// What is to be registered.
enum Memory<'a> {
    Mapped(*mut c_void),
    Dmabuf { fd: BorrowedFd<'a>, offset: u64 },
}

unsafe fn register(
    parent: *mut ibv_pd,
    of: Memory<'_>,
    length: usize,
    iova: u64,
    access: u32,
) -> *mut ibv_mr {
    // SAFETY: module invariant of `verbs`.
    let (context, pd): (_, &Pd) = unsafe { (context((*parent).context), pd(parent)) };
    let made = fail(Verb::RegMr).and_then(|()| {
        let (addr, mapping) = match of {
            Memory::Mapped(addr) => (addr as u64, None),
            Memory::Dmabuf { fd, offset } => {
                let writable = access & LOCAL_WRITE != 0;
                let mapping = DmabufMapping::new(fd, offset, length, writable)?;
                (mapping.addr(), Some(mapping))
            }
        };
        let (process, length) = (context.process, length as u64);
        let region = RegionCore::register(process, pd.id, addr, length, iova, access)?;
        Ok((region, mapping))
    });
    match made {
        Err(error) => null(&error),
        Ok((region, _mapping)) => {
            pd.users.fetch_add(1, Ordering::Relaxed);
            let mr = ibv_mr {
                // SAFETY: module invariant of `verbs`.
                context: unsafe { (*parent).context },
                pd: parent,
                addr: match of {
                    Memory::Mapped(addr) => addr,
                    // As libibverbs has it.
                    Memory::Dmabuf { offset, .. } => offset as *mut c_void,
                },
                length,
                handle: region.key >> 8,
                lkey: region.key,
                rkey: region.key,
            };
            let made = Mr {
                mr,
                region,
                _mapping,
            };
            Box::into_raw(Box::new(made)).cast()
        }
    }
}

pub(super) unsafe extern "C" fn reg_mr(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    access: c_int,
) -> *mut ibv_mr {
    // SAFETY: module invariant of `verbs`.
    unsafe { register(pd, Memory::Mapped(addr), length, addr as u64, access as u32) }
}

pub(super) unsafe extern "C" fn reg_mr_iova(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: c_int,
) -> *mut ibv_mr {
    // SAFETY: module invariant of `verbs`.
    unsafe { register(pd, Memory::Mapped(addr), length, iova, access as u32) }
}

pub(super) unsafe extern "C" fn reg_mr_iova2(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: c_uint,
) -> *mut ibv_mr {
    // SAFETY: module invariant of `verbs`.
    unsafe { register(pd, Memory::Mapped(addr), length, iova, access) }
}

pub(super) unsafe extern "C" fn reg_dmabuf_mr(
    pd: *mut ibv_pd,
    offset: u64,
    length: usize,
    iova: u64,
    fd: c_int,
    access: c_int,
) -> *mut ibv_mr {
    if fd < 0 {
        return null(&io::Error::from_raw_os_error(libc::EBADF));
    }
    // SAFETY: the caller's, and open during the call; if it is not, the kernel says so.
    let fd = unsafe { BorrowedFd::borrow_raw(fd) };
    // SAFETY: module invariant of `verbs`.
    unsafe {
        register(
            pd,
            Memory::Dmabuf { fd, offset },
            length,
            iova,
            access as u32,
        )
    }
}

pub(super) unsafe extern "C" fn dereg_mr(plain: *mut ibv_mr) -> c_int {
    if let Some(errno) = faults::verb(Verb::DeregMr) {
        return errno;
    }
    // SAFETY: module invariant of `verbs`.
    if let Err(error) = unsafe { &(*plain.cast::<Mr>()).region }.invalidate() {
        return rc(Err(error));
    }
    // SAFETY: as above; nothing touches the memory any more.
    let mr = unsafe { Box::from_raw(plain.cast::<Mr>()) };
    // SAFETY: the domain outlives its regions (it counts them).
    unsafe { pd(mr.mr.pd) }
        .users
        .fetch_sub(1, Ordering::Release);
    mr.region.release();
    0
}
