//! What a new pool is to be like.

use crate::budget::Budget;
use crate::debug::{DebugMode, Debugging};
use crate::device::DeviceSlot;
use crate::error::PoolError;
use crate::grower::Growth;
use crate::huge::HugePages;
use crate::ledger::Plan;
use crate::pool::Pool;
use crate::shared::Config;
use crate::source::VerbsSource;
use std::time::Duration;
use verbs::Pd;

/// What a new pool is to be like. Begun by [`Pool::builder`].
#[derive(Debug)]
pub struct PoolBuilder {
    pds: Vec<Pd>,
    budgets: Vec<Budget>,
    limit: u64,
    growth: Growth,
    huge_pages: HugePages,
    numa_node: Option<usize>,
    trusted_peers: bool,
    debug: Debugging,
}

impl Pool {
    /// Begins to make a pool whose memory is registered with `pd`.
    pub fn builder(pd: &Pd) -> PoolBuilder {
        PoolBuilder {
            pds: vec![pd.clone()],
            budgets: Vec::new(),
            limit: u64::MAX,
            growth: Growth::default(),
            huge_pages: HugePages::Never,
            numa_node: None,
            trusted_peers: false,
            debug: Debugging::ByEnvironment,
        }
    }
}

impl PoolBuilder {
    /// Registers the memory with another domain too, most often of another device: each arena gets one region per domain.
    ///
    /// Buffers by themselves go to queues of the first domain; [`On`](crate::On) makes them segments for the others.
    pub fn also(mut self, pd: &Pd) -> PoolBuilder {
        self.pds.push(pd.clone());
        self
    }

    /// Sets a budget's limit. Without it: user 256 MiB, receive 64 MiB, control 16 MiB.
    ///
    /// A limit of 0 forbids the budget's use. Limits bound slab bytes; arenas can hold more than that in chunks that
    /// are partly used. Of several for the same budget the last one counts.
    pub fn budget(mut self, budget: Budget) -> PoolBuilder {
        self.budgets.push(budget);
        self
    }

    /// Sets a limit for all budgets together (none by default), so that they can be given more than there is. What one of them is to
    /// have in any case, it [reserves](Budget::reserve).
    pub fn limit(mut self, bytes: u64) -> PoolBuilder {
        self.limit = bytes;
        self
    }

    /// Has a thread of the pool's own grow it ahead of use (off by default): of each size class and kind in use it keeps
    /// `bytes` ready, with memory behind them, and as many in registered chunks. Threads that allocate then seldom pay for growth.
    pub fn keep_ready(mut self, bytes: u64) -> PoolBuilder {
        self.growth.ready = bytes;
        self
    }

    /// Has a thread of the pool's own give back what nobody uses (off by default): stock that a thread has not touched for this time,
    /// and arenas of which nothing was handed out for it, except for what is to be [kept ready](PoolBuilder::keep_ready). It looks once in
    /// that time, so it can take twice as long.
    pub fn release_unused_after(mut self, time: Duration) -> PoolBuilder {
        self.growth.unused_for = Some(time);
        self
    }

    /// Has arenas made of huge pages that the system has set aside, if there are any, or in any case (never by default).
    /// [`PoolStats::huge_pages`](crate::PoolStats::huge_pages) says what became of the wish, and
    /// [`KindStats::huge_bytes`](crate::KindStats::huge_bytes) how much is of such pages.
    ///
    /// Buffers above 1 MiB that have an arena to themselves are then rounded up to 2 MiB. All of an arena's pages are promised to the pool
    /// when it is made.
    pub fn huge_pages(mut self, wish: HugePages) -> PoolBuilder {
        self.huge_pages = wish;
        self
    }

    /// Asks for memory of one NUMA node, best the device's. [`PoolStats::numa`](crate::PoolStats::numa) says what became of the wish;
    /// where there is no such node, memory comes from where the system likes.
    pub fn numa_node(mut self, node: usize) -> PoolBuilder {
        self.numa_node = Some(node);
        self
    }

    /// Gives every exposed arena a remote key for all of it (off by default), so that
    /// [`ExposedBuf::remote`](crate::ExposedBuf::remote) is there at once.
    ///
    /// Whoever learns such a key reaches everything in the arena, buffers of other connections included: only for
    /// peers that could be trusted with all of them.
    pub fn trusted_peers(mut self, trusted: bool) -> PoolBuilder {
        self.trusted_peers = trusted;
        self
    }

    /// Watches for misuse of buffers, or not. Without this the environment decides; see [`DebugMode`].
    pub fn debug(mut self, mode: impl Into<Option<DebugMode>>) -> PoolBuilder {
        self.debug = Debugging::Chosen(mode.into());
        self
    }

    /// Makes the pool. No memory is kept before the first allocation.
    ///
    /// # Errors
    /// [`PoolError`] says which wish cannot be granted.
    pub fn build(self) -> Result<Pool, PoolError> {
        let plan = Plan::new(&self.budgets, self.limit)?;
        if self.pds.len() > DeviceSlot::MOST {
            return Err(PoolError::TooManyDevices);
        }
        for (at, pd) in self.pds.iter().enumerate() {
            if self.pds[..at].contains(pd) {
                return Err(PoolError::SameDomain {
                    device: pd.context().device_name().to_owned(),
                });
            }
        }
        let source = VerbsSource::new(
            self.pds.clone(),
            self.huge_pages,
            self.numa_node,
            self.trusted_peers,
        );
        source.check()?;
        let config = Config {
            plan,
            growth: self.growth,
            debug: self.debug.mode()?,
            pds: self.pds,
            trusted_peers: self.trusted_peers,
        };
        Pool::from_config(Box::new(source), config)
    }
}
