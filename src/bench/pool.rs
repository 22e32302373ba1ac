//! The pool beside allocators of ordinary memory, and beside registering memory for each message.
//!
//! The others' memory is known to no device, and need not be aligned to more than 8 bytes; they are here to show what an allocation may cost.
//! All are called in the same way, by the same loops, in turn.

mod heap;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::hint::black_box;
use std::sync::mpsc::{Receiver, SyncSender, channel, sync_channel};
use std::time::{Duration, Instant};
use verbatim::mempool::{AllocError, Buf, Pool};
use verbatim::verbs::Pd;

use super::measure::{Figures, Group, repeated, serial};
use super::shape::Size;
use crate::placement::{self, End};
use crate::quantile::nearest_rank;
use heap::FromHeap;

/// Who allocates.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Allocator {
    /// The pool of registered memory.
    Pool,
    /// The C library.
    Malloc,
    /// mimalloc, with the feature `allocators`.
    Mimalloc,
    /// jemalloc, with the feature `allocators`.
    Jemalloc,
}

/// What is allocated and freed when.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Pattern {
    /// Allocated and freed at once.
    Hot,
    /// Freed when [`IN_FLIGHT`] others have been allocated.
    InFlight,
    /// Freed by another thread, on another processor. What is timed is the freeing.
    Cross,
}

/// Pieces that are there at the same time.
pub const IN_FLIGHT: usize = 32;

/// Pieces that go to the other thread together.
const BATCH: usize = 256;

impl Allocator {
    /// Those that this command was built with.
    pub const ALL: &[Allocator] = &[
        Allocator::Pool,
        Allocator::Malloc,
        #[cfg(feature = "allocators")]
        Allocator::Mimalloc,
        #[cfg(feature = "allocators")]
        Allocator::Jemalloc,
    ];
}

impl Pattern {
    /// What is measured of each allocator.
    pub const SHAPES: [(Pattern, Size); 6] = [
        (Pattern::Hot, Size::B64),
        (Pattern::Hot, Size::KiB4),
        (Pattern::Hot, Size::MiB1),
        (Pattern::InFlight, Size::KiB4),
        (Pattern::Cross, Size::B64),
        (Pattern::Cross, Size::KiB4),
    ];
}

/// Measures for about the time given.
pub type Measured = Box<dyn FnMut(Duration) -> Result<Figures>>;

/// Where pieces come from. Each frees itself.
///
/// A trait and not a closure, so that it can be asked to be compiled into the loop that measures it.
trait Source: 'static {
    type Piece: Send + 'static;
    type Error: std::error::Error + Send + Sync + 'static;
    fn alloc(&self) -> Result<Self::Piece, Self::Error>;
}

/// Buffers of the pool of this length.
struct FromPool(Pool, usize);

impl Source for FromPool {
    type Piece = Buf;
    type Error = AllocError;
    #[inline(always)]
    fn alloc(&self) -> Result<Buf, AllocError> {
        self.0.alloc(self.1)
    }
}

/// A case of allocating and freeing; the pool is there if it is to be measured.
pub fn allocations(
    by: Allocator,
    pattern: Pattern,
    size: Size,
    pool: Option<&Pool>,
) -> Result<Measured> {
    let len = size.bytes();
    Ok(match by {
        Allocator::Pool => {
            let pool = pool.context("there is no pool")?.clone();
            measured(pattern, FromPool(pool, len))
        }
        Allocator::Malloc => measured(pattern, FromHeap::<std::alloc::System>::new(len)),
        #[cfg(feature = "allocators")]
        Allocator::Mimalloc => measured(pattern, FromHeap::<heap::Mimalloc>::new(len)),
        #[cfg(feature = "allocators")]
        Allocator::Jemalloc => measured(pattern, FromHeap::<tikv_jemallocator::Jemalloc>::new(len)),
        #[cfg(not(feature = "allocators"))]
        Allocator::Mimalloc | Allocator::Jemalloc => {
            anyhow::bail!("this command was built without the feature `allocators`")
        }
    })
}

fn measured(pattern: Pattern, source: impl Source) -> Measured {
    match pattern {
        Pattern::Hot => hot(source),
        Pattern::InFlight => in_flight(source),
        Pattern::Cross => cross(source),
    }
}

fn hot<S: Source>(source: S) -> Measured {
    Box::new(move |limit| {
        let figures = repeated(limit, Group::Thousand, |times| {
            for _ in 0..times {
                let piece = source.alloc()?;
                // By reference, so that the piece is not moved for it.
                black_box(&piece);
            }
            Ok::<(), S::Error>(())
        })?;
        Ok(figures)
    })
}

fn in_flight<S: Source>(source: S) -> Measured {
    let mut ring: [Option<S::Piece>; IN_FLIGHT] = [const { None }; IN_FLIGHT];
    let mut next = 0;
    Box::new(move |limit| {
        let figures = repeated(limit, Group::Thousand, |times| {
            for _ in 0..times {
                let piece = source.alloc()?;
                drop(ring[next].replace(piece));
                black_box(&ring[next]);
                next = (next + 1) % IN_FLIGHT;
            }
            Ok::<(), S::Error>(())
        })?;
        Ok(figures)
    })
}

/// The thread that frees.
struct Other<T> {
    pieces: SyncSender<Vec<T>>,
    /// The empty vector, and how long it took to empty it.
    done: Receiver<(Vec<T>, Duration)>,
}

impl<T: Send + 'static> Other<T> {
    /// It ends when this is dropped.
    fn start() -> Result<Other<T>> {
        let (pieces, incoming) = sync_channel::<Vec<T>>(1);
        let (say, done) = channel();
        std::thread::Builder::new()
            .name("freeing".to_owned())
            .spawn(move || {
                placement::bind_again(End::Server);
                for mut pieces in incoming {
                    let start = Instant::now();
                    pieces.clear();
                    if say.send((pieces, start.elapsed())).is_err() {
                        break;
                    }
                }
            })
            .context("no thread can be started")?;
        Ok(Other { pieces, done })
    }
}

fn cross(source: impl Source) -> Measured {
    let mut other = None;
    Box::new(move |limit| {
        if other.is_none() {
            other = Some(Other::start()?);
        }
        let other = other.as_ref().context("the other thread was not started")?;
        let mut pieces = Vec::with_capacity(BATCH);
        let mut samples = Vec::with_capacity(1 << 10);
        let mut worked = Duration::ZERO;
        let begin = Instant::now();
        while samples.is_empty() || begin.elapsed() < limit {
            let start = Instant::now();
            for _ in 0..BATCH {
                pieces.push(source.alloc()?);
            }
            worked += start.elapsed();
            let took;
            let gone = "the other thread is gone";
            other.pieces.send(pieces).ok().context(gone)?;
            (pieces, took) = other.done.recv().context(gone)?;
            worked += took;
            samples.push(took.as_nanos() as f64 / BATCH as f64);
        }
        let count = samples.len() * BATCH;
        samples.sort_unstable_by(f64::total_cmp);
        Ok(Figures {
            p50_ns: nearest_rank(&samples, 50),
            p99_ns: nearest_rank(&samples, 99),
            // Of the work of both threads; how they hand over is not the allocator's.
            rate: count as f64 / worked.as_secs_f64(),
            server_busy_ns: None,
            slowest: None,
            busy: None,
            slice_ns: None,
        })
    })
}

/// A case of registering a vector and getting it back.
pub fn registrations(pd: &Pd, size: Size) -> Measured {
    let pd = pd.clone();
    let mut memory = vec![0u8; size.bytes()];
    Box::new(move |limit| {
        serial(limit, Group::One, || {
            let region = pd.register(std::mem::take(&mut memory))?;
            memory = black_box(region).into_inner()?;
            Ok(())
        })
    })
}

impl fmt::Display for Allocator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Allocator::Pool => "pool",
            Allocator::Malloc => "malloc",
            Allocator::Mimalloc => "mimalloc",
            Allocator::Jemalloc => "jemalloc",
        })
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Pattern::Hot => f.write_str("hot"),
            Pattern::InFlight => write!(f, "inflight{IN_FLIGHT}"),
            Pattern::Cross => f.write_str("cross"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::thread::{self, ThreadId};

    /// A piece that says when it is freed, and where.
    struct Piece(Arc<AtomicUsize>, Option<ThreadId>);

    impl Drop for Piece {
        fn drop(&mut self) {
            self.0.fetch_sub(1, Ordering::Relaxed);
            assert_ne!(self.1, Some(thread::current().id()));
        }
    }

    /// Counts its pieces.
    struct Counting {
        live: Arc<AtomicUsize>,
        most: Arc<AtomicUsize>,
        not_here: Option<ThreadId>,
    }

    impl Source for Counting {
        type Piece = Piece;
        type Error = std::convert::Infallible;
        fn alloc(&self) -> Result<Piece, Self::Error> {
            let now = self.live.fetch_add(1, Ordering::Relaxed) + 1;
            self.most.fetch_max(now, Ordering::Relaxed);
            Ok(Piece(self.live.clone(), self.not_here))
        }
    }

    /// Measures, and gives the most pieces there were at the same time, and how many were left.
    fn most_and_left(pattern: Pattern, not_here: Option<ThreadId>) -> (usize, usize) {
        let (live, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let mut measured = measured(
            pattern,
            Counting {
                live: live.clone(),
                most: most.clone(),
                not_here,
            },
        );
        for _ in 0..2 {
            let figures = measured(Duration::from_micros(100)).unwrap();
            assert!(figures.p50_ns > 0.0 && figures.p99_ns > 0.0 && figures.rate > 0.0);
        }
        (most.load(Ordering::Relaxed), live.load(Ordering::Relaxed))
    }

    #[test]
    fn as_many_are_there_as_the_pattern_says() {
        assert_eq!(most_and_left(Pattern::Hot, None), (1, 0));
        // The new one comes before the old one goes.
        assert_eq!(
            most_and_left(Pattern::InFlight, None),
            (IN_FLIGHT + 1, IN_FLIGHT)
        );
    }

    #[test]
    fn another_thread_frees_what_crosses() {
        let here = thread::current().id();
        assert_eq!(most_and_left(Pattern::Cross, Some(here)), (BATCH, 0));
    }

    #[test]
    fn each_allocator_gives_memory_and_takes_it_back() {
        for &by in Allocator::ALL.iter().filter(|by| **by != Allocator::Pool) {
            for (pattern, size) in Pattern::SHAPES {
                let mut measured = allocations(by, pattern, size, None).unwrap();
                assert!(measured(Duration::from_micros(100)).unwrap().rate > 0.0);
            }
        }
    }
}
