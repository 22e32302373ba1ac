//! The accounts of a pool's budgets, and who waits for room in them.
//!
//! Accounts form a tree. An account's *claim* on the one above is what it uses, or its reserve if that is more; so what is reserved is
//! there for it whatever the others do. A charge is checked on the way up until the claims do not change any more.
//!
//! Who waits stands in one queue, in order of arrival. A charge that somebody waits for at some account is given to nobody who
//! comes later and needs that account too; others pass. Room is given to the first in the queue by whoever makes it, under
//! the same lock, so there is nothing to miss between a look and a wait.
//!
//! Everything is under one lock, which is taken per batch of slabs, not per allocation.

mod tree;

pub(crate) use tree::{AccountFigures, Plan, Refusal};
use tree::{Blocked, Tree};

use crate::budget::BudgetId;
use crate::sync::{AtomicBool, AtomicU32, Condvar, Guard, Mutex, Ordering};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

/// Accounts and queue.
pub(crate) struct Ledger {
    books: Mutex<Books>,
    /// By bit: budgets whose stock somebody waits for. Written under the lock.
    wanted: AtomicU32,
}

struct Books {
    tree: Tree,
    queue: VecDeque<Arc<Waiter>>,
    /// At which accounts somebody in the queue waits.
    blocked: Blocked,
}

/// One who waits.
pub(crate) struct Waiter {
    budget: BudgetId,
    size: u64,
    /// Whether it was charged. Under the lock.
    served: AtomicBool,
    wake: Condvar,
}

/// What became of a wish to wait.
pub(crate) enum Wait {
    /// It is charged, without waiting.
    Charged,
    /// It will be; see [`Ledger::wait`].
    Queued(Arc<Waiter>),
    /// It never will be.
    Never(Refusal),
}

impl Ledger {
    pub fn new(plan: Plan) -> Ledger {
        Ledger {
            books: Mutex::new(Books {
                tree: Tree::new(plan),
                queue: VecDeque::new(),
                blocked: Blocked::NONE,
            }),
            wanted: AtomicU32::new(0),
        }
    }

    /// Charges up to `count` slabs of `size` bytes and says how many fit; 0 also when others wait for that room.
    pub fn charge(&self, budget: BudgetId, size: usize, count: usize) -> usize {
        let mut books = self.books.lock();
        let size = size as u64;
        let fit = match books.queue.is_empty() {
            true => (books.tree.room(budget) / size).min(count as u64),
            // One at a time, so that nobody stocks what another waits for.
            false => u64::from(books.tree.check(budget, size, books.blocked).is_ok()),
        };
        if fit > 0 {
            books.tree.apply(budget, fit * size);
        }
        fit as usize
    }

    /// By bit, the budgets whose stock is in the way of a charge.
    pub fn in_the_way(&self, budget: BudgetId, size: usize) -> u32 {
        let books = self.books.lock();
        match books.tree.check(budget, size as u64, books.blocked) {
            Ok(()) => 0,
            Err(at) => {
                let mut account = Blocked::NONE;
                account.add(at);
                books.tree.below(account)
            }
        }
    }

    /// Why a charge was refused; counts it if that is for good.
    pub fn refuse(&self, budget: BudgetId, size: usize, for_good: bool) -> Refusal {
        let mut books = self.books.lock();
        if for_good {
            books.tree.count_refusal(budget);
        }
        books.tree.why(budget, size as u64, books.blocked)
    }

    /// Takes `bytes` off each of these budgets, and serves those who wait for them.
    pub fn refund(&self, refunds: impl IntoIterator<Item = (BudgetId, u64)>) {
        let mut books = self.books.lock();
        for (budget, bytes) in refunds {
            books.tree.refund(budget, bytes);
        }
        self.serve(&mut books);
    }

    /// Charges `size` bytes, or joins the queue for them.
    pub fn charge_or_queue(&self, budget: BudgetId, size: usize) -> Wait {
        let mut books = self.books.lock();
        let size = size as u64;
        let blocked = books.blocked;
        if books.tree.check(budget, size, blocked).is_ok() {
            books.tree.apply(budget, size);
            return Wait::Charged;
        }
        if !books.tree.can_ever(budget, size) {
            books.tree.count_refusal(budget);
            return Wait::Never(books.tree.why(budget, size, Blocked::NONE));
        }
        books.tree.count_wait(budget);
        let waiter = Arc::new(Waiter {
            budget,
            size,
            served: AtomicBool::new(false),
            wake: Condvar::new(),
        });
        books.queue.push_back(waiter.clone());
        self.serve(&mut books);
        Wait::Queued(waiter)
    }

    /// Waits until served or until the deadline; whether it is charged. If not, it is out of the queue.
    pub fn wait(&self, waiter: &Arc<Waiter>, deadline: Instant) -> bool {
        let mut books = self.books.lock();
        loop {
            if waiter.served.load(Ordering::Relaxed) {
                return true;
            }
            let (guard, in_time) = waiter.wake.wait(books, Some(deadline));
            books = guard;
            if !in_time {
                return self.leave(books, waiter);
            }
        }
    }

    /// Leaves the queue; whether it was served before.
    fn leave(&self, mut books: Guard<'_, Books>, waiter: &Arc<Waiter>) -> bool {
        if waiter.served.load(Ordering::Relaxed) {
            return true;
        }
        books.queue.retain(|other| !Arc::ptr_eq(other, waiter));
        // Perhaps it was in the way of others.
        self.serve(&mut books);
        false
    }

    /// Serves whoever can be, in order, and works out what the rest waits for.
    fn serve(&self, books: &mut Books) {
        let Books {
            tree,
            queue,
            blocked,
        } = books;
        if queue.is_empty() && *blocked == Blocked::NONE {
            return;
        }
        *blocked = Blocked::NONE;
        queue.retain(
            |waiter| match tree.check(waiter.budget, waiter.size, *blocked) {
                Ok(()) => {
                    tree.apply(waiter.budget, waiter.size);
                    waiter.served.store(true, Ordering::Relaxed);
                    waiter.wake.notify();
                    false
                }
                Err(at) => {
                    blocked.add(at);
                    true
                }
            },
        );
        self.wanted.store(tree.below(*blocked), Ordering::SeqCst);
    }

    /// Whether somebody waits for what this budget's stock holds.
    #[inline]
    pub fn is_wanted(&self, budget: BudgetId) -> bool {
        self.wanted.load(Ordering::SeqCst) >> budget.index() & 1 == 1
    }

    /// Whether somebody waits at all.
    pub fn somebody_waits(&self) -> bool {
        self.wanted.load(Ordering::SeqCst) != 0
    }

    /// The budget's limit in bytes, or less if one above it has less.
    pub fn limit(&self, budget: BudgetId) -> u64 {
        self.books.lock().tree.limit(budget)
    }

    pub fn figures(&self) -> Vec<AccountFigures> {
        self.books.lock().tree.figures()
    }

    #[cfg(all(test, not(loom)))]
    pub fn waiting(&self) -> usize {
        self.books.lock().queue.len()
    }
}

impl std::fmt::Debug for Ledger {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ledger").finish_non_exhaustive()
    }
}

#[cfg(all(test, loom))]
mod loom_tests;
