//! Completions, and the batches that polls fill.

use std::fmt;

use ibverbs_sys::{ibv_wc, ibv_wc_flags, ibv_wc_opcode, ibv_wc_status};

use crate::raw::RawCompletion;
use crate::ring::{SEQ_BITS, SEQ_MASK};
use crate::slots::{MAX_SLOTS, SLOT_BITS};
use crate::tags::{RAW_TAG, SCOPED_TAG, SHARED_TAG};
use crate::{CqId, RKey, WcError, WcStatus};

/// Identity of a queue: equal for the completions that belong to it.
///
/// A number may be used again after the queue was destroyed; completions left over from the old queue are
/// [`Stale`] for the new one.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct QueueId(pub(crate) u64);

impl QueueId {
    pub(crate) fn new(cq: CqId, tag: u16) -> QueueId {
        QueueId(cq.0 << 16 | u64::from(tag))
    }

    /// That of the shared receive queue of this number, on whatever completion queue.
    pub(crate) fn shared(number: u32) -> QueueId {
        QueueId(u64::from(number) << 16 | u64::from(SHARED_TAG))
    }

    /// The id of what lies in a slot of this shared receive queue.
    #[inline]
    pub(crate) fn shared_wr_id(self, slot: u32) -> u64 {
        u64::from(SHARED_TAG) << SEQ_BITS | self.0 >> 16 << SLOT_BITS | u64::from(slot)
    }

    /// The completion queue; not of a shared receive queue.
    pub(crate) fn cq(self) -> CqId {
        CqId(self.0 >> 16)
    }

    fn tag(self) -> u16 {
        self.0 as u16
    }

    /// The id of a work request of this queue.
    #[inline]
    pub(crate) fn wr_id(self, seq: u64) -> u64 {
        u64::from(self.tag()) << SEQ_BITS | seq
    }
}

impl fmt::Debug for QueueId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "QueueId({}.{})", self.0 >> 16, self.tag())
    }
}

/// That a work request completed: an owned value, which comes only from a poll and can be handed to its queue once.
///
/// [`SendQueue::retire`](crate::SendQueue::retire) and [`RecvQueue::redeem`](crate::RecvQueue::redeem) turn it into the buffers.
/// Dropping it loses nothing for good: a later completion of the queue retires its work request too, and so does the end of
/// the queue pair.
///
/// Source: `ibv_poll_cq(3)`.
#[doc(alias = "ibv_wc")]
#[must_use = "hand it to its queue to get the buffer back"]
pub struct Completion(Entry);

/// What a completion says; unlike it, no right to anything.
#[derive(Clone, Copy)]
struct Entry {
    /// Identity of the completion queue, where that of a [`QueueId`] is.
    cq: u64,
    wr_id: u64,
    report: Report,
    /// Not in the report, so that it is not even read for what was sent.
    origin: Origin,
}

/// What the device wrote, as it wrote it: what of it is defined is decided when it is looked at, since mostly little of it is.
///
/// Of a failed work request the device defines only the status, vendor code and queue pair number. Of a successful one, devices
/// write the length only where something arrived, and immediate data only where it did.
#[derive(Clone, Copy)]
pub(crate) struct Report {
    // Read one by one, in the sizes in which libraries write them: a wider load would have to wait for two narrower stores.
    status: u32,
    opcode: u32,
    vendor_err: u32,
    byte_len: u32,
    /// In network byte order.
    imm: u32,
    qp_num: u32,
    flags: u32,
}

/// Where a datagram came from; devices write it for others as well, or leave it as it was.
#[derive(Clone, Copy)]
pub(crate) struct Origin {
    qpn: u32,
    slid: u16,
    sl: u8,
    path_bits: u8,
}

impl Origin {
    const NONE: Origin = Origin {
        qpn: 0,
        slid: 0,
        sl: 0,
        path_bits: 0,
    };

    #[inline(always)]
    fn from_sys(wc: &ibv_wc) -> Origin {
        Origin {
            qpn: wc.src_qp,
            slid: wc.slid,
            sl: wc.sl,
            path_bits: wc.dlid_path_bits,
        }
    }

    /// The reverse of [`from_sys`](Self::from_sys).
    fn write(&self, wc: &mut ibv_wc) {
        wc.src_qp = self.qpn;
        wc.slid = self.slid;
        wc.sl = self.sl;
        wc.dlid_path_bits = self.path_bits;
    }
}

impl Report {
    #[inline(always)]
    fn from_sys(wc: &ibv_wc) -> Report {
        Report {
            status: wc.status.0,
            opcode: wc.opcode.0,
            vendor_err: wc.vendor_err,
            byte_len: wc.byte_len,
            // SAFETY: all members of the union are integers of this size.
            imm: unsafe { wc.__bindgen_anon_1.imm_data },
            qp_num: wc.qp_num,
            flags: wc.wc_flags,
        }
    }

    /// The reverse of [`from_sys`](Self::from_sys).
    fn write(&self, wc: &mut ibv_wc) {
        wc.status = ibv_wc_status(self.status);
        wc.opcode = ibv_wc_opcode(self.opcode);
        wc.vendor_err = self.vendor_err;
        wc.byte_len = self.byte_len;
        wc.__bindgen_anon_1.imm_data = self.imm;
        wc.qp_num = self.qp_num;
        wc.wc_flags = self.flags;
    }

    #[inline(always)]
    fn status(&self) -> WcStatus {
        WcStatus(self.status)
    }

    #[inline(always)]
    fn qp_num(&self) -> u32 {
        self.qp_num
    }

    /// Whether the work was given up without having been looked at.
    #[inline(always)]
    pub(crate) fn is_flush(&self) -> bool {
        self.status() == WcStatus::WR_FLUSH_ERR
    }

    #[inline(always)]
    pub(crate) fn outcome(&self) -> Result<Wc, WcError> {
        if self.status() == WcStatus::SUCCESS {
            Ok(Wc {
                byte_len: self.byte_len,
                imm: self.imm,
                flags: self.flags,
                opcode: ibv_wc_opcode(self.opcode),
                origin: Origin::NONE,
            })
        } else {
            Err(WcError {
                status: self.status(),
                vendor_err: self.vendor_err,
                qp_num: self.qp_num(),
            })
        }
    }
}

impl Entry {
    /// As a device would have written it.
    fn to_sys(self) -> ibv_wc {
        let mut wc = ibv_wc {
            wr_id: self.wr_id,
            ..ibv_wc::default()
        };
        self.report.write(&mut wc);
        self.origin.write(&mut wc);
        wc
    }
}

impl Completion {
    /// `wc` holds what a device wrote, and where it wrote nothing, anything.
    #[inline(always)]
    pub(crate) fn from_sys(cq: CqId, wc: &ibv_wc) -> Completion {
        Completion(Entry {
            cq: cq.0 << 16,
            wr_id: wc.wr_id,
            report: Report::from_sys(wc),
            origin: Origin::from_sys(wc),
        })
    }

    /// The queue it belongs to.
    #[inline]
    pub fn queue(&self) -> QueueId {
        self.0.queue()
    }

    /// Whether it belongs to this queue, which is not a shared one.
    #[inline(always)]
    pub(crate) fn is_of(&self, queue: QueueId) -> bool {
        // Where the tag is that of shared queues, this is nobody's.
        self.0.cq | self.0.wr_id >> SEQ_BITS == queue.0
    }

    /// Whether the work request succeeded.
    #[inline]
    pub fn is_ok(&self) -> bool {
        self.0.report.status() == WcStatus::SUCCESS
    }

    /// Its status.
    #[inline]
    pub fn status(&self) -> WcStatus {
        self.0.report.status()
    }

    /// Number of the queue pair.
    pub fn qp_num(&self) -> u32 {
        self.0.report.qp_num()
    }

    /// What it says of work that was posted raw, with [`SendQueue::post_raw`](crate::SendQueue::post_raw) or
    /// [`RecvQueue::post_raw`](crate::RecvQueue::post_raw).
    ///
    /// # Errors
    /// The completion itself, when it belongs to a queue.
    #[inline]
    pub fn into_raw(self) -> Result<RawCompletion, Completion> {
        if self.0.wr_id >> SEQ_BITS != u64::from(RAW_TAG) {
            return Err(self);
        }
        Ok(RawCompletion {
            wr_id: self.seq(),
            qp_num: self.0.report.qp_num(),
            result: self.outcome(),
        })
    }

    #[inline(always)]
    pub(crate) fn seq(&self) -> u64 {
        self.0.wr_id & SEQ_MASK
    }

    /// The number of work that was posted in a scope.
    pub(crate) fn scoped(&self) -> Option<u64> {
        (self.0.wr_id >> SEQ_BITS == u64::from(SCOPED_TAG)).then(|| self.seq())
    }

    /// Of a shared receive queue's.
    #[inline(always)]
    pub(crate) fn slot(&self) -> u32 {
        self.0.wr_id as u32 & (MAX_SLOTS - 1)
    }

    #[inline(always)]
    pub(crate) fn report(&self) -> Report {
        self.0.report
    }

    /// What it says, without the right to a buffer.
    #[inline(always)]
    pub(crate) fn outcome(&self) -> Result<Wc, WcError> {
        let Entry { report, origin, .. } = self.0;
        report.outcome().map(|wc| Wc { origin, ..wc })
    }
}

impl Entry {
    #[inline(always)]
    fn queue(&self) -> QueueId {
        if self.wr_id >> SEQ_BITS == u64::from(SHARED_TAG) {
            QueueId::shared(((self.wr_id & SEQ_MASK) >> SLOT_BITS) as u32)
        } else {
            QueueId(self.cq | self.wr_id >> SEQ_BITS)
        }
    }
}

impl fmt::Debug for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Completion")
            .field("queue", &self.queue())
            .field("seq", &(self.wr_id & SEQ_MASK))
            .field("status", &self.report.status())
            .finish()
    }
}

impl fmt::Debug for Completion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// What a successful completion said.
#[derive(Clone, Copy)]
pub struct Wc {
    byte_len: u32,
    /// In network byte order; or a key, in this machine's.
    imm: u32,
    flags: u32,
    pub(crate) opcode: ibv_wc_opcode,
    origin: Origin,
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

    /// Whether there was a completion of its own; without one, a later completion of the queue implied success.
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

    /// Number of the queue pair that sent what was received. Devices define it for datagrams only.
    pub fn source_qpn(&self) -> Option<u32> {
        self.received().then_some(self.origin.qpn)
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

    /// Bytes received or read. Devices do not define it for sends and WRITEs: 0 then.
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

/// A completion was offered to a queue that has no such work in flight.
///
/// It belongs to another queue, to one that is gone, or its work was already retired by a later completion.
#[derive(Debug, thiserror::Error)]
#[error("{completion:?} is not in flight on queue {queue:?}")]
pub struct Stale {
    pub(crate) completion: Completion,
    pub(crate) queue: QueueId,
}

impl Stale {
    /// The completion, to offer it to the queue it belongs to.
    pub fn into_completion(self) -> Completion {
        self.completion
    }
}

/// Completions taken from a completion queue, oldest first. It owns them: the queue is not borrowed.
///
/// Allocated once; polls fill what room is left. One batch can serve several completion queues.
pub struct WcBatch {
    /// As the device wrote them, and looked at when they are taken: from `next` up to `filled`, each once.
    wcs: Box<[ibv_wc]>,
    /// Where each came from.
    cqs: Box<[CqId]>,
    next: usize,
    filled: usize,
}

impl WcBatch {
    /// A batch of up to `capacity` completions (at least one).
    pub fn with_capacity(capacity: usize) -> WcBatch {
        let capacity = capacity.max(1);
        WcBatch {
            wcs: vec![ibv_wc::default(); capacity].into(),
            cqs: vec![CqId(0); capacity].into(),
            next: 0,
            filled: 0,
        }
    }

    /// Takes the oldest completion.
    #[inline(always)]
    pub fn pop(&mut self) -> Option<Completion> {
        let at = self.next;
        if at == self.filled {
            return None;
        }
        self.next += 1;
        Some(Completion::from_sys(*self.cqs.get(at)?, self.wcs.get(at)?))
    }

    /// Completions not yet taken.
    #[inline]
    pub fn len(&self) -> usize {
        self.filled - self.next
    }

    /// Whether all are taken.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Completions it can hold.
    pub fn capacity(&self) -> usize {
        self.wcs.len()
    }

    /// Gives the room of what was taken back, and says how much there is.
    #[inline]
    pub(crate) fn make_room(&mut self) -> usize {
        if self.next == self.filled {
            (self.next, self.filled) = (0, 0);
        } else if self.next > 0 {
            self.wcs.copy_within(self.next..self.filled, 0);
            self.cqs.copy_within(self.next..self.filled, 0);
            (self.next, self.filled) = (0, self.filled - self.next);
        }
        self.wcs.len() - self.filled
    }

    /// The room there is, for a device to write to.
    #[inline]
    pub(crate) fn room(&mut self) -> &mut [ibv_wc] {
        &mut self.wcs[self.filled..]
    }

    /// The first `count` entries of [`room`](Self::room) have come from this queue.
    #[inline]
    pub(crate) fn came(&mut self, cq: CqId, count: usize) {
        let end = self.filled + count;
        self.cqs[self.filled..end].fill(cq);
        self.filled = end;
    }

    /// Only with room.
    pub(crate) fn push(&mut self, completion: &Completion) {
        let cq = CqId(completion.0.cq >> 16);
        self.room()[0] = completion.0.to_sys();
        self.came(cq, 1);
    }
}

impl fmt::Debug for WcBatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WcBatch")
            .field("len", &self.len())
            .field("capacity", &self.capacity())
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use ibverbs_sys::ibv_wc_status;

    use super::*;

    #[test]
    fn a_failed_completion_shows_only_what_is_defined() {
        let wc = ibv_wc {
            wr_id: 3 << SEQ_BITS | 77,
            status: ibv_wc_status::IBV_WC_REM_ACCESS_ERR,
            vendor_err: 5,
            qp_num: 9,
            byte_len: 1234,
            wc_flags: ibv_wc_flags::IBV_WC_WITH_IMM.0,
            ..Default::default()
        };
        let c = Completion::from_sys(CqId(8), &wc);
        assert_eq!(
            (c.queue(), c.seq(), c.is_ok()),
            (QueueId::new(CqId(8), 3), 77, false)
        );
        let e = c.outcome().unwrap_err();
        assert_eq!(
            (e.status, e.vendor_err, e.qp_num),
            (WcStatus::REM_ACCESS_ERR, 5, 9)
        );
    }

    #[test]
    fn immediate_data_is_in_network_order() {
        let mut wc = ibv_wc {
            opcode: ibv_wc_opcode::IBV_WC_RECV,
            byte_len: 7,
            wc_flags: ibv_wc_flags::IBV_WC_WITH_IMM.0,
            ..Default::default()
        };
        wc.__bindgen_anon_1.imm_data = u32::from_ne_bytes([0, 0, 1, 2]);
        let got = Completion::from_sys(CqId(1), &wc);
        let said = |c: &Completion| c.outcome().map(|wc| (wc.byte_len(), wc.imm()));
        assert_eq!(said(&got), Ok((7, Some(0x102))));
        // Of a send the device writes neither.
        wc.opcode = ibv_wc_opcode::IBV_WC_SEND;
        let got = Completion::from_sys(CqId(1), &wc);
        assert_eq!(said(&got), Ok((0, None)));
        wc.opcode = ibv_wc_opcode::IBV_WC_RDMA_READ;
        let read = Completion::from_sys(CqId(1), &wc);
        assert_eq!(said(&read), Ok((7, None)));
        assert!(got.outcome().unwrap().signaled() && !Wc::IMPLIED.signaled());
    }

    #[test]
    fn what_was_kept_is_in_a_batch_as_the_device_wrote_it() {
        let mut wc = ibv_wc {
            wr_id: 3 << SEQ_BITS | 77,
            opcode: ibv_wc_opcode::IBV_WC_RECV,
            byte_len: 60,
            qp_num: 9,
            src_qp: 11,
            wc_flags: ibv_wc_flags::IBV_WC_GRH.0 | ibv_wc_flags::IBV_WC_WITH_INV.0,
            slid: 12,
            sl: 3,
            dlid_path_bits: 4,
            ..Default::default()
        };
        wc.__bindgen_anon_1.invalidated_rkey = 0x1234;
        let mut batch = WcBatch::with_capacity(1);
        batch.push(&Completion::from_sys(CqId(8), &wc));
        let c = batch.pop().unwrap();
        assert_eq!((c.queue(), c.seq()), (QueueId::new(CqId(8), 3), 77));
        assert_eq!(c.qp_num(), 9);
        let got = c.outcome().unwrap();
        assert_eq!((got.byte_len(), got.imm()), (60, None));
        assert_eq!((got.has_grh(), got.source_qpn()), (true, Some(11)));
        assert_eq!(got.invalidated(), Some(RKey(0x1234)));
        let back = got.to_sys();
        assert_eq!(
            (back.src_qp, back.slid, back.sl, back.dlid_path_bits),
            (11, 12, 3, 4)
        );
        assert_eq!(back.wc_flags, wc.wc_flags);
        // Of what was sent there is none of it.
        wc.opcode = ibv_wc_opcode::IBV_WC_SEND;
        let sent = Completion::from_sys(CqId(8), &wc).outcome().unwrap();
        assert_eq!((sent.has_grh(), sent.source_qpn()), (false, None));
        assert_eq!(sent.invalidated(), None);
    }

    #[test]
    fn ids_of_shared_queues_are_the_same_everywhere() {
        let last = (1 << 28) - 1;
        for (number, slot) in [(0, 0), (1, 5), (last, MAX_SLOTS - 1)] {
            let id = QueueId::shared(number);
            for cq in [1, 1 << 40] {
                let wc = ibv_wc {
                    wr_id: id.shared_wr_id(slot),
                    ..Default::default()
                };
                let c = Completion::from_sys(CqId(cq), &wc);
                assert_eq!((c.queue(), c.slot()), (id, slot));
                assert!(!c.is_of(QueueId::new(CqId(cq), 7)));
            }
        }
        assert_ne!(QueueId::shared(3), QueueId::new(CqId(3), 3));
    }

    #[test]
    fn ids_of_queues_carry_their_completion_queue() {
        assert_ne!(QueueId::new(CqId(1), 5), QueueId::new(CqId(2), 5));
        assert_eq!(QueueId::new(CqId(1), 0xffff).wr_id(SEQ_MASK), u64::MAX);
    }
}
