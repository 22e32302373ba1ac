//! Copies to and from another process's memory by its own addresses, process_vm_readv(2).
//!
//! The kernel answers for the other side's addresses: what is not mapped there, or not writable, is `EFAULT` and no
//! signal. A copy always ends: a stop signal takes effect after it, a kill cuts it short.
//!
//! These calls name a process by its pid. Whoever uses them holds a [`PidFd`](super::incarnation::PidFd) and looks at
//! it before and after: a pid passes to another process only after the old one's end has shown there.

use super::obstacle::{self, Obstacle};
use libc::iovec;
use std::io;

/// Copies from `local` to `remote` of process `pid`, all of it, in ascending order of the lists. One system call
/// unless the kernel transfers less than asked or a list is longer than it takes.
///
/// # Errors
/// `InvalidInput` if the lists do not add up to the same length. Otherwise those of process_vm_writev(2): `EFAULT` if
/// an address is not mapped or not writable, `ESRCH` if the process is gone, `EPERM`. Part of the data may have
/// been copied then.
///
/// # Safety
/// `local` must be readable for the call. What the other process keeps at `remote` changes under its feet: the
/// caller must have been given the right to write there by that process.
pub unsafe fn write_to(pid: u32, local: &[iovec], remote: &[iovec]) -> io::Result<()> {
    // SAFETY: the caller's promises are those the function asks for, for the direction to the peer.
    unsafe { transfer(libc::process_vm_writev, pid, local, remote) }
}

/// Copies from `remote` of process `pid` to `local`, all of it, in ascending order of the lists.
///
/// # Errors
/// As [`write_to`].
///
/// # Safety
/// `local` must be writable for the call and nothing else may use it meanwhile, other than as a device would.
pub unsafe fn read_from(pid: u32, local: &[iovec], remote: &[iovec]) -> io::Result<()> {
    // SAFETY: the caller's promises are those the function asks for, for the direction from the peer.
    unsafe { transfer(libc::process_vm_readv, pid, local, remote) }
}

/// Copies `len` bytes to `remote` of process `pid` so that the aligned 8-byte word that holds the last byte changes
/// after everything before it: as a segment of its own, since the kernel goes through segments in order but promises
/// nothing within one.
///
/// # Errors
/// As [`write_to`].
///
/// # Safety
/// As [`write_to`], with `local` readable for `len` bytes.
pub unsafe fn write_last_word_last(
    pid: u32,
    local: *const u8,
    remote: u64,
    len: usize,
) -> io::Result<()> {
    let Some(last) = (len as u64).checked_sub(1) else {
        return Ok(());
    };
    let Some(last) = remote.checked_add(last) else {
        return Err(io::Error::from_raw_os_error(libc::EFAULT));
    };
    let word = (last & !7).max(remote);
    let head = (word - remote) as usize;
    let from = [segment(local as u64, len)];
    let to = [segment(remote, head), segment(word, len - head)];
    let to = if head == 0 { &to[1..] } else { &to[..] };
    // SAFETY: `to` is [remote, remote + len) cut in two, the caller's to write; `local` is readable for `len` bytes.
    unsafe { write_to(pid, &from, to) }
}

/// An iovec from numbers; the address need not mean anything in this process.
pub fn segment(addr: u64, len: usize) -> iovec {
    iovec {
        iov_base: addr as usize as *mut libc::c_void,
        iov_len: len,
    }
}

/// Why another process's memory cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ProbeError {
    /// The kernel refuses.
    #[error("process_vm_readv: access to the memory of process {pid} is refused: {obstacle}")]
    Denied {
        /// The other process.
        pid: u32,
        /// What stands in the way.
        obstacle: Obstacle,
    },
    /// There is no such process.
    #[error("process_vm_readv: process {pid} has ended, or is in another PID namespace")]
    Gone {
        /// The other process.
        pid: u32,
    },
    /// Access is allowed, but the address probed is not mapped there.
    #[error("process_vm_readv: process {pid} has nothing mapped at {addr:#x}")]
    NotMapped {
        /// The other process.
        pid: u32,
        /// The address probed.
        addr: u64,
    },
    /// Anything else, such as `ENOSYS` from a kernel without cross-memory attach.
    #[error("process_vm_readv from process {pid}: {source}")]
    Other {
        /// The other process.
        pid: u32,
        /// The kernel's answer.
        source: io::Error,
    },
}

/// Finds out whether this process may use the memory of `pid`, by reading a byte at `addr`, which must be mapped
/// there.
///
/// # Errors
/// The reason, in terms of what the user can change.
pub fn probe(pid: u32, addr: u64) -> Result<(), ProbeError> {
    let mut byte = 0u8;
    let local = [segment(&raw mut byte as u64, 1)];
    // SAFETY: `local` is one byte of this stack frame that nothing else uses.
    let Err(source) = (unsafe { read_from(pid, &local, &[segment(addr, 1)]) }) else {
        return Ok(());
    };
    Err(match source.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => ProbeError::Denied {
            pid,
            obstacle: obstacle::find(pid),
        },
        Some(libc::ESRCH) => ProbeError::Gone { pid },
        Some(libc::EFAULT) => ProbeError::NotMapped { pid, addr },
        _ => ProbeError::Other { pid, source },
    })
}

/// Lets peers use process_vm on this process where Yama (`ptrace_scope` 1, the default of several distributions)
/// allows it to a parent only. Without Yama nothing happens. See PR_SET_PTRACER in prctl(2). It opens nothing to
/// other users, but undoes Yama's protection from other processes of the same user, so it is for the caller to
/// decide.
pub fn permit_peers() {
    // SAFETY: this prctl takes integers only. Its one failure, EINVAL, means that there is no Yama to ask.
    unsafe { libc::prctl(libc::PR_SET_PTRACER, libc::PR_SET_PTRACER_ANY, 0, 0, 0) };
}

type Call = unsafe extern "C" fn(
    libc::pid_t,
    *const iovec,
    libc::c_ulong,
    *const iovec,
    libc::c_ulong,
    libc::c_ulong,
) -> libc::ssize_t;

/// Segments handed to the kernel in one call, once lists have to be cut. At most IOV_MAX (1024).
const WINDOW: usize = 64;
const IOV_MAX: usize = 1024;

/// # Safety
/// `local` must be memory of ours that `call` may read or write, and `remote` memory the peer lets us read or write.
unsafe fn transfer(call: Call, pid: u32, local: &[iovec], remote: &[iovec]) -> io::Result<()> {
    let total = length(local);
    if total.is_none() || total != length(remote) {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "process_vm: the local and the remote list differ in length",
        ));
    }
    let mut left = total.unwrap_or(0);
    let (mut from, mut to) = (Cursor::new(local), Cursor::new(remote));
    // Nearly always the lists go to the kernel as they are, once.
    if left > 0 && local.len() <= IOV_MAX && remote.len() <= IOV_MAX {
        // SAFETY: the caller's promise covers all segments.
        let done = unsafe { one_call(call, pid, local, remote)? };
        left = left.saturating_sub(done);
        from.advance(done);
        to.advance(done);
    }
    while left > 0 {
        let (mut ours, mut theirs) = ([segment(0, 0); WINDOW], [segment(0, 0); WINDOW]);
        let (ours, theirs) = (from.window(&mut ours), to.window(&mut theirs));
        // SAFETY: the windows are parts of the caller's segments.
        let done = unsafe { one_call(call, pid, ours, theirs)? };
        left = left.saturating_sub(done);
        from.advance(done);
        to.advance(done);
    }
    Ok(())
}

/// # Safety
/// As [`transfer`].
unsafe fn one_call(call: Call, pid: u32, local: &[iovec], remote: &[iovec]) -> io::Result<usize> {
    let Ok(pid) = libc::pid_t::try_from(pid) else {
        return Err(io::Error::from_raw_os_error(libc::ESRCH));
    };
    // SAFETY: both lists live across the call; the caller vouches for what they point to.
    let done = unsafe {
        call(
            pid,
            local.as_ptr(),
            local.len() as libc::c_ulong,
            remote.as_ptr(),
            remote.len() as libc::c_ulong,
            0,
        )
    };
    match done {
        ..0 => Err(io::Error::last_os_error()),
        // The kernel reports an error only if nothing was copied, and never copies nothing without one. Do not spin
        // if it ever does.
        0 => Err(io::Error::from_raw_os_error(libc::EFAULT)),
        done => Ok(done as usize),
    }
}

fn length(list: &[iovec]) -> Option<usize> {
    list.iter()
        .try_fold(0usize, |sum, segment| sum.checked_add(segment.iov_len))
}

/// A place in a list of segments.
struct Cursor<'a> {
    list: &'a [iovec],
    /// Bytes of the first segment of `list` that are done.
    offset: usize,
}

impl<'a> Cursor<'a> {
    fn new(list: &'a [iovec]) -> Cursor<'a> {
        Cursor { list, offset: 0 }
    }

    fn advance(&mut self, bytes: usize) {
        self.offset += bytes;
        while let Some(first) = self.list.first()
            && self.offset >= first.iov_len
        {
            self.offset -= first.iov_len;
            self.list = &self.list[1..];
        }
    }

    /// As many of the segments that are left as fit into `window`.
    fn window<'w>(&self, window: &'w mut [iovec; WINDOW]) -> &'w [iovec] {
        let count = self.list.len().min(WINDOW);
        window[..count].copy_from_slice(&self.list[..count]);
        if let Some(first) = window[..count].first_mut() {
            first.iov_base = first.iov_base.wrapping_byte_add(self.offset);
            first.iov_len -= self.offset;
        }
        &window[..count]
    }
}
