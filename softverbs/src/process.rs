//! What a process has once: its slot in the directory, its segment, the peers it knows, its queue pairs and its watcher.

use crate::board::{Board, Notes};
use crate::channel::{advertise, pipe};
use crate::layout::*;
use crate::lock;
use crate::memory::Backing;
use crate::os::directory::{Directory, LookupError, Slot, SlotInfo};
use crate::os::incarnation::{Incarnation, PidFd};
use crate::os::memfd::ControlFile;
use crate::os::pull::{Access, FileId, pull};
use crate::os::{errno, kept, membarrier, procvm};
use crate::peer::{LockPage, Peer};
use crate::qp::QpCore;
use crate::segment::Segment;
use crate::srq::SrqCore;
use crate::sync::Mutex;
use crate::tables::{Indices, Ranges};
use crate::watcher::Watcher;
use core::sync::atomic::Ordering;
use std::collections::HashMap;
use std::io;
use std::os::fd::AsRawFd;
use std::sync::{Arc, OnceLock, Weak};

struct ArenaEntry {
    index: usize,
    users: usize,
    /// Keeps the advertised descriptor open.
    _backing: Backing,
}

pub(crate) struct Process {
    pub me: Incarnation,
    slot: Slot,
    directory: Directory,
    pub segment: Arc<Segment>,
    /// The process as its own peer.
    own: Arc<Peer>,
    /// Keeps the advertised page of locks.
    _locks: ControlFile,
    /// What peers say of our queue pairs, and what we note of them.
    pub board: Arc<Board>,
    pub notes: Notes,
    peers: Mutex<HashMap<u16, Arc<Peer>>>,
    qps: Mutex<Vec<Weak<QpCore>>>,
    qp_indices: Mutex<Indices>,
    mr_indices: Mutex<Indices>,
    cq_indices: Mutex<Indices>,
    channel_indices: Mutex<Indices>,
    srq_indices: Mutex<Indices>,
    srqs: Mutex<Vec<Weak<SrqCore>>>,
    arena_indices: Mutex<Indices>,
    arenas: Mutex<HashMap<u64, ArenaEntry>>,
    recv_area: Mutex<Ranges>,
    pub watcher: Watcher,
    /// See [`crate::device`].
    pub identity: OnceLock<u64>,
}

/// Leaves no slot file behind at an orderly end; that of a killed process is removed by the next one to start.
extern "C" fn at_exit() {
    if let Some(process) = PROCESS.try_lock().and_then(|process| *process) {
        process.slot.release();
    }
}

static PROCESS: Mutex<Option<&'static Process>> = Mutex::new(None);

impl Process {
    /// The process's one; made at the first use, and anew in a child that forked without exec.
    ///
    /// # Errors
    ///
    /// No usable directory, no free slot, no memory for the segment.
    pub fn get() -> io::Result<&'static Process> {
        let mut process = PROCESS.lock();
        if let Some(have) = *process
            && have.me.pid == std::process::id()
        {
            return Ok(have);
        }
        // Never freed: contexts come and go, the slot is held as long as the process lives.
        let new: &'static Process = Box::leak(Box::new(Process::new()?));
        *process = Some(new);
        // SAFETY: registers a function without arguments; it is harmless if this happens again in a forked child.
        unsafe { libc::atexit(at_exit) };
        Ok(new)
    }

    fn new() -> io::Result<Process> {
        let me = Incarnation::me();
        let directory = Directory::open()?;
        let file = ControlFile::create(SEGMENT_LEN, false)?;
        let id = file.id();
        let fd = file.fd().as_raw_fd();
        let segment = Arc::new(Segment::new(file));
        let (kick_read, kick_write) = pipe()?;
        let header = segment.header();
        header.version.store(VERSION, Ordering::Relaxed);
        header.pid.store(me.pid, Ordering::Relaxed);
        header.start.store(me.start, Ordering::Relaxed);
        header
            .probe
            .store(core::ptr::from_ref(header) as u64, Ordering::Relaxed);
        header
            .fence
            .store(u32::from(!membarrier::register()), Ordering::Relaxed);
        if membarrier::private().is_ok() {
            lock::enable_ownership();
        }
        advertise(
            &header.kick,
            kick_write.as_raw_fd(),
            FileId::of(&kick_write)?,
        );
        let locks = ControlFile::create(LockPage::LEN, true)?;
        advertise(&header.locks, locks.fd().as_raw_fd(), locks.id());
        let board = Arc::new(Board::create()?);
        let (board_fd, board_id) = board.advertised();
        advertise(&header.board, board_fd, board_id);
        header.magic.store(MAGIC, Ordering::Release);
        procvm::permit_peers();
        let info = SlotInfo {
            owner: me,
            segment_fd: fd,
            segment: id,
            layout: VERSION,
        };
        let slot = directory.claim(&info)?;
        let own = Arc::new(Peer::new(me, segment.clone(), None).with_board(board.clone()));
        Ok(Process {
            me,
            slot,
            directory,
            segment,
            own,
            _locks: locks,
            board,
            notes: Notes::new(),
            peers: Mutex::default(),
            qps: Mutex::default(),
            // Queue pair numbers 0 and 1 are special in the verbs, key 0 means none.
            qp_indices: Mutex::new(Indices::new(2, MAX_QP)),
            mr_indices: Mutex::new(Indices::new(1, MAX_MR)),
            cq_indices: Mutex::new(Indices::new(0, MAX_CQ)),
            channel_indices: Mutex::new(Indices::new(0, MAX_CHANNEL)),
            srq_indices: Mutex::new(Indices::new(0, MAX_SRQ)),
            srqs: Mutex::default(),
            arena_indices: Mutex::new(Indices::new(0, MAX_ARENA)),
            arenas: Mutex::default(),
            recv_area: Mutex::new(Ranges::new(RECV_AREA - RECV_STRIDE_MAX)),
            watcher: Watcher::new(kick_read, kick_write),
            identity: OnceLock::new(),
        })
    }

    /// Whether hazards are ordered by a full fence, because the kernel offers no `membarrier`.
    pub fn fenced(&self) -> bool {
        self.segment.header().fence.load(Ordering::Relaxed) != 0
    }

    /// What identifies the place where processes find each other; part of the device's identity.
    pub fn directory(&self) -> &Directory {
        &self.directory
    }

    /// Number of a queue pair of this process.
    pub fn qpn(&self, index: usize) -> u32 {
        u32::from(self.slot.index) << QPN_BITS | index as u32
    }

    /// The process that owns a queue pair number, `None` if there is none now.
    ///
    /// # Errors
    ///
    /// It exists, but this process may not reach its memory; the error says what stands in the way.
    pub fn peer_of(&'static self, qpn: u32) -> io::Result<Option<Arc<Peer>>> {
        let slot = (qpn >> QPN_BITS) as u16;
        if slot == self.slot.index {
            return Ok(Some(self.own.clone()));
        }
        let info = match self.directory.lookup(slot) {
            Ok(info) => info,
            // Nobody there (any more): as if no adapter answered.
            Err(LookupError::Nobody { .. }) => return Ok(None),
            Err(error) => return Err(kept(io::ErrorKind::PermissionDenied, error)),
        };
        let mut peers = self.peers.lock();
        if let Some(peer) = peers.get(&slot)
            && peer.incarnation == info.owner
            && !peer.check_dead()
        {
            if peer.segment.id() == info.segment {
                return Ok(Some(peer.clone()));
            }
            // The same process, which has given up its slot and taken it anew: it runs another program (execve(2)). Of what it was nothing is left,
            // which its pidfd does not show.
            peer.dead.store(true, Ordering::Release);
            self.watcher.wake();
        }
        let peer = match self.meet(&info) {
            Ok(peer) => Arc::new(peer),
            Err(_) if PidFd::open(info.owner).is_ok_and(|p| p.is_dead()) => return Ok(None),
            Err(error) if errno(&error) == Some(libc::ESRCH) => return Ok(None),
            Err(error) => return Err(error),
        };
        peers.insert(slot, peer.clone());
        self.watcher.watch(self, &peer);
        Ok(Some(peer))
    }

    fn meet(&self, info: &SlotInfo) -> io::Result<Peer> {
        let pidfd = PidFd::open(info.owner)?;
        let fd = pull(info.owner, info.segment_fd, info.segment, Access::ReadOnly)?;
        let segment = Segment::new(ControlFile::attach(fd, SEGMENT_LEN, false)?);
        let header = segment.header();
        if header.magic.load(Ordering::Acquire) != MAGIC
            || header.version.load(Ordering::Relaxed) != VERSION
        {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                format!(
                    "process {} runs another version of the device",
                    info.owner.pid
                ),
            ));
        }
        procvm::probe(info.owner.pid, header.probe.load(Ordering::Relaxed))
            .map_err(|error| kept(io::ErrorKind::PermissionDenied, error))?;
        Ok(Peer::new(info.owner, Arc::new(segment), Some(pidfd)))
    }

    /// Queue pairs that live.
    pub fn qps(&self) -> Vec<Arc<QpCore>> {
        let mut qps = self.qps.lock();
        qps.retain(|qp| qp.strong_count() > 0);
        qps.iter().filter_map(Weak::upgrade).collect()
    }

    pub fn add_qp(&self, qp: &Arc<QpCore>) {
        self.qps.lock().push(Arc::downgrade(qp));
    }

    pub fn take_qp(&self) -> Option<usize> {
        self.qp_indices.lock().take()
    }

    pub fn give_qp(&self, index: usize) {
        self.qp_indices.lock().give(index);
    }

    pub fn take_mr(&self) -> Option<usize> {
        self.mr_indices.lock().take()
    }

    pub fn give_mr(&self, index: usize) {
        self.mr_indices.lock().give(index);
    }

    pub fn take_cq(&self) -> Option<usize> {
        self.cq_indices.lock().take()
    }

    pub fn give_cq(&self, index: usize) {
        self.cq_indices.lock().give(index);
    }

    pub fn take_channel(&self) -> Option<usize> {
        self.channel_indices.lock().take()
    }

    pub fn give_channel(&self, index: usize) {
        self.channel_indices.lock().give(index);
    }

    pub fn take_srq(&self) -> Option<usize> {
        self.srq_indices.lock().take()
    }

    pub fn give_srq(&self, index: usize) {
        self.srq_indices.lock().give(index);
    }

    pub fn add_srq(&self, srq: &Arc<SrqCore>) {
        self.srqs.lock().push(Arc::downgrade(srq));
    }

    pub fn remove_srq(&self, srq: &SrqCore) {
        let mut srqs = self.srqs.lock();
        srqs.retain(|s| !std::ptr::eq(s.as_ptr(), srq));
    }

    /// Shared receive queues that live.
    pub fn srqs(&self) -> Vec<Arc<SrqCore>> {
        let srqs = self.srqs.lock();
        srqs.iter().filter_map(Weak::upgrade).collect()
    }

    /// Tells of shared receive queues that have fallen below their limit.
    pub fn check_limits(&self) {
        for srq in self.srqs() {
            srq.check_limit();
        }
    }

    pub fn take_recv(&self, len: usize) -> Option<usize> {
        self.recv_area.lock().take(len)
    }

    pub fn give_recv(&self, off: usize, len: usize) {
        self.recv_area.lock().give(off, len);
    }

    /// Advertises the memory file behind a region. Gives the entry (index + 1) and the serial; 0 if peers shall not map it.
    pub fn take_arena(&self, backing: Backing) -> (u32, u64) {
        let mut arenas = self.arenas.lock();
        let serial = backing.serial;
        if let Some(entry) = arenas.get_mut(&serial) {
            entry.users += 1;
            return (entry.index as u32 + 1, serial);
        }
        let Some(index) = self.arena_indices.lock().take() else {
            return (0, 0);
        };
        let advert = self.segment.arena(index);
        advertise(&advert.file, backing.fd.as_raw_fd(), backing.id);
        advert.len.store(backing.file_len, Ordering::Relaxed);
        advert
            .kind
            .store(u32::from(backing.kind.code()), Ordering::Relaxed);
        advert.serial.store(serial, Ordering::Release);
        arenas.insert(
            serial,
            ArenaEntry {
                index,
                users: 1,
                _backing: backing,
            },
        );
        (index as u32 + 1, serial)
    }

    /// Takes back what [`take_arena`](Self::take_arena) gave.
    pub fn give_arena(&self, serial: u64) {
        let mut arenas = self.arenas.lock();
        let Some(entry) = arenas.get_mut(&serial) else {
            return;
        };
        entry.users -= 1;
        if entry.users == 0 {
            self.segment
                .arena(entry.index)
                .serial
                .store(0, Ordering::Release);
            self.arena_indices.lock().give(entry.index);
            arenas.remove(&serial);
        }
    }

    /// Queue pair `index` of this process has no mailbox any more.
    pub fn forget_mailbox(&self, index: usize) {
        self.own.forget_mailbox(index as u32);
    }

    /// Forgets a peer that is gone.
    pub fn forget(&self, peer: &Arc<Peer>) {
        self.peers.lock().retain(|_, have| !Arc::ptr_eq(have, peer));
    }
}
