//! Executing one work request: what the adapter of the initiator and that of the target would do, done by whoever posts.
//!
//! The order within a request: local keys, the peer's state, a receive entry, the remote key, the copy, the lane entry,
//! the wake-up. The hazard word is set before the peer's state is read and cleared after the last access.

use crate::atomic::{self, Update};
use crate::faults::{self, Step};
use crate::lane::{self, Entry, Kind, Payload};
use crate::layout::{QpAdvert, RecvSge};
use crate::link::{Link, OutLane, answers, more_posted, rnr_timer, wake};
use crate::os::incarnation::Incarnation;
use crate::peer::Peer;
use crate::qp::QpCore;
use crate::quiet;
use crate::region::{self, LOCAL_WRITE, REMOTE, REMOTE_ATOMIC, REMOTE_READ, REMOTE_WRITE};
use crate::send::Op;
use crate::transfer::{List, MAX_SGE, Mover, Piece, Target, Way, transfer};
use core::sync::atomic::{AtomicU64, Ordering};
use ibverbs_sys::{ibv_send_flags, ibv_sge, ibv_wc_status as Status};
use std::time::Duration;

const INLINE: u32 = ibv_send_flags::IBV_SEND_INLINE.0;
const SOLICITED: u32 = ibv_send_flags::IBV_SEND_SOLICITED.0;

/// What an injected "receiver not ready" says to wait.
const TICK: Duration = Duration::from_millis(1);

/// One work request, wherever it is stored.
pub(crate) struct Work<'a> {
    /// Position in the send queue.
    pub index: u64,
    pub wr_id: u64,
    pub op: Op,
    pub flags: u32,
    pub imm: u32,
    /// Compare (or add) and swap of an atomic.
    pub operands: [u64; 2],
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
    /// An injected delay.
    Delayed,
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
    let takes_entry = matches!(work.op, Op::Send | Op::SendImm | Op::WriteImm);
    match faults::hinders(qp.qpn, work.index, takes_entry) {
        None => {}
        Some(faults::Hindrance::Delay) => return Outcome::Wait(Reason::Delayed),
        Some(faults::Hindrance::ReceiverNotReady) => {
            return Outcome::Wait(Reason::Receiver { timer: TICK });
        }
    }
    if link.peer.dead.load(Ordering::Relaxed) {
        return Outcome::Done(Status::IBV_WC_RETRY_EXC_ERR, 0);
    }
    if link.lane.is_none() && link.attach(qp).is_none() {
        return unanswered(link);
    }
    let link_reads = link.reads;
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
    out.prune(peer);
    let hindered = if !takes_entry {
        None
    } else if !out
        .producer
        .has_room(1 << out.order, || advert.consumed.0.load(Ordering::Acquire))
    {
        Some(Reason::Peer)
    } else if out.claimed >= out.posted && !more_posted(out, advert) {
        let timer = rnr_timer(advert.min_rnr_timer.load(Ordering::Relaxed));
        Some(Reason::Receiver { timer })
    } else {
        None
    };
    if let Some(reason) = hindered {
        // A queue pair that is gone posts no receives any more.
        let here = answers(advert, *dest)
            && advert.lane_generation.load(Ordering::Relaxed) == out.generation
            && !peer.check_dead();
        return if here {
            Outcome::Wait(reason)
        } else {
            unanswered(link)
        };
    }
    if fetches(work.op) && (link_reads == 0 || advert.reads.load(Ordering::Relaxed) == 0) {
        // No READ or atomic can ever be outstanding.
        return Outcome::Done(Status::IBV_WC_LOC_QP_OP_ERR, 0);
    }
    if let Some(status) = faults::step(qp.qpn, Step::Checked) {
        return Outcome::Done(Status(status), 0);
    }
    let name = if matches!(work.op, Op::Send | Op::SendImm) {
        quiet::RECV
    } else {
        work.rkey & !quiet::RECV
    };
    out.op = out.op.wrapping_add(1);
    // A READ needs the full fence anyway: what this queue pair stored before is visible before it takes place.
    let fenced = out.fenced || fetches(work.op);
    quiet::enter(out.own(), out.op | 1 << 31, name, fenced);
    if !answers(advert, *dest) || advert.lane_generation.load(Ordering::Relaxed) != out.generation {
        quiet::leave(out.own());
        return unanswered(link);
    }
    let mut job = Job {
        qpn: qp.qpn,
        me: qp.process.me,
        peer,
        out,
        advert,
        work,
        local: local.as_slice(),
        total,
    };
    let ran = job.run(mover);
    quiet::leave(out.own());
    let (status, told) = match ran {
        Ok(told) => (Status::IBV_WC_SUCCESS, told),
        Err(Stop::Fail { status, told }) => (status, told),
        Err(Stop::Wait) => return Outcome::Wait(Reason::Peer),
    };
    let injected = faults::step(qp.qpn, Step::Left);
    if told {
        wake(
            peer,
            out,
            work.flags & SOLICITED != 0 || status != Status::IBV_WC_SUCCESS,
        );
    }
    match injected.or_else(|| faults::step(qp.qpn, Step::Woken)) {
        Some(status) => Outcome::Done(Status(status), total),
        None => Outcome::Done(status, total),
    }
}

/// Whether a request brings something back.
#[inline]
fn fetches(op: Op) -> bool {
    matches!(op, Op::Read | Op::CompareSwap | Op::FetchAdd)
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
    let need = if fetches(work.op) { LOCAL_WRITE } else { 0 };
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
    qpn: u32,
    me: Incarnation,
    peer: &'a Peer,
    out: &'a mut OutLane,
    advert: &'a QpAdvert,
    work: &'a Work<'a>,
    local: &'a [Piece],
    total: u64,
}

/// Why a request ends before its end.
enum Stop {
    /// It fails with this status; `told` if the peer's lane got an entry.
    Fail { status: Status, told: bool },
    /// It has to wait; nothing has happened.
    Wait,
}

impl Stop {
    fn silent(status: Status) -> Stop {
        Stop::Fail {
            status,
            told: false,
        }
    }
}

/// Whether the lane got an entry.
type Ran = Result<bool, Stop>;

/// The receive entry that a send takes.
struct Scatter {
    targets: List<(Target, usize)>,
    /// No peer holds a key to any of its memory, so the payload may wait in the lane.
    unshared: bool,
}

/// Memory of the peer that a key names.
struct Remote {
    target: Target,
    /// Some peer has rights to the region.
    shared: bool,
    /// The region lies in an arena that peers map writable: its atomics are the processor's.
    mapped: bool,
}

impl Job<'_> {
    fn run(&mut self, mover: &mut Mover<'_>) -> Ran {
        self.step(Step::Hazard)?;
        match self.work.op {
            Op::Send => self.send(Kind::Recv, mover),
            Op::SendImm => self.send(Kind::RecvImm, mover),
            Op::Write | Op::WriteImm => self.write(mover),
            Op::Read => self.read(mover),
            Op::CompareSwap | Op::FetchAdd => self.atomic(mover),
        }
    }

    #[inline]
    fn step(&self, step: Step) -> Result<(), Stop> {
        match faults::step(self.qpn, step) {
            None => Ok(()),
            Some(status) => Err(Stop::silent(Status(status))),
        }
    }

    fn send(&mut self, kind: Kind, mover: &mut Mover<'_>) -> Ran {
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
                return Err(self.fail_receive(theirs, ours));
            }
        };
        if scatter.unshared && self.total <= lane::BESIDE as u64 {
            return self.send_eagerly(kind, mover);
        }
        // SAFETY: the targets were checked under the hazard.
        let copied = unsafe { self.transfer(Way::Out, scatter.targets.as_slice(), mover) };
        match copied {
            Ok(()) => self.tell(kind, Payload::Placed),
            Err(error) if error.raw_os_error() == Some(libc::ESRCH) => {
                Err(Stop::silent(Status::IBV_WC_RETRY_EXC_ERR))
            }
            Err(_) => {
                Err(self.fail_receive(Status::IBV_WC_LOC_PROT_ERR, Status::IBV_WC_REM_OP_ERR))
            }
        }
    }

    /// Leaves the payload in the lane: in the entry's own line, or beside it. The target's poll places it.
    #[inline]
    fn send_eagerly(&mut self, kind: Kind, mover: &mut Mover<'_>) -> Ran {
        let total = self.total as usize;
        let mut words = [0u64; lane::IN_ENTRY / 8];
        let beside = total > lane::IN_ENTRY;
        let to = if beside {
            self.out
                .beside(self.out.producer.next_slot(1 << self.out.order))
        } else {
            words.as_mut_ptr().cast()
        };
        // SAFETY: local pieces were checked and are guarded by the send queue's lock; `to` has room for `total`.
        let copied = unsafe { self.transfer(Way::Out, &[(Target::Mapped(to), total)], mover) };
        if copied.is_err() {
            return Err(Stop::silent(Status::IBV_WC_GENERAL_ERR));
        }
        self.tell(
            kind,
            match total {
                0 => Payload::Placed,
                _ if beside => Payload::Beside,
                _ => Payload::InEntry(words),
            },
        )
    }

    fn write(&mut self, mover: &mut Mover<'_>) -> Ran {
        if self.total > 0 {
            let target = self.one_sided(REMOTE_WRITE)?.target;
            // SAFETY: the target was checked under the hazard.
            let copied =
                unsafe { self.transfer(Way::Out, &[(target, self.total as usize)], mover) };
            copied.map_err(|error| self.copy_failed(&error))?;
        }
        if self.work.op == Op::WriteImm {
            return self.tell(Kind::WriteImm, Payload::Placed);
        }
        self.step(Step::Copied)?;
        Ok(false)
    }

    fn read(&mut self, mover: &mut Mover<'_>) -> Ran {
        if self.total > 0 {
            let target = self.one_sided(REMOTE_READ)?.target;
            // SAFETY: the target was checked under the hazard.
            let copied = unsafe { self.transfer(Way::In, &[(target, self.total as usize)], mover) };
            copied.map_err(|error| self.copy_failed(&error))?;
        }
        self.step(Step::Copied)?;
        Ok(false)
    }

    /// See [`crate::atomic`] for the two ways.
    fn atomic(&mut self, mover: &mut Mover<'_>) -> Ran {
        if !self.work.raddr.is_multiple_of(8) {
            return Err(self.fatal(Status::IBV_WC_REM_INV_REQ_ERR));
        }
        let remote = self.one_sided(REMOTE_ATOMIC)?;
        let [a, b] = self.work.operands;
        let update = match self.work.op {
            Op::CompareSwap => Update::CompareSwap {
                compare: a,
                swap: b,
            },
            _ => Update::FetchAdd(a),
        };
        let old = match remote.target {
            Target::Mapped(word) if remote.mapped && word.addr().is_multiple_of(8) => {
                // SAFETY: eight mapped, aligned bytes, checked under the hazard; atomics only.
                update.execute(unsafe { &*word.cast::<AtomicU64>() })
            }
            target => {
                let page = self.peer.lock_page().map_err(|_| Stop::Wait)?;
                let held =
                    atomic::lock(page.locks(), self.work.raddr, self.me).ok_or(Stop::Wait)?;
                // SAFETY: the target was checked under the hazard.
                let done = unsafe { self.update(update, target) };
                drop(held);
                done.map_err(|error| self.copy_failed(&error))?
            }
        };
        let mut old = old;
        let from = [(Target::Mapped((&raw mut old).cast()), 8)];
        // SAFETY: eight bytes on the stack into local pieces of eight bytes (the post checked that).
        let copied = unsafe { self.transfer(Way::In, &from, mover) };
        copied.map_err(|error| self.copy_failed(&error))?;
        self.step(Step::Copied)?;
        Ok(false)
    }

    /// Reads a word of the peer's and writes it back updated; the word's lock is held.
    ///
    /// # Safety
    ///
    /// The target was resolved while the hazard is set, which it still is.
    unsafe fn update(&self, update: Update, target: Target) -> std::io::Result<u64> {
        let mut word = 0u64;
        let piece = [Piece {
            ptr: (&raw mut word).cast(),
            len: 8,
        }];
        let pid = self.peer.incarnation.pid;
        // SAFETY: a word on the stack, and a target of eight bytes by contract.
        unsafe { transfer(Way::In, pid, &piece, &[(target, 8)], &mut Mover::Now)? };
        if let Some(mut new) = update.of(word) {
            let piece = [Piece {
                ptr: (&raw mut new).cast(),
                len: 8,
            }];
            // SAFETY: as above.
            unsafe { transfer(Way::Out, pid, &piece, &[(target, 8)], &mut Mover::Now)? };
        }
        Ok(word)
    }

    fn copy_failed(&mut self, error: &std::io::Error) -> Stop {
        if error.raw_os_error() == Some(libc::ESRCH) {
            return Stop::silent(Status::IBV_WC_RETRY_EXC_ERR);
        }
        self.fatal(Status::IBV_WC_REM_OP_ERR)
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
        let by_process = |target: &(Target, usize)| matches!(target.0, Target::Process(_));
        if remote.iter().any(by_process) && self.peer.check_dead() {
            // Its pid may be another's by now.
            return Err(std::io::Error::from_raw_os_error(libc::ESRCH));
        }
        // SAFETY: local pieces lie in regions whose keys were checked under the send queue's lock, which `quiet::region`
        // takes before memory is given back; remote ones by the contract.
        unsafe { transfer(way, self.peer.incarnation.pid, self.local, remote, mover) }
    }

    /// The memory that a one-sided request names; refused, both queue pairs fail. What the queue pair does not allow is an
    /// invalid request, what the key does not is a violation of access (IBTA 9.7.5.2.4, and rxe agrees).
    fn one_sided(&mut self, need: u32) -> Result<Remote, Stop> {
        if self.advert.access.load(Ordering::Relaxed) & need == 0 {
            return Err(self.fatal(Status::IBV_WC_REM_INV_REQ_ERR));
        }
        let found = self.remote(self.work.rkey, self.work.raddr, self.total, need);
        found.map_err(|region::Refused| self.fatal(Status::IBV_WC_REM_ACCESS_ERR))
    }

    /// Finds the memory that a key of the peer's names.
    fn remote(
        &mut self,
        key: u32,
        addr: u64,
        len: u64,
        need: u32,
    ) -> Result<Remote, region::Refused> {
        let pd = self.advert.pd.load(Ordering::Relaxed);
        let mr = self.peer.segment.mr(region::index_of(key));
        let off = region::check(mr, key, pd, addr, len, need)?;
        let shared = mr.access.load(Ordering::Relaxed) & REMOTE != 0;
        let there = mr.addr.load(Ordering::Relaxed).wrapping_add(off);
        let arena = mr.arena.load(Ordering::Relaxed);
        let serial = mr.arena_serial.load(Ordering::Relaxed);
        if self.peer.own {
            let mapped = arena != 0 && self.peer.maps_writable(arena - 1);
            return Ok(Remote {
                target: Target::Mapped(there as *mut u8),
                shared,
                mapped,
            });
        }
        if arena != 0 {
            let at = mr.arena_off.load(Ordering::Relaxed).wrapping_add(off);
            let writes = need & (REMOTE_WRITE | REMOTE_ATOMIC | LOCAL_WRITE) != 0;
            if let Some(mapping) = self.out.arena(self.peer, arena - 1, serial)
                && (mapping.writable() || !writes)
                && at
                    .checked_add(len)
                    .is_some_and(|end| end <= mapping.len() as u64)
            {
                return Ok(Remote {
                    // SAFETY: in bounds of the mapping, which `self.out.arenas` keeps for the rest of the request.
                    target: Target::Mapped(unsafe { mapping.as_ptr().add(at as usize) }),
                    shared,
                    mapped: mapping.writable(),
                });
            }
        }
        Ok(Remote {
            target: Target::Process(there),
            shared,
            mapped: false,
        })
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
        let remote = self.remote(key, addr, len, LOCAL_WRITE)?;
        scatter.unshared &= !remote.shared;
        scatter.targets.push((remote.target, len as usize));
        Ok(len)
    }

    /// Pushes the entry that takes the next receive.
    #[inline]
    fn tell(&mut self, kind: Kind, payload: Payload) -> Ran {
        self.step(Step::Copied)?;
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
        match faults::step(self.qpn, Step::Told) {
            None => Ok(true),
            Some(status) => Err(Stop::Fail {
                status: Status(status),
                told: true,
            }),
        }
    }

    /// Completes the next receive of the peer with an error.
    fn fail_receive(&mut self, theirs: Status, ours: Status) -> Stop {
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
        self.out.fail_peer();
        Stop::Fail {
            status: ours,
            told: true,
        }
    }

    /// A remote access was refused: both queue pairs go to the error state.
    fn fatal(&mut self, status: Status) -> Stop {
        if self.out.producer.has_room(1 << self.out.order, || {
            self.advert.consumed.0.load(Ordering::Acquire)
        }) {
            let entry = Entry {
                kind: Kind::Fatal,
                solicited: true,
                payload: Payload::Placed,
                byte_len: 0,
                imm: status.0,
                index: self.out.claimed,
            };
            self.out.push(&entry);
        }
        self.out.fail_peer();
        Stop::Fail { status, told: true }
    }
}
