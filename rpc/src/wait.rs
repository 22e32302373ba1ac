//! How a thread waits for work: spin for a moment, then yield, then sleep.
//!
//! ```text
//!   spin: poll, pause          answers within a few microseconds cost no system call
//!   yield: poll, sched_yield   the peer may need this very core
//!   sleep: arm the queue, poll once more, poll(2) on everything that can wake us
//! ```
//!
//! The first two phases are bounded, so an idle thread costs no CPU. [`neighbours`] says when the first or the second is left out, [`pace`] how often the
//! clock is looked at.

mod neighbours;
mod pace;

use crate::clock::Moment;
use neighbours::{Neighbours, again_after_ns};
use pace::Pace;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::time::Duration;

/// How long a thread that waits keeps looking before it sleeps.
///
/// Longer looking answers sooner after a pause and burns more CPU; the defaults suit machines with
/// at least as many cores as threads that wait, and do no great harm elsewhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Waiting {
    /// Time spent polling without a system call.
    pub spin: Duration,
    /// Time spent polling and yielding to other threads afterwards.
    pub relax: Duration,
}

impl Default for Waiting {
    fn default() -> Self {
        Waiting {
            spin: Duration::from_micros(10),
            relax: Duration::from_micros(90),
        }
    }
}

impl Waiting {
    /// Sleeps at once: least CPU, one wake-up for each message.
    pub const SLEEP: Waiting = Waiting {
        spin: Duration::ZERO,
        relax: Duration::ZERO,
    };
}

/// What to do after a poll that found nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Next {
    /// Poll again.
    Poll,
    /// Poll again; some time has passed, so look at clocks and sockets as well.
    Look(Moment),
    /// Go to sleep.
    Sleep(Moment),
}

/// Carries waits through their phases, and learns from them who else runs here.
#[derive(Debug)]
pub(crate) struct Waiter {
    policy: Waiting,
    polls: u32,
    since: Option<Moment>,
    /// Whether this wait spins first.
    spins: bool,
    /// Whether the end of this wait has something to teach.
    learns: bool,
    /// How long the core was gone, if the last empty poll ended with a yield.
    yielded: Option<Duration>,
    neighbours: Neighbours,
    /// Whether others have done something in it when the core was [given way](Self::give_way), and for how long it is not, if not.
    gives_way: bool,
    way_due: Moment,
    pace: Pace,
    /// When the clock was looked at last in this wait, and how many rows there had been.
    looked: (Moment, u32),
}

/// Empty polls in a row, with nothing but polling between them.
pub(crate) const POLLS: u32 = 8;

/// How long to sleep at most while a message is due of which nobody will tell.
pub(crate) const DOZE: Duration = Duration::from_millis(1);

impl Waiter {
    pub fn new(policy: Waiting) -> Waiter {
        Waiter {
            policy,
            polls: 0,
            since: None,
            spins: true,
            learns: false,
            yielded: None,
            neighbours: Neighbours::default(),
            gives_way: false,
            way_due: Moment::now(),
            pace: Pace::default(),
            looked: (Moment::now(), 0),
        }
    }

    /// How many empty polls to make in a row.
    #[inline]
    pub fn row(&self) -> u32 {
        self.pace.row
    }

    /// Something was found: the wait is over.
    #[inline]
    pub fn found(&mut self) {
        if self.learns {
            self.learn();
        }
        self.polls = 0;
        self.since = None;
    }

    #[cold]
    fn learn(&mut self) {
        let gone = self.yielded.take();
        // What was there already says nothing: it may have come with the last.
        if gone.is_some() || self.polls > 0 || self.since.is_some() {
            self.neighbours.found(gone);
        }
        self.learns = self.neighbours.wants_to_know();
    }

    /// Nothing was found in a [row](Self::row) of polls. Yields as the phase wants it.
    #[inline]
    pub fn idle(&mut self) -> Next {
        // No pause here: the device's poll makes one, or takes as long by itself.
        self.polls += 1;
        if self.polls < self.pace.rows && !self.neighbours.in_vain && !self.policy.spin.is_zero() {
            return Next::Poll;
        }
        self.look()
    }

    /// Whether others share the core, who do not keep it for long when it is [given way](Self::give_way).
    #[inline]
    pub fn gives_way(&self) -> bool {
        self.gives_way
    }

    /// Whether it is time to find out.
    #[inline]
    pub fn way_is_due(&self, now: Moment) -> bool {
        now >= self.way_due
    }

    /// There has been something to do all the time: lets others run. Those who share a server's core could else not so much as ask, while those who
    /// do not keep it busy.
    #[cold]
    pub fn give_way(&mut self) {
        let now = Moment::now();
        std::thread::yield_now();
        let after = Moment::now();
        let again = again_after_ns(after.since(now));
        self.gives_way = again == 0;
        self.way_due = after.after_ns(again);
    }

    #[cold]
    fn look(&mut self) -> Next {
        let now = Moment::now();
        let since = match self.since {
            Some(since) => {
                let (looked, rows) = self.looked;
                self.pace.took(now.ns_since(looked), self.polls - rows);
                since
            }
            None => {
                self.spins = self.neighbours.wait_spins();
                *self.since.insert(now)
            }
        };
        let waited = now.since(since);
        self.yielded = None;
        if waited < self.policy.spin && self.spins {
            self.polls = 0;
            self.looked = (now, 0);
            self.learns = self.neighbours.wants_to_know();
            return Next::Look(now);
        }
        if waited >= self.policy.spin.saturating_add(self.policy.relax) {
            // Whatever ends a sleep says nothing.
            self.learns = false;
            return Next::Sleep(now);
        }
        std::thread::yield_now();
        let after = Moment::now();
        let gone = after.since(now);
        self.neighbours.yielded(gone);
        self.yielded = Some(gone);
        self.learns = true;
        self.looked = (after, self.polls);
        Next::Look(after)
    }
}

/// Sleeps until one of the descriptors is readable (or broken), or until the time is over.
///
/// Returns which were, as bits in the order given; 0 means that the time is over or a signal came.
pub(crate) fn sleep(fds: &[BorrowedFd<'_>], timeout: Option<Duration>) -> io::Result<u32> {
    debug_assert!(fds.len() <= MAX_FDS);
    let mut polled = [libc::pollfd {
        fd: -1,
        events: libc::POLLIN,
        revents: 0,
    }; MAX_FDS];
    for (slot, fd) in polled.iter_mut().zip(fds) {
        slot.fd = fd.as_raw_fd();
    }
    let count = fds.len().min(MAX_FDS);
    let spec = timeout.map(timespec);
    let spec = spec.as_ref().map_or(std::ptr::null(), |s| s as *const _);
    // SAFETY: `polled` holds `count` entries and outlives the call; `spec` is null or points to a
    // live timespec; no signal mask is changed.
    let n = unsafe {
        libc::ppoll(
            polled.as_mut_ptr(),
            count as libc::nfds_t,
            spec,
            std::ptr::null(),
        )
    };
    if n < 0 {
        let error = io::Error::last_os_error();
        return if error.kind() == io::ErrorKind::Interrupted {
            Ok(0)
        } else {
            Err(error)
        };
    }
    let mut ready = 0;
    for (at, slot) in polled[..count].iter().enumerate() {
        if slot.revents != 0 {
            ready |= 1 << at;
        }
    }
    Ok(ready)
}

const MAX_FDS: usize = 4;

/// A time as the kernel takes it; beyond what fits is for ever, near enough.
pub(crate) fn timespec(time: Duration) -> libc::timespec {
    libc::timespec {
        tv_sec: libc::time_t::try_from(time.as_secs()).unwrap_or(libc::time_t::MAX),
        tv_nsec: time.subsec_nanos().into(),
    }
}

/// Wakes a thread that sleeps in poll(2) or epoll(7).
#[derive(Debug)]
pub(crate) struct WakeUp(std::os::fd::OwnedFd);

impl WakeUp {
    pub fn new() -> io::Result<WakeUp> {
        use std::os::fd::FromRawFd;
        // SAFETY: a plain system call; the descriptor is checked before it is owned.
        let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: fresh from the kernel, and owned by nobody else.
        Ok(WakeUp(unsafe { std::os::fd::OwnedFd::from_raw_fd(fd) }))
    }

    pub fn wake(&self) {
        let one = 1u64.to_ne_bytes();
        // SAFETY: the buffer is 8 bytes and outlives the call. Failure means that the counter is
        // full, so that the thread is being woken already.
        unsafe { libc::write(self.raw(), one.as_ptr().cast(), one.len()) };
    }

    /// Takes back all wake-ups.
    pub fn clear(&self) {
        let mut count = [0u8; 8];
        // SAFETY: the buffer is 8 bytes and outlives the call. Failure means that there was none.
        unsafe { libc::read(self.raw(), count.as_mut_ptr().cast(), count.len()) };
    }

    pub fn raw(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

impl std::os::fd::AsFd for WakeUp {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    #[test]
    fn an_idle_waiter_goes_to_sleep_in_bounded_time() {
        let mut waiter = Waiter::new(Waiting::default());
        let start = Moment::now();
        let mut looks = 0;
        loop {
            match waiter.idle() {
                Next::Poll => {}
                Next::Look(_) => looks += 1,
                Next::Sleep(now) => {
                    assert!(now.since(start) >= Duration::from_micros(100));
                    break;
                }
            }
        }
        assert!(looks > 0);
        waiter.found();
        assert_eq!(waiter.idle(), Next::Poll);
        let mut waiter = Waiter::new(Waiting::SLEEP);
        assert!(matches!(waiter.idle(), Next::Sleep(_)));
    }

    /// Times that are as long as there can be are for ever.
    #[test]
    fn who_is_never_to_sleep_does_not() {
        let mut waiter = Waiter::new(Waiting {
            spin: Duration::from_nanos(1),
            relax: Duration::MAX,
        });
        for _ in 0..1000 {
            assert!(!matches!(waiter.idle(), Next::Sleep(_)));
        }
    }

    /// Polls of a queue that many share are slow; who makes them sleeps as soon as others do.
    #[test]
    fn who_polls_slowly_goes_to_sleep_in_the_same_time() {
        let mut waiter = Waiter::new(Waiting::default());
        let mut polls = 0;
        for _ in 0..3 {
            waiter.found();
            polls = 0;
            loop {
                for _ in 0..waiter.row() {
                    polls += 1;
                    let start = Moment::now();
                    while Moment::now().ns_since(start) < 50_000 {}
                }
                if let Next::Sleep(_) = waiter.idle() {
                    break;
                }
            }
        }
        // One before the wait is known to be one, and two that take the time of the phases.
        assert!(polls <= 3, "{polls} polls of 50 us");
    }

    #[test]
    fn sleepers_are_woken_and_time_out() {
        let a = WakeUp::new().unwrap();
        let b = WakeUp::new().unwrap();
        let fds = [a.as_fd(), b.as_fd()];
        assert_eq!(sleep(&fds, Some(Duration::from_millis(1))).unwrap(), 0);
        std::thread::scope(|s| {
            s.spawn(|| b.wake());
            assert_eq!(sleep(&fds, None).unwrap(), 0b10);
        });
        b.wake();
        b.clear();
        assert_eq!(sleep(&fds, Some(Duration::ZERO)).unwrap(), 0);
    }
}
