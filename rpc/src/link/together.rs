//! Several requests with one doorbell.

use super::{Link, boxed, post_failed};
use crate::credit::Class;
use crate::error::Lost;
use crate::posted::{Body, Message, Posted};
use crate::ring::span;
use crate::ring::stamp::FRAME_LEN;
use crate::wire::{HEADER_LEN, Header, SlotId};
use mempool::Buf;
use verbs::RemoteRegion;

/// One of several requests that are posted together: as the arguments of [`Link::post`].
pub(crate) struct Together {
    pub header: Header,
    pub buf: Buf,
    pub body: Body,
    pub owner: Option<SlotId>,
}

/// Several requests could not be posted, or not all of them. It is the end of the connection.
pub(crate) struct Several {
    pub lost: Lost,
    /// So many of the first were posted all the same.
    pub posted: usize,
    /// What the others had behind their headers, in order.
    pub bodies: Vec<Body>,
}

impl Link {
    /// Longest payload in bytes for [`post_copies`](Self::post_copies); `None` if nothing is posted so.
    #[inline]
    pub fn copies(&self) -> Option<usize> {
        // Where each needs a frame of its own, they are made ready one by one.
        match self.teller {
            None => self.small(),
            Some(_) => None,
        }
    }

    /// Posts small requests with one call of the device, each of which [`requests_beyond`](Self::requests_beyond) said there is
    /// room for: payloads that lie behind room for their headers, of at most [`copies`](Self::copies) bytes.
    ///
    /// The first batches allocate; later ones use that memory again.
    pub fn post_copies<'m>(
        &mut self,
        requests: impl ExactSizeIterator<Item = (Header, &'m mut [u8])>,
    ) -> Result<(), Several> {
        let mut left = requests.len();
        let mut batch = self.tx.batch();
        for (mut header, message) in requests {
            left -= 1;
            let len = message.len();
            let payload = len - HEADER_LEN;
            let sent = self.credits.send(Class::Request, len);
            header.credit = sent.counter;
            header.inline_len = payload as u32;
            header.body_len = payload as u64;
            if let Some(front) = message.first_chunk_mut() {
                header.encode(front);
            }
            // The last one's completion is that of all.
            let signal = left == 0 || self.unsignaled + 1 >= self.signal_every;
            let added = match (self.terms.peer_ring, sent.offset) {
                (Some(ring), Some(offset)) => {
                    // Within the ring, like all that `Credits` gives out.
                    debug_assert!(offset + len as u64 <= ring.len);
                    let place = RemoteRegion {
                        addr: ring.addr + offset,
                        len: len as u64,
                        rkey: ring.rkey,
                    };
                    let wr = batch.write_copy(message, Posted::Copied, place).imm(0);
                    if signal { wr.signaled() } else { wr }.add()
                }
                _ => {
                    let wr = batch.send_copy(message, Posted::Copied);
                    if signal { wr.signaled() } else { wr }.add()
                }
            };
            // There is room, and no message is longer than the device copies.
            added.map_err(|error| nothing(post_failed(&error)))?;
            self.unsignaled = if signal { 0 } else { self.unsignaled + 1 };
            if signal {
                self.frames_out = (0, 0);
            }
        }
        batch.post().map_err(|error| Several {
            lost: post_failed(&error),
            posted: error.posted(),
            bodies: Vec::new(),
        })
    }

    /// How many more requests can be posted together now, however long they are, with so many that take so much of a ring.
    pub fn requests_beyond(&self, count: u32, bytes: u64) -> u32 {
        let room = self.tx.free_slots().saturating_sub(count + self.kept);
        room.min(self.credits.look_beyond(count, bytes))
    }

    /// What a message of so many bytes takes of the peer's ring, with its frame if it has one.
    pub fn room_of(&self, len: usize) -> u64 {
        let frame = if self.teller.is_some() { FRAME_LEN } else { 0 };
        span((frame + len) as u64)
    }

    /// Posts requests with one call of the device, each of which [`requests_beyond`](Self::requests_beyond) said there is
    /// room for.
    ///
    /// The first batches allocate; later ones use that memory again.
    pub fn post_together(
        &mut self,
        requests: impl ExactSizeIterator<Item = Together>,
    ) -> Result<(), Several> {
        let mut left = requests.len();
        let mut batch = self.tx.batch();
        for request in requests {
            let Together {
                mut header,
                mut buf,
                body,
                owner,
            } = request;
            left -= 1;
            let sent = self.credits.send(Class::Request, buf.len() + body.len());
            header.credit = sent.counter;
            if let Some(front) = buf.first_chunk_mut() {
                header.encode(front);
            }
            let message = Message {
                frame: None,
                header: buf,
                body,
                owner,
            };
            let mut message = boxed(&mut self.boxes, message);
            let framed = match (&mut self.teller, sent.offset) {
                (Some(teller), Some(offset)) => {
                    teller.frame(&mut message).map_err(nothing)?;
                    Some(teller.place(offset, message.len()).map_err(nothing)?)
                }
                _ => None,
            };
            let message = Posted::Message(message);
            // The last one's completion is that of all.
            let signal = left == 0 || self.unsignaled + 1 >= self.signal_every;
            let added = match (self.terms.peer_ring, sent.offset) {
                (None, Some(_)) if let Some(place) = framed => {
                    let wr = batch.write(message, place);
                    if signal { wr.signaled() } else { wr }.add()
                }
                (Some(ring), Some(offset)) => {
                    let Posted::Message(inner) = &message else {
                        continue;
                    };
                    let end = offset + inner.len() as u64;
                    match ring.slice(offset..end) {
                        Ok(place) => {
                            let wr = batch.write(message, place).imm(0);
                            if signal { wr.signaled() } else { wr }.add()
                        }
                        Err(error) => return Err(nothing(post_failed(&error))),
                    }
                }
                _ => {
                    let wr = batch.send(message);
                    if signal { wr.signaled() } else { wr }.add()
                }
            };
            // There is room, and no message is longer than agreed upon.
            added.map_err(|error| nothing(post_failed(&error)))?;
            self.unsignaled = if signal { 0 } else { self.unsignaled + 1 };
            if signal {
                self.frames_out = (0, 0);
            }
        }
        batch.post().map_err(|error| Several {
            lost: post_failed(&error),
            posted: error.posted(),
            bodies: error
                .into_inner()
                .into_iter()
                .map(Posted::into_body)
                .collect(),
        })?;
        // All of them were counted before the first was posted.
        self.wake();
        Ok(())
    }
}

/// Nothing was posted, and what there was is gone.
#[cold]
fn nothing(lost: Lost) -> Several {
    Several {
        lost,
        posted: 0,
        bodies: Vec::new(),
    }
}
