//! One connection's queue pair, with its credits: what client and server have in common.
//!
//! Normal operation. [`Prepared::new`] makes the queue pair, and the receive ring if there may be
//! one. [`Prepared::connect`] posts every receive entry and brings the queue pair up under the agreed
//! terms; before that it receives nothing. Messages leave through [`Link::post`], which accounts for
//! credits and decides what is signalled; completions come back through [`Link::sent`] and
//! [`Link::received`]; a receive entry returns through [`Link::repost`], and only then counts as a
//! credit.
//!
//! Where a direction has a ring, everything that goes that way is written into it, control messages
//! included, and the receive entries are without memory. The peer can change its ring at any time, so
//! a message is copied out once, as long as its completion says, and only the copy is looked at;
//! its entry and its room return as soon as the copy has been accounted for. Where the ring is polled, there are no entries, no
//! completions, and a way to sleep all the same: see `poll.rs`, `tell.rs`, and [`bell`](crate::bell).
//!
//! Failure. Every error is final for the connection: the owner destroys the link, which takes the
//! queue pair through its error state and gives back, and so frees, everything that was in its
//! queues. Nothing is freed before.

mod inbox;
mod poll;
mod prepare;
mod reading;
mod tell;
mod together;

pub(crate) use prepare::{PrepareError, Prepared};
pub(crate) use together::{Several, Together};

use crate::credit::{CONTROL_RESERVE, Class, Credits};
use crate::error::Lost;
use crate::frame::{Frame, Frames};
use crate::handshake::Terms;
use crate::kept::Kept;
use crate::posted::{Body, Fetch, Fetching, Message, Posted, Read, ReadSlice};
use crate::wire::{HEADER_LEN, Header, SlotId};
use inbox::Inbox;
use mempool::Buf;
use reading::Reading;
use tell::Teller;
use verbs::{Completion, PostError, QueueId, RemoteRegion, SendQueue, WcStatus};

/// Most READs that one connection has outstanding.
const READS_MAX: u32 = 16;
/// Most segments in one message: the header and a full list.
const SGE_MAX: u32 = 17;

/// Longest message in bytes that is copied while it is posted, if the device can do that.
const SMALL_MESSAGE: usize = 256;

/// Longest payload in bytes in such a message.
pub(crate) const SMALL: usize = SMALL_MESSAGE - HEADER_LEN;

/// Frames on their way after which the next one is signalled, so that it gives all of them back: they stay in the processor's caches, and an idle
/// connection holds no more.
const FRAMES_OUT: u32 = 4;
/// The same for their bytes.
const FRAME_BYTES_OUT: usize = 6 << 10;

/// What failed, of work that an idle end has posted by itself: it tells no more than that the peer is no longer there.
pub(crate) const TO_SLEEP: &str = "what this end tells and asks before it sleeps";

/// Boxes that are kept for messages to come.
const BOXES_MAX: usize = 64;

/// Depth of the send queue for so many slots.
pub(crate) fn send_depth(slots: u32) -> u32 {
    // A slot can be used again before the completion of its last message has been polled.
    2 * slots + 2 * CONTROL_RESERVE + READS_MAX
}

/// A connected queue pair.
pub(crate) struct Link {
    tx: SendQueue<Posted>,
    inbox: Inbox,
    credits: Credits,
    /// Entries that may be late.
    late_max: u32,
    /// Longest payload in bytes that is copied while it is posted, if the device does that.
    small: Option<usize>,
    /// Longest payload in bytes of a message from a frame; `None` if nothing is posted so.
    medium: Option<usize>,
    /// What has been posted from frames since the last signalled message: how many, and how many bytes.
    frames_out: (u32, usize),
    /// What other messages are boxed in, to be used again as it is.
    #[expect(clippy::vec_box, reason = "the queue takes boxes")]
    boxes: Vec<Box<Message>>,
    terms: Terms,
    /// Messages posted since the last signalled one.
    unsignaled: u32,
    signal_every: u32,
    reads: u32,
    most_reads: u32,
    reading: Reading,
    max_sge: u32,
    rnr: u64,
    /// Where the peer has to look for messages. It has the peer's ring, then, and the terms do not.
    teller: Option<Box<Teller>>,
    /// Places in the send queue that messages leave alone: for a wake.
    kept: u32,
}

impl Link {
    #[inline]
    pub fn terms(&self) -> &Terms {
        &self.terms
    }

    #[inline]
    pub fn credits(&self) -> &Credits {
        &self.credits
    }

    /// Segments in one message, the header's included.
    pub fn max_sge(&self) -> u32 {
        self.max_sge
    }

    #[inline]
    pub fn send_id(&self) -> QueueId {
        self.tx.id()
    }

    #[inline]
    pub fn recv_id(&self) -> QueueId {
        self.inbox.id()
    }

    /// Times that a peer was not ready to receive: 0, or the credits are wrong.
    pub fn rnr(&self) -> u64 {
        self.rnr
    }

    /// Whether a message of this class can leave now: there is a credit (I1), and room in the send
    /// queue (I3).
    #[inline]
    pub fn may_post(&self, class: Class) -> bool {
        self.tx.free_slots() > self.kept && self.credits.may_send(class)
    }

    /// Whether another READ may be posted (I5). Leaves room for messages in the send queue.
    #[inline]
    pub fn may_read(&self) -> bool {
        self.reads < self.most_reads && self.tx.free_slots() > CONTROL_RESERVE
    }

    /// How long the next READ of a body is, of at most `len` bytes; `None` if there can be none now.
    #[inline]
    pub fn room_to_read(&self, len: u32) -> Option<u32> {
        self.reading.room(len).filter(|_| self.may_read())
    }

    /// Whether READs are on their way, as far as is known.
    #[inline]
    pub fn is_reading(&self) -> bool {
        self.reads > 0
    }

    /// Posts a message: `header` goes to the front of `buf`, which holds the pieces and copied
    /// bytes behind it; `body` is gathered behind that, and comes back to `owner`.
    ///
    /// Call it only after [`may_post`](Self::may_post) said yes. What was not posted gives `body` back.
    pub fn post(
        &mut self,
        class: Class,
        mut header: Header,
        mut buf: Buf,
        body: Body,
        owner: Option<SlotId>,
    ) -> Result<(), NotPosted> {
        let sent = self.credits.send(class, buf.len() + body.len());
        header.credit = sent.counter;
        debug_assert!(
            self.tx.free_slots() > 0,
            "I3: no room in the send queue for {class:?}"
        );
        if let Some(front) = buf.first_chunk_mut() {
            header.encode(front);
        }
        let message = Message {
            frame: None,
            header: buf,
            body,
            owner,
        };
        let message = boxed(&mut self.boxes, message);
        // The caller waits for what it gave us; headers can wait for the next signal.
        let signal = message.owner.is_some() || self.unsignaled + 1 >= self.signal_every;
        // Which path it is was agreed upon for each direction: with a ring of the peer or without.
        match (self.terms.peer_ring, sent.offset) {
            (Some(ring), Some(offset)) => self.post_write(message, signal, ring, offset),
            (None, Some(offset)) => self.post_framed(message, signal, offset),
            _ => self.post_send(message, signal),
        }
    }

    /// Longest payload in bytes for [`post_small`](Self::post_small); `None` if nothing is posted so.
    #[inline]
    pub fn small(&self) -> Option<usize> {
        self.small
    }

    /// Posts a message with a short payload, which lies behind room for the header, and is copied by the device meanwhile.
    ///
    /// Call it only after [`may_post`](Self::may_post) said yes, for at most [`small`](Self::small) bytes.
    #[inline(always)]
    pub fn post_small(
        &mut self,
        class: Class,
        mut header: Header,
        message: &mut [u8],
    ) -> Result<(), Lost> {
        let len = message.len();
        let payload = len - HEADER_LEN;
        debug_assert!(self.small.is_some_and(|most| payload <= most));
        let sent = self.credits.send(class, len);
        header.credit = sent.counter;
        header.inline_len = payload as u32;
        header.body_len = payload as u64;
        if let Some(front) = message.first_chunk_mut() {
            header.encode(front);
        }
        let message = &*message;
        let signal = self.unsignaled + 1 >= self.signal_every;
        let posted = match (self.terms.peer_ring, sent.offset) {
            (Some(ring), Some(offset)) => {
                // Within the ring, like all that `Credits` gives out.
                debug_assert!(offset + len as u64 <= ring.len);
                let place = RemoteRegion {
                    addr: ring.addr + offset,
                    len: len as u64,
                    rkey: ring.rkey,
                };
                let wr = self.tx.write_copy(message, Posted::Copied, place).imm(0);
                if signal { wr.signaled() } else { wr }.post()
            }
            (_, offset) => return self.post_small_elsewhere(message, signal, offset),
        };
        posted.map_err(|e| post_failed(&e))?;
        self.count_unsignaled(signal);
        Ok(())
    }

    /// Longest payload in bytes for [`post_frame`](Self::post_frame); `None` if nothing is posted so.
    #[inline]
    pub fn medium(&self) -> Option<usize> {
        self.medium
    }

    /// Posts a message from a frame, with the payload that has been written there, if there is any.
    ///
    /// Call it only after [`may_post`](Self::may_post) said yes, for at most [`medium`](Self::medium) bytes.
    #[inline]
    pub fn post_frame(
        &mut self,
        class: Class,
        mut header: Header,
        mut frame: Box<Frame>,
    ) -> Result<(), Lost> {
        let len = frame.len();
        let payload = len - HEADER_LEN;
        debug_assert!(self.medium.is_some_and(|most| payload <= most));
        let sent = self.credits.send(class, len);
        header.credit = sent.counter;
        header.inline_len = payload as u32;
        header.body_len = payload as u64;
        if let Some(front) = frame.header() {
            header.encode(front);
        }
        let (count, bytes) = self.frames_out;
        let (count, bytes) = (count + 1, bytes + len);
        let signal = self.unsignaled + 1 >= self.signal_every
            || count >= FRAMES_OUT
            || bytes >= FRAME_BYTES_OUT;
        let frame = Posted::Frame(frame);
        let posted = match (self.terms.peer_ring, sent.offset) {
            (Some(ring), Some(offset)) => {
                // Within the ring, like all that `Credits` gives out.
                debug_assert!(offset + len as u64 <= ring.len);
                let place = RemoteRegion {
                    addr: ring.addr + offset,
                    len: len as u64,
                    rkey: ring.rkey,
                };
                let wr = self.tx.write(frame, place).imm(0);
                if signal { wr.signaled() } else { wr }.post()
            }
            _ => {
                let wr = self.tx.send(frame);
                if signal { wr.signaled() } else { wr }.post()
            }
        };
        posted.map_err(|e| post_failed(&e))?;
        self.count_unsignaled(signal);
        if !signal {
            self.frames_out = (count, bytes);
        }
        Ok(())
    }

    /// Notes that a message has been posted.
    #[inline(always)]
    fn count_unsignaled(&mut self, signaled: bool) {
        if signaled {
            self.unsignaled = 0;
            self.frames_out = (0, 0);
        } else {
            self.unsignaled += 1;
        }
    }

    /// Writes a message into the peer's ring, header, pieces and body by one work request.
    fn post_write(
        &mut self,
        message: Box<Message>,
        signal: bool,
        ring: RemoteRegion,
        offset: u64,
    ) -> Result<(), NotPosted> {
        let place = match ring.slice(offset..offset + message.len() as u64) {
            Ok(place) => place,
            Err(error) => return Err(NotPosted::before(post_failed(&error), message.body)),
        };
        // The receiver knows from the order where it lies, and from the completion how long it is.
        let wr = self.tx.write(Posted::Message(message), place).imm(0);
        let wr = if signal { wr.signaled() } else { wr };
        wr.post().map_err(NotPosted::refused)?;
        self.count_unsignaled(signal);
        Ok(())
    }

    fn post_send(&mut self, message: Box<Message>, signal: bool) -> Result<(), NotPosted> {
        let wr = self.tx.send(Posted::Message(message));
        let wr = if signal { wr.signaled() } else { wr };
        wr.post().map_err(NotPosted::refused)?;
        self.count_unsignaled(signal);
        Ok(())
    }

    /// Posts a READ for the transfer of `slot`.
    pub fn read(
        &mut self,
        slice: ReadSlice,
        source: RemoteRegion,
        slot: SlotId,
    ) -> Result<(), Lost> {
        debug_assert!(self.reads < self.most_reads, "I5: too many READs");
        let len = slice.len();
        self.tx
            .read(Read { slice, slot }, source)
            .signaled()
            .post()
            .map_err(|e| Lost::Post {
                what: "a READ",
                error: e.to_string(),
            })?;
        self.reads += 1;
        self.reading.begin(len);
        self.count_unsignaled(true);
        Ok(())
    }

    /// Posts the READ of the part of an entry that `fetch` aims at, from an entry that begins at `entry`.
    pub fn fetch(&mut self, fetch: Box<Fetch>, entry: RemoteRegion) -> Result<(), Lost> {
        debug_assert!(self.reads < self.most_reads, "I5: too many READs");
        let (from, to) = fetch.part();
        let source = entry
            .slice(from as u64..to as u64)
            .map_err(|e| post_failed(&e))?;
        self.tx
            .read(Fetching(fetch), source)
            .signaled()
            .post()
            .map_err(|e| post_failed(&e))?;
        self.reads += 1;
        self.count_unsignaled(true);
        Ok(())
    }

    /// Accounts for an answer that is left for the peer to fetch: the counter to put on it.
    #[inline]
    pub fn shelve(&mut self) -> u32 {
        self.credits.shelve()
    }

    /// Accounts for a counter that came with a fetched answer.
    #[inline]
    pub fn fetched(&mut self, credit: u32) -> Result<(), Lost> {
        self.credits.fetched(credit)?;
        Ok(())
    }

    /// Takes back what a completion of the send queue retires; frames go to the others.
    #[inline]
    pub fn sent(
        &mut self,
        completion: Completion,
        frames: &mut Frames,
        mut each: impl FnMut(Sent) -> Result<(), Lost>,
    ) -> Result<(), Lost> {
        let Ok(mut done) = self.tx.retire(completion) else {
            // Retired by a later one already.
            return Ok(());
        };
        loop {
            self.tx
                .discard(&done, |posted| matches!(posted, Posted::Copied));
            let Some((posted, result)) = self.tx.take(&mut done) else {
                return Ok(());
            };
            let what = match posted {
                Posted::Message(_) | Posted::Copied | Posted::Frame(_) => "a message",
                Posted::Flag(_) => TO_SLEEP,
                Posted::Count(_) => {
                    self.reads -= 1;
                    TO_SLEEP
                }
                Posted::Read(ref read) => {
                    self.reads -= 1;
                    self.reading.end(read.slice.len());
                    "a READ"
                }
                Posted::Fetch(_) => {
                    self.reads -= 1;
                    "a READ"
                }
            };
            if let Err(error) = result {
                if error.status == WcStatus::RNR_RETRY_EXC_ERR {
                    self.rnr += 1;
                }
                // Whoever gave it may get it back.
                if let Posted::Message(message) = posted {
                    each(Sent::Message(message.owner, message.body))?;
                }
                return Err(Lost::Work { what, error });
            }
            match posted {
                Posted::Message(mut message) => {
                    let body = std::mem::take(&mut message.body);
                    drop(std::mem::take(&mut message.header));
                    if let Some(frame) = message.frame.take() {
                        self.unframe(frame);
                    }
                    each(Sent::Message(message.owner, body))?;
                    if self.boxes.len() < BOXES_MAX {
                        self.boxes.push(message);
                    }
                }
                Posted::Copied => {}
                Posted::Frame(frame) => frames.give(frame),
                Posted::Read(read) => each(Sent::Read(*read))?,
                Posted::Fetch(fetch) => each(Sent::Fetch(fetch))?,
                Posted::Flag(word) => self.announced(word)?,
                Posted::Count(word) => self.told(word)?,
            }
        }
    }

    /// Takes in a message that has arrived, to be looked at with [`message`](Self::message); false if its completion belongs to nobody.
    ///
    /// In a ring, this is where it is copied out.
    #[inline(always)]
    pub fn received(&mut self, completion: Completion) -> Result<bool, Lost> {
        self.inbox.take(completion, &mut self.credits)
    }

    /// The message that was taken in last, until [`repost`](Self::repost).
    #[inline(always)]
    pub fn message(&self) -> &[u8] {
        self.inbox.message()
    }

    /// The message at hand from an offset on, without another copy, if there can be one; it is not at hand any more then.
    #[inline]
    pub fn keep(&mut self, from: usize) -> Option<Kept> {
        self.inbox.keep(from)
    }

    /// Accounts for a message that has arrived.
    #[inline]
    pub fn account(&mut self, class: Class, credit: u32) -> Result<(), Lost> {
        self.credits.receive(class, credit)?;
        Ok(())
    }

    /// Takes back what a message of `class` arrived in, now that it is dealt with: a receive entry is
    /// posted again (I9).
    ///
    /// They are posted together, some messages later, by [`settle`](Self::settle).
    #[inline(always)]
    pub fn repost(&mut self, class: Class) -> Result<(), Lost> {
        if class.is_control() || self.inbox.is_polled() {
            return self.repost_now(class);
        }
        self.inbox.set_aside();
        self.credits.set_aside();
        if self.credits.must_post(self.late_max) {
            self.settle()?;
        }
        Ok(())
    }

    fn repost_now(&mut self, class: Class) -> Result<(), Lost> {
        // Behind those that are late: the peer takes entries to return in the order of messages, and waits for what it is told of
        // its control messages.
        self.settle()?;
        self.inbox.repost()?;
        self.credits.reposted(class);
        Ok(())
    }

    /// Whether entries wait for [`settle`](Self::settle).
    #[inline]
    pub fn is_late(&self) -> bool {
        self.credits.late() > 0
    }

    /// Posts the entries that are late, if any are.
    #[inline]
    pub fn settle(&mut self) -> Result<(), Lost> {
        if self.is_late() {
            self.post_late()
        } else {
            Ok(())
        }
    }

    fn post_late(&mut self) -> Result<(), Lost> {
        self.inbox.post(self.credits.late())?;
        self.credits.reposted_late();
        Ok(())
    }

    /// Makes sure that this end has entries for the answers to so many requests, the one included that is about to be sent (I2).
    #[inline]
    pub fn cover(&mut self, unanswered: u32) -> Result<(), Lost> {
        if self.credits.covers(unanswered) {
            Ok(())
        } else {
            self.settle()
        }
    }

    /// Destroys the queue pair, and frees what was received; what had been posted and not completed comes back.
    pub fn destroy(self) -> Vec<Posted> {
        let posted = self.inbox.destroy(self.tx);
        // The key to its cell is withdrawn only now.
        drop(self.teller);
        posted
    }

    /// No more messages are posted by copy.
    pub fn no_copies(&mut self) {
        self.small = None;
        self.medium = None;
    }

    /// Whether the device is done with all that was posted: as far as this end can know, the peer has it.
    pub fn is_drained(&self) -> bool {
        self.tx.free_slots() == self.tx.depth()
    }

    /// From now on each message has a completion; that of the next is that of all before it, too.
    pub fn signal_all(&mut self) {
        self.signal_every = 1;
    }
}

/// Boxes are used again: posting does not allocate, but for the first few.
#[expect(clippy::vec_box, reason = "the queue takes boxes")]
fn boxed(boxes: &mut Vec<Box<Message>>, message: Message) -> Box<Message> {
    match boxes.pop() {
        Some(mut used) => {
            *used = message;
            used
        }
        None => Box::new(message),
    }
}

#[cold]
fn post_failed(error: &dyn std::fmt::Display) -> Lost {
    Lost::Post {
        what: "a message",
        error: error.to_string(),
    }
}

/// A message that was not posted: it never left. It is the end of the connection.
pub(crate) struct NotPosted {
    pub lost: Lost,
    /// What was to leave behind its header.
    pub body: Body,
}

impl NotPosted {
    /// Before the device was asked.
    #[cold]
    pub fn before(lost: Lost, body: Body) -> NotPosted {
        NotPosted { lost, body }
    }

    /// By the device.
    #[cold]
    fn refused(error: PostError<Posted>) -> NotPosted {
        let lost = post_failed(&error);
        NotPosted::before(lost, error.into_inner().into_body())
    }
}

impl From<NotPosted> for Lost {
    fn from(failed: NotPosted) -> Lost {
        failed.lost
    }
}

/// What the device is done with.
pub(crate) enum Sent {
    /// A message: whose it is, and what was behind its header.
    Message(Option<SlotId>, Body),
    Read(Read),
    /// A part of an entry of the peer's shelf is here.
    Fetch(Box<Fetch>),
}
