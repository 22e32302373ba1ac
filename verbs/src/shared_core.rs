//! The shared receive queue behind its handle, and the memory posted to it.
//!
//! Who keeps what alive: the handle ([`SharedRecvQueue`](crate::SharedRecvQueue)) and every queue pair that takes from the queue
//! hold the same reference-counted object, in which the posted values lie as well. So when the last of them is gone, no queue pair
//! can take a receive any more; then the queue is destroyed, and only then the values are dropped. If the device refuses to destroy
//! it, or one of its queue pairs was leaked, values, queue and domain are leaked. A handle or queue pair that is forgotten keeps
//! everything as it is.
//!
//! What a queue pair had taken from the queue and not completed when it was destroyed is not known to anybody but the device: such
//! values stay until the end of the shared queue.

use std::cell::UnsafeCell;
use std::mem::ManuallyDrop;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use ibverbs_sys::ibv_srq;
use parking_lot::Mutex;

use crate::cq::CqShared;
use crate::errno;
use crate::slots::Slots;
use crate::{Context, Error, Pd};

/// What the device has of it.
pub(crate) struct SharedCore {
    srq: NonNull<ibv_srq>,
    /// Never used twice in a process.
    number: u32,
    /// Whether its messages have a network header.
    datagrams: bool,
    pd: Pd,
    sizes: Mutex<Sizes>,
}

/// What has to agree when the queue is resized.
struct Sizes {
    depth: u32,
    /// Completion queues that have claimed room for so many.
    cqs: Vec<Weak<CqShared>>,
}

// SAFETY: the verbs on a shared receive queue may be called from any thread; the pointer is only followed by the device's functions.
unsafe impl Send for SharedCore {}
// SAFETY: as above.
unsafe impl Sync for SharedCore {}

impl SharedCore {
    pub(crate) fn new(
        srq: NonNull<ibv_srq>,
        number: u32,
        depth: u32,
        datagrams: bool,
        pd: Pd,
    ) -> SharedCore {
        let sizes = Sizes {
            depth,
            cqs: Vec::new(),
        };
        SharedCore {
            srq,
            number,
            datagrams,
            pd,
            sizes: Mutex::new(sizes),
        }
    }

    pub(crate) fn raw(&self) -> *mut ibv_srq {
        self.srq.as_ptr()
    }

    pub(crate) fn datagrams(&self) -> bool {
        self.datagrams
    }

    pub(crate) fn pd(&self) -> &Pd {
        &self.pd
    }

    pub(crate) fn context(&self) -> &Context {
        self.pd.context()
    }

    /// Gives the queue `depth` slots, with `resize`, if all completion queues have room for their completions.
    pub(crate) fn resize(
        &self,
        depth: u32,
        resize: impl FnOnce() -> Result<(), Error>,
    ) -> Result<(), Error> {
        let mut sizes = self.sizes.lock();
        sizes.cqs.retain(|cq| cq.strong_count() > 0);
        let cqs: Vec<_> = sizes.cqs.iter().filter_map(Weak::upgrade).collect();
        // While it is not known, room for whichever is more.
        let during = depth.max(sizes.depth);
        let result = cqs
            .iter()
            .try_for_each(|cq| cq.resize_shared(self.number, during))
            .and_then(|()| resize());
        let before = sizes.depth;
        if result.is_ok() {
            sizes.depth = depth;
        }
        let less = before.saturating_sub(sizes.depth);
        for cq in &cqs {
            cq.set_shared(self.number, sizes.depth, less);
        }
        result
    }

    #[doc(alias = "ibv_destroy_srq")]
    fn destroy(&self) -> std::io::Result<()> {
        // SAFETY: created, and not used again after success: called from the one place where the last reference ends.
        errno::check(unsafe { (self.pd.api().ibv_destroy_srq)(self.srq.as_ptr()) })
    }
}

/// The queue and the values posted to it.
pub(crate) struct SharedQueue<T> {
    pub(crate) core: SharedCore,
    slots: UnsafeCell<ManuallyDrop<Slots<T>>>,
}

// SAFETY: the slots are used by the handle alone, of which there is one, and by `drop`.
unsafe impl<T: Send> Sync for SharedQueue<T> {}

impl<T> SharedQueue<T> {
    pub(crate) fn new(core: SharedCore, slots: Slots<T>) -> SharedQueue<T> {
        SharedQueue {
            core,
            slots: UnsafeCell::new(ManuallyDrop::new(slots)),
        }
    }

    /// The values posted.
    ///
    /// # Safety
    /// Only for the one handle, and no reference from an earlier call is in use.
    #[allow(clippy::mut_from_ref, reason = "the contract says who may call it")]
    #[inline(always)]
    pub(crate) unsafe fn slots(&self) -> &mut Slots<T> {
        // SAFETY: the caller's contract.
        unsafe { &mut *self.slots.get() }
    }

    /// The values posted.
    ///
    /// # Safety
    /// Only for the one handle, and no mutable reference from an earlier call is in use.
    #[inline(always)]
    pub(crate) unsafe fn slots_ref(&self) -> &Slots<T> {
        // SAFETY: the caller's contract.
        unsafe { &*self.slots.get() }
    }
}

impl<T> Drop for SharedQueue<T> {
    fn drop(&mut self) {
        match self.core.destroy() {
            // SAFETY: dropped here only, and the device has given the memory up.
            Ok(()) => unsafe { ManuallyDrop::drop(self.slots.get_mut()) },
            // The device may still use the memory, and the queue its domain.
            Err(_) => std::mem::forget(self.core.pd.clone()),
        }
    }
}

/// A [`SharedQueue`] of whatever type.
pub(crate) trait KeepShared: Send + Sync {
    fn core(&self) -> &SharedCore;
}

impl<T: Send> KeepShared for SharedQueue<T> {
    fn core(&self) -> &SharedCore {
        &self.core
    }
}

/// A queue pair's part in a shared queue: keeps it alive, and has room on a completion queue.
pub(crate) struct Member {
    queue: Arc<dyn KeepShared>,
    cq: Arc<CqShared>,
    left: AtomicBool,
}

impl Member {
    pub(crate) fn new(
        queue: Arc<dyn KeepShared>,
        cq: &Arc<CqShared>,
        overcommit: bool,
    ) -> Result<Member, Error> {
        let core = queue.core();
        let mut sizes = core.sizes.lock();
        cq.join_shared(core.number, sizes.depth, overcommit)?;
        let weak = Arc::downgrade(cq);
        if !sizes.cqs.iter().any(|known| known.ptr_eq(&weak)) {
            sizes.cqs.push(weak);
        }
        drop(sizes);
        Ok(Member {
            queue,
            cq: cq.clone(),
            left: false.into(),
        })
    }

    /// The queue pair is destroyed.
    pub(crate) fn leave(&self) {
        if !self.left.swap(true, Ordering::Relaxed) {
            self.cq.leave_shared(self.queue.core().number, true);
        }
    }

    /// The queue pair may still take from the queue: it stays for ever, and so does the room.
    pub(crate) fn leak(&self) {
        std::mem::forget((self.queue.clone(), self.cq.clone()));
        self.left.store(true, Ordering::Relaxed);
    }
}

impl Drop for Member {
    /// For a queue pair that was never made; else it is done already.
    fn drop(&mut self) {
        if !*self.left.get_mut() {
            self.cq.leave_shared(self.queue.core().number, false);
        }
    }
}
