//! Another process that has the device open, as this one sees it.
//!
//! All that is known of a peer is read from its segment, which only the peer writes; every descriptor it advertises is
//! opened through `/proc` when it is first needed and checked to be the file that was advertised. The process itself is a
//! peer too (`own`), so that queue pairs within it use the same code; only copies go by address.

use crate::atomic;
use crate::board::Board;
use crate::datagram::mailbox::Mailbox;
use crate::layout::*;
use crate::memory::{Kind, PeerMapping, map_peer};
use crate::os::incarnation::{Incarnation, PidFd};
use crate::os::memfd::ControlFile;
use crate::os::pull::{Access, FileId, pull};
use crate::segment::Segment;
use crate::srq::claims::Claims;
use crate::sync::Mutex;
use crate::tables::Ranges;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::collections::HashMap;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;

/// Bytes of a lane file, unless one lane needs more.
const LANE_FILE: usize = 16 << 20;

/// A piece of a lane file that this process made for a peer.
pub(crate) struct LaneSpace {
    pub file: Arc<ControlFile>,
    pub off: usize,
    pub len: usize,
}

struct MadeFile {
    file: Arc<ControlFile>,
    ranges: Ranges,
}

/// A descriptor of the peer's that was opened, with the serial of what it stood for.
type Opened = (u64, Arc<OwnedFd>);

/// The claims of a shared receive queue, with its serial.
type OpenedClaims = (u64, Arc<Claims>);

/// A page of locks, writable by all.
pub(crate) struct LockPage(ControlFile);

impl LockPage {
    pub const LEN: usize = 4096;

    pub fn locks(&self) -> &[AtomicU64; atomic::LOCKS] {
        const { assert!(atomic::LOCKS * 8 <= LockPage::LEN) };
        // SAFETY: the file is a page and stays mapped while `self` lives; atomics only.
        unsafe { &*self.0.as_ptr().cast() }
    }
}

pub(crate) struct Peer {
    pub incarnation: Incarnation,
    /// This process itself.
    pub own: bool,
    pub segment: Arc<Segment>,
    /// Set by the watcher once the process is gone.
    pub dead: AtomicBool,
    pidfd: Option<PidFd>,
    arenas: Mutex<HashMap<u32, (u64, Arc<PeerMapping>)>>,
    lanes: Mutex<HashMap<FileId, Arc<ControlFile>>>,
    channels: Mutex<HashMap<u32, Opened>>,
    woken: Mutex<HashMap<u32, Arc<AtomicU64>>>,
    claims: Mutex<HashMap<u32, OpenedClaims>>,
    mailboxes: Mutex<HashMap<u32, (u64, Arc<Mailbox>)>>,
    kick: Mutex<Option<OwnedFd>>,
    lock_page: Mutex<Option<Arc<LockPage>>>,
    board: Mutex<Option<Arc<Board>>>,
    made: Mutex<Vec<MadeFile>>,
}

fn advertised(file: &FdAdvert) -> (i32, FileId) {
    let id = FileId {
        dev: file.dev.load(Ordering::Relaxed),
        ino: file.ino.load(Ordering::Relaxed),
    };
    (file.fd.load(Ordering::Relaxed), id)
}

impl Peer {
    pub fn new(incarnation: Incarnation, segment: Arc<Segment>, pidfd: Option<PidFd>) -> Peer {
        Peer {
            incarnation,
            own: pidfd.is_none(),
            segment,
            dead: AtomicBool::new(false),
            pidfd,
            arenas: Mutex::default(),
            lanes: Mutex::default(),
            channels: Mutex::default(),
            woken: Mutex::default(),
            claims: Mutex::default(),
            mailboxes: Mutex::default(),
            kick: Mutex::default(),
            lock_page: Mutex::default(),
            board: Mutex::default(),
            made: Mutex::default(),
        }
    }

    /// This process, whose board is here already.
    pub fn with_board(mut self, board: Arc<Board>) -> Peer {
        self.board = Mutex::new(Some(board));
        self
    }

    pub fn pidfd(&self) -> Option<&PidFd> {
        self.pidfd.as_ref()
    }

    /// Asks the kernel whether the process is gone, and remembers it.
    pub fn check_dead(&self) -> bool {
        if !self.dead.load(Ordering::Acquire) && self.pidfd.as_ref().is_some_and(PidFd::is_dead) {
            self.dead.store(true, Ordering::Release);
        }
        self.dead.load(Ordering::Acquire)
    }

    /// The peer's arena `index`, mapped as its kind allows; `None` when it cannot be mapped and the copy goes another way.
    pub fn arena(&self, index: u32, serial: u64) -> Option<Arc<PeerMapping>> {
        if index as usize >= MAX_ARENA {
            return None;
        }
        let mut arenas = self.arenas.lock();
        if let Some((have, mapping)) = arenas.get(&index)
            && *have == serial
        {
            return Some(mapping.clone());
        }
        // A miss is the moment to let go of arenas that the peer has given up.
        arenas.retain(|&i, (have, _)| {
            self.segment
                .arena(i as usize)
                .serial
                .load(Ordering::Acquire)
                == *have
        });
        let advert = self.segment.arena(index as usize);
        if advert.serial.load(Ordering::Acquire) != serial {
            return None;
        }
        let kind = Kind::from_code(advert.kind.load(Ordering::Relaxed) as u8)?;
        let access = match kind {
            Kind::Private => return None,
            Kind::Readable => Access::ReadOnly,
            Kind::Receive | Kind::Exposed => Access::ReadWrite,
        };
        let (fd, id) = advertised(&advert.file);
        let fd = pull(self.incarnation, fd, id, access).ok()?;
        let mapping = Arc::new(map_peer(fd, advert.len.load(Ordering::Relaxed), kind).ok()?);
        arenas.insert(index, (serial, mapping.clone()));
        Some(mapping)
    }

    /// The lane file that the peer made for this process.
    pub fn lane_file(&self, advert: &QpAdvert) -> io::Result<Arc<ControlFile>> {
        let (fd, id) = advertised(&advert.lane_file);
        if self.own {
            let made = self.made.lock();
            let found = made
                .iter()
                .find(|m| m.file.id() == id)
                .map(|m| m.file.clone());
            return found.ok_or_else(|| io::Error::from(io::ErrorKind::NotFound));
        }
        let mut lanes = self.lanes.lock();
        if let Some(file) = lanes.get(&id) {
            return Ok(file.clone());
        }
        lanes.retain(|_, file| Arc::strong_count(file) > 1);
        let fd = pull(self.incarnation, fd, id, Access::ReadWrite)?;
        let len = usize::try_from(advert.lane_len.load(Ordering::Relaxed))
            .map_err(|_| io::ErrorKind::InvalidData)?;
        let file = Arc::new(ControlFile::attach(fd, len, true)?);
        lanes.insert(id, file.clone());
        Ok(file)
    }

    /// Makes room for a lane from this peer; its memory is zeroed.
    pub fn make_lane(&self, len: usize) -> io::Result<LaneSpace> {
        let mut made = self.made.lock();
        let found = made
            .iter_mut()
            .find_map(|m| Some((m.ranges.take(len)?, m.file.clone())));
        let (off, file) = match found {
            Some(found) => found,
            None => {
                let size = len.next_multiple_of(Ranges::UNIT).max(LANE_FILE);
                let file = Arc::new(ControlFile::create(size, true)?);
                let mut ranges = Ranges::new(size);
                let off = ranges.take(len).ok_or(io::ErrorKind::OutOfMemory)?;
                made.push(MadeFile {
                    file: file.clone(),
                    ranges,
                });
                (off, file)
            }
        };
        // SAFETY: the range was just allocated within the file's mapping and no queue pair uses it. A hostile peer may
        // write there at the same time; that harms only its own lane.
        unsafe { core::ptr::write_bytes(file.as_ptr().add(off), 0, len) };
        Ok(LaneSpace { file, off, len })
    }

    /// Takes back a lane's room. No producer's hazard names it any more.
    pub fn unmake_lane(&self, space: &LaneSpace) {
        let mut made = self.made.lock();
        if let Some(at) = made.iter().position(|m| Arc::ptr_eq(&m.file, &space.file)) {
            made[at].ranges.give(space.off, space.len);
            if made[at].ranges.is_empty() && !self.own {
                made.swap_remove(at);
            }
        }
    }

    /// Serial of an arena entry as the peer advertises it now.
    pub fn arena_serial(&self, index: u32) -> u64 {
        let advert = self.segment.arena(index as usize);
        advert.serial.load(Ordering::Acquire)
    }

    /// Whether the process is stopped by a signal or a debugger.
    pub fn is_stopped(&self) -> bool {
        !self.own && self.incarnation.is_stopped()
    }

    /// The write end of the peer's completion channel, with its serial. Opened for both directions: so a reader that is
    /// gone is no SIGPIPE for the writer.
    pub fn channel(&self, index: u32) -> Option<Opened> {
        if index as usize >= MAX_CHANNEL {
            return None;
        }
        let advert = self.segment.channel(index as usize);
        let serial = advert.serial.load(Ordering::Acquire);
        let mut channels = self.channels.lock();
        if let Some(have) = channels.get(&index)
            && have.0 == serial
        {
            return Some(have.clone());
        }
        let serial_of = |i: u32| &self.segment.channel(i as usize).serial;
        channels.retain(|&i, (have, _)| serial_of(i).load(Ordering::Acquire) == *have);
        let (fd, id) = advertised(&advert.pipe);
        let fd = Arc::new(pull(self.incarnation, fd, id, Access::ReadWrite).ok()?);
        channels.insert(index, (serial, fd.clone()));
        Some((serial, fd))
    }

    /// The generation for which this process has woken the peer's completion queue `cq`, for all queue pairs that complete to it: hundreds of
    /// them may find it armed one after the other, and it takes one record to wake who waits. Generations go on when the index is used again.
    pub fn woken(&self, cq: u32) -> Arc<AtomicU64> {
        // As the segment takes it.
        let cq = cq % MAX_CQ as u32;
        self.woken.lock().entry(cq).or_default().clone()
    }

    /// The claims of the peer's shared receive queue `index`, of `1 << order` slots.
    pub fn claims(&self, index: u32, order: u32) -> Option<Arc<Claims>> {
        if index as usize >= MAX_SRQ {
            return None;
        }
        let advert = self.segment.srq(index as usize);
        let serial = advert.serial.load(Ordering::Acquire);
        let mut claims = self.claims.lock();
        if let Some((have, found)) = claims.get(&index)
            && *have == serial
        {
            return Some(found.clone());
        }
        let serial_of = |i: u32| &self.segment.srq(i as usize).serial;
        claims.retain(|&i, (have, _)| serial_of(i).load(Ordering::Acquire) == *have);
        let (fd, id) = advertised(&advert.claims);
        let fd = pull(self.incarnation, fd, id, Access::ReadWrite).ok()?;
        let found = Arc::new(Claims::attach(fd, order).ok()?);
        claims.insert(index, (serial, found.clone()));
        Some(found)
    }

    /// The mailbox that the peer's queue pair `index` has had since `generation`.
    pub fn mailbox(&self, index: u32, generation: u64) -> Option<Arc<Mailbox>> {
        let advert = self.segment.qp(index as usize);
        let mut mailboxes = self.mailboxes.lock();
        if let Some((have, found)) = mailboxes.get(&index)
            && *have == generation
        {
            return Some(found.clone());
        }
        let current = |i: u32| &self.segment.qp(i as usize).lane_generation;
        mailboxes.retain(|&i, (have, _)| current(i).load(Ordering::Acquire) == *have);
        let order = advert.lane_order.load(Ordering::Relaxed);
        let (fd, id) = advertised(&advert.lane_file);
        if generation == 0 || advert.lane_generation.load(Ordering::Acquire) != generation {
            return None;
        }
        let fd = pull(self.incarnation, fd, id, Access::ReadWrite).ok()?;
        let found = Arc::new(Mailbox::attach(fd, order).ok()?);
        mailboxes.insert(index, (generation, found.clone()));
        Some(found)
    }

    /// Lets go of the mailbox of queue pair `index`, which has none any more.
    pub fn forget_mailbox(&self, index: u32) {
        self.mailboxes.lock().remove(&index);
    }

    /// Whether peers map the peer's arena writable.
    pub fn maps_writable(&self, arena: u32) -> bool {
        let kind = self
            .segment
            .arena(arena as usize)
            .kind
            .load(Ordering::Relaxed);
        matches!(
            Kind::from_code(kind as u8),
            Some(Kind::Receive | Kind::Exposed)
        )
    }

    /// The locks of the peer's words that cannot be mapped.
    ///
    /// # Errors
    ///
    /// The page cannot be opened: most likely the peer is gone.
    pub fn lock_page(&self) -> io::Result<Arc<LockPage>> {
        let mut page = self.lock_page.lock();
        if let Some(page) = &*page {
            return Ok(page.clone());
        }
        let (fd, id) = advertised(&self.segment.header().locks);
        let fd = pull(self.incarnation, fd, id, Access::ReadWrite)?;
        let new = Arc::new(LockPage(ControlFile::attach(fd, LockPage::LEN, true)?));
        *page = Some(new.clone());
        Ok(new)
    }

    /// The board of the peer's queue pairs.
    ///
    /// # Errors
    ///
    /// As [`lock_page`](Self::lock_page).
    pub fn board(&self) -> io::Result<Arc<Board>> {
        let mut board = self.board.lock();
        if let Some(board) = &*board {
            return Ok(board.clone());
        }
        let (fd, id) = advertised(&self.segment.header().board);
        let fd = pull(self.incarnation, fd, id, Access::ReadWrite)?;
        let new = Arc::new(Board::attach(fd)?);
        *board = Some(new.clone());
        Ok(new)
    }

    /// Makes the peer's watcher run work of its queue pairs that waits.
    pub fn kick(&self) {
        let mut kick = self.kick.lock();
        if kick.is_none() {
            let (fd, id) = advertised(&self.segment.header().kick);
            *kick = pull(self.incarnation, fd, id, Access::ReadWrite).ok();
        }
        if let Some(fd) = &*kick {
            // SAFETY: one byte from a live buffer to a descriptor we own. A full pipe already says what we want to say.
            unsafe { libc::write(fd.as_raw_fd(), [1u8].as_ptr().cast(), 1) };
        }
    }
}
