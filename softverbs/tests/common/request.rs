//! Send work requests.

use super::SIGNALED;
use ibverbs_sys::*;

/// A send work request with one list.
pub fn wr(wr_id: u64, op: ibv_wr_opcode, sges: &mut [ibv_sge], flags: u32) -> ibv_send_wr {
    ibv_send_wr {
        wr_id,
        opcode: op,
        sg_list: sges.as_mut_ptr(),
        num_sge: sges.len() as i32,
        send_flags: flags,
        ..Default::default()
    }
}

/// The same to remote memory.
pub fn rdma(
    wr_id: u64,
    op: ibv_wr_opcode,
    sges: &mut [ibv_sge],
    flags: u32,
    raddr: u64,
    rkey: u32,
) -> ibv_send_wr {
    let mut wr = wr(wr_id, op, sges, flags);
    wr.wr.rdma.remote_addr = raddr;
    wr.wr.rdma.rkey = rkey;
    wr
}

/// An atomic on remote memory.
pub fn atomic(
    wr_id: u64,
    op: ibv_wr_opcode,
    sges: &mut [ibv_sge],
    raddr: u64,
    rkey: u32,
    operands: [u64; 2],
) -> ibv_send_wr {
    let mut wr = wr(wr_id, op, sges, SIGNALED);
    wr.wr.atomic.remote_addr = raddr;
    wr.wr.atomic.rkey = rkey;
    [wr.wr.atomic.compare_add, wr.wr.atomic.swap] = operands;
    wr
}
