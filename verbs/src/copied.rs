//! Bytes that the device copies while they are posted.

use ibverbs_sys::{ibv_send_flags, ibv_wr_opcode};

use crate::wr::{Carries, Kind, Op, Work};
use crate::{Connected, LKey, RemoteRegion, SendQueue, SgeList, Wr};

/// Borrowed bytes, and what the queue holds in their place.
pub struct Copied<'b, T> {
    pub(crate) bytes: &'b [u8],
    pub(crate) token: T,
}

impl<T> Work<T> for Copied<'_, T> {
    const KIND: Kind = Kind::Outgoing;
    #[inline(always)]
    fn list(&mut self, out: &mut SgeList) {
        if !self.bytes.is_empty() {
            // Inline data needs no key.
            out.push_bytes(self.bytes.as_ptr() as u64, self.bytes.len(), LKey(0));
        }
    }
    #[inline(always)]
    fn store(self) -> T {
        self.token
    }
}

impl<T> Carries for Copied<'_, T> {}

/// Bytes that a batch keeps until it is posted, and what the queue holds in their place.
pub struct BatchCopied<T> {
    /// From the start of all that the batch keeps.
    pub(crate) at: usize,
    pub(crate) len: usize,
    pub(crate) token: T,
}

impl<T> Work<T> for BatchCopied<T> {
    const KIND: Kind = Kind::Outgoing;
    const KEPT: bool = true;
    #[inline(always)]
    fn list(&mut self, out: &mut SgeList) {
        if self.len > 0 {
            out.push_bytes(self.at as u64, self.len, LKey(0));
        }
    }
    #[inline(always)]
    fn store(self) -> T {
        self.token
    }
}

impl<T> Carries for BatchCopied<T> {}

pub(crate) fn inline(opcode: ibv_wr_opcode, remote: Option<RemoteRegion>) -> Op {
    let mut op = Op::new(opcode, remote);
    // What makes the borrow enough: ibv_post_send(3), "the low-level driver (CPU) will read the data and not the RDMA
    // device", so that the memory can be used again as soon as the call returns. Nothing takes this flag away again.
    op.flags |= ibv_send_flags::IBV_SEND_INLINE.0;
    op
}

impl<T: Send + 'static, K: Connected> SendQueue<T, K> {
    /// A message for the peer's next posted receive, copied from `bytes` while it is posted: for small ones that need not be in
    /// registered memory, up to [`max_inline`](Self::max_inline). `token` comes back with the completion.
    #[doc(alias = "IBV_SEND_INLINE")]
    #[inline(always)]
    pub fn send_copy<'q, 'b>(
        &'q mut self,
        bytes: &'b [u8],
        token: T,
    ) -> Wr<'q, T, Copied<'b, T>, SendQueue<T, K>> {
        let op = inline(ibv_wr_opcode::IBV_WR_SEND, None);
        Wr::new(self, Copied { bytes, token }, op)
    }

    /// Writes into the peer's memory, from the start of `remote`, bytes that are copied as by [`send_copy`](Self::send_copy).
    ///
    /// ```
    /// # use verbs::{Access, Device, Private};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let ctx = Device::open_spec("soft0")?;
    /// # let pd = ctx.alloc_pd()?;
    /// # let mut cq = ctx.cq(256).build()?;
    /// let ready = pd.rc(&cq).max_inline(64).access(Access::REMOTE_WRITE).build()?;
    /// # let own = ready.endpoint();
    /// # let (mut tx, _rx) = ready.connect::<&'static str, Private<Vec<u8>>>(&own)?;
    /// let memory = pd.expose(16, Access::REMOTE_WRITE)?;
    /// tx.write_copy(b"hello", "the first", memory.remote()).signaled().post()?;
    /// # let wc = loop { if let Some(wc) = cq.poll()? { break wc } };
    /// let mut done = tx.retire(wc)?;
    /// let (token, result) = tx.take(&mut done).ok_or("the token")?;
    /// result?;
    /// assert_eq!(token, "the first");
    /// # Ok(()) }
    /// ```
    #[doc(alias = "IBV_SEND_INLINE")]
    #[inline(always)]
    pub fn write_copy<'q, 'b>(
        &'q mut self,
        bytes: &'b [u8],
        token: T,
        remote: RemoteRegion,
    ) -> Wr<'q, T, Copied<'b, T>, SendQueue<T, K>> {
        let op = inline(ibv_wr_opcode::IBV_WR_RDMA_WRITE, Some(remote));
        Wr::new(self, Copied { bytes, token }, op)
    }
}
