//! Faults on demand: what a network, an adapter or a peer does once in a while, made to happen here and now.
//!
//! A fault is in force from [`inject`] until its [`Injected`] is dropped, in this process. The data path pays one load of a
//! flag while there is none.
//!
//! ```
//! use softverbs::faults::{Fault, Verb, inject};
//! let injected = inject(Fault::Verb { verb: Verb::RegMr, nth: 3, errno: libc::ENOMEM });
//! // ... the third registration from here on fails ...
//! drop(injected);
//! ```
//!
//! For programs that cannot be changed, the environment says it: see [`environment`](mod@environment).

pub mod environment;

pub use environment::{Malformed, environment};

use crate::sync::Mutex;
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Control verbs that can be made to fail.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs, reason = "named as the verbs are")]
pub enum Verb {
    OpenDevice,
    AllocPd,
    RegMr,
    DeregMr,
    CreateCompChannel,
    CreateCq,
    ReqNotifyCq,
    CreateQp,
    ModifyQp,
    DestroyQp,
    PostSend,
    PostRecv,
}

/// The steps of executing a work request, in order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// Local keys were checked; nothing has been touched.
    Checked,
    /// The hazard word is set: the peer waits for us before it gives memory back.
    Hazard,
    /// The bytes have moved, nobody knows.
    Copied,
    /// The peer's lane has the entry.
    Told,
    /// The hazard word is cleared.
    Left,
    /// The peer has been woken.
    Woken,
}

impl Step {
    /// All of them, in order.
    pub const ALL: [Step; 6] = [
        Step::Checked,
        Step::Hazard,
        Step::Copied,
        Step::Told,
        Step::Left,
        Step::Woken,
    ];
}

/// What happens at a step.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Action {
    /// The queue pair fails: the request completes with this `ibv_wc_status`, what was done stays done.
    Error(u32),
    /// The process is killed (SIGKILL).
    Kill,
    /// The process stops (SIGSTOP) and goes on when somebody continues it.
    Stop,
}

/// A kind of fault. `qp` is a queue pair number, `None` for all; `nth` counts from 1 and from the injection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// Work requests are executed so much later.
    Delay {
        /// Which queue pair.
        qp: Option<u32>,
        /// How much later.
        by: Duration,
    },
    /// The next work requests that take a receive find none, so often.
    ReceiverNotReady {
        /// Which (initiating) queue pair.
        qp: Option<u32>,
        /// How many requests, or tries of them.
        times: u64,
    },
    /// Something happens when a step is reached for the nth time.
    At {
        /// Which (initiating) queue pair.
        qp: Option<u32>,
        /// At which step.
        step: Step,
        /// The how manieth time.
        nth: u64,
        /// What.
        action: Action,
    },
    /// The nth poll of a completion queue finds that it has overflowed. `cq` is its `handle`, `None` for any.
    CqOverflow {
        /// Which completion queue.
        cq: Option<u32>,
        /// The how manieth poll.
        nth: u64,
    },
    /// The nth call of a verb fails.
    Verb {
        /// Which verb.
        verb: Verb,
        /// The how manieth call.
        nth: u64,
        /// With which errno.
        errno: i32,
    },
    /// The device has no immediate data, and says so as devices without it do: by the transport iWARP.
    NoImmediate,
    /// Two WRITEs that are posted with one call, the first without a completion, are executed the other way round, as by a device that does not keep their
    /// order. They complete as they were posted, when both are done. With [`Delay`](Self::Delay) there is time between them in which that can be seen.
    Reversed,
}

struct Entry {
    fault: Fault,
    count: AtomicU64,
    /// When delayed requests were first seen, by queue pair.
    seen: Mutex<HashMap<u32, (u64, Instant)>>,
}

impl Entry {
    /// Counts, and says whether this is the one.
    fn is_nth(&self, nth: u64) -> bool {
        self.count.fetch_add(1, Ordering::Relaxed) + 1 == nth
    }
}

static ACTIVE: AtomicUsize = AtomicUsize::new(0);
static FAULTS: Mutex<Vec<Arc<Entry>>> = Mutex::new(Vec::new());

/// Keeps a fault in force.
#[must_use = "the fault is in force until this is dropped"]
pub struct Injected(Arc<Entry>);

impl Injected {
    /// How often the fault's condition was looked at so far.
    pub fn count(&self) -> u64 {
        self.0.count.load(Ordering::Relaxed)
    }
}

impl Drop for Injected {
    fn drop(&mut self) {
        FAULTS.lock().retain(|entry| !Arc::ptr_eq(entry, &self.0));
        ACTIVE.fetch_sub(1, Ordering::Release);
    }
}

/// Puts a fault in force.
pub fn inject(fault: Fault) -> Injected {
    let entry = Arc::new(Entry {
        fault,
        count: AtomicU64::new(0),
        seen: Mutex::default(),
    });
    FAULTS.lock().push(entry.clone());
    ACTIVE.fetch_add(1, Ordering::Release);
    Injected(entry)
}

/// Whether any fault is in force.
#[inline]
pub(crate) fn active() -> bool {
    ACTIVE.load(Ordering::Relaxed) != 0
}

#[cold]
#[inline(never)]
fn find<T>(mut f: impl FnMut(&Entry) -> Option<T>) -> Option<T> {
    let faults = FAULTS.lock().clone();
    faults.iter().find_map(|entry| f(entry))
}

/// Whether a call of a verb fails, and with which errno.
#[inline]
pub(crate) fn verb(verb: Verb) -> Option<i32> {
    if active() { verb_in_force(verb) } else { None }
}

#[cold]
#[inline(never)]
fn verb_in_force(verb: Verb) -> Option<i32> {
    find(|entry| match entry.fault {
        Fault::Verb {
            verb: which,
            nth,
            errno,
        } if which == verb => entry.is_nth(nth).then_some(errno),
        _ => None,
    })
}

/// What a step brings: `Some(status)` if the request fails there.
#[inline]
pub(crate) fn step(qpn: u32, step: Step) -> Option<u32> {
    if active() {
        step_in_force(qpn, step)
    } else {
        None
    }
}

#[cold]
#[inline(never)]
fn step_in_force(qpn: u32, step: Step) -> Option<u32> {
    let action = find(|entry| match entry.fault {
        Fault::At {
            qp,
            step: at,
            nth,
            action,
        } if at == step && qp.is_none_or(|q| q == qpn) => entry.is_nth(nth).then_some(action),
        _ => None,
    });
    let signal = match action? {
        Action::Error(status) => return Some(status),
        Action::Kill => libc::SIGKILL,
        Action::Stop => libc::SIGSTOP,
    };
    // To this thread, which takes the signal before it does anything more; the others follow.
    // SAFETY: signals this very process, as was asked.
    unsafe { libc::raise(signal) };
    None
}

/// What keeps a request from being executed now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Hindrance {
    Delay,
    ReceiverNotReady,
}

/// Whether request `index` of a queue pair is kept back.
#[inline]
pub(crate) fn hinders(qpn: u32, index: u64, takes_receive: bool) -> Option<Hindrance> {
    if active() {
        hinders_in_force(qpn, index, takes_receive)
    } else {
        None
    }
}

#[cold]
#[inline(never)]
fn hinders_in_force(qpn: u32, index: u64, takes_receive: bool) -> Option<Hindrance> {
    find(|entry| match entry.fault {
        Fault::Delay { qp, by } if qp.is_none_or(|q| q == qpn) => {
            let mut seen = entry.seen.lock();
            let (at, since) = seen.entry(qpn).or_insert((index, Instant::now()));
            if *at != index {
                (*at, *since) = (index, Instant::now());
            }
            (since.elapsed() < by).then_some(Hindrance::Delay)
        }
        Fault::ReceiverNotReady { qp, times } if takes_receive && qp.is_none_or(|q| q == qpn) => {
            (entry.count.fetch_add(1, Ordering::Relaxed) < times)
                .then_some(Hindrance::ReceiverNotReady)
        }
        _ => None,
    })
}

/// Whether a poll finds its completion queue overflowed.
#[inline]
pub(crate) fn overflows(cq: u32) -> bool {
    active()
        && find(|entry| match entry.fault {
            Fault::CqOverflow { cq: which, nth } if which.is_none_or(|c| c == cq) => {
                entry.is_nth(nth).then_some(())
            }
            _ => None,
        })
        .is_some()
}

/// Whether the device has no immediate data.
#[inline]
pub(crate) fn no_immediate() -> bool {
    active() && find(|entry| (entry.fault == Fault::NoImmediate).then_some(())).is_some()
}

/// Whether pairs of WRITEs change places.
#[inline]
pub(crate) fn reversed() -> bool {
    active() && find(|entry| (entry.fault == Fault::Reversed).then_some(())).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nth_call_fails_and_only_that() {
        let injected = inject(Fault::Verb {
            verb: Verb::DestroyQp,
            nth: 2,
            errno: 77,
        });
        let got: Vec<_> = (0..4).map(|_| verb(Verb::DestroyQp)).collect();
        assert_eq!(
            (got, injected.count()),
            (vec![None, Some(77), None, None], 4)
        );
        drop(injected);
        assert_eq!((0..4).find_map(|_| verb(Verb::DestroyQp)), None);
    }

    #[test]
    fn a_delay_is_counted_per_request() {
        let _injected = inject(Fault::Delay {
            qp: Some(0xfff_fff1),
            by: Duration::from_secs(3600),
        });
        assert_eq!(hinders(0xfff_fff1, 3, false), Some(Hindrance::Delay));
        assert_eq!(hinders(0xfff_fff2, 3, false), None);
    }
}
