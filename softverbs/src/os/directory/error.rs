//! Why processes do not find each other.

use super::SLOTS;
use crate::os::kept;
use std::io;
use std::path::PathBuf;

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

impl From<DirectoryError> for io::Error {
    fn from(error: DirectoryError) -> io::Error {
        let kind = match error {
            DirectoryError::Relative { .. } => io::ErrorKind::InvalidInput,
            DirectoryError::NotAFolder { .. } => io::ErrorKind::NotADirectory,
            DirectoryError::ForeignOwner { .. } | DirectoryError::WrongMode { .. } => {
                io::ErrorKind::PermissionDenied
            }
            DirectoryError::Full { .. } => io::ErrorKind::StorageFull,
            DirectoryError::System { .. } => io::ErrorKind::Other,
        };
        kept(kind, error)
    }
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
