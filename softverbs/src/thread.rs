//! Threads of the device's own.

use std::io;
use std::thread::JoinHandle;

/// Starts a thread that takes no signals: they are the application's, whose threads handle or wait for them.
pub(crate) fn spawn(name: &str, f: impl FnOnce() + Send + 'static) -> io::Result<JoinHandle<()>> {
    let mut all = core::mem::MaybeUninit::<libc::sigset_t>::uninit();
    let mut before = core::mem::MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: both sets are local; sigfillset initialises the first, pthread_sigmask the second.
    unsafe {
        libc::sigfillset(all.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr());
    }
    // The new thread inherits the mask.
    let thread = std::thread::Builder::new().name(name.into()).spawn(f);
    // SAFETY: the set was filled above.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), core::ptr::null_mut()) };
    thread
}
