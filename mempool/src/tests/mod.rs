//! Tests of the pool as a whole, on arenas of ordinary memory.

mod budgets;
#[cfg(feature = "bytes")]
mod bytes;
mod faults;
mod lifetime;
mod lists;
mod model;
mod parts;
mod source;
mod splits;
mod threads;
#[cfg(feature = "zerocopy")]
mod typed;
mod writing;

use crate::{BudgetKind, Pool};
use source::HeapSource;
use std::sync::Arc;

const MIB: u64 = 1 << 20;

/// A pool with these limits for user, receive and control, on a source that the test can look into.
fn pool(limits: [u64; BudgetKind::ALL.len()]) -> (Pool, Arc<HeapSource>) {
    let source = Arc::new(HeapSource::default());
    let pool = Pool::from_source(Box::new(source.clone()), limits).unwrap();
    (pool, source)
}

fn user_pool(limit: u64) -> (Pool, Arc<HeapSource>) {
    pool([limit, MIB, MIB])
}
