//! The pool: what allocates.

use crate::Kind;
use crate::arena::ArenaSource;
use crate::budget::{BudgetId, BudgetKind};
use crate::buf::Buf;
use crate::error::{AllocError, PoolError};
use crate::exposed::ExposedBuf;
use crate::local;
use crate::refill::May;
use crate::shared::Config;
pub(crate) use crate::shared::Shared;
use crate::size::{MAX_LEN, scaled_class_of};
use crate::slab::{Slab, StackIndex, WHOLE};
use crate::stats::PoolStats;
use std::hint::cold_path;
use std::io::{self, Read};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// A pool of registered memory. Clones are handles on the same pool.
///
/// When the last handle is dropped, the pool goes on existing for the buffers that live, and each frees into it; arenas are deregistered
/// and unmapped with the last of them.
///
/// A child of fork(2) does not inherit the memory: touching a buffer there is a fault (SIGSEGV), by intent.
/// Dropping one there is between the child and its copy of the pool. Nothing else of a pool, nor of a device, may be used there; see [`verbs::fork_init`].
pub struct Pool {
    pub(crate) shared: Arc<Shared>,
}

/// By hand: what other threads keep at hand may be looked at by them only.
impl std::fmt::Debug for Pool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pool").finish_non_exhaustive()
    }
}

// What allocates is always compiled into its caller: out of line, the result would be written in words and copied out in pairs of
// words, and a load that spans two recent stores waits for both (measured: a pair of calls takes three times as long). For the same reason what is seldom
// is one call that returns a slab in registers: of results that come by way of memory, the compiler would make such copies even where a slab is at hand.
impl Pool {
    pub(crate) fn from_config(
        source: Box<dyn ArenaSource>,
        config: Config,
    ) -> Result<Pool, PoolError> {
        let shared = Shared::new(source, config);
        let pool = Pool { shared };
        let started = pool.shared.grower.start(&pool.shared);
        started.map_err(PoolError::Thread)?;
        Ok(pool)
    }

    /// The budget of that name, of those given to [`PoolBuilder::budget`](crate::PoolBuilder::budget); the three have names too.
    pub fn budget_named(&self, name: &str) -> Option<BudgetId> {
        self.shared.plan.id_of(name)
    }

    /// A buffer of `len` bytes of private memory, charged to the user's budget.
    ///
    /// The memory is zeroed when it is used for the first time; afterwards it may hold what earlier buffers of this pool
    /// left there. It starts on a cache line (64 bytes), from 4 KiB on on a page. `len == 0` is allowed and takes no memory.
    ///
    /// Costs a few nanoseconds from the calling thread's own stock. When that is empty, a batch is fetched under a lock; when the
    /// pool has none either, it grows by a piece of memory, which takes system calls and, for a new arena, a registration.
    ///
    /// # Errors
    /// [`AllocError::TooLarge`] above 1 GiB, [`AllocError::BudgetExhausted`], [`AllocError::Grow`]. It never waits for buffers
    /// to be freed.
    #[inline(always)]
    #[track_caller]
    pub fn alloc(&self, len: usize) -> Result<Buf, AllocError> {
        self.alloc_in(BudgetKind::User, Kind::Private, len)
    }

    /// A buffer of `len` bytes of the given kind, charged to the given budget. See [`alloc`](Pool::alloc).
    ///
    /// # Errors
    /// Those of [`alloc`](Pool::alloc), and [`AllocError::ExposedNeedsCells`] for [`Kind::Exposed`].
    #[inline(always)]
    #[track_caller]
    pub fn alloc_in(
        &self,
        budget: impl Into<BudgetId>,
        kind: Kind,
        len: usize,
    ) -> Result<Buf, AllocError> {
        self.alloc_with(budget.into(), kind, len, May::Grow)
    }

    /// Like [`alloc`](Pool::alloc), but never makes the pool grow: no system call, no registration.
    ///
    /// # Errors
    /// [`AllocError::NotReady`] if the pool would have to grow, which is always so above 1 MiB; else as [`alloc`](Pool::alloc).
    #[inline(always)]
    #[track_caller]
    pub fn try_alloc(&self, len: usize) -> Result<Buf, AllocError> {
        self.try_alloc_in(BudgetKind::User, Kind::Private, len)
    }

    /// Like [`alloc_in`](Pool::alloc_in), but never makes the pool grow.
    ///
    /// # Errors
    /// Those of [`try_alloc`](Pool::try_alloc) and [`alloc_in`](Pool::alloc_in).
    #[inline(always)]
    #[track_caller]
    pub fn try_alloc_in(
        &self,
        budget: impl Into<BudgetId>,
        kind: Kind,
        len: usize,
    ) -> Result<Buf, AllocError> {
        self.alloc_with(budget.into(), kind, len, May::Nothing)
    }

    /// A buffer of `len` zero bytes.
    ///
    /// # Errors
    /// As [`alloc`](Pool::alloc).
    #[track_caller]
    pub fn alloc_zeroed(&self, len: usize) -> Result<Buf, AllocError> {
        let mut buf = self.alloc(len)?;
        buf.fill(0);
        Ok(buf)
    }

    /// A buffer that holds a copy of `bytes`.
    ///
    /// # Errors
    /// As [`alloc`](Pool::alloc).
    #[track_caller]
    pub fn alloc_from_slice(&self, bytes: &[u8]) -> Result<Buf, AllocError> {
        let mut buf = self.alloc(bytes.len())?;
        buf.copy_from_slice(bytes);
        Ok(buf)
    }

    /// A buffer with the next `len` bytes of `reader`; shorter if the reader ends before.
    ///
    /// # Errors
    /// The reader's, and those of [`alloc`](Pool::alloc) as [`io::ErrorKind::OutOfMemory`] with the [`AllocError`] inside.
    #[track_caller]
    pub fn alloc_from(&self, mut reader: impl Read, len: usize) -> io::Result<Buf> {
        let mut buf = self
            .alloc(len)
            .map_err(|e| io::Error::new(io::ErrorKind::OutOfMemory, e))?;
        let mut filled = 0;
        while filled < len {
            match reader.read(&mut buf[filled..]) {
                Ok(0) => break,
                Ok(n) => filled += n,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        buf.truncate(filled);
        Ok(buf)
    }

    /// `len` bytes of exposed memory, charged to the user's budget: cells that a peer may be given a key to.
    ///
    /// Content, alignment and cost are as for [`alloc`](Pool::alloc).
    ///
    /// # Errors
    /// As [`alloc`](Pool::alloc).
    #[track_caller]
    pub fn exposed(&self, len: usize) -> Result<ExposedBuf, AllocError> {
        self.exposed_in(BudgetKind::User, len)
    }

    /// Like [`exposed`](Pool::exposed), charged to the given budget.
    ///
    /// # Errors
    /// As [`alloc`](Pool::alloc).
    #[track_caller]
    pub fn exposed_in(
        &self,
        budget: impl Into<BudgetId>,
        len: usize,
    ) -> Result<ExposedBuf, AllocError> {
        if len == 0 {
            return Ok(ExposedBuf::empty());
        }
        let slab = self.slab(budget.into(), Kind::Exposed, len, May::Grow)?;
        // SAFETY: fresh from the pool, of at least `len` bytes, and of an exposed arena.
        Ok(unsafe { ExposedBuf::new(slab, len) })
    }

    /// Gives arenas that are not in use back to the system: deregisters and unmaps them. Returns bytes released.
    ///
    /// All threads' stock is given up for it, and so is what others have freed.
    pub fn trim(&self) -> u64 {
        self.shared.reclaim(|_| true, true);
        Kind::ALL
            .into_iter()
            .map(|kind| self.shared.depot(kind).trim())
            .sum()
    }

    /// Figures at about this time. Takes the pool's locks for moments.
    ///
    /// Buffers that others have freed count as in use until their owner takes them in, which the calling thread does here.
    pub fn stats(&self) -> PoolStats {
        self.shared.sort_in_own();
        PoolStats::of(&self.shared)
    }

    /// How full each arena is, for logs: a line per arena, a character per chunk of 2 MiB. `.` is a free chunk, `_` one that is cut into slabs
    /// of which none is out, `0` to `9` are tenths that are out, `*` is all of them, `#` is part of a buffer above 1 MiB.
    /// Behind it stands what the arena is when it is not shared by all, and whether it is of huge pages.
    ///
    /// ```
    /// # use mempool::Pool;
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let pd = verbs::Device::open_spec("soft0")?.alloc_pd()?;
    /// let pool = Pool::builder(&pd).build()?;
    /// let _page = pool.alloc(4096)?;
    /// assert_eq!(pool.picture(), "private        4.0 MiB  [0.]\n");
    /// # Ok(()) }
    /// ```
    pub fn picture(&self) -> String {
        let arenas = Kind::ALL.map(|kind| self.shared.depot(kind).picture());
        arenas.iter().flatten().map(|a| format!("{a}\n")).collect()
    }

    #[inline(always)]
    #[track_caller]
    fn alloc_with(
        &self,
        budget: BudgetId,
        kind: Kind,
        len: usize,
        may: May,
    ) -> Result<Buf, AllocError> {
        if kind == Kind::Exposed {
            cold_path();
            return Err(AllocError::ExposedNeedsCells);
        }
        let slab = match self.at_hand(budget, kind, len) {
            Some(slab) => slab,
            None if len == 0 => return Ok(Buf::empty()),
            None => {
                cold_path();
                let mut error = None;
                match self.fetch(budget, kind, len, may, &mut error) {
                    Some(slab) => slab,
                    None => return Err(error.unwrap_or(AllocError::NotReady)),
                }
            }
        };
        // SAFETY: fresh from the pool, of at least `len` bytes, and not of an exposed arena.
        Ok(unsafe { Buf::new(slab, len) })
    }

    /// [`slab`](Pool::slab) for where nothing is at hand. What it returns fits registers; `error` is set if it is `None`.
    #[cold]
    #[inline(never)]
    #[track_caller]
    fn fetch(
        &self,
        budget: BudgetId,
        kind: Kind,
        len: usize,
        may: May,
        error: &mut Option<AllocError>,
    ) -> Option<(NonNull<Slab>, StackIndex)> {
        self.slab(budget, kind, len, may)
            .map_err(|e| *error = Some(e))
            .ok()
    }

    /// A slab of at least `len` bytes from this thread's stock, and the number of its stack. `None` also for what is in no stock: nothing, and
    /// more than the largest class.
    #[inline(always)]
    fn at_hand(
        &self,
        budget: BudgetId,
        kind: Kind,
        len: usize,
    ) -> Option<(NonNull<Slab>, StackIndex)> {
        if len == 0 || !self.shared.has_budget(budget) {
            return None;
        }
        let index = StackIndex::of_scaled(budget, kind, scaled_class_of(len)?);
        // SAFETY: the pool has the budget; the reference is gone before anything else happens.
        let stack = unsafe { local::current_stack_of(Arc::as_ptr(&self.shared), index) };
        // SAFETY: of a current `Local`, so attached to this thread.
        let slab = unsafe { stack?.pop() };
        Some((slab?, index))
    }

    /// A slab of at least `len` bytes, with one handle, which the caller is to make; and the number of its stack.
    #[track_caller]
    pub(crate) fn slab(
        &self,
        budget: BudgetId,
        kind: Kind,
        len: usize,
        may: May,
    ) -> Result<(NonNull<Slab>, StackIndex), AllocError> {
        if !self.shared.has_budget(budget) {
            return Err(AllocError::NoSuchBudget);
        }
        let Some(class) = scaled_class_of(len) else {
            cold_path();
            if len > MAX_LEN {
                return Err(AllocError::TooLarge { asked: len });
            }
            let index = StackIndex::new(budget, kind, WHOLE);
            let slab = self.shared.take_whole(index, len, may)?;
            return Ok((slab, index));
        };
        if may != May::GrowCharged
            && let Some(found) = self.at_hand(budget, kind, len)
        {
            return Ok(found);
        }
        let index = StackIndex::of_scaled(budget, kind, class);
        Ok((self.shared.refill(index, len, may)?, index))
    }
}

impl Clone for Pool {
    fn clone(&self) -> Pool {
        self.shared.handles.fetch_add(1, Ordering::Relaxed);
        Pool {
            shared: self.shared.clone(),
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        if self.shared.handles.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.shared.close();
        }
    }
}
