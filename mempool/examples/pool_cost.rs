//! Allocating and freeing over and over: for counting the instructions that it costs, with callgrind.
//!
//! ```sh
//! cargo build --release -p verbatim-mempool --example pool_cost
//! for n in 1000 101000; do
//!     valgrind --tool=callgrind --callgrind-out-file=/dev/null target/release/examples/pool_cost hot 4096 $n
//! done
//! ```
//!
//! The difference of the two sums, by 100,000, is what one pair costs. `hot` frees before it allocates again, `inflight` keeps 32
//! buffers, `cross` frees in another thread (whose instructions are counted with it, those of the queue between both as well).

use mempool::{Budget, Buf, Pool};
use std::collections::VecDeque;
use std::error::Error;
use std::hint::black_box;
use std::sync::mpsc;
use std::time::Instant;
use verbs::Device;

fn main() -> Result<(), Box<dyn Error>> {
    let usage = "hot, inflight or cross, a length, and a count";
    let mut arguments = std::env::args().skip(1);
    let what = arguments.next().ok_or(usage)?;
    let len: usize = arguments.next().ok_or(usage)?.parse()?;
    let count: usize = arguments.next().ok_or(usage)?.parse()?;
    let pd = Device::open_default()?.alloc_pd()?;
    let pool = Pool::builder(&pd).budget(Budget::user(256 << 20)).build()?;
    let start = Instant::now();
    match &*what {
        "hot" => {
            for _ in 0..count {
                black_box(pool.alloc(len)?);
            }
        }
        "inflight" => {
            let mut ring: VecDeque<Buf> = VecDeque::with_capacity(32);
            for _ in 0..count {
                if ring.len() == 32 {
                    ring.pop_front();
                }
                ring.push_back(black_box(pool.alloc(len)?));
            }
        }
        "cross" => {
            let (send, receive) = mpsc::sync_channel::<Buf>(1024);
            let thread = std::thread::spawn(move || receive.into_iter().for_each(drop));
            for _ in 0..count {
                send.send(pool.alloc(len)?)?;
            }
            drop(send);
            thread.join().map_err(|_| "the freeing thread failed")?;
        }
        _ => return Err(usage.into()),
    }
    let each = start.elapsed().as_nanos() as f64 / count as f64;
    println!("{what} {len}: {each:.1} ns");
    Ok(())
}
