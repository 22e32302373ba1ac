//! The short way of an ordinary request: one segment, a peer that answers, mapped memory, no fault in force.
//!
//! It does what [`super::execute`] does, in the same order, and nothing else; whatever is not as usual is left to that. `None` means
//! that nothing has happened.

use super::{INLINE, SOLICITED};
use crate::copy;
use crate::device::MAX_MSG;
use crate::faults;
use crate::lane::{self, Entry, Kind, Payload};
use crate::link::{Link, answers, wake};
use crate::qp::QpCore;
use crate::quiet;
use crate::region::{self, REMOTE_WRITE};
use core::sync::atomic::Ordering;
use ibverbs_sys::{ibv_send_wr, ibv_wr_opcode as Opcode};

/// Tells how many bytes the request had, once it is done.
///
/// # Safety
///
/// The contract of ibv_post_send(3) for `wr`; the caller holds the send queue's lock, the queue pair is in RTS and nothing
/// waits in its queue.
#[inline(always)]
pub(crate) unsafe fn execute_quickly(
    qp: &QpCore,
    link: &mut Link,
    wr: &ibv_send_wr,
    max_inline: usize,
) -> Option<u32> {
    let (kind, written) = match wr.opcode {
        Opcode::IBV_WR_RDMA_WRITE_WITH_IMM => (Some(Kind::WriteImm), true),
        Opcode::IBV_WR_RDMA_WRITE => (None, true),
        Opcode::IBV_WR_SEND => (Some(Kind::Recv), false),
        Opcode::IBV_WR_SEND_WITH_IMM => (Some(Kind::RecvImm), false),
        _ => return None,
    };
    if wr.num_sge != 1 || faults::active() || link.peer.dead.load(Ordering::Relaxed) {
        return None;
    }
    let out = link.lane.as_mut()?;
    // SAFETY: the request has one segment.
    let sge = unsafe { &*wr.sg_list };
    let len = u64::from(sge.length);
    if len == 0 || len > MAX_MSG {
        return None;
    }
    let from = if wr.send_flags & INLINE != 0 {
        (len <= max_inline as u64).then_some(sge.addr)?
    } else {
        let mr = qp.process.segment.mr(region::index_of(sge.lkey));
        let off = region::check(mr, sge.lkey, qp.pd, sge.addr, len, 0).ok()?;
        mr.addr.load(Ordering::Relaxed) + off
    } as *const u8;
    if kind.is_some() && (out.claimed >= out.posted || !out.has_room()) {
        return None;
    }
    if written {
        // SAFETY: of the union, RDMA requests use this.
        let rdma = unsafe { wr.wr.rdma };
        out.op = out.op.wrapping_add(1);
        let name = rdma.rkey & !quiet::RECV;
        quiet::enter(&out.own, out.op | 1 << 31, name, out.fenced);
        let there = (|| {
            let advert = &out.advert;
            let allowed = answers(advert, link.dest)
                && advert.lane_generation.load(Ordering::Relaxed) == out.generation
                && advert.access.load(Ordering::Relaxed) & REMOTE_WRITE != 0;
            let mr = link.peer.segment.mr(region::index_of(rdma.rkey));
            let pd = advert.pd.load(Ordering::Relaxed);
            let off = region::check(mr, rdma.rkey, pd, rdma.remote_addr, len, REMOTE_WRITE).ok()?;
            if !allowed {
                None
            } else if link.peer.own {
                Some((mr.addr.load(Ordering::Relaxed) + off) as *mut u8)
            } else {
                out.known(mr, off, len)
            }
        })();
        let Some(there) = there else {
            quiet::leave(&out.own);
            return None;
        };
        // SAFETY: the local piece lies in a region whose key was checked under the send queue's lock, which `quiet::region`
        // takes before memory is given back, or is inline data; the remote one was checked under the hazard.
        unsafe { copy::copy(there, from, len as usize) };
        if let Some(kind) = kind {
            look_ahead(out, there, len as usize);
            push(out, wr, kind, Payload::Written(rdma.remote_addr), len);
        }
    } else {
        if len > u64::from(out.advert.eager.load(Ordering::Relaxed)).min(lane::BESIDE as u64) {
            return None;
        }
        out.op = out.op.wrapping_add(1);
        quiet::enter(&out.own, out.op | 1 << 31, quiet::RECV, out.fenced);
        if !answers(&out.advert, link.dest)
            || out.advert.lane_generation.load(Ordering::Relaxed) != out.generation
        {
            quiet::leave(&out.own);
            return None;
        }
        let mut words = [0u64; lane::IN_ENTRY / 8];
        let payload = if len > lane::IN_ENTRY as u64 {
            // SAFETY: as above; there is room for `lane::BESIDE` bytes.
            unsafe { copy::copy(out.beside(), from, len as usize) };
            Payload::Beside
        } else {
            // SAFETY: as above.
            unsafe { copy::copy(words.as_mut_ptr().cast(), from, len as usize) };
            Payload::InEntry(words)
        };
        push(out, wr, kind?, payload, len);
    }
    quiet::leave(&out.own);
    if kind.is_some() {
        wake(&link.peer, out, wr.send_flags & SOLICITED != 0);
    }
    Some(len as u32)
}

/// Asks for the lines of the next message, if the peer's memory is filled with one message behind the other: they come while this one is
/// dealt with, and the next one's stores, which leave in order, wait for nothing.
#[inline(always)]
fn look_ahead(out: &mut crate::link::OutLane, there: *mut u8, len: usize) {
    const LINE: usize = 64;
    let end = (there.addr() + len).next_multiple_of(LINE);
    let goes_on = out.next == there.addr();
    out.next = end;
    if goes_on && len <= 2 * LINE {
        copy::will_write(there.with_addr(end));
        if len > LINE {
            copy::will_write(there.with_addr(end + LINE));
        }
    }
}

#[inline(always)]
fn push(out: &mut crate::link::OutLane, wr: &ibv_send_wr, kind: Kind, payload: Payload, len: u64) {
    let entry = Entry {
        kind,
        solicited: wr.send_flags & SOLICITED != 0,
        payload,
        byte_len: len as u32,
        // SAFETY: a plain integer, whatever was written to the union.
        imm: unsafe { wr.__bindgen_anon_1.imm_data },
        index: out.claimed,
    };
    out.claimed += 1;
    out.push(&entry);
}
