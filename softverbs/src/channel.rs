//! Completion channels: a pipe whose read end is the `fd` of `ibv_comp_channel`.
//!
//! Whoever completes something for an armed completion queue writes a [`Record`] (queue and armed generation) to the pipe,
//! at most once per generation. What arrives is written by peers and therefore a hint: a record that does not name an armed
//! queue of this channel, or names a generation that was delivered before, is dropped.
//!
//! A pipe that nobody reads for long, because there is always something to poll, fills with old records; then there is no room for one that matters,
//! and whoever wanted to write it says so again only with the next completion. So a reader looks now and then whether the pipe has been full, and
//! if so writes what is due itself.

use crate::cq::CqCore;
use crate::layout::FdAdvert;
use crate::os::pull::FileId;
use crate::process::Process;
use crate::sync::Mutex;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::collections::HashMap;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::{Arc, Weak};

/// A pipe, read end first; the write end never blocks.
pub(crate) fn pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    let mut fds = [0; 2];
    // SAFETY: pipe2 fills two descriptors, which become ours.
    if unsafe { libc::pipe2(fds.as_mut_ptr(), libc::O_CLOEXEC) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: as above.
    let (read, write) = unsafe { (OwnedFd::from_raw_fd(fds[0]), OwnedFd::from_raw_fd(fds[1])) };
    set_nonblocking(&write)?;
    Ok((read, write))
}

/// Sets `O_NONBLOCK`.
pub(crate) fn set_nonblocking(fd: &OwnedFd) -> io::Result<()> {
    // SAFETY: plain fcntl calls on a descriptor we own.
    let rc = unsafe {
        let flags = libc::fcntl(fd.as_raw_fd(), libc::F_GETFL);
        libc::fcntl(fd.as_raw_fd(), libc::F_SETFL, flags | libc::O_NONBLOCK)
    };
    if rc < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(())
    }
}

/// Publishes a descriptor.
pub(crate) fn advertise(advert: &FdAdvert, fd: RawFd, id: FileId) {
    advert.dev.store(id.dev, Ordering::Relaxed);
    advert.ino.store(id.ino, Ordering::Relaxed);
    advert.fd.store(fd, Ordering::Relaxed);
}

/// What is written to a channel's pipe.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Record {
    /// Index of the completion queue in its owner.
    pub cq: u32,
    /// Low bits of the armed generation.
    pub generation: u32,
}

impl Record {
    pub const LEN: usize = 8;

    pub fn to_bytes(self) -> [u8; Self::LEN] {
        (u64::from(self.cq) << 32 | u64::from(self.generation)).to_ne_bytes()
    }

    pub fn from_bytes(bytes: [u8; Self::LEN]) -> Record {
        let word = u64::from_ne_bytes(bytes);
        Record {
            cq: (word >> 32) as u32,
            generation: word as u32,
        }
    }

    /// Writes the record; false if the pipe is full (or its reader gone), to be tried again with the next completion.
    pub fn send(self, fd: &OwnedFd) -> bool {
        let bytes = self.to_bytes();
        // SAFETY: a live buffer and a descriptor we own. Eight bytes are atomic on a pipe.
        let n = unsafe { libc::write(fd.as_raw_fd(), bytes.as_ptr().cast(), bytes.len()) };
        n == bytes.len() as isize
    }
}

/// After so many records a reader looks whether the pipe has been full. Less than the least that a pipe holds, so that it looks before it has read all
/// that was there when a record found no room.
const LOOK_AFTER: u32 = 256;

/// A pipe is full if no page of it is free, though there may be room in one that was begun, or is half read.
const PAGE: usize = 4096;

pub(crate) struct ChannelCore {
    process: &'static Process,
    pub index: u32,
    read: OwnedFd,
    pub write: Arc<OwnedFd>,
    cqs: Mutex<HashMap<u32, Weak<CqCore>>>,
    /// Records read since the last look whether the pipe has been full; it has, and there is a record to be written.
    unlooked: AtomicU32,
    owing: AtomicBool,
    /// Completion queues of the channel: while there are any, destroying it is EBUSY.
    pub users: AtomicUsize,
}

impl ChannelCore {
    pub fn new(process: &'static Process) -> io::Result<Arc<ChannelCore>> {
        let (read, write) = pipe()?;
        let id = FileId::of(&write)?;
        let index = process.take_channel().ok_or(io::ErrorKind::OutOfMemory)? as u32;
        let advert = process.segment.channel(index as usize);
        advertise(&advert.pipe, write.as_raw_fd(), id);
        advert.serial.fetch_add(1, Ordering::Release);
        Ok(Arc::new(ChannelCore {
            process,
            index,
            read,
            write: Arc::new(write),
            cqs: Mutex::default(),
            unlooked: AtomicU32::new(0),
            owing: AtomicBool::new(false),
            users: AtomicUsize::new(0),
        }))
    }

    pub fn fd(&self) -> RawFd {
        self.read.as_raw_fd()
    }

    pub fn add(&self, cq: &Arc<CqCore>) {
        self.cqs.lock().insert(cq.index, Arc::downgrade(cq));
    }

    pub fn remove(&self, cq: u32) {
        self.cqs.lock().remove(&cq);
    }

    /// `ibv_get_cq_event`: the next completion queue with an event. Blocks as the descriptor does.
    pub fn next_event(&self) -> io::Result<Arc<CqCore>> {
        loop {
            let mut bytes = [0; Record::LEN];
            // SAFETY: reads into a live buffer from a descriptor we own.
            let n = unsafe {
                libc::read(
                    self.read.as_raw_fd(),
                    bytes.as_mut_ptr().cast(),
                    bytes.len(),
                )
            };
            if n < 0 {
                return Err(io::Error::last_os_error());
            }
            if n == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            let record = (n as usize == Record::LEN).then(|| Record::from_bytes(bytes));
            let told = record.and_then(|record| {
                let cq = self.cqs.lock().get(&record.cq).and_then(Weak::upgrade)?;
                cq.deliver(record.generation).then_some(cq)
            });
            self.make_up();
            if let Some(cq) = told {
                return Ok(cq);
            }
            // Old news, or half a record from a peer that wrote rubbish. While the pipe was full a record that mattered may
            // not have been written: look.
            if let Some(cq) = self.fired() {
                return Ok(cq);
            }
        }
    }

    /// Writes the records for which there was no room, if there may be such: of all queues that are armed and have something.
    fn make_up(&self) {
        if self.unlooked.fetch_add(1, Ordering::Relaxed) >= LOOK_AFTER {
            self.unlooked.store(0, Ordering::Relaxed);
            if self.has_been_full() {
                self.owing.store(true, Ordering::Relaxed);
            }
        }
        if self.owing.load(Ordering::Relaxed) {
            let cqs: Vec<_> = self.cqs.lock().values().filter_map(Weak::upgrade).collect();
            let mut due = cqs.iter().filter_map(|cq| cq.due());
            // If not, once more has been read.
            if due.all(|record| record.send(&self.write)) {
                self.owing.store(false, Ordering::Relaxed);
            }
        }
    }

    /// Whether the pipe may have been full since the look before this.
    fn has_been_full(&self) -> bool {
        let (fd, mut left) = (self.read.as_raw_fd(), 0i32);
        // SAFETY: asks about a descriptor we own; the answer goes to a live integer.
        let (rc, size) = unsafe {
            (
                libc::ioctl(fd, libc::FIONREAD, &raw mut left),
                libc::fcntl(fd, libc::F_GETPIPE_SZ),
            )
        };
        let read = (LOOK_AFTER as usize + 1) * Record::LEN;
        rc < 0 || size < 0 || left as usize + read + PAGE >= size as usize
    }

    /// A completion queue that is armed and has something, whatever the records say; its event is delivered now.
    fn fired(&self) -> Option<Arc<CqCore>> {
        let cqs: Vec<_> = self.cqs.lock().values().filter_map(Weak::upgrade).collect();
        cqs.into_iter()
            .find(|cq| cq.has_something() && cq.deliver_armed())
    }
}

impl Drop for ChannelCore {
    fn drop(&mut self) {
        let advert = self.process.segment.channel(self.index as usize);
        advert.serial.fetch_add(1, Ordering::Release);
        self.process.give_channel(self.index as usize);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_survives_the_pipe() {
        let record = Record {
            cq: 77,
            generation: 0xdead_beef,
        };
        assert_eq!(Record::from_bytes(record.to_bytes()), record);
    }
}
