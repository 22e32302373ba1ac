//! Queue pairs.

use super::{ATOMIC, Ah, Dev, HANG, QKEY, READ, WRITE, api};
use ibverbs_sys::inline::{ibv_poll_cq, ibv_post_recv, ibv_post_send, ibv_req_notify_cq};
use ibverbs_sys::*;
use std::ptr::null_mut;
use std::time::Instant;

/// A queue pair with a completion queue of its own.
pub struct End {
    pub cq: *mut ibv_cq,
    pub qp: *mut ibv_qp,
    pub channel: *mut ibv_comp_channel,
}

pub struct Options {
    pub depth: u32,
    pub sge: u32,
    pub inline: u32,
    pub sig_all: bool,
    pub rnr_retry: u8,
    pub timeout: u8,
    pub retry_cnt: u8,
    pub access: u32,
    /// Entries of the completion queue, 0 for enough.
    pub cqe: u32,
    /// Where receives come from, null for a queue of its own.
    pub srq: *mut ibv_srq,
    /// RC, UC or UD.
    pub qp_type: ibv_qp_type,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            depth: 16,
            sge: 4,
            inline: 64,
            sig_all: false,
            rnr_retry: 7,
            timeout: 14,
            retry_cnt: 6,
            access: READ | WRITE | ATOMIC,
            cqe: 0,
            srq: null_mut(),
            qp_type: ibv_qp_type::IBV_QPT_RC,
        }
    }
}

impl Options {
    /// How much the queues of a queue pair hold.
    pub fn caps(&self) -> ibv_qp_cap {
        ibv_qp_cap {
            max_send_wr: self.depth,
            max_recv_wr: self.depth,
            max_send_sge: self.sge,
            max_recv_sge: self.sge,
            max_inline_data: self.inline,
        }
    }
}

impl End {
    /// In INIT.
    pub fn new(dev: &Dev, o: &Options) -> End {
        Self::with(dev, o, |init| unsafe {
            (api().ibv_create_qp)(dev.pd, init)
        })
    }

    /// The same with a queue pair that is made in another way.
    pub fn with(
        dev: &Dev,
        o: &Options,
        create: impl FnOnce(&mut ibv_qp_init_attr) -> *mut ibv_qp,
    ) -> End {
        unsafe {
            let channel = (api().ibv_create_comp_channel)(dev.ctx);
            let cq = (api().ibv_create_cq)(
                dev.ctx,
                if o.cqe == 0 { 2 * o.depth } else { o.cqe } as i32,
                null_mut(),
                channel,
                0,
            );
            assert!(!cq.is_null());
            let mut init = ibv_qp_init_attr {
                send_cq: cq,
                recv_cq: cq,
                srq: o.srq,
                cap: o.caps(),
                qp_type: o.qp_type,
                sq_sig_all: o.sig_all as i32,
                ..ibv_qp_init_attr::default()
            };
            let qp = create(&mut init);
            assert!(!qp.is_null(), "{}", std::io::Error::last_os_error());
            let end = End { cq, qp, channel };
            end.init(o);
            end
        }
    }

    pub fn init(&self, o: &Options) {
        let mut attr = ibv_qp_attr {
            qp_state: ibv_qp_state::IBV_QPS_INIT,
            port_num: 1,
            qp_access_flags: o.access,
            qkey: QKEY,
            ..Default::default()
        };
        use ibv_qp_attr_mask as M;
        let own = match self.is_ud() {
            true => M::IBV_QP_QKEY.0,
            false => M::IBV_QP_ACCESS_FLAGS.0,
        };
        let mask = M::IBV_QP_STATE.0 | M::IBV_QP_PKEY_INDEX.0 | M::IBV_QP_PORT.0 | own;
        assert_eq!(self.modify(&mut attr, mask), 0);
    }

    pub fn modify(&self, attr: &mut ibv_qp_attr, mask: u32) -> i32 {
        unsafe { (api().ibv_modify_qp)(self.qp, attr, mask as i32) }
    }

    pub fn set_state(&self, state: ibv_qp_state) -> i32 {
        self.modify(
            &mut ibv_qp_attr {
                qp_state: state,
                ..Default::default()
            },
            ibv_qp_attr_mask::IBV_QP_STATE.0,
        )
    }

    pub fn state(&self) -> ibv_qp_state {
        let (mut attr, mut init) = (ibv_qp_attr::default(), ibv_qp_init_attr::default());
        unsafe {
            (api().ibv_query_qp)(
                self.qp,
                &mut attr,
                ibv_qp_attr_mask::IBV_QP_STATE.0 as i32,
                &mut init,
            )
        };
        attr.qp_state
    }

    pub fn qpn(&self) -> u32 {
        unsafe { (*self.qp).qp_num }
    }

    fn is_ud(&self) -> bool {
        unsafe { (*self.qp).qp_type == ibv_qp_type::IBV_QPT_UD }
    }

    fn reliable(&self) -> bool {
        unsafe { (*self.qp).qp_type == ibv_qp_type::IBV_QPT_RC }
    }

    pub fn rtr(&self, dest: u32) -> i32 {
        self.modify(&mut self.rtr_attr(dest), self.rtr_mask())
    }

    pub fn rtr_attr(&self, dest: u32) -> ibv_qp_attr {
        let mut attr = ibv_qp_attr {
            qp_state: ibv_qp_state::IBV_QPS_RTR,
            path_mtu: ibv_mtu::IBV_MTU_1024,
            dest_qp_num: dest,
            rq_psn: 7,
            max_dest_rd_atomic: 4,
            min_rnr_timer: 1,
            ..Default::default()
        };
        attr.ah_attr = Ah::attr(unsafe { (*self.qp).context }, 0);
        attr
    }

    pub fn rtr_mask(&self) -> u32 {
        use ibv_qp_attr_mask as M;
        if self.is_ud() {
            return M::IBV_QP_STATE.0;
        }
        let mask = M::IBV_QP_STATE.0
            | M::IBV_QP_AV.0
            | M::IBV_QP_PATH_MTU.0
            | M::IBV_QP_DEST_QPN.0
            | M::IBV_QP_RQ_PSN.0;
        let reliable = M::IBV_QP_MAX_DEST_RD_ATOMIC.0 | M::IBV_QP_MIN_RNR_TIMER.0;
        mask | if self.reliable() { reliable } else { 0 }
    }

    pub fn rts(&self, o: &Options) -> i32 {
        let mut attr = ibv_qp_attr {
            qp_state: ibv_qp_state::IBV_QPS_RTS,
            sq_psn: 7,
            timeout: o.timeout,
            retry_cnt: o.retry_cnt,
            rnr_retry: o.rnr_retry,
            max_rd_atomic: 4,
            ..Default::default()
        };
        use ibv_qp_attr_mask as M;
        let mask = M::IBV_QP_STATE.0 | M::IBV_QP_SQ_PSN.0;
        let reliable = M::IBV_QP_TIMEOUT.0
            | M::IBV_QP_RETRY_CNT.0
            | M::IBV_QP_RNR_RETRY.0
            | M::IBV_QP_MAX_QP_RD_ATOMIC.0;
        self.modify(&mut attr, mask | if self.reliable() { reliable } else { 0 })
    }

    pub fn connect(&self, dest: u32, o: &Options) {
        assert_eq!(self.rtr(dest), 0);
        assert_eq!(self.rts(o), 0);
    }

    pub fn recv(&self, wr_id: u64, sges: &mut [ibv_sge]) -> i32 {
        let mut wr = ibv_recv_wr {
            wr_id,
            next: null_mut(),
            sg_list: sges.as_mut_ptr(),
            num_sge: sges.len() as i32,
        };
        unsafe { ibv_post_recv(self.qp, &mut wr, &mut null_mut()) }
    }

    pub fn post(&self, wr: &mut ibv_send_wr) -> i32 {
        unsafe { ibv_post_send(self.qp, wr, &mut null_mut()) }
    }

    pub fn poll(&self) -> Option<ibv_wc> {
        let mut wc = ibv_wc::default();
        match unsafe { ibv_poll_cq(self.cq, 1, &mut wc) } {
            0 => None,
            1 => Some(wc),
            n => panic!("poll: {n}"),
        }
    }

    /// The next completion.
    pub fn next(&self) -> ibv_wc {
        let begin = Instant::now();
        loop {
            if let Some(wc) = self.poll() {
                return wc;
            }
            assert!(begin.elapsed() < HANG, "no completion");
            std::thread::yield_now();
        }
    }

    pub fn arm(&self) {
        assert_eq!(unsafe { ibv_req_notify_cq(self.cq, 0) }, 0);
    }

    pub fn event(&self) {
        let (mut cq, mut context) = (null_mut(), null_mut());
        assert_eq!(
            unsafe { (api().ibv_get_cq_event)(self.channel, &mut cq, &mut context) },
            0
        );
        assert_eq!(cq, self.cq);
        unsafe { (api().ibv_ack_cq_events)(cq, 1) };
    }
}

impl Drop for End {
    fn drop(&mut self) {
        unsafe {
            assert_eq!(
                (api().ibv_destroy_cq)(self.cq),
                libc::EBUSY,
                "a queue in use cannot go"
            );
            assert_eq!((api().ibv_destroy_qp)(self.qp), 0);
            assert_eq!((api().ibv_destroy_cq)(self.cq), 0);
            assert_eq!((api().ibv_destroy_comp_channel)(self.channel), 0);
        }
    }
}

/// Two connected ends on one device.
pub fn pair(dev: &Dev, o: &Options) -> (End, End) {
    let (a, b) = (End::new(dev, o), End::new(dev, o));
    a.connect(b.qpn(), o);
    b.connect(a.qpn(), o);
    (a, b)
}
