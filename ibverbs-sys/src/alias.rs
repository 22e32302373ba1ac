//! Names that verbs_api.h defines by macro, which bindgen does not see.

use crate::bindings::*;

/// Advice for [`inline::ibv_advise_mr`](crate::inline::ibv_advise_mr).
pub type ibv_advise_mr_advice = ib_uverbs_advise_mr_advice;
/// Prefetch pages for reading.
pub const IBV_ADVISE_MR_ADVICE_PREFETCH: ibv_advise_mr_advice =
    ib_uverbs_advise_mr_advice::IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH;
/// Prefetch pages for writing.
pub const IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE: ibv_advise_mr_advice =
    ib_uverbs_advise_mr_advice::IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH_WRITE;
/// Prefetch pages that are present, without faulting in others.
pub const IBV_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT: ibv_advise_mr_advice =
    ib_uverbs_advise_mr_advice::IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT;
/// Flag: return only when the advice was carried out.
pub const IBV_ADVISE_MR_FLAG_FLUSH: u32 =
    ib_uverbs_advise_mr_flag::IB_UVERBS_ADVISE_MR_FLAG_FLUSH.0;

/// Bit of `ibv_port_attr::flags`: the port needs a GRH on every packet.
pub const IBV_QPF_GRH_REQUIRED: u8 = 1;

/// Access flags that a kernel may ignore (bits 20 to 29), such as `IBV_ACCESS_RELAXED_ORDERING`.
pub const IBV_ACCESS_OPTIONAL_RANGE: u32 = 0x3ff0_0000;

/// Keying material of an ESP action.
pub type ibv_flow_action_esp_keymat = ib_uverbs_flow_action_esp_keymat;
/// AES-GCM keying material.
pub type ibv_flow_action_esp_keymat_aes_gcm = ib_uverbs_flow_action_esp_keymat_aes_gcm;
/// Replay protection of an ESP action.
pub type ibv_flow_action_esp_replay = ib_uverbs_flow_action_esp_replay;
/// Replay protection by bitmap.
pub type ibv_flow_action_esp_replay_bmp = ib_uverbs_flow_action_esp_replay_bmp;
/// Flags of an ESP action.
pub type ibv_flow_action_esp_flags = ib_uverbs_flow_action_esp_flags;
/// Encapsulation of an ESP action.
pub type ibv_flow_action_esp_encap = ib_uverbs_flow_action_esp_encap;
/// An ESP action.
pub type ibv_flow_action_esp = ib_uverbs_flow_action_esp;
