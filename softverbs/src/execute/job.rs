//! What a request does to the peer, while the hazard is set.

use super::reach::reach;
use super::target::Refused;
use super::{SOLICITED, Work};
use crate::faults::{self, Step};
use crate::lane::{self, Entry, Kind, Payload};
use crate::link::OutLane;
use crate::os::errno;
use crate::peer::Peer;
use crate::qp::QpCore;
use crate::qp_state::Service;
use crate::region::{REMOTE_READ, REMOTE_WRITE};
use crate::send::Op;
use crate::transfer::{Mover, Piece, Target, Way};
use core::sync::atomic::Ordering;
use ibverbs_sys::ibv_wc_status as Status;
use std::io;

/// One request with everything it needs; lives while the hazard is set.
pub(super) struct Job<'a> {
    pub qp: &'a QpCore,
    pub peer: &'a Peer,
    pub out: &'a mut OutLane,
    pub work: &'a Work<'a>,
    pub local: &'a [Piece],
    pub total: u64,
    /// The receive entry that it takes, if it takes one.
    pub index: u64,
}

/// Why a request ends before its end.
pub(super) enum Stop {
    /// It fails with this status; `told` if the peer's lane got an entry.
    Fail { status: Status, told: bool },
    /// It has to wait; nothing has happened.
    Wait,
}

impl Stop {
    /// A failure of which the peer learns nothing.
    pub fn silent(status: Status) -> Stop {
        Stop::Fail {
            status,
            told: false,
        }
    }
}

/// Whether the lane got an entry.
pub(super) type Ran = Result<bool, Stop>;

impl Job<'_> {
    #[inline(always)]
    pub fn run(&mut self, mover: &mut Mover<'_>) -> Ran {
        self.step(Step::Hazard)?;
        match self.work.op {
            Op::Send => self.send(Kind::Recv, mover),
            Op::SendImm => self.send(Kind::RecvImm, mover),
            Op::Write | Op::WriteImm => self.write(mover),
            Op::Read => self.read(mover),
            Op::CompareSwap | Op::FetchAdd => self.atomic(mover),
        }
    }

    #[inline(always)]
    pub fn step(&self, step: Step) -> Result<(), Stop> {
        match faults::step(self.qp.qpn, step) {
            None => Ok(()),
            Some(status) => Err(Stop::silent(Status(status))),
        }
    }

    #[inline(always)]
    fn send(&mut self, kind: Kind, mover: &mut Mover<'_>) -> Ran {
        // Read after `posted`, which bounds what we take: entries posted later can only lower it.
        let eager = u64::from(self.out.advert.eager.load(Ordering::Relaxed));
        if self.total <= eager.min(lane::BESIDE as u64) {
            self.send_eagerly(kind, mover)
        } else {
            self.send_placed(kind, mover)
        }
    }

    /// Copies the payload to where the receive entry wants it.
    #[inline(never)]
    fn send_placed(&mut self, kind: Kind, mover: &mut Mover<'_>) -> Ran {
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
            Err(error) if errno(&error) == Some(libc::ESRCH) => {
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
            self.out.beside()
        } else {
            words.as_mut_ptr().cast()
        };
        // SAFETY: local pieces were checked and are guarded by the send queue's lock; `to` has room for `total`.
        let copied = unsafe { self.transfer(Way::Out, &[(Target::Mapped(to), total)], mover) };
        if copied.is_err() {
            return Err(Stop::silent(Status::IBV_WC_GENERAL_ERR));
        }
        match total {
            0 => self.tell(kind, Payload::Placed),
            _ if beside => self.tell(kind, Payload::Beside),
            _ => self.tell(kind, Payload::InEntry(words)),
        }
    }

    #[inline(always)]
    fn write(&mut self, mover: &mut Mover<'_>) -> Ran {
        if self.total > 0 {
            let target = match self.one_sided(REMOTE_WRITE) {
                Ok(target) => target,
                Err(refused) => return Err(self.refused_write(refused)),
            };
            let to = [(target, self.total as usize)];
            // SAFETY: the target was checked under the hazard.
            let copied = unsafe { self.transfer(Way::Out, &to, mover) };
            copied.map_err(|error| self.copy_failed(&error))?;
        }
        if self.work.op == Op::WriteImm {
            return self.tell(Kind::WriteImm, Payload::Written(self.work.raddr));
        }
        self.step(Step::Copied)?;
        Ok(false)
    }

    /// A WRITE that the peer does not allow. One with immediate data takes its receive with it, as on Linux's rxe.
    #[cold]
    fn refused_write(&mut self, refused: Refused) -> Stop {
        match (refused, self.work.op) {
            (Refused::Key, Op::WriteImm) => {
                let status = Status::IBV_WC_REM_ACCESS_ERR;
                self.fail_receive(status, status)
            }
            (refused, _) => self.fatal(refused.status()),
        }
    }

    #[inline(always)]
    fn read(&mut self, mover: &mut Mover<'_>) -> Ran {
        if self.total > 0 {
            let target = self.one_sided(REMOTE_READ);
            let target = target.map_err(|refused| self.fatal(refused.status()))?;
            let from = [(target, self.total as usize)];
            // SAFETY: the target was checked under the hazard.
            let copied = unsafe { self.transfer(Way::In, &from, mover) };
            copied.map_err(|error| self.copy_failed(&error))?;
        }
        self.step(Step::Copied)?;
        Ok(false)
    }

    #[cold]
    pub fn copy_failed(&mut self, error: &io::Error) -> Stop {
        if errno(error) == Some(libc::ESRCH) {
            return Stop::silent(Status::IBV_WC_RETRY_EXC_ERR);
        }
        self.fatal(Status::IBV_WC_REM_OP_ERR)
    }

    /// # Safety
    ///
    /// The targets were resolved while the hazard is set, which it still is.
    #[inline(always)]
    pub unsafe fn transfer(
        &self,
        way: Way,
        remote: &[(Target, usize)],
        mover: &mut Mover<'_>,
    ) -> io::Result<()> {
        // Nearly all messages: one piece to one place in memory that is mapped.
        if let ([piece], [(Target::Mapped(there), _)], Mover::Now) = (self.local, remote, &*mover) {
            let (to, from) = match way {
                Way::Out => (*there, piece.ptr.cast_const()),
                Way::In => (piece.ptr, there.cast_const()),
            };
            // SAFETY: as below; the target has room for all bytes of the request.
            unsafe { Mover::Now.copy(to, from, piece.len) };
            return Ok(());
        }
        // SAFETY: by the contract.
        unsafe { self.transfer_list(way, remote, mover) }
    }

    /// # Safety
    ///
    /// As [`transfer`](Self::transfer).
    #[inline(never)]
    unsafe fn transfer_list(
        &self,
        way: Way,
        remote: &[(Target, usize)],
        mover: &mut Mover<'_>,
    ) -> io::Result<()> {
        // SAFETY: local pieces lie in regions whose keys were checked under the send queue's lock, which `quiet::region`
        // takes before memory is given back; remote ones by the contract.
        unsafe { reach(self.peer, way, self.local, remote, mover) }
    }

    /// Pushes the entry that takes the next receive.
    #[inline(always)]
    fn tell(&mut self, kind: Kind, payload: Payload) -> Ran {
        self.step(Step::Copied)?;
        let entry = Entry {
            kind,
            solicited: self.work.flags & SOLICITED != 0,
            payload,
            byte_len: self.total as u32,
            imm: self.work.imm,
            index: self.index,
        };
        self.out.claimed += 1;
        self.out.push(&entry);
        match faults::step(self.qp.qpn, Step::Told) {
            None => Ok(true),
            Some(status) => Err(Stop::Fail {
                status: Status(status),
                told: true,
            }),
        }
    }

    /// Completes the next receive of the peer with an error.
    #[cold]
    pub fn fail_receive(&mut self, theirs: Status, ours: Status) -> Stop {
        if self.qp.service == Service::Uc {
            return match theirs {
                // The receive's own fault: its owner hears of it, and the sender does not (as with Linux's rxe).
                Status::IBV_WC_LOC_PROT_ERR | Status::IBV_WC_LOC_LEN_ERR => {
                    self.spoil_receive(theirs)
                }
                _ => self.drop_message(theirs),
            };
        }
        self.out.fail_peer();
        match self.spoil_receive(theirs) {
            Stop::Fail { told, .. } => Stop::Fail { status: ours, told },
            wait => wait,
        }
    }

    /// The message is lost, of which nobody is told; but an entry of a shared queue that it has claimed completes.
    #[cold]
    fn drop_message(&mut self, theirs: Status) -> Stop {
        if self.out.shared.is_some() && self.work.op.takes_entry() {
            return self.spoil_receive(theirs);
        }
        Stop::silent(Status::IBV_WC_SUCCESS)
    }

    #[cold]
    fn spoil_receive(&mut self, theirs: Status) -> Stop {
        let entry = Entry {
            kind: Kind::Error,
            solicited: true,
            payload: Payload::Placed,
            byte_len: 0,
            imm: theirs.0,
            index: self.index,
        };
        self.out.claimed += 1;
        self.out.push(&entry);
        Stop::Fail {
            status: Status::IBV_WC_SUCCESS,
            told: true,
        }
    }

    /// A remote access was refused: of a reliable connection both queue pairs go to the error state.
    #[cold]
    pub fn fatal(&mut self, status: Status) -> Stop {
        if self.qp.service == Service::Uc {
            return self.drop_message(status);
        }
        if self.out.has_room() {
            let entry = Entry {
                kind: Kind::Fatal,
                solicited: true,
                payload: Payload::Placed,
                byte_len: 0,
                imm: status.0,
                index: self.index,
            };
            self.out.push(&entry);
        }
        self.out.fail_peer();
        Stop::Fail { status, told: true }
    }
}
