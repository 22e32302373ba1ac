//! Completion channels: sleeping until a completion arrives.
//!
//! One channel can serve several completion queues, waited for by several threads, while the descriptor tells events to
//! whoever reads first. So at any moment at most one thread reads: it files each event under its queue and wakes the others,
//! which wait on a condition variable. Whoever leaves the descriptor wakes the others too, and one of them takes its place.
//!
//! Events are counted per queue and acknowledged in batches, and all of them before the queue is destroyed, because
//! `ibv_destroy_cq` waits for that.

use std::collections::HashMap;
use std::ffi::c_int;
use std::fmt;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ibverbs_sys::{ibv_comp_channel, ibv_cq};
use parking_lot::{Condvar, Mutex};

use crate::errno;
use crate::fd::{set_nonblocking, wait_readable};
use crate::{Context, CqId, Error};

/// A completion channel, to block on until a completion arrives on one of its queues. A handle: clones are the same channel.
///
/// [`Cq::wait`](crate::Cq::wait) does all there is to do for one queue. For several queues, or together with other
/// descriptors: [`Cq::arm`](crate::Cq::arm) each, poll each once more, wait until the descriptor ([`AsFd`]) is readable or in
/// [`wait`](Self::wait), then poll the queues named.
#[doc(alias = "ibv_comp_channel")]
#[derive(Clone)]
pub struct Channel(Arc<Inner>);

struct Inner {
    channel: NonNull<ibv_comp_channel>,
    ctx: Context,
    state: Mutex<State>,
    changed: Condvar,
}

// SAFETY: events are read by one thread at a time, under the lock; the verbs may be called from any.
unsafe impl Send for Inner {}
// SAFETY: as above.
unsafe impl Sync for Inner {}

#[derive(Default)]
struct State {
    /// A thread sleeps on the descriptor.
    reading: bool,
    queues: HashMap<u64, Events>,
}

#[derive(Default)]
struct Events {
    /// Events read and not yet told to a waiter.
    pending: bool,
    /// Events read and not yet acknowledged.
    unacked: u32,
}

/// Acknowledging takes a lock in the library: done for so many events at once.
const ACK_BATCH: u32 = 1024;

impl Drop for Inner {
    #[doc(alias = "ibv_destroy_comp_channel")]
    fn drop(&mut self) {
        // SAFETY: created below; its queues hold it. A failure (after a leaked queue) leaks it and the device.
        if unsafe { (self.ctx.api().ibv_destroy_comp_channel)(self.channel.as_ptr()) } != 0 {
            std::mem::forget(self.ctx.clone());
        }
    }
}

impl Channel {
    #[doc(alias = "ibv_create_comp_channel")]
    pub(crate) fn new(ctx: &Context) -> Result<Channel, Error> {
        // SAFETY: the context is open.
        let channel = errno::object(unsafe { (ctx.api().ibv_create_comp_channel)(ctx.raw()) })
            .map_err(|e| Error::verb("ibv_create_comp_channel", e))?;
        let inner = Inner {
            channel,
            ctx: ctx.clone(),
            state: Mutex::default(),
            changed: Condvar::new(),
        };
        set_nonblocking(inner.fd())
            .map_err(|e| Error::hinted("fcntl", e, "descriptor of the completion channel"))?;
        Ok(Channel(Arc::new(inner)))
    }

    pub(crate) fn raw(&self) -> *mut ibv_comp_channel {
        self.0.channel.as_ptr()
    }

    pub(crate) fn context(&self) -> &Context {
        &self.0.ctx
    }

    /// A queue was created on the channel.
    pub(crate) fn join(&self, id: CqId) {
        self.0.state.lock().queues.insert(id.0, Events::default());
    }

    /// Destroys a queue of the channel, once all events read of it are acknowledged. Nobody reads events meanwhile, so that
    /// none can name a queue that is just going away.
    pub(crate) fn destroy_cq(
        &self,
        id: CqId,
        cq: *mut ibv_cq,
        destroy: impl FnOnce() -> c_int,
    ) -> c_int {
        let mut state = self.0.state.lock();
        if let Some(Events {
            unacked: n @ 1.., ..
        }) = state.queues.remove(&id.0)
        {
            // SAFETY: the queue is still alive, and `n` of its events are unacknowledged.
            unsafe { (self.0.ctx.api().ibv_ack_cq_events)(cq, n) };
        }
        destroy()
    }

    /// Sleeps until one of the channel's queues has had an event, which is taken; `None` when the time ran out first.
    ///
    /// # Errors
    /// When the descriptor cannot be read.
    #[doc(alias = "ibv_get_cq_event")]
    pub fn wait(&self, timeout: Option<Duration>) -> Result<Option<CqId>, Error> {
        let deadline = timeout.and_then(|t| Instant::now().checked_add(t));
        self.wait_until(deadline, |queues| {
            let (id, events) = queues.iter_mut().find(|(_, e)| e.pending)?;
            events.pending = false;
            Some(CqId(*id))
        })
    }

    /// Sleeps until the queue has had an event, which is taken; `false` when the time ran out first.
    pub(crate) fn wait_for(&self, id: CqId, deadline: Option<Instant>) -> Result<bool, Error> {
        let taken = self.wait_until(deadline, |queues| {
            let events = queues.get_mut(&id.0)?;
            std::mem::take(&mut events.pending).then_some(())
        })?;
        Ok(taken.is_some())
    }

    fn wait_until<T>(
        &self,
        deadline: Option<Instant>,
        mut take: impl FnMut(&mut HashMap<u64, Events>) -> Option<T>,
    ) -> Result<Option<T>, Error> {
        let inner = &*self.0;
        let mut state = inner.state.lock();
        loop {
            if let Some(found) = take(&mut state.queues) {
                return Ok(Some(found));
            }
            if state.reading {
                let timed_out = match deadline {
                    Some(at) => inner.changed.wait_until(&mut state, at).timed_out(),
                    None => {
                        inner.changed.wait(&mut state);
                        false
                    }
                };
                if timed_out && state.reading {
                    return Ok(take(&mut state.queues));
                }
                continue;
            }
            if inner.read_events(&mut state)? > 0 {
                continue;
            }
            let left = deadline.map(|at| at.saturating_duration_since(Instant::now()));
            if left == Some(Duration::ZERO) {
                return Ok(None);
            }
            state.reading = true;
            drop(state);
            let slept = wait_readable(inner.fd(), left);
            state = inner.state.lock();
            state.reading = false;
            inner.changed.notify_all();
            slept.map_err(|e| Error::hinted("poll", e, "descriptor of the completion channel"))?;
        }
    }
}

impl Inner {
    fn fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the descriptor is open as long as the channel, which `self` owns.
        unsafe { BorrowedFd::borrow_raw(self.channel.as_ref().fd) }
    }

    /// Files all events that are there, without blocking, and says how many.
    fn read_events(&self, state: &mut State) -> Result<usize, Error> {
        let api = self.ctx.api();
        let mut count = 0;
        loop {
            let (mut cq, mut token) = (std::ptr::null_mut(), std::ptr::null_mut());
            // SAFETY: the channel is alive, both results are writable; the descriptor does not block.
            if unsafe { (api.ibv_get_cq_event)(self.channel.as_ptr(), &mut cq, &mut token) } != 0 {
                let e = io::Error::last_os_error();
                return match e.kind() {
                    io::ErrorKind::WouldBlock => Ok(count),
                    io::ErrorKind::Interrupted => continue,
                    _ => Err(Error::verb("ibv_get_cq_event", e)),
                };
            }
            count += 1;
            let ack = match state.queues.get_mut(&(token.addr() as u64)) {
                Some(events) => {
                    events.pending = true;
                    events.unacked += 1;
                    if events.unacked < ACK_BATCH {
                        continue;
                    }
                    std::mem::take(&mut events.unacked)
                }
                // Of a queue that could not be destroyed.
                None => 1,
            };
            // SAFETY: a queue with unacknowledged events is not destroyed before they are acknowledged.
            unsafe { (api.ibv_ack_cq_events)(cq, ack) };
        }
    }
}

impl AsFd for Channel {
    /// Readable when an event has arrived that nobody has taken.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.fd()
    }
}

impl fmt::Debug for Channel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Channel")
            .field("fd", &self.0.fd().as_raw_fd())
            .finish()
    }
}
