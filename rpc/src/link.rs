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
//! its entry and its room return as soon as the copy has been accounted for. The copy is made into
//! one piece of memory that the link lends out until the message has been dealt with.
//!
//! Failure. Every error is final for the connection: the owner destroys the link, which takes the
//! queue pair through its error state and gives back, and so frees, everything that was in its
//! queues. Nothing is freed before.

use crate::credit::CreditError;
use crate::credit::{CONTROL_RESERVE, Class, Credits};
use crate::error::{Lost, Violation};
use crate::handshake::Terms;
use crate::posted::{Body, Entry, Message, Posted, Read, ReadSlice};
use crate::wire::{Header, SlotId, longest};
use mempool::{AllocError, BudgetKind, Buf, ExposedLease, Kind, Pool};
use verbs::{
    Access, Completion, Cq, Endpoint, Pd, QueueId, RcSetup, Received, ReceivedBy, RecvQueue,
    RemoteRegion, SendQueue, WcStatus,
};

/// Most READs that one connection has outstanding.
const READS_MAX: u32 = 16;
/// Most segments in one message: the header and a full list.
const SGE_MAX: u32 = 17;

/// Why a queue pair could not be made ready.
#[derive(Debug)]
pub(crate) enum PrepareError {
    Create(verbs::Error),
    Ring(verbs::Error),
    Receives(AllocError),
    Post(String),
    Connect(verbs::ConnectError),
}

impl std::fmt::Display for PrepareError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            PrepareError::Create(error) => write!(f, "creating the queue pair failed: {error}"),
            PrepareError::Ring(error) => write!(f, "registering the receive ring failed: {error}"),
            PrepareError::Connect(error) => write!(f, "connecting the queue pair: {error}"),
            PrepareError::Receives(error) => {
                write!(f, "allocating the receive entries failed: {error}")
            }
            PrepareError::Post(error) => write!(f, "posting the receive entries failed: {error}"),
        }
    }
}

/// Depth of the send queue for so many slots.
pub(crate) fn send_depth(slots: u32) -> u32 {
    // A slot can be used again before the completion of its last message has been polled.
    2 * slots + 2 * CONTROL_RESERVE + READS_MAX
}

/// A queue pair that is not connected yet, and the ring of its end.
pub(crate) struct Prepared {
    setup: RcSetup,
    tx: SendQueue<Posted>,
    rx: RecvQueue<Entry>,
    ring: Option<ExposedLease>,
    pool: Pool,
    max_sge: u32,
    most_reads: u32,
}

impl Prepared {
    /// Makes a queue pair with so many receive entries, for so many slots, and a ring of so many
    /// bytes if there may be one.
    pub fn new(
        pd: &Pd,
        cq: &Cq,
        pool: &Pool,
        window: u32,
        slots: u32,
        ring: Option<u64>,
    ) -> Result<Prepared, PrepareError> {
        let device = pd.context().query_device();
        let max_sge = device.max_sge.clamp(1, SGE_MAX);
        let most_reads = READS_MAX.min(device.max_qp_init_rd_atom.into()).max(1);
        // READs are for leases; WRITEs only for the ring, whose key covers nothing else.
        let mut access = Access::REMOTE_READ;
        if ring.is_some() {
            access |= Access::REMOTE_WRITE;
        }
        let ready = pd
            .rc(cq)
            .send_depth(send_depth(slots).min(device.max_qp_wr))
            .recv_depth(window)
            .max_send_sge(max_sge)
            .max_recv_sge(1)
            .max_inline(0)
            // Credits make "receiver not ready" impossible; if it happens all the same, it shows.
            .rnr_retry(0)
            .rd_atomic(READS_MAX as u8)
            .access(access)
            .build()
            .map_err(PrepareError::Create)?;
        let (setup, tx, rx) = ready.split::<Posted, Entry>();
        let ring = match ring {
            // I8: like all receive memory, not the user's.
            Some(bytes) => Some(
                pool.exposed_in(BudgetKind::Receive, bytes as usize)
                    .map_err(PrepareError::Receives)?
                    .lease(pd, Access::REMOTE_WRITE)
                    .map_err(PrepareError::Ring)?,
            ),
            None => None,
        };
        Ok(Prepared {
            setup,
            tx,
            rx,
            ring,
            pool: pool.clone(),
            max_sge,
            most_reads,
        })
    }

    pub fn endpoint(&self) -> Endpoint {
        self.setup.endpoint()
    }

    /// What the peer needs to write into the ring.
    pub fn ring(&self) -> Option<RemoteRegion> {
        self.ring.as_ref().map(ExposedLease::remote)
    }

    /// Messages to this end will be sent: takes the ring back.
    pub fn drop_ring(&mut self) {
        self.ring = None;
    }

    /// Posts the receive entries, then connects to the peer, which keeps at most `peer_slots`
    /// requests of its own unanswered.
    pub fn connect(
        self,
        peer: &Endpoint,
        terms: Terms,
        peer_slots: u32,
    ) -> Result<Link, PrepareError> {
        let Prepared {
            setup,
            tx,
            mut rx,
            ring,
            pool,
            max_sge,
            most_reads,
        } = self;
        let max = longest(terms.inline_limit);
        // I9: before the queue pair can receive, and before the peer can send.
        for _ in 0..terms.window {
            let entry = match ring {
                Some(_) => Entry::Ring,
                None => Entry::Memory(
                    pool.alloc_in(BudgetKind::Receive, Kind::Receive, max)
                        .map_err(PrepareError::Receives)?,
                ),
            };
            rx.post(entry)
                .map_err(|e| PrepareError::Post(e.to_string()))?;
        }
        let mut credits = Credits::new(terms.window, terms.peer_window, peer_slots);
        if let Some(ring) = &ring {
            credits = credits.reading(ring.len() as u64, max as u64);
        }
        if let Some(ring) = &terms.peer_ring {
            credits = credits.writing(ring.len, max as u64);
        }
        setup.connect(peer).map_err(PrepareError::Connect)?;
        Ok(Link {
            signal_every: (tx.depth() / 4).max(1),
            tx,
            rx,
            credits,
            late: None,
            terms,
            unsignaled: 0,
            reads: 0,
            most_reads: most_reads.min(peer.rd_atomic().into()).max(1),
            max_sge,
            rnr: 0,
            copy: match ring {
                Some(_) => vec![0; max].into(),
                None => Box::default(),
            },
            ring,
        })
    }
}

/// A connected queue pair.
pub(crate) struct Link {
    tx: SendQueue<Posted>,
    rx: RecvQueue<Entry>,
    /// Where messages arrive, unless they are sent.
    ring: Option<ExposedLease>,
    /// Where the next message is copied to; empty while one is lent out.
    copy: Box<[u8]>,
    credits: Credits,
    /// A message of this class has been dealt with, and its entry not been posted again.
    late: Option<Class>,
    terms: Terms,
    /// Messages posted since the last signalled one.
    unsignaled: u32,
    signal_every: u32,
    reads: u32,
    most_reads: u32,
    max_sge: u32,
    rnr: u64,
}

impl Link {
    pub fn terms(&self) -> &Terms {
        &self.terms
    }

    pub fn credits(&self) -> &Credits {
        &self.credits
    }

    /// Segments in one message, the header's included.
    pub fn max_sge(&self) -> u32 {
        self.max_sge
    }

    pub fn send_id(&self) -> QueueId {
        self.tx.id()
    }

    pub fn recv_id(&self) -> QueueId {
        self.rx.id()
    }

    /// Times that a peer was not ready to receive: 0, or the credits are wrong.
    pub fn rnr(&self) -> u64 {
        self.rnr
    }

    /// Whether a message of this class can leave now: there is a credit (I1), and room in the send
    /// queue (I3).
    pub fn may_post(&self, class: Class) -> bool {
        self.tx.free_slots() > 0 && self.credits.may_send(class)
    }

    /// Whether another READ may be posted (I5). Leaves room for messages in the send queue.
    pub fn may_read(&self) -> bool {
        self.reads < self.most_reads && self.tx.free_slots() > CONTROL_RESERVE
    }

    /// Posts a message: `header` goes to the front of `buf`, which holds the pieces and copied
    /// bytes behind it; `body` is gathered behind that, and comes back to `owner`.
    ///
    /// Call it only after [`may_post`](Self::may_post) said yes.
    pub fn post(
        &mut self,
        class: Class,
        mut header: Header,
        mut buf: Buf,
        body: Body,
        owner: Option<SlotId>,
    ) -> Result<(), Lost> {
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
            header: buf,
            body,
            owner,
        };
        // The caller waits for what it gave us; headers can wait for the next signal.
        let signal = message.owner.is_some() || self.unsignaled + 1 >= self.signal_every;
        // Which path it is was agreed upon for each direction: with a ring of the peer or without.
        match (self.terms.peer_ring, sent.offset) {
            (Some(ring), Some(offset)) => self.post_write(message, signal, ring, offset),
            _ => self.post_send(message, signal),
        }
    }

    /// Writes a message into the peer's ring, header, pieces and body by one work request.
    fn post_write(
        &mut self,
        message: Message,
        signal: bool,
        ring: RemoteRegion,
        offset: u64,
    ) -> Result<(), Lost> {
        let post_error = |error: String| Lost::Post {
            what: "a message",
            error,
        };
        let place = ring
            .slice(offset..offset + message.len() as u64)
            .map_err(|e| post_error(e.to_string()))?;
        // The receiver knows from the order where it lies, and from the completion how long it is.
        let wr = self.tx.write(Posted::Message(message), place).imm(0);
        let wr = if signal { wr.signaled() } else { wr };
        wr.post().map_err(|e| post_error(e.to_string()))?;
        self.unsignaled = if signal { 0 } else { self.unsignaled + 1 };
        Ok(())
    }

    fn post_send(&mut self, message: Message, signal: bool) -> Result<(), Lost> {
        let wr = self.tx.send(Posted::Message(message));
        let wr = if signal { wr.signaled() } else { wr };
        wr.post().map_err(|e| Lost::Post {
            what: "a message",
            error: e.to_string(),
        })?;
        self.unsignaled = if signal { 0 } else { self.unsignaled + 1 };
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
        self.tx
            .read(Read { slice, slot }, source)
            .signaled()
            .post()
            .map_err(|e| Lost::Post {
                what: "a READ",
                error: e.to_string(),
            })?;
        self.reads += 1;
        self.unsignaled = 0;
        Ok(())
    }

    /// Takes back what a completion of the send queue retires.
    pub fn sent(
        &mut self,
        completion: Completion,
        mut each: impl FnMut(Posted) -> Result<(), Lost>,
    ) -> Result<(), Lost> {
        let Ok(mut done) = self.tx.retire(completion) else {
            // Retired by a later one already.
            return Ok(());
        };
        while let Some((posted, result)) = self.tx.take(&mut done) {
            let what = match posted {
                Posted::Message(_) => "a message",
                Posted::Read(_) => {
                    self.reads -= 1;
                    "a READ"
                }
            };
            if let Err(error) = result {
                if error.status == WcStatus::RNR_RETRY_EXC_ERR {
                    self.rnr += 1;
                }
                return Err(Lost::Work { what, error });
            }
            each(posted)?;
        }
        Ok(())
    }

    /// Takes in a message that has arrived; `None` if its completion belongs to nobody.
    ///
    /// In a ring, this is where it is copied out.
    pub fn received(&mut self, completion: Completion) -> Result<Option<Arrived>, Lost> {
        // Before the next message's place is looked for: what is late counts by itself.
        self.settle()?;
        let received = match self.rx.redeem(completion) {
            Ok(Ok(received)) => received,
            Ok(Err(failed)) => {
                return Err(Lost::Work {
                    what: "a receive",
                    error: failed.error(),
                });
            }
            Err(_) => return Ok(None),
        };
        let Some(ring) = &self.ring else {
            return Ok(Some(Arrived::Entry(received)));
        };
        if received.by() != ReceivedBy::WriteWithImm {
            return Err(Violation::NotInRing.into());
        }
        let len = received.byte_len();
        let offset = self.credits.find(len)?;
        let mut copy = std::mem::take(&mut self.copy);
        let out = copy.get_mut(..len as usize);
        debug_assert!(out.is_some(), "two messages at once");
        // `find` has checked the length, and all offsets are in the ring.
        match out.map(|out| ring.read_at(offset as usize, out)) {
            Some(Ok(())) => Ok(Some(Arrived::Copy(copy, len))),
            _ => Err(CreditError::Length(len.into()).into()),
        }
    }

    /// Accounts for a message that has arrived.
    pub fn account(&mut self, class: Class, credit: u32) -> Result<(), Lost> {
        self.credits.receive(class, credit)?;
        Ok(())
    }

    /// Takes back what a message of `class` arrived in, now that it is dealt with: a receive entry is
    /// posted again (I9).
    pub fn repost(&mut self, arrived: Arrived, class: Class) -> Result<(), Lost> {
        match arrived {
            Arrived::Entry(received) => self.post_entry(received.into_inner(), class),
            Arrived::Copy(copy, _) => {
                self.copy = copy;
                self.post_entry(Entry::Ring, class)
            }
        }
    }

    /// As [`repost`](Self::repost), but an entry without memory may be posted later, by
    /// [`settle`](Self::settle): the caller has something more urgent to do.
    pub fn repost_later(&mut self, arrived: Arrived, class: Class) -> Result<(), Lost> {
        self.settle()?;
        match arrived {
            Arrived::Copy(copy, _) => {
                self.copy = copy;
                self.late = Some(class);
                Ok(())
            }
            arrived => self.repost(arrived, class),
        }
    }

    /// Posts the entry that is late, if one is.
    #[inline]
    pub fn settle(&mut self) -> Result<(), Lost> {
        match self.late.take() {
            Some(class) => self.post_entry(Entry::Ring, class),
            None => Ok(()),
        }
    }

    fn post_entry(&mut self, entry: Entry, class: Class) -> Result<(), Lost> {
        self.rx.post(entry).map_err(|e| Lost::Post {
            what: "a receive entry",
            error: e.to_string(),
        })?;
        self.credits.reposted(class);
        Ok(())
    }

    /// Destroys the queue pair, and frees what was in its queues.
    pub fn destroy(self) {
        // A queue pair that cannot be destroyed leaks its memory: the device may still use it.
        let _ = verbs::destroy(self.tx, self.rx);
        // Only now is the ring's key withdrawn.
        drop(self.ring);
    }
}

/// A message that has arrived, in memory that the peer cannot change.
pub(crate) enum Arrived {
    /// In its receive entry.
    Entry(Received<Entry>),
    /// In the link's own memory; so many bytes.
    Copy(Box<[u8]>, u32),
}

impl Arrived {
    /// The message.
    pub fn bytes(&self) -> &[u8] {
        match self {
            Arrived::Entry(received) => received.bytes(),
            Arrived::Copy(copy, len) => &copy[..*len as usize],
        }
    }
}
