//! Memory of one side of a test, what nobody may touch in it, and what it and the process hold.
#![allow(dead_code, reason = "each test uses its part")]

use crate::common::{hang, memory, pattern};
use mempool::{Budget, BudgetKind, Buf, Pool};
use std::collections::{HashMap, HashSet};
use std::thread;
use std::time::Instant;
use verbs::{Context, Device, Pd, Private};

/// Device, domain and pool that only the one under attack has.
pub struct Host {
    pub pd: Pd,
    pub pool: Pool,
    _context: Context,
}

impl Host {
    pub fn new() -> Host {
        let context = Device::open_default().expect("a device");
        let pd = context.alloc_pd().expect("a domain");
        let pool = Pool::builder(&pd)
            .budget(Budget::user(256 << 20))
            .budget(Budget::receive(256 << 20))
            .budget(Budget::control(64 << 20))
            .build()
            .expect("a pool");
        Host {
            pd,
            pool,
            _context: context,
        }
    }

    /// Bytes in buffers, by budget: user, receive, control.
    pub fn live(&self) -> [u64; 3] {
        // What one thread frees of another's counts as in use until that one takes it in, or this is asked for.
        self.pool.trim();
        let stats = self.pool.stats();
        BudgetKind::ALL.map(|kind| {
            let budget = stats.budget(kind);
            budget.in_use - budget.stocked
        })
    }
}

/// What these hold: bytes in buffers, and what the process does: descriptors, and memory files that are mapped. Both without the
/// arenas of pools, which are kept.
pub fn holds(hosts: &[&Host]) -> Held {
    let live = hosts.iter().map(|host| host.live()).collect();
    let arenas = |pool: &Pool| -> usize {
        let kinds = pool.stats().kinds;
        kinds.iter().map(|kind| kind.arenas).sum()
    };
    let kept: usize = hosts.iter().map(|host| arenas(&host.pool)).sum();
    let kept = kept + arenas(&memory().2);
    let maps = std::fs::read_to_string("/proc/self/maps").expect("a process sees its mappings");
    let mapped: HashSet<&str> = maps
        .lines()
        .filter(|line| line.contains("/memfd:verbatim"))
        .filter_map(|line| line.split_whitespace().nth(4))
        .collect();
    Held {
        live,
        descriptors: descriptors().len() - kept,
        mapped: mapped.len() - kept,
    }
}

/// Waits until they hold again what they held before.
pub fn hold_again(hosts: &[&Host], before: &Held) {
    let start = Instant::now();
    while holds(hosts) != *before {
        assert!(
            start.elapsed() < hang() / 6,
            "{:?}, not {before:?}; {:#?}",
            holds(hosts),
            descriptors()
        );
        thread::yield_now();
    }
}

/// See [`holds`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Held {
    /// By host and budget: user, receive, control.
    live: Vec<[u64; 3]>,
    descriptors: usize,
    mapped: usize,
}

/// What is open, without what the device keeps at hand: an end of a channel's pipe, to wake who waits at it. It lets go of those whose
/// channels are gone when it opens another, so each pipe counts once, and only if it has both ends.
fn descriptors() -> Vec<String> {
    let folder = std::fs::read_dir("/proc/self/fd").expect("a process sees its descriptors");
    let links = folder
        .flatten()
        .filter_map(|entry| std::fs::read_link(entry.path()).ok());
    let mut open: Vec<String> = links
        .map(|link| link.to_string_lossy().into_owned())
        .collect();
    let mut ends: HashMap<String, usize> = HashMap::new();
    for pipe in open.extract_if(.., |link| link.starts_with("pipe:")) {
        *ends.entry(pipe).or_default() += 1;
    }
    open.extend(ends.into_iter().filter(|end| end.1 > 1).map(|end| end.0));
    open
}

/// Memory that nobody has a key to, beside such that peers write to.
pub struct Canaries {
    pooled: Vec<Buf>,
    registered: Vec<Private<Vec<u8>>>,
}

const LENGTHS: [usize; 6] = [64, 960, 4096, 4544, 20_000, 300_000];

impl Canaries {
    pub fn new(host: &Host) -> Canaries {
        let pooled = LENGTHS.map(|len| {
            let mut buf = host.pool.alloc(len).expect("memory");
            buf.copy_from_slice(&pattern(len, 77));
            buf
        });
        let registered = LENGTHS.map(|len| host.pd.register(pattern(len, 77)).expect("memory"));
        Canaries {
            pooled: pooled.into(),
            registered: registered.into(),
        }
    }

    /// They are as they were.
    pub fn live(&self) {
        for (n, &len) in LENGTHS.iter().enumerate() {
            let right = pattern(len, 77);
            assert!(self.pooled[n][..] == right, "a pool's buffer of {len}");
            assert!(self.registered[n][..] == right, "a region of {len}");
        }
    }
}
