//! Shared receive queues.

use super::{Dev, Options, api};
use ibverbs_sys::inline::ibv_post_srq_recv;
use ibverbs_sys::*;
use std::ptr::null_mut;

/// A shared receive queue.
pub struct Srq(pub *mut ibv_srq);

impl Srq {
    pub fn new(dev: &Dev, depth: u32, sge: u32) -> Srq {
        let mut init = ibv_srq_init_attr::default();
        (init.attr.max_wr, init.attr.max_sge) = (depth, sge);
        let srq = unsafe { (api().ibv_create_srq)(dev.pd, &mut init) };
        assert!(!srq.is_null(), "{}", std::io::Error::last_os_error());
        Srq(srq)
    }

    /// The options of a queue pair that takes its receives from here.
    pub fn options(&self) -> Options {
        Options {
            srq: self.0,
            cqe: 64,
            ..Options::default()
        }
    }

    pub fn recv(&self, wr_id: u64, sges: &mut [ibv_sge]) -> i32 {
        let mut wr = ibv_recv_wr {
            wr_id,
            next: null_mut(),
            sg_list: sges.as_mut_ptr(),
            num_sge: sges.len() as i32,
        };
        unsafe { ibv_post_srq_recv(self.0, &mut wr, &mut null_mut()) }
    }

    pub fn limit(&self, limit: u32) -> i32 {
        let mut attr = ibv_srq_attr {
            srq_limit: limit,
            ..Default::default()
        };
        let mask = ibv_srq_attr_mask::IBV_SRQ_LIMIT.0;
        unsafe { (api().ibv_modify_srq)(self.0, &mut attr, mask as i32) }
    }

    pub fn resize(&self, max_wr: u32) -> i32 {
        let mut attr = ibv_srq_attr {
            max_wr,
            ..Default::default()
        };
        let mask = ibv_srq_attr_mask::IBV_SRQ_MAX_WR.0;
        unsafe { (api().ibv_modify_srq)(self.0, &mut attr, mask as i32) }
    }

    pub fn query(&self) -> ibv_srq_attr {
        let mut attr = ibv_srq_attr::default();
        assert_eq!(unsafe { (api().ibv_query_srq)(self.0, &mut attr) }, 0);
        attr
    }
}

impl Drop for Srq {
    fn drop(&mut self) {
        let rc = unsafe { (api().ibv_destroy_srq)(self.0) };
        if !std::thread::panicking() {
            assert_eq!(rc, 0);
        }
    }
}
