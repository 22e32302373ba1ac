//! Allocations that wait for room.

use crate::Kind;
use crate::budget::{BudgetId, BudgetKind};
use crate::buf::Buf;
use crate::error::AllocError;
use crate::exposed::ExposedBuf;
use crate::ledger::Wait;
use crate::pool::Pool;
use crate::refill::{May, exhausted};
use crate::size::slab_size;
use crate::slab::{Slab, StackIndex};
use crate::trace::event;
use std::ptr::NonNull;
use std::time::Instant;

impl Pool {
    /// Like [`alloc`](Pool::alloc), but waits until `deadline` for room in the budget.
    ///
    /// Who waits is served in order of arrival: nobody who comes later gets the room that an earlier one waits for, whatever the
    /// lengths. Room comes from buffers that are dropped, by any thread; meanwhile threads keep no stock of that budget, so that all of
    /// it counts. It is never waited for memory of the system: where the pool cannot grow, that is an error at once.
    ///
    /// ```
    /// # use mempool::{Budget, Pool};
    /// # use std::time::{Duration, Instant};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let pd = verbs::Device::open_spec("soft0")?.alloc_pd()?;
    /// let pool = Pool::builder(&pd).budget(Budget::user(1 << 20)).build()?;
    /// let all = pool.alloc(1 << 20)?;
    /// let worker = std::thread::spawn(move || drop(all)); // done with it at some time
    /// let more = pool.alloc_deadline(4096, Instant::now() + Duration::from_secs(10))?;
    /// # worker.join().unwrap();
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`AllocError::Deadline`] when there was no room until then, [`AllocError::BudgetExhausted`] when there never can be, and those of
    /// [`alloc`](Pool::alloc) that have nothing to do with budgets.
    #[track_caller]
    pub fn alloc_deadline(&self, len: usize, deadline: Instant) -> Result<Buf, AllocError> {
        self.alloc_deadline_in(BudgetKind::User, Kind::Private, len, deadline)
    }

    /// Like [`alloc_in`](Pool::alloc_in), but waits until `deadline`; see [`alloc_deadline`](Pool::alloc_deadline).
    ///
    /// # Errors
    /// Those of [`alloc_deadline`](Pool::alloc_deadline) and [`alloc_in`](Pool::alloc_in).
    #[track_caller]
    pub fn alloc_deadline_in(
        &self,
        budget: impl Into<BudgetId>,
        kind: Kind,
        len: usize,
        deadline: Instant,
    ) -> Result<Buf, AllocError> {
        if kind == Kind::Exposed {
            return Err(AllocError::ExposedNeedsCells);
        }
        if len == 0 {
            return Ok(Buf::empty());
        }
        let slab = self.slab_deadline(budget.into(), kind, len, deadline)?;
        // SAFETY: fresh from the pool, of at least `len` bytes, and not of an exposed arena.
        Ok(unsafe { Buf::new(slab, len) })
    }

    /// Like [`exposed_in`](Pool::exposed_in), but waits until `deadline`; see [`alloc_deadline`](Pool::alloc_deadline).
    ///
    /// # Errors
    /// As [`alloc_deadline`](Pool::alloc_deadline).
    #[track_caller]
    pub fn exposed_deadline_in(
        &self,
        budget: impl Into<BudgetId>,
        len: usize,
        deadline: Instant,
    ) -> Result<ExposedBuf, AllocError> {
        if len == 0 {
            return Ok(ExposedBuf::empty());
        }
        let slab = self.slab_deadline(budget.into(), Kind::Exposed, len, deadline)?;
        // SAFETY: fresh from the pool, of at least `len` bytes, and of an exposed arena.
        Ok(unsafe { ExposedBuf::new(slab, len) })
    }

    #[track_caller]
    fn slab_deadline(
        &self,
        budget: BudgetId,
        kind: Kind,
        len: usize,
        deadline: Instant,
    ) -> Result<(NonNull<Slab>, StackIndex), AllocError> {
        match self.slab(budget, kind, len, May::GrowOrWait) {
            Err(AllocError::BudgetExhausted { .. }) => {}
            done => return done,
        }
        // An error above says so if there is none.
        let size = slab_size(len).unwrap_or(len);
        let shared = &self.shared;
        match shared.ledger.charge_or_queue(budget, size) {
            Wait::Charged => {}
            Wait::Never(refusal) => return Err(exhausted(refusal, size)),
            Wait::Queued(waiter) => {
                shared.make_way(budget);
                let served = shared.ledger.wait(&waiter, deadline);
                shared.way_made();
                if !served {
                    let refusal = shared.ledger.refuse(budget, size, true);
                    event!(DEBUG, budget = refusal.name, size, "a deadline passed");
                    return Err(AllocError::Deadline {
                        name: refusal.name,
                        asked: size as u64,
                    });
                }
            }
        }
        self.slab(budget, kind, len, May::GrowCharged)
    }
}
