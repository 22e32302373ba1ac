//! Completion events: arming, waking, delivery, acknowledgement.

use super::{CqCore, Given};
use crate::channel::Record;
use crate::layout::{ARM_ANY, ARM_NONE, ARM_SOLICITED};
use crate::quiet;
use core::ffi::c_void;
use core::sync::atomic::{Ordering, compiler_fence, fence};
use std::io;

impl CqCore {
    /// `ibv_req_notify_cq`.
    pub fn arm(&self, solicited_only: bool) -> io::Result<()> {
        let advert = self.process.segment.cq(self.index as usize);
        let mode = if solicited_only {
            ARM_SOLICITED
        } else {
            ARM_ANY
        };
        let mut now = advert.armed.load(Ordering::Relaxed);
        loop {
            // Arming for any completion wins over an earlier arming for solicited ones, never the other way round.
            let stronger = now & 3 == ARM_ANY && !self.was_delivered(now >> 2);
            let new = ((now >> 2) + 1) << 2 | if stronger { ARM_ANY } else { mode };
            match advert
                .armed
                .compare_exchange(now, new, Ordering::Relaxed, Ordering::Relaxed)
            {
                Ok(_) => break,
                Err(other) => now = other,
            }
        }
        // Producers push and then look whether we are armed, without a fence between; this barrier is that fence. So what
        // they pushed before they could see the arming, the caller's next poll sees.
        quiet::barrier(self.process)?;
        // Also what nobody says. Not before the barrier: another thread's poll that took this up then would look too early, and leave nothing to the
        // poll that follows.
        self.doubt();
        Ok(())
    }

    fn was_delivered(&self, generation: u64) -> bool {
        self.delivered.load(Ordering::Relaxed) >= generation
    }

    /// Whether a record of this generation is an event that was not delivered before; if so it is now.
    pub fn deliver(&self, low: u32) -> bool {
        let advert = self.process.segment.cq(self.index as usize);
        loop {
            let armed = advert.armed.load(Ordering::Relaxed);
            let delivered = self.delivered.load(Ordering::Relaxed);
            // Generations fit into 62 bits; the record's low half is completed from the current one.
            let behind = ((armed >> 2) as u32).wrapping_sub(low);
            let Some(generation) = (armed >> 2).checked_sub(u64::from(behind)) else {
                return false;
            };
            if generation <= delivered {
                return false;
            }
            if self
                .delivered
                .compare_exchange(delivered, generation, Ordering::Relaxed, Ordering::Relaxed)
                .is_ok()
            {
                if generation == armed >> 2 {
                    let none = generation << 2 | ARM_NONE;
                    // A concurrent arming has a newer generation and stays.
                    let _ = advert.armed.compare_exchange(
                        armed,
                        none,
                        Ordering::Relaxed,
                        Ordering::Relaxed,
                    );
                }
                return true;
            }
        }
    }

    /// The record that is due if the queue is armed and has something.
    pub fn due(&self) -> Option<Record> {
        let advert = self.process.segment.cq(self.index as usize);
        let armed = advert.armed.load(Ordering::Relaxed);
        (armed & 3 != ARM_NONE && self.has_something()).then_some(Record {
            cq: self.index,
            generation: (armed >> 2) as u32,
        })
    }

    /// Delivers the current generation if it is armed.
    pub fn deliver_armed(&self) -> bool {
        let armed = self
            .process
            .segment
            .cq(self.index as usize)
            .armed
            .load(Ordering::Relaxed);
        armed & 3 != ARM_NONE && self.deliver((armed >> 2) as u32)
    }

    /// Hands out an event: the handle, unless the queue is being destroyed. Destroying it waits for the acknowledgement.
    pub fn give(&self) -> Option<*mut c_void> {
        let mut given = self.given.lock();
        (!given.gone).then(|| {
            given.given += 1;
            self.handle.load(Ordering::Acquire)
        })
    }

    /// Acknowledges events.
    pub fn ack(&self, count: u32) {
        self.given.lock().acked += u64::from(count);
        self.acked.notify_all();
    }

    /// No event is handed out from here on; waits until all that were are acknowledged (ibv_destroy_cq(3)).
    pub fn retire(&self) {
        let mut given = self.given.lock();
        given.gone = true;
        let owed = |given: &mut Given| given.given != given.acked;
        drop(self.acked.wait_while(given, owed));
        self.events
            .retire(self.handle.load(Ordering::Acquire).addr());
    }

    /// Wakes whoever waits for this queue, for something that this process completed itself.
    #[inline]
    pub fn wake_own(&self, solicited: bool) {
        let Some(channel) = &self.channel else {
            return;
        };
        if self.process.fenced() {
            fence(Ordering::SeqCst);
        } else {
            compiler_fence(Ordering::SeqCst);
        }
        let advert = self.process.segment.cq(self.index as usize);
        let armed = advert.armed.load(Ordering::Relaxed);
        if wants(armed, solicited) && self.own_woken.load(Ordering::Relaxed) != armed >> 2 {
            let record = Record {
                cq: self.index,
                generation: (armed >> 2) as u32,
            };
            if record.send(&channel.write) {
                self.own_woken.store(armed >> 2, Ordering::Relaxed);
            }
        }
    }
}

/// Whether an armed word asks to be woken.
#[inline]
pub(crate) fn wants(armed: u64, solicited: bool) -> bool {
    match armed & 3 {
        ARM_NONE => false,
        ARM_SOLICITED => solicited,
        _ => true,
    }
}
