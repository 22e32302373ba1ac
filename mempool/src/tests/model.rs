//! The pool against a model of it: random operations on several threads, one after the other.

use super::source::HeapSource;
use super::{config, pool_on};
use crate::budget::BudgetId;
use crate::ledger::Plan;
use crate::shared::Config;
use crate::{AllocError, Budget, BudgetKind, Buf, Kind, Pool, SharedBuf, slab_size};
use proptest::prelude::*;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread::{self, JoinHandle};

/// Of the three, and of a named budget within the user's; and what that reserves.
const LIMITS: [u64; BUDGETS] = [8 << 20, 2 << 20, 1 << 20, 4 << 20];
const RESERVE: u64 = 1 << 20;
const BUDGETS: usize = 4;
const USER: usize = BudgetKind::User as usize;
const NAMED: usize = 3;
const THREADS: usize = 3;

#[derive(Debug, Clone)]
enum Op {
    Alloc {
        thread: usize,
        budget: usize,
        kind: Kind,
        len: usize,
    },
    Free {
        thread: usize,
        which: usize,
    },
    Split {
        which: usize,
        at: usize,
    },
    Truncate {
        which: usize,
        len: usize,
    },
    Freeze {
        which: usize,
    },
    Slice {
        which: usize,
        start: usize,
        end: usize,
    },
    Unfreeze {
        which: usize,
    },
    /// The thread ends, and another takes its place.
    Renew {
        thread: usize,
    },
    Trim,
}

fn lengths() -> impl Strategy<Value = usize> {
    prop_oneof![
        4 => 0usize..5000,
        3 => 5000usize..100_000,
        1 => 100_000usize..(1 << 20) + 1,
        1 => (1usize << 20) + 1..6 << 20,
    ]
}

fn ops() -> impl Strategy<Value = Op> {
    let kinds = prop::sample::select(&[Kind::Private, Kind::Readable, Kind::Receive][..]);
    prop_oneof![
        8 => (0..THREADS, 0..BUDGETS, kinds, lengths())
            .prop_map(|(thread, budget, kind, len)| Op::Alloc { thread, budget, kind, len }),
        7 => (0..THREADS, any::<usize>()).prop_map(|(thread, which)| Op::Free { thread, which }),
        1 => (any::<usize>(), any::<usize>()).prop_map(|(which, at)| Op::Split { which, at }),
        1 => (any::<usize>(), any::<usize>()).prop_map(|(which, len)| Op::Truncate { which, len }),
        1 => any::<usize>().prop_map(|which| Op::Freeze { which }),
        1 => any::<(usize, usize, usize)>()
            .prop_map(|(which, start, end)| Op::Slice { which, start, end }),
        1 => any::<usize>().prop_map(|which| Op::Unfreeze { which }),
        1 => (0..THREADS).prop_map(|thread| Op::Renew { thread }),
        1 => Just(Op::Trim),
    ]
}

enum Job {
    Alloc(BudgetId, Kind, usize),
    Free(Held),
}

/// A thread that does one thing at a time, as told.
struct Worker {
    jobs: Sender<Job>,
    results: Receiver<Option<Result<Buf, AllocError>>>,
    thread: JoinHandle<()>,
}

impl Worker {
    fn start(pool: &Pool) -> Worker {
        let pool = pool.clone();
        let (jobs, inbox) = mpsc::channel();
        let (outbox, results) = mpsc::channel();
        let thread = thread::spawn(move || {
            for job in inbox {
                let result = match job {
                    Job::Alloc(budget, kind, len) => Some(pool.alloc_in(budget, kind, len)),
                    Job::Free(held) => {
                        drop(held);
                        None
                    }
                };
                outbox.send(result).unwrap();
            }
        });
        Worker {
            jobs,
            results,
            thread,
        }
    }

    fn run(&self, job: Job) -> Option<Result<Buf, AllocError>> {
        self.jobs.send(job).unwrap();
        self.results.recv().unwrap()
    }

    fn end(self) {
        drop(self.jobs);
        self.thread.join().unwrap();
    }
}

enum Held {
    Buf(Buf),
    Shared(SharedBuf),
}

/// What the model knows of a handle: of which slab, what range of it, and what it must hold.
struct Entry {
    held: Held,
    slab: u64,
    mark: u8,
}

impl Entry {
    fn bytes(&self) -> &[u8] {
        match &self.held {
            Held::Buf(b) => b,
            Held::Shared(b) => b,
        }
    }
}

#[derive(Default)]
struct Model {
    entries: Vec<Entry>,
    /// Handles and charge of each slab that is out.
    slabs: HashMap<u64, (usize, usize, u64)>,
    next: u64,
}

impl Model {
    fn pick(&self, which: usize) -> Option<usize> {
        (!self.entries.is_empty()).then(|| which % self.entries.len())
    }

    fn add(&mut self, held: Held, slab: u64, mark: u8) {
        self.slabs.get_mut(&slab).unwrap().0 += 1;
        self.entries.push(Entry { held, slab, mark });
    }

    fn remove(&mut self, at: usize) -> Entry {
        let entry = self.entries.swap_remove(at);
        let slab = self.slabs.get_mut(&entry.slab).unwrap();
        slab.0 -= 1;
        if slab.0 == 0 {
            self.slabs.remove(&entry.slab);
        }
        entry
    }

    /// What is charged at most, or at least: empty parts may have let go of their slabs, which cannot be seen.
    fn charged(&self, budget: usize, at_least: bool) -> u64 {
        let held = |slab| {
            let of_it = |e: &&Entry| e.slab == slab && !e.bytes().is_empty();
            self.entries.iter().any(|e| of_it(&e))
        };
        self.slabs
            .iter()
            .filter(|(slab, s)| s.1 == budget && (!at_least || held(**slab)))
            .map(|(_, s)| s.2)
            .sum()
    }

    /// Whether so much more fits, if what is charged is the most or the least that it can be.
    fn has_room(&self, budget: usize, charge: u64, at_least: bool) -> bool {
        let charged = |budget: usize| self.charged(budget, at_least);
        let own = charged(budget) + charge;
        let named = |more: u64| (charged(NAMED) + more).max(RESERVE);
        match budget {
            USER => own + named(0) <= LIMITS[USER],
            NAMED => own <= LIMITS[NAMED] && charged(USER) + named(charge) <= LIMITS[USER],
            _ => own <= LIMITS[budget],
        }
    }

    /// No two writable ranges overlap, and none of them overlaps a frozen one.
    fn check_overlap(&self) {
        let mut writable = BTreeMap::new();
        let ranges = |frozen: bool| {
            self.entries
                .iter()
                .filter(move |e| {
                    matches!(e.held, Held::Shared(_)) == frozen && !e.bytes().is_empty()
                })
                .map(|e| (e.bytes().as_ptr().addr(), e.bytes().len()))
        };
        let overlaps = |map: &BTreeMap<usize, usize>, (start, len): (usize, usize)| {
            map.range(..start + len)
                .next_back()
                .is_some_and(|(s, l)| s + l > start)
        };
        for range in ranges(false) {
            assert!(!overlaps(&writable, range), "two buffers share bytes");
            writable.insert(range.0, range.1);
        }
        for range in ranges(true) {
            assert!(
                !overlaps(&writable, range),
                "a frozen buffer can be written"
            );
        }
    }
}

fn apply(op: Op, pool: &Pool, workers: &mut [Option<Worker>], model: &mut Model) {
    match op {
        Op::Alloc {
            thread,
            budget,
            kind,
            len,
        } => {
            let job = Job::Alloc(BudgetId::from_index(budget), kind, len);
            let charge = slab_size(len).unwrap() as u64;
            let [surely, perhaps] = [false, true].map(|l| model.has_room(budget, charge, l));
            match workers[thread].as_ref().unwrap().run(job).unwrap() {
                Ok(mut buf) => {
                    assert_eq!(buf.len(), len);
                    assert!(len == 0 || perhaps, "more than the budget");
                    let align = if len >= 4096 { 4096 } else { 64 };
                    assert_eq!(buf.as_ptr().addr() % align, 0);
                    let (slab, mark) = (model.next, model.next as u8);
                    model.next += 1;
                    buf.fill(mark);
                    model.slabs.insert(slab, (0, budget, charge));
                    model.add(Held::Buf(buf), slab, mark);
                }
                Err(AllocError::BudgetExhausted {
                    name,
                    limit,
                    in_use,
                    asked,
                    ..
                }) => {
                    // Nobody's stock is in the way: that of threads which do nothing is taken.
                    assert!(!surely, "refused though there is room");
                    let at = pool.budget_named(name).unwrap().index();
                    assert!(at == budget || (at, budget) == (USER, NAMED));
                    assert_eq!((limit, asked), (LIMITS[at], charge));
                    assert!(in_use <= limit);
                }
                Err(e) => panic!("{e}"),
            }
        }
        Op::Free { thread, which } => {
            if let Some(at) = model.pick(which) {
                let entry = model.remove(at);
                assert!(entry.bytes().iter().all(|b| *b == entry.mark));
                workers[thread].as_ref().unwrap().run(Job::Free(entry.held));
            }
        }
        Op::Split { which, at } => {
            if let Some(i) = model.pick(which)
                && let Entry {
                    held: Held::Buf(buf),
                    slab,
                    mark,
                } = &mut model.entries[i]
            {
                let tail = buf.split_off(at % (buf.len() + 1));
                let (slab, mark) = (*slab, *mark);
                model.add(Held::Buf(tail), slab, mark);
            }
        }
        Op::Truncate { which, len } => {
            if let Some(i) = model.pick(which)
                && let Held::Buf(buf) = &mut model.entries[i].held
            {
                let len = len % (buf.len() + 1);
                buf.truncate(len);
                assert_eq!(buf.len(), len);
            }
        }
        Op::Freeze { which } => {
            if let Some(i) = model.pick(which)
                && let Held::Buf(buf) = &mut model.entries[i].held
            {
                let shared = std::mem::take(buf).freeze();
                model.entries[i].held = Held::Shared(shared);
            }
        }
        Op::Slice { which, start, end } => {
            if let Some(i) = model.pick(which)
                && let Entry {
                    held: Held::Shared(shared),
                    slab,
                    mark,
                } = &model.entries[i]
            {
                let end = end % (shared.len() + 1);
                let start = start % (end + 1);
                let part = shared.slice(start..end);
                assert_eq!(part.len(), end - start);
                let (slab, mark) = (*slab, *mark);
                model.add(Held::Shared(part), slab, mark);
            }
        }
        Op::Unfreeze { which } => {
            if let Some(i) = model.pick(which)
                && matches!(model.entries[i].held, Held::Shared(_))
            {
                let Entry { held, slab, mark } = model.entries.swap_remove(i);
                let Held::Shared(shared) = held else {
                    unreachable!()
                };
                let len = shared.len();
                let held = match shared.try_unfreeze() {
                    Ok(buf) => Held::Buf(buf),
                    Err(shared) => {
                        assert!(len > 0 && model.slabs[&slab].0 > 1);
                        Held::Shared(shared)
                    }
                };
                model.entries.push(Entry { held, slab, mark });
            }
        }
        Op::Renew { thread } => {
            workers[thread].take().unwrap().end();
            workers[thread] = Some(Worker::start(pool));
        }
        Op::Trim => {
            pool.trim();
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn the_pool_does_what_the_model_says(ops in prop::collection::vec(ops(), 1..250)) {
        let source = Arc::new(HeapSource::default());
        let named = Budget::named("named", BudgetKind::User, LIMITS[NAMED]).reserve(RESERVE);
        let of = |kind: BudgetKind| Budget::of(kind, LIMITS[kind as usize]);
        let budgets = [&BudgetKind::ALL.map(of)[..], &[named]].concat();
        let plan = Plan::new(&budgets, u64::MAX).unwrap();
        let pool = pool_on(&source, Config { plan, ..config([0; 3]) });
        let mut workers: Vec<_> = (0..THREADS).map(|_| Some(Worker::start(&pool))).collect();
        let mut model = Model::default();
        for op in ops {
            apply(op, &pool, &mut workers, &mut model);
            model.check_overlap();
        }
        let stats = pool.stats();
        for (budget, limit) in stats.budgets.iter().zip(LIMITS) {
            prop_assert!(budget.in_use <= limit && budget.peak <= limit, "{budget:?}");
        }
        for entry in model.entries.drain(..) {
            prop_assert!(entry.bytes().iter().all(|b| *b == entry.mark));
        }
        workers.into_iter().flatten().for_each(Worker::end);
        for budget in &pool.stats().budgets {
            prop_assert_eq!(budget.in_use, 0, "leak in {:?}", budget);
        }
        drop(pool);
        prop_assert_eq!(source.live(), 0);
    }
}
