//! Hazards: memory is given back only when nothing touches it.
//!
//! An initiator stores what it is about to touch (a receive entry, or a region) into the hazard word of its own advertisement,
//! with a plain store (a READ or atomic: with a full fence), *before* it reads the state of the queue pair and the region's key,
//! and clears it afterwards. Whoever wants memory back withdraws the advertisement, then runs the barrier of
//! [`crate::os::membarrier`], after which every running thread of every attached process has passed a full fence, and then
//! looks at the hazards: each initiator either saw the withdrawal or is seen. Hazards of dead processes count as done; a
//! process that is alive but stopped is waited for a bounded time only.

use crate::layout::QpAdvert;
use crate::os::membarrier;
use crate::peer::Peer;
use crate::process::Process;
use core::sync::atomic::{Ordering, compiler_fence, fence};
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long a stopped process is waited for.
const PATIENCE: Duration = Duration::from_millis(500);
/// How long a copy may take, of a gibibyte on a loaded machine in the sliced mode.
const LONGEST: Duration = Duration::from_secs(20);

/// Name in a hazard word: a receive entry of the lane's queue pair.
pub(crate) const RECV: u32 = 1 << 31;

/// Sets the hazard word: `name` is [`RECV`] or a key, `op` tells this use from the one before.
#[inline]
pub(crate) fn enter(own: &QpAdvert, op: u32, name: u32, fenced: bool) {
    own.hazard
        .0
        .store(u64::from(op) << 32 | u64::from(name), Ordering::Relaxed);
    if fenced {
        fence(Ordering::SeqCst)
    } else {
        compiler_fence(Ordering::SeqCst)
    }
}

/// Clears the hazard word.
#[inline]
pub(crate) fn leave(own: &QpAdvert) {
    own.hazard.0.store(0, Ordering::Release);
}

/// The taking-back side of the fence: everything the caller withdrew before is seen by whoever sets a hazard from now on,
/// and hazards set before are seen by the caller.
pub(crate) fn barrier(process: &Process) -> io::Result<()> {
    if process.fenced() {
        fence(Ordering::SeqCst);
        return Ok(());
    }
    membarrier::barrier()
}

/// A producer that may be at work on something of ours.
#[derive(Clone)]
pub(crate) struct Producing {
    pub peer: Arc<Peer>,
    pub qpn: u32,
}

impl Producing {
    pub fn advert(&self) -> &QpAdvert {
        self.peer.segment.qp(self.qpn as usize)
    }

    /// Whether it is at work right now, on anything.
    pub fn is_busy(&self) -> bool {
        self.advert().hazard.0.load(Ordering::Acquire) != 0 && !self.peer.check_dead()
    }

    /// Waits until the hazard word no longer holds what it holds now, if that `concerns` the caller, who has run a barrier.
    ///
    /// # Errors
    ///
    /// `EBUSY`: the process is stopped, or took longer than even the longest copy does.
    pub fn wait(&self, concerns: impl Fn(u32) -> bool) -> io::Result<()> {
        let hazard = &self.advert().hazard.0;
        let first = hazard.load(Ordering::Acquire);
        if first == 0 || !concerns(first as u32) {
            return Ok(());
        }
        let begin = Instant::now();
        let mut round = 0u32;
        loop {
            if hazard.load(Ordering::Acquire) != first || self.peer.check_dead() {
                return Ok(());
            }
            let waited = begin.elapsed();
            if waited > LONGEST || waited > PATIENCE && self.peer.is_stopped() {
                return Err(io::Error::from_raw_os_error(libc::EBUSY));
            }
            round += 1;
            if round < 64 {
                core::hint::spin_loop();
            } else {
                std::thread::yield_now();
            }
        }
    }
}

/// Waits until nobody touches the region with `key`, whose advertisement was withdrawn before.
///
/// `writable`: peers may have written to it, by key or as the memory of a receive. If not, only READs can have touched it,
/// which set their hazard with a full fence; then one here is enough, and ending a lease costs no `membarrier`.
pub(crate) fn region(process: &Process, key: u32, writable: bool) -> io::Result<()> {
    if writable {
        barrier(process)?;
    } else {
        fence(Ordering::SeqCst);
    }
    let mut fenced = writable && !process.fenced();
    for qp in process.qps() {
        // This process's own work runs under these locks and checks keys under them.
        qp.send.pass(&mut fenced);
        qp.recv_cq.pass(&mut fenced);
        let producing = qp.producing();
        if let Some(producing) = producing {
            // A receive that has not been taken is all that it can be at work on, and others' memory is not kept for it.
            let receiving = || writable && qp.receives_into(key);
            producing.wait(|name| name == key || name & RECV != 0 && receiving())?;
        }
    }
    Ok(())
}
