//! Taking in what arrives for a queue pair whose receives come from a shared queue.

use super::{InLane, Ring, status_of};
use crate::lane::{Kind, Taken};
use crate::qp::QpCore;
use crate::qp_state::State;
use crate::srq::{SrqCore, Told};
use core::sync::atomic::Ordering;
use ibverbs_sys::{ibv_event_type, ibv_wc, ibv_wc_status as Status};
use std::sync::Arc;

impl QpCore {
    #[inline(never)]
    pub(super) fn take_shared(
        &self,
        srq: &SrqCore,
        lane: &mut InLane,
        out: &mut [ibv_wc],
    ) -> usize {
        let mut filled = 0;
        // As for a queue of its own: a bound on entries that make no completion.
        let mut budget = lane.ring.slots().len();
        while filled < out.len() && budget > 0 {
            let Some((at, entry)) = lane.consumer.take(lane.ring.slots()) else {
                break;
            };
            budget -= 1;
            let wc = &mut out[filled];
            match entry.and_then(|entry| self.shared_entry(srq, &lane.ring, at, &entry, wc)) {
                Some(made) => filled += usize::from(made),
                None => {
                    lane.spoiled = true;
                    self.fail();
                    break;
                }
            }
        }
        lane.publish(self.own);
        filled
    }

    /// One entry of the lane. Returns whether it made a completion, `None` if it makes no sense.
    fn shared_entry(
        &self,
        srq: &SrqCore,
        ring: &Ring,
        at: usize,
        entry: &Taken<'_>,
        wc: &mut ibv_wc,
    ) -> Option<bool> {
        match entry.kind {
            Kind::Recv | Kind::RecvImm | Kind::WriteImm | Kind::Error => {}
            Kind::Fatal => {
                self.fail();
                return Some(false);
            }
            _ => return None,
        }
        let status = srq.complete(entry.index, |entries, slot| {
            let (head, sges) = entries.get(slot);
            let status = match entry.kind {
                Kind::Error => status_of(entry),
                Kind::WriteImm => Status::IBV_WC_SUCCESS,
                _ if u64::from(entry.byte_len) > head.total.load(Ordering::Relaxed) => return None,
                _ if self.place(ring, at, entry, sges, srq.pd) => Status::IBV_WC_SUCCESS,
                _ => Status::IBV_WC_LOC_PROT_ERR,
            };
            self.completed(entries.wr_id(slot), status, wc);
            Some(status)
        })?;
        if status == Status::IBV_WC_SUCCESS {
            Self::describe(entry, wc);
        } else {
            self.fail();
        }
        Some(true)
    }

    /// For the watcher: if the queue pair has failed, gives back what it has of its shared queue, and tells that it takes
    /// nothing more. `false`: a producer is at work, look again.
    pub fn attend_shared(self: &Arc<Self>) -> bool {
        let Some(srq) = &self.srq else {
            return true;
        };
        self.recv_cq.exclusively(|| {
            // SAFETY: under the lock of the completion queue.
            let arrivals = unsafe { &mut *self.arrivals.get() };
            if self.state() != State::Err || arrivals.ended {
                return true;
            }
            if let Some(lane) = &mut arrivals.lane {
                if !self.close(lane) {
                    return false;
                }
                srq.reclaim(self.index(), &lane.named(), Told::Kept);
            }
            arrivals.ended = true;
            let last = ibv_event_type::IBV_EVENT_QP_LAST_WQE_REACHED;
            self.recv_cq.tell(last, &self.handle);
            true
        })
    }

    /// Gives back what a process that is gone has claimed of the shared queue for this queue pair.
    pub fn reclaim_from_dead(&self) {
        let Some(srq) = &self.srq else {
            return;
        };
        self.recv_cq.exclusively(|| {
            // SAFETY: under the lock of the completion queue.
            let arrivals = unsafe { &*self.arrivals.get() };
            if let Some(lane) = &arrivals.lane
                && lane.is_dead()
            {
                srq.reclaim(self.index(), &lane.named(), Told::Kept);
            }
        });
    }
}
