//! What can be sent over connections.

use crate::wr::{Incoming, Outgoing, Word};
use crate::{Connected, Gather, Rc, RemoteRegion, SendQueue, StoredAs, Wr};

/// What all connections do.
impl<T: Send + 'static, K: Connected> SendQueue<T, K> {
    /// A message for the peer's next posted receive.
    #[doc(alias = "IBV_WR_SEND")]
    #[inline]
    pub fn send(&mut self, work: impl Into<T>) -> Wr<'_, T, Outgoing<T>, Self>
    where
        T: Gather,
    {
        Wr::send(self, work.into())
    }

    /// Writes into the peer's memory, from the start of `remote`.
    #[doc(alias = "IBV_WR_RDMA_WRITE")]
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

/// What only reliable connections do.
impl<T: Send + 'static> SendQueue<T, Rc> {
    /// Reads from the peer's memory, from the start of `remote`, as much as `into` has room for.
    ///
    /// Needs [`RcBuilder::rd_atomic`](crate::RcBuilder::rd_atomic) of at least 1 on both sides, else posting it is
    /// [refused](crate::PostErrorKind::NoReads).
    #[doc(alias = "IBV_WR_RDMA_READ")]
    #[inline]
    pub fn read<S: StoredAs<T>>(
        &mut self,
        into: S,
        remote: RemoteRegion,
    ) -> Wr<'_, T, Incoming<S>> {
        Wr::read(self, into, remote)
    }

    /// Stores `swap` in the peer's word at the start of `remote` if it is `compare`, in one step; what it was is written to `into`.
    ///
    /// The word is a `u64` in the byte order of the peer's machine, at an address that is a multiple of 8; `into` is one segment of
    /// 8 bytes, and the old value is in it in this machine's byte order when the buffer comes back.
    ///
    /// Needs [`RcBuilder::rd_atomic`](crate::RcBuilder::rd_atomic) of at least 1 on both sides, and
    /// [`Access::REMOTE_ATOMIC`](crate::Access::REMOTE_ATOMIC) of the peer's queue pair ([`RcBuilder::access`](crate::RcBuilder::access))
    /// and memory.
    ///
    /// ```
    /// # use verbs::{Access, Device, Private};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let ctx = Device::open_spec("soft0")?;
    /// # let pd = ctx.alloc_pd()?;
    /// # let mut cq = ctx.cq(64).build()?;
    /// let ready = pd.rc(&cq).send_depth(8).recv_depth(8).access(Access::REMOTE_ATOMIC).build()?;
    /// # let own = ready.endpoint();
    /// # let (mut tx, _rx) = ready.connect::<Private<Vec<u8>>, Private<Vec<u8>>>(&own)?;
    /// let counter = pd.expose(8, Access::REMOTE_ATOMIC)?;
    /// let old = pd.register(vec![0; 8])?;
    /// tx.compare_and_swap(old, counter.remote(), 0, 7).signaled().post()?;
    /// # let wc = loop { if let Some(wc) = cq.poll()? { break wc } };
    /// let mut done = tx.retire(wc)?;
    /// let (old, result) = tx.take(&mut done).ok_or("the buffer")?;
    /// result?;
    /// assert_eq!(u64::from_ne_bytes(old[..].try_into()?), 0);
    /// # Ok(()) }
    /// ```
    #[doc(alias = "IBV_WR_ATOMIC_CMP_AND_SWP")]
    #[inline]
    pub fn compare_and_swap<S: StoredAs<T>>(
        &mut self,
        into: S,
        remote: RemoteRegion,
        compare: u64,
        swap: u64,
    ) -> Wr<'_, T, Word<S>> {
        Wr::compare_and_swap(self, into, remote, [compare, swap])
    }

    /// Adds to the peer's word at the start of `remote`, wrapping around, in one step; what it was before is written to `into`.
    ///
    /// Words, buffers and needs are those of [`compare_and_swap`](Self::compare_and_swap).
    #[doc(alias = "IBV_WR_ATOMIC_FETCH_AND_ADD")]
    #[inline]
    pub fn fetch_and_add<S: StoredAs<T>>(
        &mut self,
        into: S,
        remote: RemoteRegion,
        add: u64,
    ) -> Wr<'_, T, Word<S>> {
        Wr::fetch_and_add(self, into, remote, add)
    }
}
