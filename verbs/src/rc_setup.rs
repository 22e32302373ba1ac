//! Bringing a queue pair up: INIT to RTR to RTS.

use std::fmt;
use std::io;
use std::sync::Arc;

use ibverbs_sys::{
    ibv_ah_attr, ibv_global_route, ibv_qp, ibv_qp_attr, ibv_qp_attr_mask as mask, ibv_qp_state,
};

use crate::error::local_name;
use crate::qp::{Keep, QpCore, Sends, Shared};
use crate::rc_builder::Attributes;
use crate::{ConnectError, DeviceKind, Endpoint, LinkLayer, RecvQueue, SendQueue};

/// A queue pair that is not connected yet.
///
/// Exchange [`endpoint`](Self::endpoint) with the peer, then [`connect`](Self::connect). To post receives before the peer can
/// send, [`split`](Self::split) first. Sends are [refused](crate::PostErrorKind::NotConnected) until then.
pub struct RcReady {
    core: QpCore,
    endpoint: Endpoint,
    attributes: Attributes,
}

impl RcReady {
    pub(crate) fn new(core: QpCore, endpoint: Endpoint, attributes: Attributes) -> RcReady {
        RcReady {
            core,
            endpoint,
            attributes,
        }
    }

    /// What the peer must know.
    pub fn endpoint(&self) -> Endpoint {
        self.endpoint
    }

    /// The queues, for work of the types `S` and `R`, and what is left to do.
    pub fn split<S: Send + 'static, R: Send + 'static>(
        self,
    ) -> (RcSetup, SendQueue<S>, RecvQueue<R>) {
        let (keep, send, recv) = Shared::split(self.core);
        let setup = RcSetup {
            keep,
            endpoint: self.endpoint,
            attributes: self.attributes,
        };
        (setup, SendQueue::new(send), RecvQueue::new(recv))
    }

    /// Connects to the peer; the queues hold work of the types `S` and `R`.
    ///
    /// # Errors
    /// [`ConnectError`]; the queue pair is destroyed then.
    pub fn connect<S: Send + 'static, R: Send + 'static>(
        self,
        peer: &Endpoint,
    ) -> Result<(SendQueue<S>, RecvQueue<R>), ConnectError> {
        let (setup, send, recv) = self.split();
        setup.connect(peer)?;
        Ok((send, recv))
    }
}

impl fmt::Debug for RcReady {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RcReady")
            .field("endpoint", &self.endpoint)
            .finish_non_exhaustive()
    }
}

/// The right to connect a queue pair whose queues are already in use.
pub struct RcSetup {
    keep: Arc<dyn Keep>,
    endpoint: Endpoint,
    attributes: Attributes,
}

impl RcSetup {
    /// What the peer must know.
    pub fn endpoint(&self) -> Endpoint {
        self.endpoint
    }

    /// Connects to the peer: ready to receive, then ready to send.
    ///
    /// # Errors
    /// [`ConnectError`] names the step, its attributes, both ends and the likely cause. The queues remain; work posted to them
    /// comes back when they are destroyed.
    #[doc(alias = "ibv_modify_qp")]
    pub fn connect(self, peer: &Endpoint) -> Result<(), ConnectError> {
        let core = self.keep.core();
        self.reachable(core, peer)?;
        core.with(|qp| {
            self.to_rtr(core, qp, peer)?;
            self.to_rts(core, qp, peer)
        })
        .unwrap_or(Err(ConnectError::Destroyed))
    }

    fn local(&self, core: &QpCore) -> String {
        let ctx = core.pd().context();
        let port = ctx.port();
        local_name(ctx.device_name(), port.port_num, port.gid_index, &port.gid)
    }

    fn reachable(&self, core: &QpCore, peer: &Endpoint) -> Result<(), ConnectError> {
        let port = core.pd().context().port();
        let ethernet = port.link_layer == LinkLayer::Ethernet;
        let why = if !port.active {
            "the local port is not active"
        } else if ethernet && port.gid.is_zero() {
            "the local port has no usable GID, and Ethernet ports are reached by GID"
        } else if ethernet && peer.gid().is_zero() {
            "the peer has no GID, and Ethernet ports are reached by GID"
        } else if !ethernet && peer.lid() == 0 && peer.gid().is_zero() {
            "the peer has neither LID nor GID"
        } else {
            return Ok(());
        };
        Err(ConnectError::Unreachable {
            local: self.local(core),
            peer: peer.to_string(),
            why,
        })
    }

    fn to_rtr(&self, core: &QpCore, qp: *mut ibv_qp, peer: &Endpoint) -> Result<(), ConnectError> {
        let port = core.pd().context().port();
        // Within an InfiniBand subnet the LID is enough; a route by GID is for Ethernet and for other subnets.
        let global = port.link_layer == LinkLayer::Ethernet
            || peer.lid() == 0
            || (!peer.gid().is_zero()
                && !port.gid.is_zero()
                && peer.gid().0[..8] != port.gid.0[..8]);
        let mut attr = ibv_qp_attr {
            qp_state: ibv_qp_state::IBV_QPS_RTR,
            path_mtu: port.mtu.min(peer.mtu()).to_sys(),
            dest_qp_num: peer.qpn(),
            rq_psn: peer.psn(),
            max_dest_rd_atomic: self.endpoint.rd_atomic(),
            min_rnr_timer: self.attributes.min_rnr_timer,
            ah_attr: ibv_ah_attr {
                grh: ibv_global_route {
                    dgid: peer.gid().to_sys(),
                    sgid_index: port.gid_index,
                    hop_limit: 64,
                    ..Default::default()
                },
                dlid: peer.lid(),
                is_global: u8::from(global),
                port_num: port.port_num,
                ..Default::default()
            },
            ..Default::default()
        };
        let what = mask(
            mask::IBV_QP_STATE.0
                | mask::IBV_QP_AV.0
                | mask::IBV_QP_PATH_MTU.0
                | mask::IBV_QP_DEST_QPN.0
                | mask::IBV_QP_RQ_PSN.0
                | mask::IBV_QP_MAX_DEST_RD_ATOMIC.0
                | mask::IBV_QP_MIN_RNR_TIMER.0,
        );
        core.modify(qp, &mut attr, what).map_err(|source| ConnectError::Modify {
            from: "INIT",
            to: "RTR",
            attributes: "STATE, AV, PATH_MTU, DEST_QPN, RQ_PSN, MAX_DEST_RD_ATOMIC, MIN_RNR_TIMER",
            hint: rtr_hint(core.pd().context().kind(), &source),
            source,
            local: self.local(core),
            peer: peer.to_string(),
        })
    }

    fn to_rts(&self, core: &QpCore, qp: *mut ibv_qp, peer: &Endpoint) -> Result<(), ConnectError> {
        let a = &self.attributes;
        let reads = a.initiator_depth.min(peer.rd_atomic());
        let mut attr = ibv_qp_attr {
            qp_state: ibv_qp_state::IBV_QPS_RTS,
            timeout: a.timeout,
            retry_cnt: a.retry_cnt,
            rnr_retry: a.rnr_retry,
            sq_psn: self.endpoint.psn(),
            max_rd_atomic: reads,
            ..Default::default()
        };
        let what = mask(
            mask::IBV_QP_STATE.0
                | mask::IBV_QP_TIMEOUT.0
                | mask::IBV_QP_RETRY_CNT.0
                | mask::IBV_QP_RNR_RETRY.0
                | mask::IBV_QP_SQ_PSN.0
                | mask::IBV_QP_MAX_QP_RD_ATOMIC.0,
        );
        core.modify(qp, &mut attr, what)
            .map_err(|source| ConnectError::Modify {
                from: "RTR",
                to: "RTS",
                attributes: "STATE, TIMEOUT, RETRY_CNT, RNR_RETRY, SQ_PSN, MAX_QP_RD_ATOMIC",
                hint: "the device may not take one of the retry or depth values: try the defaults"
                    .into(),
                source,
                local: self.local(core),
                peer: peer.to_string(),
            })?;
        core.connected(if reads == 0 {
            Sends::NoReads
        } else {
            Sends::Everything
        });
        Ok(())
    }
}

impl fmt::Debug for RcSetup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RcSetup")
            .field("endpoint", &self.endpoint)
            .finish_non_exhaustive()
    }
}

fn rtr_hint(kind: DeviceKind, e: &io::Error) -> Box<str> {
    let hint = match (kind, e.raw_os_error()) {
        (DeviceKind::Soft, Some(libc::EPERM | libc::EACCES)) => {
            "the system does not let this process reach the peer's memory: both must belong to one user, and ptrace between them \
             must be allowed"
        }
        (DeviceKind::Soft, _) => {
            return format!(
                "soft0 reaches only live processes of this user on this host that meet in the same folder{}",
                meeting_place()
            )
            .into();
        }
        (_, Some(libc::ETIMEDOUT | libc::EHOSTUNREACH | libc::ENETUNREACH)) => {
            "the peer's GID could not be resolved from this one: both must be of one kind and network; name another with \
             VERBATIM_DEVICE=name:port:gid"
        }
        (_, Some(libc::EINVAL)) => {
            "likely the GID index, the peer's GID or the MTU does not fit this port; name another GID with \
             VERBATIM_DEVICE=name:port:gid"
        }
        _ => "see the kernel's log for what the driver says",
    };
    hint.into()
}

/// Where this process meets others on soft0, so that both sides of a failure can be compared.
fn meeting_place() -> String {
    #[cfg(feature = "soft")]
    if let Ok(place) = softverbs::meeting_place() {
        return format!(
            ": this one meets others {place}; if the peer's is another, set VERBATIM_DIR to one folder for both"
        );
    }
    String::new()
}
