//! Kinds of queue pairs, as types: what one kind cannot do is no method of it.

use ibverbs_sys::{ibv_qp_attr_mask as mask, ibv_qp_type};

/// Reliable connection: everything arrives once and in order, or the connection ends with an error.
#[doc(alias = "IBV_QPT_RC")]
#[derive(Clone, Copy, Debug)]
pub enum Rc {}

/// Unreliable connection: what cannot be delivered is lost, and the sender is not told. There are sends and WRITEs, no READs
/// and no atomics.
#[doc(alias = "IBV_QPT_UC")]
#[derive(Clone, Copy, Debug)]
pub enum Uc {}

/// Unreliable datagrams: each send says where it goes, messages fit into one packet, and what cannot be delivered is lost. There are
/// sends only.
#[doc(alias = "IBV_QPT_UD")]
#[derive(Clone, Copy, Debug)]
pub enum Ud {}

/// Receives are posted to the queue pair's own [`RecvQueue`](crate::RecvQueue).
#[derive(Clone, Copy, Debug)]
pub enum Own {}

/// Receives are posted to a [`SharedRecvQueue`](crate::SharedRecvQueue), which other queue pairs take from as well.
#[derive(Clone, Copy, Debug)]
pub enum Shared {}

/// A kind of queue pair: [`Rc`], [`Uc`] or [`Ud`].
pub trait QpKind: sealed::Kind {}

impl QpKind for Rc {}
impl QpKind for Uc {}
impl QpKind for Ud {}

/// A kind of connected queue pair: [`Rc`] or [`Uc`].
pub trait Connected: QpKind {}

impl Connected for Rc {}
impl Connected for Uc {}

/// A kind of queue pair on which what cannot be delivered is lost: [`Uc`] or [`Ud`].
pub trait Unreliable: QpKind {}

impl Unreliable for Uc {}
impl Unreliable for Ud {}

pub(crate) mod sealed {
    use super::{ibv_qp_type, mask};

    /// What differs between the kinds where a queue pair is made and connected.
    pub trait Kind: 'static {
        const TYPE: ibv_qp_type;
        /// Whether lost packets are repeated, and READs and atomics answered.
        const RELIABLE: bool;
        /// Whether each message has an address of its own.
        const DATAGRAMS: bool = false;
        /// Attributes of the way from INIT to RTR, besides the state.
        const RTR: mask;
        const RTR_NAMES: &'static str;
        /// From RTR to RTS.
        const RTS: mask;
        const RTS_NAMES: &'static str;
    }

    const PATH: u32 = mask::IBV_QP_STATE.0
        | mask::IBV_QP_AV.0
        | mask::IBV_QP_PATH_MTU.0
        | mask::IBV_QP_DEST_QPN.0
        | mask::IBV_QP_RQ_PSN.0;

    impl Kind for super::Rc {
        const TYPE: ibv_qp_type = ibv_qp_type::IBV_QPT_RC;
        const RELIABLE: bool = true;
        const RTR: mask =
            mask(PATH | mask::IBV_QP_MAX_DEST_RD_ATOMIC.0 | mask::IBV_QP_MIN_RNR_TIMER.0);
        const RTR_NAMES: &'static str =
            "STATE, AV, PATH_MTU, DEST_QPN, RQ_PSN, MAX_DEST_RD_ATOMIC, MIN_RNR_TIMER";
        const RTS: mask = mask(
            mask::IBV_QP_STATE.0
                | mask::IBV_QP_TIMEOUT.0
                | mask::IBV_QP_RETRY_CNT.0
                | mask::IBV_QP_RNR_RETRY.0
                | mask::IBV_QP_SQ_PSN.0
                | mask::IBV_QP_MAX_QP_RD_ATOMIC.0,
        );
        const RTS_NAMES: &'static str =
            "STATE, TIMEOUT, RETRY_CNT, RNR_RETRY, SQ_PSN, MAX_QP_RD_ATOMIC";
    }

    impl Kind for super::Uc {
        const TYPE: ibv_qp_type = ibv_qp_type::IBV_QPT_UC;
        const RELIABLE: bool = false;
        const RTR: mask = mask(PATH);
        const RTR_NAMES: &'static str = "STATE, AV, PATH_MTU, DEST_QPN, RQ_PSN";
        const RTS: mask = mask(mask::IBV_QP_STATE.0 | mask::IBV_QP_SQ_PSN.0);
        const RTS_NAMES: &'static str = "STATE, SQ_PSN";
    }

    impl Kind for super::Ud {
        const TYPE: ibv_qp_type = ibv_qp_type::IBV_QPT_UD;
        const RELIABLE: bool = false;
        const DATAGRAMS: bool = true;
        const RTR: mask = mask::IBV_QP_STATE;
        const RTR_NAMES: &'static str = "STATE";
        const RTS: mask = mask(mask::IBV_QP_STATE.0 | mask::IBV_QP_SQ_PSN.0);
        const RTS_NAMES: &'static str = "STATE, SQ_PSN";
    }
}
