//! What an allocation costs, in the frame of `divan`: `cargo bench -p verbatim-mempool`.
//!
//! `verbatim bench --filter pool/` has the same patterns, in one run with three other allocators and with registering for each message.

use divan::{Bencher, black_box};
use mempool::{Budget, Buf, Pool};
use std::sync::OnceLock;

const SIZES: [usize; 3] = [64, 4 << 10, 1 << 20];

fn main() {
    divan::main();
}

fn pool() -> &'static Pool {
    static POOL: OnceLock<Pool> = OnceLock::new();
    POOL.get_or_init(|| {
        let device = verbs::Device::open_default().expect("a device");
        let pd = device.alloc_pd().expect("a domain");
        let pool = Pool::builder(&pd).budget(Budget::user(256 << 20));
        pool.build().expect("a pool")
    })
}

/// Looked up, and grown, before anything is timed.
fn from_pool(len: usize) -> impl Fn() -> Buf {
    let pool = pool();
    let alloc = move || pool.alloc(len).expect("the budget has room");
    drop([(); 32].map(|()| alloc()));
    alloc
}

/// Memory that is not registered, and not cleared, as that of the pool.
fn from_malloc(len: usize) -> impl Fn() -> Vec<u8> {
    move || Vec::with_capacity(len)
}

/// Allocated and freed at once.
fn hot<T>(bencher: Bencher<'_, '_>, alloc: impl Fn() -> T) {
    bencher.bench_local(|| drop(black_box(alloc())));
}

/// Freed 32 allocations later.
fn in_flight<T>(bencher: Bencher<'_, '_>, alloc: impl Fn() -> T) {
    let mut ring: [Option<T>; 32] = [const { None }; 32];
    let mut at = 0;
    bencher.bench_local(|| {
        ring[at] = Some(black_box(alloc()));
        at = (at + 1) % ring.len();
    });
}

#[divan::bench(args = SIZES, sample_size = 10_000)]
fn pool_hot(bencher: Bencher<'_, '_>, len: usize) {
    hot(bencher, from_pool(len));
}

#[divan::bench(args = SIZES, sample_size = 10_000)]
fn malloc_hot(bencher: Bencher<'_, '_>, len: usize) {
    hot(bencher, from_malloc(len));
}

#[divan::bench(args = SIZES, sample_size = 10_000)]
fn pool_inflight32(bencher: Bencher<'_, '_>, len: usize) {
    in_flight(bencher, from_pool(len));
}

#[divan::bench(args = SIZES, sample_size = 10_000)]
fn malloc_inflight32(bencher: Bencher<'_, '_>, len: usize) {
    in_flight(bencher, from_malloc(len));
}

/// A thousand that this thread has allocated, freed by another.
#[divan::bench(args = [64, 4 << 10], sample_count = 50)]
fn pool_thousand_freed_by_another(bencher: Bencher<'_, '_>, len: usize) {
    let alloc = from_pool(len);
    bencher
        .with_inputs(|| -> Vec<Buf> { (0..1000).map(|_| alloc()).collect() })
        .bench_values(|bufs| {
            std::thread::scope(|scope| {
                scope.spawn(move || drop(black_box(bufs)));
            });
        });
}
