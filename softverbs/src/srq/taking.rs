//! The initiator's side of a shared receive queue.

use super::claims::{Claims, Place, SLOT_BITS};
use crate::layout::SrqAdvert;
use crate::peer::Peer;
use crate::segment::Shared;
use core::sync::atomic::{AtomicU32, Ordering};
use std::sync::Arc;

/// The queue that the peer's queue pair takes its receives from, attached.
pub(crate) struct SharedQueue {
    advert: Shared<SrqAdvert>,
    claims: Arc<Claims>,
    ring_off: u64,
    order: u32,
    /// Protection domain of the entries.
    pub pd: u32,
    /// The peer's queue pair.
    qp: usize,
}

impl SharedQueue {
    /// Queue `index` of the peer's, for its queue pair `qp`.
    pub fn attach(peer: &Peer, index: u32, qp: usize) -> Option<SharedQueue> {
        let advert = peer.segment.share(|s| s.srq(index as usize));
        let order = advert.order.load(Ordering::Relaxed);
        if order > SLOT_BITS {
            return None;
        }
        Some(SharedQueue {
            claims: peer.claims(index, order)?,
            ring_off: advert.ring_off.load(Ordering::Relaxed),
            order,
            pd: advert.pd.load(Ordering::Relaxed),
            advert,
            qp,
        })
    }

    /// Claims an entry, if there is one. The caller has set its hazard and found the peer's queue pair to be there.
    pub fn claim(&self, peer: &Peer) -> Option<Place> {
        let ring: &[AtomicU32] = peer.segment.ring(self.ring_off, 1 << self.order)?;
        let posted = self.advert.posted.0.load(Ordering::Acquire);
        let place = self.claims.claim(ring, posted, self.qp)?;
        let limit = self.advert.limit.load(Ordering::Relaxed);
        if posted.saturating_sub(place.position) < u64::from(limit) {
            // Its owner wants to know, and may be asleep.
            peer.kick();
        }
        Some(place)
    }

    /// Whether more than so many entries can be had, at this moment.
    pub fn has_more_than(&self, peer: &Peer, count: u64) -> bool {
        let ring: Option<&[AtomicU32]> = peer.segment.ring(self.ring_off, 1 << self.order);
        let posted = self.advert.posted.0.load(Ordering::Acquire);
        ring.is_some_and(|ring| self.claims.has_more_than(ring, posted, count))
    }

    /// Says that an initiator waits; see [`Claims::park`].
    pub fn park(&self) {
        self.claims.park();
    }
}
