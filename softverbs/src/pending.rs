//! What the device still has to do: for those who look for memory that was given up too early. Looks at all queues of the process, and takes
//! their locks for moments.

use crate::process::Process;
use crate::qp::QpCore;
use crate::recv::Entries;
use core::sync::atomic::Ordering;
use ibverbs_sys::ibv_sge;

/// A work request of this process that the device is not done with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pending {
    /// Number of the queue pair; 0 for a shared receive queue.
    pub qp_num: u32,
    /// The id it was posted with, of a shared receive queue 0.
    pub wr_id: u64,
    /// Whether the device is to write the memory, or only to read it.
    pub writes: bool,
}

/// Memory as work requests name it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Named {
    lkey: u32,
    start: u64,
    end: u64,
}

impl Named {
    /// Whether a segment names any of it.
    pub fn overlaps(&self, addr: u64, len: u32, lkey: u32) -> bool {
        lkey == self.lkey
            && len > 0
            && addr < self.end
            && addr.saturating_add(len.into()) > self.start
    }

    pub fn is_in(&self, sges: &[ibv_sge]) -> bool {
        sges.iter().any(|s| self.overlaps(s.addr, s.length, s.lkey))
    }

    pub fn is_in_entry(&self, entries: &Entries, index: u64) -> bool {
        entries.get(index).1.iter().any(|s| {
            let [len, lkey] = [&s.len, &s.lkey].map(|n| n.load(Ordering::Relaxed));
            self.overlaps(s.addr.load(Ordering::Relaxed), len, lkey)
        })
    }
}

/// A work request that names any of `len` bytes at `addr` with the key `lkey`, is posted, and not executed or filled yet. One that is done and
/// whose completion nobody has polled is none.
pub fn find(lkey: u32, addr: u64, len: u64) -> Option<Pending> {
    let process = Process::get().ok()?;
    let end = addr.saturating_add(len);
    let named = Named {
        lkey,
        start: addr,
        end,
    };
    let of_qps = process.qps().into_iter().find_map(|qp| of(&qp, named));
    of_qps.or_else(|| {
        process
            .srqs()
            .iter()
            .any(|srq| srq.holds(named))
            .then_some(Pending {
                qp_num: 0,
                wr_id: 0,
                writes: true,
            })
    })
}

fn of(qp: &QpCore, named: Named) -> Option<Pending> {
    // Destroyed, and kept by somebody for a moment only.
    if qp.own.qpn.load(Ordering::Acquire) != qp.qpn {
        return None;
    }
    let found = |(wr_id, writes)| Pending {
        qp_num: qp.qpn,
        wr_id,
        writes,
    };
    if let Some(send) = qp.send.lock().find(named) {
        return Some(found(send));
    }
    if qp.srq.is_some() {
        return None;
    }
    let posted = qp.own.posted.0.load(Ordering::Acquire);
    let mut waiting = qp.entries.taken()..posted;
    let index = waiting.find(|index| named.is_in_entry(&qp.entries, *index))?;
    Some(found((qp.entries.wr_id(index), true)))
}
