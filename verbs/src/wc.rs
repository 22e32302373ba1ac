//! What a completion says of work that succeeded.

use std::fmt;

use ibverbs_sys::{ibv_wc, ibv_wc_flags, ibv_wc_opcode};

use crate::RKey;

/// Where a datagram came from; devices write it for others as well, or leave it as it was.
#[derive(Clone, Copy)]
pub(crate) struct Origin {
    pub(crate) qpn: u32,
    pub(crate) slid: u16,
    pub(crate) sl: u8,
    pub(crate) path_bits: u8,
}

impl Origin {
    pub(crate) const NONE: Origin = Origin {
        qpn: 0,
        slid: 0,
        sl: 0,
        path_bits: 0,
    };

    #[inline(always)]
    pub(crate) fn from_sys(wc: &ibv_wc) -> Origin {
        Origin {
            qpn: wc.src_qp,
            slid: wc.slid,
            sl: wc.sl,
            path_bits: wc.dlid_path_bits,
        }
    }

    /// The reverse of [`from_sys`](Self::from_sys).
    pub(crate) fn write(&self, wc: &mut ibv_wc) {
        wc.src_qp = self.qpn;
        wc.slid = self.slid;
        wc.sl = self.sl;
        wc.dlid_path_bits = self.path_bits;
    }
}

/// What a successful completion said.
#[derive(Clone, Copy)]
pub struct Wc {
    pub(crate) byte_len: u32,
    /// In network byte order; or a key, in this machine's.
    pub(crate) imm: u32,
    pub(crate) flags: u32,
    pub(crate) opcode: ibv_wc_opcode,
    pub(crate) origin: Origin,
}

impl Wc {
    /// For work that was not signalled and is known to be done because later work is.
    pub(crate) const IMPLIED: Wc = Wc {
        byte_len: 0,
        imm: 0,
        flags: 0,
        opcode: ibv_wc_opcode(u32::MAX >> 1 & !ibv_wc_opcode::IBV_WC_RECV.0),
        origin: Origin::NONE,
    };

    /// Whether this is what a completion of its own said. If not, there was none, and a later completion of the queue implied success; or what it said was
    /// not kept, because [`SendQueue::redeem`](crate::SendQueue::redeem) gave the buffer and it was not taken then.
    pub fn signaled(&self) -> bool {
        self.opcode != Wc::IMPLIED.opcode
    }

    #[inline]
    fn received(&self) -> bool {
        self.opcode.0 & ibv_wc_opcode::IBV_WC_RECV.0 != 0
    }

    /// The immediate data of what was received.
    #[inline]
    pub fn imm(&self) -> Option<u32> {
        let with = self.received() && self.flags & ibv_wc_flags::IBV_WC_WITH_IMM.0 != 0;
        with.then(|| u32::from_be(self.imm))
    }

    /// The key that the peer invalidated with what was received.
    pub fn invalidated(&self) -> Option<RKey> {
        let with = self.received() && self.flags & ibv_wc_flags::IBV_WC_WITH_INV.0 != 0;
        with.then_some(RKey(self.imm))
    }

    /// Whether a [network header](crate::Grh) is in front of what was received: always, for datagrams of Ethernet.
    pub fn has_grh(&self) -> bool {
        self.received() && self.flags & ibv_wc_flags::IBV_WC_GRH.0 != 0
    }

    /// Number of the queue pair that sent what was received. Devices define it for datagrams only; `None` from an extended completion
    /// queue that was not asked for the [source](crate::WcFields::SOURCE).
    pub fn source_qpn(&self) -> Option<u32> {
        // Queue pair 0 is that of subnet management: nothing that users receive comes from it.
        (self.received() && self.origin.qpn != 0).then_some(self.origin.qpn)
    }

    /// As the device said it, in what [`AddressHandle::answer`](crate::AddressHandle) needs.
    pub(crate) fn to_sys(self) -> ibv_wc {
        let mut wc = ibv_wc {
            opcode: self.opcode,
            wc_flags: self.flags,
            ..Default::default()
        };
        self.origin.write(&mut wc);
        wc
    }

    /// Bytes received or read. Devices do not define it for sends and WRITEs: 0 then, as where no completion [says](Self::signaled) it.
    #[inline]
    pub fn byte_len(&self) -> u32 {
        let fetched = matches!(
            self.opcode,
            ibv_wc_opcode::IBV_WC_RDMA_READ
                | ibv_wc_opcode::IBV_WC_COMP_SWAP
                | ibv_wc_opcode::IBV_WC_FETCH_ADD
        );
        if self.received() || fetched {
            self.byte_len
        } else {
            0
        }
    }
}

impl PartialEq for Wc {
    fn eq(&self, other: &Wc) -> bool {
        let said = |wc: &Wc| (wc.opcode, wc.byte_len(), wc.imm());
        said(self) == said(other)
    }
}

impl Eq for Wc {}

impl fmt::Debug for Wc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Wc")
            .field("byte_len", &self.byte_len())
            .field("imm", &self.imm())
            .field("signaled", &self.signaled())
            .finish()
    }
}
