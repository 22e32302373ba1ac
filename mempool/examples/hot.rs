//! What an allocation costs, beside `malloc`: nanoseconds per alloc/free pair on one core.
//!
//! ```text
//! cargo run --release -p verbatim-mempool --example hot
//! ```
//!
//! Each figure is the median of many runs, each far shorter than a time slice, so that other programs disturb few of them. `malloc` gives memory that is not registered;
//! it is here to show what an allocation may cost, not as a substitute.

use mempool::{Budget, Buf, Pool};
use std::hint::black_box;
use std::sync::mpsc;
use std::time::Instant;

const SIZES: [(usize, &str); 7] = [
    (64, "64 B"),
    (256, "256 B"),
    (1 << 10, "1 KiB"),
    (4 << 10, "4 KiB"),
    (64 << 10, "64 KiB"),
    (256 << 10, "256 KiB"),
    (1 << 20, "1 MiB"),
];

/// Median nanoseconds per call of `f`, which does `pairs` pairs.
fn time(pairs: usize, mut f: impl FnMut()) -> f64 {
    let mut runs: Vec<f64> = (0..201)
        .map(|_| {
            let start = Instant::now();
            f();
            start.elapsed().as_nanos() as f64 / pairs as f64
        })
        .collect();
    runs.sort_by(f64::total_cmp);
    runs[runs.len() / 2]
}

fn hot<T>(pairs: usize, mut alloc: impl FnMut() -> T) -> f64 {
    time(pairs, || {
        for _ in 0..pairs {
            black_box(alloc());
        }
    })
}

fn inflight<T>(pairs: usize, mut alloc: impl FnMut() -> T) -> f64 {
    let mut ring: Vec<Option<T>> = (0..32).map(|_| None).collect();
    time(pairs, || {
        for i in 0..pairs {
            ring[i % 32] = Some(black_box(alloc()));
        }
    })
}

/// The freeing thread's time per buffer.
fn freed_elsewhere<T: Send + 'static>(mut alloc: impl FnMut() -> T) -> f64 {
    const BATCH: usize = 1024;
    let (send, receive) = mpsc::sync_channel::<Vec<T>>(1);
    let (send_back, times) = mpsc::channel::<f64>();
    let thread = std::thread::spawn(move || {
        for batch in receive {
            let start = Instant::now();
            drop(black_box(batch));
            let each = start.elapsed().as_nanos() as f64 / BATCH as f64;
            if send_back.send(each).is_err() {
                break;
            }
        }
    });
    let mut runs = Vec::new();
    for _ in 0..50 {
        let batch = (0..BATCH).map(|_| alloc()).collect();
        if send.send(batch).is_ok()
            && let Ok(each) = times.recv()
        {
            runs.push(each);
        }
    }
    drop(send);
    let _ = thread.join();
    runs.sort_by(f64::total_cmp);
    runs[runs.len() / 2]
}

struct Malloc(*mut libc::c_void);

// SAFETY: memory from malloc may be freed by any thread.
unsafe impl Send for Malloc {}

impl Malloc {
    fn new(len: usize) -> Malloc {
        // SAFETY: malloc takes any length.
        Malloc(unsafe { libc::malloc(len) })
    }
}

impl Drop for Malloc {
    fn drop(&mut self) {
        // SAFETY: from malloc, and freed once.
        unsafe { libc::free(self.0) };
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let pd = verbs::Device::open_default()?.alloc_pd()?;
    let pool = Pool::builder(&pd).budget(Budget::user(256 << 20)).build()?;
    let alloc = |len: usize| -> Buf { pool.alloc(len).expect("the budget has room") };
    println!("{:26} {:>8} {:>8}   ns per pair", "", "pool", "malloc");
    for (len, name) in SIZES {
        let pairs = 10_000;
        let ours = hot(pairs, || alloc(len));
        let theirs = hot(pairs, || Malloc::new(len));
        println!("{:26} {ours:>8.1} {theirs:>8.1}", format!("hot/{name}"));
    }
    let ours = inflight(10_000, || alloc(4096));
    let theirs = inflight(10_000, || Malloc::new(4096));
    println!("{:26} {ours:>8.1} {theirs:>8.1}", "32 in flight/4 KiB");
    for (len, name) in [SIZES[0], SIZES[3]] {
        let ours = freed_elsewhere(|| alloc(len));
        let theirs = freed_elsewhere(|| Malloc::new(len));
        println!(
            "{:26} {ours:>8.1} {theirs:>8.1}",
            format!("freed by another/{name}")
        );
    }
    println!("\n{}", pool.stats());
    Ok(())
}
