//! Budgets: limits that keep one use of the pool from starving another.
//!
//! A budget counts slab bytes outside the depots: what users hold, and the small stock that threads keep at
//! hand. Accounts are kept by the [ledger](crate::ledger).

use std::fmt;

/// Which budget an allocation is charged to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum BudgetKind {
    /// The application's own buffers.
    User = 0,
    /// Buffers posted to receive queues. Apart from the user's, or a user who holds all buffers could no longer be
    /// told so by any message.
    Receive = 1,
    /// Connection set-up, credits and other small messages that must get through when all else is exhausted.
    Control = 2,
}

impl BudgetKind {
    /// All of them, in the order of their numbers.
    pub const ALL: [BudgetKind; 3] = [BudgetKind::User, BudgetKind::Receive, BudgetKind::Control];

    /// Its name: `user`, `receive` or `control`.
    pub const fn name(self) -> &'static str {
        match self {
            BudgetKind::User => "user",
            BudgetKind::Receive => "receive",
            BudgetKind::Control => "control",
        }
    }
}

impl fmt::Display for BudgetKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// Names a budget of a pool in calls that allocate: one of the three, or one with a name
/// ([`Pool::budget_named`](crate::Pool::budget_named)).
///
/// Of another pool, it names whatever has that number here, or is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BudgetId(u8);

impl BudgetId {
    #[inline(always)]
    pub(crate) const fn of(kind: BudgetKind) -> BudgetId {
        BudgetId(kind as u8)
    }

    pub(crate) fn from_index(index: usize) -> BudgetId {
        debug_assert!(index < Budget::MOST);
        BudgetId(index as u8)
    }

    #[inline(always)]
    pub(crate) const fn index(self) -> usize {
        self.0 as usize
    }
}

impl From<BudgetKind> for BudgetId {
    #[inline(always)]
    fn from(kind: BudgetKind) -> BudgetId {
        BudgetId::of(kind)
    }
}

/// Which budget a named one is part of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum BudgetParent {
    /// One of the three.
    Kind(BudgetKind),
    /// Another with a name.
    Name(&'static str),
}

impl From<BudgetKind> for BudgetParent {
    fn from(kind: BudgetKind) -> BudgetParent {
        BudgetParent::Kind(kind)
    }
}

impl From<&'static str> for BudgetParent {
    fn from(name: &'static str) -> BudgetParent {
        BudgetParent::Name(name)
    }
}

/// A limit for one kind of use, given to [`PoolBuilder::budget`](crate::PoolBuilder::budget).
///
/// ```
/// # use mempool::{Budget, BudgetKind, Kind, Pool};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let pd = verbs::Device::open_spec("soft0")?.alloc_pd()?;
/// let pool = Pool::builder(&pd)
///     .budget(Budget::user(64 << 20))
///     .budget(Budget::named("index", BudgetKind::User, 32 << 20).reserve(8 << 20))
///     .build()?;
/// let index = pool.budget_named("index").expect("made above");
/// let page = pool.alloc_in(index, Kind::Private, 4096)?; // counts for "index" and for the user
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Budget {
    pub(crate) which: Which,
    pub(crate) limit: u64,
    pub(crate) reserve: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Which {
    Root(BudgetKind),
    Named(&'static str, BudgetParent),
}

impl Budget {
    /// How many budgets a pool can have, the three included.
    pub const MOST: usize = 16;

    /// At most `bytes` in slabs for the application.
    pub const fn user(bytes: u64) -> Budget {
        Budget::of(BudgetKind::User, bytes)
    }

    /// At most `bytes` in slabs for receive buffers.
    pub const fn receive(bytes: u64) -> Budget {
        Budget::of(BudgetKind::Receive, bytes)
    }

    /// At most `bytes` in slabs for control messages.
    pub const fn control(bytes: u64) -> Budget {
        Budget::of(BudgetKind::Control, bytes)
    }

    /// At most `bytes` in slabs for `kind`.
    pub const fn of(kind: BudgetKind, bytes: u64) -> Budget {
        Budget {
            which: Which::Root(kind),
            limit: bytes,
            reserve: 0,
        }
    }

    /// A budget of its own within another: what is charged to it counts for both, and neither may exceed its limit.
    pub fn named(name: &'static str, parent: impl Into<BudgetParent>, bytes: u64) -> Budget {
        Budget {
            which: Which::Named(name, parent.into()),
            limit: bytes,
            reserve: 0,
        }
    }

    /// Of the budget it is part of, `bytes` that nobody else gets, used or not.
    ///
    /// The three are part of the pool, whose limit is [`PoolBuilder::limit`](crate::PoolBuilder::limit).
    pub const fn reserve(mut self, bytes: u64) -> Budget {
        self.reserve = bytes;
        self
    }

    /// The limits of a pool that sets none, by [`BudgetKind`].
    pub(crate) const DEFAULTS: [u64; 3] = [256 << 20, 64 << 20, 16 << 20];
}
