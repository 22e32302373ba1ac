//! Completion queues that change their size, and how eagerly they tell.

use std::time::Duration;

use ibverbs_sys::{ibv_cq_attr_mask, ibv_moderate_cq, ibv_modify_cq_attr};

use crate::errno;
use crate::{Cq, Error};

impl Cq {
    /// Gives it room for at least `depth` entries; what is in it stays. [`depth`](Self::depth) says afterwards how many there are.
    ///
    /// # Errors
    /// [`Error::CqTooSmall`] when its queues could have more completions outstanding, [`Error::Unsupported`] when the device cannot, and
    /// else what the device says, `EINVAL` for fewer than are in it. Nothing has changed then.
    #[doc(alias = "ibv_resize_cq")]
    pub fn resize(&mut self, depth: u32) -> Result<(), Error> {
        let shared = self.shared();
        let context = shared.context();
        let max = context.query_device().max_cqe.min(i32::MAX as u32);
        Error::in_range("depth of a completion queue", depth.into(), 1, max.into())?;
        let resize = context.api().ibv_resize_cq;
        shared.resize(depth, |cq| {
            // SAFETY: the queue is alive, and not polled meanwhile: that needs this handle.
            errno::check(unsafe { resize(cq, depth as i32) }).map_err(|e| {
                Error::unless_unsupported(
                    context.device_name(),
                    "other sizes of a completion queue (ibv_resize_cq)",
                    "ibv_resize_cq",
                    e,
                    format!("{depth} entries"),
                )
            })
        })
    }

    /// Lets the device hold back events of a queue that waits until there are `count` completions, or the oldest is as old as `period`,
    /// which is rounded down to microseconds. Zeroes end it.
    ///
    /// # Errors
    /// [`Error::Unsupported`] when the device cannot; [`Error::OutOfRange`] for more than 65,535 microseconds.
    #[doc(alias = "ibv_modify_cq")]
    #[doc(alias = "IBV_CQ_ATTR_MODERATE")]
    pub fn moderate(&mut self, count: u16, period: Duration) -> Result<(), Error> {
        let micros = u64::try_from(period.as_micros()).unwrap_or(u64::MAX);
        let max = u16::MAX.into();
        Error::in_range("period in microseconds", micros, 0, max)?;
        let mut attr = ibv_modify_cq_attr {
            attr_mask: ibv_cq_attr_mask::IBV_CQ_ATTR_MODERATE.0,
            moderate: ibv_moderate_cq {
                cq_count: count,
                cq_period: micros as u16,
            },
        };
        // SAFETY: the queue is alive and the attributes are complete.
        let ret = unsafe { ibverbs_sys::inline::ibv_modify_cq(self.shared().raw(), &mut attr) };
        errno::check(ret).map_err(|e| {
            Error::unless_unsupported(
                self.shared().context().device_name(),
                "moderation of completion queues (ibv_modify_cq)",
                "ibv_modify_cq",
                e,
                format!("after {count} completions or {micros} microseconds"),
            )
        })
    }
}
