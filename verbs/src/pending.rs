//! Who still works on memory, where the device can tell.

use crate::{Context, LKey};
#[cfg(feature = "soft")]
use crate::{ring, tags::RAW_TAG};

/// A work request that the device is not done with. See [`Context::pending_work`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PendingWork {
    /// Number of the queue pair; 0 for a shared receive queue.
    pub qp_num: u32,
    /// Of work posted [raw](crate::SendQueue::post_raw) the lower 48 bits of its id, as in [`RawCompletion`](crate::RawCompletion); of work
    /// of a queue's own none.
    pub raw_id: Option<u64>,
    /// Whether the device is to write the memory, or only to read it.
    pub writes: bool,
}

impl Context {
    /// A work request that names any of `len` bytes at `addr` by the key `lkey`, and that is posted and neither executed nor filled. For tools that look for
    /// memory given up too early, which only `unsafe` code can do: a look at all queues of this process.
    ///
    /// `None` if there is none, and from hardware in any case: what a network card has been told it does not tell.
    pub fn pending_work(&self, lkey: LKey, addr: *const u8, len: usize) -> Option<PendingWork> {
        #[cfg(feature = "soft")]
        if self.kind() == crate::DeviceKind::Soft {
            let found = softverbs::pending::find(lkey.0, addr.addr() as u64, len as u64)?;
            return Some(PendingWork {
                qp_num: found.qp_num,
                raw_id: (ring::tag(found.wr_id) == RAW_TAG).then(|| ring::seq(found.wr_id)),
                writes: found.writes,
            });
        }
        let _ = (lkey, addr, len);
        None
    }
}
