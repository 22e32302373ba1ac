//! Executing one work request: what the adapter of the initiator and that of the target would do, done by whoever posts.
//!
//! The order within a request: local keys, the peer's state, a receive entry, the remote key, the copy, the lane entry,
//! the wake-up. The hazard word is set before the peer's state is read and cleared after the last access.

use crate::lane::{self, Entry, Kind, Payload};
use crate::layout::{QpAdvert, RecvSge};
use crate::link::{Link, OutLane, answers, more_posted, rnr_timer, wake};
use crate::peer::Peer;
use crate::qp::QpCore;
use crate::quiet;
use crate::region::{self, LOCAL_WRITE, REMOTE, REMOTE_READ, REMOTE_WRITE};
use crate::send::Op;
use crate::transfer::{List, MAX_SGE, Mover, Piece, Target, Way, transfer};
use core::sync::atomic::{Ordering, fence};
use ibverbs_sys::{ibv_send_flags, ibv_sge, ibv_wc_status as Status};
use std::time::Duration;

const INLINE: u32 = ibv_send_flags::IBV_SEND_INLINE.0;
const SOLICITED: u32 = ibv_send_flags::IBV_SEND_SOLICITED.0;

/// One work request, wherever it is stored.
pub(crate) struct Work<'a> {
    pub wr_id: u64,
    pub op: Op,
    pub flags: u32,
    pub imm: u32,
    pub raddr: u64,
    pub rkey: u32,
    pub sges: &'a [ibv_sge],
}

/// Why a request cannot be executed now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Reason {
    /// The target has no receive entry; its timer says how long to wait before each retry.
    Receiver { timer: Duration },
    /// The target does not answer (yet).
    Peer,
}

pub(crate) enum Outcome {
    /// Status and bytes.
    Done(Status, u64),
    Wait(Reason),
}

/// Executes a request, or says why it has to wait; then nothing has happened.
#[inline]
pub(crate) fn execute(
    qp: &QpCore,
    link: Option<&mut Link>,
    work: &Work<'_>,
    mover: &mut Mover<'_>,
) -> Outcome {
    let Some(link) = link else {
        return Outcome::Wait(Reason::Peer);
    };
    let mut local = List::new();
    let total = match local_pieces(qp, work, &mut local) {
        Ok(total) => total,
        Err(region::Refused) => return Outcome::Done(Status::IBV_WC_LOC_PROT_ERR, 0),
    };
    if link.peer.dead.load(Ordering::Relaxed) {
        return Outcome::Done(Status::IBV_WC_RETRY_EXC_ERR, 0);
    }
    if link.lane.is_none() && link.attach(qp).is_none() {
        return unanswered(link);
    }
    let Link {
        peer,
        dest,
        lane: Some(out),
        ..
    } = link
    else {
        return Outcome::Wait(Reason::Peer);
    };
    let advert = Link::advert(peer, *dest);
    let takes_entry = !matches!(work.op, Op::Write | Op::Read);
    if takes_entry
        && !out
            .producer
            .has_room(1 << out.order, || advert.consumed.0.load(Ordering::Acquire))
    {
        return Outcome::Wait(Reason::Peer);
    }
    if takes_entry && out.claimed >= out.posted && !more_posted(qp, out, advert) {
        let timer = rnr_timer(advert.min_rnr_timer.load(Ordering::Relaxed));
        return Outcome::Wait(Reason::Receiver { timer });
    }
    let name = if matches!(work.op, Op::Send | Op::SendImm) {
        quiet::RECV
    } else {
        work.rkey & !quiet::RECV
    };
    out.op = out.op.wrapping_add(1);
    quiet::enter(out.head(), out.op | 1 << 31, name, out.fenced);
    if !answers(advert, *dest) || advert.lane_generation.load(Ordering::Relaxed) != out.generation {
        quiet::leave(out.head());
        return unanswered(link);
    }
    let job = Job {
        peer,
        out,
        advert,
        work,
        local: local.as_slice(),
        total,
    };
    let (status, told) = job.run(mover);
    quiet::leave(out.head());
    if told {
        wake(
            peer,
            out,
            work.flags & SOLICITED != 0 || status != Status::IBV_WC_SUCCESS,
        );
    }
    Outcome::Done(status, total)
}

/// The outcome when the peer's queue pair takes no requests.
fn unanswered(link: &Link) -> Outcome {
    if link.is_gone() {
        Outcome::Done(Status::IBV_WC_RETRY_EXC_ERR, 0)
    } else {
        Outcome::Wait(Reason::Peer)
    }
}

/// The caller's scatter/gather list, checked against the process's own regions. Elements without bytes need no key.
#[inline]
fn local_pieces(
    qp: &QpCore,
    work: &Work<'_>,
    pieces: &mut List<Piece>,
) -> Result<u64, region::Refused> {
    let need = if work.op == Op::Read { LOCAL_WRITE } else { 0 };
    let mut total = 0;
    for sge in work.sges {
        let len = u64::from(sge.length);
        if len == 0 {
            continue;
        }
        let addr = if work.flags & INLINE != 0 {
            sge.addr
        } else {
            let advert = qp.process.segment.mr(region::index_of(sge.lkey));
            let off = region::check(advert, sge.lkey, qp.pd, sge.addr, len, need)?;
            advert.addr.load(Ordering::Relaxed) + off
        };
        pieces.push(Piece {
            ptr: addr as *mut u8,
            len: len as usize,
        });
        total += len;
    }
    Ok(total)
}

/// One request with everything it needs; lives while the hazard is set.
struct Job<'a> {
    peer: &'a Peer,
    out: &'a mut OutLane,
    advert: &'a QpAdvert,
    work: &'a Work<'a>,
    local: &'a [Piece],
    total: u64,
}

/// The receive entry that a send takes.
struct Scatter {
    targets: List<(Target, usize)>,
    /// No peer holds a key to any of its memory, so the payload may wait in the lane.
    unshared: bool,
}

impl Job<'_> {
    /// Returns the status, and whether the lane got an entry.
    fn run(mut self, mover: &mut Mover<'_>) -> (Status, bool) {
        match self.work.op {
            Op::Send => self.send(Kind::Recv, mover),
            Op::SendImm => self.send(Kind::RecvImm, mover),
            Op::Write | Op::WriteImm => self.write(mover),
            Op::Read => self.read(mover),
        }
    }

    fn send(&mut self, kind: Kind, mover: &mut Mover<'_>) -> (Status, bool) {
        // Read after `posted`, which bounds what we take: entries posted later can only lower it.
        if self.total
            <= u64::from(self.advert.eager.load(Ordering::Relaxed)).min(lane::BESIDE as u64)
        {
            return self.send_eagerly(kind, mover);
        }
        let scatter = match self.scatter() {
            Ok(scatter) => scatter,
            // What the target's adapter would find: its receive completes with an error, and so does our send.
            Err(theirs) => {
                let ours = match theirs {
                    Status::IBV_WC_LOC_LEN_ERR => Status::IBV_WC_REM_INV_REQ_ERR,
                    _ => Status::IBV_WC_REM_OP_ERR,
                };
                return (self.fail_receive(theirs, ours), true);
            }
        };
        if scatter.unshared && self.total <= lane::BESIDE as u64 {
            return self.send_eagerly(kind, mover);
        }
        // SAFETY: the targets were checked under the hazard.
        let copied = unsafe { self.transfer(Way::Out, scatter.targets.as_slice(), mover) };
        match copied {
            Ok(()) => {
                self.tell(kind, Payload::Placed);
                (Status::IBV_WC_SUCCESS, true)
            }
            Err(error) if error.raw_os_error() == Some(libc::ESRCH) => {
                (Status::IBV_WC_RETRY_EXC_ERR, false)
            }
            Err(_) => (
                self.fail_receive(Status::IBV_WC_LOC_PROT_ERR, Status::IBV_WC_REM_OP_ERR),
                true,
            ),
        }
    }

    /// Leaves the payload in the lane: in the entry's own line, or beside it. The target's poll places it.
    #[inline]
    fn send_eagerly(&mut self, kind: Kind, mover: &mut Mover<'_>) -> (Status, bool) {
        let total = self.total as usize;
        let mut words = [0u64; lane::IN_ENTRY / 8];
        let payload = match total {
            0 => Payload::Placed,
            1..=lane::IN_ENTRY => Payload::InEntry(words),
            _ => Payload::Beside,
        };
        let to = match payload {
            Payload::Beside => self
                .out
                .beside(self.out.producer.next_slot(1 << self.out.order)),
            _ => words.as_mut_ptr().cast(),
        };
        // SAFETY: local pieces were checked and are guarded by the send queue's lock; `to` has room for `total`.
        let copied = unsafe { self.transfer(Way::Out, &[(Target::Mapped(to), total)], mover) };
        if copied.is_err() {
            return (Status::IBV_WC_GENERAL_ERR, false);
        }
        let payload = if let Payload::InEntry(_) = payload {
            Payload::InEntry(words)
        } else {
            payload
        };
        self.tell(kind, payload);
        (Status::IBV_WC_SUCCESS, true)
    }

    fn write(&mut self, mover: &mut Mover<'_>) -> (Status, bool) {
        if self.total > 0 {
            let target = match self.remote(
                self.work.rkey,
                self.work.raddr,
                self.total,
                REMOTE_WRITE,
                self.qp_allows(REMOTE_WRITE),
            ) {
                Ok((target, _)) => target,
                Err(region::Refused) => return (self.fatal(), true),
            };
            if let Err(error) =
                // SAFETY: the target was checked under the hazard.
                unsafe { self.transfer(Way::Out, &[(target, self.total as usize)], mover) }
            {
                return self.copy_failed(&error);
            }
        }
        if self.work.op == Op::WriteImm {
            self.tell(Kind::WriteImm, Payload::Placed);
        }
        (Status::IBV_WC_SUCCESS, self.work.op == Op::WriteImm)
    }

    fn read(&mut self, mover: &mut Mover<'_>) -> (Status, bool) {
        if self.total > 0 {
            let target = match self.remote(
                self.work.rkey,
                self.work.raddr,
                self.total,
                REMOTE_READ,
                self.qp_allows(REMOTE_READ),
            ) {
                Ok((target, _)) => target,
                Err(region::Refused) => return (self.fatal(), true),
            };
            // What this queue pair stored before is visible before the read takes place.
            fence(Ordering::SeqCst);
            if let Err(error) =
                // SAFETY: the target was checked under the hazard.
                unsafe { self.transfer(Way::In, &[(target, self.total as usize)], mover) }
            {
                return self.copy_failed(&error);
            }
        }
        (Status::IBV_WC_SUCCESS, false)
    }

    fn copy_failed(&mut self, error: &std::io::Error) -> (Status, bool) {
        if error.raw_os_error() == Some(libc::ESRCH) {
            return (Status::IBV_WC_RETRY_EXC_ERR, false);
        }
        self.fatal();
        (Status::IBV_WC_REM_OP_ERR, true)
    }

    fn qp_allows(&self, need: u32) -> bool {
        self.advert.access.load(Ordering::Relaxed) & need != 0
    }

    /// # Safety
    ///
    /// The targets were resolved while the hazard is set, which it still is.
    unsafe fn transfer(
        &self,
        way: Way,
        remote: &[(Target, usize)],
        mover: &mut Mover<'_>,
    ) -> std::io::Result<()> {
        // SAFETY: local pieces lie in regions whose keys were checked under the send queue's lock, which `quiet::region`
        // takes before memory is given back; remote ones by the contract.
        unsafe { transfer(way, self.peer.incarnation.pid, self.local, remote, mover) }
    }

    /// Finds the memory that a key of the peer's names. Also: whether any peer has rights to that region.
    fn remote(
        &mut self,
        key: u32,
        addr: u64,
        len: u64,
        need: u32,
        allowed: bool,
    ) -> Result<(Target, bool), region::Refused> {
        let pd = self.advert.pd.load(Ordering::Relaxed);
        let mr = self.peer.segment.mr(region::index_of(key));
        let off = region::check(mr, key, pd, addr, len, need)?;
        if !allowed {
            return Err(region::Refused);
        }
        let shared = mr.access.load(Ordering::Relaxed) & REMOTE != 0;
        let there = mr.addr.load(Ordering::Relaxed).wrapping_add(off);
        if self.peer.own {
            return Ok((Target::Mapped(there as *mut u8), shared));
        }
        let arena = mr.arena.load(Ordering::Relaxed);
        if arena != 0 {
            let serial = mr.arena_serial.load(Ordering::Relaxed);
            let at = mr.arena_off.load(Ordering::Relaxed).wrapping_add(off);
            let writes = need & (REMOTE_WRITE | LOCAL_WRITE) != 0;
            if let Some(mapping) = self.out.arena(self.peer, arena - 1, serial)
                && (mapping.writable() || !writes)
                && at
                    .checked_add(len)
                    .is_some_and(|end| end <= mapping.len() as u64)
            {
                // SAFETY: in bounds of the mapping, which `self.out.arenas` keeps for the rest of the request.
                return Ok((
                    Target::Mapped(unsafe { mapping.as_ptr().add(at as usize) }),
                    shared,
                ));
            }
        }
        Ok((Target::Process(there), shared))
    }

    /// The next receive entry's memory, resolved; or the status with which that receive fails.
    fn scatter(&mut self) -> Result<Scatter, Status> {
        let order = self.advert.recv_order.load(Ordering::Relaxed) & 31;
        let stride = u64::from(self.advert.recv_stride.load(Ordering::Relaxed));
        let slot = self.out.claimed & ((1 << order) - 1);
        let off = self
            .advert
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

    #[inline]
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
        let (target, shared) = self.remote(key, addr, len, LOCAL_WRITE, true)?;
        scatter.unshared &= !shared;
        scatter.targets.push((target, len as usize));
        Ok(len)
    }

    /// Pushes the entry that takes the next receive.
    #[inline]
    fn tell(&mut self, kind: Kind, payload: Payload) {
        let entry = Entry {
            kind,
            solicited: self.work.flags & SOLICITED != 0,
            payload,
            byte_len: self.total as u32,
            imm: self.work.imm,
            index: self.out.claimed,
        };
        self.out.claimed += 1;
        self.out.push(&entry);
    }

    /// Completes the next receive of the peer with an error.
    fn fail_receive(&mut self, theirs: Status, ours: Status) -> Status {
        let entry = Entry {
            kind: Kind::Error,
            solicited: true,
            payload: Payload::Placed,
            byte_len: 0,
            imm: theirs.0,
            index: self.out.claimed,
        };
        self.out.claimed += 1;
        self.out.push(&entry);
        self.out.head().fatal.store(1, Ordering::Release);
        ours
    }

    /// A remote access was refused: both queue pairs go to the error state.
    fn fatal(&mut self) -> Status {
        if self.out.producer.has_room(1 << self.out.order, || {
            self.advert.consumed.0.load(Ordering::Acquire)
        }) {
            let entry = Entry {
                kind: Kind::Fatal,
                solicited: true,
                payload: Payload::Placed,
                byte_len: 0,
                imm: Status::IBV_WC_REM_ACCESS_ERR.0,
                index: self.out.claimed,
            };
            self.out.push(&entry);
        }
        self.out.head().fatal.store(1, Ordering::Release);
        Status::IBV_WC_REM_ACCESS_ERR
    }
}
