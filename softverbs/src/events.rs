//! Asynchronous events of a context: a queue in private memory, and a pipe with a byte for each so that callers can wait.

use crate::channel::pipe;
use crate::sync::{Condvar, Mutex};
use ibverbs_sys::ibv_event_type;
use std::collections::{HashMap, VecDeque};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

/// What happened, and to which object (the address of its C structure).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Event {
    pub what: ibv_event_type,
    pub element: usize,
}

#[derive(Default)]
struct State {
    queue: VecDeque<Event>,
    /// Events handed out and not acknowledged, by object.
    unacked: HashMap<usize, usize>,
}

pub(crate) struct AsyncEvents {
    read: OwnedFd,
    write: OwnedFd,
    state: Mutex<State>,
    acked: Condvar,
}

impl AsyncEvents {
    pub fn new() -> io::Result<AsyncEvents> {
        let (read, write) = pipe()?;
        Ok(AsyncEvents {
            read,
            write,
            state: Mutex::default(),
            acked: Condvar::default(),
        })
    }

    pub fn fd(&self) -> RawFd {
        self.read.as_raw_fd()
    }

    /// Something happened.
    pub fn push(&self, what: ibv_event_type, element: usize) {
        self.state.lock().queue.push_back(Event { what, element });
        // SAFETY: one byte from a live buffer to a descriptor we own; a full pipe wakes the reader anyway.
        unsafe { libc::write(self.write.as_raw_fd(), [1u8].as_ptr().cast(), 1) };
    }

    /// The next event; blocks, or says `EAGAIN`, as the descriptor does.
    pub fn next(&self) -> io::Result<Event> {
        loop {
            let mut byte = 0u8;
            // SAFETY: reads into a live byte from a descriptor we own.
            let n = unsafe { libc::read(self.read.as_raw_fd(), (&raw mut byte).cast(), 1) };
            if n < 0 {
                return Err(io::Error::last_os_error());
            }
            let mut state = self.state.lock();
            // Nothing queued: the object is gone, and its events with it.
            if let Some(event) = state.queue.pop_front() {
                *state.unacked.entry(event.element).or_default() += 1;
                return Ok(event);
            }
        }
    }

    /// The caller is done with an event of this object.
    pub fn ack(&self, element: usize) {
        let mut state = self.state.lock();
        if let Some(count) = state.unacked.get_mut(&element) {
            *count -= 1;
            if *count == 0 {
                state.unacked.remove(&element);
            }
        }
        self.acked.notify_all();
    }

    /// The object is to go: forgets its queued events and waits until those handed out are acknowledged.
    pub fn retire(&self, element: usize) {
        let mut state = self.state.lock();
        state.queue.retain(|event| event.element != element);
        let owed = |state: &mut State| state.unacked.contains_key(&element);
        drop(self.acked.wait_while(state, owed));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_of_a_retired_object_are_gone() {
        let events = AsyncEvents::new().unwrap();
        let what = ibv_event_type::IBV_EVENT_CQ_ERR;
        for element in [1, 2, 1] {
            events.push(what, element);
        }
        events.retire(1);
        assert_eq!(events.next().unwrap(), Event { what, element: 2 });
        assert!(events.state.lock().queue.is_empty());
        std::thread::scope(|s| {
            let waits = s.spawn(|| events.retire(2));
            events.ack(2);
            waits.join().unwrap();
        });
    }
}
