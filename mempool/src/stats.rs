//! Figures of a pool.

use crate::Kind;
use crate::budget::BudgetKind;
use crate::pool::Shared;
use crate::size::SIZES;
use crate::slab::{StackIndex, WHOLE};
use std::fmt;

/// What became of the wish for huge pages.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum HugePages {
    /// Nobody asked for them.
    NotAsked,
    /// Arenas are advised to use them; the system gives them where it has some.
    Used,
    /// The system has none for memory files, and why.
    Unavailable(String),
}

/// Figures of a pool at about one time.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct PoolStats {
    /// One per budget.
    pub budgets: Vec<BudgetStats>,
    /// One per kind of arena.
    pub kinds: Vec<KindStats>,
    /// One per kind and size class that has memory.
    pub classes: Vec<ClassStats>,
    /// What became of the wish for huge pages.
    pub huge_pages: HugePages,
}

/// Figures of a budget, in bytes of slabs.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct BudgetStats {
    /// Which.
    pub budget: BudgetKind,
    /// What it may use.
    pub limit: u64,
    /// In buffers, and in the stock that threads keep at hand.
    pub in_use: u64,
    /// In the stock alone.
    pub stocked: u64,
    /// The most that was ever in use.
    pub peak: u64,
    /// How many allocations it refused.
    pub refusals: u64,
}

/// Figures of one kind of arena.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct KindStats {
    /// Which.
    pub kind: Kind,
    /// Arenas, which is registered regions.
    pub arenas: usize,
    /// Their bytes. Memory is put behind them only as it is used (unless the device pins it all).
    pub arena_bytes: u64,
    /// Of these, in an arena that was one large buffer and is kept for the next one.
    pub spare_bytes: u64,
    /// Chunks of 2 MiB that belong to no class.
    pub free_chunks: usize,
    /// Buffers above 1 MiB.
    pub large: u64,
    /// Their bytes.
    pub large_bytes: u64,
    /// Arenas made since the beginning.
    pub arenas_made: u64,
    /// Attempts to make one that failed.
    pub arenas_failed: u64,
    /// Times that a thread fetched slabs under the lock.
    pub refills: u64,
    /// Times that slabs were brought back under the lock.
    pub returns: u64,
}

/// Figures of a size class.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct ClassStats {
    /// Kind of its arenas.
    pub kind: Kind,
    /// Bytes of a slab.
    pub slab_size: usize,
    /// Chunks cut for this class.
    pub chunks: usize,
    /// Slabs in them, and among what other classes' chunks leave over.
    pub slabs: usize,
    /// Slabs in buffers, or freed by another thread and not yet taken in by their owner.
    pub live: usize,
    /// Slabs that threads keep at hand.
    pub stocked: usize,
}

impl PoolStats {
    pub(crate) fn of(shared: &Shared) -> PoolStats {
        let locals = shared.locals();
        let mut stock_bytes = [0u64; BudgetKind::ALL.len()];
        let mut stock = [[0usize; WHOLE + 1]; Kind::ALL.len()];
        for index in StackIndex::all().filter(|i| i.class() != WHOLE) {
            let count: usize = locals.iter().map(|l| l.stack(index).stock()).sum();
            stock[index.kind() as usize][index.class()] += count;
            stock_bytes[index.budget() as usize] += count as u64 * u64::from(SIZES[index.class()]);
        }
        let budgets = BudgetKind::ALL
            .into_iter()
            .map(|budget| {
                let account = shared.account(budget);
                BudgetStats {
                    budget,
                    limit: account.limit(),
                    in_use: account.charged(),
                    stocked: stock_bytes[budget as usize],
                    peak: account.peak(),
                    refusals: account.refusals(),
                }
            })
            .collect();
        let (mut kinds, mut classes) = (Vec::new(), Vec::new());
        for kind in Kind::ALL {
            let figures = shared.depot(kind).figures();
            let counters = figures.counters;
            kinds.push(KindStats {
                kind,
                arenas: figures.arenas,
                arena_bytes: figures.arena_bytes,
                spare_bytes: figures.spare_bytes,
                free_chunks: figures.free_chunks,
                large: counters.whole_outside,
                large_bytes: counters.whole_bytes,
                arenas_made: counters.arenas_made,
                arenas_failed: counters.arenas_failed,
                refills: counters.refills,
                returns: counters.returns,
            });
            classes.extend(figures.classes.iter().map(|c| {
                let stocked = stock[kind as usize][c.class];
                ClassStats {
                    kind,
                    slab_size: SIZES[c.class] as usize,
                    chunks: c.chunks,
                    slabs: c.slabs,
                    live: c.outside.saturating_sub(stocked),
                    stocked,
                }
            }));
        }
        PoolStats {
            budgets,
            kinds,
            classes,
            huge_pages: shared.source.huge_pages(),
        }
    }

    /// The figures of one budget.
    pub fn budget(&self, budget: BudgetKind) -> &BudgetStats {
        &self.budgets[budget as usize]
    }

    /// The figures of one kind of arena.
    pub fn kind(&self, kind: Kind) -> &KindStats {
        &self.kinds[kind as usize]
    }
}

/// Bytes for people.
struct Bytes(u64);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match self.0 {
            b if b < 10 << 10 => format!("{b} B"),
            b if b < 10 << 20 => format!("{} KiB", b >> 10),
            b if b < 10 << 30 => format!("{} MiB", b >> 20),
            b => format!("{} GiB", b >> 30),
        };
        f.pad(&text)
    }
}

impl fmt::Display for PoolStats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{:9} {:>10} {:>10} {:>10} {:>10} {:>9}",
            "budget", "limit", "in use", "stocked", "peak", "refusals"
        )?;
        for b in &self.budgets {
            writeln!(
                f,
                "{:9} {:>10} {:>10} {:>10} {:>10} {:>9}",
                b.budget,
                Bytes(b.limit),
                Bytes(b.in_use),
                Bytes(b.stocked),
                Bytes(b.peak),
                b.refusals
            )?;
        }
        writeln!(
            f,
            "{:9} {:>10} {:>10} {:>10} {:>10} {:>9}",
            "kind", "arenas", "bytes", "free", "large", "failures"
        )?;
        for k in self
            .kinds
            .iter()
            .filter(|k| k.arenas + k.arenas_failed as usize > 0)
        {
            writeln!(
                f,
                "{:9} {:>10} {:>10} {:>10} {:>10} {:>9}",
                k.kind,
                k.arenas,
                Bytes(k.arena_bytes),
                Bytes(k.free_chunks as u64 * crate::size::CHUNK as u64),
                Bytes(k.large_bytes),
                k.arenas_failed
            )?;
        }
        writeln!(
            f,
            "{:9} {:>10} {:>10} {:>10} {:>10} {:>9}",
            "class", "slab", "chunks", "slabs", "live", "stocked"
        )?;
        for c in &self.classes {
            writeln!(
                f,
                "{:9} {:>10} {:>10} {:>10} {:>10} {:>9}",
                c.kind,
                Bytes(c.slab_size as u64),
                c.chunks,
                c.slabs,
                c.live,
                c.stocked
            )?;
        }
        match &self.huge_pages {
            HugePages::NotAsked => write!(f, "huge pages: not asked for"),
            HugePages::Used => write!(f, "huge pages: yes"),
            HugePages::Unavailable(why) => write!(f, "huge pages: none ({why})"),
        }
    }
}
