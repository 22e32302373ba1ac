//! What the send queue of a connection holds while the device works on it.
//!
//! Two kinds of work share one queue: messages, gathered from a header and the caller's segments,
//! and READs into a part of a private buffer. [`Posted`] owns the memory of either until its
//! completion, or until the queue pair is destroyed.
//!
//! Why this is safe: a message's memory is pool buffers and segments, each of which keeps
//! [`Gather`]'s contract by itself and is only moved, never touched, while it is in here. A READ's
//! destination is a [`Target`], which takes the buffer by value and gives nobody a reference to it
//! until the last [`ReadSlice`] is gone; slices of one target do not overlap, because only
//! [`Transfer`](crate::transfer::Transfer) cuts them, one after the other.

use crate::frame::Frame;
use crate::wire::SlotId;
use mempool::{Buf, Segment, SgList};
use std::sync::Arc;
use verbs::{Gather, LKey, Scatter, Sge, SgeList, StoredAs};

/// Segments of a message behind its header.
#[derive(Debug, Default)]
pub(crate) enum Body {
    #[default]
    Empty,
    One(Segment),
    Many(Box<SgList>),
}

impl Message {
    /// Length in bytes, without the frame.
    pub fn len(&self) -> usize {
        self.header.len() + self.body.len()
    }
}

impl Body {
    pub fn from_list(list: SgList) -> Body {
        if list.segment_count() > 1 {
            return Body::Many(Box::new(list));
        }
        list.into_segments().next().map_or(Body::Empty, Body::One)
    }

    pub fn is_empty(&self) -> bool {
        matches!(self, Body::Empty)
    }

    /// Bytes in all segments.
    pub fn len(&self) -> usize {
        match self {
            Body::Empty => 0,
            Body::One(segment) => segment.as_slice().len(),
            Body::Many(list) => list.len(),
        }
    }

    /// Segments that have bytes: as many entries of a gather list.
    pub fn gathered(&self) -> usize {
        let has_bytes = |segment: &&Segment| !segment.as_slice().is_empty();
        match self {
            Body::Empty => 0,
            Body::One(segment) => usize::from(has_bytes(&segment)),
            Body::Many(list) => list.segments().filter(has_bytes).count(),
        }
    }

    /// The bytes of every segment, in order.
    pub fn each(&self, mut each: impl FnMut(&[u8])) {
        match self {
            Body::Empty => {}
            Body::One(segment) => each(segment.as_slice()),
            Body::Many(list) => list.segments().for_each(|segment| each(segment.as_slice())),
        }
    }

    pub fn into_list(self) -> SgList {
        match self {
            Body::Empty => SgList::new(),
            Body::One(segment) => segment.into(),
            Body::Many(list) => *list,
        }
    }
}

/// A message on its way.
#[derive(Debug)]
pub(crate) struct Message {
    /// What goes in front of the header, if anything does: in a ring that is polled.
    pub frame: Option<Buf>,
    /// Header, pieces and copied bytes.
    pub header: Buf,
    /// What goes behind them.
    pub body: Body,
    /// The slot that gets the body back, if anybody wants it.
    pub owner: Option<SlotId>,
}

/// A receive entry without memory: the message is in the receive ring.
#[derive(Debug)]
pub(crate) struct NoMemory;

// SAFETY: no memory is named.
unsafe impl Scatter for NoMemory {
    #[inline(always)]
    fn scatter(&mut self, _: &mut SgeList) {}
}

/// A buffer that READs fill in parts.
#[derive(Debug)]
pub(crate) struct Target {
    buf: Buf,
    addr: u64,
    lkey: LKey,
}

impl Target {
    pub fn new(mut buf: Buf) -> Arc<Target> {
        let addr = buf.as_mut_ptr() as u64;
        let lkey = buf.lkey();
        Arc::new(Target { buf, addr, lkey })
    }

    /// A part of the buffer for one READ.
    ///
    /// # Safety
    /// `offset + len` is within the buffer, and no other slice that still exists overlaps it.
    pub unsafe fn slice(self: &Arc<Target>, offset: usize, len: u32) -> ReadSlice {
        ReadSlice {
            addr: self.addr + offset as u64,
            len,
            lkey: self.lkey,
            _target: Arc::clone(self),
        }
    }

    /// Bytes in the buffer.
    pub fn len(&self) -> usize {
        self.buf.len()
    }

    /// The buffer, once no slice exists any more.
    pub fn into_buf(self: Arc<Target>) -> Option<Buf> {
        Arc::into_inner(self).map(|target| target.buf)
    }
}

/// The destination of one READ. Keeps its target alive.
#[derive(Debug)]
pub(crate) struct ReadSlice {
    addr: u64,
    len: u32,
    lkey: LKey,
    /// Which transfer it belongs to is noted beside it in the queue.
    _target: Arc<Target>,
}

impl ReadSlice {
    /// Length in bytes.
    pub fn len(&self) -> u32 {
        self.len
    }
}

// SAFETY: the target owns the buffer for as long as this value exists, moved or forgotten, and
// hands out no reference to its bytes while it does; slices do not overlap (`Target::slice`). Any
// bytes are valid `u8`s.
unsafe impl Scatter for ReadSlice {
    fn scatter(&mut self, out: &mut SgeList) {
        out.push(Sge {
            addr: self.addr,
            len: self.len,
            lkey: self.lkey,
        });
    }
}

/// One READ: destination, and the slot whose transfer it is part of.
#[derive(Debug)]
pub(crate) struct Read {
    pub slice: ReadSlice,
    pub slot: SlotId,
}

// SAFETY: `ReadSlice` keeps the contract; the slot is a plain number.
unsafe impl Scatter for Read {
    fn scatter(&mut self, out: &mut SgeList) {
        self.slice.scatter(out);
    }
}

/// A READ of a part of an entry of the peer's shelf, into a buffer for the whole entry.
#[derive(Debug)]
pub(crate) struct Fetch {
    buf: Buf,
    slot: SlotId,
    /// The part that is being fetched, or was last.
    from: usize,
    to: usize,
}

impl Fetch {
    pub fn new(buf: Buf, slot: SlotId) -> Fetch {
        Fetch {
            buf,
            slot,
            from: 0,
            to: 0,
        }
    }

    /// For another slot.
    pub fn reuse(&mut self, slot: SlotId) {
        self.slot = slot;
    }

    pub fn slot(&self) -> SlotId {
        self.slot
    }

    /// The part to fetch next; false if it is none of the buffer.
    pub fn aim(&mut self, from: usize, to: usize) -> bool {
        let fits = from < to && to <= self.buf.len();
        if fits {
            (self.from, self.to) = (from, to);
        }
        fits
    }

    /// Where the part that was fetched last begins, and where it ends.
    pub fn part(&self) -> (usize, usize) {
        (self.from, self.to)
    }

    /// The entry up to the end of what was fetched last.
    pub fn bytes(&self) -> &[u8] {
        &self.buf[..self.to]
    }
}

/// A [`Fetch`] that can be posted, in the box that it stays in.
#[derive(Debug)]
pub(crate) struct Fetching(pub Box<Fetch>);

// SAFETY: the buffer is the fetch's own, at a fixed address, and nobody reaches it while this value exists. `aim` keeps the part within it; one
// that is empty is left out. Any bytes are valid `u8`s.
unsafe impl Scatter for Fetching {
    fn scatter(&mut self, out: &mut SgeList) {
        let fetch = &mut *self.0;
        // One that was never aimed names nothing: a length of 0 means 2 GiB to some devices.
        if fetch.from < fetch.to {
            out.push(Sge {
                addr: fetch.buf.as_mut_ptr() as u64 + fetch.from as u64,
                len: (fetch.to - fetch.from) as u32,
                lkey: fetch.buf.lkey(),
            });
        }
    }
}

// SAFETY: the stored value is the same box; the buffer's memory does not move.
unsafe impl StoredAs<Posted> for Fetching {
    fn store(self) -> Posted {
        Posted::Fetch(self.0)
    }
}

/// An entry of the send queue.
///
/// Two words, whatever it is: what has just been put together and is then moved costs the processor more than all the rest of a small
/// message.
#[derive(Debug)]
pub(crate) enum Posted {
    Message(Box<Message>),
    /// A small message, which was copied while it was posted.
    Copied,
    /// A message of medium length.
    Frame(Box<Frame>),
    Read(Box<Read>),
    Fetch(Box<Fetch>),
    /// That this end sleeps, on its way to the peer.
    Flag(Box<Word>),
    /// How many messages the peer has posted, on its way here.
    Count(Box<Word>),
}

impl Posted {
    /// What was behind the header, of a message that was gathered.
    pub fn into_body(self) -> Body {
        match self {
            Posted::Message(message) => message.body,
            _ => Body::Empty,
        }
    }
}

/// Eight bytes to be written to the peer, or read from it.
#[derive(Debug)]
pub(crate) struct Word(Buf);

impl Word {
    /// In a buffer of at least 8 bytes.
    pub fn new(buf: Buf) -> Word {
        debug_assert!(buf.len() >= Word::LEN);
        Word(buf)
    }

    const LEN: usize = 8;

    pub fn set(&mut self, word: u64) {
        if let Some(place) = self.0.first_chunk_mut() {
            *place = word.to_le_bytes();
        }
    }

    pub fn get(&self) -> u64 {
        u64::from_le_bytes(self.0.first_chunk().copied().unwrap_or_default())
    }

    fn sge(&self) -> Sge {
        Sge {
            addr: self.0.as_ptr() as u64,
            len: Word::LEN as u32,
            lkey: self.0.lkey(),
        }
    }
}

/// A [`Word`] that a READ fills.
#[derive(Debug)]
pub(crate) struct Asking(pub Box<Word>);

// SAFETY: the buffer is the word's own, at a fixed address, and nobody reaches it while this value exists. Any bytes are a word.
unsafe impl Scatter for Asking {
    fn scatter(&mut self, out: &mut SgeList) {
        // By a pointer that may be written through.
        let addr = self.0.0.as_mut_ptr() as u64;
        out.push(Sge {
            addr,
            ..self.0.sge()
        });
    }
}

// SAFETY: the stored value is the same box; the buffer's memory does not move.
unsafe impl StoredAs<Posted> for Asking {
    fn store(self) -> Posted {
        Posted::Count(self.0)
    }
}

// SAFETY: header, frame and segments each keep `Gather`'s contract: owned, not moved in memory, and not
// reachable by anybody else for writing while they are in here. Empty segments are left out: a
// length of 0 in a segment means 2 GiB to some devices. A frame owns its buffer as well, and has a header at least. A READ has nothing to gather.
unsafe impl Gather for Posted {
    #[inline]
    fn gather(&self, out: &mut SgeList) {
        let message = match self {
            Posted::Message(message) => message,
            Posted::Frame(frame) => return frame.gather(out),
            Posted::Flag(word) => return out.push(word.sge()),
            Posted::Copied | Posted::Read(_) | Posted::Fetch(_) | Posted::Count(_) => return,
        };
        if let Some(frame) = &message.frame {
            frame.gather(out);
        }
        message.header.gather(out);
        match &message.body {
            Body::Empty => {}
            Body::One(segment) => gather_segment(segment, out),
            Body::Many(list) => list.segments().for_each(|s| gather_segment(s, out)),
        }
    }
}

fn gather_segment(segment: &Segment, out: &mut SgeList) {
    if !segment.as_slice().is_empty() {
        segment.gather(out);
    }
}

// SAFETY: the stored value is the slice itself, in a box; the memory that it names is the target's, and does not move.
unsafe impl StoredAs<Posted> for Read {
    fn store(self) -> Posted {
        // Allocates, for up to a slice of a large body: nothing beside moving that.
        Posted::Read(Box::new(self))
    }
}
