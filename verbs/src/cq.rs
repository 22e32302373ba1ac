//! Completion queues.

use std::collections::VecDeque;
use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use ibverbs_sys::{ibv_cq, ibv_cq_ex, ibv_cq_init_attr_ex, ibv_wc};
use parking_lot::Mutex;

use crate::errno;
use crate::extended_cq::{Extended, Times};
use crate::tags::{Stopped, Tag, Tags};
use crate::{Channel, Completion, Context, Error, WcBatch, WcFields};

/// Identity of a completion queue: a counter, never used twice in a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CqId(pub(crate) u64);

impl CqId {
    /// 48 bits, as much as a [`QueueId`](crate::QueueId) has room for: years at a million a second.
    fn next() -> CqId {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        CqId(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}

/// The queue itself, kept alive by [`Cq`] and by the queue pairs that complete on it.
pub(crate) struct CqShared {
    cq: NonNull<ibv_cq>,
    id: CqId,
    ctx: Context,
    channel: Option<Channel>,
    /// Of a queue that is read field by field.
    extended: Option<Extended>,
    /// What `ibv_cq` says, where it can be read while it changes.
    depth: AtomicU64,
    /// Locked when queue pairs are made and destroyed, and once by polling after one was.
    tags: Mutex<Tags>,
    /// Copy of [`Tags::departed`], for polling.
    departed: AtomicU64,
}

// SAFETY: only `Cq`, of which there is one and which needs `&mut`, polls. Everything else may be called from any thread.
unsafe impl Send for CqShared {}
// SAFETY: as above.
unsafe impl Sync for CqShared {}

impl CqShared {
    pub(crate) fn raw(&self) -> *mut ibv_cq {
        self.cq.as_ptr()
    }

    pub(crate) fn id(&self) -> CqId {
        self.id
    }

    pub(crate) fn context(&self) -> &Context {
        &self.ctx
    }

    /// Whether it tells who sent a datagram.
    pub(crate) fn tells_source(&self) -> bool {
        self.extended
            .as_ref()
            .is_none_or(|extended| extended.fields().contains(WcFields::SOURCE))
    }

    /// Entries that the device really has room for.
    fn depth(&self) -> u64 {
        self.depth.load(Ordering::Relaxed)
    }

    /// Changes the depth with `resize`, unless its queues need more. The tags are locked, so that none is given out meanwhile.
    pub(crate) fn resize(
        &self,
        depth: u32,
        resize: impl FnOnce(*mut ibv_cq) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let tags = self.tags.lock();
        let (claimed, depth) = (tags.claimed() + tags.leftover(), u64::from(depth));
        if claimed > depth && depth < self.depth() {
            return Err(Error::CqTooSmall {
                depth,
                claimed,
                leftover: tags.leftover(),
            });
        }
        resize(self.raw())?;
        // SAFETY: alive; the field is written by the call above only.
        let granted = unsafe { (*self.raw()).cqe };
        self.depth
            .store(u64::try_from(granted).unwrap_or(depth), Ordering::Relaxed);
        Ok(())
    }

    /// A tag for a new queue of `depth` work requests.
    pub(crate) fn acquire_tag(&self, depth: u32, overcommit: bool) -> Result<Tag, Error> {
        let mut tags = self.tags.lock();
        self.room_for(&tags, depth.into(), overcommit)?;
        tags.acquire(depth).ok_or(Error::TooManyQueues)
    }

    /// Takes back what [`acquire_tag`](Self::acquire_tag) gave, once the queue pair is destroyed.
    pub(crate) fn release_tag(&self, tag: u16, depth: u32, end: Stopped) {
        let mut tags = self.tags.lock();
        tags.release(tag, depth, end);
        // Under the lock, so that it only goes up. Who sees it sees also what the queue pair left.
        self.departed.store(tags.departed(), Ordering::Release);
    }

    /// Room for a queue pair that takes from the shared receive queue `number` of `depth`.
    pub(crate) fn join_shared(
        &self,
        number: u32,
        depth: u32,
        overcommit: bool,
    ) -> Result<(), Error> {
        let mut tags = self.tags.lock();
        let more = tags.shared_more(number, depth);
        self.room_for(&tags, more, overcommit)?;
        tags.join_shared(number, depth);
        Ok(())
    }

    /// That queue pair is destroyed, or was never made and so has not `used` the room.
    pub(crate) fn leave_shared(&self, number: u32, used: bool) {
        let mut tags = self.tags.lock();
        tags.leave_shared(number, used);
        self.departed.store(tags.departed(), Ordering::Release);
    }

    /// The shared receive queue is to have `depth` slots.
    pub(crate) fn resize_shared(&self, number: u32, depth: u32) -> Result<(), Error> {
        let mut tags = self.tags.lock();
        let more = tags.shared_grows(number, depth);
        self.room_for(&tags, more, false)?;
        tags.resize_shared(number, depth);
        Ok(())
    }

    /// That is its depth now, for which there was room, after it was so much more.
    pub(crate) fn set_shared(&self, number: u32, depth: u32, less: u32) {
        let mut tags = self.tags.lock();
        tags.resize_shared(number, depth);
        tags.shared_shrunk(number, less);
        self.departed.store(tags.departed(), Ordering::Release);
    }

    fn room_for(&self, tags: &Tags, more: u64, overcommit: bool) -> Result<(), Error> {
        let claimed = tags.claimed() + tags.leftover() + more;
        if more > 0 && claimed > self.depth() && !overcommit {
            return Err(Error::CqTooSmall {
                depth: self.depth(),
                claimed,
                leftover: tags.leftover(),
            });
        }
        Ok(())
    }

    /// Lets the device write completions to `into`; how many. `settled`, of the one handle, is as in [`Cq`].
    #[inline(always)]
    fn poll(&self, settled: &mut u64, into: &mut [ibv_wc]) -> Result<usize, Error> {
        let want = into.len().min(MOST);
        // Before polling: only what had left by then is gone if there is nothing more.
        let departed = self.departed.load(Ordering::Acquire);
        // SAFETY: the queue is alive and only polled through the one handle's `&mut self`, which a cursor borrows; there is room for
        // `want` entries.
        let got = unsafe {
            match &self.extended {
                None => {
                    ibverbs_sys::inline::ibv_poll_cq(self.raw(), want as i32, into.as_mut_ptr())
                }
                Some(extended) => extended.poll(self.raw(), &mut into[..want]),
            }
        };
        let got = match usize::try_from(got) {
            Ok(got) => got.min(want),
            Err(_) => return Err(Error::CqBroken { code: got }),
        };
        if got < want && departed != *settled {
            *settled = departed;
            self.settle(departed);
        }
        Ok(got)
    }

    #[cold]
    fn settle(&self, departed: u64) {
        self.tags.lock().settle(departed);
    }
}

impl Drop for CqShared {
    #[doc(alias = "ibv_destroy_cq")]
    fn drop(&mut self) {
        let cq = self.cq.as_ptr();
        if let Some(extended) = &self.extended {
            // SAFETY: alive, and the handle is gone. One that another thread has left open is destroyed as it is.
            unsafe { extended.end_forgotten(cq.cast()) };
        }
        // SAFETY: created below, and its queue pairs are gone; called once.
        let destroy = || unsafe { (self.ctx.api().ibv_destroy_cq)(cq) };
        let ret = match &self.channel {
            Some(channel) => channel.destroy_cq(self.id, cq, destroy),
            None => destroy(),
        };
        if ret != 0 {
            // It may still be used by a leaked queue pair: channel and device stay.
            std::mem::forget((self.ctx.clone(), self.channel.clone()));
        }
    }
}

/// A completion queue. There is one handle, and polling needs it mutably; queue pairs keep the queue itself alive.
///
/// ```
/// # use std::time::Duration;
/// # use verbs::Device;
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let ctx = Device::open_spec("soft0")?;
/// let channel = ctx.channel()?;
/// let mut cq = ctx.cq(256).channel(&channel).build()?;
/// assert!(cq.poll()?.is_none());
/// assert!(!cq.wait(Some(Duration::from_millis(1)))?, "nothing was posted");
/// # Ok(()) }
/// ```
#[doc(alias = "ibv_cq")]
pub struct Cq {
    shared: Arc<CqShared>,
    /// Taken by `wait` when it looked after arming, and by scopes, which wait for their own; handed out first.
    ahead: VecDeque<Kept>,
    /// Destroyed queues whose leftovers are known to be gone.
    settled: u64,
    /// Where the device writes. Always initialised, if only by what it wrote earlier: what it leaves undefined is then an integer like
    /// any other, and none has to be cleared.
    entry: Entry,
}

/// A completion that was polled and not handed out.
pub(crate) struct Kept {
    pub(crate) completion: Completion,
    pub(crate) times: Times,
}

/// Plain memory for a completion of the device's.
struct Entry(Box<ibv_wc>);

// SAFETY: integers; the pointer type that one member of a union may have is never followed.
unsafe impl Send for Entry {}
// SAFETY: nothing is reached through a shared reference.
unsafe impl Sync for Entry {}

/// Completions polled at once, at most.
const MOST: usize = 1 << 15;

impl Cq {
    /// Its identity.
    pub fn id(&self) -> CqId {
        self.shared.id
    }

    /// Entries it has room for.
    pub fn depth(&self) -> u32 {
        u32::try_from(self.shared.depth()).unwrap_or(u32::MAX)
    }

    pub(crate) fn shared(&self) -> &Arc<CqShared> {
        &self.shared
    }

    /// Moves completions into what room `batch` has, and says how many came. What finds no room stays in the queue.
    ///
    /// Allocates nothing and takes no lock, except for a short one when the queue is found empty for the first time after a queue
    /// pair was destroyed.
    ///
    /// # Errors
    /// [`Error::CqBroken`] when the queue overflowed or the device failed.
    #[doc(alias = "ibv_poll_cq")]
    #[inline]
    pub fn poll_into(&mut self, batch: &mut WcBatch) -> Result<usize, Error> {
        batch.make_room();
        let kept = match self.ahead.is_empty() {
            true => 0,
            false => self.kept_into(batch),
        };
        let room = batch.room();
        if room.is_empty() {
            return Ok(kept);
        }
        let got = self.shared.poll(&mut self.settled, room)?;
        batch.came(self.shared.id, got);
        Ok(kept + got)
    }

    /// Moves kept completions into what room there is; how many.
    #[cold]
    fn kept_into(&mut self, batch: &mut WcBatch) -> usize {
        let count = self.ahead.len().min(batch.room().len());
        for kept in self.ahead.drain(..count) {
            batch.push(&kept.completion);
        }
        count
    }

    /// Takes the oldest completion, if there is one. Cheap as [`poll_into`](Self::poll_into).
    ///
    /// # Errors
    /// As [`poll_into`](Self::poll_into).
    #[doc(alias = "ibv_poll_cq")]
    #[inline(always)]
    pub fn poll(&mut self) -> Result<Option<Completion>, Error> {
        let got = match self.ahead.is_empty() {
            true => self.poll_entry()?,
            false => self.kept_entry(),
        };
        // Both ways lead by the entry, so that it is read in one place, and there no more of it than is looked at.
        Ok(got.then(|| Completion::from_sys(self.shared.id, &self.entry.0)))
    }

    /// Lets the device fill the entry; whether it did.
    #[inline(always)]
    fn poll_entry(&mut self) -> Result<bool, Error> {
        let entry = std::slice::from_mut(&mut *self.entry.0);
        Ok(self.shared.poll(&mut self.settled, entry)? > 0)
    }

    /// Puts the next kept completion where the device would have; whether there is one.
    #[cold]
    #[inline(never)]
    fn kept_entry(&mut self) -> bool {
        let kept = self.next_kept();
        if let Some(kept) = &kept {
            *self.entry.0 = kept.completion.to_sys();
        }
        kept.is_some()
    }

    /// As [`poll_device`](Self::poll_device), with the times, where there are any.
    pub(crate) fn poll_kept(&mut self) -> Result<Option<Kept>, Error> {
        if self.shared.extended.is_none() {
            let times = Times::default();
            return Ok(self
                .poll_device()?
                .map(|completion| Kept { completion, times }));
        }
        let before = self.ahead.len();
        // What a poll shows and nobody has seen is kept, behind all others.
        drop(self.start_poll()?);
        match self.ahead.len() > before {
            true => Ok(self.ahead.pop_back()),
            false => Ok(None),
        }
    }

    /// As [`poll`](Self::poll), without looking at what was [kept](Self::keep_with).
    #[inline(always)]
    pub(crate) fn poll_device(&mut self) -> Result<Option<Completion>, Error> {
        let got = self.poll_entry()?;
        Ok(got.then(|| Completion::from_sys(self.shared.id, &self.entry.0)))
    }

    /// Keeps a completion for the next poll, behind others that are kept.
    pub(crate) fn keep_with(&mut self, kept: Kept) {
        self.ahead.push_back(kept);
    }

    pub(crate) fn next_kept(&mut self) -> Option<Kept> {
        self.ahead.pop_front()
    }

    pub(crate) fn has_kept(&self) -> bool {
        !self.ahead.is_empty()
    }

    /// What an extended queue has besides.
    pub(crate) fn extended(&self) -> Option<(&Extended, *mut ibv_cq_ex)> {
        let extended = self.shared.extended.as_ref()?;
        Some((extended, self.shared.raw().cast()))
    }

    /// Queues destroyed so far: what they left is gone when the queue is [found empty](Self::found_empty) after this was asked.
    pub(crate) fn departed(&self) -> u64 {
        self.shared.departed.load(Ordering::Acquire)
    }

    pub(crate) fn found_empty(&mut self, departed: u64) {
        if departed != self.settled {
            self.settled = departed;
            self.shared.settle(departed);
        }
    }

    /// Asks for an event on the channel when the next completion arrives, or with `solicited` only for one that its sender
    /// marked, or that failed. Completions already there cause none: poll once more afterwards.
    ///
    /// # Errors
    /// [`Error::NoChannel`], or when the device refuses.
    #[doc(alias = "ibv_req_notify_cq")]
    pub fn arm(&mut self, solicited: bool) -> Result<(), Error> {
        if self.shared.channel.is_none() {
            return Err(Error::NoChannel);
        }
        // SAFETY: the queue is alive.
        errno::check(unsafe {
            ibverbs_sys::inline::ibv_req_notify_cq(self.shared.raw(), i32::from(solicited))
        })
        .map_err(|e| Error::verb("ibv_req_notify_cq", e))
    }

    /// Blocks until there is a completion to poll, or for at most `timeout` (`None`: for ever). `false` means that time ran out.
    ///
    /// Arms the queue and looks once more before it sleeps, so nothing is missed. Other queues may use the same channel, also
    /// from other threads.
    ///
    /// # Errors
    /// [`Error::NoChannel`], [`Error::CqBroken`], or when waiting itself fails.
    pub fn wait(&mut self, timeout: Option<Duration>) -> Result<bool, Error> {
        let Some(channel) = self.shared.channel.clone() else {
            return Err(Error::NoChannel);
        };
        // A timeout beyond what the clock can hold is for ever.
        let deadline = timeout.and_then(|t| Instant::now().checked_add(t));
        loop {
            if self.look()? {
                return Ok(true);
            }
            self.arm(false)?;
            if self.look()? {
                return Ok(true);
            }
            if !channel.wait_for(self.shared.id, deadline)? {
                return self.look();
            }
        }
    }

    /// Whether there is a completion; it is kept for the next poll.
    fn look(&mut self) -> Result<bool, Error> {
        if !self.has_kept()
            && let Some(kept) = self.poll_kept()?
        {
            self.keep_with(kept);
        }
        Ok(self.has_kept())
    }
}

impl fmt::Debug for Cq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cq")
            .field("id", &self.shared.id.0)
            .field("depth", &self.depth())
            .finish()
    }
}

/// Builds a [`Cq`].
#[derive(Debug)]
#[must_use = "nothing is created before .build()"]
pub struct CqBuilder {
    ctx: Context,
    depth: u32,
    channel: Option<Channel>,
    extended: Option<WcFields>,
}

impl CqBuilder {
    pub(crate) fn new(ctx: &Context, depth: u32) -> CqBuilder {
        CqBuilder {
            ctx: ctx.clone(),
            depth,
            channel: None,
            extended: None,
        }
    }

    /// Makes a queue that is read field by field, and can be polled with a [cursor](Cq::start_poll); that is quicker on some devices, and
    /// the only way to time stamps. All else is as with other queues. `fields` is what it tells besides length, immediate data and
    /// queue pair.
    #[doc(alias = "ibv_create_cq_ex")]
    pub fn extended(mut self, fields: WcFields) -> CqBuilder {
        self.extended = Some(fields);
        self
    }

    /// Lets the queue be waited for, on this channel.
    pub fn channel(mut self, channel: &Channel) -> CqBuilder {
        self.channel = Some(channel.clone());
        self
    }

    /// Creates the queue.
    ///
    /// # Errors
    /// When the depth is 0 or more than the device has, the channel is another device's, or the device refuses; [`Error::Unsupported`]
    /// when it has no [extended](Self::extended) queues, or not with these fields.
    #[doc(alias = "ibv_create_cq")]
    pub fn build(self) -> Result<Cq, Error> {
        let max = self.ctx.query_device().max_cqe.min(i32::MAX as u32);
        Error::in_range(
            "depth of a completion queue",
            self.depth.into(),
            1,
            max.into(),
        )?;
        let id = CqId::next();
        let channel = match &self.channel {
            Some(channel) if !channel.context().same(&self.ctx) => {
                return Err(Error::OtherDevice {
                    what: "the channel",
                });
            }
            Some(channel) => channel.raw(),
            None => std::ptr::null_mut(),
        };
        // The identity travels as the queue's context pointer and comes back with its events; it is never followed.
        let token = std::ptr::without_provenance_mut(id.0 as usize);
        let (cq, extended) = match self.extended {
            Some(fields) => {
                let mut init = ibv_cq_init_attr_ex {
                    cqe: self.depth,
                    cq_context: token,
                    channel,
                    ..Default::default()
                };
                let (cq, extended) = Extended::create(&self.ctx, fields, &mut init)?;
                (cq, Some(extended))
            }
            None => {
                let create = self.ctx.api().ibv_create_cq;
                let (ctx, depth) = (self.ctx.raw(), self.depth as i32);
                // SAFETY: the context is open, the channel is its own, or none.
                let cq = errno::object(unsafe { create(ctx, depth, token, channel, 0) });
                let hint = || format!("{} entries", self.depth);
                let cq = cq.map_err(|e| Error::hinted("ibv_create_cq", e, hint()))?;
                (cq, None)
            }
        };
        if let Some(channel) = &self.channel {
            channel.join(id);
        }
        // SAFETY: just created.
        let granted = unsafe { cq.as_ref().cqe };
        Ok(Cq {
            shared: Arc::new(CqShared {
                cq,
                id,
                depth: AtomicU64::new(u64::try_from(granted).unwrap_or(0)),
                ctx: self.ctx,
                channel: self.channel,
                extended,
                tags: Mutex::default(),
                departed: AtomicU64::new(0),
            }),
            ahead: VecDeque::with_capacity(1),
            settled: 0,
            entry: Entry(Box::default()),
        })
    }
}
