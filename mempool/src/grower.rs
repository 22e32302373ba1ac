//! The thread that grows a pool ahead of use, and gives back what nobody uses.
//!
//! Registering an arena and putting memory behind it takes milliseconds, in which a thread that serves others misses its turn.

use crate::Kind;
use crate::pool::Shared;
use crate::trace::event;
use parking_lot::{Condvar, Mutex};
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// What the thread is to do.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Growth {
    /// Bytes of each class and kind in use to have ready, and of free chunks.
    pub ready: u64,
    /// How long something may lie unused.
    pub unused_for: Option<Duration>,
}

/// How others talk to the thread.
#[derive(Debug)]
pub(crate) struct Grower {
    growth: Growth,
    signal: Arc<Signal>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

#[derive(Debug, Default)]
struct Signal {
    /// Whether the thread has been told, so that telling costs a load.
    told: AtomicBool,
    state: Mutex<State>,
    wake: Condvar,
}

#[derive(Debug, Default)]
struct State {
    grow: bool,
    stop: bool,
}

impl Grower {
    pub fn new(growth: Growth) -> Grower {
        Grower {
            growth,
            signal: Arc::default(),
            thread: Mutex::default(),
        }
    }

    /// Starts the thread if there is anything to do.
    pub fn start(&self, shared: &Arc<Shared>) -> io::Result<()> {
        if self.growth == Growth::default() {
            return Ok(());
        }
        let (growth, signal) = (self.growth, self.signal.clone());
        let shared = Arc::downgrade(shared);
        let thread = thread::Builder::new()
            .name("verbatim-pool".to_owned())
            .spawn(move || run(growth, &signal, &shared))?;
        *self.thread.lock() = Some(thread);
        Ok(())
    }

    /// After slabs were taken of a class of which `left` bytes are ready.
    #[inline]
    pub fn look_at(&self, left: u64) {
        // Half: or each single slab would wake the thread.
        if left < self.growth.ready / 2 && !self.signal.told.swap(true, Ordering::Relaxed) {
            self.signal.state.lock().grow = true;
            self.signal.wake.notify_one();
        }
    }

    /// Ends the thread, and waits for it.
    pub fn stop(&self) {
        let thread = self.thread.lock().take();
        if let Some(thread) = thread {
            self.signal.state.lock().stop = true;
            self.signal.wake.notify_one();
            // The thread itself may hold the last handle's pool for a moment, but no handle.
            let _ = thread.join();
        }
    }
}

fn run(growth: Growth, signal: &Signal, shared: &Weak<Shared>) {
    let mut unused = Unused::default();
    // So long that no clock holds it is never.
    let tick_after = || Instant::now().checked_add(growth.unused_for?);
    let mut next_tick = tick_after();
    loop {
        let mut state = signal.state.lock();
        let mut tick = false;
        while !state.grow && !state.stop && !tick {
            match next_tick {
                Some(at) => tick = signal.wake.wait_until(&mut state, at).timed_out(),
                None => signal.wake.wait(&mut state),
            }
        }
        if state.stop {
            return;
        }
        state.grow = false;
        drop(state);
        signal.told.store(false, Ordering::Relaxed);
        let Some(shared) = shared.upgrade() else {
            return;
        };
        if tick {
            shared.release_unused(growth.ready, &mut unused);
            next_tick = tick_after();
        }
        shared.grow_ahead(growth.ready);
    }
}

/// What was not used when somebody last looked.
#[derive(Debug, Default)]
pub(crate) struct Unused {
    stacks: Vec<(usize, usize)>,
}

impl Shared {
    /// Makes the pool grow to what is to be ready.
    pub fn grow_ahead(&self, ready: u64) {
        if ready == 0 {
            return;
        }
        for kind in Kind::ALL {
            let depot = self.depot(kind);
            let done = depot
                .keep_ready(ready, &*self.source)
                .and_then(|()| depot.stock_up(ready, &*self.source));
            if let Err(e) = done {
                // Whoever needs it will be told.
                event!(WARN, error = %e, "the pool could not grow ahead of use");
                let _ = e;
            }
        }
    }

    /// Gives back what was not used since this was called the last time with the same `unused`. Returns bytes.
    pub fn release_unused(&self, keep: u64, unused: &mut Unused) -> u64 {
        self.reclaim_unused(&mut unused.stacks);
        Kind::ALL
            .into_iter()
            .map(|kind| self.depot(kind).release_unused(keep))
            .sum()
    }
}
