//! The queue pair behind two queues, and the memory its work requests use.
//!
//! Normal operation: each half ([`SendQueue`], [`RecvQueue`]) reaches its own ring of work in flight through a pointer into
//! [`Pair`], which both keep alive. Nobody else uses a ring while its half exists.
//!
//! The end: when the last half (or [`RcSetup`](crate::RcSetup), which can only connect) is dropped, the queue pair is driven to the
//! error state and destroyed; only then are the rings dropped. If it cannot be destroyed, the device may still use the
//! memory: rings, domain and completion queues are leaked. [`destroy`] does the same in time and hands the values back. A half
//! that is forgotten keeps everything as it is for ever. The state RESET, in which devices drop work silently, is used only by a
//! scope whose completions cannot be had; what is in the rings stays there then.

use std::cell::UnsafeCell;
use std::io;
use std::mem::ManuallyDrop;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use ibverbs_sys::{ibv_qp, ibv_qp_attr, ibv_qp_attr_mask as mask, ibv_qp_state};
use parking_lot::Mutex;

use crate::address::Handles;
use crate::completion::Report;
use crate::cq::CqShared;
use crate::errno;
use crate::ring::{Ring, Said};
use crate::shared_core::Member;
use crate::tags::{RAW_TAG, Stopped};
use crate::{
    AddressHandle, CqId, DestroyError, Error, Pd, PostErrorKind, QueueId, RecvQueue, SendQueue,
};

/// What the completion of a work request said.
pub(crate) type Outcome = Report;

impl Said for Report {
    #[inline(always)]
    fn leaves_doubt(&self) -> bool {
        self.is_flush()
    }
}

/// What a queue was granted when its queue pair was made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub(crate) send_depth: u32,
    pub(crate) recv_depth: u32,
    pub(crate) send_sge: u32,
    pub(crate) read_sge: u32,
    pub(crate) recv_sge: u32,
    pub(crate) inline: u32,
    pub(crate) message: u32,
    pub(crate) atomics: bool,
    /// Whether each message has an address of its own, and a network header where it arrives.
    pub(crate) datagrams: bool,
    /// Whether work is posted by calls.
    pub(crate) extended: bool,
}

/// A queue's tag on its completion queue.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    pub(crate) tag: u16,
    pub(crate) first: u64,
}

impl Place {
    /// Where a queue stops that never had work.
    pub(crate) fn untouched(self) -> Stopped {
        Stopped {
            next: self.first,
            in_flight: 0,
        }
    }
}

/// Where a queue pair's receives come from.
pub(crate) enum Receives {
    /// A queue of its own, with this place on its completion queue.
    Own(Place),
    Shared(Member),
}

impl Receives {
    /// Where a receive queue stops that is not there.
    const NOTHING: Stopped = Stopped {
        next: 0,
        in_flight: 0,
    };

    /// The place on the completion queue; of shared receives, one that no completion has.
    fn place(&self) -> Place {
        match self {
            Receives::Own(place) => *place,
            Receives::Shared(_) => Place {
                tag: RAW_TAG,
                first: 0,
            },
        }
    }
}

/// The queue pair, and what must outlive it.
pub(crate) struct QpCore {
    state: Mutex<State>,
    qp_num: u32,
    limits: Limits,
    send: Place,
    recv: Receives,
    send_cq: Arc<CqShared>,
    recv_cq: Arc<CqShared>,
    pd: Pd,
    /// A [`Sends`].
    sends: AtomicU8,
}

/// What the send queue takes. Changes once, when the queue pair is connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Sends {
    /// Nothing: not connected.
    Nothing,
    /// No READs and atomics: this side or the peer's has room for none.
    NoReads,
    Everything,
}

enum State {
    Alive(NonNull<ibv_qp>),
    Destroyed,
    /// The device would not destroy it.
    Leaked,
}

// SAFETY: the verbs on a queue pair may be called from any thread; the pointer is only followed by the device's functions.
unsafe impl Send for QpCore {}
// SAFETY: as above.
unsafe impl Sync for QpCore {}

impl QpCore {
    pub(crate) fn new(
        qp: NonNull<ibv_qp>,
        limits: Limits,
        (send_cq, send): (Arc<CqShared>, Place),
        (recv_cq, recv): (Arc<CqShared>, Receives),
        pd: Pd,
    ) -> QpCore {
        QpCore {
            // SAFETY: a queue pair just created, whose number does not change.
            qp_num: unsafe { qp.as_ref().qp_num },
            state: Mutex::new(State::Alive(qp)),
            limits,
            send,
            recv,
            send_cq,
            recv_cq,
            pd,
            sends: AtomicU8::new(Sends::Nothing as u8),
        }
    }

    pub(crate) fn qp_num(&self) -> u32 {
        self.qp_num
    }

    pub(crate) fn pd(&self) -> &Pd {
        &self.pd
    }

    /// Whether it was [reset](Self::reset): then no device touches anything for it.
    pub(crate) fn was_reset(&self) -> bool {
        self.sends.load(Ordering::Acquire) == Self::RESET
    }

    /// In place of a [`Sends`], and as nothing.
    const RESET: u8 = u8::MAX;

    /// Notes that the queue pair can send.
    pub(crate) fn connected(&self, sends: Sends) {
        let (before, now) = (Sends::Nothing as u8, sends as u8);
        // What the device's library noted of the connection is seen by whoever sees this. If a receive queue's scope has reset it meanwhile, it stays
        // reset: others wait for no completions then.
        let _ = self
            .sends
            .compare_exchange(before, now, Ordering::Release, Ordering::Relaxed);
    }

    pub(crate) fn sends(&self) -> Sends {
        match self.sends.load(Ordering::Acquire) {
            n if n == Sends::Everything as u8 => Sends::Everything,
            n if n == Sends::NoReads as u8 => Sends::NoReads,
            _ => Sends::Nothing,
        }
    }

    pub(crate) fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Runs `f` on the queue pair, unless it was destroyed; it is not destroyed meanwhile.
    pub(crate) fn with<T>(&self, f: impl FnOnce(*mut ibv_qp) -> T) -> Option<T> {
        match &*self.state.lock() {
            State::Alive(qp) => Some(f(qp.as_ptr())),
            State::Destroyed | State::Leaked => None,
        }
    }

    #[doc(alias = "ibv_modify_qp")]
    pub(crate) fn modify(
        &self,
        qp: *mut ibv_qp,
        attr: &mut ibv_qp_attr,
        what: mask,
    ) -> io::Result<()> {
        // SAFETY: the queue pair is alive, as `with` and the halves guarantee, and `attr` is complete.
        errno::check(unsafe { (self.pd.api().ibv_modify_qp)(qp, attr, what.0 as i32) })
    }

    /// Everything posted and not completed completes with an error. So does whatever is posted from now on, sooner or later.
    pub(crate) fn set_error(&self, qp: *mut ibv_qp) -> io::Result<()> {
        let mut attr = ibv_qp_attr {
            qp_state: ibv_qp_state::IBV_QPS_ERR,
            ..Default::default()
        };
        self.modify(qp, &mut attr, mask::IBV_QP_STATE)
    }

    /// The device lets go of all work at once, and of its memory; nothing completes. For when completions cannot be had. A queue pair that was
    /// reset stays so: who waits for its work does not wait any more.
    pub(crate) fn reset(&self, qp: *mut ibv_qp) -> io::Result<()> {
        let mut attr = ibv_qp_attr {
            qp_state: ibv_qp_state::IBV_QPS_RESET,
            ..Default::default()
        };
        // Not between the look and the deed of who makes it go on.
        let _state = self.state.lock();
        self.modify(qp, &mut attr, mask::IBV_QP_STATE)?;
        self.sends.store(Self::RESET, Ordering::Release);
        Ok(())
    }

    /// Modifies a queue pair that was not [reset](Self::reset), in a way that would let it go on. Not left to the device, of which some believe
    /// what they are told of the state that it is in (Soft-RoCE).
    pub(crate) fn go_on(
        &self,
        qp: *mut ibv_qp,
        attr: &mut ibv_qp_attr,
        what: mask,
    ) -> io::Result<()> {
        let _state = self.state.lock();
        match self.was_reset() {
            true => Err(io::Error::from_raw_os_error(libc::EINVAL)),
            false => self.modify(qp, attr, what),
        }
    }

    /// Destroys the queue pair, after which the device touches no memory for it. Success when it is destroyed already.
    #[doc(alias = "ibv_destroy_qp")]
    fn destroy(&self, send: Stopped, recv: Stopped) -> io::Result<()> {
        let mut state = self.state.lock();
        let State::Alive(qp) = *state else {
            return Ok(());
        };
        // In the error state the device stops by itself. Whether it got there or not, destroying is what counts.
        let _ = self.set_error(qp.as_ptr());
        // SAFETY: alive, and not used again after success: the halves are consumed or gone.
        errno::check(unsafe { (self.pd.api().ibv_destroy_qp)(qp.as_ptr()) })?;
        *state = State::Destroyed;
        drop(state);
        self.send_cq
            .release_tag(self.send.tag, self.limits.send_depth, send);
        match &self.recv {
            Receives::Own(place) => {
                self.recv_cq
                    .release_tag(place.tag, self.limits.recv_depth, recv);
            }
            Receives::Shared(member) => member.leave(),
        }
        Ok(())
    }

    /// Gives up on destroying it: whatever the device may still use is never freed, its tags never used again.
    fn leak(&self) {
        *self.state.lock() = State::Leaked;
        std::mem::forget((self.pd.clone(), self.send_cq.clone(), self.recv_cq.clone()));
        if let Receives::Shared(member) = &self.recv {
            member.leak();
        }
    }
}

impl Drop for QpCore {
    /// For a queue pair that never had queues; else it is done already.
    fn drop(&mut self) {
        if self
            .destroy(self.send.untouched(), self.recv.place().untouched())
            .is_err()
        {
            self.leak();
        }
    }
}

/// The queue pair and its rings.
pub(crate) struct Pair<S, R> {
    core: QpCore,
    send: UnsafeCell<ManuallyDrop<Ring<S, Outcome>>>,
    recv: UnsafeCell<ManuallyDrop<Ring<R, Outcome>>>,
    handles: UnsafeCell<ManuallyDrop<Handles>>,
}

// SAFETY: each ring is used by its half alone, of which there is one, and by `drop`; the handles are the send half's.
unsafe impl<S: Send, R: Send> Sync for Pair<S, R> {}
// `Send` follows from the fields; the assertion keeps it so.
const _: fn() = || {
    fn send<T: Send>() {}
    send::<Pair<u8, u8>>();
};

impl<S: Send + 'static, R: Send + 'static> Pair<S, R> {
    /// The two halves, and what keeps the queue pair alive besides them.
    pub(crate) fn split(core: QpCore) -> (Arc<dyn Keep>, Half<S>, Half<R>) {
        let send_id = QueueId::new(core.send_cq.id(), core.send.tag);
        let recv_id = QueueId::new(core.recv_cq.id(), core.recv.place().tag);
        let shared = Arc::new(Pair::<S, R> {
            send: UnsafeCell::new(ManuallyDrop::new(Ring::new(
                core.limits.send_depth,
                send_id.wr_id(core.send.first),
            ))),
            recv: UnsafeCell::new(ManuallyDrop::new(Ring::new(
                core.limits.recv_depth,
                recv_id.wr_id(core.recv.place().first),
            ))),
            handles: UnsafeCell::new(ManuallyDrop::new(Handles::new(&core.limits))),
            core,
        });
        let core = &shared.core;
        // A new queue pair is alive.
        let qp = core.with(|qp| qp).unwrap_or(std::ptr::null_mut());
        // SAFETY: the pointers are into the shared object, which each half keeps, and are not null. `ManuallyDrop` has the
        // representation of what it holds.
        let (send, recv, handles) = unsafe {
            (
                NonNull::new_unchecked(shared.send.get().cast::<Ring<S, Outcome>>()),
                NonNull::new_unchecked(shared.recv.get().cast::<Ring<R, Outcome>>()),
                NonNull::new_unchecked(shared.handles.get().cast::<Handles>()),
            )
        };
        let keep: Arc<dyn Keep> = shared;
        (
            keep.clone(),
            Half::new(send, Some(handles), qp, send_id, keep.clone()),
            Half::new(recv, None, qp, recv_id, keep),
        )
    }
}

impl<S, R> Drop for Pair<S, R> {
    fn drop(&mut self) {
        let (send, recv) = (self.send.get_mut(), self.recv.get_mut());
        match self.core.destroy(send.stopped(), recv.stopped()) {
            // SAFETY: dropped here only, and the device has given the memory up.
            Ok(()) => unsafe {
                ManuallyDrop::drop(send);
                ManuallyDrop::drop(recv);
                ManuallyDrop::drop(self.handles.get_mut());
            },
            Err(_) => self.core.leak(),
        }
    }
}

/// A [`Pair`] of whatever types.
pub(crate) trait Keep: Send + Sync {
    fn core(&self) -> &QpCore;
}

impl<S: Send, R: Send> Keep for Pair<S, R> {
    fn core(&self) -> &QpCore {
        &self.core
    }
}

/// One queue's access to its ring. `Send`, and not `Sync`.
pub(crate) struct Half<T> {
    ring: NonNull<Ring<T, Outcome>>,
    /// The send half's.
    handles: Option<NonNull<Handles>>,
    /// Alive as long as the half: only [`destroy`], which consumes both halves, destroys it earlier.
    pub(crate) qp: *mut ibv_qp,
    pub(crate) id: QueueId,
    /// Of the id: the completion queue.
    pub(crate) cq: CqId,
    keep: Arc<dyn Keep>,
}

// SAFETY: the half is the only user of its ring and handles, which are `Send`; the verbs may be called from any thread.
unsafe impl<T: Send> Send for Half<T> {}

impl<T> Half<T> {
    fn new(
        ring: NonNull<Ring<T, Outcome>>,
        handles: Option<NonNull<Handles>>,
        qp: *mut ibv_qp,
        id: QueueId,
        keep: Arc<dyn Keep>,
    ) -> Half<T> {
        Half {
            ring,
            handles,
            qp,
            id,
            cq: id.cq(),
            keep,
        }
    }

    #[inline]
    pub(crate) fn ring(&mut self) -> &mut Ring<T, Outcome> {
        // SAFETY: `keep` keeps it alive, and nobody else uses it while the half exists.
        unsafe { self.ring.as_mut() }
    }

    #[inline]
    pub(crate) fn ring_ref(&self) -> &Ring<T, Outcome> {
        // SAFETY: as above.
        unsafe { self.ring.as_ref() }
    }

    /// Keeps the handle alive until the work in the slot that is filled after `ahead` others has completed, and longer; the slot is free.
    #[inline]
    pub(crate) fn hold(
        &mut self,
        ahead: usize,
        handle: &AddressHandle,
    ) -> Result<(), PostErrorKind> {
        let id = self.ring_ref().id_ahead(ahead);
        let Some(mut handles) = self.handles else {
            return Ok(());
        };
        // SAFETY: as for the ring.
        unsafe { handles.as_mut() }.hold(id, handle, || self.core().pd())
    }

    pub(crate) fn core(&self) -> &QpCore {
        self.keep.core()
    }

    pub(crate) fn set_error(&mut self) -> Result<(), Error> {
        let done = self.core().set_error(self.qp);
        done.map_err(|e| Error::hinted("ibv_modify_qp", e, "to the error state"))
    }
}

/// Destroys a queue pair and hands back everything that was in its queues, oldest first, completed or not.
///
/// Dropping both halves destroys it as well, and drops the values.
///
/// Completions of what was in flight may stay in the completion queue; they fit no queue any more, and
/// [`retire`](SendQueue::retire) and [`redeem`](RecvQueue::redeem) refuse them. Their room is free for other queue pairs once the
/// completion queue was polled empty.
///
/// # Errors
/// [`DestroyError`] when the halves do not belong together (both are dropped then), or the device refuses; in that case
/// whatever it may still use is leaked, unless a second attempt, made right away, succeeds and drops it.
#[doc(alias = "ibv_destroy_qp")]
pub fn destroy<S: Send + 'static, R: Send + 'static, K>(
    send: SendQueue<S, K>,
    recv: RecvQueue<R>,
) -> Result<(Vec<S>, Vec<R>), DestroyError> {
    let (mut send, mut recv) = (send.into_half(), recv.into_half());
    if !std::ptr::addr_eq(send.core(), recv.core()) {
        return Err(DestroyError::DifferentQueuePairs {
            send: send.core().qp_num(),
            recv: recv.core().qp_num(),
        });
    }
    let (end_send, end_recv) = (send.ring().stopped(), recv.ring().stopped());
    send.core()
        .destroy(end_send, end_recv)
        .map_err(DestroyError::Refused)?;
    Ok((send.ring().drain(), recv.ring().drain()))
}

impl<T: Send + 'static, K> SendQueue<T, K> {
    /// As [`destroy`], for a queue pair that takes its receives from a [`SharedRecvQueue`](crate::SharedRecvQueue). What it had taken from there and not completed
    /// stays in the shared queue until that is destroyed.
    ///
    /// # Errors
    /// [`DestroyError::NotShared`] when it has a receive queue of its own (this one is dropped then); else as [`destroy`].
    #[doc(alias = "ibv_destroy_qp")]
    pub fn destroy(self) -> Result<Vec<T>, DestroyError> {
        let mut send = self.into_half();
        if let Receives::Own(_) = send.core().recv {
            return Err(DestroyError::NotShared {
                qp_num: send.core().qp_num(),
            });
        }
        let end = send.ring().stopped();
        send.core()
            .destroy(end, Receives::NOTHING)
            .map_err(DestroyError::Refused)?;
        Ok(send.ring().drain())
    }
}
