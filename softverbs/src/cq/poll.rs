//! Polling.

use super::{Counted, CqCore, Members, Overflow};
use crate::faults;
use crate::lock::Guard;
use crate::qp::QpCore;
use core::sync::atomic::Ordering;
use ibverbs_sys::{ibv_event_type, ibv_wc, ibv_wc_opcode, ibv_wc_status};
use std::sync::Arc;

/// A completion that was polled frees the send queue up to its slot.
fn frees(qp: &Arc<QpCore>, index: u64) {
    qp.sent.store(index, Ordering::Release);
}

impl CqCore {
    /// `ibv_poll_cq`: fills `out` from the front and returns how many.
    #[inline]
    pub fn poll(&self, out: &mut [ibv_wc]) -> Result<usize, Overflow> {
        let members = self.members.lock_often();
        if self.is_plain(&members)
            && let [qp] = &members.list[..]
            && !qp.attention()
        {
            let filled = self.poll_member::<false>(qp, out, frees, &mut false);
            return Ok(Self::polled(members, filled));
        }
        self.poll_many(members, out)
    }

    /// Leaves the lock, and says what was found.
    #[inline(always)]
    fn polled(members: Guard<'_, Members>, filled: usize) -> usize {
        // What follows is outside, where others who want the lock find the queue's poller mostly.
        drop(members);
        if filled == 0 {
            // Whoever polls an empty queue spins: tell the core (15 to 35 % of a round trip).
            core::hint::spin_loop();
        }
        filled
    }

    /// Whether nothing is counted, or wrong, or made to be.
    #[inline(always)]
    fn is_plain(&self, members: &Members) -> bool {
        members.ring.is_empty()
            && members.sum <= self.cqe.load(Ordering::Relaxed) as usize
            && !members.broken
            && !faults::active()
    }

    #[inline(never)]
    fn poll_many(
        &self,
        mut members: Guard<'_, Members>,
        out: &mut [ibv_wc],
    ) -> Result<usize, Overflow> {
        let mut waits = false;
        let filled = self.pass_over::<true>(&mut members, out, &mut waits)?;
        let filled = Self::polled(members, filled);
        if waits {
            return self.poll_attended(out, filled);
        }
        Ok(filled)
    }

    /// Looks after work that waits, and polls once more. Waiting work may be the copying of much, so it is not done under the lock, where others
    /// who poll would wait for it.
    #[cold]
    fn poll_attended(&self, out: &mut [ibv_wc], filled: usize) -> Result<usize, Overflow> {
        let mut at = 0;
        let mut next = || {
            let members = self.members.lock_often();
            let left = members.list.get(at..)?;
            at += 1 + left.iter().position(|qp| qp.attention())?;
            Some(members.list[at - 1].clone())
        };
        while let Some(qp) = next() {
            qp.attend();
        }
        let mut members = self.members.lock_often();
        match self.pass_over::<false>(&mut members, &mut out[filled..], &mut false) {
            Ok(more) => Ok(filled + more),
            Err(overflow) if filled == 0 => Err(overflow),
            Err(_) => Ok(filled),
        }
    }

    /// Takes what is there. `FIRST`: but not from queue pairs with work that waits, of which `waits` tells.
    #[inline(always)]
    fn pass_over<const FIRST: bool>(
        &self,
        members: &mut Members,
        out: &mut [ibv_wc],
        waits: &mut bool,
    ) -> Result<usize, Overflow> {
        match self.is_plain(members) {
            true if members.crowd.is_there() => {
                Ok(self.poll_crowd::<FIRST>(members, out, frees, waits))
            }
            true => Ok(self.poll_members::<FIRST>(members, out, frees, waits)),
            false => self.poll_unusual::<FIRST>(members, out, waits),
        }
    }

    #[cold]
    fn poll_unusual<const FIRST: bool>(
        &self,
        members: &mut Members,
        out: &mut [ibv_wc],
        waits: &mut bool,
    ) -> Result<usize, Overflow> {
        if FIRST && faults::overflows(self.index) {
            self.overflow(members);
        }
        if members.broken
            || !members.ring.is_empty()
            || members.sum > self.cqe.load(Ordering::Relaxed) as usize
        {
            return self.poll_counted::<FIRST>(members, out, waits);
        }
        Ok(self.poll_members::<FIRST>(members, out, frees, waits))
    }

    /// Visits the members in turn until `out` is full or none has anything. `frees` learns which send slots are done with.
    #[inline(never)]
    fn poll_members<const FIRST: bool>(
        &self,
        members: &mut Members,
        out: &mut [ibv_wc],
        mut frees: impl FnMut(&Arc<QpCore>, u64),
        waits: &mut bool,
    ) -> usize {
        let count = members.list.len();
        let mut filled = 0;
        for _ in 0..count {
            let at = members.next;
            members.next = if at + 1 == count { 0 } else { at + 1 };
            let (qp, out) = (&members.list[at], &mut out[filled..]);
            filled += self.poll_member::<FIRST>(qp, out, &mut frees, waits);
            if filled == out.len() {
                // There may be more here, but it is the others' turn.
                break;
            }
        }
        filled
    }

    /// Polls through the ring, which holds as much as the completion queue is large.
    #[cold]
    fn poll_counted<const FIRST: bool>(
        &self,
        members: &mut Members,
        out: &mut [ibv_wc],
        waits: &mut bool,
    ) -> Result<usize, Overflow> {
        let capacity = self.cqe.load(Ordering::Relaxed) as usize;
        // If not, the ring has what was counted before the queue became larger.
        let counts = members.sum > capacity;
        while !members.broken && counts {
            let Some(counted) = self.next_of::<FIRST>(members, waits) else {
                break;
            };
            if members.ring.len() >= capacity {
                self.overflow(members);
            } else {
                members.ring.push_back(counted);
            }
        }
        if members.ring.is_empty() && members.broken {
            return Err(Overflow);
        }
        let mut filled = 0;
        while filled < out.len()
            && let Some(Counted { wc, frees }) = members.ring.pop_front()
        {
            out[filled] = wc;
            filled += 1;
            if let Some((qp, index)) = frees {
                qp.sent.store(index, Ordering::Release);
            }
        }
        if filled < out.len() && !counts && !members.broken {
            filled += self.poll_members::<FIRST>(members, &mut out[filled..], frees, waits);
        }
        Ok(filled)
    }

    /// The next completion, for the ring.
    fn next_of<const FIRST: bool>(
        &self,
        members: &mut Members,
        waits: &mut bool,
    ) -> Option<Counted> {
        let mut wc = [ibv_wc::default()];
        let mut frees = None;
        let note = |qp: &Arc<QpCore>, index| frees = Some((qp.clone(), index));
        let polled = self.poll_members::<FIRST>(members, &mut wc, note, waits);
        let [wc] = wc;
        (polled != 0).then_some(Counted { wc, frees })
    }

    /// `ibv_resize_cq`; `EINVAL` if more completions wait than that.
    pub fn resize(&self, cqe: i32) -> Result<(), i32> {
        let mut members = self.members.lock();
        let old = self.cqe.load(Ordering::Relaxed) as usize;
        if (cqe as usize) < members.sum {
            // Counted from now on, and there may be more than fit.
            while !members.broken
                && members.ring.len() < old
                && let Some(counted) = self.next_of::<false>(&mut members, &mut false)
            {
                members.ring.push_back(counted);
            }
            if members.ring.len() > cqe as usize {
                return Err(libc::EINVAL);
            }
        }
        self.cqe.store(cqe, Ordering::Relaxed);
        Ok(())
    }

    /// The queue is lost, and the queue pairs that complete to it with it (IBTA chapter 11, asynchronous events).
    #[cold]
    fn overflow(&self, members: &mut Members) {
        if core::mem::replace(&mut members.broken, true) {
            return;
        }
        self.tell(ibv_event_type::IBV_EVENT_CQ_ERR, &self.handle);
        for qp in &members.list {
            qp.fail();
            self.tell(ibv_event_type::IBV_EVENT_QP_FATAL, &qp.handle);
        }
    }

    #[inline(always)]
    pub(super) fn poll_member<const FIRST: bool>(
        &self,
        qp: &Arc<QpCore>,
        out: &mut [ibv_wc],
        mut frees: impl FnMut(&Arc<QpCore>, u64),
        waits: &mut bool,
    ) -> usize {
        let mut filled = 0;
        if FIRST && qp.attention() {
            *waits = true;
            return 0;
        }
        if self.is(&qp.send_cq) {
            while filled < out.len() {
                // SAFETY: this completion queue is the send ring's, and we hold its lock.
                let Some(done) = (unsafe { qp.send_dones.pop() }) else {
                    break;
                };
                frees(qp, done.index + 1);
                let wc = &mut out[filled];
                *wc = ibv_wc {
                    wr_id: done.wr_id,
                    status: ibv_wc_status(done.status),
                    opcode: ibv_wc_opcode(done.opcode),
                    byte_len: done.byte_len,
                    qp_num: qp.qpn,
                    ..ibv_wc::default()
                };
                filled += 1;
            }
        }
        if filled < out.len() && self.is(&qp.recv_cq) {
            // SAFETY: this completion queue is the receives', and we hold its lock.
            filled += unsafe { qp.take_in(&mut out[filled..]) };
        }
        filled
    }
}
