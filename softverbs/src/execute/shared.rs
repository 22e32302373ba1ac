//! Taking an entry of a shared receive queue, with the hazard set.

use crate::link::{OutLane, answers};
use crate::os::membarrier;
use crate::peer::Peer;
use crate::quiet;
use crate::srq::SharedQueue;
use core::sync::atomic::{Ordering, fence};

/// Why there is no entry.
pub(super) enum Missed {
    /// All are taken.
    Empty,
    /// The peer's queue pair takes no requests.
    Gone,
}

/// Claims an entry and gives its index; then the hazard is set to `name`, and the peer's queue pair is there. Without one, and
/// if the request `waits`, a post gives notice. The claim is made under the hazard: who has waited for that has seen all
/// claims.
#[inline(never)]
pub(super) fn enter(
    out: &mut OutLane,
    peer: &Peer,
    dest: u32,
    name: u32,
    waits: bool,
) -> Result<u64, Missed> {
    let claim = |out: &OutLane, shared: &SharedQueue| {
        quiet::enter(&out.own, out.op | 1 << 31, name, out.fenced);
        let there = answers(&out.advert, dest)
            && out.advert.lane_generation.load(Ordering::Relaxed) == out.generation;
        let place = if there { shared.claim(peer) } else { None };
        if place.is_none() {
            quiet::leave(&out.own);
        }
        match place {
            Some(place) => Ok(place.to_index()),
            None if there => Err(Missed::Empty),
            None => Err(Missed::Gone),
        }
    };
    let shared = out.shared.as_ref().ok_or(Missed::Gone)?;
    let parked = &out.own.word.0.parked;
    match claim(out, shared) {
        Err(Missed::Empty) if waits => {}
        claimed => {
            if claimed.is_ok() {
                parked.store(0, Ordering::Relaxed);
            }
            return claimed;
        }
    }
    parked.store(1, Ordering::Release);
    shared.park();
    // Should it pass a processor by, the watcher's next look finds the entry.
    if out.fenced || membarrier::barrier_unsettled().is_err() {
        fence(Ordering::SeqCst);
    }
    out.op = out.op.wrapping_add(1);
    let claimed = claim(out, shared);
    if claimed.is_ok() {
        parked.store(0, Ordering::Relaxed);
    }
    claimed
}
