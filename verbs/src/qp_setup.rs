//! Bringing a queue pair up: INIT to RTR to RTS.

use std::fmt;
use std::io;
use std::marker::PhantomData;
use std::sync::Arc;

use ibverbs_sys::{ibv_qp, ibv_qp_attr, ibv_qp_state};

use crate::address::{route, unreachable};
use crate::device::{MORE_FILES, soft_refusal};
use crate::error::local_name;
use crate::qp::{Keep, Pair, QpCore, Sends};
use crate::qp_builder::Attributes;
use crate::qp_kind::{Connected, Own, QpKind, Shared};
use crate::{ConnectError, DeviceKind, Endpoint, Rc, RecvQueue, SendQueue};

/// A queue pair of the kind `K` that is not connected yet: an [`RcReady`], [`UcReady`](crate::UcReady) or
/// [`UdReady`](crate::UdReady).
///
/// Exchange [`endpoint`](Self::endpoint) with the peer, then [`connect`](Self::connect). To post receives before the peer can
/// send, [`split`](Self::split) first. Sends are [refused](crate::PostErrorKind::NotConnected) until then.
pub struct QpReady<K, R = Own> {
    core: QpCore,
    endpoint: Endpoint,
    attributes: Attributes,
    kind: PhantomData<fn() -> (K, R)>,
}

/// A reliable connection that is not connected yet.
pub type RcReady<R = Own> = QpReady<Rc, R>;

/// The right to connect a reliable connection whose queues are already in use.
pub type RcSetup = QpSetup<Rc>;

impl<K, R> QpReady<K, R> {
    pub(crate) fn new(core: QpCore, endpoint: Endpoint, attributes: Attributes) -> QpReady<K, R> {
        QpReady {
            core,
            endpoint,
            attributes,
            kind: PhantomData,
        }
    }

    /// What the peer must know.
    pub fn endpoint(&self) -> Endpoint {
        self.endpoint
    }

    fn take_apart<S: Send + 'static, T: Send + 'static>(
        self,
    ) -> (QpSetup<K>, SendQueue<S, K>, RecvQueue<T>) {
        let (keep, send, recv) = Pair::split(self.core);
        let setup = QpSetup {
            keep,
            endpoint: self.endpoint,
            attributes: self.attributes,
            kind: PhantomData,
        };
        (setup, SendQueue::new(send), RecvQueue::new(recv))
    }
}

impl<K: QpKind> QpReady<K, Own> {
    /// The queues, for work of the types `S` and `R`, and what is left to do.
    pub fn split<S: Send + 'static, R: Send + 'static>(
        self,
    ) -> (QpSetup<K>, SendQueue<S, K>, RecvQueue<R>) {
        self.take_apart()
    }
}

impl<K: Connected> QpReady<K, Own> {
    /// Connects to the peer; the queues hold work of the types `S` and `R`.
    ///
    /// # Errors
    /// [`ConnectError`]; the queue pair is destroyed then.
    pub fn connect<S: Send + 'static, R: Send + 'static>(
        self,
        peer: &Endpoint,
    ) -> Result<(SendQueue<S, K>, RecvQueue<R>), ConnectError> {
        let (setup, send, recv) = self.split();
        setup.connect(peer)?;
        Ok((send, recv))
    }
}

impl<K: QpKind> QpReady<K, Shared> {
    /// The send queue, for work of the type `S`, and what is left to do. Receives are the shared queue's.
    pub fn split<S: Send + 'static>(self) -> (QpSetup<K>, SendQueue<S, K>) {
        let (setup, send, _) = self.take_apart::<S, ()>();
        (setup, send)
    }
}

impl<K: Connected> QpReady<K, Shared> {
    /// Connects to the peer; the send queue holds work of the type `S`. Receives are the shared queue's.
    ///
    /// # Errors
    /// [`ConnectError`]; the queue pair is destroyed then.
    pub fn connect<S: Send + 'static>(
        self,
        peer: &Endpoint,
    ) -> Result<SendQueue<S, K>, ConnectError> {
        let (setup, send) = self.split();
        setup.connect(peer)?;
        Ok(send)
    }
}

impl<K, R> fmt::Debug for QpReady<K, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QpReady")
            .field("endpoint", &self.endpoint)
            .finish_non_exhaustive()
    }
}

/// The right to connect a queue pair of the kind `K` whose queues are already in use: an [`RcSetup`], [`UcSetup`](crate::UcSetup) or
/// [`UdSetup`](crate::UdSetup).
pub struct QpSetup<K> {
    pub(crate) keep: Arc<dyn Keep>,
    endpoint: Endpoint,
    attributes: Attributes,
    kind: PhantomData<fn() -> K>,
}

impl<K: QpKind> QpSetup<K> {
    /// What the peer must know.
    pub fn endpoint(&self) -> Endpoint {
        self.endpoint
    }

    pub(crate) fn local(&self, core: &QpCore) -> String {
        let ctx = core.pd().context();
        let port = ctx.port();
        local_name(ctx.device_name(), port.port_num, port.gid_index, &port.gid)
    }
}

impl<K: Connected> QpSetup<K> {
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

    fn reachable(&self, core: &QpCore, peer: &Endpoint) -> Result<(), ConnectError> {
        let port = core.pd().context().port();
        let Some(why) = unreachable(port, peer.gid(), peer.lid()) else {
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
        let mut attr = ibv_qp_attr {
            qp_state: ibv_qp_state::IBV_QPS_RTR,
            path_mtu: port.mtu.min(peer.mtu()).to_sys(),
            dest_qp_num: peer.qpn(),
            rq_psn: peer.psn(),
            max_dest_rd_atomic: self.endpoint.rd_atomic(),
            min_rnr_timer: self.attributes.min_rnr_timer,
            ah_attr: route(port, peer.gid(), peer.lid()),
            ..Default::default()
        };
        core.modify(qp, &mut attr, K::RTR)
            .map_err(|source| ConnectError::Modify {
                from: "INIT",
                to: "RTR",
                attributes: K::RTR_NAMES,
                hint: rtr_hint(core.pd().context().kind(), &source),
                source,
                local: self.local(core),
                peer: peer.to_string(),
            })
    }

    fn to_rts(&self, core: &QpCore, qp: *mut ibv_qp, peer: &Endpoint) -> Result<(), ConnectError> {
        let a = &self.attributes;
        let reads = a.rd_atomic.min(peer.rd_atomic());
        let mut attr = ibv_qp_attr {
            qp_state: ibv_qp_state::IBV_QPS_RTS,
            timeout: a.timeout,
            retry_cnt: a.retry_cnt,
            rnr_retry: a.rnr_retry,
            sq_psn: self.endpoint.psn(),
            max_rd_atomic: reads,
            ..Default::default()
        };
        core.modify(qp, &mut attr, K::RTS)
            .map_err(|source| ConnectError::Modify {
                from: "RTR",
                to: "RTS",
                attributes: K::RTS_NAMES,
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

impl<K> fmt::Debug for QpSetup<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QpSetup")
            .field("endpoint", &self.endpoint)
            .finish_non_exhaustive()
    }
}

fn rtr_hint(kind: DeviceKind, e: &io::Error) -> Box<str> {
    let hint = match (kind, e.raw_os_error()) {
        (DeviceKind::Soft, errno) => {
            let why = soft_refusal(kind).map_or(String::new(), |why| format!("{why}; "));
            return match errno {
                Some(libc::EMFILE) => format!("{why}{MORE_FILES}"),
                Some(libc::EPERM | libc::EACCES) => format!(
                    "{why}the system does not let this process reach the peer's memory: both must belong to one user, and ptrace between them must \
                     be allowed"
                ),
                _ => format!(
                    "{why}soft0 reaches only live processes of this user on this host that meet in the same folder{}",
                    meeting_place()
                ),
            }
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
