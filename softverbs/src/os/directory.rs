//! The folder where processes find each other, and the slots in it.
//!
//! Each process holds one of 1024 slots; its number is the upper part of the process's queue pair numbers, so that a
//! peer that knows a number finds the process. A slot is a file held by a write lock of its open file description
//! (`F_OFD_SETLK`, fcntl(2)), which ends with the process, however that ends. Who can get the lock has proof that
//! the holder is gone.
//!
//! Claiming and cleaning race with each other, and a file can be removed between its opening and its locking. So
//! whoever gets the lock looks whether the path still names the file locked, and only then owns the name: nobody else
//! removes or replaces it while the lock is held.
//!
//! A child forked without exec shares the open file description and keeps the lock for as long as it lives. Its
//! parent's slot is then taken up that much longer, but the parent is seen to be dead: [`Directory::lookup`] also asks
//! for the incarnation.

mod choose;
mod error;
#[cfg(test)]
mod tests;

pub use super::record::SlotInfo;
pub use error::{DirectoryError, LookupError};

use super::incarnation::PidFd;
use super::pull::{FileId, stat};
use super::record;
use std::ffi::CString;
use std::fs::File;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// Slots in a folder: the processes of a user that can use the device at the same time. 10 bits of a queue pair
/// number.
pub const SLOTS: u16 = 1024;

/// The folder, open. All files in it are reached through the descriptor, so it stays the folder that was checked,
/// whatever happens to its path.
#[derive(Debug)]
pub struct Directory {
    fd: Arc<OwnedFd>,
    path: PathBuf,
    choice: String,
}

impl Directory {
    /// Opens this user's folder, making it if there is none: in `VERBATIM_DIR` if that is set, else in
    /// `XDG_RUNTIME_DIR` if that is set and usable, else in `/dev/shm`, else in `/tmp`.
    ///
    /// # Errors
    /// All of [`DirectoryError`] but `Full`.
    pub fn open() -> Result<Directory, DirectoryError> {
        let (base, choice) = choose::choose(
            std::env::var_os("VERBATIM_DIR"),
            std::env::var_os("XDG_RUNTIME_DIR"),
            choose::usable,
        )?;
        Directory::open_chosen(&base, choice)
    }

    /// Opens this user's folder in `base`.
    ///
    /// # Errors
    /// All of [`DirectoryError`] but `Full` and `Relative`.
    #[cfg(test)]
    pub fn open_at(base: &Path) -> Result<Directory, DirectoryError> {
        Directory::open_chosen(base, "the caller said so".to_owned())
    }

    fn open_chosen(base: &Path, choice: String) -> Result<Directory, DirectoryError> {
        // SAFETY: geteuid has no preconditions and cannot fail.
        let me = unsafe { libc::geteuid() };
        let path = base.join(format!("verbatim-{me}"));
        let system = |step, source| DirectoryError::System {
            path: path.clone(),
            choice: choice.clone(),
            step,
            source,
        };
        let name = CString::new(path.as_os_str().as_bytes())
            .map_err(|error| system("the path", error.into()))?;
        // SAFETY: the path is NUL-terminated and lives across the call.
        if unsafe { libc::mkdir(name.as_ptr(), 0o700) } != 0 {
            let error = io::Error::last_os_error();
            if error.kind() != io::ErrorKind::AlreadyExists {
                return Err(system("mkdir", error));
            }
        }
        let flags = libc::O_RDONLY | libc::O_DIRECTORY | libc::O_NOFOLLOW | libc::O_CLOEXEC;
        // SAFETY: as above; without O_CREAT no further argument is read.
        let fd = unsafe { libc::open(name.as_ptr(), flags) };
        if fd < 0 {
            let error = io::Error::last_os_error();
            let what = match error.raw_os_error() {
                Some(libc::ELOOP | libc::ENOTDIR) if path.is_symlink() => "a symbolic link",
                Some(libc::ENOTDIR) => "a file",
                _ => return Err(system("open", error)),
            };
            return Err(DirectoryError::NotAFolder { path, choice, what });
        }
        // SAFETY: the call succeeded, so this is a fresh descriptor that nothing else owns.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        let stat = stat(&fd).map_err(|error| system("fstat", error))?;
        if stat.st_uid != me {
            let owner = stat.st_uid;
            return Err(DirectoryError::ForeignOwner {
                path,
                choice,
                owner,
                me,
            });
        }
        let mode = stat.st_mode & 0o7777;
        if mode & 0o777 != 0o700 {
            return Err(DirectoryError::WrongMode { path, choice, mode });
        }
        let fd = Arc::new(fd);
        Ok(Directory { fd, path, choice })
    }

    /// The folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Why it is this folder, to be read after "because".
    pub fn choice(&self) -> &str {
        &self.choice
    }

    /// Removes the slots of the dead and takes a free one for as long as the [`Slot`] lives.
    ///
    /// The search begins at another slot for each process and each claim, so that a number that was just given back,
    /// and may still be on peers' minds, is not the next one given out.
    ///
    /// # Errors
    /// `Full` and `System`.
    pub fn claim(&self, fill: &SlotInfo) -> Result<Slot, DirectoryError> {
        static CLAIMS: AtomicU32 = AtomicU32::new(0);
        // Odd, so that 1024 claims begin at 1024 different slots; and far from what the next pids begin at.
        let nth = CLAIMS.fetch_add(1, Ordering::Relaxed).wrapping_mul(397);
        let first = std::process::id().wrapping_add(nth) % u32::from(SLOTS);
        self.claim_from(fill, first as u16)
    }

    pub(super) fn claim_from(&self, fill: &SlotInfo, first: u16) -> Result<Slot, DirectoryError> {
        let system = |index, step, source| DirectoryError::System {
            path: self.path.join(file_name(index)),
            choice: self.choice.clone(),
            step,
            source,
        };
        for index in 0..SLOTS {
            self.clean(index)
                .map_err(|error| system(index, "cleaning", error))?;
        }
        let record = record::encode(fill, pid_namespace());
        // Twice, because a cleaner holds a lock for a moment on what it then removes.
        let round = || (first..SLOTS).chain(0..first);
        for index in round().chain(round()) {
            let file = self
                .take(index)
                .map_err(|error| system(index, "making and locking a slot", error))?;
            let Some(file) = file else { continue };
            // From here on the file is ours and goes with the slot, also if writing fails.
            let slot = Slot {
                index,
                file,
                folder: Arc::clone(&self.fd),
                pid: std::process::id(),
            };
            slot.file
                .write_all_at(&record, 0)
                .map_err(|error| system(index, "writing a slot", error))?;
            return Ok(slot);
        }
        Err(DirectoryError::Full {
            path: self.path.clone(),
            choice: self.choice.clone(),
        })
    }

    /// Reads who holds a slot.
    ///
    /// # Errors
    /// [`LookupError`]; `Nobody` also if the holder has ended.
    pub fn lookup(&self, index: u16) -> Result<SlotInfo, LookupError> {
        let path = || self.path.clone();
        let nobody = || LookupError::Nobody {
            index,
            path: path(),
            choice: self.choice.clone(),
        };
        let malformed = || LookupError::Malformed {
            index,
            path: path(),
        };
        let system = |step, source| LookupError::System {
            index,
            path: path(),
            step,
            source,
        };

        let file = match self.open_file(index, libc::O_RDONLY) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(nobody()),
            Err(error) if error.raw_os_error() == Some(libc::ELOOP) => return Err(malformed()),
            other => other.map_err(|error| system("open", error))?,
        };
        if !is_locked(&file).map_err(|error| system("fcntl(F_OFD_GETLK)", error))? {
            return Err(nobody());
        }
        let size = stat(&file).map_err(|error| system("fstat", error))?.st_size;
        let mut bytes = [0; record::LEN];
        if size != record::LEN as i64 || file.read_exact_at(&mut bytes, 0).is_err() {
            return Err(malformed());
        }
        let (info, namespace) = record::decode(&bytes).map_err(|_| malformed())?;
        if namespace != pid_namespace() {
            return Err(LookupError::OtherPidNamespace {
                index,
                path: path(),
            });
        }
        match PidFd::open(info.owner) {
            Ok(pidfd) if !pidfd.is_dead() => Ok(info),
            Err(error) if error.raw_os_error() != Some(libc::ESRCH) => {
                Err(system("looking for the process", error))
            }
            _ => Err(nobody()),
        }
    }

    /// Removes a slot file that nobody holds.
    fn clean(&self, index: u16) -> io::Result<()> {
        let file = match self.open_file(index, libc::O_RDWR) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            // Not a slot file: `take` will step over it.
            Err(error) if is_obstruction(&error) => return Ok(()),
            Err(error) => return Err(error),
        };
        self.clean_opened(index, &file)
    }

    /// The rest of [`Directory::clean`]. Since the file was opened, its holder may have given it back and another may
    /// have made a new one in its place.
    fn clean_opened(&self, index: u16, file: &File) -> io::Result<()> {
        if lock(file)? && self.names(index, file)? {
            unlink(&self.fd, index)?;
        }
        Ok(())
    }

    /// The slot's file, new and locked; `None` if somebody holds it.
    fn take(&self, index: u16) -> io::Result<Option<File>> {
        loop {
            let file = match self.open_file(index, libc::O_RDWR | libc::O_CREAT) {
                Ok(file) => file,
                Err(error) if is_obstruction(&error) => return Ok(None),
                Err(error) => return Err(error),
            };
            if !lock(&file)? {
                return Ok(None);
            }
            // Removed between our open and our lock: what we locked is a file without a name.
            if self.names(index, &file)? {
                // It may be one that a process left which has just died.
                file.set_len(0)?;
                return Ok(Some(file));
            }
        }
    }

    /// Whether the slot's path names this very file.
    fn names(&self, index: u16, file: &File) -> io::Result<bool> {
        let name = c_file_name(index);
        let mut found = MaybeUninit::<libc::stat>::uninit();
        // SAFETY: the descriptor is open, the name NUL-terminated and alive, and the kernel writes at most one
        // `struct stat`.
        let answer = unsafe {
            libc::fstatat(
                self.fd.as_raw_fd(),
                name.as_ptr(),
                found.as_mut_ptr(),
                libc::AT_SYMLINK_NOFOLLOW,
            )
        };
        if answer != 0 {
            let error = io::Error::last_os_error();
            return match error.kind() {
                io::ErrorKind::NotFound => Ok(false),
                _ => Err(error),
            };
        }
        // SAFETY: fstatat succeeded and so filled the whole structure.
        let found = FileId::of_stat(unsafe { found.assume_init_ref() });
        Ok(found == FileId::of(file)?)
    }

    fn open_file(&self, index: u16, flags: libc::c_int) -> io::Result<File> {
        let name = c_file_name(index);
        let flags = flags | libc::O_NOFOLLOW | libc::O_CLOEXEC | libc::O_NONBLOCK;
        // SAFETY: the descriptor is open, the name NUL-terminated and alive; the mode is there for O_CREAT.
        let fd = unsafe { libc::openat(self.fd.as_raw_fd(), name.as_ptr(), flags, 0o600) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the call succeeded, so this is a fresh descriptor that nothing else owns.
        Ok(unsafe { File::from_raw_fd(fd) })
    }
}

/// A slot of this process; given back on drop.
#[derive(Debug)]
pub struct Slot {
    /// Its number, below [`SLOTS`].
    pub index: u16,
    /// Holds the lock.
    file: File,
    folder: Arc<OwnedFd>,
    pid: u32,
}

impl Slot {
    /// Gives the slot back while the value lives on: for the end of a process, where nothing is dropped any more.
    pub fn release(&self) {
        // A forked child has a copy of this value but not the slot.
        if self.pid == std::process::id() {
            // The lock is held until the descriptor closes; so the name is still ours. If it cannot be removed, the
            // next process to start does it.
            let _ = unlink(&self.folder, self.index);
        }
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.release();
    }
}

fn file_name(index: u16) -> String {
    format!("slot-{index:04}")
}

fn c_file_name(index: u16) -> CString {
    CString::new(file_name(index)).unwrap_or_default()
}

fn unlink(folder: &OwnedFd, index: u16) -> io::Result<()> {
    let name = c_file_name(index);
    // SAFETY: the descriptor is open, the name NUL-terminated and alive across the call.
    if unsafe { libc::unlinkat(folder.as_raw_fd(), name.as_ptr(), 0) } != 0 {
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::NotFound {
            return Err(error);
        }
    }
    Ok(())
}

/// Something that is not a file of ours has the slot's name: a link, a folder, a socket, another user's file.
fn is_obstruction(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::ELOOP | libc::EISDIR | libc::ENXIO | libc::EACCES | libc::EPERM)
    )
}

fn whole_file(kind: libc::c_int) -> libc::flock {
    // SAFETY: `flock` is a plain C structure for which all zeros is a value: the whole file from its beginning.
    let mut lock: libc::flock = unsafe { MaybeUninit::zeroed().assume_init() };
    lock.l_type = kind as libc::c_short;
    lock.l_whence = libc::SEEK_SET as libc::c_short;
    lock
}

/// Takes the write lock; false if another open file description has it.
fn lock(file: &File) -> io::Result<bool> {
    let lock = whole_file(libc::F_WRLCK);
    // SAFETY: the descriptor is open and `lock` lives across the call.
    if unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &raw const lock) } == 0 {
        return Ok(true);
    }
    let error = io::Error::last_os_error();
    match error.raw_os_error() {
        Some(libc::EAGAIN | libc::EACCES) => Ok(false),
        _ => Err(error),
    }
}

fn is_locked(file: &File) -> io::Result<bool> {
    let mut lock = whole_file(libc::F_WRLCK);
    // SAFETY: the descriptor is open and `lock` lives across the call, which may write to it.
    if unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_GETLK, &raw mut lock) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(i32::from(lock.l_type) != libc::F_UNLCK)
}

/// Inode of this process's PID namespace, namespaces(7); 0 where the kernel does not say.
fn pid_namespace() -> u64 {
    // Without a descriptor, of which there may be none left.
    std::fs::metadata("/proc/self/ns/pid").map_or(0, |namespace| namespace.ino())
}
