//! Writing into a ring that is polled: frames, the count, and wakes.

use super::{Link, NotPosted, post_failed};
use crate::bell::{CELL_LEN, FIRST_SLEEP, FLAG_AT, Ringer};
use crate::error::Lost;
use crate::posted::{Message, Posted};
use crate::ring::stamp::{FRAME_LEN, frame, frame_of_pieces};
use mempool::{AllocError, BudgetKind, Buf, ExposedLease, Kind, Pool};
use std::sync::atomic::Ordering;
use verbs::{Pd, RemoteRegion, SendQueue};

/// The sender's side of a polled ring.
pub(super) struct Teller {
    ring: RemoteRegion,
    ringer: Ringer,
    cell: ExposedLease,
    /// Where small messages get their frame.
    scratch: Box<[u8; super::SMALL_MESSAGE]>,
    /// Frames for other messages, as many as there can be at once: nothing is allocated when one is posted.
    frames: Vec<Buf>,
}

/// A cell for the peer to reach: nothing has been posted, and the peer sleeps.
pub(super) fn cell(pd: &Pd, pool: &Pool) -> Result<ExposedLease, super::PrepareError> {
    use super::PrepareError::{Receives, Ring};
    let cell = pool
        .exposed_in(BudgetKind::Receive, CELL_LEN as usize)
        .map_err(Receives)?;
    // What it was used for before means nothing.
    let _ = cell.write_at(0, &[0; CELL_LEN as usize]);
    let _ = cell.write_at(FLAG_AT as usize, &FIRST_SLEEP.to_le_bytes());
    let access = verbs::Access::REMOTE_READ | verbs::Access::REMOTE_WRITE;
    cell.lease(pd, access).map_err(Ring)
}

impl Teller {
    /// For a send queue of this depth.
    pub fn new(
        ring: RemoteRegion,
        cell: ExposedLease,
        pool: &Pool,
        depth: u32,
    ) -> Result<Teller, AllocError> {
        let all = depth as usize * FRAME_LEN;
        let mut memory = pool.alloc_in(BudgetKind::Control, Kind::Private, all)?;
        let frames = (0..depth).map(|_| memory.split_to(FRAME_LEN)).collect();
        Ok(Teller {
            ring,
            ringer: Ringer::default(),
            cell,
            scratch: Box::new([0; super::SMALL_MESSAGE]),
            frames,
        })
    }

    /// The number of the next message, counted from 0.
    fn number(&self) -> u64 {
        self.ringer.posted()
    }

    /// A message is about to be posted: to be called before.
    #[inline]
    fn count(&mut self) {
        let count = self.ringer.count();
        // A whole barrier: whoever does not see this store is seen by the load in `must_wake`.
        match self.cell.atomic_u64(0) {
            Ok(word) => drop(word.swap(count.to_le(), Ordering::SeqCst)),
            Err(_) => debug_assert!(false, "the cell has two words"),
        }
    }

    /// It has been posted: whether the peer is to be woken.
    #[inline]
    fn must_wake(&mut self) -> bool {
        let flag = self.cell.atomic_u64(FLAG_AT as usize);
        let flag = flag.map_or(0, |word| u64::from_le(word.load(Ordering::SeqCst)));
        self.ringer.must_wake(flag)
    }

    /// Puts a frame in front of a message. There is one: as many as messages that can be posted. Without it the message could not be found, so then it is not posted.
    pub fn frame(&mut self, message: &mut Message) -> Result<(), Lost> {
        let Some(mut memory) = self.frames.pop() else {
            return Err(post_failed(&"more messages than the queue holds"));
        };
        let number = self.number();
        let bytes = match message.body.is_empty() {
            true => frame(number, &message.header),
            false => frame_of_pieces(number, message.len(), |each| {
                each(&message.header);
                message.body.each(each);
            }),
        };
        memory.copy_from_slice(&bytes);
        message.frame = Some(memory);
        self.count();
        Ok(())
    }

    /// Takes memory back whose message is over.
    #[inline]
    pub fn give_back(&mut self, frame: Buf) {
        self.frames.push(frame);
    }

    /// Where a message of so many bytes goes, frame included.
    pub fn place(&self, offset: u64, len: usize) -> Result<RemoteRegion, Lost> {
        let end = offset + (FRAME_LEN + len) as u64;
        self.ring.slice(offset..end).map_err(|e| post_failed(&e))
    }

    /// Posts a small message, by copy.
    #[inline]
    pub fn post_small(
        &mut self,
        tx: &mut SendQueue<Posted>,
        message: &[u8],
        offset: u64,
        signal: bool,
    ) -> Result<(), Lost> {
        let end = FRAME_LEN + message.len();
        let Some(framed) = self.scratch.get_mut(..end) else {
            debug_assert!(false, "longer than small");
            return Err(post_failed(&"longer than small"));
        };
        framed[FRAME_LEN..].copy_from_slice(message);
        framed[..FRAME_LEN].copy_from_slice(&frame(self.ringer.posted(), message));
        let place = self.place(offset, message.len())?;
        self.count();
        let framed = &self.scratch[..end];
        let wr = tx.write_copy(framed, Posted::Copied, place);
        let wr = if signal { wr.signaled() } else { wr };
        wr.post().map_err(|e| post_failed(&e))
    }
}

impl Link {
    /// Wakes the peer if it sleeps, behind what has been posted.
    ///
    /// That it cannot be woken is no error of what has been posted, which is on its way and may be found all the same: it is the end of the connection, of which
    /// completions tell.
    #[inline]
    pub(super) fn wake(&mut self) {
        if self.teller.as_mut().is_some_and(|t| t.must_wake()) {
            self.post_wake();
        }
    }

    /// `may_post` keeps a place in the queue for it.
    #[cold]
    fn post_wake(&mut self) {
        let signal = self.unsignaled + 1 >= self.signal_every;
        let wr = self.tx.send(Posted::Copied);
        let wr = if signal { wr.signaled() } else { wr };
        match wr.post() {
            Ok(()) => self.unsignaled = if signal { 0 } else { self.unsignaled + 1 },
            // Of a device that refuses this as well there is nothing left to be expected but that deadlines pass.
            Err(_) => drop(self.tx.set_error()),
        }
    }

    /// The frame of a message that is over.
    #[inline(never)]
    pub(super) fn unframe(&mut self, frame: Buf) {
        if let Some(teller) = &mut self.teller {
            teller.give_back(frame);
        }
    }

    /// Posts a small message that is not written with immediate data: it is written with a frame, or sent.
    #[inline(never)]
    pub(super) fn post_small_elsewhere(
        &mut self,
        message: &[u8],
        signal: bool,
        offset: Option<u64>,
    ) -> Result<(), Lost> {
        match (&mut self.teller, offset) {
            (Some(teller), Some(offset)) => {
                teller.post_small(&mut self.tx, message, offset, signal)?;
            }
            _ => {
                let wr = self.tx.send_copy(message, Posted::Copied);
                let wr = if signal { wr.signaled() } else { wr };
                wr.post().map_err(|e| post_failed(&e))?;
            }
        }
        self.unsignaled = if signal { 0 } else { self.unsignaled + 1 };
        self.wake();
        Ok(())
    }

    /// Writes a message into the peer's ring, with a frame.
    #[inline(never)]
    pub(super) fn post_framed(
        &mut self,
        mut message: Box<Message>,
        signal: bool,
        offset: u64,
    ) -> Result<(), NotPosted> {
        let Some(teller) = &mut self.teller else {
            debug_assert!(false, "no ring that is polled");
            return Ok(());
        };
        let framed = teller.frame(&mut message);
        let place = match framed.and_then(|()| teller.place(offset, message.len())) {
            Ok(place) => place,
            Err(lost) => return Err(NotPosted::before(lost, message.body)),
        };
        let wr = self.tx.write(Posted::Message(message), place);
        let wr = if signal { wr.signaled() } else { wr };
        wr.post().map_err(NotPosted::refused)?;
        self.unsignaled = if signal { 0 } else { self.unsignaled + 1 };
        self.wake();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::posted::Body;

    #[test]
    fn without_a_frame_nothing_is_counted() {
        let pd = verbs::Device::open_spec("soft0").unwrap();
        let pd = pd.alloc_pd().unwrap();
        let pool = Pool::builder(&pd).build().unwrap();
        let ring = RemoteRegion {
            addr: 4096,
            len: 4096,
            rkey: verbs::RKey(7),
        };
        let cell = cell(&pd, &pool).map_err(|_| "a cell").unwrap();
        let mut teller = Teller::new(ring, cell, &pool, 2).unwrap();
        let message = || Message {
            frame: None,
            header: pool.alloc_from_slice(b"a header").unwrap(),
            body: Body::Empty,
            owner: None,
        };
        let mut framed = [message(), message()];
        for (number, message) in framed.iter_mut().enumerate() {
            teller.frame(message).unwrap();
            let expected = frame(number as u64, b"a header");
            assert_eq!(message.frame.as_deref(), Some(&expected[..]));
        }
        let mut third = message();
        let error = teller.frame(&mut third).unwrap_err();
        assert!(error.to_string().contains("more messages"), "{error}");
        assert!(third.frame.is_none() && teller.number() == 2);
        // With one that has come back, it goes on with the number that was not used.
        teller.give_back(framed[0].frame.take().unwrap());
        teller.frame(&mut third).unwrap();
        assert_eq!(third.frame.as_deref(), Some(&frame(2, b"a header")[..]));
    }
}
