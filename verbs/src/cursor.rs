//! Polling with a cursor, which reads of a completion what is asked for.

use std::fmt;
use std::marker::PhantomData;
use std::time::{Duration, SystemTime};

use ibverbs_sys::{ibv_cq_ex, ibv_wc};

use crate::cq::Kept;
use crate::extended_cq::{Extended, Times};
use crate::{Completion, Cq, CqId, Error, QueueId, Wc, WcError, WcFields, WcStatus};

/// A poll of an [extended](crate::CqBuilder::extended) completion queue, from its start to its end, which is when this is dropped; made
/// by [`Cq::start_poll`].
///
/// It borrows the queue, so nothing else can poll it meanwhile. Devices may hold a lock until it ends: do not destroy queue pairs
/// of this completion queue before.
///
/// ```
/// # use verbs::{Device, Private, WcFields};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let ctx = Device::open_spec("soft0")?;
/// # let pd = ctx.alloc_pd()?;
/// let mut cq = ctx.cq(256).extended(WcFields::COMPLETION_TIME).build()?;
/// # let ready = pd.rc(&cq).build()?;
/// # let own = ready.endpoint();
/// # let (mut tx, mut rx) = ready.connect::<Private<Vec<u8>>, Private<Vec<u8>>>(&own)?;
/// rx.post(pd.register(vec![0; 64])?)?;
/// tx.send(pd.register(b"hello".to_vec())?).post()?;
/// # while !cq.start_poll()?.is_ready() {}
/// let mut poll = cq.start_poll()?;
/// while let Some(c) = poll.next() {
///     assert_eq!(c.byte_len(), 5);
///     println!("at {:?} by the device's clock", c.completion_ticks());
///     if c.queue() == rx.id() {
///         assert_eq!(rx.redeem(c.into_completion())??.bytes(), b"hello");
///     }
/// }
/// # Ok(()) }
/// ```
#[doc(alias = "ibv_start_poll")]
#[must_use = "completions come from next()"]
pub struct Poll<'q> {
    cq: &'q mut Cq,
    state: State,
    /// Ended by the thread that started it: devices may hold a lock.
    here: PhantomData<*const ()>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    /// The device shows a completion that nobody has seen yet.
    Ready,
    /// The device shows one that was yielded.
    Seen,
    Ended,
}

impl Cq {
    /// Begins to poll with a cursor, which reads of each completion what is asked for. For extended queues only.
    ///
    /// Completions that were kept for the next poll, by a [scope](crate::SendQueue::scope) or by [`wait`](Self::wait), come first.
    ///
    /// # Errors
    /// [`Error::NotExtended`]; [`Error::CqBroken`] when the queue overflowed or the device failed, also in the middle of the poll before.
    #[doc(alias = "ibv_start_poll")]
    pub fn start_poll(&mut self) -> Result<Poll<'_>, Error> {
        let departed = self.departed();
        let (extended, raw) = self.extended().ok_or(Error::NotExtended)?;
        // SAFETY: the queue is alive, and borrowed mutably as long as the poll is open.
        let state = match unsafe { extended.start(raw) } {
            0 => State::Ready,
            libc::ENOENT => State::Ended,
            errno => return Err(Error::CqBroken { code: -errno.abs() }),
        };
        if state == State::Ended {
            self.found_empty(departed);
        }
        Ok(Poll {
            cq: self,
            state,
            here: PhantomData,
        })
    }
}

impl Poll<'_> {
    /// The next completion, which can be looked at until this is called again; `None` when there is no more, or the device failed,
    /// which the next poll says.
    #[doc(alias = "ibv_next_poll")]
    #[allow(
        clippy::should_implement_trait,
        reason = "what it yields borrows the cursor: no iterator can"
    )]
    pub fn next(&mut self) -> Option<Polled<'_>> {
        if let Some(kept) = self.cq.next_kept() {
            return Some(Polled(What::Kept(kept)));
        }
        if self.state == State::Seen {
            self.step();
        }
        if self.state == State::Ended {
            return None;
        }
        self.state = State::Seen;
        let id = self.cq.id();
        let (extended, raw) = self.cq.extended()?;
        // SAFETY: a poll is open and shows a completion, until this is called again.
        let (wr_id, status) = unsafe { ((*raw).wr_id, (*raw).status) };
        // Who it belongs to, and how it ended: all that is read whatever is asked for.
        let wc = ibv_wc {
            wr_id,
            status,
            ..ibv_wc::default()
        };
        Some(Polled(What::Shown {
            extended,
            raw,
            id,
            head: Completion::from_sys(id, &wc),
        }))
    }

    /// Whether [`next`](Self::next) will yield one without asking the device.
    pub fn is_ready(&self) -> bool {
        self.state == State::Ready || self.cq.has_kept()
    }

    fn step(&mut self) {
        let departed = self.cq.departed();
        let Some((extended, raw)) = self.cq.extended() else {
            return;
        };
        // SAFETY: a poll is open.
        match unsafe { extended.next(raw) } {
            0 => self.state = State::Ready,
            ret => {
                self.end();
                if ret == libc::ENOENT {
                    self.cq.found_empty(departed);
                }
            }
        }
    }

    #[doc(alias = "ibv_end_poll")]
    fn end(&mut self) {
        if let Some((extended, raw)) = self.cq.extended() {
            // SAFETY: it is open: each way here comes from a state in which it is.
            unsafe { extended.end(raw) };
        }
        self.state = State::Ended;
    }
}

impl Drop for Poll<'_> {
    fn drop(&mut self) {
        if self.state == State::Ready
            && let Some((extended, raw)) = self.cq.extended()
        {
            let id = self.cq.id();
            // The device has given it up, and nobody has seen it.
            // SAFETY: a poll is open and shows it.
            let kept = unsafe {
                Kept {
                    completion: shown(extended, raw, id),
                    times: extended.times(raw),
                }
            };
            self.cq.keep_with(kept);
        }
        if self.state != State::Ended {
            self.end();
        }
    }
}

impl fmt::Debug for Poll<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Poll")
            .field("cq", &self.cq)
            .field("ready", &self.is_ready())
            .finish()
    }
}

/// A completion that a [`Poll`] shows. [`into_completion`](Self::into_completion) makes it one to be redeemed; dropped, it is as a
/// [`Completion`] that is dropped.
#[must_use = "its buffer comes back with into_completion()"]
pub struct Polled<'p>(What<'p>);

enum What<'p> {
    Kept(Kept),
    Shown {
        extended: &'p Extended,
        raw: *mut ibv_cq_ex,
        id: CqId,
        /// Of it only identity and status are good.
        head: Completion,
    },
}

impl Polled<'_> {
    fn head(&self) -> &Completion {
        match &self.0 {
            What::Kept(kept) => &kept.completion,
            What::Shown { head, .. } => head,
        }
    }

    /// The queue it belongs to.
    pub fn queue(&self) -> QueueId {
        self.head().queue()
    }

    /// Whether the work request succeeded.
    pub fn is_ok(&self) -> bool {
        self.head().is_ok()
    }

    /// Its status.
    pub fn status(&self) -> WcStatus {
        self.head().status()
    }

    /// Number of the queue pair.
    #[doc(alias = "ibv_wc_read_qp_num")]
    pub fn qp_num(&self) -> u32 {
        self.with(Completion::qp_num)
    }

    /// What it says, without the right to a buffer.
    ///
    /// # Errors
    /// [`WcError`] when the work failed.
    pub fn outcome(&self) -> Result<Wc, WcError> {
        self.with(Completion::outcome)
    }

    /// Bytes received or read, the header of a datagram included; 0 for other work.
    #[doc(alias = "ibv_wc_read_byte_len")]
    pub fn byte_len(&self) -> u32 {
        self.outcome().map_or(0, |wc| wc.byte_len())
    }

    /// The immediate data of what was received.
    #[doc(alias = "ibv_wc_read_imm_data")]
    pub fn imm(&self) -> Option<u32> {
        self.outcome().ok()?.imm()
    }

    /// Number of the queue pair that sent what was received, where [asked for](WcFields::SOURCE). Devices define it for datagrams only.
    #[doc(alias = "ibv_wc_read_src_qp")]
    pub fn source_qpn(&self) -> Option<u32> {
        match &self.0 {
            What::Shown { extended, .. } if !extended.fields().contains(WcFields::SOURCE) => None,
            _ => self.outcome().ok()?.source_qpn(),
        }
    }

    /// The device's clock when the work completed, in ticks, where [asked for](WcFields::COMPLETION_TIME).
    #[doc(alias = "ibv_wc_read_completion_ts")]
    pub fn completion_ticks(&self) -> Option<u64> {
        self.times().ticks
    }

    /// The time of day when the work completed, where [asked for](WcFields::WALL_CLOCK).
    #[doc(alias = "ibv_wc_read_completion_wallclock_ns")]
    pub fn wall_clock(&self) -> Option<SystemTime> {
        SystemTime::UNIX_EPOCH.checked_add(Duration::from_nanos(self.times().wall?))
    }

    /// The completion, to be redeemed with its queue.
    pub fn into_completion(self) -> Completion {
        match self.0 {
            What::Kept(kept) => kept.completion,
            What::Shown {
                extended, raw, id, ..
            } => {
                // SAFETY: what is shown stays so while the cursor is borrowed.
                unsafe { shown(extended, raw, id) }
            }
        }
    }

    fn times(&self) -> Times {
        match &self.0 {
            What::Kept(kept) => kept.times,
            // SAFETY: as above.
            What::Shown { extended, raw, .. } => unsafe { extended.times(*raw) },
        }
    }

    /// Lets `f` look at all of it.
    fn with<T>(&self, f: impl FnOnce(&Completion) -> T) -> T {
        match &self.0 {
            What::Kept(kept) => f(&kept.completion),
            What::Shown {
                extended, raw, id, ..
            } => {
                // SAFETY: as above.
                let shown = unsafe { shown(extended, *raw, *id) };
                f(&shown)
            }
        }
    }
}

/// The completion that the device shows. The caller sees to it that it is handed out once.
///
/// # Safety
/// A poll is open and shows one.
unsafe fn shown(extended: &Extended, raw: *mut ibv_cq_ex, id: CqId) -> Completion {
    let mut wc = ibv_wc::default();
    // SAFETY: the caller's contract.
    unsafe { extended.read(raw, &mut wc) };
    Completion::from_sys(id, &wc)
}

impl fmt::Debug for Polled<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.head(), f)
    }
}
