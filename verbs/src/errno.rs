//! Errors of the verbs as the C library reports them: an errno as the result, or -1 or NULL with `errno` set.
//!
//! `ibverbs-sys` documents which verb uses which; the helpers here take either, because providers have been seen to mix them.

use std::ffi::c_int;
use std::io;

/// Result of a verb that returns 0 or an errno (or -1 with `errno` set).
#[inline]
pub(crate) fn check(ret: c_int) -> io::Result<()> {
    if ret == 0 { Ok(()) } else { Err(failed(ret)) }
}

#[cold]
pub(crate) fn failed(ret: c_int) -> io::Error {
    if ret == -1 {
        io::Error::last_os_error()
    } else {
        io::Error::from_raw_os_error(ret.wrapping_abs())
    }
}

/// The errno of a failed post.
#[cold]
pub(crate) fn number(ret: c_int) -> c_int {
    failed(ret).raw_os_error().unwrap_or(ret)
}

/// What a failed post means: the errno, if the library names the request at `wr` as refused.
///
/// Some (rxe, siw) put the request into the queue before they tell the kernel, and report a failure of telling without a name: that
/// request is in the queue, so its memory must stay there.
#[cold]
pub(crate) fn refused<R>(ret: c_int, bad: *const R, wr: *const R) -> Option<c_int> {
    std::ptr::eq(bad, wr).then(|| number(ret))
}

/// Result of a verb that returns an object, or NULL with `errno` set.
pub(crate) fn object<T>(ptr: *mut T) -> io::Result<std::ptr::NonNull<T>> {
    std::ptr::NonNull::new(ptr).ok_or_else(io::Error::last_os_error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_conventions_are_understood() {
        assert!(check(0).is_ok());
        assert_eq!(
            check(libc::EINVAL).unwrap_err().raw_os_error(),
            Some(libc::EINVAL)
        );
        assert_eq!(
            check(-libc::EBUSY).unwrap_err().raw_os_error(),
            Some(libc::EBUSY)
        );
        // SAFETY: sets this thread's errno.
        unsafe { *libc::__errno_location() = libc::ENOMEM };
        assert_eq!(check(-1).unwrap_err().raw_os_error(), Some(libc::ENOMEM));
    }
}
