//! One end: a queue pair with a completion queue and a channel.

use crate::device::{Bed, HANG, Side, errno_code};
use crate::memory::{ATOMIC, Mem, READ, WRITE};
use crate::names;
use crate::sundry::{Ah, Cq, Srq};
use ibverbs_sys::inline::{ibv_post_recv, ibv_post_send};
use ibverbs_sys::{
    ibv_mtu, ibv_qp, ibv_qp_attr, ibv_qp_attr_mask as Mask, ibv_qp_cap, ibv_qp_init_attr,
    ibv_qp_state as State, ibv_qp_type as Type, ibv_recv_wr, ibv_send_wr, ibv_sge, ibv_wc,
};
use std::ptr::null_mut;
use std::time::Instant;

/// Of queue pairs for datagrams.
pub const QKEY: u32 = 0x1111_2222;
/// Where sequence numbers start.
const PSN: u32 = 7;

/// What a queue pair is made and connected with.
#[derive(Clone, Copy)]
pub struct Options {
    pub service: Type,
    pub depth: u32,
    pub sge: u32,
    pub inline: u32,
    pub sig_all: bool,
    pub rnr_retry: u8,
    pub timeout: u8,
    pub retry_cnt: u8,
    pub access: u32,
    pub cqe: u32,
}

/// Reliable connections.
pub const RC: Options = Options {
    service: Type::IBV_QPT_RC,
    depth: 16,
    sge: 4,
    inline: 64,
    sig_all: false,
    rnr_retry: 7,
    timeout: 17,
    retry_cnt: 6,
    access: READ | WRITE | ATOMIC,
    cqe: 64,
};
/// Unreliable connections.
pub const UC: Options = Options {
    service: Type::IBV_QPT_UC,
    access: WRITE,
    ..RC
};
/// Datagrams.
pub const UD: Options = Options {
    service: Type::IBV_QPT_UD,
    ..RC
};
/// Gives up after some 30 ms without an answer.
pub const IMPATIENT: Options = Options {
    timeout: 11,
    retry_cnt: 2,
    ..RC
};

/// What a queue pair is asked to be created with.
pub fn init_attr(o: &Options, cq: &Cq, srq: Option<&Srq>) -> ibv_qp_init_attr {
    ibv_qp_init_attr {
        send_cq: cq.handle(),
        recv_cq: cq.handle(),
        srq: srq.map_or(null_mut(), Srq::handle),
        cap: ibv_qp_cap {
            max_send_wr: o.depth,
            max_recv_wr: o.depth,
            max_send_sge: o.sge,
            max_recv_sge: o.sge,
            max_inline_data: o.inline,
        },
        qp_type: o.service,
        sq_sig_all: o.sig_all.into(),
        ..Default::default()
    }
}

/// A queue pair.
pub struct End {
    pub side: Side,
    pub qp: *mut ibv_qp,
    pub cq: Cq,
    pub options: Options,
}

impl End {
    /// In RESET.
    pub fn new(side: &Side, o: &Options) -> End {
        End::with(side, o, None)
    }

    /// In RESET, with a shared receive queue.
    pub fn with(side: &Side, o: &Options, srq: Option<&Srq>) -> End {
        End::on(side, o, srq, Cq::new(side, o.cqe))
    }

    /// In RESET, on this completion queue.
    pub fn on(side: &Side, o: &Options, srq: Option<&Srq>, cq: Cq) -> End {
        let mut attr = init_attr(o, &cq, srq);
        let qp = End::create(side, &mut attr).unwrap_or_else(|error| {
            panic!("no queue pair: {}", names::errno(error));
        });
        End {
            side: *side,
            qp,
            cq,
            options: *o,
        }
    }

    /// Only the queue pair, or an errno.
    pub fn create(side: &Side, attr: &mut ibv_qp_init_attr) -> Result<*mut ibv_qp, i32> {
        // SAFETY: domain and queues of the attributes are alive.
        let qp = unsafe { (side.api.ibv_create_qp)(side.pd, attr) };
        if qp.is_null() {
            return Err(errno_code());
        }
        Ok(qp)
    }

    /// Destroys the queue pair before its completion queue.
    pub fn destroy(&mut self) -> i32 {
        // SAFETY: alive until this succeeds, and null afterwards.
        let result = unsafe { (self.side.api.ibv_destroy_qp)(self.qp) };
        if result == 0 {
            self.qp = null_mut();
        }
        result
    }

    pub fn qpn(&self) -> u32 {
        // SAFETY: the queue pair is alive.
        unsafe { (*self.qp).qp_num }
    }

    pub fn modify(&self, (mut attr, mask): (ibv_qp_attr, u32)) -> i32 {
        // SAFETY: the queue pair is alive.
        unsafe { (self.side.api.ibv_modify_qp)(self.qp, &mut attr, mask as i32) }
    }

    /// Attributes to INIT.
    pub fn to_init(&self) -> (ibv_qp_attr, u32) {
        let attr = ibv_qp_attr {
            qp_state: State::IBV_QPS_INIT,
            port_num: 1,
            qp_access_flags: self.options.access,
            qkey: QKEY,
            ..Default::default()
        };
        let own = match self.options.service == Type::IBV_QPT_UD {
            true => Mask::IBV_QP_QKEY,
            false => Mask::IBV_QP_ACCESS_FLAGS,
        };
        let mask = Mask::IBV_QP_STATE.0 | Mask::IBV_QP_PKEY_INDEX.0 | Mask::IBV_QP_PORT.0 | own.0;
        (attr, mask)
    }

    /// Attributes to RTR, for a peer on a device.
    pub fn to_rtr(&self, peer: u32, on: &Side) -> (ibv_qp_attr, u32) {
        let mut attr = ibv_qp_attr {
            qp_state: State::IBV_QPS_RTR,
            path_mtu: ibv_mtu::IBV_MTU_1024,
            dest_qp_num: peer,
            rq_psn: PSN,
            max_dest_rd_atomic: 4,
            min_rnr_timer: 1,
            ah_attr: Ah::attr(on),
            ..Default::default()
        };
        attr.ah_attr.sl = 0;
        let connected = Mask::IBV_QP_AV.0
            | Mask::IBV_QP_PATH_MTU.0
            | Mask::IBV_QP_DEST_QPN.0
            | Mask::IBV_QP_RQ_PSN.0;
        let reliable = Mask::IBV_QP_MAX_DEST_RD_ATOMIC.0 | Mask::IBV_QP_MIN_RNR_TIMER.0;
        let own = match self.options.service {
            Type::IBV_QPT_UD => 0,
            Type::IBV_QPT_UC => connected,
            _ => connected | reliable,
        };
        (attr, Mask::IBV_QP_STATE.0 | own)
    }

    /// Attributes to RTS.
    pub fn to_rts(&self) -> (ibv_qp_attr, u32) {
        let attr = ibv_qp_attr {
            qp_state: State::IBV_QPS_RTS,
            sq_psn: PSN,
            timeout: self.options.timeout,
            retry_cnt: self.options.retry_cnt,
            rnr_retry: self.options.rnr_retry,
            max_rd_atomic: 4,
            ..Default::default()
        };
        let reliable = Mask::IBV_QP_TIMEOUT.0
            | Mask::IBV_QP_RETRY_CNT.0
            | Mask::IBV_QP_RNR_RETRY.0
            | Mask::IBV_QP_MAX_QP_RD_ATOMIC.0;
        let own = match self.options.service == Type::IBV_QPT_RC {
            true => reliable,
            false => 0,
        };
        (attr, Mask::IBV_QP_STATE.0 | Mask::IBV_QP_SQ_PSN.0 | own)
    }

    /// Another state, and nothing else.
    pub fn set(&self, state: State) -> i32 {
        let attr = ibv_qp_attr {
            qp_state: state,
            ..Default::default()
        };
        self.modify((attr, Mask::IBV_QP_STATE.0))
    }

    pub fn init(self) -> End {
        assert_eq!(self.modify(self.to_init()), 0, "RESET to INIT");
        self
    }

    pub fn rtr(&self, peer: &End) {
        let attr = self.to_rtr(peer.qpn(), &peer.side);
        assert_eq!(self.modify(attr), 0, "INIT to RTR");
    }

    pub fn rts(&self) {
        assert_eq!(self.modify(self.to_rts()), 0, "RTR to RTS");
    }

    /// All attributes.
    pub fn query(&self) -> (ibv_qp_attr, ibv_qp_init_attr) {
        let (mut attr, mut init) = Default::default();
        let mask = Mask::IBV_QP_STATE.0 | Mask::IBV_QP_CAP.0;
        // SAFETY: the queue pair is alive; both are valid for writes.
        let result =
            unsafe { (self.side.api.ibv_query_qp)(self.qp, &mut attr, mask as i32, &mut init) };
        assert_eq!(result, 0);
        (attr, init)
    }

    pub fn state(&self) -> String {
        names::state(self.query().0.qp_state)
    }

    /// The state once it is the wanted one; the limit is there for those that never get there.
    pub fn settles(&self, wanted: State) -> String {
        let start = Instant::now();
        while self.query().0.qp_state != wanted && start.elapsed() < HANG / 6 {
            std::thread::yield_now();
        }
        self.state()
    }

    /// Posts a list of requests; see [`crate::request::post_all`].
    pub fn post_chain(&self, first: *mut ibv_send_wr) -> (i32, Option<u64>) {
        let mut bad = null_mut();
        // SAFETY: the queue pair is alive, the chain lives in the caller's.
        unsafe {
            let result = ibv_post_send(self.qp, first, &mut bad);
            let bad = (result != 0 && !bad.is_null()).then(|| (*bad).wr_id);
            (result, bad)
        }
    }

    /// Posts a receive of these pieces.
    pub fn post_recv(&self, id: u64, mut sges: Vec<ibv_sge>) -> i32 {
        let mut wr = ibv_recv_wr {
            wr_id: id,
            next: null_mut(),
            sg_list: sges.as_mut_ptr(),
            num_sge: sges.len() as i32,
        };
        // SAFETY: the queue pair is alive, the request until the call returns.
        unsafe { ibv_post_recv(self.qp, &mut wr, &mut null_mut()) }
    }

    /// Posts a receive, which must be taken.
    pub fn recv(&self, id: u64, mem: &Mem, offset: usize, len: usize) {
        assert_eq!(self.post_recv(id, vec![mem.sge(offset, len)]), 0);
    }

    pub fn next(&self) -> ibv_wc {
        self.cq.next()
    }

    /// The status of the next completion.
    pub fn status(&self) -> String {
        names::status(self.next().status)
    }

    /// Those of the next, in their order.
    pub fn statuses(&self, count: usize) -> String {
        let all: Vec<_> = (0..count).map(|_| self.status()).collect();
        all.join(", ")
    }

    /// The ids of the next, in their order, all of which must succeed.
    pub fn ids(&self, count: usize) -> String {
        let one = |_| {
            let wc = self.next();
            match wc.status.0 {
                0 => wc.wr_id.to_string(),
                _ => format!("{} {}", wc.wr_id, names::status(wc.status)),
            }
        };
        (0..count).map(one).collect::<Vec<_>>().join(", ")
    }

    /// What waits now, in the same way.
    pub fn rest(&self) -> String {
        self.cq.rest()
    }
}

impl Drop for End {
    fn drop(&mut self) {
        if !self.qp.is_null() {
            self.destroy();
        }
    }
}

impl Bed {
    /// Two in INIT.
    pub fn ends(&self, o: &Options) -> (End, End) {
        (End::new(&self.a, o).init(), End::new(&self.b, o).init())
    }

    /// Two connected.
    pub fn pair(&self, o: &Options) -> (End, End) {
        connected(self.ends(o))
    }
}

/// Connects two that are in INIT, or brings those for datagrams to RTS.
pub fn connected((a, b): (End, End)) -> (End, End) {
    a.rtr(&b);
    b.rtr(&a);
    a.rts();
    b.rts();
    (a, b)
}

/// Says whether a message from one to the other arrives, while nothing else is posted.
pub fn works(a: &End, b: &End) -> &'static str {
    let (from, to) = (
        Mem::of(&a.side, b"works"),
        Mem::new(&b.side, 8, crate::memory::LOCAL),
    );
    b.recv(901, &to, 0, 8);
    crate::request::send(900, &from, 5).go(a);
    let (sent, received) = (a.next(), b.next());
    assert_eq!((sent.wr_id, received.wr_id), (900, 901));
    match (sent.status.0, received.status.0, to.text(0, 5).as_str()) {
        (0, 0, "works") => "works",
        _ => "does not work",
    }
}
