//! Hazards: memory is given back only when nothing touches it.
//!
//! An initiator stores what it is about to touch (a receive entry, or a region) into the hazard word of its own lane line,
//! with a plain store, *before* it reads the state of the queue pair and the region's key, and clears it afterwards. Whoever
//! wants memory back withdraws the advertisement, then runs `membarrier`, which makes every running thread of every attached
//! process pass a full fence, and then looks at the hazards: each initiator either saw the withdrawal or is seen. Hazards of
//! dead processes count as done; a process that is alive but stopped is waited for a bounded time only.

use crate::lane::Head;
use crate::os::membarrier;
use crate::peer::Peer;
use crate::process::Process;
use core::sync::atomic::{Ordering, compiler_fence, fence};
use std::io;
use std::time::{Duration, Instant};

/// How long a live process that does not move is waited for.
const PATIENCE: Duration = Duration::from_secs(1);

/// Name in a hazard word: a receive entry of the lane's queue pair.
pub(crate) const RECV: u32 = 1 << 31;

/// Sets the hazard word: `name` is [`RECV`] or a key, `op` tells this use from the one before.
#[inline]
pub(crate) fn enter(head: &Head, op: u32, name: u32, fenced: bool) {
    head.hazard
        .store(u64::from(op) << 32 | u64::from(name), Ordering::Relaxed);
    if fenced {
        fence(Ordering::SeqCst)
    } else {
        compiler_fence(Ordering::SeqCst)
    }
}

/// Clears the hazard word.
#[inline]
pub(crate) fn leave(head: &Head) {
    head.hazard.store(0, Ordering::Release);
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

/// Waits until the hazard word no longer holds what it holds now, if that `concerns` the caller. The caller has run a barrier.
pub(crate) fn wait(head: &Head, peer: &Peer, concerns: impl Fn(u32) -> bool) -> io::Result<()> {
    let first = head.hazard.load(Ordering::Acquire);
    if first == 0 || !concerns(first as u32) {
        return Ok(());
    }
    let begin = Instant::now();
    let mut round = 0u32;
    loop {
        if head.hazard.load(Ordering::Acquire) != first || peer.check_dead() {
            return Ok(());
        }
        if begin.elapsed() > PATIENCE {
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
    for qp in process.qps() {
        // This process's own work runs under these locks and checks keys under them.
        drop(qp.send.lock());
        let recv = qp.recv.lock();
        if let Some(lane) = recv.lane() {
            wait(lane.head(), lane.peer(), |name| {
                name == key || name & RECV != 0
            })?;
        }
    }
    Ok(())
}
