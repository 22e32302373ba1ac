//! Shared receive queues: the owner's side. How initiators take entries is [`claims`]'s.
//!
//! Lock order: a completion queue's lock, then the state's.

pub(crate) mod claims;
mod taking;

use crate::channel::advertise;
use crate::device::MAX_QP_WR;
use crate::events::AsyncEvents;
use crate::layout::{QpAdvert, SrqAdvert};
use crate::lock::Lock;
use crate::pending::Named;
use crate::process::Process;
use crate::qp::{Caps, QpCore};
use crate::recv::Entries;
use crate::sync::Mutex;
use claims::{Claims, Place};
use core::ffi::c_void;
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};
use ibverbs_sys::{ibv_event_type, ibv_recv_wr};
use std::collections::HashSet;
use std::io;
use std::os::fd::AsRawFd;
use std::sync::{Arc, Weak};

pub(crate) use taking::SharedQueue;

/// How many times as large as it was made a queue can become. Peers look at its entries where they were first, so room for more is kept
/// there; it is not touched, and takes no memory, until it is used.
const GROWTH: usize = 8;

/// Shared receive queues ever made by this process.
static SERIALS: AtomicU64 = AtomicU64::new(1);

pub(crate) struct SrqCore {
    process: &'static Process,
    index: usize,
    max_wr: AtomicUsize,
    pub max_sge: usize,
    pub pd: u32,
    advert: &'static SrqAdvert,
    entries: Entries,
    ring_off: usize,
    claims: Claims,
    state: Lock<State>,
    members: Mutex<Vec<Weak<QpCore>>>,
    events: Arc<AsyncEvents>,
    /// Queue pairs that use it: while there are any, destroying it is EBUSY.
    pub users: AtomicUsize,
    /// The `ibv_srq` that callers hold.
    pub handle: AtomicPtr<c_void>,
}

/// What is true, whatever the claims say.
struct State {
    /// Last position.
    posted: u64,
    /// Position of the entry in each slot, 0 for none.
    positions: Box<[u64]>,
    unused: Vec<u32>,
    /// Slots that there is room for beyond what the queue may hold now.
    spare: Vec<u32>,
    limit: Option<Limit>,
}

/// An armed limit.
#[derive(Clone, Copy)]
struct Limit {
    below: u32,
    /// How many had ever been taken when it was armed: it is reached by taking, not by arming.
    taken: u64,
}

impl State {
    fn post(&mut self, slot: usize) -> Place {
        self.posted += 1;
        self.positions[slot] = self.posted;
        Place {
            position: self.posted,
            slot,
        }
    }

    fn outstanding(&self) -> impl Iterator<Item = Place> {
        let places = self.positions.iter().enumerate();
        places
            .filter(|(_, position)| **position != 0)
            .map(|(slot, &position)| Place { position, slot })
    }
}

/// What becomes of messages that were told and not taken by a poll, when their queue pair is done.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Told {
    /// Polls still take them.
    Kept,
    /// They are dropped with their entries, as completions of a queue pair that is reset are.
    Dropped,
}

impl SrqCore {
    /// # Errors
    ///
    /// `ENOMEM`: too many queues, or no room for the entries.
    pub fn new(
        process: &'static Process,
        pd: u32,
        max_wr: usize,
        max_sge: usize,
        events: Arc<AsyncEvents>,
    ) -> io::Result<Arc<SrqCore>> {
        let full = || io::Error::from_raw_os_error(libc::ENOMEM);
        let entries = |recv_wr: usize| {
            let caps = Caps {
                send_wr: 0,
                recv_wr,
                send_sge: 0,
                recv_sge: max_sge,
                inline: 0,
            };
            Entries::new(process, &caps)
        };
        let room = (max_wr * GROWTH).min(MAX_QP_WR);
        let entries = entries(room).or_else(|_| entries(max_wr))?;
        let order = entries.order();
        let give_entries = || process.give_recv(entries.off, entries.len);
        let Some(ring_off) = process.take_recv(4 << order) else {
            give_entries();
            return Err(full());
        };
        let give_ring = || process.give_recv(ring_off, 4 << order);
        let claims = Claims::create(order).inspect_err(|_| {
            give_entries();
            give_ring();
        })?;
        let Some(index) = process.take_srq() else {
            give_entries();
            give_ring();
            return Err(full());
        };
        let advert = process.segment.srq(index);
        advertise(
            &advert.claims,
            claims.file().fd().as_raw_fd(),
            claims.file().id(),
        );
        advert.ring_off.store(ring_off as u64, Ordering::Relaxed);
        advert.order.store(order, Ordering::Relaxed);
        advert.pd.store(pd, Ordering::Relaxed);
        advert.limit.store(0, Ordering::Relaxed);
        advert.posted.0.store(0, Ordering::Relaxed);
        let serial = SERIALS.fetch_add(1, Ordering::Relaxed);
        advert.serial.store(serial, Ordering::Release);
        let srq = Arc::new(SrqCore {
            process,
            index,
            max_wr: AtomicUsize::new(max_wr),
            max_sge,
            pd,
            advert,
            ring_off,
            claims,
            state: Lock::new(State {
                posted: 0,
                positions: vec![0; 1 << order].into(),
                unused: (0..max_wr as u32).rev().collect(),
                spare: (max_wr as u32..1 << order).rev().collect(),
                limit: None,
            }),
            entries,
            members: Mutex::default(),
            events,
            users: AtomicUsize::new(0),
            handle: AtomicPtr::default(),
        });
        process.add_srq(&srq);
        Ok(srq)
    }

    /// Entries that it may hold.
    pub fn max_wr(&self) -> usize {
        self.max_wr.load(Ordering::Relaxed)
    }

    /// Entries that it can be resized to hold.
    pub fn room(&self) -> usize {
        self.entries.count()
    }

    /// `ibv_modify_srq` with `IBV_SRQ_MAX_WR`. Peers know of the room only, so nothing changes for them.
    ///
    /// # Errors
    ///
    /// `EINVAL`: more entries are outstanding, or the limit is higher. `ENOMEM`: there is no room for so many.
    pub fn resize(&self, max_wr: usize) -> Result<(), i32> {
        if max_wr > self.room() {
            return Err(libc::ENOMEM);
        }
        let mut state = self.state.lock();
        let State {
            unused,
            spare,
            limit,
            ..
        } = &mut *state;
        let old = self.max_wr();
        if max_wr < old - unused.len() || limit.is_some_and(|limit| max_wr < limit.below as usize) {
            return Err(libc::EINVAL);
        }
        let (from, to) = if max_wr > old {
            (spare, unused)
        } else {
            (unused, spare)
        };
        to.extend(from.drain(from.len() - max_wr.abs_diff(old)..));
        self.max_wr.store(max_wr, Ordering::Relaxed);
        drop(state);
        // Their completions may be more, or fewer, than their queues can hold.
        let members = self.members.lock().clone();
        for qp in members.iter().filter_map(Weak::upgrade) {
            qp.recv_cq.sum_anew();
        }
        Ok(())
    }

    /// Tells the peers of a queue pair where its receives are.
    pub fn advertise(&self, advert: &QpAdvert) {
        self.entries.advertise(advert);
        advert.srq.store(self.index as u32 + 1, Ordering::Relaxed);
    }

    pub fn add(&self, qp: &Arc<QpCore>) {
        self.members.lock().push(Arc::downgrade(qp));
    }

    pub fn remove(&self, qp: &QpCore) {
        let mut members = self.members.lock();
        members.retain(|m| !std::ptr::eq(m.as_ptr(), qp));
    }

    fn ring(&self) -> &[AtomicU32] {
        let ring = self
            .process
            .segment
            .ring(self.ring_off as u64, self.entries.count());
        ring.unwrap_or_default()
    }

    /// Lets initiators have the entry in `slot`, which was written.
    fn offer(&self, state: &mut State, slot: usize) {
        let place = state.post(slot);
        self.claims.offer(place);
        let ring = self.ring();
        ring[place.position as usize & (ring.len() - 1)].store(slot as u32, Ordering::Relaxed);
        self.advert.posted.0.store(state.posted, Ordering::Release);
    }

    /// `ibv_post_srq_recv`: posts a chain; on failure `bad` is the first request that was not posted.
    ///
    /// # Safety
    ///
    /// The contract of ibv_post_srq_recv(3): a well-formed chain of work requests.
    pub unsafe fn post(&self, mut wr: *mut ibv_recv_wr, bad: *mut *mut ibv_recv_wr) -> i32 {
        let mut rc = 0;
        let mut state = self.state.lock_often();
        let before = state.posted;
        while !wr.is_null() {
            // SAFETY: `wr` is a valid request of the chain.
            if let Err(errno) = unsafe { self.post_one(&mut state, &*wr) } {
                // SAFETY: `bad` is the caller's out parameter.
                unsafe { *bad = wr };
                rc = errno;
                break;
            }
            // SAFETY: as above.
            wr = unsafe { (*wr).next };
        }
        let posted = state.posted != before;
        drop(state);
        if posted {
            self.ring_parked();
        }
        rc
    }

    unsafe fn post_one(&self, state: &mut State, wr: &ibv_recv_wr) -> Result<(), i32> {
        let count = usize::try_from(wr.num_sge).map_err(|_| libc::EINVAL)?;
        if count > self.max_sge {
            return Err(libc::EINVAL);
        }
        let slot = state.unused.pop().ok_or(libc::ENOMEM)? as usize;
        // SAFETY: the request holds `num_sge` elements, which fit.
        unsafe { self.entries.write(slot as u64, wr) };
        self.offer(state, slot);
        Ok(())
    }

    /// After a post: gives notice to initiators that wait.
    fn ring_parked(&self) {
        // Who parks says so, runs a barrier and looks again; as in the private receive queue, but of all who may park here
        // some might have no barrier to run.
        fence(Ordering::SeqCst);
        if self.claims.unpark() {
            self.ring_members();
        }
    }

    #[cold]
    fn ring_members(&self) {
        let members = self.members.lock().clone();
        for producing in members
            .iter()
            .filter_map(Weak::upgrade)
            .filter_map(|qp| qp.producing())
        {
            if producing.advert().word.0.parked.load(Ordering::Relaxed) != 0 {
                producing.peer.kick();
            }
        }
    }

    /// Completes the entry that a lane names, unless it names none that is outstanding, or `f`, which is given the entries and the
    /// slot, does not agree.
    pub fn complete<T>(&self, index: u64, f: impl FnOnce(&Entries, u64) -> Option<T>) -> Option<T> {
        let Place { position, slot } = Place::from_index(index);
        let mut state = self.state.lock_often();
        if position == 0 || state.positions.get(slot) != Some(&position) {
            return None;
        }
        let done = f(&self.entries, slot as u64)?;
        state.positions[slot] = 0;
        state.unused.push(slot as u32);
        Some(done)
    }

    /// Takes an entry, if there is one, for queue pair `qp` of this process, and completes it with `f`, which is given the entries
    /// and the slot.
    pub fn take<T>(&self, qp: usize, f: impl FnOnce(&Entries, u64) -> T) -> Option<T> {
        let mut state = self.state.lock_often();
        let place = self.claims.claim(self.ring(), state.posted, qp)?;
        if state.positions.get(place.slot) != Some(&place.position) {
            return None;
        }
        let done = f(&self.entries, place.slot as u64);
        state.positions[place.slot] = 0;
        state.unused.push(place.slot as u32);
        let limited = state.limit.is_some();
        drop(state);
        if limited {
            self.check_limit();
        }
        Some(done)
    }

    /// Takes back what was claimed for a queue pair that has no producer at work any more. `told`: the entries that its lane
    /// names.
    pub fn reclaim(&self, qp: usize, told: &HashSet<u64>, then: Told) {
        let mut state = self.state.lock();
        let mine: Vec<Place> = state
            .outstanding()
            .filter(|place| self.claims.is_claimed(*place, qp))
            .collect();
        let before = state.posted;
        for place in mine {
            match (told.contains(&place.to_index()), then) {
                (false, _) => self.offer(&mut state, place.slot),
                (true, Told::Kept) => {}
                (true, Told::Dropped) => {
                    state.positions[place.slot] = 0;
                    state.unused.push(place.slot as u32);
                }
            }
        }
        let posted = state.posted != before;
        drop(state);
        if posted {
            self.ring_parked();
        }
    }

    /// Whether an entry that has not completed is to be placed in the region with `key`.
    pub fn name(&self, key: u32) -> bool {
        let state = self.state.lock();
        state
            .outstanding()
            .any(|place| self.entries.names(place.slot as u64, key))
    }

    /// Whether an entry that has not completed is to be placed there.
    pub fn holds(&self, named: Named) -> bool {
        let state = self.state.lock();
        state
            .outstanding()
            .any(|place| named.is_in_entry(&self.entries, place.slot as u64))
    }

    /// How many were ever taken, and how many are left.
    fn count(&self, state: &State) -> (u64, u32) {
        let left = state
            .outstanding()
            .filter(|place| self.claims.is_free(*place))
            .count();
        (state.posted - left as u64, left as u32)
    }

    /// The limit that is armed, 0 for none.
    pub fn limit(&self) -> u32 {
        self.state.lock().limit.map_or(0, |limit| limit.below)
    }

    /// Arms the limit, or disarms it with 0.
    pub fn set_limit(&self, below: u32) {
        let mut state = self.state.lock();
        let (taken, _) = self.count(&state);
        state.limit = (below != 0).then_some(Limit { below, taken });
        self.advert.limit.store(below, Ordering::Release);
        drop(state);
        if below != 0 {
            self.process.watcher.start(self.process);
        }
    }

    /// Tells, once, that fewer entries are left than the limit says.
    pub fn check_limit(&self) {
        let mut state = self.state.lock();
        let Some(limit) = state.limit else {
            return;
        };
        let (taken, left) = self.count(&state);
        if left < limit.below && taken > limit.taken {
            state.limit = None;
            self.advert.limit.store(0, Ordering::Relaxed);
            // Under the lock, so that no event comes after the last use of the handle.
            let handle = self.handle.load(Ordering::Acquire);
            self.events
                .push(ibv_event_type::IBV_EVENT_SRQ_LIMIT_REACHED, handle.addr());
        }
    }

    /// `ibv_destroy_srq`: no queue pair uses it any more, so no peer does.
    pub fn destroy(&self) {
        self.set_limit(0);
        self.process.remove_srq(self);
        self.advert.serial.store(0, Ordering::Release);
        self.process.give_recv(self.entries.off, self.entries.len);
        self.process
            .give_recv(self.ring_off, 4 * self.entries.count());
        self.process.give_srq(self.index);
        self.events
            .retire(self.handle.load(Ordering::Acquire).addr());
    }
}
