//! Budgets: limits that keep one use of the pool from starving another.
//!
//! A budget counts slab bytes outside the depots: what users hold, and the small stock that threads keep at
//! hand. Charging is a compare-and-swap per batch, never per allocation.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

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
}

impl fmt::Display for BudgetKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            BudgetKind::User => "user",
            BudgetKind::Receive => "receive",
            BudgetKind::Control => "control",
        })
    }
}

/// A limit for one kind of use, given to [`PoolBuilder::budget`](crate::PoolBuilder::budget).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Budget {
    pub(crate) kind: BudgetKind,
    pub(crate) limit: u64,
}

impl Budget {
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
        Budget { kind, limit: bytes }
    }

    /// The limits of a pool that sets none, by [`BudgetKind`].
    pub(crate) const DEFAULTS: [u64; 3] = [256 << 20, 64 << 20, 16 << 20];
}

/// Running account of one budget.
#[derive(Debug)]
pub(crate) struct Account {
    limit: u64,
    charged: AtomicU64,
    peak: AtomicU64,
    refusals: AtomicU64,
}

impl Account {
    pub fn new(limit: u64) -> Self {
        Account {
            limit,
            charged: AtomicU64::new(0),
            peak: AtomicU64::new(0),
            refusals: AtomicU64::new(0),
        }
    }

    /// Charges up to `count` slabs of `size` bytes and says how many fit.
    pub fn charge(&self, size: usize, count: usize) -> usize {
        let size = size as u64;
        let mut charged = self.charged.load(Ordering::Relaxed);
        loop {
            let room = self.limit.saturating_sub(charged) / size;
            let fit = room.min(count as u64);
            if fit == 0 {
                return 0;
            }
            let after = charged + fit * size;
            match self.charged.compare_exchange_weak(
                charged,
                after,
                Ordering::Relaxed,
                Ordering::Relaxed,
            ) {
                Ok(_) => {
                    self.peak.fetch_max(after, Ordering::Relaxed);
                    return fit as usize;
                }
                Err(now) => charged = now,
            }
        }
    }

    pub fn refund(&self, bytes: u64) {
        let before = self.charged.fetch_sub(bytes, Ordering::Relaxed);
        debug_assert!(before >= bytes, "refund of what was never charged");
    }

    pub fn refused(&self) {
        self.refusals.fetch_add(1, Ordering::Relaxed);
    }

    pub fn limit(&self) -> u64 {
        self.limit
    }

    pub fn charged(&self) -> u64 {
        self.charged.load(Ordering::Relaxed)
    }

    pub fn peak(&self) -> u64 {
        self.peak.load(Ordering::Relaxed)
    }

    pub fn refusals(&self) -> u64 {
        self.refusals.load(Ordering::Relaxed)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn charges_what_fits_and_never_more() {
        let account = Account::new(1000);
        assert_eq!(account.charge(300, 2), 2);
        assert_eq!(account.charge(300, 2), 1);
        assert_eq!(account.charge(300, 2), 0);
        assert_eq!((account.charged(), account.peak()), (900, 900));
        account.refund(600);
        assert_eq!(account.charge(100, 99), 7);
        assert_eq!((account.charged(), account.peak()), (1000, 1000));
    }

    #[test]
    fn a_limit_of_zero_and_one_without_end() {
        assert_eq!(Account::new(0).charge(64, 1), 0);
        let endless = Account::new(u64::MAX);
        assert_eq!(endless.charge(1 << 30, 1000), 1000);
    }
}
