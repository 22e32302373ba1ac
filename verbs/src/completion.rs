//! Completions: that a piece of work is done, as a value that is had once.

use std::fmt;

use ibverbs_sys::{ibv_wc, ibv_wc_opcode, ibv_wc_status};

use crate::raw::RawCompletion;
use crate::ring::{self, id, seq};
use crate::slots::{MAX_SLOTS, SLOT_BITS};
use crate::tags::{RAW_TAG, SCOPED_TAG, SHARED_TAG};
use crate::wc::Origin;
use crate::{CqId, Wc, WcError, WcStatus};

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
        id(SHARED_TAG, self.0 >> 16 << SLOT_BITS | u64::from(slot))
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
        id(self.tag(), seq)
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
    cq: CqId,
    wr_id: u64,
    report: Report,
    /// Not in the report, so that it is not even read for what was sent.
    origin: Origin,
}

/// A [`Completion`] on its way to what is seldom needed.
pub(crate) struct Words([u64; 7]);

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
    fn success(&self) -> Wc {
        Wc {
            byte_len: self.byte_len,
            imm: self.imm,
            flags: self.flags,
            opcode: ibv_wc_opcode(self.opcode),
            origin: Origin::NONE,
        }
    }

    #[inline(always)]
    pub(crate) fn outcome(&self) -> Result<Wc, WcError> {
        if self.status() == WcStatus::SUCCESS {
            Ok(self.success())
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
            cq,
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

    /// The completion queue that it came from.
    #[inline(always)]
    pub(crate) fn cq(&self) -> CqId {
        self.0.cq
    }

    /// The id of its work request.
    #[inline(always)]
    pub(crate) fn wr_id(&self) -> u64 {
        self.0.wr_id
    }

    /// 0 if it is of work that succeeded, and came from this completion queue.
    #[inline(always)]
    pub(crate) fn differs_from_success_on(&self, cq: CqId) -> u64 {
        (self.0.cq.0 ^ cq.0) | u64::from(self.0.report.status)
    }

    /// All of it in words, for a call of what is seldom needed.
    ///
    /// What a function out of sight is handed by reference lies in memory. A completion that were handed over itself would be written there
    /// in any case; the words are computed where they are needed, and all that is only for them is not even read elsewhere.
    #[inline(always)]
    pub(crate) fn into_words(self) -> Words {
        let Entry {
            cq,
            wr_id,
            report,
            origin,
        } = self.0;
        let both = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
        Words([
            cq.0,
            wr_id,
            both(report.status, report.opcode),
            both(report.vendor_err, report.byte_len),
            both(report.imm, report.qp_num),
            both(report.flags, origin.qpn),
            both(
                origin.slid.into(),
                u32::from(origin.sl) | u32::from(origin.path_bits) << 8,
            ),
        ])
    }

    /// The reverse of [`into_words`](Self::into_words).
    pub(crate) fn from_words(words: Words) -> Completion {
        let [cq, wr_id, rest @ ..] = words.0;
        let [a, b, c, d, e] = rest.map(|word| (word as u32, (word >> 32) as u32));
        Completion(Entry {
            cq: CqId(cq),
            wr_id,
            report: Report {
                status: a.0,
                opcode: a.1,
                vendor_err: b.0,
                byte_len: b.1,
                imm: c.0,
                qp_num: c.1,
                flags: d.0,
            },
            origin: Origin {
                qpn: d.1,
                slid: e.0 as u16,
                sl: e.1 as u8,
                path_bits: (e.1 >> 8) as u8,
            },
        })
    }

    /// As a device would have written it.
    pub(crate) fn to_sys(&self) -> ibv_wc {
        self.0.to_sys()
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
        if ring::tag(self.0.wr_id) != RAW_TAG {
            return Err(self);
        }
        Ok(RawCompletion {
            wr_id: self.seq(),
            qp_num: self.0.report.qp_num(),
            result: self.outcome(),
        })
    }

    /// What is above the tag in the id of its work request.
    #[inline(always)]
    fn seq(&self) -> u64 {
        seq(self.0.wr_id)
    }

    /// The number of work that was posted in a scope.
    pub(crate) fn scoped(&self) -> Option<u64> {
        (ring::tag(self.0.wr_id) == SCOPED_TAG).then(|| self.seq())
    }

    /// Of a shared receive queue's.
    #[inline(always)]
    pub(crate) fn slot(&self) -> u32 {
        self.seq() as u32 & (MAX_SLOTS - 1)
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

    /// What it says, of work that is known to have succeeded.
    #[inline(always)]
    pub(crate) fn success(&self) -> Wc {
        let Entry { report, origin, .. } = self.0;
        Wc {
            origin,
            ..report.success()
        }
    }
}

impl Entry {
    #[inline(always)]
    fn queue(&self) -> QueueId {
        match ring::tag(self.wr_id) {
            SHARED_TAG => QueueId::shared((seq(self.wr_id) >> SLOT_BITS) as u32),
            tag => QueueId::new(self.cq, tag),
        }
    }
}

impl fmt::Debug for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Completion")
            .field("queue", &self.queue())
            .field("seq", &seq(self.wr_id))
            .field("status", &self.report.status())
            .finish()
    }
}

impl fmt::Debug for Completion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
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

#[cfg(test)]
mod tests {
    use ibverbs_sys::ibv_wc_flags;

    use super::*;
    use crate::{RKey, WcBatch};

    #[test]
    fn a_failed_completion_shows_only_what_is_defined() {
        let wc = ibv_wc {
            wr_id: id(3, 77),
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
            wr_id: id(3, 77),
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
            }
        }
        assert_ne!(QueueId::shared(3), QueueId::new(CqId(3), 3));
    }

    #[test]
    fn ids_of_queues_carry_their_completion_queue() {
        assert_ne!(QueueId::new(CqId(1), 5), QueueId::new(CqId(2), 5));
        assert_eq!(
            QueueId::new(CqId(1), 0xffff).wr_id(ring::SEQ_MASK),
            u64::MAX
        );
    }
}
