//! The pool and its builder.

use crate::Kind;
use crate::arena::ArenaSource;
use crate::budget::{Account, Budget, BudgetKind};
use crate::buf::Buf;
use crate::depot::Depot;
use crate::error::{AllocError, PoolError};
use crate::exposed::ExposedBuf;
use crate::local::{self, Local};
use crate::remote::RemoteList;
use crate::size::{LINE, MAX_LEN, class_of};
use crate::slab::{Slab, StackIndex, WHOLE};
use crate::source::VerbsSource;
use crate::stats::PoolStats;
use parking_lot::Mutex;
use std::io::{self, Read};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use verbs::Pd;

/// A pool of registered memory. Clones are handles on the same pool.
///
/// When the last handle is dropped, the pool goes on existing for the buffers that live, and each frees into it; arenas are deregistered
/// and unmapped with the last of them. (What an idle thread keeps at hand counts as well, until the thread ends, uses another
/// pool for the first time, or frees one more buffer of this one.)
///
/// A child of fork(2) does not inherit the memory: touching a buffer there is a fault (SIGSEGV), by intent.
pub struct Pool {
    shared: Arc<Shared>,
}

/// By hand: what other threads keep at hand may be looked at by them only.
impl std::fmt::Debug for Pool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pool").finish_non_exhaustive()
    }
}

/// Everything of a pool but the handle.
pub(crate) struct Shared {
    pub source: Box<dyn ArenaSource>,
    /// Owner of slabs that go straight back to the depot; its list is closed.
    pub stockless: Arc<Local>,
    depots: [Depot; Kind::ALL.len()],
    accounts: [Account; BudgetKind::ALL.len()],
    threads: Mutex<Threads>,
    handles: AtomicUsize,
    closed: AtomicBool,
}

/// The registry of all [`Local`]s a pool ever had.
#[derive(Default)]
struct Threads {
    all: Vec<Arc<Local>>,
    /// Those whose threads have ended.
    retired: Vec<Arc<Local>>,
}

impl Shared {
    pub fn new(source: Box<dyn ArenaSource>, limits: [u64; BudgetKind::ALL.len()]) -> Arc<Shared> {
        Arc::new_cyclic(|weak| Shared {
            source,
            stockless: Local::new(weak.clone(), RemoteList::new_closed()),
            depots: Kind::ALL.map(|kind| Depot::new(kind, weak.as_ptr())),
            accounts: limits.map(Account::new),
            threads: Mutex::default(),
            handles: AtomicUsize::new(1),
            closed: AtomicBool::new(false),
        })
    }

    pub fn depot(&self, kind: Kind) -> &Depot {
        &self.depots[kind as usize]
    }

    pub fn account(&self, budget: BudgetKind) -> &Account {
        &self.accounts[budget as usize]
    }

    /// Whether the last handle is gone, so that nothing will ever be allocated again.
    pub fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// The locals of all threads, present and past.
    pub fn locals(&self) -> Vec<Arc<Local>> {
        self.threads.lock().all.clone()
    }

    /// A `Local` for the calling thread: one whose thread has ended, or a new one.
    pub fn enlist(self: &Arc<Self>) -> Arc<Local> {
        let mut threads = self.threads.lock();
        match threads.retired.pop() {
            Some(local) => {
                local.remote.0.reopen();
                local
            }
            None => {
                let local = Local::new(Arc::downgrade(self), RemoteList::new());
                threads.all.push(local.clone());
                local
            }
        }
    }

    /// Takes the stock of a `Local` whose thread leaves, and closes its list.
    pub fn retire(&self, local: &Arc<Local>) {
        let mut out = Vec::new();
        // Under the lock, as others may close, reopen or take over.
        let mut threads = self.threads.lock();
        // SAFETY: the thread leaves, and nobody else has taken over yet.
        unsafe { local.take_stock(|_| true, &mut out) };
        out.extend(local.remote.0.close());
        threads.retired.push(local.clone());
        drop(threads);
        // SAFETY: off stacks and lists, so they are ours; the caller keeps the pool alive.
        unsafe { self.give_back(out) };
    }

    /// The last handle is gone.
    fn close(&self) {
        self.closed.store(true, Ordering::Release);
        local::leave_pool(self);
        let mut out = Vec::new();
        let threads = self.threads.lock();
        for local in &threads.all {
            // From now on, frees by other threads go straight to the depot, and so do the owner's.
            out.extend(local.remote.0.close());
            local.ask_back(|_| true);
        }
        drop(threads);
        // SAFETY: off the lists, so they are ours; the caller keeps the pool alive.
        unsafe { self.give_back(out) };
    }
}

/// What a new pool is to be like.
#[derive(Debug)]
pub struct PoolBuilder {
    pd: Pd,
    limits: [u64; BudgetKind::ALL.len()],
    huge_pages: bool,
    trusted_peers: bool,
}

impl PoolBuilder {
    /// Sets a budget's limit. Without it: user 256 MiB, receive 64 MiB, control 16 MiB.
    ///
    /// A limit of 0 forbids the budget's use. Limits bound slab bytes; arenas can hold more than that in chunks that
    /// are partly used.
    pub fn budget(mut self, budget: Budget) -> PoolBuilder {
        self.limits[budget.kind as usize] = budget.limit;
        self
    }

    /// Asks for huge pages (off by default). They are used when the system has any;
    /// [`PoolStats::huge_pages`] says what became of the wish.
    pub fn huge_pages(mut self, wanted: bool) -> PoolBuilder {
        self.huge_pages = wanted;
        self
    }

    /// Gives every exposed arena a remote key for all of it (off by default), so that
    /// [`ExposedBuf::remote`] is there at once.
    ///
    /// Whoever learns such a key reaches everything in the arena, buffers of other connections included: only for
    /// peers that could be trusted with all of them.
    pub fn trusted_peers(mut self, trusted: bool) -> PoolBuilder {
        self.trusted_peers = trusted;
        self
    }

    /// Makes the pool. No memory is taken before the first allocation.
    ///
    /// # Errors
    /// [`PoolError::BudgetTooSmall`] for a limit between 1 and 63 bytes.
    pub fn build(self) -> Result<Pool, PoolError> {
        let source = VerbsSource::new(self.pd, self.huge_pages, self.trusted_peers);
        Pool::from_source(Box::new(source), self.limits)
    }
}

impl Pool {
    /// Begins to make a pool whose memory is registered with `pd`.
    pub fn builder(pd: &Pd) -> PoolBuilder {
        PoolBuilder {
            pd: pd.clone(),
            limits: Budget::DEFAULTS,
            huge_pages: false,
            trusted_peers: false,
        }
    }

    pub(crate) fn from_source(
        source: Box<dyn ArenaSource>,
        limits: [u64; BudgetKind::ALL.len()],
    ) -> Result<Pool, PoolError> {
        for (budget, limit) in BudgetKind::ALL.into_iter().zip(limits) {
            if limit > 0 && limit < LINE as u64 {
                return Err(PoolError::BudgetTooSmall { budget, limit });
            }
        }
        Ok(Pool {
            shared: Shared::new(source, limits),
        })
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
    #[inline]
    pub fn alloc(&self, len: usize) -> Result<Buf, AllocError> {
        self.alloc_in(BudgetKind::User, Kind::Private, len)
    }

    /// A buffer of `len` bytes of the given kind, charged to the given budget. See [`alloc`](Pool::alloc).
    ///
    /// # Errors
    /// Those of [`alloc`](Pool::alloc), and [`AllocError::ExposedNeedsCells`] for [`Kind::Exposed`].
    #[inline]
    pub fn alloc_in(&self, budget: BudgetKind, kind: Kind, len: usize) -> Result<Buf, AllocError> {
        self.alloc_with(budget, kind, len, true)
    }

    /// Like [`alloc`](Pool::alloc), but never makes the pool grow: no system call, no registration.
    ///
    /// # Errors
    /// [`AllocError::NotReady`] if the pool would have to grow, which is always so above 1 MiB; else as [`alloc`](Pool::alloc).
    #[inline]
    pub fn try_alloc(&self, len: usize) -> Result<Buf, AllocError> {
        self.try_alloc_in(BudgetKind::User, Kind::Private, len)
    }

    /// Like [`alloc_in`](Pool::alloc_in), but never makes the pool grow.
    ///
    /// # Errors
    /// Those of [`try_alloc`](Pool::try_alloc) and [`alloc_in`](Pool::alloc_in).
    #[inline]
    pub fn try_alloc_in(
        &self,
        budget: BudgetKind,
        kind: Kind,
        len: usize,
    ) -> Result<Buf, AllocError> {
        self.alloc_with(budget, kind, len, false)
    }

    /// A buffer of `len` zero bytes.
    ///
    /// # Errors
    /// As [`alloc`](Pool::alloc).
    pub fn alloc_zeroed(&self, len: usize) -> Result<Buf, AllocError> {
        let mut buf = self.alloc(len)?;
        buf.fill(0);
        Ok(buf)
    }

    /// A buffer that holds a copy of `bytes`.
    ///
    /// # Errors
    /// As [`alloc`](Pool::alloc).
    pub fn alloc_from_slice(&self, bytes: &[u8]) -> Result<Buf, AllocError> {
        let mut buf = self.alloc(bytes.len())?;
        buf.copy_from_slice(bytes);
        Ok(buf)
    }

    /// A buffer with the next `len` bytes of `reader`; shorter if the reader ends before.
    ///
    /// # Errors
    /// The reader's, and those of [`alloc`](Pool::alloc) as [`io::ErrorKind::OutOfMemory`] with the [`AllocError`] inside.
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
    pub fn exposed(&self, len: usize) -> Result<ExposedBuf, AllocError> {
        self.exposed_in(BudgetKind::User, len)
    }

    /// Like [`exposed`](Pool::exposed), charged to the given budget.
    ///
    /// # Errors
    /// As [`alloc`](Pool::alloc).
    pub fn exposed_in(&self, budget: BudgetKind, len: usize) -> Result<ExposedBuf, AllocError> {
        if len == 0 {
            return Ok(ExposedBuf::empty());
        }
        let slab = self.slab(budget, Kind::Exposed, len, true)?;
        // SAFETY: fresh from the pool, of at least `len` bytes, and of an exposed arena.
        Ok(unsafe { ExposedBuf::new(slab, len) })
    }

    /// Gives arenas that are not in use back to the system: deregisters and unmaps them. Returns bytes released.
    ///
    /// The calling thread's stock is given up for it, and so is what others have freed. Stock of other threads stays, and keeps its arenas,
    /// until they next free something of that kind and size.
    pub fn trim(&self) -> u64 {
        self.shared.reclaim(|_| true);
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

    #[inline]
    fn alloc_with(
        &self,
        budget: BudgetKind,
        kind: Kind,
        len: usize,
        grow: bool,
    ) -> Result<Buf, AllocError> {
        if kind == Kind::Exposed {
            return Err(AllocError::ExposedNeedsCells);
        }
        if len == 0 {
            return Ok(Buf::empty());
        }
        let slab = self.slab(budget, kind, len, grow)?;
        // SAFETY: fresh from the pool, of at least `len` bytes, and not of an exposed arena.
        Ok(unsafe { Buf::new(slab, len) })
    }

    /// A slab of at least `len` bytes, with one handle, which the caller is to make; and the number of its stack.
    #[inline]
    fn slab(
        &self,
        budget: BudgetKind,
        kind: Kind,
        len: usize,
        grow: bool,
    ) -> Result<(NonNull<Slab>, StackIndex), AllocError> {
        let Some(class) = class_of(len) else {
            if len > MAX_LEN {
                return Err(AllocError::TooLarge { asked: len });
            }
            let index = StackIndex::new(budget, kind, WHOLE);
            let slab = self.shared.take_whole(index, len, grow)?;
            return Ok((slab, index));
        };
        let index = StackIndex::new(budget, kind, class);
        // SAFETY: the reference is gone before anything else happens.
        if let Some(local) = unsafe { local::current(Arc::as_ptr(&self.shared)) } {
            // SAFETY: current, so attached to this thread.
            if let Some(slab) = unsafe { local.stack(index).pop() } {
                return Ok((slab, index));
            }
        }
        Ok((self.shared.refill(index, grow)?, index))
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
