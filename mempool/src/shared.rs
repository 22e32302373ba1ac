//! Everything of a pool but the handle.

use crate::Kind;
use crate::arena::ArenaSource;
use crate::budget::BudgetId;
use crate::debug::{DebugMode, Watch};
use crate::depot::Depot;
use crate::grower::{Grower, Growth};
use crate::ledger::{Ledger, Plan};
use crate::local::{self, Local};
use crate::remote::RemoteList;
use crate::stack::Stack;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use verbs::Pd;

/// What a pool is to be like, beside where its memory comes from.
#[derive(Debug)]
pub(crate) struct Config {
    pub plan: Plan,
    pub growth: Growth,
    pub debug: Option<DebugMode>,
    /// The domains that memory is registered with, and whether exposed arenas get a remote key.
    pub pds: Vec<Pd>,
    pub trusted_peers: bool,
}

pub(crate) struct Shared {
    pub source: Box<dyn ArenaSource>,
    pub plan: Plan,
    pub pds: Vec<Pd>,
    pub trusted_peers: bool,
    pub ledger: Ledger,
    pub grower: Grower,
    pub debug: Option<Watch>,
    /// Owner of slabs that go straight back to the depot; its list is closed.
    pub stockless: Arc<Local>,
    /// Held by whoever takes other threads' stock.
    pub taking: Mutex<()>,
    depots: [Depot; Kind::ALL.len()],
    threads: Mutex<Threads>,
    pub handles: AtomicUsize,
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
    pub fn new(source: Box<dyn ArenaSource>, config: Config) -> Arc<Shared> {
        Arc::new_cyclic(|weak| Shared {
            source,
            pds: config.pds,
            trusted_peers: config.trusted_peers,
            grower: Grower::new(config.growth),
            debug: config.debug.map(Watch::new),
            stockless: Local::new(weak.clone(), config.plan.count(), RemoteList::new_closed()),
            taking: Mutex::new(()),
            depots: Kind::ALL.map(|kind| Depot::new(kind, weak.as_ptr())),
            ledger: Ledger::new(config.plan.clone()),
            plan: config.plan,
            threads: Mutex::default(),
            handles: AtomicUsize::new(1),
            closed: AtomicBool::new(false),
        })
    }

    pub fn depot(&self, kind: Kind) -> &Depot {
        &self.depots[kind as usize]
    }

    /// Whether the pool has a budget of that number.
    #[inline(always)]
    pub fn has_budget(&self, budget: BudgetId) -> bool {
        // Most often known when this is compiled.
        budget.index() < crate::BudgetKind::ALL.len() || budget.index() < self.plan.count()
    }

    /// Whether the last handle is gone, so that nothing will ever be allocated again.
    pub fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// The locals of all threads, present and past.
    pub fn locals(&self) -> Vec<Arc<Local>> {
        self.threads.lock().all.clone()
    }

    /// Calls `f` with the locals of all threads that have not ended, and whether somebody waits for room.
    pub fn for_attached(&self, mut f: impl FnMut(&Local, bool)) {
        let threads = self.threads.lock();
        if self.is_closed() {
            return;
        }
        let waits = self.ledger.somebody_waits();
        for local in &threads.all {
            if !threads.retired.iter().any(|r| Arc::ptr_eq(r, local)) {
                f(local, waits);
            }
        }
    }

    /// A `Local` for the calling thread: one whose thread has ended, or a new one.
    pub fn enlist(self: &Arc<Self>) -> Arc<Local> {
        let mut threads = self.threads.lock();
        let local = threads.retired.pop().unwrap_or_else(|| {
            let list = RemoteList::new_closed();
            let local = Local::new(Arc::downgrade(self), self.plan.count(), list);
            threads.all.push(local.clone());
            local
        });
        // Where somebody waits, what is freed goes to the depot at once.
        if !self.ledger.somebody_waits() && !self.is_closed() {
            local.remote.0.reopen_if_closed();
        }
        local
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
    pub fn close(&self) {
        self.grower.stop();
        self.report_live();
        self.closed.store(true, Ordering::Release);
        local::leave_pool(self);
        let mut out = Vec::new();
        let threads = self.threads.lock();
        for local in &threads.all {
            // From now on, frees by other threads go straight to the depot, and so do the owner's.
            out.extend(local.remote.0.close());
        }
        drop(threads);
        let in_use = |stack: &Stack| !stack.is_revoked();
        self.take_from_all(in_use, &mut out);
        self.flush_quarantine(&mut out);
        // SAFETY: off the lists, so they are ours; the caller keeps the pool alive.
        unsafe { self.give_back(out) };
    }
}
