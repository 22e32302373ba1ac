//! Who a process is. A pid alone is not an identity, since pids are given out again; pid and start time are.

use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// One process, from its start to its end.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub struct Incarnation {
    /// Process id, as seen from this PID namespace.
    pub pid: u32,
    /// Start time in clock ticks after boot: field 22 of `/proc/PID/stat`, proc_pid_stat(5).
    pub start: u64,
}

impl Incarnation {
    /// The calling process. Not cached, so it is right after a fork too.
    ///
    /// Where `/proc` cannot be read the start time is 0, which no process ever has: peers then find this process
    /// dead, and this process finds every peer dead, which is the failure wanted.
    pub fn me() -> Incarnation {
        let pid = std::process::id();
        Incarnation::of(pid).unwrap_or(Incarnation { pid, start: 0 })
    }

    /// The process that has this pid now. A zombie still has its pid; [`PidFd::is_dead`] tells.
    ///
    /// # Errors
    /// `ESRCH` if there is none, `InvalidData` if the kernel's answer cannot be understood, and whatever reading
    /// `/proc` gives.
    pub fn of(pid: u32) -> io::Result<Incarnation> {
        let stat = fs::read(format!("/proc/{pid}/stat")).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => no_such_process(),
            _ => error,
        })?;
        let start = start_time(&stat).ok_or_else(|| {
            io::Error::new(
                io::ErrorKind::InvalidData,
                format!("/proc/{pid}/stat has no start time in field 22"),
            )
        })?;
        Ok(Incarnation { pid, start })
    }

    /// Whether it is stopped by a signal or a debugger (state `T` or `t` of `/proc/PID/stat`).
    pub fn is_stopped(self) -> bool {
        let stat = fs::read(format!("/proc/{}/stat", self.pid)).unwrap_or_default();
        let state = stat
            .iter()
            .rposition(|&byte| byte == b')')
            .and_then(|end| stat.get(end + 2));
        start_time(&stat) == Some(self.start) && matches!(state, Some(b'T' | b't'))
    }
}

/// Field 22 of a stat line. The second field is the program's name in parentheses, which may itself hold spaces and
/// parentheses, so counting begins after the last closing one: what follows is field 3.
fn start_time(stat: &[u8]) -> Option<u64> {
    let name_end = stat.iter().rposition(|&byte| byte == b')')?;
    let rest = std::str::from_utf8(stat.get(name_end + 1..)?).ok()?;
    rest.split_ascii_whitespace().nth(22 - 3)?.parse().ok()
}

fn no_such_process() -> io::Error {
    io::Error::from_raw_os_error(libc::ESRCH)
}

/// A hold on one incarnation, by which its end can be seen. See pidfd_open(2).
#[derive(Debug)]
pub struct PidFd {
    fd: OwnedFd,
}

impl PidFd {
    /// Opens a pidfd and then looks at the start time again: if the pid had been given to another process before
    /// the open, that shows; if it is given away after, the pidfd stays with the old process.
    ///
    /// # Errors
    /// `ESRCH` if this incarnation is gone and reaped, and what pidfd_open(2) gives (`EMFILE`, `ENOSYS` before
    /// Linux 5.3).
    pub fn open(who: Incarnation) -> io::Result<PidFd> {
        let pid = libc::pid_t::try_from(who.pid).map_err(|_| no_such_process())?;
        // SAFETY: pidfd_open takes two integers and touches no memory of ours.
        let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
        if fd < 0 {
            let error = io::Error::last_os_error();
            // pid 0 and negative pids are EINVAL: there is no such process either.
            return Err(match error.raw_os_error() {
                Some(libc::EINVAL) => no_such_process(),
                _ => error,
            });
        }
        // SAFETY: the call succeeded, so this is a fresh descriptor that nothing else owns; descriptors fit an int.
        let fd = unsafe { OwnedFd::from_raw_fd(fd as i32) };
        if Incarnation::of(who.pid)? != who {
            return Err(no_such_process());
        }
        Ok(PidFd { fd })
    }

    /// Whether the process has ended. A zombie has: its threads are gone and nothing of it moves any more.
    pub fn is_dead(&self) -> bool {
        let mut poll = libc::pollfd {
            fd: self.fd.as_raw_fd(),
            events: libc::POLLIN,
            revents: 0,
        };
        loop {
            // SAFETY: `poll` is one pollfd that lives across the call; a timeout of 0 does not block.
            let ready = unsafe { libc::poll(&mut poll, 1, 0) };
            if ready >= 0 {
                return ready > 0 && poll.revents & libc::POLLIN != 0;
            }
            // EINTR: ask again. ENOMEM: unknown, and "alive" is the answer that gives nothing back too early.
            if io::Error::last_os_error().kind() != io::ErrorKind::Interrupted {
                return false;
            }
        }
    }
}

impl AsFd for PidFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn names_with_spaces_and_parentheses_do_not_shift_the_fields() {
        let tail = " S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 4711 20 21";
        for name in ["a", "a b", "a) S 9 (b", ") ) )", ""] {
            let line = format!("42 ({name}){tail}\n");
            assert_eq!(start_time(line.as_bytes()), Some(4711), "{line}");
        }
    }

    #[test]
    fn cut_lines_are_no_start_time() {
        for line in ["", "42", "42 (a", "42 (a)", "42 (a) S 1 2", "42 (a) S x y"] {
            assert_eq!(start_time(line.as_bytes()), None, "{line}");
        }
        let not_a_number = "1 (a) S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 x 20";
        assert_eq!(start_time(not_a_number.as_bytes()), None);
    }

    #[test]
    fn i_am_alive_and_the_same_from_every_thread() {
        let me = Incarnation::me();
        assert_ne!(me.start, 0);
        let elsewhere = std::thread::spawn(Incarnation::me).join().unwrap();
        assert_eq!(me, elsewhere);
        assert!(!PidFd::open(me).unwrap().is_dead());
    }

    #[test]
    fn a_zombie_is_dead_and_a_reaped_process_is_not_found() {
        let mut child = Command::new("sleep").arg("1000").spawn().unwrap();
        let who = Incarnation::of(child.id()).unwrap();
        let pidfd = PidFd::open(who).unwrap();
        assert!(!pidfd.is_dead());
        child.kill().unwrap();
        // Wait for the end without reaping, so that the child is a zombie below.
        let mut poll = libc::pollfd {
            fd: pidfd.as_fd().as_raw_fd(),
            events: libc::POLLIN,
            revents: 0,
        };
        // SAFETY: one pollfd that lives across the call.
        assert_eq!(unsafe { libc::poll(&mut poll, 1, 60_000) }, 1);
        assert!(pidfd.is_dead());
        assert_eq!(
            Incarnation::of(who.pid).unwrap(),
            who,
            "a zombie keeps its pid"
        );
        child.wait().unwrap();
        assert!(pidfd.is_dead());
        assert_eq!(
            PidFd::open(who).unwrap_err().raw_os_error(),
            Some(libc::ESRCH)
        );
    }

    #[test]
    fn a_pid_given_out_again_is_not_the_old_process() {
        let me = Incarnation::me();
        let predecessor = Incarnation {
            start: me.start - 1,
            ..me
        };
        assert_eq!(
            PidFd::open(predecessor).unwrap_err().raw_os_error(),
            Some(libc::ESRCH)
        );
        for pid in [0, u32::MAX, i32::MAX as u32] {
            let nobody = Incarnation { pid, start: 1 };
            assert_eq!(
                PidFd::open(nobody).unwrap_err().raw_os_error(),
                Some(libc::ESRCH),
                "{pid}"
            );
        }
    }
}
