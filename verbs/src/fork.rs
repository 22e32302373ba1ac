//! Processes that fork.

use ibverbs_sys::Api;

use crate::Error;
use crate::errno;

/// Lets a process that has memory registered with hardware fork. Call it once, before anything else of this crate.
///
/// Without it, on kernels before 5.12, the first write to a page after a fork gives the writer another page than the one that the device knows: the
/// device then reads and writes memory that nobody looks at. With it registered memory is not copied to children at all; a child that touches it
/// is killed by the kernel. What shares a page with it is not there in the child either, so register whole pages ([`Mmap`](crate::Mmap)).
///
/// A child must not use what its parent opened, with or without this. For `soft0` there is nothing to do: its memory files are not inherited.
///
/// # Errors
/// When memory is registered already, or the library refuses. Without a library for hardware there is nothing to do, and that is fine.
#[doc(alias = "ibv_fork_init")]
pub fn fork_init() -> Result<(), Error> {
    match Api::system() {
        Ok(api) => init(api),
        Err(_) => Ok(()),
    }
}

fn init(api: &Api) -> Result<(), Error> {
    // SAFETY: may be called at any time; says so if it is too late.
    errno::check(unsafe { (api.ibv_fork_init)() }).map_err(|e| {
        Error::hinted(
            "ibv_fork_init",
            e,
            "it must be called before the first registration",
        )
    })
}

#[cfg(all(test, feature = "soft"))]
mod tests {
    use super::*;

    unsafe extern "C" fn too_late() -> std::ffi::c_int {
        libc::EINVAL
    }

    #[test]
    fn a_library_that_refuses_is_told() {
        let mut api = *softverbs::api();
        assert!(init(&api).is_ok());
        api.ibv_fork_init = too_late;
        let e = init(&api).unwrap_err();
        assert_eq!(e.raw_os_error(), Some(libc::EINVAL));
        assert!(
            e.to_string().contains("before the first registration"),
            "{e}"
        );
        assert!(fork_init().is_ok());
    }
}
