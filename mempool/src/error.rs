//! Errors of making a pool and of allocating from it.

use crate::arena::ArenaError;
use crate::size::MAX_LEN;
use crate::{BudgetKind, Kind};

/// A pool could not be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PoolError {
    /// A budget's limit is smaller than the smallest slab, so that nothing could ever be allocated from it.
    #[error(
        "the {budget} budget of {limit} bytes is smaller than a slab (64 bytes); raise it, or set it to 0 to forbid its use"
    )]
    BudgetTooSmall {
        /// The budget.
        budget: BudgetKind,
        /// Its limit in bytes.
        limit: u64,
    },
}

/// An allocation failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AllocError {
    /// The budget has no room for one more slab of that size. Other budgets are not affected.
    #[error(
        "the {budget} budget is exhausted: {in_use} of {limit} bytes in use, {asked} more asked for; drop buffers or raise the budget"
    )]
    BudgetExhausted {
        /// The budget.
        budget: BudgetKind,
        /// Its limit in bytes.
        limit: u64,
        /// Bytes in use, the stock that threads keep at hand included.
        in_use: u64,
        /// Bytes that the allocation needs ([`slab_size`](crate::slab_size) of its length).
        asked: u64,
    },
    /// The length is above what a pool ever gives.
    #[error(
        "{asked} bytes are more than the {MAX_LEN} that one allocation can have; use several segments"
    )]
    TooLarge {
        /// Bytes asked for.
        asked: usize,
    },
    /// Exposed memory was asked for as a buffer with slices.
    #[error(
        "exposed memory can change at any instant, so there are no slices of it: use Pool::exposed"
    )]
    ExposedNeedsCells,
    /// A new arena was needed, and could not be had.
    #[error("the pool cannot grow by a {kind} arena of {len} bytes: {source}")]
    Grow {
        /// Kind of the arena.
        kind: Kind,
        /// Its length in bytes: the smallest that would have done.
        len: usize,
        /// What failed.
        source: Box<ArenaError>,
    },
    /// [`Pool::try_alloc`](crate::Pool::try_alloc) found nothing ready; [`Pool::alloc`](crate::Pool::alloc) would have made the pool grow.
    #[error("no slab is ready, and growing was not asked for")]
    NotReady,
}

const _: () = assert!(size_of::<AllocError>() <= 40);
