//! Waiting for many descriptors: epoll(7).

use crate::wait::timespec;
use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::time::Duration;

/// Events taken in one call.
const BATCH: usize = 64;

/// A set of descriptors, each with a token that tells which became readable.
#[derive(Debug)]
pub(crate) struct Epoll {
    fd: OwnedFd,
    events: Vec<libc::epoll_event>,
    /// Whether the kernel is to be asked to wait for parts of a millisecond.
    precise: bool,
}

impl Epoll {
    pub fn new() -> io::Result<Epoll> {
        // SAFETY: a plain system call; the descriptor is checked before it is owned.
        let fd = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(Epoll {
            // SAFETY: fresh from the kernel, and owned by nobody else.
            fd: unsafe { OwnedFd::from_raw_fd(fd) },
            events: Vec::with_capacity(BATCH),
            precise: true,
        })
    }

    /// Watches a descriptor for input, its end and errors.
    pub fn add(&self, fd: impl AsFd, token: u64) -> io::Result<()> {
        let mut event = libc::epoll_event {
            events: (libc::EPOLLIN | libc::EPOLLRDHUP) as u32,
            u64: token,
        };
        self.control(libc::EPOLL_CTL_ADD, fd, &mut event)
    }

    /// Stops watching a descriptor; one that is closed is not watched any more anyway.
    pub fn remove(&self, fd: impl AsFd) -> io::Result<()> {
        let mut event = libc::epoll_event { events: 0, u64: 0 };
        self.control(libc::EPOLL_CTL_DEL, fd, &mut event)
    }

    fn control(
        &self,
        op: libc::c_int,
        fd: impl AsFd,
        event: &mut libc::epoll_event,
    ) -> io::Result<()> {
        let fd = fd.as_fd().as_raw_fd();
        // SAFETY: both descriptors are open, and the event outlives the call.
        if unsafe { libc::epoll_ctl(self.fd.as_raw_fd(), op, fd, event) } < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(())
    }

    /// Waits until something is readable or the time (`None`: for ever) is over; the tokens. Allocates nothing. Where the kernel is older than 5.11, a time is
    /// one of whole milliseconds.
    pub fn wait(
        &mut self,
        timeout: Option<Duration>,
    ) -> io::Result<impl Iterator<Item = u64> + use<>> {
        self.events.clear();
        let n = self.wait_raw(timeout);
        if n < 0 {
            let error = io::Error::last_os_error();
            if error.kind() != io::ErrorKind::Interrupted {
                return Err(error);
            }
        }
        // SAFETY: as above; `n` is at most `BATCH`, the capacity.
        unsafe { self.events.set_len(usize::try_from(n).unwrap_or(0)) };
        let mut tokens = [0; BATCH];
        for (token, event) in tokens.iter_mut().zip(&self.events) {
            *token = event.u64;
        }
        Ok(tokens.into_iter().take(self.events.len()))
    }

    /// The system call.
    fn wait_raw(&mut self, timeout: Option<Duration>) -> libc::c_int {
        let (fd, events) = (self.fd.as_raw_fd(), self.events.as_mut_ptr());
        const MOST: libc::c_int = BATCH as libc::c_int;
        if let Some(time) = timeout.filter(|time| self.precise && !time.is_zero()) {
            let spec = timespec(time);
            let mask = std::ptr::null::<libc::sigset_t>();
            // SAFETY: there is room for `BATCH` events, and the kernel writes the first `n`; the time outlives the call; no signal mask is changed.
            let n =
                unsafe { libc::syscall(libc::SYS_epoll_pwait2, fd, events, MOST, &spec, mask, 0) };
            let error = io::Error::last_os_error().raw_os_error();
            // Before Linux 5.11 there is none, and what confines programs may refuse what it does not know.
            if n >= 0 || !matches!(error, Some(libc::ENOSYS | libc::EPERM)) {
                return n as libc::c_int;
            }
            self.precise = false;
        }
        // Rounded up, so that a wait for a moment in the future does not spin towards it.
        let ms = timeout.map_or(-1, |t| {
            libc::c_int::try_from(t.as_nanos().div_ceil(1_000_000)).unwrap_or(libc::c_int::MAX)
        });
        // SAFETY: there is room for `BATCH` events, and the kernel writes the first `n`.
        unsafe { libc::epoll_wait(fd, events, MOST, ms) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wait::WakeUp;
    use std::time::Instant;

    #[test]
    fn tokens_of_what_is_readable() {
        let mut epoll = Epoll::new().unwrap();
        let (a, b) = (WakeUp::new().unwrap(), WakeUp::new().unwrap());
        epoll.add(&a, 7).unwrap();
        epoll.add(&b, 8).unwrap();
        assert_eq!(epoll.wait(Some(Duration::ZERO)).unwrap().count(), 0);
        b.wake();
        assert_eq!(epoll.wait(None).unwrap().collect::<Vec<_>>(), [8]);
        b.clear();
        a.wake();
        epoll.remove(&a).unwrap();
        let wait = Some(Duration::from_micros(1));
        assert_eq!(epoll.wait(wait).unwrap().count(), 0);
    }

    /// A core sleeps until a fetched reply of a client is due, which is a matter of microseconds.
    #[test]
    fn waits_are_as_short_as_asked_for() {
        let mut epoll = Epoll::new().unwrap();
        let time = Duration::from_micros(50);
        let mut shortest = Duration::MAX;
        for _ in 0..200 {
            let start = Instant::now();
            assert_eq!(epoll.wait(Some(time)).unwrap().count(), 0);
            shortest = shortest.min(start.elapsed());
        }
        assert!(shortest >= time, "{shortest:?}");
        // Nothing to be seen where the kernel cannot.
        assert!(
            !epoll.precise || shortest < Duration::from_micros(900),
            "{shortest:?}"
        );

        // As such kernels are asked.
        epoll.precise = false;
        let start = Instant::now();
        assert_eq!(epoll.wait(Some(time)).unwrap().count(), 0);
        assert!(start.elapsed() >= time);
    }
}
