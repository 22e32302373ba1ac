//! Building a queue pair of whatever kind: what all kinds take. What only one takes is in the file of its builder.

use std::collections::hash_map::RandomState;
use std::fmt;
use std::hash::{BuildHasher, Hasher};
use std::marker::PhantomData;
use std::ptr::NonNull;
use std::sync::Arc;

use ibverbs_sys::{
    ibv_qp, ibv_qp_attr, ibv_qp_attr_mask as mask, ibv_qp_cap, ibv_qp_init_attr_ex, ibv_qp_state,
};

use crate::cq::CqShared;
use crate::errno;
use crate::extended_qp;
use crate::qp::{Limits, Place, QpCore, Receives};
use crate::qp_kind::{Own, QpKind, Shared};
use crate::qp_setup::QpReady;
use crate::shared_core::{KeepShared, Member};
use crate::{Access, Context, Cq, Endpoint, Error, Pd, SgeList, SharedRecvQueue};

/// Attributes that matter when the queue pair is connected, and for reliable ones only.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Attributes {
    pub(crate) rnr_retry: u8,
    pub(crate) retry_cnt: u8,
    pub(crate) timeout: u8,
    pub(crate) min_rnr_timer: u8,
    /// READs and atomics outstanding, as asked for and then, on this side, as the device has them.
    pub(crate) rd_atomic: u8,
}

/// Builds a queue pair of the kind `K` ([`Rc`](crate::Rc), [`Uc`](crate::Uc), [`Ud`](crate::Ud)) with receives of its [`Own`] or
/// [`Shared`] ones. Its names are [`RcBuilder`](crate::RcBuilder), [`UcBuilder`](crate::UcBuilder) and [`UdBuilder`](crate::UdBuilder).
///
/// Only what the kind takes can be set. Source of ranges and meanings: `ibv_create_qp(3)`, `ibv_modify_qp(3)`.
#[must_use = "nothing is created before .build()"]
pub struct QpBuilder<K, R = Own> {
    pd: Pd,
    send_cq: Arc<CqShared>,
    recv_cq: Arc<CqShared>,
    send_depth: u32,
    recv_depth: u32,
    max_send_sge: Option<u32>,
    max_recv_sge: Option<u32>,
    max_inline: u32,
    pub(crate) attributes: Attributes,
    pub(crate) access: Access,
    /// What senders of datagrams must know.
    pub(crate) qkey: u32,
    overcommit: bool,
    /// Whether work is posted by calls.
    extended: bool,
    /// Where receives come from, if not from an own queue: `R` says which.
    shared: Option<Arc<dyn KeepShared>>,
    kind: PhantomData<fn() -> (K, R)>,
}

impl<K, R> Clone for QpBuilder<K, R> {
    fn clone(&self) -> Self {
        QpBuilder {
            pd: self.pd.clone(),
            send_cq: self.send_cq.clone(),
            recv_cq: self.recv_cq.clone(),
            shared: self.shared.clone(),
            ..*self
        }
    }
}

impl<K: QpKind> QpBuilder<K> {
    pub(crate) fn new(pd: &Pd, cq: &Cq) -> QpBuilder<K> {
        QpBuilder {
            pd: pd.clone(),
            send_cq: cq.shared().clone(),
            recv_cq: cq.shared().clone(),
            send_depth: 64,
            recv_depth: 64,
            max_send_sge: None,
            max_recv_sge: None,
            max_inline: 64,
            attributes: Attributes {
                rnr_retry: 7,
                retry_cnt: 6,
                timeout: 14,
                min_rnr_timer: 12,
                rd_atomic: if K::RELIABLE { 16 } else { 0 },
            },
            access: if K::RELIABLE {
                Access::REMOTE_READ | Access::REMOTE_WRITE
            } else if K::DATAGRAMS {
                Access::empty()
            } else {
                Access::REMOTE_WRITE
            },
            qkey: DEFAULT_QKEY,
            overcommit: false,
            extended: false,
            shared: None,
            kind: PhantomData,
        }
    }

    /// Receives that can be posted at once. Default 64; 0 for a side that only sends.
    pub fn recv_depth(mut self, depth: u32) -> Self {
        self.recv_depth = depth;
        self
    }

    /// Segments in one receive, at most 32. Default 4, or what the device has if that is less.
    pub fn max_recv_sge(mut self, count: u32) -> Self {
        self.max_recv_sge = Some(count);
        self
    }

    /// Takes receives from a queue that others take from as well, instead of from one of its own. The completion queue for receives
    /// must have room for all that are posted there.
    #[doc(alias = "ibv_srq")]
    pub fn shared_recv<T: Send + 'static>(
        self,
        queue: &SharedRecvQueue<T>,
    ) -> QpBuilder<K, Shared> {
        QpBuilder {
            pd: self.pd,
            send_cq: self.send_cq,
            recv_cq: self.recv_cq,
            send_depth: self.send_depth,
            recv_depth: 0,
            max_send_sge: self.max_send_sge,
            max_recv_sge: None,
            max_inline: self.max_inline,
            attributes: self.attributes,
            access: self.access,
            qkey: self.qkey,
            overcommit: self.overcommit,
            extended: self.extended,
            shared: Some(queue.keep()),
            kind: PhantomData,
        }
    }
}

impl<K: QpKind, R> QpBuilder<K, R> {
    /// Lets receives complete on a queue of their own.
    pub fn recv_cq(mut self, cq: &Cq) -> Self {
        self.recv_cq = cq.shared().clone();
        self
    }

    /// Work requests the send queue holds, until they are retired *and* taken. Default 64.
    pub fn send_depth(mut self, depth: u32) -> Self {
        self.send_depth = depth;
        self
    }

    /// Segments in one send, WRITE or READ, at most 32. Default 16, or what the device has if that is less; 1 for an
    /// [extended](Self::extended) queue pair on Soft-RoCE.
    pub fn max_send_sge(mut self, count: u32) -> Self {
        self.max_send_sge = Some(count);
        self
    }

    /// Bytes that [`Wr::inline`](crate::Wr::inline) can carry. Default 64, which devices in use grant; more makes each
    /// slot of the send queue larger.
    pub fn max_inline(mut self, bytes: u32) -> Self {
        self.max_inline = bytes;
        self
    }

    /// Allows the queues on a completion queue to be deeper, in sum, than it is. The user then sees to it that never more
    /// completions are outstanding than fit: an overflow breaks the completion queue and all queue pairs on it, or
    /// loses completions silently.
    pub fn overcommit_cq(mut self, allow: bool) -> Self {
        self.overcommit = allow;
        self
    }

    /// Posts by `ibv_wr_start` and its companions instead of `ibv_post_send`, which is quicker on some devices. Nothing else
    /// changes. A device without them refuses to [`build`](Self::build), with [`Error::Unsupported`].
    ///
    /// On Soft-RoCE (`rxe`) such a queue pair has one segment, and [more](Self::max_send_sge) are refused with
    /// [`Error::Unsupported`]: its library sends lists of segments with a wrong length, and lists of inline data with none. Work of several
    /// segments needs a queue pair that is not extended there.
    #[doc(alias = "ibv_create_qp_ex")]
    #[doc(alias = "ibv_wr_start")]
    pub fn extended(mut self) -> Self {
        self.extended = true;
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
        if let Some(shared) = &self.shared
            && !shared.core().context().same(self.context())
        {
            return Err(Error::OtherDevice {
                what: "the shared receive queue",
            });
        }
        if let Some(shared) = &self.shared
            && shared.core().datagrams() != K::DATAGRAMS
        {
            return Err(Error::OtherService {
                datagrams: K::DATAGRAMS,
            });
        }
        if K::DATAGRAMS && !self.recv_cq.tells_source() {
            return Err(Error::SourceUntold);
        }
        let check = |what, value: u32, min: u32, max: u32| {
            Error::in_range(what, value.into(), min.into(), max.into())
        };
        let sge_max = dev.max_sge.min(SgeList::CAPACITY as u32).max(1);
        let send_sge = self.max_send_sge.unwrap_or_else(|| {
            let lists = !self.extended || !extended_qp::lists_are_wrong(self.context());
            if lists { sge_max.min(16) } else { 1 }
        });
        let recv_sge = self.max_recv_sge.unwrap_or(sge_max.min(4));
        check("send_depth", self.send_depth, 1, dev.max_qp_wr)?;
        check("recv_depth", self.recv_depth, 0, dev.max_qp_wr)?;
        check("max_send_sge", send_sge, 1, sge_max)?;
        check("max_recv_sge", recv_sge, 1, sge_max)?;
        if self.extended {
            extended_qp::check_segments(self.context(), send_sge)?;
        }
        let a = &self.attributes;
        check("rnr_retry", a.rnr_retry.into(), 0, 7)?;
        check("retry_cnt", a.retry_cnt.into(), 0, 7)?;
        check("timeout", a.timeout.into(), 0, 31)?;
        check("min_rnr_timer", a.min_rnr_timer.into(), 0, 31)?;
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
            message: if K::DATAGRAMS {
                self.context().port().mtu.bytes()
            } else {
                self.context().port().max_msg_sz
            },
            datagrams: K::DATAGRAMS,
            extended: self.extended,
            atomics: dev.atomics,
        })
    }

    /// Creates the queue pair, in the state INIT: receives can be posted, nothing can be sent yet.
    ///
    /// # Errors
    /// When an attribute is out of range, the completion queue too small or of another device, or the device refuses. In place
    /// of a queue pair that was just destroyed, poll the completion queue empty first: see [`Error::CqTooSmall`].
    #[doc(alias = "ibv_create_qp")]
    pub fn build(self) -> Result<QpReady<K, R>, Error> {
        let limits = self.limits()?;
        let send = Claim::new(&self.send_cq, self.send_depth, self.overcommit)?;
        let recv = match &self.shared {
            None => Source::Own(Claim::new(&self.recv_cq, self.recv_depth, self.overcommit)?),
            Some(shared) => {
                Source::Shared(Member::new(shared.clone(), &self.recv_cq, self.overcommit)?)
            }
        };
        let mut init = ibv_qp_init_attr_ex {
            send_cq: self.send_cq.raw(),
            recv_cq: self.recv_cq.raw(),
            cap: ibv_qp_cap {
                max_send_wr: limits.send_depth,
                max_recv_wr: limits.recv_depth,
                max_send_sge: limits.send_sge,
                max_recv_sge: limits.recv_sge,
                max_inline_data: limits.inline,
            },
            srq: self
                .shared
                .as_ref()
                .map_or(std::ptr::null_mut(), |shared| shared.core().raw()),
            qp_type: K::TYPE,
            sq_sig_all: 0,
            ..Default::default()
        };
        let qp = self.create(&mut init)?;
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
        let (psn, responder) = (
            random_psn(),
            self.attributes.rd_atomic.min(dev.max_qp_rd_atom),
        );
        let endpoint = Endpoint::new(core.qp_num(), psn, port.lid, port.gid, port.mtu, responder)
            .map_err(|e| {
            Error::hinted(
                "ibv_create_qp",
                std::io::ErrorKind::InvalidData.into(),
                e.to_string(),
            )
        })?;
        let attributes = Attributes {
            rd_atomic: self.attributes.rd_atomic.min(dev.max_qp_init_rd_atom),
            ..self.attributes
        };
        Ok(QpReady::new(core, endpoint, attributes))
    }

    /// Creates it in one of the two ways; `init` holds what both know, and then what was granted.
    fn create(&self, init: &mut ibv_qp_init_attr_ex) -> Result<NonNull<ibv_qp>, Error> {
        let cap = init.cap;
        let hint = format!(
            "depths {} and {}, segments {} and {}, inline {}: the device may not grant all of these at once",
            cap.max_send_wr,
            cap.max_recv_wr,
            cap.max_send_sge,
            cap.max_recv_sge,
            cap.max_inline_data
        );
        if self.extended {
            return extended_qp::create::<K>(&self.pd, init, &hint);
        }
        let plain: *mut ibv_qp_init_attr_ex = init;
        // SAFETY: domain, completion queues and shared receive queue are alive and of one device; the attributes are complete, and
        // those of the plain verb come first in the others.
        let qp = unsafe { (self.pd.api().ibv_create_qp)(self.pd.raw(), plain.cast()) };
        errno::object(qp).map_err(|e| Error::hinted("ibv_create_qp", e, hint))
    }

    fn to_init(&self, core: &QpCore) -> Result<(), Error> {
        let port = self.context().port().port_num;
        let mut attr = ibv_qp_attr {
            qp_state: ibv_qp_state::IBV_QPS_INIT,
            pkey_index: 0,
            port_num: port,
            qp_access_flags: (self.access & Access::REMOTE).bits(),
            qkey: self.qkey,
            ..Default::default()
        };
        let what = mask(
            mask::IBV_QP_STATE.0
                | mask::IBV_QP_PKEY_INDEX.0
                | mask::IBV_QP_PORT.0
                | if K::DATAGRAMS {
                    mask::IBV_QP_QKEY.0
                } else {
                    mask::IBV_QP_ACCESS_FLAGS.0
                },
        );
        core.with(|qp| core.modify(qp, &mut attr, what)).unwrap_or(Ok(())).map_err(|e| {
            let hint = if K::DATAGRAMS {
                format!("RESET to INIT with STATE, PKEY_INDEX 0, PORT {port}, QKEY {:#x}", self.qkey)
            } else {
                format!(
                    "RESET to INIT with STATE, PKEY_INDEX 0, PORT {port}, ACCESS_FLAGS {:?}: the device may not offer this access",
                    self.access
                )
            };
            Error::hinted("ibv_modify_qp", e, hint)
        })
    }
}

impl<K, R> fmt::Debug for QpBuilder<K, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QpBuilder")
            .field("send_depth", &self.send_depth)
            .field("recv_depth", &self.recv_depth)
            .finish_non_exhaustive()
    }
}

/// Any value will do; programs in use have this one.
const DEFAULT_QKEY: u32 = 0x1111_1111;

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

/// Where the receives come from, until the queue pair is made.
enum Source<'a> {
    Own(Claim<'a>),
    Shared(Member),
}

impl Source<'_> {
    fn keep(self) -> Receives {
        match self {
            Source::Own(claim) => Receives::Own(claim.keep()),
            Source::Shared(member) => Receives::Shared(member),
        }
    }
}

/// A start for packet numbers that differs from connection to connection, so that packets of an old one do not fit.
fn random_psn() -> u32 {
    RandomState::new().build_hasher().finish() as u32 & 0xff_ffff
}
