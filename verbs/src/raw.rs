//! Posting work requests as they are, for those who keep the memory alive themselves.

use ibverbs_sys::{ibv_recv_wr, ibv_send_wr};

use crate::errno;
use crate::ring;
use crate::tags::RAW_TAG;
use crate::{RecvQueue, SendQueue, Wc, WcError};

/// What a completion says of work that was posted raw: see [`Completion::into_raw`](crate::Completion::into_raw).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RawCompletion {
    /// The lower 48 bits of the `wr_id` that the request was posted with.
    pub wr_id: u64,
    /// Number of the queue pair.
    pub qp_num: u32,
    /// How it ended.
    pub result: Result<Wc, WcError>,
}

/// The device reported a failure of a raw post.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the device refused work after {posted} requests of the chain: {}",
    std::io::Error::from_raw_os_error(*.errno)
)]
#[non_exhaustive]
pub struct RawPostError {
    /// What the device said.
    pub errno: i32,
    /// Requests from the start of the chain that the device has all the same, and whose memory it may use. It can be the whole
    /// chain: some libraries report a failure without naming a request when they had queued all of them.
    pub posted: usize,
}

/// A work request of C's.
trait Request {
    fn next(&self) -> *mut Self;
    fn id(&mut self) -> &mut u64;
}

impl Request for ibv_send_wr {
    #[inline(always)]
    fn next(&self) -> *mut ibv_send_wr {
        self.next
    }
    #[inline(always)]
    fn id(&mut self) -> &mut u64 {
        &mut self.wr_id
    }
}

impl Request for ibv_recv_wr {
    #[inline(always)]
    fn next(&self) -> *mut ibv_recv_wr {
        self.next
    }
    #[inline(always)]
    fn id(&mut self) -> &mut u64 {
        &mut self.wr_id
    }
}

/// Marks the ids of a chain as raw ones, so that no completion of it is taken for one of a queue's.
///
/// # Safety
/// A chain that ends with null, of which nothing else is borrowed.
#[inline(always)]
unsafe fn mark<R: Request>(first: *mut R) {
    let mut at = first;
    // SAFETY: the caller's contract.
    while let Some(wr) = unsafe { at.as_mut() } {
        let id = wr.id();
        *id = ring::id(RAW_TAG, *id);
        at = wr.next();
    }
}

/// What `ret` means, when the first request not posted is `bad`, if the library named one.
///
/// # Safety
/// As [`mark`].
#[cold]
unsafe fn failed<R: Request>(ret: i32, first: *mut R, bad: *mut R) -> RawPostError {
    let (mut posted, mut at) = (0, first);
    while at != bad {
        // SAFETY: the caller's contract.
        let Some(wr) = (unsafe { at.as_ref() }) else {
            break;
        };
        posted += 1;
        at = wr.next();
    }
    RawPostError {
        errno: errno::failed(ret).raw_os_error().unwrap_or(ret),
        posted,
    }
}

impl<T: Send + 'static, K> SendQueue<T, K> {
    /// Posts a chain of work requests as it is, without a check and without taking hold of its memory.
    ///
    /// For what the safe interface does not have, or does not do as cheaply. Both can be used on one queue: each `wr_id` is written anew,
    /// marked as of raw work; its lower 48 bits come back with
    /// [`Completion::into_raw`](crate::Completion::into_raw). [`free_slots`](Self::free_slots) does not count raw work; leave it room
    /// in the queue and in the completion queue.
    ///
    /// ```
    /// # use verbs::{Device, Private, sys};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let ctx = Device::open_spec("soft0")?;
    /// # let pd = ctx.alloc_pd()?;
    /// # let mut cq = ctx.cq(64).build()?;
    /// # let ready = pd.rc(&cq).send_depth(8).recv_depth(8).build()?;
    /// # let own = ready.endpoint();
    /// # let (mut tx, mut rx) = ready.connect::<Private<Vec<u8>>, Private<Vec<u8>>>(&own)?;
    /// # rx.post(pd.register(vec![0; 8])?)?;
    /// let data = pd.register(b"raw".to_vec())?;
    /// let mut segment = sys::ibv_sge { addr: data.as_ptr() as u64, length: 3, lkey: data.lkey().0 };
    /// let mut wr = sys::ibv_send_wr {
    ///     wr_id: 7,
    ///     sg_list: &mut segment,
    ///     num_sge: 1,
    ///     opcode: sys::ibv_wr_opcode::IBV_WR_SEND,
    ///     send_flags: sys::ibv_send_flags::IBV_SEND_SIGNALED.0,
    ///     ..Default::default()
    /// };
    /// // SAFETY: a chain of one, whose segment lies in `data`, which is neither written nor dropped before the completion.
    /// unsafe { tx.post_raw(&mut wr)? };
    /// let done = loop {
    ///     let Some(wc) = cq.poll()? else { continue };
    ///     match wc.into_raw() {
    ///         Ok(raw) => break raw,
    ///         Err(wc) => drop(rx.redeem(wc)??),
    ///     }
    /// };
    /// assert_eq!((done.wr_id, done.result.is_ok()), (7, true));
    /// drop(data);
    /// # Ok(()) }
    /// ```
    ///
    /// # Safety
    /// * `first` starts a chain that ends with a null `next`; all its requests and their segments can be read, and the requests be
    ///   written, until this returns, and nothing else holds a reference to them.
    /// * Each request is valid for a queue pair of this type: `opcode`, flags and the members of the unions that belong to them, and no
    ///   more than the built number of segments and of inline bytes.
    /// * All memory that the requests name by a local key stays registered and allocated until the request is known to be done: by its
    ///   own completion, by that of a later request of this queue, or because [`destroy`](crate::destroy) succeeded. That both halves
    ///   were dropped is not enough: the device may have refused to destroy the queue pair. Memory of inline requests: until this
    ///   returns.
    /// * Until then nobody writes the memory of a send or WRITE, and nobody reads or writes that of a READ or an atomic, other than
    ///   through cells.
    ///
    /// What the request does to the *peer's* memory needs no care here: the peer's keys say what it may.
    ///
    /// # Errors
    /// [`RawPostError`] says how much of the chain is posted in spite of it.
    #[doc(alias = "ibv_post_send")]
    #[inline(always)]
    pub unsafe fn post_raw(&mut self, first: &mut ibv_send_wr) -> Result<(), RawPostError> {
        let (first, mut bad): (*mut _, _) = (first, std::ptr::null_mut());
        // SAFETY: the queue pair is alive; the rest is the caller's contract.
        unsafe {
            mark(first);
            match ibverbs_sys::inline::ibv_post_send(self.half.qp, first, &mut bad) {
                0 => Ok(()),
                ret => Err(failed(ret, first, bad)),
            }
        }
    }
}

impl<T: Send + 'static> RecvQueue<T> {
    /// Posts a chain of receives as it is, without a check and without taking hold of its memory.
    ///
    /// As [`SendQueue::post_raw`], which says what becomes of ids and completions. Messages take raw receives and others in the order
    /// in which they were posted.
    ///
    /// # Safety
    /// * `first` starts a chain that ends with a null `next`; all its requests and their segments can be read, and the requests be
    ///   written, until this returns, and nothing else holds a reference to them.
    /// * No request has more segments than the queue pair was built for.
    /// * All memory that the requests name stays registered and allocated, and nobody reads or writes it other than through cells, until
    ///   the receive is known to be done: by its own completion, by that of a later receive of this queue, or because
    ///   [`destroy`](crate::destroy) succeeded.
    ///
    /// # Errors
    /// [`RawPostError`] says how much of the chain is posted in spite of it.
    #[doc(alias = "ibv_post_recv")]
    #[inline(always)]
    pub unsafe fn post_raw(&mut self, first: &mut ibv_recv_wr) -> Result<(), RawPostError> {
        let (first, mut bad): (*mut _, _) = (first, std::ptr::null_mut());
        // SAFETY: the queue pair is alive; the rest is the caller's contract.
        unsafe {
            mark(first);
            match ibverbs_sys::inline::ibv_post_recv(self.half.qp, first, &mut bad) {
                0 => Ok(()),
                ret => Err(failed(ret, first, bad)),
            }
        }
    }
}
