//! Copies to and from another process's memory by its own addresses, process_vm_readv(2).
//!
//! The kernel answers for the other side's addresses: what is not mapped there, or not writable, is `EFAULT` and no
//! signal. A copy always ends: a stop signal takes effect after it, a kill cuts it short.
//!
//! These calls name a process by its pid, for want of one that takes a descriptor. Whoever uses them holds a
//! [`PidFd`](super::incarnation::PidFd) and looks at it before, and after what was read: a pid passes to another process
//! only after the old one's end has shown there. What is read is thus the right process's, or refused. What is written
//! could reach another one yet, if between the look and the end of the call the right one ended, was reaped, and the
//! kernel went through all other pids and gave this one to a process that the caller may write to.

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
    // SAFETY: the caller's promises are those the function asks for.
    unsafe { last_word_last(libc::process_vm_writev, pid, local, remote, len) }
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

/// # Safety
/// As [`write_last_word_last`].
unsafe fn last_word_last(
    call: Call,
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
    unsafe { transfer(call, pid, &from, to) }
}

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

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn me() -> u32 {
        std::process::id()
    }

    /// Cuts `bytes` into segments of these lengths; the rest is one more.
    fn cut(bytes: &mut [u8], lengths: &[usize]) -> Vec<iovec> {
        let mut list = Vec::new();
        let (base, mut at) = (bytes.as_mut_ptr() as u64, 0);
        for &len in lengths {
            let len = len.min(bytes.len() - at);
            list.push(segment(base + at as u64, len));
            at += len;
        }
        list.push(segment(base + at as u64, bytes.len() - at));
        list
    }

    fn pattern(len: usize) -> Vec<u8> {
        (0..len).map(|i| (i * 7 + i / 251) as u8).collect()
    }

    proptest! {
        #[test]
        fn lists_cut_differently_carry_the_same_bytes(
            len in 0usize..5000,
            ours in proptest::collection::vec(0usize..100, 0..200),
            theirs in proptest::collection::vec(0usize..100, 0..200),
        ) {
            let mut from = pattern(len);
            let expect = from.clone();
            let mut to = vec![0; len];
            let (local, remote) = (cut(&mut from, &ours), cut(&mut to, &theirs));
            // SAFETY: the lists cover the two vectors, used by nothing else during the call.
            unsafe { write_to(me(), &local, &remote) }.unwrap();
            prop_assert_eq!(&to, &expect);
            from.fill(0);
            let (local, remote) = (cut(&mut from, &ours), cut(&mut to, &theirs));
            // SAFETY: as above.
            unsafe { read_from(me(), &local, &remote) }.unwrap();
            prop_assert_eq!(&from, &expect);
        }

        #[test]
        fn a_cursor_is_where_that_many_bytes_end(
            lengths in proptest::collection::vec(0usize..5, 0..100),
            steps in proptest::collection::vec(0usize..7, 0..50),
        ) {
            let mut bytes = vec![0u8; lengths.iter().sum()];
            let base = bytes.as_mut_ptr() as u64;
            let list = cut(&mut bytes, &lengths);
            let (mut cursor, mut done) = (Cursor::new(&list), 0);
            for step in steps {
                let step = step.min(bytes.len() - done);
                cursor.advance(step);
                done += step;
                let mut window = [segment(0, 0); WINDOW];
                let window = cursor.window(&mut window);
                if done < bytes.len() {
                    prop_assert_eq!(window[0].iov_base as u64, base + done as u64);
                    prop_assert!(window[0].iov_len > 0);
                }
                if window.len() < WINDOW {
                    prop_assert_eq!(length(window), Some(bytes.len() - done));
                }
            }
        }

        #[test]
        fn writing_the_last_word_last_writes_all(start in 0usize..24, len in 0usize..200) {
            let from = pattern(len);
            let mut to = vec![0u8; 256];
            let remote = &raw mut to[start] as u64;
            // SAFETY: `start + len` is less than 256; both vectors are used by nothing else during the call.
            unsafe { write_last_word_last(me(), from.as_ptr(), remote, len) }.unwrap();
            prop_assert_eq!(&to[start..start + len], &from[..]);
            prop_assert!(to[..start].iter().chain(&to[start + len..]).all(|&byte| byte == 0));
        }
    }

    #[test]
    fn more_segments_than_one_call_takes_are_no_limit() {
        let mut from = pattern(3 * IOV_MAX);
        let mut to = vec![0; 3 * IOV_MAX];
        let ones = vec![1; 3 * IOV_MAX];
        let (local, remote) = (cut(&mut from, &ones), cut(&mut to, &[]));
        // SAFETY: the lists cover the two vectors, used by nothing else during the call.
        unsafe { write_to(me(), &local, &remote) }.unwrap();
        assert_eq!(from, to);
    }

    /// A call that transfers a few bytes at a time, as the kernel may.
    unsafe extern "C" fn stingy(
        _: libc::pid_t,
        local: *const iovec,
        _: libc::c_ulong,
        remote: *const iovec,
        _: libc::c_ulong,
        _: libc::c_ulong,
    ) -> libc::ssize_t {
        // SAFETY: the caller passes lists with at least one segment each; empty ones come only at a list's start.
        let (local, remote) = unsafe { (&*local, &*remote) };
        let len = local.iov_len.min(remote.iov_len).min(3);
        let (from, to) = (local.iov_base.cast::<u8>(), remote.iov_base.cast::<u8>());
        // SAFETY: both segments have at least `len` bytes.
        unsafe { std::ptr::copy_nonoverlapping(from, to, len) };
        len as libc::ssize_t
    }

    #[test]
    fn partial_transfers_are_continued() {
        let mut from = pattern(1000);
        let mut to = vec![0; 1000];
        let (local, remote) = (cut(&mut from, &[5, 100, 7]), cut(&mut to, &[50, 1, 1]));
        // SAFETY: the lists cover the two vectors, used by nothing else during the call.
        unsafe { transfer(stingy, me(), &local, &remote) }.unwrap();
        assert_eq!(from, to);
    }

    #[test]
    fn lists_of_different_length_are_refused() {
        let mut bytes = [0u8; 16];
        let (local, remote) = (cut(&mut bytes[..8], &[]), [segment(0, 9)]);
        // SAFETY: refused before anything is touched.
        let error = unsafe { read_from(me(), &local, &remote) }.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
        let endless = [segment(0, usize::MAX), segment(0, 9)];
        // SAFETY: as above.
        let error = unsafe { read_from(me(), &local, &endless) }.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
    }

    #[test]
    fn what_is_not_mapped_is_efault_also_behind_what_is() {
        let mut from = pattern(64);
        let mut to = [0u8; 32];
        let local = cut(&mut from, &[]);
        let remote = [segment(to.as_mut_ptr() as u64, 32), segment(8, 32)];
        // SAFETY: the mapped parts are used by nothing else during the call; page 0 is nobody's.
        let error = unsafe { write_to(me(), &local, &remote) }.unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EFAULT));
        assert_eq!(to, from[..32]);
        // SAFETY: refused, as the range wraps around.
        let error = unsafe { write_last_word_last(me(), from.as_ptr(), u64::MAX, 2) }.unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EFAULT));
    }

    #[test]
    fn probing_tells_not_mapped_from_gone() {
        let byte = 1u8;
        probe(me(), &raw const byte as u64).unwrap();
        let error = probe(me(), 8).unwrap_err();
        assert!(matches!(error, ProbeError::NotMapped { .. }), "{error}");
        let error = probe(u32::MAX, 8).unwrap_err();
        assert!(matches!(error, ProbeError::Gone { .. }), "{error}");
    }

    #[test]
    fn the_last_aligned_word_is_a_segment_of_its_own() {
        use std::sync::Mutex;
        static SEEN: Mutex<Vec<(u64, usize)>> = Mutex::new(Vec::new());
        unsafe extern "C" fn record(
            _: libc::pid_t,
            local: *const iovec,
            _: libc::c_ulong,
            remote: *const iovec,
            count: libc::c_ulong,
            _: libc::c_ulong,
        ) -> libc::ssize_t {
            // SAFETY: the caller passes lists of the lengths given.
            let (local, remote) =
                unsafe { (&*local, std::slice::from_raw_parts(remote, count as usize)) };
            let seen = remote.iter().map(|to| (to.iov_base as u64, to.iov_len));
            SEEN.lock().unwrap().extend(seen);
            local.iov_len as libc::ssize_t
        }
        for (remote, len, expect) in [
            (64, 32, &[(64, 24), (88, 8)][..]),
            (64, 30, &[(64, 24), (88, 6)]),
            (61, 32, &[(61, 27), (88, 5)]),
            (64, 8, &[(64, 8)]),
            (66, 5, &[(66, 5)]),
            (66, 7, &[(66, 6), (72, 1)]),
            (64, 0, &[]),
        ] {
            SEEN.lock().unwrap().clear();
            // SAFETY: `record` touches neither side.
            unsafe { last_word_last(record, 1, std::ptr::null(), remote, len) }.unwrap();
            assert_eq!(SEEN.lock().unwrap()[..], *expect, "{remote} {len}");
        }
    }
}
