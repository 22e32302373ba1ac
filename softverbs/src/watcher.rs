//! The watcher: a thread that sleeps until work that waits can go on, or must fail.
//!
//! It is started with the first peer in another process, or the first work request that has to wait, and touches nothing
//! else: the data path is the posting threads'. It wakes for a byte on the process's kick pipe (a peer has posted receives
//! for parked work, or has become ready), for the pidfd of a peer (the process is gone), and for the earliest deadline of
//! waiting work. So a sender that sleeps in its own code still gets its work done and its errors told.

use crate::peer::Peer;
use crate::process::Process;
use crate::qp::QpCore;
use crate::sync::Mutex;
use crate::thread::spawn;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::{Arc, Weak};
use std::time::Duration;

#[derive(Default)]
struct Watched {
    running: bool,
    peers: Vec<Arc<Peer>>,
    waiting: Vec<Weak<QpCore>>,
}

pub(crate) struct Watcher {
    kick_read: OwnedFd,
    kick_write: OwnedFd,
    state: Mutex<Watched>,
}

impl Watcher {
    pub fn new(kick_read: OwnedFd, kick_write: OwnedFd) -> Watcher {
        Watcher {
            kick_read,
            kick_write,
            state: Mutex::default(),
        }
    }

    /// Watches for the death of a peer.
    pub fn watch(&self, process: &'static Process, peer: &Arc<Peer>) {
        self.state.lock().peers.push(peer.clone());
        self.start(process);
    }

    /// Takes care of a queue pair whose work waits.
    pub fn wait_for(&self, qp: &Arc<QpCore>) {
        self.list(Arc::downgrade(qp));
        self.start(qp.process);
    }

    fn list(&self, qp: Weak<QpCore>) {
        let mut state = self.state.lock();
        if !state.waiting.iter().any(|w| w.ptr_eq(&qp)) {
            state.waiting.push(qp);
        }
    }

    /// No longer takes care of a queue pair.
    pub fn forget(&self, qp: &QpCore) {
        self.state
            .lock()
            .waiting
            .retain(|w| !std::ptr::eq(w.as_ptr(), qp));
    }

    /// Makes the thread look at everything again.
    pub fn wake(&self) {
        // SAFETY: one byte from a live buffer to a descriptor we own; a full pipe says the same.
        unsafe { libc::write(self.kick_write.as_raw_fd(), [1u8].as_ptr().cast(), 1) };
    }

    /// Starts the thread, if it does not run yet, and makes it look.
    pub fn start(&self, process: &'static Process) {
        let mut state = self.state.lock();
        if !state.running {
            let spawned = spawn("verbatim-watch", move || process.watcher.run(process));
            // Without the thread, waiting work is still run by calls on its queue pair.
            state.running = spawned.is_ok();
        }
        drop(state);
        self.wake();
    }

    fn run(&self, process: &'static Process) {
        loop {
            // Taken out, so that what begins to wait meanwhile is listed anew and not overlooked.
            let (peers, waiting) = {
                let mut state = self.state.lock();
                (state.peers.clone(), std::mem::take(&mut state.waiting))
            };
            let next = self.look_after(waiting);
            process.check_limits();
            self.sleep(&peers, next);
            for peer in peers {
                if peer.check_dead() {
                    self.bury(process, &peer);
                }
            }
        }
    }

    /// Tries all waiting work; returns when to look again.
    fn look_after(&self, waiting: Vec<Weak<QpCore>>) -> Option<Duration> {
        let mut next: Option<Duration> = None;
        for weak in waiting {
            let Some(qp) = weak.upgrade() else {
                continue;
            };
            if let Some(wait) = qp.attend_and_wait() {
                self.list(weak);
                next = Some(next.map_or(wait, |n| n.min(wait)));
            }
        }
        next
    }

    fn sleep(&self, peers: &[Arc<Peer>], next: Option<Duration>) {
        let mut fds = vec![libc::pollfd {
            fd: self.kick_read.as_raw_fd(),
            events: libc::POLLIN,
            revents: 0,
        }];
        fds.extend(
            peers
                .iter()
                .filter_map(|p| p.pidfd())
                .map(|p| libc::pollfd {
                    fd: p.as_fd().as_raw_fd(),
                    events: libc::POLLIN,
                    revents: 0,
                }),
        );
        let timeout = next.map(|d| libc::timespec {
            tv_sec: d.as_secs() as i64,
            tv_nsec: i64::from(d.subsec_nanos()),
        });
        // SAFETY: a live array of descriptors that stay open during the call, and a timeout or null.
        unsafe {
            libc::ppoll(
                fds.as_mut_ptr(),
                fds.len() as libc::nfds_t,
                timeout.as_ref().map_or(core::ptr::null(), |t| t),
                core::ptr::null(),
            )
        };
        if fds[0].revents != 0 {
            let mut bytes = [0u8; 256];
            // SAFETY: reads into a live buffer what poll said is there.
            unsafe {
                libc::read(
                    self.kick_read.as_raw_fd(),
                    bytes.as_mut_ptr().cast(),
                    bytes.len(),
                )
            };
        }
    }

    /// A peer is gone: outstanding work of queue pairs connected to it fails now.
    fn bury(&self, process: &'static Process, peer: &Arc<Peer>) {
        self.state.lock().peers.retain(|p| !Arc::ptr_eq(p, peer));
        process.forget(peer);
        for qp in process.qps() {
            if qp.peer().is_some_and(|p| Arc::ptr_eq(&p, peer)) {
                qp.needs_attention();
                qp.attend_and_wait();
                qp.reclaim_from_dead();
                qp.wake_for_dead();
            }
        }
    }
}
