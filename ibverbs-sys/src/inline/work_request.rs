//! The builder way of posting: `ibv_wr_start`, one call per operation, setters, `ibv_wr_complete`.
//!
//! Before each operation its `wr_id` and `wr_flags` are stored in `ibv_qp_ex`; the setters that follow belong to it. An
//! operation exists only when it was asked for (`ibv_qp_init_attr_ex::send_ops_flags`); the pointers of the others may be
//! NULL, and verbs.h does not look. Errors are kept until `ibv_wr_complete`, which posts all requests since `ibv_wr_start`
//! or none.

use core::ffi::{c_int, c_void};

use super::direct;
use crate::bindings::*;

direct! {
    /// Begins a batch; may take a lock that `ibv_wr_complete` or `ibv_wr_abort` releases.
    fn ibv_wr_start(qp: *mut ibv_qp_ex) -> () => (*qp).wr_start;
    /// Posts the batch. Returns an errno; then nothing of it was posted.
    fn ibv_wr_complete(qp: *mut ibv_qp_ex) -> c_int => (*qp).wr_complete;
    /// Drops the batch.
    fn ibv_wr_abort(qp: *mut ibv_qp_ex) -> () => (*qp).wr_abort;

    /// SEND.
    fn ibv_wr_send(qp: *mut ibv_qp_ex) -> () => (*qp).wr_send;
    /// SEND with immediate data in network byte order.
    fn ibv_wr_send_imm(qp: *mut ibv_qp_ex, imm_data: __be32) -> () => (*qp).wr_send_imm;
    /// SEND that invalidates a key of the peer.
    fn ibv_wr_send_inv(qp: *mut ibv_qp_ex, invalidate_rkey: u32) -> () => (*qp).wr_send_inv;
    /// SEND with TCP segmentation offload.
    fn ibv_wr_send_tso(qp: *mut ibv_qp_ex, hdr: *mut c_void, hdr_sz: u16, mss: u16) -> ()
        => (*qp).wr_send_tso;
    /// RDMA WRITE.
    fn ibv_wr_rdma_write(qp: *mut ibv_qp_ex, rkey: u32, remote_addr: u64) -> ()
        => (*qp).wr_rdma_write;
    /// RDMA WRITE with immediate data in network byte order.
    fn ibv_wr_rdma_write_imm(qp: *mut ibv_qp_ex, rkey: u32, remote_addr: u64, imm_data: __be32) -> ()
        => (*qp).wr_rdma_write_imm;
    /// RDMA READ.
    fn ibv_wr_rdma_read(qp: *mut ibv_qp_ex, rkey: u32, remote_addr: u64) -> ()
        => (*qp).wr_rdma_read;
    /// Atomic WRITE of the 8 bytes at `atomic_wr`.
    fn ibv_wr_atomic_write(qp: *mut ibv_qp_ex, rkey: u32, remote_addr: u64, atomic_wr: *const c_void) -> ()
        => (*qp).wr_atomic_write;
    /// Atomic compare and swap of 8 bytes.
    fn ibv_wr_atomic_cmp_swp(qp: *mut ibv_qp_ex, rkey: u32, remote_addr: u64, compare: u64, swap: u64) -> ()
        => (*qp).wr_atomic_cmp_swp;
    /// Atomic fetch and add of 8 bytes.
    fn ibv_wr_atomic_fetch_add(qp: *mut ibv_qp_ex, rkey: u32, remote_addr: u64, add: u64) -> ()
        => (*qp).wr_atomic_fetch_add;
    /// Binds a type 2 memory window.
    fn ibv_wr_bind_mw(
        qp: *mut ibv_qp_ex,
        mw: *mut ibv_mw,
        rkey: u32,
        bind_info: *const ibv_mw_bind_info,
    ) -> () => (*qp).wr_bind_mw;
    /// Invalidates a local key.
    fn ibv_wr_local_inv(qp: *mut ibv_qp_ex, invalidate_rkey: u32) -> () => (*qp).wr_local_inv;

    /// Destination of a datagram.
    fn ibv_wr_set_ud_addr(qp: *mut ibv_qp_ex, ah: *mut ibv_ah, remote_qpn: u32, remote_qkey: u32) -> ()
        => (*qp).wr_set_ud_addr;
    /// Shared receive queue of an XRC request.
    fn ibv_wr_set_xrc_srqn(qp: *mut ibv_qp_ex, remote_srqn: u32) -> () => (*qp).wr_set_xrc_srqn;
    /// Copies the payload into the request.
    fn ibv_wr_set_inline_data(qp: *mut ibv_qp_ex, addr: *mut c_void, length: usize) -> ()
        => (*qp).wr_set_inline_data;
    /// Copies the payload from several places.
    fn ibv_wr_set_inline_data_list(qp: *mut ibv_qp_ex, num_buf: usize, buf_list: *const ibv_data_buf) -> ()
        => (*qp).wr_set_inline_data_list;
    /// One scatter/gather entry.
    fn ibv_wr_set_sge(qp: *mut ibv_qp_ex, lkey: u32, addr: u64, length: u32) -> () => (*qp).wr_set_sge;
    /// Several scatter/gather entries.
    fn ibv_wr_set_sge_list(qp: *mut ibv_qp_ex, num_sge: usize, sg_list: *const ibv_sge) -> ()
        => (*qp).wr_set_sge_list;
}
