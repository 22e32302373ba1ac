//! Waiting for many descriptors: epoll(7).

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

    /// Waits until something is readable or the time (`None`: for ever) is over; the tokens. Allocates nothing.
    pub fn wait(
        &mut self,
        timeout: Option<Duration>,
    ) -> io::Result<impl Iterator<Item = u64> + use<>> {
        // Rounded up, so that a wait for a moment in the future does not spin towards it.
        let ms = timeout.map_or(-1, |t| {
            libc::c_int::try_from(t.as_nanos().div_ceil(1_000_000)).unwrap_or(libc::c_int::MAX)
        });
        self.events.clear();
        // SAFETY: there is room for `BATCH` events, and the kernel writes the first `n`.
        let n = unsafe {
            libc::epoll_wait(
                self.fd.as_raw_fd(),
                self.events.as_mut_ptr(),
                BATCH as libc::c_int,
                ms,
            )
        };
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
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wait::WakeUp;

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
}
