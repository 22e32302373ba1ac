//! Threads of a case. They are waited for with the limit for hangs: one that hangs is left behind, with what it uses.

use crate::channel::Channel;
use crate::device::HANG;
use crate::memory::Mem;
use crate::queue::End;
use crate::sundry::{Ah, Cq, becomes};
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, channel};

// SAFETY, for all: the verbs may be called by several threads at once, and from any (the library's manual promises it for all functions).
// Nothing but handles is inside. Two threads that poll one queue get different completions.

// SAFETY: see above.
unsafe impl Send for End {}
// SAFETY: see above.
unsafe impl Sync for End {}
// SAFETY: see above.
unsafe impl Send for Cq {}
// SAFETY: see above.
unsafe impl Sync for Cq {}
// SAFETY: see above.
unsafe impl Send for Channel {}
// SAFETY: see above.
unsafe impl Sync for Channel {}
// SAFETY: see above.
unsafe impl Send for Ah {}
// SAFETY: see above.
unsafe impl Sync for Ah {}
// SAFETY: the memory is reached by its address; the cases here do not look at what another thread writes before that has ended.
unsafe impl Send for Mem {}
// SAFETY: as above.
unsafe impl Sync for Mem {}

/// A thread that gives something when it has done its work.
pub struct Worker<T> {
    result: Receiver<T>,
    id: Arc<AtomicI32>,
}

/// Starts one. It ends by itself; nothing that it uses is taken from it before.
pub fn start<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Worker<T> {
    let (give, result) = channel();
    let id = Arc::new(AtomicI32::new(0));
    let mine = id.clone();
    std::thread::spawn(move || {
        // SAFETY: no preconditions.
        mine.store(unsafe { libc::gettid() }, Ordering::Release);
        // If the case has given up, nobody takes it.
        let _ = give.send(work());
    });
    Worker { result, id }
}

impl<T> Worker<T> {
    /// What it gives, in the end.
    pub fn join(self) -> T {
        self.result
            .recv_timeout(HANG)
            .expect("a thread comes to its end")
    }

    /// Waits until it sleeps, as one does that waits for something; says whether it does.
    pub fn sleeps(&self) -> bool {
        becomes(|| {
            let id = self.id.load(Ordering::Acquire);
            let stat = std::fs::read_to_string(format!("/proc/self/task/{id}/stat"));
            // Behind the name, which stands in parentheses.
            stat.is_ok_and(|stat| stat.rsplit(')').next().unwrap_or("").starts_with(" S"))
        })
    }
}

/// Where threads wait for each other, so that they begin at the same time: what they do takes less than it takes to start or wake one.
pub struct Gate {
    missing: AtomicU64,
}

impl Gate {
    /// For so many.
    pub fn of(threads: u64) -> Arc<Gate> {
        let missing = AtomicU64::new(threads);
        Arc::new(Gate { missing })
    }

    /// Goes on as soon as all are here.
    pub fn pass(&self) {
        self.missing.fetch_sub(1, Ordering::AcqRel);
        while self.missing.load(Ordering::Acquire) > 0 {
            std::thread::yield_now();
        }
    }
}
