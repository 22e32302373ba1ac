//! From protection domain to connected queue pair.

use super::inbox::Inbox;
use super::{Link, READS_MAX, SGE_MAX, SMALL_MESSAGE, send_depth};
use crate::credit::Credits;
use crate::handshake::Terms;
use crate::posted::{NoMemory, Posted};
use crate::ring::span;
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
        Prepared::with_inline(pd, cq, pool, window, slots, ring, SMALL_MESSAGE as u32).or_else(
            |error| match error {
                // Which lengths a device copies while posting is only known by asking.
                PrepareError::Create(_) => {
                    Prepared::with_inline(pd, cq, pool, window, slots, ring, 0)
                }
                error => Err(error),
            },
        )
    }

    fn with_inline(
        pd: &Pd,
        cq: &Cq,
        pool: &Pool,
        window: u32,
        slots: u32,
        ring: Option<u64>,
        inline: u32,
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
        Ok(Prepared {
            ready,
            ring,
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
            ready,
            ring,
            pool,
            max_sge,
            most_reads,
        } = self;
        let max = longest(terms.inline_limit);
        let post_error = |error: &dyn std::fmt::Display| PrepareError::Post(error.to_string());
        let ring_len = ring.as_ref().map(|ring| ring.len() as u64);
        // I9: before the queue pair can receive, and before the peer can send.
        let (setup, tx, inbox) = match ring {
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
                let at_hand = None;
                (setup, tx, Inbox::Entries { queue, at_hand })
            }
        };
        let mut credits = Credits::new(terms.window, terms.peer_window, peer_slots);
        if let Some(len) = ring_len {
            credits = credits.reading(len, max as u64);
        }
        if let Some(ring) = &terms.peer_ring {
            credits = credits.writing(ring.len, max as u64);
        }
        setup.connect(peer).map_err(PrepareError::Connect)?;
        Ok(Link {
            signal_every: (tx.depth() / 4).max(1),
            small: (tx.max_inline() as usize)
                .min(SMALL_MESSAGE)
                .checked_sub(HEADER_LEN)
                .map(|len| {
                    len.min(terms.inline_limit as usize)
                        .min(terms.max_message as usize)
                }),
            boxes: Vec::new(),
            late_max: credits.late_most(terms.slots),
            tx,
            inbox,
            credits,
            terms,
            unsignaled: 0,
            reads: 0,
            most_reads: most_reads.min(peer.rd_atomic().into()).max(1),
            max_sge,
            rnr: 0,
        })
    }
}
