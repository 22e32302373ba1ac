//! The way from a queue pair to its peer: the lane that the peer made for it, attached, and what is known of the peer.

use crate::board::Mark;
use crate::channel::Record;
use crate::cq::wants;
use crate::lane::{self, Entry, Producer, Slot};
use crate::layout::{CqAdvert, MAX_QP, MrAdvert, QpAdvert};
use crate::memory::PeerMapping;
use crate::os::membarrier;
use crate::os::memfd::ControlFile;
use crate::peer::Peer;
use crate::qp::QpCore;
use crate::qp_state::{Service, State};
use crate::segment::Shared;
use crate::srq::SharedQueue;
use core::sync::atomic::{AtomicU64, Ordering, compiler_fence, fence};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

/// The way to the peer's queue pair.
pub(crate) struct Link {
    pub peer: Arc<Peer>,
    pub dest: u32,
    pub sq_psn: u32,
    /// READs and atomics that may be outstanding.
    pub reads: u8,
    pub lane: Option<OutLane>,
    /// The lane attached last; it is never attached a second time, from its beginning.
    attached: u64,
}

/// The peer's lane, attached.
pub(crate) struct OutLane {
    /// Keeps the lane mapped.
    _file: Arc<ControlFile>,
    slots: *const Slot,
    order: u32,
    pub generation: u64,
    producer: Producer,
    /// Receive entries taken, and how many the peer has posted as far as we know.
    pub claimed: u64,
    pub posted: u64,
    /// Counts operations, so that two uses of one thing have different hazards.
    pub op: u32,
    pub fenced: bool,
    /// Where the last WRITE with immediate data ended, in whole lines: who writes one message behind the other will go on there.
    pub next: usize,
    /// What the peer says of its queue pair.
    pub advert: Shared<QpAdvert>,
    /// Our own advertisement, which holds our words: hazard, parked, fatal.
    pub own: Shared<QpAdvert>,
    /// Where the peer's receives come from, if not from a queue of its own. Then `claimed` and `posted` say nothing: the short
    /// way finds no entry.
    pub shared: Option<SharedQueue>,
    /// Where the peer looks whether there is something here, if it has much to look at.
    mark: Mark,
    /// Wakes whoever waits for the peer's receives.
    bell: Bell,
    /// What `parked` says, to say it once.
    parked: u64,
    /// An arena was looked up: others may be gone by now.
    looked_up: bool,
    /// Arenas of the peer that this queue pair uses. A mapping stays as long as its entry is here, and entries go only
    /// between requests.
    arenas: Vec<Known>,
}

// SAFETY: `slots` and the arenas' addresses point into shared mappings that are held beside them, and are good in any thread.
unsafe impl Send for OutLane {}

/// An arena of the peer's that is mapped here.
pub(crate) struct Known {
    index: u32,
    serial: u64,
    pub at: *mut u8,
    pub len: u64,
    pub writable: bool,
    _mapping: Arc<PeerMapping>,
}

/// Arenas that one queue pair keeps at hand.
const ARENAS: usize = 32;

impl OutLane {
    /// Says that the queue pair of this lane must fail.
    pub fn fail_peer(&self) {
        let fatal = &self.own.word.0.fatal;
        fatal.store(self.generation, Ordering::Release);
    }

    /// Whether the next [`push`](Self::push) finds room.
    #[inline]
    pub fn has_room(&mut self) -> bool {
        let consumed = || self.advert.consumed.0.load(Ordering::Acquire);
        self.producer.has_room(1 << self.order, consumed)
    }

    #[inline(always)]
    pub fn push(&mut self, entry: &Entry) {
        // SAFETY: `attach` checked that the lane lies in the file; it stays mapped as long as `file` lives. Atomics only.
        let slots = unsafe { core::slice::from_raw_parts(self.slots, 1 << self.order) };
        self.producer.push(slots, entry);
        if self.bell.advert.crowded.load(Ordering::Relaxed) != 0 {
            self.mark.set(self.producer.pos());
        }
    }

    /// Room for the payload beside the entry that is pushed next.
    pub fn beside(&self) -> *mut u8 {
        let slot = self.producer.next_slot(1 << self.order);
        // SAFETY: as for `push`; `slot` is below the number of slots.
        unsafe {
            self.slots
                .cast_mut()
                .cast::<u8>()
                .add(lane::beside_off(self.order) + slot * lane::BESIDE)
        }
    }

    /// The peer's arena, mapped; it stays mapped until [`prune`](Self::prune).
    #[inline]
    pub fn arena(&mut self, peer: &Peer, index: u32, serial: u64) -> Option<&Known> {
        let known = |k: &Known| k.index == index && k.serial == serial;
        let at = match self.arenas.iter().position(known) {
            Some(at) => at,
            None => self.look_up(peer, index, serial)?,
        };
        self.arenas.get(at)
    }

    /// The same for what was looked up before, if peers may write to it, as the address here of what lies `off` bytes into a
    /// region of the peer's.
    #[inline(always)]
    pub fn known(&self, mr: &MrAdvert, off: u64, len: u64) -> Option<*mut u8> {
        let arena = mr.arena.load(Ordering::Relaxed);
        let serial = mr.arena_serial.load(Ordering::Relaxed);
        let at = mr.arena_off.load(Ordering::Relaxed).wrapping_add(off);
        let known = self
            .arenas
            .iter()
            .find(|k| k.index.wrapping_add(1) == arena && k.serial == serial)?;
        let fits = known.writable && at.checked_add(len).is_some_and(|end| end <= known.len);
        // SAFETY: in bounds of the mapping, which stays as long as it is known.
        fits.then(|| unsafe { known.at.add(at as usize) })
    }

    #[cold]
    fn look_up(&mut self, peer: &Peer, index: u32, serial: u64) -> Option<usize> {
        let mapping = peer.arena(index, serial)?;
        self.arenas.push(Known {
            index,
            serial,
            at: mapping.as_ptr(),
            len: mapping.len() as u64,
            writable: mapping.writable(),
            _mapping: mapping,
        });
        self.looked_up = true;
        Some(self.arenas.len() - 1)
    }

    /// Between requests: lets go of arenas that the peer has given up, and of all if there are too many.
    #[inline]
    pub fn prune(&mut self, peer: &Peer) {
        if self.looked_up {
            self.prune_arenas(peer);
        }
    }

    #[cold]
    fn prune_arenas(&mut self, peer: &Peer) {
        self.looked_up = false;
        self.arenas
            .retain(|known| peer.arena_serial(known.index) == known.serial);
        if self.arenas.len() > ARENAS {
            self.arenas.clear();
        }
    }
}

impl Link {
    pub fn new(peer: Arc<Peer>, dest: u32, attached: u64) -> Link {
        Link {
            peer,
            dest,
            sq_psn: 0,
            reads: 0,
            lane: None,
            attached,
        }
    }

    pub fn advert(peer: &Peer, dest: u32) -> &QpAdvert {
        peer.segment.qp(dest as usize)
    }

    /// Whether the peer's queue pair will never take a request from us again: failed, destroyed, made anew, or its process
    /// is gone. Otherwise one that does not answer may be about to become ready.
    pub fn is_gone(&self) -> bool {
        let advert = Link::advert(&self.peer, self.dest);
        // A number is given out only once there is a queue pair, so one that is not there was destroyed.
        advert.state.load(Ordering::Acquire) == State::Err as u32
            || advert.qpn.load(Ordering::Relaxed) != self.dest
            || self
                .lane
                .as_ref()
                .is_some_and(|out| advert.lane_generation.load(Ordering::Relaxed) != out.generation)
            || self.peer.check_dead()
    }

    /// Lets go of a lane that the peer has replaced: its queue pair was reset and has come back. Only an unreliable connection
    /// survives that.
    #[inline(never)]
    pub fn let_go_of_old(&mut self) {
        self.lane
            .take_if(|out| out.advert.lane_generation.load(Ordering::Relaxed) != out.generation);
    }

    /// Generation of the lane attached last, 0 for none.
    pub fn attached(&self) -> u64 {
        self.attached
    }

    /// Attaches to the lane that the peer made for us, once it is there.
    pub fn attach(&mut self, qp: &QpCore) -> Option<()> {
        let advert = Self::advert(&self.peer, self.dest);
        let me = qp.process.me;
        // The generation first and last: what is read between belongs to one lane.
        let generation = advert.lane_generation.load(Ordering::Acquire);
        let fits = || {
            answers(advert, self.dest)
                && advert.peer_qpn.load(Ordering::Relaxed) == qp.qpn
                && advert.peer_pid.load(Ordering::Relaxed) == me.pid
                && advert.peer_start.load(Ordering::Relaxed) == me.start
                && advert.service.load(Ordering::Relaxed) == qp.service as u32
                // An unreliable connection begins anew with any number.
                && (qp.service == Service::Uc
                    || advert.rq_psn.load(Ordering::Relaxed) == self.sq_psn)
        };
        if !fits() || generation == self.attached {
            return None;
        }
        let order = advert.lane_order.load(Ordering::Relaxed);
        let off = usize::try_from(advert.lane_off.load(Ordering::Relaxed)).ok()?;
        let recv_cq = advert.recv_cq.load(Ordering::Relaxed);
        let file = self.peer.lane_file(advert).ok()?;
        let board = self.peer.board().ok()?;
        let srq = advert.srq.load(Ordering::Relaxed).checked_sub(1);
        let attach = |index| SharedQueue::attach(&self.peer, index, self.dest as usize % MAX_QP);
        let shared = match srq {
            None => None,
            Some(index) => Some(attach(index)?),
        };
        fence(Ordering::Acquire);
        if !fits() || advert.lane_generation.load(Ordering::Relaxed) != generation {
            return None;
        }
        if order > 24
            || !off.is_multiple_of(64)
            || off.checked_add(lane::lane_len(order))? > file.len()
        {
            return None;
        }
        self.attached = generation;
        self.lane = Some(OutLane {
            // SAFETY: the lane lies in the file, as was just checked.
            slots: unsafe { file.as_ptr().add(off) }.cast(),
            _file: file,
            order,
            generation,
            producer: Producer::default(),
            claimed: 0,
            posted: 0,
            next: 0,
            op: 0,
            // Either side without membarrier needs the fence: theirs reaches only those who registered.
            fenced: self.peer.segment.header().fence.load(Ordering::Relaxed) != 0
                || qp.process.fenced(),
            advert: self.peer.segment.share(|s| s.qp(self.dest as usize)),
            own: qp.process.segment.share(|s| s.qp(qp.index())),
            mark: Mark::new(board, self.dest as usize % MAX_QP),
            bell: Bell::new(&self.peer, recv_cq),
            shared,
            parked: 0,
            looked_up: false,
            arenas: Vec::new(),
        });
        Some(())
    }
}

/// Whether the peer's queue pair takes requests.
#[inline]
pub(crate) fn answers(advert: &QpAdvert, dest: u32) -> bool {
    State::receives(advert.state.load(Ordering::Acquire))
        && advert.qpn.load(Ordering::Relaxed) == dest
}

/// "Receiver not ready" timer, IBTA table 45, in units of 10 us.
pub(crate) fn rnr_timer(code: u32) -> Duration {
    const UNITS: [u64; 32] = [
        65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024,
        1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152,
    ];
    Duration::from_micros(UNITS[code as usize % 32] * 10)
}

/// Looks again how many receives the peer has posted.
pub(crate) fn any_posted(out: &mut OutLane) -> bool {
    let advert = &out.advert;
    let depth = 1u64 << (advert.recv_order.load(Ordering::Relaxed) & 31);
    // Clamped: a peer's number neither moves back nor lets us take more entries than its ring has.
    out.posted = advert
        .posted
        .0
        .load(Ordering::Acquire)
        .clamp(out.posted, out.claimed + depth);
    out.claimed < out.posted
}

/// Looks again how many receives the peer has posted; if still none, parks: from now on a post there gives us notice.
#[cold]
pub(crate) fn more_posted(out: &mut OutLane) -> bool {
    if !any_posted(out) {
        if out.parked == out.claimed + 1 {
            return false;
        }
        out.parked = out.claimed + 1;
        let parked = out.parked;
        out.own.word.0.parked.store(parked, Ordering::Relaxed);
        // Should it pass a processor by, the watcher's next look finds the receive.
        if out.fenced || membarrier::barrier_unsettled().is_err() {
            fence(Ordering::SeqCst);
        }
        if !any_posted(out) {
            return false;
        }
    }
    out.parked = 0;
    out.own.word.0.parked.store(0, Ordering::Relaxed);
    true
}

/// Wakes the peer's completion queue if it is armed, once per generation.
#[inline]
pub(crate) fn wake(peer: &Peer, out: &mut OutLane, solicited: bool) {
    out.bell.ring(peer, out.fenced, solicited);
}

/// The completion queue of a peer's receives, as the one who must be woken.
pub(crate) struct Bell {
    cq: u32,
    advert: Shared<CqAdvert>,
    /// Generation for which this process has already woken it, through whichever queue pair.
    woken: Arc<AtomicU64>,
    channel: Option<(u64, Arc<OwnedFd>)>,
}

impl Bell {
    /// Completion queue `cq` of the peer's.
    pub fn new(peer: &Peer, cq: u32) -> Bell {
        Bell {
            cq,
            advert: peer.segment.share(|s| s.cq(cq as usize)),
            woken: peer.woken(cq),
            channel: None,
        }
    }

    /// Wakes it if it is armed.
    #[inline]
    pub fn ring(&mut self, peer: &Peer, fenced: bool, solicited: bool) {
        if fenced {
            fence(Ordering::SeqCst);
        } else {
            compiler_fence(Ordering::SeqCst);
        }
        let armed = self.advert.armed.load(Ordering::Relaxed);
        if wants(armed, solicited) && self.woken.load(Ordering::Relaxed) != armed >> 2 {
            self.wake(peer, armed);
        }
    }

    #[cold]
    fn wake(&mut self, peer: &Peer, armed: u64) {
        let channel = self.advert.channel.load(Ordering::Relaxed);
        let Some(index) = channel.checked_sub(1) else {
            return;
        };
        let serial = peer
            .segment
            .channel(index as usize)
            .serial
            .load(Ordering::Acquire);
        if self
            .channel
            .as_ref()
            .is_none_or(|(have, _)| *have != serial)
        {
            self.channel = peer.channel(index);
        }
        if let Some((_, fd)) = &self.channel {
            let record = Record {
                cq: self.cq,
                generation: (armed >> 2) as u32,
            };
            if record.send(fd) {
                self.woken.store(armed >> 2, Ordering::Relaxed);
            }
        }
    }
}
