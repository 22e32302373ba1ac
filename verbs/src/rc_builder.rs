//! Building a reliable connected queue pair.
//!
//! Only what this type of queue pair takes can be set. The defaults are values that work on the devices in use: a receiver
//! that is not ready asks for 0.64 ms (the code 0 would mean 655 ms), an unanswered packet is sent again after 67 ms, six times
//! (seven never ends on some devices), and a receiver that is not ready is waited for without limit.

use std::collections::hash_map::RandomState;
use std::fmt;
use std::hash::{BuildHasher, Hasher};
use std::sync::Arc;

use ibverbs_sys::{
    ibv_qp_attr, ibv_qp_attr_mask as mask, ibv_qp_cap, ibv_qp_init_attr, ibv_qp_state, ibv_qp_type,
};

use crate::cq::CqShared;
use crate::errno;
use crate::qp::{Limits, Place, QpCore};
use crate::{Access, Context, Cq, Endpoint, Error, Pd, RcReady, SgeList};

/// Attributes that matter when the queue pair is connected.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Attributes {
    pub(crate) rnr_retry: u8,
    pub(crate) retry_cnt: u8,
    pub(crate) timeout: u8,
    pub(crate) min_rnr_timer: u8,
    /// READs and atomics outstanding on this side.
    pub(crate) initiator_depth: u8,
}

/// Builds a reliable connection; made by [`Pd::rc`].
///
/// Source of ranges and meanings: `ibv_create_qp(3)`, `ibv_modify_qp(3)`.
#[derive(Clone)]
#[must_use = "nothing is created before .build()"]
pub struct RcBuilder {
    pd: Pd,
    send_cq: Arc<CqShared>,
    recv_cq: Arc<CqShared>,
    send_depth: u32,
    recv_depth: u32,
    max_send_sge: Option<u32>,
    max_recv_sge: Option<u32>,
    max_inline: u32,
    rnr_retry: u8,
    retry_cnt: u8,
    timeout: u8,
    min_rnr_timer: u8,
    rd_atomic: u8,
    access: Access,
    overcommit: bool,
}

impl RcBuilder {
    pub(crate) fn new(pd: &Pd, cq: &Cq) -> RcBuilder {
        RcBuilder {
            pd: pd.clone(),
            send_cq: cq.shared().clone(),
            recv_cq: cq.shared().clone(),
            send_depth: 64,
            recv_depth: 64,
            max_send_sge: None,
            max_recv_sge: None,
            max_inline: 64,
            rnr_retry: 7,
            retry_cnt: 6,
            timeout: 14,
            min_rnr_timer: 12,
            rd_atomic: 16,
            access: Access::REMOTE_READ | Access::REMOTE_WRITE,
            overcommit: false,
        }
    }

    /// Lets receives complete on a queue of their own.
    pub fn recv_cq(mut self, cq: &Cq) -> RcBuilder {
        self.recv_cq = cq.shared().clone();
        self
    }

    /// Work requests the send queue holds, until they are retired *and* taken. Default 64.
    pub fn send_depth(mut self, depth: u32) -> RcBuilder {
        self.send_depth = depth;
        self
    }

    /// Receives that can be posted at once. Default 64; 0 for a side that only sends.
    pub fn recv_depth(mut self, depth: u32) -> RcBuilder {
        self.recv_depth = depth;
        self
    }

    /// Segments in one send, WRITE or READ, at most 32. Default 16, or what the device has if that is less.
    pub fn max_send_sge(mut self, count: u32) -> RcBuilder {
        self.max_send_sge = Some(count);
        self
    }

    /// Segments in one receive, at most 32. Default 4, or what the device has if that is less.
    pub fn max_recv_sge(mut self, count: u32) -> RcBuilder {
        self.max_recv_sge = Some(count);
        self
    }

    /// Bytes that [`Wr::inline`](crate::Wr::inline) can carry. Default 64, which devices in use grant; more makes each
    /// slot of the send queue larger.
    pub fn max_inline(mut self, bytes: u32) -> RcBuilder {
        self.max_inline = bytes;
        self
    }

    /// How often a send is repeated when the peer has no receive posted, 0 to 6; 7, the default, is without limit.
    ///
    /// Not a substitute for flow control: devices have been seen (Soft-RoCE) to count the wait for a receive as silence of the
    /// peer, and to give up with [`RETRY_EXC_ERR`](crate::WcStatus::RETRY_EXC_ERR) once it lasts longer than about
    /// ([`retry_cnt`](Self::retry_cnt) + 1) times [`timeout`](Self::timeout), half a second by default.
    pub fn rnr_retry(mut self, count: u8) -> RcBuilder {
        self.rnr_retry = count;
        self
    }

    /// How often a packet that is not answered is repeated, 0 to 7. Default 6; on some devices 7 never ends.
    pub fn retry_cnt(mut self, count: u8) -> RcBuilder {
        self.retry_cnt = count;
        self
    }

    /// Code of the time after which a packet is not answered: 4.096 us x 2^code, 1 to 31; 0 is for ever. Default 14 (67 ms).
    pub fn timeout(mut self, code: u8) -> RcBuilder {
        self.timeout = code;
        self
    }

    /// Code of the time that peers wait when no receive is posted here, 1 to 31: from 0.01 ms (1) to 491.52 ms (31);
    /// 0 is 655.36 ms. Default 12 (0.64 ms).
    pub fn min_rnr_timer(mut self, code: u8) -> RcBuilder {
        self.min_rnr_timer = code;
        self
    }

    /// READs and atomics that can be under way in each direction. Default 16; as much of it as the devices have. With 0 on
    /// either side, READs and atomics in both directions are [refused](crate::PostErrorKind::NoReads).
    pub fn rd_atomic(mut self, count: u8) -> RcBuilder {
        self.rd_atomic = count;
        self
    }

    /// What the peer may do at all; each region's access decides further. Default: READ and WRITE. Atomics must be asked for,
    /// since not all devices have them.
    pub fn access(mut self, access: Access) -> RcBuilder {
        self.access = access;
        self
    }

    /// Allows the queues on a completion queue to be deeper, in sum, than it is. The user then sees to it that never more
    /// completions are outstanding than fit: an overflow breaks the completion queue and all queue pairs on it, or
    /// loses completions silently.
    pub fn overcommit_cq(mut self, allow: bool) -> RcBuilder {
        self.overcommit = allow;
        self
    }

    fn context(&self) -> &Context {
        self.pd.context()
    }

    /// Checks what can be checked here, so that the error says more than `EINVAL`.
    fn limits(&self) -> Result<Limits, Error> {
        let dev = self.context().query_device();
        for cq in [&self.send_cq, &self.recv_cq] {
            if !cq.context().same(self.context()) {
                return Err(Error::OtherDevice {
                    what: "a completion queue",
                });
            }
        }
        let check = |what, value: u32, min: u32, max: u32| {
            Error::in_range(what, value.into(), min.into(), max.into())
        };
        let sge_max = dev.max_sge.min(SgeList::CAPACITY as u32).max(1);
        let send_sge = self.max_send_sge.unwrap_or(sge_max.min(16));
        let recv_sge = self.max_recv_sge.unwrap_or(sge_max.min(4));
        check("send_depth", self.send_depth, 1, dev.max_qp_wr)?;
        check("recv_depth", self.recv_depth, 0, dev.max_qp_wr)?;
        check("max_send_sge", send_sge, 1, sge_max)?;
        check("max_recv_sge", recv_sge, 1, sge_max)?;
        check("rnr_retry", self.rnr_retry.into(), 0, 7)?;
        check("retry_cnt", self.retry_cnt.into(), 0, 7)?;
        check("timeout", self.timeout.into(), 0, 31)?;
        check("min_rnr_timer", self.min_rnr_timer.into(), 0, 31)?;
        Ok(Limits {
            send_depth: self.send_depth,
            recv_depth: self.recv_depth,
            send_sge,
            // Old devices do not fill in the limit for READs.
            read_sge: if dev.max_sge_rd == 0 {
                send_sge
            } else {
                send_sge.min(dev.max_sge_rd)
            },
            recv_sge,
            inline: self.max_inline,
            message: self.context().port().max_msg_sz,
            atomics: dev.atomics,
        })
    }

    /// Creates the queue pair, in the state INIT: receives can be posted, nothing can be sent yet.
    ///
    /// # Errors
    /// When an attribute is out of range, the completion queue too small or of another device, or the device refuses. In place
    /// of a queue pair that was just destroyed, poll the completion queue empty first: see [`Error::CqTooSmall`].
    #[doc(alias = "ibv_create_qp")]
    pub fn build(self) -> Result<RcReady, Error> {
        let limits = self.limits()?;
        let send = Claim::new(&self.send_cq, self.send_depth, self.overcommit)?;
        let recv = Claim::new(&self.recv_cq, self.recv_depth, self.overcommit)?;
        let mut init = ibv_qp_init_attr {
            send_cq: self.send_cq.raw(),
            recv_cq: self.recv_cq.raw(),
            cap: ibv_qp_cap {
                max_send_wr: limits.send_depth,
                max_recv_wr: limits.recv_depth,
                max_send_sge: limits.send_sge,
                max_recv_sge: limits.recv_sge,
                max_inline_data: limits.inline,
            },
            qp_type: ibv_qp_type::IBV_QPT_RC,
            sq_sig_all: 0,
            ..Default::default()
        };
        // SAFETY: domain and completion queues are alive and of one device; the attributes are complete.
        let qp = errno::object(unsafe { (self.pd.api().ibv_create_qp)(self.pd.raw(), &mut init) }).map_err(|e| {
            let hint = format!(
                "depths {} and {}, segments {} and {}, inline {}: the device may not grant all of these at once",
                limits.send_depth, limits.recv_depth, limits.send_sge, limits.recv_sge, limits.inline
            );
            Error::hinted("ibv_create_qp", e, hint)
        })?;
        let limits = Limits {
            inline: init.cap.max_inline_data,
            ..limits
        };
        let core = QpCore::new(
            qp,
            limits,
            (self.send_cq.clone(), send.keep()),
            (self.recv_cq.clone(), recv.keep()),
            self.pd.clone(),
        );
        self.to_init(&core)?;
        let dev = self.context().query_device();
        let port = self.context().port();
        let (psn, responder) = (random_psn(), self.rd_atomic.min(dev.max_qp_rd_atom));
        let endpoint = Endpoint::new(core.qp_num(), psn, port.lid, port.gid, port.mtu, responder)
            .map_err(|e| {
            Error::hinted(
                "ibv_create_qp",
                std::io::ErrorKind::InvalidData.into(),
                e.to_string(),
            )
        })?;
        let attributes = Attributes {
            rnr_retry: self.rnr_retry,
            retry_cnt: self.retry_cnt,
            timeout: self.timeout,
            min_rnr_timer: self.min_rnr_timer,
            initiator_depth: self.rd_atomic.min(dev.max_qp_init_rd_atom),
        };
        Ok(RcReady::new(core, endpoint, attributes))
    }

    fn to_init(&self, core: &QpCore) -> Result<(), Error> {
        let port = self.context().port().port_num;
        let mut attr = ibv_qp_attr {
            qp_state: ibv_qp_state::IBV_QPS_INIT,
            pkey_index: 0,
            port_num: port,
            qp_access_flags: (self.access & Access::REMOTE).bits(),
            ..Default::default()
        };
        let what = mask(
            mask::IBV_QP_STATE.0
                | mask::IBV_QP_PKEY_INDEX.0
                | mask::IBV_QP_PORT.0
                | mask::IBV_QP_ACCESS_FLAGS.0,
        );
        core.with(|qp| core.modify(qp, &mut attr, what)).unwrap_or(Ok(())).map_err(|e| {
            let hint = format!(
                "RESET to INIT with STATE, PKEY_INDEX 0, PORT {port}, ACCESS_FLAGS {:?}: the device may not offer this access",
                self.access
            );
            Error::hinted("ibv_modify_qp", e, hint)
        })
    }
}

impl fmt::Debug for RcBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RcBuilder")
            .field("send_depth", &self.send_depth)
            .field("recv_depth", &self.recv_depth)
            .finish_non_exhaustive()
    }
}

/// A tag that goes back when no queue pair comes of it.
struct Claim<'a> {
    cq: &'a CqShared,
    place: Place,
    depth: u32,
}

impl<'a> Claim<'a> {
    fn new(cq: &'a CqShared, depth: u32, overcommit: bool) -> Result<Claim<'a>, Error> {
        let tag = cq.acquire_tag(depth, overcommit)?;
        let place = Place {
            tag: tag.tag,
            first: tag.first,
        };
        Ok(Claim { cq, place, depth })
    }

    fn keep(self) -> Place {
        let place = self.place;
        std::mem::forget(self);
        place
    }
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        self.cq
            .release_tag(self.place.tag, self.depth, self.place.untouched());
    }
}

/// A start for packet numbers that differs from connection to connection, so that packets of an old one do not fit.
fn random_psn() -> u32 {
    RandomState::new().build_hasher().finish() as u32 & 0xff_ffff
}
