//! Errors of making a pool and of allocating from it.

use crate::arena::ArenaError;
use crate::size::MAX_LEN;
use crate::{Budget, BudgetKind, Kind};
use std::io;

/// A pool could not be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PoolError {
    /// A budget's limit is smaller than the smallest slab, so that nothing could ever be allocated from it.
    #[error(
        "the {name} budget of {limit} bytes is smaller than a slab (64 bytes); raise it, or set it to 0 to forbid its use"
    )]
    BudgetTooSmall {
        /// The budget, or which of the three it is part of.
        budget: BudgetKind,
        /// Its name.
        name: &'static str,
        /// Its limit in bytes.
        limit: u64,
    },
    /// A budget's reserve, or those of the budgets within it together, are more than its limit.
    #[error(
        "{reserved} bytes are reserved within the {name} budget, whose limit is {limit}; raise the limit, or reserve less"
    )]
    ReserveTooLarge {
        /// Name of the budget; "pool" for the pool's limit.
        name: &'static str,
        /// Bytes reserved.
        reserved: u64,
        /// The limit in bytes.
        limit: u64,
    },
    /// A named budget is part of one that was not given before it.
    #[error("the {name} budget is part of {parent:?}, which there is not; give that one first")]
    NoSuchParent {
        /// Name of the budget.
        name: &'static str,
        /// Name of the one that is missing.
        parent: &'static str,
    },
    /// Two budgets have the same name and different parents.
    #[error("there are two budgets of the name {name:?}; rename one")]
    NameTaken {
        /// The name.
        name: &'static str,
    },
    /// There are too many budgets.
    #[error(
        "the {name} budget is one too many: a pool has {}, three of which have no name",
        Budget::MOST
    )]
    TooManyBudgets {
        /// Name of the first that is too many.
        name: &'static str,
    },
    /// The same protection domain was given twice.
    #[error(
        "a protection domain of {device} was given twice; each one needs to be named once only"
    )]
    SameDomain {
        /// The device.
        device: String,
    },
    /// There are too many devices.
    #[error(
        "a pool registers its memory with at most {} devices",
        crate::DeviceSlot::MOST
    )]
    TooManyDevices,
    /// Huge pages are required, and there is none.
    #[error(transparent)]
    HugePages(#[from] verbs::HugePageError),
    /// The environment asks for a debug mode that there is not.
    #[error(
        "VERBATIM_POOL_DEBUG is {value:?}; 0 is off, 1 is on, a larger number is how many freed buffers are kept out of use"
    )]
    DebugVariable {
        /// What it says.
        value: String,
    },
    /// The thread that makes the pool grow could not be started.
    #[error("cannot start the thread that grows the pool: {0}; check `ulimit -u`, or do without")]
    Thread(#[source] io::Error),
}

/// An allocation failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AllocError {
    /// The budget, or one that it is part of, has no room for one more slab of that size, or others wait for what room there is. Budgets that are not part
    /// of the same one are not affected.
    #[error(
        "the {name} budget is exhausted: {in_use} of {limit} bytes in use, {asked} more asked for; drop buffers, wait for them (Pool::alloc_deadline) or raise the budget"
    )]
    BudgetExhausted {
        /// Which of the three budgets was to be charged, by itself or by one within it.
        budget: BudgetKind,
        /// Name of the budget that has no room.
        name: &'static str,
        /// Its limit in bytes.
        limit: u64,
        /// Bytes in use, the stock that threads keep at hand and what is reserved for budgets within it included.
        in_use: u64,
        /// Bytes that the allocation needs ([`slab_size`](crate::slab_size) of its length).
        asked: u64,
    },
    /// The budget had no room until the deadline.
    #[error(
        "the {name} budget had no room for {asked} bytes until the deadline; drop buffers earlier, wait longer or raise the budget"
    )]
    Deadline {
        /// Name of the budget that has no room.
        name: &'static str,
        /// Bytes that the allocation needs.
        asked: u64,
    },
    /// The budget is none of this pool's.
    #[error("the budget is not one of this pool; ask the pool for it by its name")]
    NoSuchBudget,
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

const _: () = assert!(size_of::<AllocError>() <= 48);
