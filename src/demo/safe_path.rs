//! Opens files below one folder, and nowhere else, by names a stranger chose.
//!
//! A name is refused when it is empty, absolute, or has a component that is empty, `.` or `..`. What
//! remains is opened by `openat2` with `RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS`, so that a link placed in
//! the folder meanwhile cannot lead out of it either. Where the kernel lacks `openat2` (before 5.6, or
//! under a filter) the name is walked component by component with `O_NOFOLLOW`, which is slower and
//! equally strict.

use std::ffi::{CString, OsStr};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path};

/// Longest name accepted, bytes; leaves room for the rest of a request's metadata in 4 KiB.
pub const MAX_PATH: usize = 3 << 10;

/// A folder that files are opened below.
pub struct Root {
    folder: OwnedFd,
    walk_only: bool,
}

/// What a name may be opened for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Reading an existing file.
    Read,
    /// Writing a new file; an existing one is an error.
    Create,
}

impl Mode {
    fn flags(self) -> libc::c_int {
        libc::O_CLOEXEC
            | libc::O_NONBLOCK // A FIFO put there must not make the open wait.
            | match self {
                Mode::Read => libc::O_RDONLY,
                Mode::Create => libc::O_WRONLY | libc::O_CREAT | libc::O_EXCL,
            }
    }
}

impl Root {
    /// Takes an existing folder.
    pub fn open(folder: &Path) -> io::Result<Root> {
        let folder = File::open(folder)?;
        if !folder.metadata()?.is_dir() {
            return Err(io::Error::from(io::ErrorKind::NotADirectory));
        }
        Ok(Root {
            folder: folder.into(),
            walk_only: false,
        })
    }

    /// Opens the file `name` below the folder; with [`Mode::Create`] also makes the folders above it.
    ///
    /// Anything but a regular file is refused. Errors of the name itself are
    /// [`io::ErrorKind::InvalidInput`]; a link on the way is `ELOOP` or `ENOTDIR`.
    pub fn open_file(&self, name: &[u8], mode: Mode) -> io::Result<File> {
        let parts = components(name)?;
        let opened = match self.open_beneath(name, mode) {
            Err(e) if mode == Mode::Create && e.raw_os_error() == Some(libc::ENOENT) => {
                self.walk(&parts, mode)
            }
            Err(e) if openat2_missing(&e) => self.walk(&parts, mode),
            result => result,
        };
        let file = File::from(opened?);
        if !file.metadata()?.is_file() {
            return Err(refused("not a regular file"));
        }
        Ok(file)
    }

    fn open_beneath(&self, name: &[u8], mode: Mode) -> io::Result<OwnedFd> {
        if self.walk_only {
            return Err(io::Error::from_raw_os_error(libc::ENOSYS));
        }
        let name = c_string(name)?;
        // SAFETY: `open_how` is plain integers, for which zero is a value (and what the kernel asks of
        // fields it does not know).
        let mut how: libc::open_how = unsafe { std::mem::zeroed() };
        how.flags = mode.flags() as u64;
        how.mode = if mode == Mode::Create { 0o600 } else { 0 };
        how.resolve =
            libc::RESOLVE_BENEATH | libc::RESOLVE_NO_SYMLINKS | libc::RESOLVE_NO_MAGICLINKS;
        // SAFETY: `name` is NUL-terminated, `how` is live for the call and its size is the one given.
        let fd = unsafe {
            libc::syscall(
                libc::SYS_openat2,
                self.folder.as_raw_fd(),
                name.as_ptr(),
                &raw const how,
                size_of::<libc::open_how>(),
            )
        };
        owned(fd as libc::c_int)
    }

    /// Component by component, making missing folders for [`Mode::Create`].
    fn walk(&self, parts: &[&OsStr], mode: Mode) -> io::Result<OwnedFd> {
        let (file, folders) = parts.split_last().expect("a checked name has a component");
        let mut at: Option<OwnedFd> = None;
        for folder in folders {
            let from = at.as_ref().map_or(self.folder.as_fd(), |fd| fd.as_fd());
            at = Some(step(from, folder, mode == Mode::Create)?);
        }
        let from = at.as_ref().map_or(self.folder.as_fd(), |fd| fd.as_fd());
        open_at(from, file, mode.flags() | libc::O_NOFOLLOW)
    }
}

/// The folder `name` directly below `from`, which must not be a link; made if it is missing and `create`.
fn step(from: BorrowedFd<'_>, name: &OsStr, create: bool) -> io::Result<OwnedFd> {
    let flags = libc::O_PATH | libc::O_DIRECTORY | libc::O_NOFOLLOW | libc::O_CLOEXEC;
    match open_at(from, name, flags) {
        Err(e) if create && e.raw_os_error() == Some(libc::ENOENT) => {
            let c_name = c_string(name.as_bytes())?;
            // SAFETY: `c_name` is NUL-terminated and live for the call.
            let made = unsafe { libc::mkdirat(from.as_raw_fd(), c_name.as_ptr(), 0o700) };
            if made != 0 {
                let e = io::Error::last_os_error();
                if e.kind() != io::ErrorKind::AlreadyExists {
                    return Err(e);
                }
            }
            open_at(from, name, flags)
        }
        result => result,
    }
}

fn open_at(from: BorrowedFd<'_>, name: &OsStr, flags: libc::c_int) -> io::Result<OwnedFd> {
    let name = c_string(name.as_bytes())?;
    // SAFETY: `name` is NUL-terminated and live for the call; the mode is read for O_CREAT only.
    owned(unsafe {
        libc::openat(
            from.as_raw_fd(),
            name.as_ptr(),
            flags,
            0o600 as libc::c_uint,
        )
    })
}

fn owned(fd: libc::c_int) -> io::Result<OwnedFd> {
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just given us this descriptor; nobody else knows it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn openat2_missing(error: &io::Error) -> bool {
    // Filters of container runtimes older than the call answer EPERM; a real EPERM comes again below.
    matches!(error.raw_os_error(), Some(libc::ENOSYS | libc::EPERM))
}

fn c_string(bytes: &[u8]) -> io::Result<CString> {
    CString::new(bytes).map_err(|_| refused("it contains a zero byte"))
}

/// Splits a name into its components, or says why it is refused.
fn components(name: &[u8]) -> io::Result<Vec<&OsStr>> {
    if name.is_empty() {
        return Err(refused("it is empty"));
    }
    if name.len() > MAX_PATH {
        return Err(refused("it is longer than 3 KiB"));
    }
    if name.contains(&0) {
        return Err(refused("it contains a zero byte"));
    }
    let mut parts = Vec::new();
    // By bytes, not by `Path`, which drops `.` and doubled slashes silently.
    for part in name.split(|&b| b == b'/') {
        match part {
            b"" => return Err(refused("it is absolute, or has an empty component")),
            b"." | b".." => return Err(refused("it has a component `.` or `..`")),
            _ => parts.push(OsStr::from_bytes(part)),
        }
    }
    debug_assert!(
        Path::new(OsStr::from_bytes(name))
            .components()
            .all(|c| matches!(c, Component::Normal(_)))
    );
    Ok(parts)
}

fn refused(why: &str) -> io::Error {
    io::Error::new(
        io::ErrorKind::InvalidInput,
        format!("the name is refused: {why}"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::demo::scratch::Scratch;
    use std::io::{Read, Write};
    use std::os::unix::fs::symlink;

    /// Runs `check` with `openat2` and with the walk.
    fn both(check: impl Fn(&Path, &Root)) {
        for walk_only in [false, true] {
            let outer = Scratch::create().unwrap();
            let inside = outer.path().join("inside");
            std::fs::create_dir(&inside).unwrap();
            std::fs::write(outer.path().join("secret"), b"secret").unwrap();
            let mut root = Root::open(&inside).unwrap();
            root.walk_only = walk_only;
            check(outer.path(), &root);
            assert_eq!(
                std::fs::read(outer.path().join("secret")).unwrap(),
                b"secret"
            );
        }
    }

    #[test]
    fn writes_and_reads_below_the_folder_and_makes_parents() {
        both(|outer, root| {
            let mut file = root.open_file(b"a/b/c.txt", Mode::Create).unwrap();
            file.write_all(b"hello").unwrap();
            assert_eq!(
                std::fs::read(outer.join("inside/a/b/c.txt")).unwrap(),
                b"hello"
            );
            let mut text = String::new();
            let mut file = root.open_file(b"a/b/c.txt", Mode::Read).unwrap();
            file.read_to_string(&mut text).unwrap();
            assert_eq!(text, "hello");
            let again = root.open_file(b"a/b/c.txt", Mode::Create).unwrap_err();
            assert_eq!(again.kind(), io::ErrorKind::AlreadyExists);
        });
    }

    #[test]
    fn refuses_names_that_lead_elsewhere() {
        both(|outer, root| {
            let absolute = outer.join("secret");
            let long = [b"d/".repeat(MAX_PATH / 2), b"x".to_vec()].concat();
            let names: &[&[u8]] = &[
                b"",
                b"/",
                b"..",
                b"../secret",
                b"a/../../secret",
                b"./a",
                b"a//b",
                b"a/",
                b"a\0b",
                absolute.as_os_str().as_bytes(),
                &long,
            ];
            for name in names {
                for mode in [Mode::Read, Mode::Create] {
                    let error = root.open_file(name, mode).unwrap_err();
                    assert_eq!(
                        error.kind(),
                        io::ErrorKind::InvalidInput,
                        "{name:?} {mode:?}"
                    );
                }
            }
        });
    }

    #[test]
    fn follows_no_link() {
        both(|outer, root| {
            symlink(outer, outer.join("inside/up")).unwrap();
            symlink(outer.join("secret"), outer.join("inside/link")).unwrap();
            symlink(outer.join("made"), outer.join("inside/dangling")).unwrap();
            std::fs::create_dir(outer.join("inside/real")).unwrap();
            symlink("../../", outer.join("inside/real/up")).unwrap();
            for name in [
                &b"up/secret"[..],
                b"link",
                b"dangling",
                b"real/up/secret",
                b"up/new/file",
            ] {
                for mode in [Mode::Read, Mode::Create] {
                    assert!(root.open_file(name, mode).is_err(), "{name:?} {mode:?}");
                }
            }
            assert!(!outer.join("made").exists());
            assert!(!outer.join("new").exists());
        });
    }

    #[test]
    fn refuses_what_is_no_regular_file() {
        both(|outer, root| {
            std::fs::create_dir(outer.join("inside/folder")).unwrap();
            let fifo = c_string(outer.join("inside/fifo").as_os_str().as_bytes()).unwrap();
            // SAFETY: the path is NUL-terminated and live for the call.
            assert_eq!(unsafe { libc::mkfifo(fifo.as_ptr(), 0o600) }, 0);
            for mode in [Mode::Read, Mode::Create] {
                assert!(root.open_file(b"folder", mode).is_err());
                assert!(root.open_file(b"fifo", mode).is_err());
            }
        });
    }
}
