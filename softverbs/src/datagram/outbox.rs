//! Sending datagrams.

use super::MTU;
use super::mailbox::{Label, Mailbox};
use crate::execute::{Outcome, Reason, Work, local_pieces};
use crate::faults::{self, Hindrance, Step};
use crate::layout::QpAdvert;
use crate::link::Bell;
use crate::peer::Peer;
use crate::process::Process;
use crate::qp::QpCore;
use crate::qp_state::{Service, State};
use crate::region;
use crate::segment::Shared;
use crate::send::Op;
use crate::srq::SharedQueue;
use crate::transfer::{List, Mover, Piece, Target, Way, transfer};
use core::sync::atomic::{Ordering, fence};
use ibverbs_sys::{ibv_send_flags, ibv_wc_status as Status};
use std::sync::Arc;

/// Destinations that a queue pair keeps at hand.
const KEPT: usize = 64;

/// A key with this bit stands for the queue pair's own (IBTA 10.2.5).
const OWN_KEY: u32 = 1 << 31;

/// The destinations that a queue pair has sent to.
#[derive(Default)]
pub(crate) struct Outboxes(Vec<Outbox>);

impl Outboxes {
    /// The destination, if there is a process that has it.
    fn find(&mut self, process: &'static Process, qpn: u32) -> Option<&mut Outbox> {
        self.0.retain(|out| !out.peer.dead.load(Ordering::Relaxed));
        let at = match self.0.iter().position(|out| out.qpn == qpn) {
            Some(at) => at,
            None => {
                // One that may not be reached is as good as none: nobody answers for a datagram.
                let peer = process.peer_of(qpn).ok()??;
                if self.0.len() >= KEPT {
                    self.0.clear();
                }
                self.0.push(Outbox {
                    qpn,
                    advert: peer.segment.share(|s| s.qp(qpn as usize)),
                    peer,
                    attached: None,
                });
                self.0.len() - 1
            }
        };
        self.0.get_mut(at)
    }
}

/// The way to one queue pair.
struct Outbox {
    qpn: u32,
    peer: Arc<Peer>,
    advert: Shared<QpAdvert>,
    attached: Option<Attached>,
}

/// Its mailbox, attached.
struct Attached {
    /// Which of the mailboxes that the queue pair has had.
    generation: u64,
    mailbox: Arc<Mailbox>,
    bell: Bell,
    shared: Option<SharedQueue>,
}

impl Outbox {
    /// Whether the queue pair takes datagrams with this key.
    fn takes(&self, qkey: u32) -> bool {
        let advert = &*self.advert;
        State::receives(advert.state.load(Ordering::Acquire))
            && advert.qpn.load(Ordering::Relaxed) == self.qpn
            && advert.service.load(Ordering::Relaxed) == Service::Ud as u32
            && advert.mail.0.qkey.load(Ordering::Relaxed) == qkey
    }

    fn attach(&mut self) -> Option<&mut Attached> {
        let advert = &*self.advert;
        let generation = advert.lane_generation.load(Ordering::Acquire);
        if self
            .attached
            .as_ref()
            .is_none_or(|a| a.generation != generation)
        {
            self.attached = None;
            let index = self.qpn as usize % crate::layout::MAX_QP;
            let mailbox = self.peer.mailbox(index as u32, generation)?;
            let shared = match advert.srq.load(Ordering::Relaxed).checked_sub(1) {
                None => None,
                Some(srq) => Some(SharedQueue::attach(&self.peer, srq, index)?),
            };
            let recv_cq = advert.recv_cq.load(Ordering::Relaxed);
            fence(Ordering::Acquire);
            if advert.lane_generation.load(Ordering::Relaxed) != generation {
                return None;
            }
            self.attached = Some(Attached {
                generation,
                mailbox,
                bell: Bell::new(&self.peer, recv_cq),
                shared,
            });
        }
        self.attached.as_mut()
    }

    /// Claims a place for a message, if there is a receive for it; whether that is long enough, its owner sees.
    fn claim(&mut self, pid: u32) -> Option<u64> {
        self.attach()?;
        let (advert, peer) = (&*self.advert, &self.peer);
        let Attached {
            mailbox, shared, ..
        } = self.attached.as_ref()?;
        let head = advert.consumed.0.load(Ordering::Acquire);
        let left = advert.mail.0.left.load(Ordering::Relaxed) != 0;
        if let Some(shared) = shared {
            let waiting = mailbox.first(head) - head;
            let any = shared.has_more_than(peer, waiting);
            return any.then(|| mailbox.claim(head, pid, left, |_, _| true))?;
        }
        let skipped = advert.mail.0.skipped.load(Ordering::Acquire);
        let posted = advert.posted.0.load(Ordering::Acquire);
        mailbox.claim(head, pid, left, |place, over| {
            let index = place.wrapping_sub(skipped).wrapping_sub(over);
            index < posted
        })
    }
}

/// Executes a request on a queue pair for datagrams: sends it, or drops it.
#[inline(never)]
pub(crate) fn execute(
    qp: &QpCore,
    outboxes: &mut Outboxes,
    work: &Work<'_>,
    mover: &mut Mover<'_>,
) -> Outcome {
    if !matches!(work.op, Op::Send | Op::SendImm) {
        return Outcome::Done(Status::IBV_WC_LOC_QP_OP_ERR, 0);
    }
    let mut local = List::new();
    let total = match local_pieces(qp, work, &mut local) {
        Ok(total) => total,
        Err(region::Refused) => return Outcome::Done(Status::IBV_WC_LOC_PROT_ERR, 0),
    };
    let sent = Outcome::Done(Status::IBV_WC_SUCCESS, total as u32);
    match faults::hinders(qp.qpn, work.index, true) {
        None => {}
        Some(Hindrance::Delay) => return Outcome::Wait(Reason::Delayed),
        Some(Hindrance::ReceiverNotReady) => return sent,
    }
    if let Some(status) = faults::step(qp.qpn, Step::Checked) {
        return Outcome::Done(Status(status), 0);
    }
    // Of a message that is too long nothing is sent, and that is no error either (IBTA C10-93.1.1, and rxe agrees).
    if total > MTU as u64 {
        return sent;
    }
    match deliver(qp, outboxes, work, local.as_slice(), total as usize, mover) {
        None => sent,
        Some(status) => Outcome::Done(Status(status), 0),
    }
}

/// Sends a datagram, or drops it. `Some`: an injected failure.
fn deliver(
    qp: &QpCore,
    outboxes: &mut Outboxes,
    work: &Work<'_>,
    local: &[Piece],
    len: usize,
    mover: &mut Mover<'_>,
) -> Option<u32> {
    let (qpn, key, address) = (work.raddr as u32, work.rkey, work.operands[0]);
    let qkey = match key & OWN_KEY {
        0 => key,
        _ => qp.own.mail.0.qkey.load(Ordering::Relaxed),
    };
    let out = outboxes.find(qp.process, qpn)?;
    if !out.takes(qkey) {
        return None;
    }
    let pid = qp.process.me.pid;
    let place = out.claim(pid)?;
    let fenced =
        qp.process.fenced() || out.peer.segment.header().fence.load(Ordering::Relaxed) != 0;
    let Attached { mailbox, bell, .. } = out.attached.as_mut()?;
    let mut label = Label {
        from: qp.qpn,
        len: len as u32,
        imm: (work.op == Op::SendImm).then_some(work.imm),
        address,
        void: false,
    };
    let step = |step| faults::step(qp.qpn, step);
    let mut failed = step(Step::Hazard);
    if failed.is_none() {
        let to = [(Target::Mapped(mailbox.payload(place)), len)];
        // SAFETY: local pieces were checked and are guarded by the send queue's lock; the place is ours until it is filled.
        let copied = unsafe { transfer(Way::Out, pid, local, &to, mover) };
        failed = match copied {
            Ok(()) => step(Step::Copied),
            Err(_) => Some(Status::IBV_WC_GENERAL_ERR.0),
        };
    }
    // A place that was claimed is always filled, if only to say that there is nothing.
    label.void = failed.is_some();
    mailbox.fill(place, pid, &label);
    let failed = failed
        .or_else(|| step(Step::Told))
        .or_else(|| step(Step::Left));
    let solicited = work.flags & ibv_send_flags::IBV_SEND_SOLICITED.0 != 0;
    bell.ring(&out.peer, fenced, solicited);
    failed.or_else(|| step(Step::Woken))
}
