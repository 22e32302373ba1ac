//! Finding the peer's memory that a request names.

use super::job::Job;
use crate::layout::{MrAdvert, RecvSge};
use crate::region::{self, LOCAL_WRITE, REMOTE, REMOTE_ATOMIC, REMOTE_WRITE};
use crate::transfer::{List, MAX_SGE, Target};
use core::sync::atomic::Ordering;
use ibverbs_sys::ibv_wc_status as Status;

/// The receive entry that a send takes.
pub(super) struct Scatter {
    pub targets: List<(Target, usize)>,
    /// No peer holds a key to any of its memory, so the payload may wait in the lane.
    pub unshared: bool,
}

/// Who does not allow an access.
pub(super) enum Refused {
    QueuePair,
    Key,
}

impl Refused {
    /// What the queue pair does not allow is an invalid request, what the key does not is a violation of access (IBTA
    /// chapter 9, and rxe agrees).
    pub fn status(self) -> Status {
        match self {
            Refused::QueuePair => Status::IBV_WC_REM_INV_REQ_ERR,
            Refused::Key => Status::IBV_WC_REM_ACCESS_ERR,
        }
    }
}

impl Job<'_> {
    /// The memory that a one-sided request names.
    #[inline(always)]
    pub fn one_sided(&mut self, need: u32) -> Result<Target, Refused> {
        if self.out.advert.access.load(Ordering::Relaxed) & need == 0 {
            return Err(Refused::QueuePair);
        }
        let pd = self.out.advert.pd.load(Ordering::Relaxed);
        let found = self.remote(self.work.rkey, pd, self.work.raddr, self.total, need);
        found.map_err(|region::Refused| Refused::Key)
    }

    /// The peer's region that a key names.
    #[inline(always)]
    pub fn region(&self, key: u32) -> &MrAdvert {
        self.peer.segment.mr(region::index_of(key))
    }

    /// Finds the memory that a key of the peer's names.
    #[inline(always)]
    fn remote(
        &mut self,
        key: u32,
        pd: u32,
        addr: u64,
        len: u64,
        need: u32,
    ) -> Result<Target, region::Refused> {
        let mr = self.peer.segment.mr(region::index_of(key));
        let off = region::check(mr, key, pd, addr, len, need)?;
        let there = mr.addr.load(Ordering::Relaxed).wrapping_add(off);
        if self.peer.own {
            return Ok(Target::Mapped(there as *mut u8));
        }
        let arena = mr.arena.load(Ordering::Relaxed);
        let serial = mr.arena_serial.load(Ordering::Relaxed);
        if arena != 0 {
            let at = mr.arena_off.load(Ordering::Relaxed).wrapping_add(off);
            let writes = need & (REMOTE_WRITE | REMOTE_ATOMIC | LOCAL_WRITE) != 0;
            if let Some(known) = self.out.arena(self.peer, arena - 1, serial)
                && (known.writable || !writes)
                && at.checked_add(len).is_some_and(|end| end <= known.len)
            {
                // SAFETY: in bounds of the mapping, which `self.out.arenas` keeps for the rest of the request.
                return Ok(Target::Mapped(unsafe { known.at.add(at as usize) }));
            }
        }
        Ok(Target::Process(there))
    }

    /// The next receive entry's memory, resolved; or the status with which that receive fails.
    pub fn scatter(&mut self) -> Result<Scatter, Status> {
        let advert = &self.out.advert;
        let order = advert.recv_order.load(Ordering::Relaxed) & 31;
        let stride = u64::from(advert.recv_stride.load(Ordering::Relaxed));
        let slot = self.index & ((1 << order) - 1);
        let off = advert
            .recv_off
            .load(Ordering::Relaxed)
            .wrapping_add(slot.wrapping_mul(stride));
        let peer = self.peer;
        let (head, sges) = peer
            .segment
            .recv(off, MAX_SGE)
            .ok_or(Status::IBV_WC_LOC_PROT_ERR)?;
        let count = head.num_sge.load(Ordering::Relaxed) as usize;
        if self.total > head.total.load(Ordering::Relaxed) {
            return Err(Status::IBV_WC_LOC_LEN_ERR);
        }
        let mut scatter = Scatter {
            targets: List::new(),
            unshared: true,
        };
        let mut left = self.total;
        for sge in sges.iter().take(count) {
            if left == 0 {
                break;
            }
            left -= self
                .element(sge, left, &mut scatter)
                .map_err(|region::Refused| Status::IBV_WC_LOC_PROT_ERR)?;
        }
        if left > 0 {
            Err(Status::IBV_WC_LOC_LEN_ERR)
        } else {
            Ok(scatter)
        }
    }

    fn element(
        &mut self,
        sge: &RecvSge,
        left: u64,
        scatter: &mut Scatter,
    ) -> Result<u64, region::Refused> {
        let len = u64::from(sge.len.load(Ordering::Relaxed)).min(left);
        if len == 0 {
            return Ok(0);
        }
        let (addr, key) = (
            sge.addr.load(Ordering::Relaxed),
            sge.lkey.load(Ordering::Relaxed),
        );
        let pd = match &self.out.shared {
            Some(shared) => shared.pd,
            None => self.out.advert.pd.load(Ordering::Relaxed),
        };
        let target = self.remote(key, pd, addr, len, LOCAL_WRITE)?;
        scatter.unshared &= self.region(key).access.load(Ordering::Relaxed) & REMOTE == 0;
        scatter.targets.push((target, len as usize));
        Ok(len)
    }
}
