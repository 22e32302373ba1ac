//! Figures of a pool.

use crate::Kind;
use crate::budget::{Budget, BudgetId, BudgetKind};
use crate::huge::HugePageUse;
use crate::pool::Shared;
use crate::size::SIZES;
use crate::slab::{StackIndex, WHOLE};
use std::fmt;

/// What became of the wish for memory of a NUMA node.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum NumaPlacement {
    /// Nobody asked for it.
    NotAsked,
    /// Arenas have memory of this node only.
    Bound {
        /// The node.
        node: usize,
    },
    /// Memory comes from where the system likes.
    Unavailable {
        /// The node asked for.
        node: usize,
        /// Why it cannot be had.
        why: String,
    },
}

/// Figures of a pool at about one time.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct PoolStats {
    /// One per budget, the three first.
    pub budgets: Vec<BudgetStats>,
    /// One per kind of arena.
    pub kinds: Vec<KindStats>,
    /// One per kind and size class that has memory.
    pub classes: Vec<ClassStats>,
    /// What became of the wish for huge pages.
    pub huge_pages: HugePageUse,
    /// What became of the wish for a NUMA node.
    pub numa: NumaPlacement,
}

/// Figures of a budget, in bytes of slabs.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct BudgetStats {
    /// Which, or which of the three it is part of.
    pub budget: BudgetKind,
    /// Its name.
    pub name: &'static str,
    /// Which named or unnamed one it is part of; `None` for the three.
    pub parent: Option<BudgetId>,
    /// What it may use.
    pub limit: u64,
    /// What nobody else gets of the one it is part of.
    pub reserve: u64,
    /// In buffers, and in the stock that threads keep at hand; that of the budgets within it included.
    pub in_use: u64,
    /// In its own stock alone, or kept out of use in [debug mode](crate::DebugMode). Never more than `in_use`.
    pub stocked: u64,
    /// The most that was ever in use.
    pub peak: u64,
    /// How many allocations it refused.
    pub refusals: u64,
    /// How many allocations waited for room.
    pub waits: u64,
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
    /// Of these, in huge pages that the system had set aside.
    pub huge_bytes: u64,
    /// Of these, in an arena that was one large buffer and is kept for the next one.
    pub spare_bytes: u64,
    /// Chunks of 2 MiB that belong to no class.
    pub free_chunks: usize,
    /// Buffers above 1 MiB.
    pub large: u64,
    /// Their bytes.
    pub large_bytes: u64,
    /// Buffers of memory that is not the pool's.
    pub adopted: u64,
    /// Their bytes.
    pub adopted_bytes: u64,
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
    /// Slabs that have memory behind them and are in nobody's hands.
    pub ready: usize,
    /// Slabs in buffers, or freed by another thread and not yet taken in by their owner.
    pub live: usize,
    /// Slabs that threads keep at hand, or that are kept out of use in [debug mode](crate::DebugMode).
    pub stocked: usize,
}

/// What threads keep at hand, and what debug mode keeps out of use.
pub(crate) struct Stock {
    /// Bytes, by budget.
    bytes: [u64; Budget::MOST],
    /// Slabs, by kind and class.
    slabs: [[usize; WHOLE + 1]; Kind::ALL.len()],
}

impl Stock {
    pub fn of(shared: &Shared) -> Stock {
        let mut stock = Stock {
            bytes: [0; Budget::MOST],
            slabs: [[0; WHOLE + 1]; Kind::ALL.len()],
        };
        let locals = shared.locals();
        let all = StackIndex::all(shared.plan.count());
        for index in all.filter(|i| i.class() != WHOLE) {
            let count: usize = locals.iter().map(|l| l.stack(index).stock()).sum();
            let bytes = count as u64 * u64::from(SIZES[index.class()]);
            stock.add(index, count, bytes);
        }
        for (index, charge) in shared.kept() {
            stock.add(index, 1, charge);
        }
        stock
    }

    fn add(&mut self, index: StackIndex, slabs: usize, bytes: u64) {
        self.slabs[index.kind() as usize][index.class()] += slabs;
        self.bytes[index.budget().index()] += bytes;
    }
}

impl PoolStats {
    pub(crate) fn of(shared: &Shared) -> PoolStats {
        PoolStats::with(&Stock::of(shared), shared)
    }

    /// Stock is looked at before all else, and may have been brought back since.
    pub(crate) fn with(stock: &Stock, shared: &Shared) -> PoolStats {
        let budgets = shared
            .ledger
            .figures()
            .into_iter()
            .enumerate()
            .map(|(at, account)| BudgetStats {
                budget: account.kind,
                name: account.name,
                parent: account.parent,
                limit: account.limit,
                reserve: account.reserve,
                in_use: account.charged,
                stocked: stock.bytes[at].min(account.charged),
                peak: account.peak,
                refusals: account.refusals,
                waits: account.waits,
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
                huge_bytes: figures.huge_bytes,
                spare_bytes: figures.spare_bytes,
                free_chunks: figures.free_chunks,
                large: counters.whole_outside,
                large_bytes: counters.whole_bytes,
                adopted: counters.adopted,
                adopted_bytes: counters.adopted_bytes,
                arenas_made: counters.arenas_made,
                arenas_failed: counters.arenas_failed,
                refills: counters.refills,
                returns: counters.returns,
            });
            classes.extend(figures.classes.iter().map(|c| {
                let stocked = stock.slabs[kind as usize][c.class].min(c.outside);
                ClassStats {
                    kind,
                    slab_size: SIZES[c.class] as usize,
                    chunks: c.chunks,
                    slabs: c.slabs,
                    ready: c.prepared - c.outside,
                    live: c.outside - stocked,
                    stocked,
                }
            }));
        }
        PoolStats {
            budgets,
            kinds,
            classes,
            huge_pages: shared.source.huge_pages(),
            numa: shared.source.numa(),
        }
    }

    /// The figures of one budget.
    ///
    /// # Panics
    /// If the pool has no such budget: the number is of another pool.
    pub fn budget(&self, budget: impl Into<BudgetId>) -> &BudgetStats {
        &self.budgets[budget.into().index()]
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

/// As a table.
impl fmt::Display for PoolStats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        row(
            f,
            "budget",
            [
                "limit", "reserve", "in use", "stocked", "peak", "refusals", "waits",
            ],
        )?;
        for b in &self.budgets {
            let cells = [b.limit, b.reserve, b.in_use, b.stocked, b.peak].map(Bytes);
            let [limit, reserve, in_use, stocked, peak] = cells.map(|c| c.to_string());
            let (refusals, waits) = (b.refusals.to_string(), b.waits.to_string());
            row(
                f,
                b.name,
                [limit, reserve, in_use, stocked, peak, refusals, waits],
            )?;
        }
        row(
            f,
            "kind",
            [
                "arenas", "bytes", "free", "large", "adopted", "failures", "huge",
            ],
        )?;
        let used = |k: &&KindStats| k.arenas + k.arenas_failed as usize + k.adopted as usize > 0;
        for k in self.kinds.iter().filter(used) {
            let free = k.free_chunks as u64 * crate::size::CHUNK as u64;
            let cells = [
                k.arena_bytes,
                free,
                k.large_bytes,
                k.adopted_bytes,
                k.huge_bytes,
            ];
            let [bytes, free, large, adopted, huge] = cells.map(|c| Bytes(c).to_string());
            let (arenas, failed) = (k.arenas.to_string(), k.arenas_failed.to_string());
            row(
                f,
                k.kind,
                [arenas, bytes, free, large, adopted, failed, huge],
            )?;
        }
        row(
            f,
            "class",
            ["slab", "chunks", "slabs", "ready", "live", "stocked", ""],
        )?;
        for c in &self.classes {
            let [chunks, slabs, ready, live, stocked] =
                [c.chunks, c.slabs, c.ready, c.live, c.stocked].map(|n| n.to_string());
            let size = Bytes(c.slab_size as u64).to_string();
            row(
                f,
                c.kind,
                [size, chunks, slabs, ready, live, stocked, String::new()],
            )?;
        }
        match &self.huge_pages {
            HugePageUse::NotAsked => write!(f, "huge pages: not asked for")?,
            HugePageUse::SetAside => write!(f, "huge pages: yes")?,
            HugePageUse::Advised(why) => {
                write!(f, "huge pages: as the system joins ordinary ones ({why})")?;
            }
            HugePageUse::Unavailable(why) => write!(f, "huge pages: too few ({why})")?,
        }
        match &self.numa {
            NumaPlacement::NotAsked => Ok(()),
            NumaPlacement::Bound { node } => write!(f, "\nNUMA node: {node}"),
            NumaPlacement::Unavailable { node, why } => {
                write!(f, "\nNUMA node: any, not {node} ({why})")
            }
        }
    }
}

/// A line of the table: a name and seven columns.
fn row(
    f: &mut fmt::Formatter<'_>,
    name: impl fmt::Display,
    cells: [impl AsRef<str>; 7],
) -> fmt::Result {
    let mut line = format!("{name:9}");
    for cell in &cells {
        line += &format!(" {:>9}", cell.as_ref());
    }
    writeln!(f, "{}", line.trim_end())
}
