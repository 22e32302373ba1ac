//! The queue pair: what both its queues share, its life from RESET to destruction.
//!
//! The private state is authoritative; what the segment says is for peers. Lock order: completion queue, receive queue, send
//! queue; no lock is held while waiting for a peer, except a queue's own while it is being taken down.

mod attributes;

use crate::asynch::Helper;
use crate::cq::CqCore;
use crate::datagram::Inbox;
use crate::lane;
use crate::layout::{MAX_QP, QpAdvert};
use crate::link::Link;
use crate::lock::Lock;
use crate::os::errno;
use crate::peer::Peer;
use crate::process::Process;
use crate::qp_state::{Service, State};
use crate::quiet::{self, Producing};
use crate::recv::{Entries, RecvQueue};
use crate::send::SendQueue;
use crate::send_done::SendDones;
use crate::srq::{SrqCore, Told};
use crate::sync::Mutex;
use crate::take_in::{Arrivals, InLane};
use crate::{channel, device, refusal};
use core::cell::UnsafeCell;
use core::ffi::c_void;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering};
use ibverbs_sys::{ibv_qp_attr, ibv_qp_attr_mask as Mask, ibv_qp_state};
use std::io;
use std::os::fd::AsRawFd;
use std::sync::{Arc, Weak};

/// Lanes ever made by this process.
static LANES: AtomicU64 = AtomicU64::new(1);

/// A name for a lane, or a mailbox. Unique among processes too, as the peer says it back.
fn new_lane(process: &Process) -> u64 {
    let lane = LANES.fetch_add(1, Ordering::Relaxed) & 0xffff_ffff;
    u64::from(process.me.pid) << 32 | lane
}

/// Entries of a lane into a shared receive queue, which many queue pairs have, at most.
const SHARED_LANE: usize = 1024;

/// Capacities of a queue pair, as granted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Caps {
    pub send_wr: usize,
    pub recv_wr: usize,
    pub send_sge: usize,
    pub recv_sge: usize,
    pub inline: usize,
}

/// What a queue pair is made of.
pub(crate) struct Plan {
    pub service: Service,
    pub pd: u32,
    pub caps: Caps,
    pub sig_all: bool,
    pub send_cq: Arc<CqCore>,
    pub recv_cq: Arc<CqCore>,
    pub srq: Option<Arc<SrqCore>>,
}

pub(crate) struct QpCore {
    pub process: &'static Process,
    pub service: Service,
    pub qpn: u32,
    index: usize,
    /// Our own advertisement.
    pub own: &'static QpAdvert,
    pub pd: u32,
    pub caps: Caps,
    pub sig_all: bool,
    pub send_cq: Arc<CqCore>,
    pub recv_cq: Arc<CqCore>,
    /// Where receives come from, if not from a queue of its own.
    pub srq: Option<Arc<SrqCore>>,
    me: Weak<QpCore>,
    state: AtomicU32,
    attr: Mutex<ibv_qp_attr>,
    pub send: Lock<SendQueue>,
    pub recv: Lock<RecvQueue>,
    /// Completions of the send queue, and how many of its slots polling has freed.
    pub send_dones: SendDones,
    pub sent: AtomicU64,
    /// Work waits, or must be flushed: calls on the queue pair look after it.
    pub attention: AtomicBool,
    /// In the error state, but a peer is in the middle of a copy: the watcher waits for it.
    pub unquiet: AtomicBool,
    /// A message has come before RTS, and an event tells so; see [`established`](Self::established).
    pub greeted: AtomicBool,
    /// Somebody is at work on the next place of the mailbox: the watcher looks when that has ended.
    pub mail_blocked: AtomicBool,
    pub entries: Entries,
    /// Who may be at work on receives, if anybody is connected.
    producing: Mutex<Option<Producing>>,
    /// What arrives: used under the lock of `recv_cq` only.
    pub arrivals: UnsafeCell<Arrivals>,
    /// The advertisement of the queue pair that produces for our lane, null without a lane.
    producer: AtomicPtr<QpAdvert>,
    /// The context's helper, in the asynchronous mode.
    pub helper: Option<Arc<Helper>>,
    /// The `ibv_qp` that callers hold.
    pub handle: AtomicPtr<c_void>,
}

// SAFETY: `arrivals` is used under the lock of the completion queue only; everything else is `Sync`.
unsafe impl Sync for QpCore {}

impl QpCore {
    /// A queue pair in RESET.
    pub fn new(
        process: &'static Process,
        plan: Plan,
        helper: Option<Arc<Helper>>,
    ) -> io::Result<Arc<QpCore>> {
        let Plan {
            service,
            pd,
            caps,
            sig_all,
            send_cq,
            recv_cq,
            srq,
        } = plan;
        let full = || io::Error::from_raw_os_error(libc::ENOMEM);
        let entries = Entries::new(process, &caps)?;
        let Some(index) = process.take_qp() else {
            process.give_recv(entries.off, entries.len);
            return Err(full());
        };
        let qpn = process.qpn(index);
        let advert: &'static QpAdvert = process.segment.qp(index);
        advert.state.store(State::Reset as u32, Ordering::Relaxed);
        advert.pd.store(pd, Ordering::Relaxed);
        advert.service.store(service as u32, Ordering::Relaxed);
        advert.recv_cq.store(recv_cq.index, Ordering::Relaxed);
        match &srq {
            Some(srq) => srq.advertise(advert),
            None => {
                entries.advertise(advert);
                advert.srq.store(0, Ordering::Relaxed);
            }
        }
        advert.eager.store(eager(&srq), Ordering::Relaxed);
        advert.posted.0.store(0, Ordering::Relaxed);
        advert.consumed.0.store(0, Ordering::Relaxed);
        advert.hazard.0.store(0, Ordering::Relaxed);
        advert.word.0.fatal.store(0, Ordering::Relaxed);
        advert.word.0.parked.store(0, Ordering::Relaxed);
        advert.qpn.store(qpn, Ordering::Release);
        let qp = Arc::new_cyclic(|me| QpCore {
            me: me.clone(),
            process,
            service,
            qpn,
            index,
            own: advert,
            pd,
            caps,
            sig_all,
            send: Lock::new(SendQueue::new(&caps)),
            recv: Lock::new(RecvQueue::new(&caps)),
            send_dones: SendDones::new(caps.send_wr),
            sent: AtomicU64::new(0),
            state: AtomicU32::new(State::Reset as u32),
            attr: Mutex::new(ibv_qp_attr::default()),
            attention: AtomicBool::new(false),
            unquiet: AtomicBool::new(false),
            greeted: AtomicBool::new(false),
            mail_blocked: AtomicBool::new(false),
            entries,
            producing: Mutex::default(),
            arrivals: UnsafeCell::default(),
            producer: AtomicPtr::default(),
            helper,
            handle: AtomicPtr::default(),
            send_cq,
            recv_cq,
            srq,
        });
        qp.send_cq.add(&qp);
        qp.recv_cq.add(&qp);
        process.add_qp(&qp);
        if let Some(srq) = &qp.srq {
            srq.add(&qp);
        }
        Ok(qp)
    }

    #[inline]
    pub fn state(&self) -> State {
        State::from_u32(self.state.load(Ordering::Acquire)).unwrap_or(State::Err)
    }

    /// A transition, unless the queue pair has failed meanwhile.
    fn set_state(&self, from: State, to: State) -> Result<(), i32> {
        let (old, new) = (from as u32, to as u32);
        let swapped = self
            .state
            .compare_exchange(old, new, Ordering::AcqRel, Ordering::Relaxed);
        swapped.map_err(|_| libc::EINVAL)?;
        let advert = &self.own.state;
        advert.store(new, Ordering::Release);
        if self.state() == State::Err {
            // It failed just now; whoever did that may have advertised it before us.
            advert.store(State::Err as u32, Ordering::Release);
        }
        Ok(())
    }

    /// Which of the process's queue pairs this is.
    pub fn index(&self) -> usize {
        self.index
    }

    #[inline]
    pub fn attention(&self) -> bool {
        self.attention.load(Ordering::Relaxed)
    }

    /// Work waits, or must be flushed.
    pub fn needs_attention(&self) {
        self.attention.store(true, Ordering::Release);
        self.send_cq.note(self.index);
        if !Arc::ptr_eq(&self.send_cq, &self.recv_cq) {
            self.recv_cq.note(MAX_QP + self.index);
        }
    }

    /// What the peer says as the producer of our lane: that this queue pair must fail.
    #[inline]
    pub fn peer_says_fatal(&self) -> bool {
        self.producer().is_some_and(|theirs| {
            let fatal = theirs.word.0.fatal.load(Ordering::Acquire);
            // Of this very lane, by this very queue pair: the entry may be another's by now.
            fatal != 0
                && fatal == self.own.lane_generation.load(Ordering::Relaxed)
                && theirs.qpn.load(Ordering::Relaxed) == self.own.peer_qpn.load(Ordering::Relaxed)
        })
    }

    /// The producer's advertisement. Callers hold the send or the receive lock.
    #[inline]
    pub fn producer(&self) -> Option<&QpAdvert> {
        let theirs = self.producer.load(Ordering::Acquire);
        // SAFETY: the peer's segment stays mapped as long as the receive queue holds the lane; callers hold the send or
        // the receive lock, and `detach` takes both before it lets go. Atomics only.
        unsafe { theirs.as_ref() }
    }

    /// To the error state, and tell whoever waits. The flush completions come from the next polls.
    pub fn fail(&self) {
        let before = self.state.swap(State::Err as u32, Ordering::AcqRel);
        if before == State::Err as u32 {
            return;
        }
        self.own.state.store(State::Err as u32, Ordering::Release);
        self.needs_attention();
        self.send_cq.wake_own(true);
        if !Arc::ptr_eq(&self.send_cq, &self.recv_cq) {
            self.recv_cq.wake_own(true);
        }
        if self.srq.is_some()
            && let Some(me) = self.me.upgrade()
        {
            // It tells when the last receive was taken from the shared queue.
            self.process.watcher.wait_for(&me);
        }
    }

    /// After a send that has failed: an unreliable service goes on receiving, a reliable one has failed altogether
    /// (IBTA 10.3.1; Linux's rxe knows only the latter).
    pub fn fail_sends(&self) {
        if self.service == Service::Rc {
            return self.fail();
        }
        for from in [State::Rts, State::Sqd] {
            if self.set_state(from, State::Sqe).is_ok() {
                self.needs_attention();
                self.send_cq.wake_own(true);
                return;
            }
        }
    }

    /// `ibv_query_qp`.
    pub fn query(&self) -> ibv_qp_attr {
        self.take_in_fatal();
        let mut attr = *self.attr.lock();
        attr.sq_draining = self.send.lock().is_draining().into();
        attr.qp_state = ibv_qp_state(self.state() as u32);
        attr.cur_qp_state = attr.qp_state;
        attr
    }

    fn take_in_fatal(&self) {
        let _send = self.send.lock();
        if self.peer_says_fatal() && State::receives(self.state() as u32) {
            self.fail();
        }
    }

    /// `ibv_modify_qp`, with an errno on failure.
    pub fn modify(self: &Arc<Self>, new: &ibv_qp_attr, mask: u32) -> Result<(), i32> {
        self.take_in_fatal();
        let mut attr = self.attr.lock();
        let from = self.state();
        let to = match mask & Mask::IBV_QP_STATE.0 {
            0 => from,
            _ => State::from_verbs(new.qp_state).ok_or(libc::EINVAL)?,
        };
        if mask & Mask::IBV_QP_CUR_STATE.0 != 0 && new.cur_qp_state.0 != from as u32 {
            return Err(libc::EINVAL);
        }
        if !crate::qp_state::allowed(self.service, from, to, mask) {
            return Err(libc::EINVAL);
        }
        let mut next = *attr;
        attributes::merge(&mut next, new, mask)?;
        match to {
            State::Reset => {
                self.detach()
                    .map_err(|e| errno(&e).unwrap_or(libc::EBUSY))?;
                next = ibv_qp_attr::default();
            }
            State::Err => self.fail(),
            State::Rtr if from == State::Init => {
                self.advertise_rights(&next);
                match self.service {
                    Service::Ud => self.ready_for_datagrams()?,
                    _ => self.ready_to_receive(&next)?,
                }
            }
            State::Sqd if from == State::Rts => {
                let notify = mask & Mask::IBV_QP_EN_SQD_ASYNC_NOTIFY.0 != 0;
                self.drain(notify && new.en_sqd_async_notify != 0)?;
            }
            _ => {
                self.advertise_rights(&next);
                self.set_sending(from, to, &next)?;
            }
        }
        *attr = next;
        Ok(())
    }

    /// A transition that the send queue takes part in.
    fn set_sending(
        self: &Arc<Self>,
        from: State,
        to: State,
        attr: &ibv_qp_attr,
    ) -> Result<(), i32> {
        if from == State::Rtr && to == State::Rts {
            self.look_for_greeting();
        }
        let mut send = self.send.lock();
        // What is under way has the old attributes, so nothing may be (as rxe has it).
        if from == State::Sqd && send.is_draining() {
            return Err(libc::EINVAL);
        }
        if from == State::Rtr && to == State::Rts || from == State::Sqd {
            send.configure(attr);
        }
        self.set_state(from, to)?;
        if to == State::Rts && matches!(from, State::Sqd | State::Sqe) {
            // A queue that has failed may have been draining.
            send.resume();
            self.attend_locked(&mut send);
        }
        Ok(())
    }

    /// RTS to SQD: what was posted is still executed, what is posted from now on waits.
    fn drain(self: &Arc<Self>, notify: bool) -> Result<(), i32> {
        let mut send = self.send.lock();
        self.set_state(State::Rts, State::Sqd)?;
        send.drain(notify);
        self.attend_locked(&mut send);
        Ok(())
    }

    fn advertise_rights(&self, attr: &ibv_qp_attr) {
        let advert = self.own;
        let timer = u32::from(attr.min_rnr_timer);
        advert.access.store(attr.qp_access_flags, Ordering::Relaxed);
        advert.min_rnr_timer.store(timer, Ordering::Relaxed);
        advert.mail.0.qkey.store(attr.qkey, Ordering::Relaxed);
    }

    /// INIT to RTR of a queue pair for datagrams: it is connected to nobody, and gets a mailbox.
    fn ready_for_datagrams(&self) -> Result<(), i32> {
        let depth = match &self.srq {
            Some(srq) => srq.room(),
            None => self.caps.recv_wr,
        };
        let inbox = Inbox::new(self.own, depth, new_lane(self.process));
        let inbox = inbox.map_err(|e| errno(&e).unwrap_or(libc::ENOMEM))?;
        CqCore::exclude(self, || {
            // SAFETY: under the lock of the completion queue.
            unsafe { &mut *self.arrivals.get() }.mail = Some(Box::new(inbox));
        });
        self.set_state(State::Init, State::Rtr)
    }

    /// INIT to RTR: find the peer, make it a lane, tell it.
    fn ready_to_receive(&self, attr: &ibv_qp_attr) -> Result<(), i32> {
        refusal::forget();
        device::check_path(self.process, attr)?;
        self.greeted.store(false, Ordering::Relaxed);
        let peer = self.process.peer_of(attr.dest_qp_num).map_err(|e| {
            refusal::keep(&e);
            errno(&e).unwrap_or(libc::EACCES)
        })?;
        let advert = self.own;
        advert.rq_psn.store(attr.rq_psn, Ordering::Relaxed);
        advert.peer_qpn.store(attr.dest_qp_num, Ordering::Relaxed);
        let reads = u32::from(attr.max_dest_rd_atomic);
        advert.reads.store(reads, Ordering::Relaxed);
        if peer.is_none() {
            // The lane before was taken back; nobody else may take it for this one's.
            advert.peer_pid.store(0, Ordering::Relaxed);
            advert.peer_start.store(0, Ordering::Relaxed);
            advert.lane_generation.store(0, Ordering::Release);
        }
        if let Some(peer) = &peer {
            let depth = match &self.srq {
                Some(srq) => srq.max_wr().min(SHARED_LANE),
                None => self.caps.recv_wr,
            };
            let order = lane::order_for(depth);
            let space = peer
                .make_lane(lane::lane_len(order))
                .map_err(|_| libc::ENOMEM)?;
            advert
                .peer_pid
                .store(peer.incarnation.pid, Ordering::Relaxed);
            advert
                .peer_start
                .store(peer.incarnation.start, Ordering::Relaxed);
            advert.lane_order.store(order, Ordering::Relaxed);
            channel::advertise(
                &advert.lane_file,
                space.file.fd().as_raw_fd(),
                space.file.id(),
            );
            advert
                .lane_len
                .store(space.file.len() as u64, Ordering::Relaxed);
            advert.lane_off.store(space.off as u64, Ordering::Relaxed);
            advert.consumed.0.store(0, Ordering::Relaxed);
            let generation = new_lane(self.process);
            advert.lane_generation.store(generation, Ordering::Release);
            let producing = Producing {
                peer: peer.clone(),
                qpn: attr.dest_qp_num,
            };
            let lane = InLane::new(producing.clone(), space, order, depth);
            CqCore::exclude(self, || {
                let mut recv = self.recv.lock();
                let producer = core::ptr::from_ref(lane.producer());
                self.producer.store(producer.cast_mut(), Ordering::Release);
                *self.producing.lock() = Some(producing.clone());
                recv.connect(producing);
                // SAFETY: under the lock of the completion queue.
                unsafe { &mut *self.arrivals.get() }.lane = Some(lane);
            });
        }
        {
            let mut send = self.send.lock();
            let attached = send.attached;
            send.link = peer
                .clone()
                .map(|peer| Link::new(peer, attr.dest_qp_num, attached));
        }
        self.set_state(State::Init, State::Rtr)?;
        if let Some(peer) = peer {
            // Its queue pair may already hold work for this one.
            peer.kick();
        }
        Ok(())
    }

    /// Cuts the queue pair off: no peer touches it any more, everything posted is dropped silently, the lane is given back.
    /// If a peer in the middle of its work does not get on, the queue pair fails, and the call can be repeated.
    fn detach(&self) -> io::Result<()> {
        let advert = self.own;
        advert.state.store(State::Reset as u32, Ordering::Release);
        let connected_to = advert.peer_qpn.swap(0, Ordering::AcqRel);
        let producing = self.producing();
        let quiet = quiet::barrier(self.process)
            .and_then(|()| producing.map_or(Ok(()), |p| p.wait(|_| true)));
        if quiet.is_err() {
            self.fail();
            // It goes on in the error state, and its peer is to know that, also if it was there before.
            advert.peer_qpn.store(connected_to, Ordering::Release);
            advert.state.store(State::Err as u32, Ordering::Release);
            return quiet;
        }
        // From here on only this process touches it.
        CqCore::exclude(self, || {
            let mut recv = self.recv.lock();
            let mut send = self.send.lock();
            self.state.store(State::Reset as u32, Ordering::Release);
            advert.state.store(State::Reset as u32, Ordering::Release);
            self.producer
                .store(core::ptr::null_mut(), Ordering::Release);
            send.reset();
            advert.word.0.fatal.store(0, Ordering::Relaxed);
            advert.word.0.parked.store(0, Ordering::Relaxed);
            self.attention.store(false, Ordering::Relaxed);
            // SAFETY: both locks of the ring are held: the send queue's and, by `exclude`, the completion queue's.
            unsafe { self.send_dones.clear() };
            self.sent.store(send.head(), Ordering::Release);
            recv.reset(&self.entries);
            *self.producing.lock() = None;
            // SAFETY: under the lock of the completion queue.
            let lane = unsafe { &mut *self.arrivals.get() }.reset();
            self.recv_cq.unsay(self.index);
            if self.service == Service::Ud {
                // No sender attaches to the mailbox any more.
                advert.lane_generation.store(0, Ordering::Release);
                self.process.forget_mailbox(self.index);
            }
            if let Some(srq) = &self.srq {
                let told = lane.as_ref().map(InLane::named).unwrap_or_default();
                srq.reclaim(self.index, &told, Told::Dropped);
            }
            if let Some(lane) = lane {
                let (peer, space) = lane.into_space();
                peer.unmake_lane(&space);
            }
            advert.eager.store(eager(&self.srq), Ordering::Relaxed);
            advert.posted.0.store(0, Ordering::Relaxed);
        });
        Ok(())
    }

    /// `ibv_destroy_qp`. `EBUSY`: a stopped process is in the middle of a copy; the call can be repeated.
    pub fn destroy(&self) -> io::Result<()> {
        self.detach()?;
        self.send_cq.remove(self);
        self.recv_cq.remove(self);
        self.process.watcher.forget(self);
        if let Some(srq) = &self.srq {
            srq.remove(self);
        }
        let advert = self.own;
        advert.qpn.store(0, Ordering::Release);
        self.process.give_recv(self.entries.off, self.entries.len);
        self.process.give_qp(self.index);
        Ok(())
    }

    /// Whether a receive that has not completed is to be placed in the region with `key`.
    pub fn receives_into(&self, key: u32) -> bool {
        match &self.srq {
            Some(srq) => srq.name(key),
            None => self.entries.name(self.own, key),
        }
    }

    /// The process at the other end, once there is one.
    pub fn peer(&self) -> Option<Arc<Peer>> {
        self.producing().map(|p| p.peer)
    }

    /// Who may be at work on receives, if anybody is connected.
    pub fn producing(&self) -> Option<Producing> {
        self.producing.lock().clone()
    }
}

/// What sends may leave in the lane without a look at the receive: see [`QpAdvert::eager`].
fn eager(srq: &Option<Arc<SrqCore>>) -> u32 {
    match srq {
        Some(_) => 0,
        None => lane::BESIDE as u32,
    }
}
