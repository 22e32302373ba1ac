//! Several work requests with one call of the device, which rings its doorbell once.

use std::fmt;

use ibverbs_sys::{ibv_send_wr, ibv_wr_opcode};

use crate::copied::{BatchCopied, inline};
use crate::errno;
use crate::wr::{Incoming, Op, Outgoing, Word, Work};
use crate::{
    Connected, Gather, PostError, PostErrorKind, PostedInPart, Rc, RemoteRegion, SendQueue, Sge,
    SgeList, StoredAs, Wr,
};

/// For errors.
const WHAT: &str = "work requests of the batch";

/// Work requests that are posted together: made by [`SendQueue::batch`], filled by [`send`](Self::send) and the others, posted by
/// [`post`](Self::post). Dropping it drops the buffers; nothing was posted then.
///
/// ```
/// # use verbs::{Access, Device, Private};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let ctx = Device::open_spec("soft0")?;
/// # let pd = ctx.alloc_pd()?;
/// # let mut cq = ctx.cq(64).build()?;
/// # let ready = pd.rc(&cq).send_depth(8).recv_depth(8).build()?;
/// # let own = ready.endpoint();
/// # let (mut tx, mut rx) = ready.connect::<Private<Vec<u8>>, Private<Vec<u8>>>(&own)?;
/// # rx.post(pd.register(vec![0; 8])?)?;
/// # let shared = pd.expose(64, Access::REMOTE_WRITE)?;
/// # let (data, header) = (pd.register(vec![1; 64])?, pd.register(vec![2; 8])?);
/// let mut batch = tx.batch();
/// batch.write(data, shared.remote()).add()?;
/// batch.send(header).signaled().add()?;
/// batch.post()?;
/// # Ok(()) }
/// ```
#[must_use = "nothing is posted before .post()"]
pub struct Batch<'q, T: Send + 'static, K = Rc> {
    queue: &'q mut SendQueue<T, K>,
}

/// What a batch holds. Its memory stays with the queue, for the next one.
pub(crate) struct Chain<T> {
    values: Vec<T>,
    requests: Vec<ibv_send_wr>,
    /// Of all requests, one after the other.
    segments: Vec<Sge>,
    /// Bytes that are copied while they are posted.
    copied: Vec<u8>,
    /// Segments that lie in there; until they are posted their addresses count from its start.
    within: Vec<usize>,
}

// SAFETY: the pointers in the requests are set when they are posted, and not followed afterwards.
unsafe impl<T: Send> Send for Chain<T> {}
// SAFETY: a shared reference yields the length only.
unsafe impl<T> Sync for Chain<T> {}

impl<T> Chain<T> {
    pub(crate) const fn new() -> Chain<T> {
        Chain {
            values: Vec::new(),
            requests: Vec::new(),
            segments: Vec::new(),
            copied: Vec::new(),
            within: Vec::new(),
        }
    }

    /// Keeps a copy of bytes until all of it is posted, or dropped: where it is, from the start of all that is kept.
    #[inline(always)]
    fn keep(&mut self, bytes: &[u8]) -> usize {
        let at = self.copied.len();
        self.copied.extend_from_slice(bytes);
        at
    }

    pub(crate) fn clear(&mut self) {
        // First what names memory, then the memory: dropping a value may panic.
        self.requests.clear();
        self.segments.clear();
        self.within.clear();
        self.copied.clear();
        self.values.clear();
    }

    pub(crate) fn reserve(&mut self, requests: usize, segments: usize) {
        let missing = |capacity: usize, len: usize| capacity.saturating_sub(len);
        self.values.reserve(missing(requests, self.values.len()));
        self.requests
            .reserve(missing(requests, self.requests.len()));
        self.segments
            .reserve(missing(segments, self.segments.len()));
    }

    #[inline(always)]
    pub(crate) fn len(&self) -> usize {
        self.requests.len()
    }

    /// `list` holds the segments of `value`; `kept`: of what is [kept](Self::keep) here, if there are any.
    #[inline(always)]
    pub(crate) fn push(&mut self, value: T, mut request: ibv_send_wr, list: &SgeList, kept: bool) {
        request.num_sge = list.len() as i32;
        if kept {
            let from = self.segments.len();
            self.within.extend(from..from + list.len());
        }
        self.segments.extend_from_slice(list.as_slice());
        self.requests.push(request);
        self.values.push(value);
    }

    /// Links the requests to their segments and to each other; the first of them, or null.
    #[inline(always)]
    fn link(&mut self) -> *mut ibv_send_wr {
        // Its memory may have moved while it grew; now it stays.
        let copied = self.copied.as_ptr() as u64;
        for at in self.within.drain(..) {
            if let Some(segment) = self.segments.get_mut(at) {
                segment.addr += copied;
            }
        }
        let (first, count) = (self.requests.as_mut_ptr(), self.requests.len());
        let mut segments = self.segments.as_mut_ptr();
        for (at, request) in self.requests.iter_mut().enumerate() {
            request.sg_list = segments.cast();
            segments = segments.wrapping_add(request.num_sge as usize);
            request.next = match at + 1 {
                end if end == count => std::ptr::null_mut(),
                next => first.wrapping_add(next),
            };
        }
        match count {
            0 => std::ptr::null_mut(),
            _ => first,
        }
    }

    /// How many requests come before `bad`, if it is one of them.
    #[cold]
    fn position(&self, bad: *const ibv_send_wr) -> Option<usize> {
        self.requests.iter().position(|wr| std::ptr::eq(wr, bad))
    }
}

impl<'q, T: Send + 'static, K> Batch<'q, T, K> {
    #[inline]
    pub(crate) fn new(queue: &'q mut SendQueue<T, K>) -> Batch<'q, T, K> {
        // Of a batch that was forgotten.
        queue.chain.clear();
        Batch { queue }
    }

    /// Work requests in it.
    pub fn len(&self) -> usize {
        self.queue.chain.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    #[inline(always)]
    pub(crate) fn add<W: Work<T>>(&mut self, work: W, op: Op) -> Result<(), PostError<T>> {
        self.queue.add(work, op)
    }

    /// Posts all of it, in order, with one call. Nothing happens if it is empty.
    ///
    /// Allocates nothing and never blocks.
    ///
    /// # Errors
    /// [`PostedInPart`] when the device refuses a work request: those before it are posted and stay so, it and those after it come
    /// back. What is posted completes as usual, without regard to what was to follow; if none of it was signalled, its buffers come back with
    /// later work.
    #[doc(alias = "ibv_post_send")]
    #[inline]
    pub fn post(self) -> Result<(), PostedInPart<T>> {
        if self.is_empty() {
            return Ok(());
        }
        let way = self.queue.way();
        let chain = &mut self.queue.chain;
        let way = match way {
            Ok(way) => way,
            // Taken down since.
            Err(kind) => {
                return Err(PostedInPart::new(
                    WHAT,
                    kind,
                    0,
                    chain.values.drain(..).collect(),
                ));
            }
        };
        let first = chain.link();
        let (count, mut bad) = (chain.len(), std::ptr::null_mut());
        // SAFETY: the queue pair is alive. The chain ends with null, and the segments are those of the values, which keep their
        // addresses when they move into the ring, where they stay until the device is done: the contracts of `Gather`, `Scatter` and
        // `StoredAs`. Or they lie in what the chain keeps, which nobody touches during the call, and are inline data: read before it returns.
        let ret = unsafe { way.post(first, &mut bad) };
        let posted = if ret == 0 {
            count
        } else {
            // As for single ones: refused is what the library names as refused.
            chain.position(bad).unwrap_or(count)
        };
        let ring = self.queue.half.ring();
        for value in chain.values.drain(..posted) {
            match ring.vacant() {
                Some(vacant) => vacant.fill(value),
                // There was room when they were added, and nobody else fills it. The device has it all the same.
                None => std::mem::forget(value),
            }
        }
        if posted == count {
            return Ok(());
        }
        let errno = errno::number(ret);
        let rest = chain.values.drain(..).collect();
        Err(PostedInPart::new(
            WHAT,
            PostErrorKind::Device { errno },
            posted,
            rest,
        ))
    }
}

/// What all connections do.
impl<T: Send + 'static, K: Connected> Batch<'_, T, K> {
    /// As [`SendQueue::send`]; finish with [`add`](Wr::add).
    #[inline]
    pub fn send(&mut self, work: impl Into<T>) -> Wr<'_, T, Outgoing<T>, Self>
    where
        T: Gather,
    {
        Wr::send(self, work.into())
    }

    /// As [`SendQueue::write`]; finish with [`add`](Wr::add).
    #[inline]
    pub fn write(
        &mut self,
        work: impl Into<T>,
        remote: RemoteRegion,
    ) -> Wr<'_, T, Outgoing<T>, Self>
    where
        T: Gather,
    {
        Wr::write(self, work.into(), remote)
    }
}

/// Bytes that are copied.
impl<T: Send + 'static, K: Connected> Batch<'_, T, K> {
    /// As [`SendQueue::send_copy`]; finish with [`add`](Wr::add). The bytes are copied at once, and once more while they are posted.
    #[doc(alias = "IBV_SEND_INLINE")]
    #[inline(always)]
    pub fn send_copy(&mut self, bytes: &[u8], token: T) -> Wr<'_, T, BatchCopied<T>, Self> {
        let work = self.copied(bytes, token);
        Wr::new(self, work, inline(ibv_wr_opcode::IBV_WR_SEND, None))
    }

    /// As [`SendQueue::write_copy`]; finish with [`add`](Wr::add). The bytes are copied at once, and once more while they are posted.
    #[doc(alias = "IBV_SEND_INLINE")]
    #[inline(always)]
    pub fn write_copy(
        &mut self,
        bytes: &[u8],
        token: T,
        remote: RemoteRegion,
    ) -> Wr<'_, T, BatchCopied<T>, Self> {
        let work = self.copied(bytes, token);
        let op = inline(ibv_wr_opcode::IBV_WR_RDMA_WRITE, Some(remote));
        Wr::new(self, work, op)
    }

    #[inline(always)]
    fn copied(&mut self, bytes: &[u8], token: T) -> BatchCopied<T> {
        BatchCopied {
            at: self.queue.chain.keep(bytes),
            len: bytes.len(),
            token,
        }
    }
}

/// What only reliable connections do.
impl<T: Send + 'static> Batch<'_, T, Rc> {
    /// As [`SendQueue::read`]; finish with [`add`](Wr::add).
    #[inline]
    pub fn read<S: StoredAs<T>>(
        &mut self,
        into: S,
        remote: RemoteRegion,
    ) -> Wr<'_, T, Incoming<S>, Self> {
        Wr::read(self, into, remote)
    }

    /// As [`SendQueue::compare_and_swap`]; finish with [`add`](Wr::add).
    #[inline]
    pub fn compare_and_swap<S: StoredAs<T>>(
        &mut self,
        into: S,
        remote: RemoteRegion,
        compare: u64,
        swap: u64,
    ) -> Wr<'_, T, Word<S>, Self> {
        Wr::compare_and_swap(self, into, remote, [compare, swap])
    }

    /// As [`SendQueue::fetch_and_add`]; finish with [`add`](Wr::add).
    #[inline]
    pub fn fetch_and_add<S: StoredAs<T>>(
        &mut self,
        into: S,
        remote: RemoteRegion,
        add: u64,
    ) -> Wr<'_, T, Word<S>, Self> {
        Wr::fetch_and_add(self, into, remote, add)
    }
}

impl<T: Send + 'static, K> Drop for Batch<'_, T, K> {
    #[inline]
    fn drop(&mut self) {
        self.queue.chain.clear();
    }
}

impl<T: Send + 'static, K> fmt::Debug for Batch<'_, T, K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Batch")
            .field("queue", &self.queue)
            .field("len", &self.len())
            .finish()
    }
}
