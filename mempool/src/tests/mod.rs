//! Tests of the pool as a whole, on arenas of ordinary memory.

mod budgets;
#[cfg(feature = "bytes")]
mod bytes;
mod debugging;
mod faults;
mod growth;
mod lifetime;
mod lists;
mod model;
mod parts;
mod source;
mod splits;
mod threads;
#[cfg(feature = "zerocopy")]
mod typed;
mod waiting;
mod writing;

use crate::grower::Growth;
use crate::ledger::Plan;
use crate::shared::Config;
use crate::{BudgetKind, Pool};
use source::HeapSource;
use std::sync::Arc;

const MIB: u64 = 1 << 20;

/// A pool with these limits for user, receive and control, on a source that the test can look into.
fn pool(limits: [u64; BudgetKind::ALL.len()]) -> (Pool, Arc<HeapSource>) {
    let source = Arc::new(HeapSource::default());
    let pool = pool_on(&source, config(limits));
    (pool, source)
}

/// What such a pool is by default.
fn config(limits: [u64; BudgetKind::ALL.len()]) -> Config {
    Config {
        plan: Plan::of(limits).unwrap(),
        growth: Growth::default(),
        debug: None,
        pds: Vec::new(),
        trusted_peers: false,
    }
}

fn pool_on(source: &Arc<HeapSource>, config: Config) -> Pool {
    Pool::from_config(Box::new(source.clone()), config).unwrap()
}

fn user_pool(limit: u64) -> (Pool, Arc<HeapSource>) {
    pool([limit, MIB, MIB])
}
