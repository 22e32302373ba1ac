//! Getting a descriptor of another process.
//!
//! Descriptors are pulled through `/proc/PID/fd/N` by the process that needs them, not pushed over a socket by the
//! one that has them. Whoever may copy with process_vm, and the device serves nobody else, may also do this, so it
//! asks for no further right; no socket queue can fill up; and no sleeping or stopped process has to answer.
//!
//! The number names whatever the owner has there now, so the file is looked at before it is opened: opening a wrong
//! one could already have effects (a FIFO, a terminal, a device).

use super::during;
use super::incarnation::Incarnation;
use super::obstacle;
use std::ffi::CString;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};

/// Which file a descriptor refers to: device and inode number.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub struct FileId {
    /// `st_dev` of fstat(2).
    pub dev: u64,
    /// `st_ino` of fstat(2).
    pub ino: u64,
}

impl FileId {
    /// The file behind a descriptor.
    ///
    /// # Errors
    /// Those of fstat(2).
    pub fn of(fd: impl AsFd) -> io::Result<FileId> {
        stat(fd).map(|stat| FileId::of_stat(&stat))
    }

    /// The file an already filled `stat` describes.
    pub fn of_stat(stat: &libc::stat) -> FileId {
        FileId {
            dev: stat.st_dev,
            ino: stat.st_ino,
        }
    }
}

/// fstat(2).
pub(crate) fn stat(fd: impl AsFd) -> io::Result<libc::stat> {
    let mut stat = MaybeUninit::<libc::stat>::uninit();
    // SAFETY: the descriptor is borrowed for the call, and the kernel writes at most one `struct stat`.
    if unsafe { libc::fstat(fd.as_fd().as_raw_fd(), stat.as_mut_ptr()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: fstat succeeded and so filled the whole structure.
    Ok(unsafe { stat.assume_init() })
}

/// How a pulled descriptor is opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Access {
    /// To be read, or mapped read-only.
    ReadOnly,
    /// To be mapped writable; or the wake-up end of a pipe, of which one is then a reader too, so that a pipe without
    /// another reader is no SIGPIPE.
    ReadWrite,
}

/// Opens the file that process `owner` has as descriptor `fd`, provided it is the file expected. Works for memory
/// files and for pipes, anonymous ones too: opening one again for writing gives a new write end. The descriptor is
/// close-on-exec, and non-blocking, which matters for pipes only.
///
/// # Errors
/// `NotFound` if the process is gone or has no such descriptor; `InvalidData` if it is another file by now;
/// `PermissionDenied` with what stands in the way; and what open(2) gives.
pub fn pull(owner: Incarnation, fd: i32, expect: FileId, access: Access) -> io::Result<OwnedFd> {
    let pid = owner.pid;
    let place = open(&format!("/proc/{pid}/fd/{fd}"), libc::O_PATH)
        .map_err(|error| refused(pid, fd, error))?;
    // The owner's pid may have passed to another process. If it has not by now, it had not when we opened.
    let alive = Incarnation::of(pid).is_ok_and(|now| now == owner);
    if !alive {
        return Err(io::Error::new(
            io::ErrorKind::NotFound,
            format!("descriptor {fd} of process {pid}: that process has ended"),
        ));
    }
    let found = FileId::of(&place)?;
    if found != expect {
        return Err(io::Error::new(
            io::ErrorKind::InvalidData,
            format!(
                "descriptor {fd} of process {pid} is device {} inode {}, expected device {} inode {}: \
                 its owner has closed it and opened something else",
                found.dev, found.ino, expect.dev, expect.ino
            ),
        ));
    }
    let mode = match access {
        Access::ReadOnly => libc::O_RDONLY,
        Access::ReadWrite => libc::O_RDWR,
    };
    // Through our own /proc/self/fd, so that it is the very file just looked at.
    open(
        &format!("/proc/self/fd/{}", place.as_raw_fd()),
        mode | libc::O_NONBLOCK | libc::O_NOCTTY,
    )
    .map_err(|error| {
        during(
            &format!("descriptor {fd} of process {pid}, which this process may see"),
            error,
        )
    })
}

fn open(path: &str, flags: libc::c_int) -> io::Result<OwnedFd> {
    let path = CString::new(path)?;
    // SAFETY: the path is NUL-terminated and lives across the call; without O_CREAT no third argument is read.
    let fd = unsafe { libc::open(path.as_ptr(), flags | libc::O_CLOEXEC) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call succeeded, so this is a fresh descriptor that nothing else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn refused(pid: u32, fd: i32, error: io::Error) -> io::Error {
    let text = match error.kind() {
        io::ErrorKind::NotFound => format!(
            "descriptor {fd} of process {pid}: the process has ended or has closed it: {error}"
        ),
        io::ErrorKind::PermissionDenied => format!(
            "descriptor {fd} of process {pid}: {error}; {}",
            obstacle::find(pid)
        ),
        _ => format!("descriptor {fd} of process {pid}: {error}"),
    };
    io::Error::new(error.kind(), text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::io::{Read, Write};

    fn me_and(fd: impl AsFd) -> (Incarnation, i32, FileId) {
        let number = fd.as_fd().as_raw_fd();
        (Incarnation::me(), number, FileId::of(fd).unwrap())
    }

    #[test]
    fn an_anonymous_pipe_gets_a_second_write_end() {
        let (mut reader, first) = std::io::pipe().unwrap();
        let (owner, fd, id) = me_and(&reader);
        let mut second = File::from(pull(owner, fd, id, Access::ReadWrite).unwrap());
        second.write_all(b"ring").unwrap();
        drop((first, second));
        let mut heard = String::new();
        reader.read_to_string(&mut heard).unwrap();
        assert_eq!(heard, "ring");
    }

    #[test]
    fn a_full_pipe_does_not_block_the_writer() {
        let (reader, _first) = std::io::pipe().unwrap();
        let (owner, fd, id) = me_and(&reader);
        let mut end = File::from(pull(owner, fd, id, Access::ReadWrite).unwrap());
        let error = loop {
            if let Err(error) = end.write(&[0; 4096]) {
                break error;
            }
        };
        assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
    }

    #[test]
    fn another_file_under_the_number_is_refused() {
        let (reader, _writer) = std::io::pipe().unwrap();
        let (other, _other_writer) = std::io::pipe().unwrap();
        let (owner, fd, _) = me_and(&reader);
        let expect = FileId::of(&other).unwrap();
        let error = pull(owner, fd, expect, Access::ReadOnly).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
        assert!(
            error.to_string().contains(&expect.ino.to_string()),
            "{error}"
        );
    }

    #[test]
    fn a_dead_owner_and_a_closed_descriptor_are_not_found() {
        let (reader, _writer) = std::io::pipe().unwrap();
        let (owner, fd, id) = me_and(&reader);
        let dead = Incarnation {
            start: owner.start - 1,
            ..owner
        };
        let error = pull(dead, fd, id, Access::ReadOnly).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
        let error = pull(owner, i32::MAX, id, Access::ReadOnly).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
        assert!(error.to_string().contains("has closed it"), "{error}");
    }
}
