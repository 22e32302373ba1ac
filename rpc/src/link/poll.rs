//! Reading a ring that is polled: looking, copying out, and going to sleep.

use super::Link;
use super::inbox::Inbox;
use crate::bell::{CELL_LEN, FLAG_AT, Impossible, Rest, Sleeper};
use crate::credit::Credits;
use crate::error::{Lost, Violation};
use crate::posted::{Asking, NoMemory, Posted, Word};
use crate::ring::GRANULE;
use crate::ring::taker::{Memory, Taker};
use mempool::{AllocError, BudgetKind, ExposedLease, Kind, Pool};
use std::sync::atomic::{Ordering, fence};
use verbs::{RecvQueue, RemoteRegion};

/// Receive entries for wakes. One can be on its way at most.
pub(super) const WAKES: u32 = 2;

/// The receiver's side of a polled ring.
pub(super) struct Polled {
    /// For wakes alone.
    pub queue: RecvQueue<NoMemory>,
    pub ring: ExposedLease,
    taker: Taker,
    /// Most messages that can be on their way.
    window: u32,
    sleeper: Sleeper,
    /// The peer's cell.
    cell: RemoteRegion,
    /// For what is written there and read from there; `None` while it is with the device.
    flag: Option<Box<Word>>,
    count: Option<Box<Word>>,
}

impl Memory for ExposedLease {
    #[inline]
    fn word(&self, at: u64) -> Option<u64> {
        let word = self.atomic_u64(at as usize).ok()?;
        Some(u64::from_le(word.load(Ordering::Acquire)))
    }

    #[inline]
    fn copy(&self, at: u64, out: &mut [u8]) -> bool {
        self.read_at(at as usize, out).is_ok()
    }

    #[inline]
    fn clear(&self, at: u64) {
        if let Ok(word) = self.atomic_u64(at as usize) {
            word.store(0, Ordering::Relaxed);
        }
    }
}

impl Polled {
    /// Nothing has been taken. Clears the ring.
    pub fn new(
        queue: RecvQueue<NoMemory>,
        ring: ExposedLease,
        (max, window): (usize, u32),
        cell: RemoteRegion,
        pool: &Pool,
    ) -> Result<Polled, AllocError> {
        // What another connection left there has stamps as well.
        let zeros = [0; GRANULE as usize];
        for at in (0..ring.len()).step_by(zeros.len()) {
            let _ = ring.write_at(at, &zeros);
        }
        let word = || {
            let memory = pool.alloc_in(BudgetKind::Control, Kind::Private, 8)?;
            Ok(Some(Box::new(Word::new(memory))))
        };
        Ok(Polled {
            queue,
            ring,
            taker: Taker::new(max),
            window,
            sleeper: Sleeper::default(),
            cell,
            flag: word()?,
            count: word()?,
        })
    }

    /// The message at hand. Apart, so that other inboxes are not the slower for it.
    #[inline(never)]
    pub fn message(&self) -> &[u8] {
        self.taker.message()
    }

    /// Takes the next message out of the ring, if it is there.
    #[inline]
    fn look(&mut self, credits: &mut Credits) -> Result<bool, Lost> {
        let found = self.taker.look(&self.ring, credits)?;
        if found {
            self.sleeper.heard();
        }
        Ok(found)
    }

    /// The wake has come.
    pub fn woken(&mut self) -> Result<(), Lost> {
        self.sleeper.woken().map_err(|Impossible| Violation::Wake)?;
        self.queue
            .post(NoMemory)
            .map_err(|e| super::inbox::not_posted(&e))
    }
}

impl Link {
    fn polled(&mut self) -> Option<&mut Polled> {
        match &mut self.inbox {
            Inbox::Polled(polled) => Some(polled),
            _ => None,
        }
    }

    /// Whether messages have to be [looked](Self::look) for, because nobody tells.
    #[inline]
    pub fn polls(&self) -> bool {
        self.inbox.is_polled()
    }

    /// Takes in the next message, if it has come, to be looked at with [`message`](Self::message).
    #[inline]
    pub fn look(&mut self) -> Result<bool, Lost> {
        match &mut self.inbox {
            Inbox::Polled(polled) => polled.look(&mut self.credits),
            _ => Ok(false),
        }
    }

    /// Goes a step towards sleep, after nothing has come for a while: [`Asleep`](Rest::Asleep), [`Doze`](Rest::Doze), or
    /// [`Soon`](Rest::Soon) if a completion is waited for. The end sleeps then until a wake is [received](Self::received).
    pub fn tire(&mut self) -> Result<Rest, Lost> {
        // Both kinds of work: as for READs of bodies. With as many of these out as there may be, the completion of one wakes who sleeps
        // meanwhile, and only messages have to be looked for.
        if !self.may_read() {
            return Ok(match self.reads >= self.most_reads {
                true => Rest::Doze,
                false => Rest::Soon,
            });
        }
        let Some(polled) = self.polled() else {
            return Ok(Rest::Asleep);
        };
        match polled.sleeper.tire(polled.taker.taken()) {
            Rest::Announce(sleep) => {
                let Some(mut word) = polled.flag.take() else {
                    debug_assert!(false, "one at a time");
                    return Ok(Rest::Soon);
                };
                word.set(sleep);
                let place = polled.cell.slice(FLAG_AT..FLAG_AT + 8);
                let place = place.map_err(|e| super::post_failed(&e))?;
                let posted = self.tx.write(Posted::Flag(word), place).signaled().post();
                posted.map_err(|e| super::post_failed(&e))?;
                self.unsignaled = 0;
                Ok(Rest::Soon)
            }
            Rest::Ask => {
                let Some(word) = polled.count.take() else {
                    debug_assert!(false, "one at a time");
                    return Ok(Rest::Soon);
                };
                let place = polled.cell.slice(0..8);
                let place = place.map_err(|e| super::post_failed(&e))?;
                // A device that is this very processor: what it wrote is there before it reads.
                fence(Ordering::SeqCst);
                let posted = self.tx.read(Asking(word), place).signaled().post();
                posted.map_err(|e| super::post_failed(&e))?;
                self.reads += 1;
                self.unsignaled = 0;
                Ok(Rest::Soon)
            }
            rest => Ok(rest),
        }
    }

    /// The flag is with the peer.
    pub(super) fn announced(&mut self, word: Box<Word>) -> Result<(), Lost> {
        let Some(polled) = self.polled() else {
            return Ok(());
        };
        polled.flag = Some(word);
        match polled.sleeper.announced() {
            true => self.tire().map(|_| ()),
            false => Ok(()),
        }
    }

    /// The peer's count is here.
    pub(super) fn told(&mut self, word: Box<Word>) -> Result<(), Lost> {
        let Some(polled) = self.polled() else {
            return Ok(());
        };
        let taken = polled.taker.taken();
        let told = polled.sleeper.told(word.get(), taken, polled.window);
        polled.count = Some(word);
        told.map_err(|Impossible| Violation::Count.into())
    }
}

const _: () = assert!(CELL_LEN >= FLAG_AT + 8);
