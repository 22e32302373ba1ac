//! One connection's queue pair, with its credits: what client and server have in common.
//!
//! Normal operation. [`Prepared::new`] makes the queue pair and posts every receive entry before
//! anybody knows its number. [`Prepared::connect`] brings it up under the agreed terms. Messages
//! leave through [`Link::post`], which accounts for credits and decides what is signalled;
//! completions come back through [`Link::sent`] and [`Link::received`]; a receive entry returns
//! through [`Link::repost`], and only then counts as a credit.
//!
//! Failure. Every error is final for the connection: the owner destroys the link, which takes the
//! queue pair through its error state and gives back, and so frees, everything that was in its
//! queues. Nothing is freed before.

use crate::credit::{CONTROL_RESERVE, Class, Credits};
use crate::error::Lost;
use crate::handshake::{ReplyPath, RequestPath, Terms};
use crate::posted::{Body, Message, Posted, Read, ReadSlice};
use crate::wire::{HEADER_LEN, Header, MAX_PIECES, PIECE_LEN, SlotId};
use mempool::{AllocError, BudgetKind, Buf, Kind, Pool};
use verbs::{
    Access, Completion, Cq, Endpoint, Pd, QueueId, RcSetup, Received, RecvQueue, RemoteRegion,
    SendQueue, WcStatus,
};

/// Most READs that one connection has outstanding.
const READS_MAX: u32 = 16;
/// Most segments in one message: the header and a full list.
const SGE_MAX: u32 = 17;

/// Why a queue pair could not be made ready.
#[derive(Debug)]
pub(crate) enum PrepareError {
    Create(verbs::Error),
    Receives(AllocError),
    Post(String),
}

impl std::fmt::Display for PrepareError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            PrepareError::Create(error) => write!(f, "creating the queue pair failed: {error}"),
            PrepareError::Receives(error) => {
                write!(f, "allocating the receive entries failed: {error}")
            }
            PrepareError::Post(error) => write!(f, "posting the receive entries failed: {error}"),
        }
    }
}

/// Length of a receive entry in bytes.
pub(crate) fn entry_len(inline_limit: u32) -> usize {
    HEADER_LEN + MAX_PIECES * PIECE_LEN + inline_limit as usize
}

/// Depth of the send queue for so many slots.
pub(crate) fn send_depth(slots: u32) -> u32 {
    // A slot can be used again before the completion of its last message has been polled.
    2 * slots + 2 * CONTROL_RESERVE + READS_MAX
}

/// A queue pair whose receive entries are posted, not yet connected.
pub(crate) struct Prepared {
    setup: RcSetup,
    tx: SendQueue<Posted>,
    rx: RecvQueue<Buf>,
    max_sge: u32,
    most_reads: u32,
}

impl Prepared {
    pub fn new(
        pd: &Pd,
        cq: &Cq,
        pool: &Pool,
        window: u32,
        inline_limit: u32,
        slots: u32,
    ) -> Result<Prepared, PrepareError> {
        let device = pd.context().query_device();
        let max_sge = device.max_sge.clamp(1, SGE_MAX);
        let most_reads = READS_MAX.min(device.max_qp_init_rd_atom.into()).max(1);
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
            // Nothing here is written by the peer; READs are for leases.
            .access(Access::REMOTE_READ)
            .build()
            .map_err(PrepareError::Create)?;
        let (setup, tx, mut rx) = ready.split::<Posted, Buf>();
        for _ in 0..window {
            let entry = pool
                .alloc_in(BudgetKind::Receive, Kind::Receive, entry_len(inline_limit))
                .map_err(PrepareError::Receives)?;
            rx.post(entry)
                .map_err(|e| PrepareError::Post(e.to_string()))?;
        }
        Ok(Prepared {
            setup,
            tx,
            rx,
            max_sge,
            most_reads,
        })
    }

    pub fn endpoint(&self) -> Endpoint {
        self.setup.endpoint()
    }

    /// Connects to the peer, which keeps at most `peer_slots` requests of its own unanswered.
    pub fn connect(
        self,
        peer: &Endpoint,
        terms: Terms,
        peer_slots: u32,
    ) -> Result<Link, verbs::ConnectError> {
        self.setup.connect(peer)?;
        Ok(Link {
            signal_every: (self.tx.depth() / 4).max(1),
            tx: self.tx,
            rx: self.rx,
            credits: Credits::new(terms.window, terms.peer_window, peer_slots),
            terms,
            unsignaled: 0,
            reads: 0,
            most_reads: self.most_reads.min(peer.rd_atomic().into()).max(1),
            max_sge: self.max_sge,
            rnr: 0,
        })
    }
}

/// A connected queue pair.
pub(crate) struct Link {
    tx: SendQueue<Posted>,
    rx: RecvQueue<Buf>,
    credits: Credits,
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
        match class {
            Class::Request => match self.terms.request_path {
                RequestPath::Send => self.post_send(message, signal),
            },
            Class::Answer => match self.terms.reply_path {
                ReplyPath::Send => self.post_send(message, signal),
            },
            Class::Credit | Class::Control => self.post_send(message, signal),
        }
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

    /// Takes a message out of its receive entry's completion; `None` if it belongs to nobody.
    pub fn received(&mut self, completion: Completion) -> Result<Option<Received<Buf>>, Lost> {
        match self.rx.redeem(completion) {
            Ok(Ok(received)) => Ok(Some(received)),
            Ok(Err(failed)) => Err(Lost::Work {
                what: "a receive",
                error: failed.error(),
            }),
            Err(_) => Ok(None),
        }
    }

    /// Accounts for a message that has arrived.
    pub fn account(&mut self, class: Class, credit: u32) -> Result<(), Lost> {
        Ok(self.credits.receive(class, credit)?)
    }

    /// Posts a receive entry again, after a message of `class` was in it (I9).
    pub fn repost(&mut self, entry: Buf, class: Class) -> Result<(), Lost> {
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
    }
}
