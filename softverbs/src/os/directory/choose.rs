//! Which folder is used, from the environment.

use super::DirectoryError;
use std::ffi::{CString, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Which folder to use, and why. Everything it depends on is handed in.
pub(super) fn choose(
    verbatim: Option<OsString>,
    xdg: Option<OsString>,
    usable: impl Fn(&Path) -> bool,
) -> Result<(PathBuf, String), DirectoryError> {
    let set = |value: Option<OsString>| value.filter(|value| !value.is_empty());
    if let Some(path) = set(verbatim).map(PathBuf::from) {
        if path.is_relative() {
            return Err(DirectoryError::Relative { path });
        }
        return Ok((path, "VERBATIM_DIR is set".to_owned()));
    }
    let why = match set(xdg).map(PathBuf::from) {
        Some(path) if path.is_absolute() && usable(&path) => {
            return Ok((
                path,
                "XDG_RUNTIME_DIR is set and VERBATIM_DIR is not".to_owned(),
            ));
        }
        Some(path) => format!(
            "VERBATIM_DIR is not set and XDG_RUNTIME_DIR={} cannot be used",
            path.display()
        ),
        None => "neither VERBATIM_DIR nor XDG_RUNTIME_DIR is set".to_owned(),
    };
    let shm = Path::new("/dev/shm");
    if usable(shm) {
        return Ok((shm.to_owned(), why));
    }
    Ok((
        PathBuf::from("/tmp"),
        format!("{why}, nor can /dev/shm be used"),
    ))
}

/// Whether this user can make a folder there.
pub(super) fn usable(folder: &Path) -> bool {
    let Ok(name) = CString::new(folder.as_os_str().as_bytes()) else {
        return false;
    };
    // SAFETY: the path is NUL-terminated and lives across the call.
    let writable = unsafe {
        libc::faccessat(
            libc::AT_FDCWD,
            name.as_ptr(),
            libc::W_OK | libc::X_OK,
            libc::AT_EACCESS,
        )
    } == 0;
    writable && folder.is_dir()
}
