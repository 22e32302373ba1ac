//! From protection domain to connected queue pair.

use super::inbox::Inbox;
use super::poll::{Polled, WAKES};
use super::reading::Reading;
use super::tell::{Teller, cell};
use super::{Link, READS_MAX, SGE_MAX, SMALL_MESSAGE, send_depth};
use crate::credit::Credits;
use crate::frame::MEDIUM;
use crate::handshake::Terms;
use crate::posted::{NoMemory, Posted};
use crate::ring::span;
use crate::ring::stamp::FRAME_LEN;
use crate::wire::{HEADER_LEN, longest};
use mempool::{AllocError, BudgetKind, Buf, ExposedLease, Kind, Pool};
use verbs::{Access, Cq, Endpoint, Pd, RcReady, RemoteRegion};

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

/// A queue pair that is not connected yet, and the ring of its end.
pub(crate) struct Prepared {
    ready: RcReady,
    ring: Option<ExposedLease>,
    cell: Option<ExposedLease>,
    pool: Pool,
    max_sge: u32,
    most_reads: u32,
}

impl Prepared {
    /// Makes a queue pair with so many receive entries, for so many slots, and a ring of so many
    /// bytes if there may be one; and a cell, if what is sent may have to be looked for by the peer.
    pub fn new(
        pd: &Pd,
        cq: &Cq,
        pool: &Pool,
        window: u32,
        slots: u32,
        (ring, has_cell): (Option<u64>, bool),
    ) -> Result<Prepared, PrepareError> {
        let make = |inline| {
            let receives = (ring, has_cell);
            Prepared::with_inline(pd, cq, pool, window, slots, receives, inline)
        };
        make(SMALL_MESSAGE as u32).or_else(|error| match error {
            // Which lengths a device copies while posting is only known by asking.
            PrepareError::Create(_) => make(0),
            error => Err(error),
        })
    }

    fn with_inline(
        pd: &Pd,
        cq: &Cq,
        pool: &Pool,
        window: u32,
        slots: u32,
        (ring, has_cell): (Option<u64>, bool),
        inline: u32,
    ) -> Result<Prepared, PrepareError> {
        let device = pd.context().query_device();
        let max_sge = device.max_sge.clamp(1, SGE_MAX);
        let most_reads = READS_MAX.min(device.max_qp_init_rd_atom.into()).max(1);
        // READs are for leases; WRITEs only for the ring and the cell, whose keys cover nothing else.
        let mut access = Access::REMOTE_READ;
        if ring.is_some() || has_cell {
            access |= Access::REMOTE_WRITE;
        }
        let ready = pd
            .rc(cq)
            .send_depth(send_depth(slots).min(device.max_qp_wr))
            .recv_depth(window)
            .max_send_sge(max_sge)
            .max_recv_sge(1)
            .max_inline(inline)
            // Credits make "receiver not ready" impossible; if it happens all the same, it shows.
            .rnr_retry(0)
            .rd_atomic(READS_MAX as u8)
            .access(access)
            .build()
            .map_err(PrepareError::Create)?;
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
        let cell = match has_cell {
            true => Some(cell(pd, pool)?),
            false => None,
        };
        Ok(Prepared {
            ready,
            ring,
            cell,
            pool: pool.clone(),
            max_sge,
            most_reads,
        })
    }

    pub fn endpoint(&self) -> Endpoint {
        self.ready.endpoint()
    }

    /// What the peer needs to write into the ring.
    pub fn ring(&self) -> Option<RemoteRegion> {
        self.ring.as_ref().map(ExposedLease::remote)
    }

    /// What the peer needs to reach the cell.
    pub fn cell(&self) -> Option<RemoteRegion> {
        self.cell.as_ref().map(ExposedLease::remote)
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
        mut terms: Terms,
        peer_slots: u32,
    ) -> Result<Link, PrepareError> {
        let Prepared {
            ready,
            ring,
            cell,
            pool,
            max_sge,
            most_reads,
        } = self;
        let max = longest(terms.inline_limit);
        // Of the path.
        let mtu = ready.endpoint().mtu().min(peer.mtu());
        let post_error = |error: &dyn std::fmt::Display| PrepareError::Post(error.to_string());
        let ring_len = ring.as_ref().map(|ring| ring.len() as u64);
        // I9: before the queue pair can receive, and before the peer can send.
        let (setup, tx, inbox) = match ring {
            Some(ring) if let Some(cell) = terms.peer_cell => {
                let (setup, tx, mut queue) = ready.split::<Posted, NoMemory>();
                queue
                    .post_many((0..WAKES).map(|_| NoMemory))
                    .map_err(|e| post_error(&e))?;
                let most = (max, terms.window);
                let polled = Polled::new(queue, ring, most, cell, &pool);
                let polled = polled.map_err(PrepareError::Receives)?;
                (setup, tx, Inbox::Polled(Box::new(polled)))
            }
            Some(ring) => {
                let (setup, tx, mut queue) = ready.split::<Posted, NoMemory>();
                queue
                    .post_many((0..terms.window).map(|_| NoMemory))
                    .map_err(|e| post_error(&e))?;
                let inbox = Inbox::Ring {
                    queue,
                    ring,
                    copy: vec![0; span(max as u64) as usize].into(),
                    len: 0,
                };
                (setup, tx, inbox)
            }
            None => {
                let (setup, tx, mut queue) = ready.split::<Posted, Buf>();
                for _ in 0..terms.window {
                    let memory = pool
                        .alloc_in(BudgetKind::Receive, Kind::Receive, max)
                        .map_err(PrepareError::Receives)?;
                    queue.post(memory).map_err(|e| post_error(&e))?;
                }
                let inbox = Inbox::Entries {
                    queue,
                    at_hand: None,
                    aside: Vec::new(),
                };
                (setup, tx, inbox)
            }
        };
        let mut credits = Credits::new(terms.window, terms.peer_window, peer_slots);
        if let Some(len) = ring_len {
            credits = credits.reading(len, max as u64);
            if terms.peer_cell.is_some() {
                credits = credits.reading_framed();
            }
        }
        if let Some(ring) = &terms.peer_ring {
            credits = credits.writing(ring.len, max as u64);
        }
        let mut teller = None;
        // A cell for which there is no ring at the peer after all is given back here.
        if terms.peer_polls
            && let (Some(cell), Some(ring)) = (cell, terms.peer_ring.take())
        {
            credits = credits.writing_framed(max as u64);
            let made = Teller::new(ring, cell, &pool, tx.depth());
            teller = Some(Box::new(made.map_err(PrepareError::Receives)?));
        }
        // Small messages have their frames with them.
        let front = match &teller {
            Some(_) => FRAME_LEN + HEADER_LEN,
            None => HEADER_LEN,
        };
        let kept = u32::from(teller.is_some());
        setup.connect(peer).map_err(PrepareError::Connect)?;
        Ok(Link {
            signal_every: (tx.depth() / 4).max(1),
            small: (tx.max_inline() as usize)
                .min(SMALL_MESSAGE)
                .checked_sub(front)
                .map(|len| {
                    len.min(terms.inline_limit as usize)
                        .min(terms.max_message as usize)
                }),
            // Where each message needs a frame of its own, they leave as they are.
            medium: teller.is_none().then(|| {
                MEDIUM
                    .min(terms.inline_limit as usize)
                    .min(terms.max_message as usize)
            }),
            frames_out: (0, 0),
            boxes: Vec::new(),
            late_max: credits.late_most(terms.slots),
            tx,
            inbox,
            credits,
            terms,
            unsignaled: 0,
            reads: 0,
            most_reads: most_reads.min(peer.rd_atomic().into()).max(1),
            reading: Reading::new(mtu.bytes()),
            // One of them is the frame's.
            max_sge: max_sge - kept.min(max_sge - 1),
            rnr: 0,
            teller,
            kept,
        })
    }
}
