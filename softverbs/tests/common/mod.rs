//! Two queue pairs over the raw table, for tests that look at the device itself.
#![allow(
    dead_code,
    missing_docs,
    clippy::undocumented_unsafe_blocks,
    clippy::missing_safety_doc
)]

use ibverbs_sys::inline::{
    ibv_poll_cq, ibv_post_recv, ibv_post_send, ibv_post_srq_recv, ibv_req_notify_cq,
};
use ibverbs_sys::*;
use softverbs::memory::{Kind, MemoryFile};
use std::ptr::null_mut;
use std::time::{Duration, Instant};

/// How long something may take before the test calls it hung.
pub const HANG: Duration = Duration::from_secs(20);

pub const LOCAL: u32 = ibv_access_flags::IBV_ACCESS_LOCAL_WRITE.0;
pub const READ: u32 = ibv_access_flags::IBV_ACCESS_REMOTE_READ.0;
pub const WRITE: u32 = ibv_access_flags::IBV_ACCESS_REMOTE_WRITE.0;
pub const ATOMIC: u32 = ibv_access_flags::IBV_ACCESS_REMOTE_ATOMIC.0;
pub const OK: ibv_wc_status = ibv_wc_status::IBV_WC_SUCCESS;

pub fn api() -> &'static Api {
    softverbs::api()
}

/// Context and protection domain.
pub struct Dev {
    pub ctx: *mut ibv_context,
    pub pd: *mut ibv_pd,
}

impl Dev {
    pub fn open() -> Dev {
        unsafe {
            let list = (api().ibv_get_device_list)(null_mut());
            let ctx = (api().ibv_open_device)(*list);
            assert!(!ctx.is_null(), "{}", std::io::Error::last_os_error());
            (api().ibv_free_device_list)(list);
            Dev {
                ctx,
                pd: (api().ibv_alloc_pd)(ctx),
            }
        }
    }
}

impl Drop for Dev {
    fn drop(&mut self) {
        unsafe {
            assert_eq!((api().ibv_dealloc_pd)(self.pd), 0);
            (api().ibv_close_device)(self.ctx);
        }
    }
}

/// Registered memory.
pub struct Mem {
    pub mr: *mut ibv_mr,
    ptr: *mut u8,
    len: usize,
    _file: Option<MemoryFile>,
    _vec: Vec<u8>,
}

impl Mem {
    /// Plain memory.
    pub fn plain(dev: &Dev, len: usize, access: u32) -> Mem {
        let mut vec = vec![0u8; len];
        Mem::register(dev, vec.as_mut_ptr(), len, access, None, vec)
    }

    /// A memory file.
    pub fn file(dev: &Dev, len: usize, access: u32, kind: Kind) -> Mem {
        let file = MemoryFile::create(len, kind).unwrap();
        Mem::register(dev, file.as_ptr(), len, access, Some(file), Vec::new())
    }

    fn register(
        dev: &Dev,
        ptr: *mut u8,
        len: usize,
        access: u32,
        _file: Option<MemoryFile>,
        _vec: Vec<u8>,
    ) -> Mem {
        let mr = unsafe { (api().ibv_reg_mr)(dev.pd, ptr.cast(), len, access as i32) };
        assert!(!mr.is_null(), "{}", std::io::Error::last_os_error());
        Mem {
            mr,
            ptr,
            len,
            _file,
            _vec,
        }
    }

    pub fn addr(&self) -> u64 {
        self.ptr as u64
    }

    pub fn key(&self) -> u32 {
        unsafe { (*self.mr).lkey }
    }

    pub fn sge(&self, off: usize, len: usize) -> ibv_sge {
        ibv_sge {
            addr: self.addr() + off as u64,
            length: len as u32,
            lkey: self.key(),
        }
    }

    pub fn fill(&self, off: usize, bytes: &[u8]) {
        assert!(off + bytes.len() <= self.len);
        unsafe { std::ptr::copy(bytes.as_ptr(), self.ptr.add(off), bytes.len()) };
    }

    pub fn get(&self, off: usize, len: usize) -> Vec<u8> {
        assert!(off + len <= self.len);
        (off..off + len)
            .map(|i| unsafe { self.ptr.add(i).read_volatile() })
            .collect()
    }

    pub fn dereg(&mut self) {
        if !self.mr.is_null() {
            assert_eq!(unsafe { (api().ibv_dereg_mr)(self.mr) }, 0);
            self.mr = null_mut();
        }
    }
}

impl Drop for Mem {
    fn drop(&mut self) {
        self.dereg();
    }
}

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
                cap: ibv_qp_cap {
                    max_send_wr: o.depth,
                    max_recv_wr: o.depth,
                    max_send_sge: o.sge,
                    max_recv_sge: o.sge,
                    max_inline_data: o.inline,
                },
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

/// Takes and acknowledges an asynchronous event; gives what happened, and to which object.
pub fn event(dev: &Dev) -> (ibv_event_type, usize) {
    let mut event = unsafe { std::mem::zeroed::<ibv_async_event>() };
    assert_eq!(
        unsafe { (api().ibv_get_async_event)(dev.ctx, &mut event) },
        0
    );
    let element = unsafe { event.element.cq }.addr();
    unsafe { (api().ibv_ack_async_event)(&mut event) };
    (event.event_type, element)
}

/// Whether no asynchronous event waits.
pub fn no_event(dev: &Dev) -> bool {
    let mut fd = libc::pollfd {
        fd: unsafe { (*dev.ctx).async_fd },
        events: libc::POLLIN,
        revents: 0,
    };
    unsafe { libc::poll(&mut fd, 1, 0) == 0 }
}

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

pub const SIGNALED: u32 = ibv_send_flags::IBV_SEND_SIGNALED.0;
pub const INLINE: u32 = ibv_send_flags::IBV_SEND_INLINE.0;

/// The key of queue pairs for datagrams.
pub const QKEY: u32 = 0x1111_2222;

/// Options of a queue pair for datagrams.
pub fn ud() -> Options {
    Options {
        qp_type: ibv_qp_type::IBV_QPT_UD,
        ..Options::default()
    }
}

/// An address handle.
pub struct Ah(pub *mut ibv_ah);

impl Ah {
    /// Of the device's own GID at this index.
    pub fn new(dev: &Dev, index: u8) -> Ah {
        let ah = unsafe { (api().ibv_create_ah)(dev.pd, &mut Ah::attr(dev.ctx, index)) };
        assert!(!ah.is_null(), "{}", std::io::Error::last_os_error());
        Ah(ah)
    }

    pub fn attr(ctx: *mut ibv_context, index: u8) -> ibv_ah_attr {
        let mut attr = ibv_ah_attr {
            port_num: 1,
            is_global: 1,
            ..Default::default()
        };
        (attr.grh.sgid_index, attr.grh.hop_limit) = (index, 7);
        let gid = &mut attr.grh.dgid;
        assert_eq!(
            unsafe { (api().ibv_query_gid)(ctx, 1, index.into(), gid) },
            0
        );
        attr
    }

    /// A datagram.
    pub fn to(&self, qpn: u32, op: ibv_wr_opcode, sges: &mut [ibv_sge]) -> ibv_send_wr {
        let mut wr = wr(1, op, sges, SIGNALED);
        wr.wr.ud.ah = self.0;
        (wr.wr.ud.remote_qpn, wr.wr.ud.remote_qkey) = (qpn, QKEY);
        wr
    }
}

impl Drop for Ah {
    fn drop(&mut self) {
        assert_eq!(unsafe { (api().ibv_destroy_ah)(self.0) }, 0);
    }
}

/// Two connected ends on one device.
pub fn pair(dev: &Dev, o: &Options) -> (End, End) {
    let (a, b) = (End::new(dev, o), End::new(dev, o));
    a.connect(b.qpn(), o);
    b.connect(a.qpn(), o);
    (a, b)
}
