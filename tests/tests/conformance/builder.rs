//! The extended interface: requests built by calls, completions read field by field.

use crate::device::{Side, errno_code};
use crate::memory::Mem;
use crate::names::{self, errno};
use crate::queue::{End, Options, init_attr};
use crate::sundry::{Cq, becomes};
use ibverbs_sys::inline::{
    ibv_cq_ex_to_cq, ibv_create_cq_ex, ibv_create_qp_ex, ibv_end_poll, ibv_next_poll,
    ibv_start_poll, ibv_wc_read_byte_len, ibv_wc_read_opcode, ibv_wr_abort, ibv_wr_complete,
    ibv_wr_rdma_write, ibv_wr_send, ibv_wr_set_inline_data, ibv_wr_set_inline_data_list,
    ibv_wr_set_sge, ibv_wr_set_sge_list, ibv_wr_start,
};
use ibverbs_sys::{
    ibv_cq_ex, ibv_cq_init_attr_ex, ibv_data_buf, ibv_poll_cq_attr, ibv_qp_ex, ibv_qp_init_attr_ex,
    ibv_qp_init_attr_mask as Mask, ibv_send_flags as Flags, ibv_sge,
};
use std::ptr::null_mut;

/// The requests of a queue pair that was made for the operations which are used here.
pub struct Builder(*mut ibv_qp_ex);

/// A queue pair in RESET for these operations, or an errno.
pub fn with_operations(
    side: &Side,
    o: &Options,
    send_ops_flags: u64,
) -> Result<(End, Builder), i32> {
    let cq = Cq::new(side, o.cqe);
    let init = init_attr(o, &cq, None);
    let mut attr = ibv_qp_init_attr_ex {
        send_cq: init.send_cq,
        recv_cq: init.recv_cq,
        cap: init.cap,
        qp_type: init.qp_type,
        comp_mask: Mask::IBV_QP_INIT_ATTR_PD.0 | Mask::IBV_QP_INIT_ATTR_SEND_OPS_FLAGS.0,
        pd: side.pd,
        send_ops_flags,
        ..Default::default()
    };
    // SAFETY: domain and queue are alive.
    let qp = unsafe { ibv_create_qp_ex(side.api, side.ctx, &mut attr) };
    if qp.is_null() {
        return Err(errno_code());
    }
    let end = End {
        side: *side,
        qp,
        cq,
        options: *o,
    };
    let extend = side
        .api
        .ibv_qp_to_qp_ex
        .expect("the library knows extended queue pairs");
    // SAFETY: the queue pair is alive, and was made with operations.
    let ex = unsafe { extend(qp) };
    assert!(!ex.is_null());
    Ok((end, Builder(ex)))
}

impl Builder {
    // SAFETY, for all: the queue pair is alive while its builder is used, and has these operations.

    pub fn start(&self) {
        // SAFETY: see above.
        unsafe { ibv_wr_start(self.0) }
    }

    fn name(&self, id: u64) {
        self.name_with(id, 0);
    }

    fn name_with(&self, id: u64, flags: u32) {
        let flags = Flags::IBV_SEND_SIGNALED.0 | flags;
        // SAFETY: see above; these fields are the caller's.
        unsafe { ((*self.0).wr_id, (*self.0).wr_flags) = (id, flags) }
    }

    pub fn send(&self, id: u64, mem: &Mem, len: u32) {
        self.name(id);
        // SAFETY: see above.
        unsafe {
            ibv_wr_send(self.0);
            ibv_wr_set_sge(self.0, mem.lkey(), mem.addr(), len);
        }
    }

    pub fn inline(&self, id: u64, bytes: &mut [u8]) {
        self.name(id);
        // SAFETY: see above; the bytes are only read, and before this returns.
        unsafe {
            ibv_wr_send(self.0);
            ibv_wr_set_inline_data(self.0, bytes.as_mut_ptr().cast(), bytes.len());
        }
    }

    /// From several segments.
    pub fn send_list(&self, id: u64, sges: &[ibv_sge]) {
        self.name(id);
        // SAFETY: see above.
        unsafe {
            ibv_wr_send(self.0);
            ibv_wr_set_sge_list(self.0, sges.len(), sges.as_ptr());
        }
    }

    /// Of several pieces.
    pub fn inline_list(&self, id: u64, pieces: &[&[u8]]) {
        // The flag is implied; there is a library that forgets it.
        self.name_with(id, Flags::IBV_SEND_INLINE.0);
        let piece = |bytes: &&[u8]| ibv_data_buf {
            addr: bytes.as_ptr().cast_mut().cast(),
            length: bytes.len(),
        };
        let list: Vec<_> = pieces.iter().map(piece).collect();
        // SAFETY: see above; the bytes are only read, and before this returns.
        unsafe {
            ibv_wr_send(self.0);
            ibv_wr_set_inline_data_list(self.0, list.len(), list.as_ptr());
        }
    }

    pub fn write(&self, id: u64, from: &Mem, to: &Mem, len: u32) {
        self.name(id);
        // SAFETY: see above.
        unsafe {
            ibv_wr_rdma_write(self.0, to.rkey(), to.addr());
            ibv_wr_set_sge(self.0, from.lkey(), from.addr(), len);
        }
    }

    pub fn complete(&self) -> i32 {
        // SAFETY: see above.
        unsafe { ibv_wr_complete(self.0) }
    }

    pub fn abort(&self) {
        // SAFETY: see above.
        unsafe { ibv_wr_abort(self.0) }
    }
}

/// A completion queue with these fields, or an errno. The plain one has the same life.
pub fn with_fields(side: &Side, cqe: u32, wc_flags: u64) -> Result<(Cq, Fields), i32> {
    let mut attr = ibv_cq_init_attr_ex {
        cqe,
        wc_flags,
        ..Default::default()
    };
    // SAFETY: the context is open.
    let cq = unsafe { ibv_create_cq_ex(side.ctx, &mut attr) };
    if cq.is_null() {
        return Err(errno_code());
    }
    Ok((
        Cq::from_raw(side, ibv_cq_ex_to_cq(cq), null_mut()),
        Fields(cq),
    ))
}

/// Completions, field by field.
pub struct Fields(*mut ibv_cq_ex);

impl Fields {
    /// Takes one completion; says of which request, with status, opcode and length, or why there is none.
    pub fn poll(&self) -> String {
        self.poll_with(|| ())
    }

    /// The same; before polling ends, asks whether there is another.
    pub fn poll_more(&self) -> String {
        let mut more = 0;
        // SAFETY: the queue is alive, and being polled.
        self.poll_with(|| more = unsafe { ibv_next_poll(self.0) });
        errno(more)
    }

    fn poll_with(&self, before_the_end: impl FnOnce()) -> String {
        let mut attr = ibv_poll_cq_attr::default();
        // SAFETY: the queue is alive, and what is read belongs to the completion that polling has begun with.
        unsafe {
            let result = ibv_start_poll(self.0, &mut attr);
            if result != 0 {
                return errno(result);
            }
            let (id, status) = ((*self.0).wr_id, names::status((*self.0).status));
            let what = names::opcode(ibv_wc_read_opcode(self.0));
            let len = ibv_wc_read_byte_len(self.0);
            before_the_end();
            ibv_end_poll(self.0);
            format!("{id} {status} {what} {len}")
        }
    }

    /// The same, once there is something.
    pub fn next(&self) -> String {
        let mut seen = String::new();
        becomes(|| {
            seen = self.poll();
            seen != "ENOENT"
        });
        seen
    }
}
