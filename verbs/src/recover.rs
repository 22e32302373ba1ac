//! Send queues that go on after a failure.

use ibverbs_sys::{ibv_qp_attr, ibv_qp_attr_mask as mask, ibv_qp_state};

use crate::{Error, SendQueue, Unreliable};

/// What unreliable queue pairs do.
impl<T: Send + 'static, K: Unreliable> SendQueue<T, K> {
    /// Lets the queue go on after a send that failed, on this side, and stopped it: a key that does not fit the memory, most often.
    ///
    /// What was posted behind that send has completed with [`WR_FLUSH_ERR`](crate::WcStatus::WR_FLUSH_ERR), and so does what is posted
    /// before this is called. Receives were not affected.
    ///
    /// # Errors
    /// When the device refuses: for example because the queue pair as a whole is in the error state.
    #[doc(alias = "IBV_QPS_SQE")]
    #[doc(alias = "ibv_modify_qp")]
    pub fn recover(&mut self) -> Result<(), Error> {
        let mut attr = ibv_qp_attr {
            qp_state: ibv_qp_state::IBV_QPS_RTS,
            cur_qp_state: ibv_qp_state::IBV_QPS_SQE,
            ..Default::default()
        };
        let what = mask(mask::IBV_QP_STATE.0 | mask::IBV_QP_CUR_STATE.0);
        let core = self.half.core();
        core.go_on(self.half.qp, &mut attr, what).map_err(|e| {
            let hint = "SQE to RTS: only a send queue that a failed send has stopped is recovered";
            Error::hinted("ibv_modify_qp", e, hint)
        })
    }
}
