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

use super::incarnation::PidFd;
use super::pull::{FileId, stat};
use super::record::{self, SlotInfo};
use std::ffi::{CString, OsString};
use std::fs::File;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// Slots in a folder: the processes of a user that can use the device at the same time. 10 bits of a queue pair
/// number.
pub const SLOTS: u16 = 1024;

/// Why the folder cannot be used. Every message names the folder and why it was this one.
#[derive(Debug, thiserror::Error)]
pub enum DirectoryError {
    /// `VERBATIM_DIR` depends on the working directory.
    #[error("VERBATIM_DIR={path}: set it to an absolute path, the same in all processes that are to see each other", path = path.display())]
    Relative {
        /// The variable's value.
        path: PathBuf,
    },
    /// A link or a file has the folder's name.
    #[error("{path} (chosen because {choice}) is {what}, not a folder: remove it, or set VERBATIM_DIR", path = path.display())]
    NotAFolder {
        /// The folder.
        path: PathBuf,
        /// Why this one.
        choice: String,
        /// What it is instead.
        what: &'static str,
    },
    /// The folder is another user's.
    #[error("{path} (chosen because {choice}) belongs to user {owner}, not to {me}: remove it, or set VERBATIM_DIR to a folder of your own", path = path.display())]
    ForeignOwner {
        /// The folder.
        path: PathBuf,
        /// Why this one.
        choice: String,
        /// Whose it is.
        owner: u32,
        /// Effective user of this process.
        me: u32,
    },
    /// Others can enter the folder, or its owner cannot.
    #[error("{path} (chosen because {choice}) has mode {mode:04o}: make it 0700, or remove it", path = path.display())]
    WrongMode {
        /// The folder.
        path: PathBuf,
        /// Why this one.
        choice: String,
        /// Its permission bits.
        mode: u32,
    },
    /// All slots are held by live processes.
    #[error("{path} (chosen because {choice}): all {SLOTS} slots are held by live processes; end some, or give groups of them a VERBATIM_DIR of their own (they will not see each other)", path = path.display())]
    Full {
        /// The folder.
        path: PathBuf,
        /// Why this one.
        choice: String,
    },
    /// A system call failed.
    #[error("{path} (chosen because {choice}): {step}: {source}; set VERBATIM_DIR to a folder in which this user can make files and locks", path = path.display())]
    System {
        /// The folder or file.
        path: PathBuf,
        /// Why this folder.
        choice: String,
        /// What was tried.
        step: &'static str,
        /// The answer.
        source: io::Error,
    },
}

/// Why another process cannot be found by its slot.
#[derive(Debug, thiserror::Error)]
pub enum LookupError {
    /// Nobody holds the slot, or a dead process does.
    #[error("no live process holds slot {index} in {path} (chosen because {choice}): the peer has ended, or it uses another folder; VERBATIM_DIR and XDG_RUNTIME_DIR must be the same for both", path = path.display())]
    Nobody {
        /// The slot.
        index: u16,
        /// The folder.
        path: PathBuf,
        /// Why this folder.
        choice: String,
    },
    /// The slot's process is in another PID namespace, so that it cannot be named from here.
    #[error("the process with slot {index} in {path} is in another PID namespace: run both in the same container, or share the namespace", path = path.display())]
    OtherPidNamespace {
        /// The slot.
        index: u16,
        /// The folder.
        path: PathBuf,
    },
    /// The slot's file is not a slot, or a part of one: its process is just starting, or something wrote to it.
    #[error("the file of slot {index} in {path} holds no valid record; if that stays so, remove it", path = path.display())]
    Malformed {
        /// The slot.
        index: u16,
        /// The folder.
        path: PathBuf,
    },
    /// A system call failed.
    #[error("slot {index} in {path}: {step}: {source}", path = path.display())]
    System {
        /// The slot.
        index: u16,
        /// The folder.
        path: PathBuf,
        /// What was tried.
        step: &'static str,
        /// The answer.
        source: io::Error,
    },
}

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
        let (base, choice) = choose(
            std::env::var_os("VERBATIM_DIR"),
            std::env::var_os("XDG_RUNTIME_DIR"),
            usable,
        )?;
        Directory::open_chosen(&base, choice)
    }

    /// Opens this user's folder in `base`.
    ///
    /// # Errors
    /// All of [`DirectoryError`] but `Full` and `Relative`.
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
        if lock(&file)? && self.names(index, &file)? {
            self.unlink(index)?;
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

    fn unlink(&self, index: u16) -> io::Result<()> {
        unlink(&self.fd, index)
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

impl Drop for Slot {
    fn drop(&mut self) {
        // A forked child has a copy of this value but not the slot.
        if self.pid == std::process::id() {
            // The lock is held until the descriptor closes, just after; so the name is still ours. If it cannot be
            // removed, the next process to start does it.
            let _ = unlink(&self.folder, self.index);
        }
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
    File::open("/proc/self/ns/pid")
        .and_then(|file| FileId::of(file.as_fd()))
        .map_or(0, |id| id.ino)
}

/// Which folder to use, and why. Everything it depends on is handed in.
fn choose(
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
fn usable(folder: &Path) -> bool {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::os::incarnation::Incarnation;
    use crate::os::tests::Scratch;
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, chown, symlink};
    use std::sync::atomic::AtomicBool;

    fn info() -> SlotInfo {
        SlotInfo {
            owner: Incarnation::me(),
            segment_fd: 5,
            segment: FileId { dev: 6, ino: 7 },
            layout: 8,
        }
    }

    fn folder_in(scratch: &Scratch) -> PathBuf {
        // SAFETY: geteuid has no preconditions and cannot fail.
        let me = unsafe { libc::geteuid() };
        scratch.path().join(format!("verbatim-{me}"))
    }

    #[test]
    fn the_folder_is_made_for_its_user_only() {
        let scratch = Scratch::new();
        let directory = Directory::open_at(scratch.path()).unwrap();
        assert_eq!(directory.path(), folder_in(&scratch));
        let mode = fs::metadata(directory.path()).unwrap().permissions().mode();
        assert_eq!(mode & 0o7777, 0o700);
        Directory::open_at(scratch.path()).unwrap();
    }

    #[test]
    fn links_and_files_are_no_folder() {
        let scratch = Scratch::new();
        let real = scratch.path().join("real");
        fs::create_dir(&real).unwrap();
        fs::set_permissions(&real, fs::Permissions::from_mode(0o700)).unwrap();
        symlink(&real, folder_in(&scratch)).unwrap();
        let error = Directory::open_at(scratch.path()).unwrap_err();
        assert!(error.to_string().contains("symbolic link"), "{error}");
        fs::remove_file(folder_in(&scratch)).unwrap();
        fs::write(folder_in(&scratch), "").unwrap();
        let error = Directory::open_at(scratch.path()).unwrap_err();
        assert!(error.to_string().contains("is a file"), "{error}");
    }

    #[test]
    fn any_mode_but_0700_is_refused() {
        let scratch = Scratch::new();
        fs::create_dir(folder_in(&scratch)).unwrap();
        for mode in [0o701, 0o710, 0o704, 0o770, 0o777] {
            let permissions = fs::Permissions::from_mode(mode);
            fs::set_permissions(folder_in(&scratch), permissions).unwrap();
            let error = Directory::open_at(scratch.path()).unwrap_err();
            assert!(
                error.to_string().contains(&format!("{mode:04o}")),
                "{error}"
            );
        }
    }

    #[test]
    fn a_folder_of_another_user_is_refused() {
        // SAFETY: geteuid has no preconditions and cannot fail.
        if unsafe { libc::geteuid() } != 0 {
            return; // only root can make one
        }
        let scratch = Scratch::new();
        Directory::open_at(scratch.path()).unwrap();
        chown(folder_in(&scratch), Some(65534), None).unwrap();
        let error = Directory::open_at(scratch.path()).unwrap_err();
        assert!(
            error.to_string().contains("belongs to user 65534"),
            "{error}"
        );
    }

    #[test]
    fn a_missing_base_names_the_path_and_the_choice() {
        let error = Directory::open_at(Path::new("/nowhere/at/all")).unwrap_err();
        let text = error.to_string();
        assert!(text.contains("/nowhere/at/all/verbatim-"), "{text}");
        assert!(text.contains("the caller said so"), "{text}");
        assert!(text.contains("set VERBATIM_DIR"), "{text}");
    }

    #[test]
    fn the_choice_follows_the_variables_and_says_so() {
        let some = |value: &str| Some(OsString::from(value));
        let all = |_: &Path| true;
        let none = |_: &Path| false;
        let chosen = |verbatim, xdg, usable: fn(&Path) -> bool| {
            let (path, why) = choose(verbatim, xdg, usable).unwrap();
            (path.to_str().unwrap().to_owned(), why)
        };
        assert_eq!(chosen(some("/a"), some("/b"), all).0, "/a");
        assert_eq!(chosen(some("/a"), some("/b"), none).0, "/a");
        assert_eq!(chosen(some(""), some("/b"), all).0, "/b");
        assert_eq!(chosen(None, some("/b"), all).0, "/b");
        assert_eq!(chosen(None, None, all).0, "/dev/shm");
        assert_eq!(chosen(None, some("b"), all).0, "/dev/shm");
        assert_eq!(chosen(None, None, none).0, "/tmp");
        let (path, why) = chosen(None, some("/b"), |path| path != Path::new("/b"));
        assert_eq!(path, "/dev/shm");
        assert!(why.contains("XDG_RUNTIME_DIR=/b cannot be used"), "{why}");
        let error = choose(some("a"), None, all).unwrap_err();
        assert!(matches!(error, DirectoryError::Relative { .. }));
    }

    #[test]
    fn a_claimed_slot_is_found_and_a_dropped_one_is_not() {
        let scratch = Scratch::new();
        let directory = Directory::open_at(scratch.path()).unwrap();
        let slot = directory.claim(&info()).unwrap();
        assert!(slot.index < SLOTS);
        assert_eq!(directory.lookup(slot.index).unwrap(), info());
        let index = slot.index;
        drop(slot);
        let error = directory.lookup(index).unwrap_err();
        assert!(matches!(error, LookupError::Nobody { .. }), "{error}");
        assert!(error.to_string().contains("VERBATIM_DIR"), "{error}");
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_slot_just_given_back_is_not_the_next_one() {
        let scratch = Scratch::new();
        let directory = Directory::open_at(scratch.path()).unwrap();
        let mut last = None;
        for _ in 0..5 {
            let index = directory.claim(&info()).unwrap().index;
            assert_ne!(last, Some(index));
            last = Some(index);
        }
    }

    #[test]
    fn what_nobody_holds_is_cleaned() {
        let scratch = Scratch::new();
        let directory = Directory::open_at(scratch.path()).unwrap();
        let record = record::encode(&info(), pid_namespace());
        for (index, contents) in [(3, &record[..]), (4, b"junk"), (1023, b"")] {
            fs::write(directory.path().join(file_name(index)), contents).unwrap();
        }
        // The record names a live process, but nobody holds the lock.
        let error = directory.lookup(3).unwrap_err();
        assert!(matches!(error, LookupError::Nobody { .. }), "{error}");
        let slot = directory.claim_from(&info(), 3).unwrap();
        assert_eq!(slot.index, 3);
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
    }

    #[test]
    fn held_files_that_are_no_slots_are_malformed() {
        let scratch = Scratch::new();
        let directory = Directory::open_at(scratch.path()).unwrap();
        let slot = directory.claim(&info()).unwrap();
        let good = record::encode(&info(), pid_namespace());
        let mut bad = good;
        bad[20] ^= 1;
        let mut long = good.to_vec();
        long.push(0);
        for contents in [&[][..], &good[..40], &bad, &long] {
            slot.file.set_len(0).unwrap();
            slot.file.write_all_at(contents, 0).unwrap();
            let error = directory.lookup(slot.index).unwrap_err();
            assert!(matches!(error, LookupError::Malformed { .. }), "{error}");
        }
        let elsewhere = record::encode(&info(), pid_namespace() + 1);
        slot.file.set_len(0).unwrap();
        slot.file.write_all_at(&elsewhere, 0).unwrap();
        let error = directory.lookup(slot.index).unwrap_err();
        assert!(
            matches!(error, LookupError::OtherPidNamespace { .. }),
            "{error}"
        );
    }

    #[test]
    fn other_things_with_a_slots_name_are_stepped_over_until_none_is_left() {
        let scratch = Scratch::new();
        let directory = Directory::open_at(scratch.path()).unwrap();
        let target = scratch.path().join("target");
        fs::write(&target, "keep").unwrap();
        for index in (0..SLOTS).filter(|&index| index != 700) {
            let path = directory.path().join(file_name(index));
            match index % 2 {
                0 => symlink(&target, path).unwrap(),
                _ => fs::create_dir(path).unwrap(),
            }
        }
        let slot = directory.claim(&info()).unwrap();
        assert_eq!(slot.index, 700);
        let error = directory.claim(&info()).unwrap_err();
        assert!(matches!(error, DirectoryError::Full { .. }), "{error}");
        let error = directory.lookup(0).unwrap_err();
        assert!(matches!(error, LookupError::Malformed { .. }), "{error}");
        assert_eq!(fs::read(&target).unwrap(), b"keep");
    }

    #[test]
    fn threads_that_race_for_slots_never_share_one() {
        let scratch = Scratch::new();
        let directory = Directory::open_at(scratch.path()).unwrap();
        let held: Vec<AtomicBool> = (0..SLOTS).map(|_| AtomicBool::new(false)).collect();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for turn in 0..50 {
                        let slot = directory.claim_from(&info(), turn % 2).unwrap();
                        let held = &held[usize::from(slot.index)];
                        assert!(!held.swap(true, Ordering::SeqCst), "slot {}", slot.index);
                        assert_eq!(directory.lookup(slot.index).unwrap(), info());
                        held.store(false, Ordering::SeqCst);
                        drop(slot);
                    }
                });
            }
        });
    }
}
