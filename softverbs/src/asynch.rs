//! The asynchronous mode: a helper thread per context executes posted work later, in random slices.
//!
//! In the synchronous mode a work request is done when the post returns, so a program that reuses its buffer too early goes
//! unpunished. Here, as on an adapter, sources are read at the last moment and destinations are written piece by piece
//! while the program goes on.

use crate::copy::Rng;
use crate::qp::QpCore;
use crate::sync::{Condvar, Mutex};
use crate::thread::spawn;
use crate::transfer::Mover;
use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;

#[derive(Default)]
struct Queue {
    ready: Vec<Arc<QpCore>>,
    stop: bool,
}

pub(crate) struct Helper {
    queue: Mutex<Queue>,
    bell: Condvar,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Helper {
    pub fn start(seed: u64) -> io::Result<Arc<Helper>> {
        let helper = Arc::new(Helper {
            queue: Mutex::default(),
            bell: Condvar::default(),
            thread: Mutex::default(),
        });
        let theirs = helper.clone();
        let thread = spawn("verbatim-async", move || theirs.run(seed))?;
        *helper.thread.lock() = Some(thread);
        Ok(helper)
    }

    /// The queue pair has work that was not executed.
    pub fn enqueue(&self, qp: &Arc<QpCore>) {
        let mut queue = self.queue.lock();
        if !queue.stop && !queue.ready.iter().any(|q| Arc::ptr_eq(q, qp)) {
            queue.ready.push(qp.clone());
            self.bell.notify_one();
        }
    }

    /// Ends the thread; what was not executed never is.
    pub fn stop(&self) {
        self.queue.lock().stop = true;
        self.bell.notify_one();
        if let Some(thread) = self.thread.lock().take() {
            let _ = thread.join();
        }
        self.queue.lock().ready.clear();
    }

    fn run(&self, seed: u64) {
        let mut rng = Rng::new(seed);
        loop {
            let qp = {
                let idle = |queue: &mut Queue| queue.ready.is_empty() && !queue.stop;
                let mut queue = self.bell.wait_while(self.queue.lock(), idle);
                if queue.stop {
                    return;
                }
                let at = rng.below(queue.ready.len() as u64) as usize;
                queue.ready.swap_remove(at)
            };
            // Late, and by a different amount each time, but without a clock.
            for _ in 0..rng.below(4) {
                std::thread::yield_now();
            }
            // Who polls may be at a long copy of this queue pair's; others are not to wait for that.
            let more = match qp.send.try_lock() {
                Some(mut queue) => queue.progress(&qp, &mut Mover::Slices(&mut rng), 1),
                None => {
                    std::thread::yield_now();
                    true
                }
            };
            if more {
                self.enqueue(&qp);
            }
        }
    }
}
