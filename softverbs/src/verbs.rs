//! The verbs as C functions over the engine: objects as libibverbs lays them out, and the table of functions.
//!
//! Each object is a box that begins with the C structure, so that a pointer to one is a pointer to the other. Invariant of
//! all functions here: pointers come from the matching create function and were not destroyed, as the manual pages ask of
//! every caller; that is what each `unsafe` block relies on unless it says more.

mod ah;
mod context;
mod cq;
mod cq_ex;
mod events;
mod mr;
mod names;
mod qp;
mod qp_ex;
mod query;
mod srq;
mod table;
mod unsupported;

pub(crate) use ah::address;
pub use table::api;

use crate::faults::{self, Verb};
use crate::os::errno;
use std::io;

/// The injected failure of a verb, if there is one.
fn fail(verb: Verb) -> io::Result<()> {
    faults::verb(verb).map_or(Ok(()), |errno| Err(io::Error::from_raw_os_error(errno)))
}

/// Sets errno and returns NULL, as most create functions do on failure.
fn null<T>(error: &io::Error) -> *mut T {
    set_errno(code(error));
    core::ptr::null_mut()
}

fn set_errno(errno: i32) {
    // SAFETY: the address of this thread's errno is always valid.
    unsafe { *libc::__errno_location() = errno };
}

/// The errno that an error stands for.
fn code(error: &io::Error) -> i32 {
    errno(error).unwrap_or(match error.kind() {
        io::ErrorKind::OutOfMemory => libc::ENOMEM,
        io::ErrorKind::PermissionDenied => libc::EACCES,
        io::ErrorKind::InvalidInput => libc::EINVAL,
        io::ErrorKind::NotFound => libc::ENOENT,
        io::ErrorKind::NotADirectory => libc::ENOTDIR,
        io::ErrorKind::StorageFull => libc::ENOSPC,
        _ => libc::EIO,
    })
}

/// 0, or the errno.
fn rc(result: io::Result<()>) -> i32 {
    result.map_or_else(|e| code(&e), |()| 0)
}
