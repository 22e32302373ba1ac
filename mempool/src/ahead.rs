//! Growth ahead of use, on demand.

use crate::Kind;
use crate::budget::BudgetId;
use crate::error::AllocError;
use crate::pool::Pool;
use crate::refill::exhausted;
use crate::size::{MAX_LEN, class_of, slab_size};
use crate::slab::{StackIndex, WHOLE};

impl Pool {
    /// Makes the pool grow now, so that `count` buffers of `len` bytes and this kind can be allocated without growth later: their arenas
    /// are registered, and there is memory behind them.
    ///
    /// Nothing is charged, and nothing is kept for the caller: any thread may take them. Above 1 MiB it is chunks in a row that
    /// are made ready, where a later growth of other classes may use them first, and above 64 MiB one arena at most.
    ///
    /// # Errors
    /// As [`alloc`](Pool::alloc): [`AllocError::BudgetExhausted`] if the budget's limit is smaller than that, [`AllocError::Grow`] if
    /// there is no memory.
    pub fn reserve(
        &self,
        budget: impl Into<BudgetId>,
        kind: Kind,
        len: usize,
        count: usize,
    ) -> Result<(), AllocError> {
        let budget = budget.into();
        let shared = &self.shared;
        if !shared.has_budget(budget) {
            return Err(AllocError::NoSuchBudget);
        }
        let size = slab_size(len).ok_or(AllocError::TooLarge { asked: len })?;
        debug_assert!(len <= MAX_LEN);
        if len == 0 || count == 0 {
            return Ok(());
        }
        let all = size.saturating_mul(count);
        if all as u64 > shared.ledger.limit(budget) {
            return Err(exhausted(shared.ledger.refuse(budget, all, true), all));
        }
        let depot = shared.depot(kind);
        if let Some(class) = class_of(len) {
            return depot.grow_ahead(class, count, &*shared.source);
        }
        // Taken and given back, they leave their chunks behind, with memory.
        let index = StackIndex::new(budget, kind, WHOLE);
        let mut slabs = Vec::new();
        let mut done = Ok(());
        for _ in 0..count {
            match depot.take_whole(size, &*shared.source) {
                Ok(slab) => slabs.push(slab),
                Err(e) => {
                    done = Err(e);
                    break;
                }
            }
        }
        for &slab in &slabs {
            crate::refill::hand_to(slab, shared.stockless.stack(index));
        }
        // SAFETY: just taken, so they are ours; this handle keeps the pool alive. They were never charged.
        let _ = unsafe { shared.put_back(slabs) };
        done
    }
}
