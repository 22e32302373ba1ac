//! What `ibv_modify_qp` takes over.

use crate::device;
use ibverbs_sys::{ibv_qp_attr, ibv_qp_attr_mask as Mask};

/// Takes over the attributes that `mask` names, checked.
pub(super) fn merge(attr: &mut ibv_qp_attr, new: &ibv_qp_attr, mask: u32) -> Result<(), i32> {
    let has = |bit: Mask| mask & bit.0 != 0;
    macro_rules! take {
        ($($bit:ident $field:ident $ok:expr),* $(,)?) => {$(
            if has(Mask::$bit) {
                #[allow(clippy::redundant_closure_call)]
                if !($ok)(&new.$field) {
                    return Err(libc::EINVAL);
                }
                attr.$field = new.$field;
            }
        )*};
    }
    take! {
        IBV_QP_ACCESS_FLAGS qp_access_flags |_: &_| true,
        IBV_QP_PKEY_INDEX pkey_index |i: &u16| *i == 0,
        IBV_QP_PORT port_num |p: &u8| *p == 1,
        IBV_QP_AV ah_attr |_: &_| true,
        IBV_QP_PATH_MTU path_mtu |m: &ibverbs_sys::ibv_mtu| (1..=5).contains(&m.0),
        IBV_QP_DEST_QPN dest_qp_num |_: &_| true,
        IBV_QP_RQ_PSN rq_psn |_: &_| true,
        IBV_QP_MAX_DEST_RD_ATOMIC max_dest_rd_atomic |n: &u8| usize::from(*n) <= device::MAX_RD_ATOMIC,
        IBV_QP_MIN_RNR_TIMER min_rnr_timer |t: &u8| *t < 32,
        IBV_QP_SQ_PSN sq_psn |_: &_| true,
        IBV_QP_TIMEOUT timeout |t: &u8| *t < 32,
        IBV_QP_RETRY_CNT retry_cnt |n: &u8| *n < 8,
        IBV_QP_RNR_RETRY rnr_retry |n: &u8| *n < 8,
        IBV_QP_QKEY qkey |_: &_| true,
        IBV_QP_MAX_QP_RD_ATOMIC max_rd_atomic |n: &u8| usize::from(*n) <= device::MAX_RD_ATOMIC,
    }
    attr.rq_psn &= 0xff_ffff;
    attr.sq_psn &= 0xff_ffff;
    Ok(())
}
