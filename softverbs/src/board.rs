//! The board: where whoever writes to a lane also says that there is something new, so that a completion queue of many queue pairs
//! finds those that have something without a look at all the others, each of which is far away in memory.
//!
//! A process has one, with a word for each of its queue pairs; peers store there how far they are in that queue pair's lane. It is looked at, and
//! written, only for completion queues that say they are *crowded*. What a process has for itself (completed sends, work that waits) it notes in memory
//! of its own.
//!
//! All of it is a hint. Every peer may write to all words; so a poll looks at all members once in a while whatever the board says, and at the first
//! poll after the queue was armed. What a wrong word can do is that something is found later, or that a place is looked at in vain.

use crate::layout::MAX_QP;
use crate::os::memfd::ControlFile;
use crate::os::pull::FileId;
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;

/// A process's board, its own or a peer's.
pub(crate) struct Board(ControlFile);

impl Board {
    pub const LEN: usize = MAX_QP * size_of::<AtomicU32>();

    /// An empty one, for peers to write to.
    pub fn create() -> io::Result<Board> {
        Ok(Board(ControlFile::create(Board::LEN, true)?))
    }

    /// A peer's.
    pub fn attach(fd: OwnedFd) -> io::Result<Board> {
        Ok(Board(ControlFile::attach(fd, Board::LEN, true)?))
    }

    /// The descriptor that peers open, and which file it is.
    pub fn advertised(&self) -> (RawFd, FileId) {
        (self.0.fd().as_raw_fd(), self.0.id())
    }

    /// How far the lane of queue pair `index` is said to be.
    #[inline]
    pub fn words(&self) -> &[AtomicU32; MAX_QP] {
        // SAFETY: the file has room for as many, and stays mapped while `self` lives; atomics only.
        unsafe { &*self.0.as_ptr().cast() }
    }
}

/// The word of one queue pair of a peer's.
pub(crate) struct Mark {
    word: *const AtomicU32,
    /// Keeps it mapped.
    _board: Arc<Board>,
}

// SAFETY: an atomic in a shared mapping that is held beside it, good in any thread.
unsafe impl Send for Mark {}

impl Mark {
    pub fn new(board: Arc<Board>, index: usize) -> Mark {
        Mark {
            word: &raw const board.words()[index % MAX_QP],
            _board: board,
        }
    }

    /// There is something new, up to this position.
    #[inline(always)]
    pub fn set(&self, pos: u64) {
        // SAFETY: it lies in the board, which is mapped.
        unsafe { &*self.word }.store(pos as u32, Ordering::Release);
    }
}

/// What a process notes of its own queue pairs.
pub(crate) struct Notes(Box<[AtomicBool]>);

impl Notes {
    /// Two for each queue pair: for the completion queue of its sends, and for that of its receives if that is another one.
    pub fn new() -> Notes {
        Notes((0..2 * MAX_QP).map(|_| AtomicBool::new(false)).collect())
    }

    /// There is something at `place`. Whoever looks [later](Self::take) sees also what was written before.
    pub fn set(&self, place: usize) {
        self.0[place].store(true, Ordering::Release);
    }

    /// Whether there is, once.
    pub fn take(&self, place: usize) -> bool {
        let note = &self.0[place];
        note.load(Ordering::Relaxed) && note.swap(false, Ordering::AcqRel)
    }
}
