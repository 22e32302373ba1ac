//! What work requests do.

use ibverbs_sys::{ibv_wc_opcode, ibv_wr_opcode};

/// What a work request does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Op {
    Send,
    SendImm,
    Write,
    WriteImm,
    Read,
    CompareSwap,
    FetchAdd,
}

impl Op {
    pub(super) fn from_verbs(op: ibv_wr_opcode) -> Option<Op> {
        Some(match op {
            ibv_wr_opcode::IBV_WR_SEND => Op::Send,
            ibv_wr_opcode::IBV_WR_SEND_WITH_IMM => Op::SendImm,
            ibv_wr_opcode::IBV_WR_RDMA_WRITE => Op::Write,
            ibv_wr_opcode::IBV_WR_RDMA_WRITE_WITH_IMM => Op::WriteImm,
            ibv_wr_opcode::IBV_WR_RDMA_READ => Op::Read,
            ibv_wr_opcode::IBV_WR_ATOMIC_CMP_AND_SWP => Op::CompareSwap,
            ibv_wr_opcode::IBV_WR_ATOMIC_FETCH_AND_ADD => Op::FetchAdd,
            _ => return None,
        })
    }

    /// Whether a request takes a receive entry of the peer's.
    #[inline]
    pub fn takes_entry(self) -> bool {
        matches!(self, Op::Send | Op::SendImm | Op::WriteImm)
    }

    /// Whether a request brings something back.
    #[inline]
    pub fn fetches(self) -> bool {
        matches!(self, Op::Read | Op::CompareSwap | Op::FetchAdd)
    }

    /// Whether it reads a word and updates it.
    #[inline]
    pub fn is_atomic(self) -> bool {
        matches!(self, Op::CompareSwap | Op::FetchAdd)
    }

    pub(super) fn completion(self) -> ibv_wc_opcode {
        match self {
            Op::Send | Op::SendImm => ibv_wc_opcode::IBV_WC_SEND,
            Op::Write | Op::WriteImm => ibv_wc_opcode::IBV_WC_RDMA_WRITE,
            Op::Read => ibv_wc_opcode::IBV_WC_RDMA_READ,
            Op::CompareSwap => ibv_wc_opcode::IBV_WC_COMP_SWAP,
            Op::FetchAdd => ibv_wc_opcode::IBV_WC_FETCH_ADD,
        }
    }
}
