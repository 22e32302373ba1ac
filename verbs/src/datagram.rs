//! Sending datagrams.

use ibverbs_sys::ibv_wr_opcode;

use crate::copied::{self, Copied};
use crate::wr::{Carries, Kind, Op, Outgoing, Work};
use crate::{Batch, Destination, Gather, Part, PostErrorKind, Scope, SendQueue, SgeList, Ud, Wr};

/// What the device will read, and where it sends it.
pub struct Datagram<'a, W> {
    work: W,
    to: &'a Destination,
}

impl<T, W: Work<T> + Carries> Work<T> for Datagram<'_, W> {
    const KIND: Kind = Kind::Datagram;
    #[inline(always)]
    fn list(&mut self, out: &mut SgeList) {
        self.work.list(out);
    }
    #[inline(always)]
    fn operands(&self) -> [u64; 2] {
        self.to.operands()
    }
    #[inline(always)]
    fn to(&self) -> Option<&Destination> {
        Some(self.to)
    }
    #[inline(always)]
    fn store(self) -> T {
        self.work.store()
    }
}

impl<W: Carries> Carries for Datagram<'_, W> {}

fn datagram<'q, 'a, T: Gather, Q>(
    queue: &'q mut Q,
    work: T,
    to: &'a Destination,
) -> Wr<'q, T, Datagram<'a, Outgoing<T>>, Q> {
    let work = Outgoing(work);
    let op = Op::new(ibv_wr_opcode::IBV_WR_SEND, None);
    Wr::new(queue, Datagram { work, to }, op)
}

/// What only queue pairs for datagrams do.
impl<T: Send + 'static> SendQueue<T, Ud> {
    /// A message for the next receive posted to another queue pair. That it was sent says nothing of whether it arrived: there may be no
    /// receive, or a queue pair that wants another key; or the receive is too short, which fails with
    /// [`LOC_LEN_ERR`](crate::WcStatus::LOC_LEN_ERR) and ends the receiving queue pair.
    ///
    /// It must fit into one packet ([`AddressHandle::mtu`](crate::AddressHandle::mtu)), else posting it is
    /// [refused](PostErrorKind::LongerThanMtu). The queue keeps the handle until the work is done, and longer: until its slot
    /// is used for a message that goes another way, or the queue pair is destroyed.
    #[doc(alias = "IBV_WR_SEND")]
    #[inline]
    pub fn send_to<'a>(
        &mut self,
        work: impl Into<T>,
        to: &'a Destination,
    ) -> Wr<'_, T, Datagram<'a, Outgoing<T>>, Self>
    where
        T: Gather,
    {
        datagram(self, work.into(), to)
    }

    /// As [`send_to`](Self::send_to), of bytes that are copied while they are posted, up to [`max_inline`](Self::max_inline). `token`
    /// comes back with the completion.
    #[doc(alias = "IBV_SEND_INLINE")]
    #[inline]
    pub fn send_copy_to<'q, 'a>(
        &'q mut self,
        bytes: &'a [u8],
        token: T,
        to: &'a Destination,
    ) -> Wr<'q, T, Datagram<'a, Copied<'a, T>>, Self> {
        let work = Copied { bytes, token };
        let op = copied::inline(ibv_wr_opcode::IBV_WR_SEND, None);
        Wr::new(self, Datagram { work, to }, op)
    }
}

/// What only queue pairs for datagrams do.
impl<T: Send + 'static> Batch<'_, T, Ud> {
    /// As [`SendQueue::send_to`]; finish with [`add`](Wr::add).
    #[inline]
    pub fn send_to<'a>(
        &mut self,
        work: impl Into<T>,
        to: &'a Destination,
    ) -> Wr<'_, T, Datagram<'a, Outgoing<T>>, Self>
    where
        T: Gather,
    {
        datagram(self, work.into(), to)
    }
}

/// What only queue pairs for datagrams do.
impl<'scope, 'env, T: Send + 'static> Scope<'scope, 'env, T, Ud> {
    /// As [`SendQueue::send_to`], of one part or several.
    ///
    /// # Errors
    /// [`PostErrorKind`]; nothing was posted then. When the queue is full, [`wait`](Self::wait) makes room.
    pub fn send_to(
        &'scope self,
        parts: impl AsRef<[Part<'scope>]>,
        to: &'scope Destination,
    ) -> Result<(), PostErrorKind> {
        self.datagram(parts.as_ref(), to)
    }
}
