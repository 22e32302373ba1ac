//! What lies where in shared memory.
//!
//! Two kinds of file are shared between processes:
//!
//! * The *segment*, one per process: advertisements of its regions, queue pairs, receive entries, arenas, completion queues
//!   and channels. Its owner alone can write it (the file is sealed against further writable maps); peers map it read-only.
//! * *Lane files*, one or more per pair of processes and direction, made by the consumer and written by the producer
//!   (see [`crate::lane`] for a lane's inside).
//!
//! Every field that another process can look at while its owner writes is an atomic, so that a race is at worst an old
//! value, never undefined behaviour. Relations between the constants are asserted at compile time: the layout is an ABI
//! between processes that may run different builds, hence [`VERSION`].

use core::mem::size_of;
use core::sync::atomic::{AtomicI32, AtomicU32, AtomicU64};
use static_assertions::{const_assert, const_assert_eq};

/// Says that a file is one of ours.
pub(crate) const MAGIC: u64 = u64::from_le_bytes(*b"vbtmSEG\0");
/// Changes with any change of this file; processes of different versions do not connect.
pub(crate) const VERSION: u32 = 6;

/// Bits of a queue pair number that name the queue pair within its process; the ten above name the process's slot.
pub(crate) const QPN_BITS: u32 = 14;
/// Queue pairs of one process.
pub(crate) const MAX_QP: usize = 1 << QPN_BITS;
/// Regions of one process.
pub(crate) const MAX_MR: usize = 1 << 16;
/// Memory files of one process that peers can map.
pub(crate) const MAX_ARENA: usize = 1 << 12;
/// Completion queues of one process.
pub(crate) const MAX_CQ: usize = 1 << 14;
/// Completion channels of one process.
pub(crate) const MAX_CHANNEL: usize = 1 << 12;
/// Shared receive queues of one process.
pub(crate) const MAX_SRQ: usize = 1 << 10;
/// Room for advertised receive entries (sparse: only what is used takes memory).
pub(crate) const RECV_AREA: usize = 512 << 20;

/// A descriptor of the owner's that peers may open as `/proc/PID/fd/N`, with what it must turn out to be.
#[repr(C)]
pub(crate) struct FdAdvert {
    /// Device number of the file.
    pub dev: AtomicU64,
    /// Inode number of the file.
    pub ino: AtomicU64,
    /// The owner's descriptor.
    pub fd: AtomicI32,
    pad: u32,
}

/// First page of a segment.
#[repr(C, align(4096))]
pub(crate) struct Header {
    pub magic: AtomicU64,
    pub version: AtomicU32,
    pub pid: AtomicU32,
    pub start: AtomicU64,
    /// Address of this header in its owner: what a peer reads to find out whether it may reach the owner's memory.
    pub probe: AtomicU64,
    /// Not 0: the owner has no `membarrier`, so initiators must order hazards with a full fence.
    pub fence: AtomicU32,
    pub pad: u32,
    /// A byte written here makes the owner's watcher run work that waits.
    pub kick: FdAdvert,
    /// The page of locks for atomics on memory that cannot be mapped: writable by all.
    pub locks: FdAdvert,
    /// The board of its queue pairs, writable by all (see [`crate::board`]).
    pub board: FdAdvert,
}

/// What a peer may know about a queue pair.
#[repr(C, align(128))]
pub(crate) struct QpAdvert {
    // First and second line: written when the queue pair changes state.
    /// Queue pair number, 0 when the entry is free.
    pub qpn: AtomicU32,
    /// `ibv_qp_state` as its owner sees it.
    pub state: AtomicU32,
    /// The queue pair that may use the lane.
    pub peer_qpn: AtomicU32,
    /// Process of that queue pair.
    pub peer_pid: AtomicU32,
    pub peer_start: AtomicU64,
    /// Protection domain, unique in its process.
    pub pd: AtomicU32,
    /// `ibv_access_flags` of the queue pair.
    pub access: AtomicU32,
    /// Completion queue of the receive queue.
    pub recv_cq: AtomicU32,
    /// PSN expected first.
    pub rq_psn: AtomicU32,
    /// What an initiator waits after "receiver not ready" (encoded as in the verbs).
    pub min_rnr_timer: AtomicU32,
    /// Receive entries: a ring of `1 << recv_order` entries of `recv_stride` bytes, `recv_off` bytes into the segment.
    pub recv_order: AtomicU32,
    pub recv_off: AtomicU64,
    pub recv_stride: AtomicU32,
    pub lane_order: AtomicU32,
    /// The lane file and the lane in it.
    pub lane_file: FdAdvert,
    pub lane_len: AtomicU64,
    pub lane_off: AtomicU64,
    /// Every receive posted so far holds at least this many bytes, in memory to which no peer has a key: a send of no more
    /// may leave its payload in the lane without looking at the entry.
    pub eager: AtomicU32,
    /// READs and atomics that may be outstanding at this queue pair.
    pub reads: AtomicU32,
    /// Tells this lane from an earlier one of the same queue pair.
    pub lane_generation: AtomicU64,
    /// Shared receive queue (index + 1) that receives come from, 0: the queue pair's own.
    pub srq: AtomicU32,
    /// The service, as a number: see [`crate::qp_state::Service`].
    pub service: AtomicU32,
    // Third line: written at each post of a receive.
    /// Receive entries ever posted.
    pub posted: Line<AtomicU64>,
    // Fourth line: written now and then by the poll.
    /// Lane entries ever consumed, published lazily; of a mailbox, the first place that was not taken.
    pub consumed: Line<AtomicU64>,
    // Fifth and sixth: what this queue pair says as the producer of the peer's lane. They lie here, and not in the lane, so
    // that one whose lane was taken back can only write words of its own.
    /// What the producer is touching right now, 0 for nothing (see [`crate::quiet`]).
    pub hazard: Line<AtomicU64>,
    pub word: Line<ProducerWords>,
    // Seventh: of a queue pair for datagrams, whose "lane" is a mailbox (see [`crate::datagram`]).
    pub mail: Line<MailWords>,
}

/// What senders of datagrams look at.
#[repr(C)]
pub(crate) struct MailWords {
    /// Places of the mailbox that were passed over without taking a receive.
    pub skipped: AtomicU64,
    /// Not 0: there are places that will be passed over, which senders must count.
    pub left: AtomicU32,
    /// The key that a datagram must carry.
    pub qkey: AtomicU32,
}

/// What a producer says rarely.
#[repr(C)]
pub(crate) struct ProducerWords {
    /// Generation of a lane whose queue pair must fail, for the producer found an error.
    pub fatal: AtomicU64,
    /// Not 0: the producer waits until this many receives were posted.
    pub parked: AtomicU64,
    /// Reserved for the word that decides who completes a parked send.
    pub claim: AtomicU64,
}

/// A cache line of its own.
#[repr(C, align(64))]
pub(crate) struct Line<T>(pub T);

/// What a peer may know about a memory region.
#[repr(C, align(64))]
pub(crate) struct MrAdvert {
    /// lkey and rkey: index in the upper 24 bits, tag in the lower 8. 0: no region.
    pub key: AtomicU32,
    /// `ibv_access_flags`.
    pub access: AtomicU32,
    pub pd: AtomicU32,
    /// Arena (index + 1), 0: memory that peers cannot map.
    pub arena: AtomicU32,
    /// First address as work requests name it.
    pub iova: AtomicU64,
    /// Bytes.
    pub len: AtomicU64,
    /// First address in the owner.
    pub addr: AtomicU64,
    /// Offset of the first byte in the arena's file.
    pub arena_off: AtomicU64,
    /// Serial of the arena, so that a reused entry is not mistaken for the old one.
    pub arena_serial: AtomicU64,
}

/// A memory file that peers may map as its kind allows.
#[repr(C, align(64))]
pub(crate) struct ArenaAdvert {
    pub file: FdAdvert,
    pub len: AtomicU64,
    pub serial: AtomicU64,
    /// [`crate::memory::Kind`] as a number.
    pub kind: AtomicU32,
}

/// A completion queue: whether somebody wants to be woken, and through which channel.
#[repr(C, align(64))]
pub(crate) struct CqAdvert {
    /// `generation << 2 | mode`, mode one of the `ARM_*` constants.
    pub armed: AtomicU64,
    /// Channel (index + 1), 0: none.
    pub channel: AtomicU32,
    /// Not 0: so many queue pairs complete here that senders are to say on the board where something is new.
    pub crowded: AtomicU32,
}

/// Not armed.
pub(crate) const ARM_NONE: u64 = 0;
/// Armed for any completion.
pub(crate) const ARM_ANY: u64 = 1;
/// Armed for solicited completions and errors.
pub(crate) const ARM_SOLICITED: u64 = 2;

/// A completion channel: a pipe whose write end peers open.
#[repr(C, align(64))]
pub(crate) struct ChannelAdvert {
    pub pipe: FdAdvert,
    pub serial: AtomicU64,
}

/// A shared receive queue. Its entries lie where the queue pairs that use it say that theirs lie.
#[repr(C, align(128))]
pub(crate) struct SrqAdvert {
    /// Tells this queue from an earlier one of the same index; 0: none.
    pub serial: AtomicU64,
    /// The file of claims, writable by all who may send (see [`crate::srq::claims`]).
    pub claims: FdAdvert,
    /// Where the ring of `1 << order` slot numbers lies in the receive area, position by position.
    pub ring_off: AtomicU64,
    pub order: AtomicU32,
    /// Protection domain of its entries.
    pub pd: AtomicU32,
    /// Not 0: the owner wants to know when fewer entries than that are left.
    pub limit: AtomicU32,
    /// Last position that was posted.
    pub posted: Line<AtomicU64>,
}

/// Head of an advertised receive entry; the scatter elements follow.
#[repr(C)]
pub(crate) struct RecvHead {
    pub num_sge: AtomicU32,
    pub pad: AtomicU32,
    /// Sum of the elements' lengths.
    pub total: AtomicU64,
}

/// One scatter element of an advertised receive entry.
#[repr(C)]
pub(crate) struct RecvSge {
    pub addr: AtomicU64,
    pub len: AtomicU32,
    pub lkey: AtomicU32,
}

/// What the largest receive entry takes; kept free at the end of the area, as readers look at a whole one.
pub(crate) const RECV_STRIDE_MAX: usize =
    recv_stride(crate::transfer::MAX_SGE).next_multiple_of(4096);

/// Bytes from one advertised receive entry to the next.
pub(crate) const fn recv_stride(max_sge: usize) -> usize {
    (size_of::<RecvHead>() + max_sge * size_of::<RecvSge>()).next_multiple_of(64)
}

pub(crate) const QP_OFF: usize = size_of::<Header>();
pub(crate) const MR_OFF: usize = QP_OFF + MAX_QP * size_of::<QpAdvert>();
pub(crate) const ARENA_OFF: usize = MR_OFF + MAX_MR * size_of::<MrAdvert>();
pub(crate) const CQ_OFF: usize = ARENA_OFF + MAX_ARENA * size_of::<ArenaAdvert>();
pub(crate) const CHANNEL_OFF: usize = CQ_OFF + MAX_CQ * size_of::<CqAdvert>();
pub(crate) const SRQ_OFF: usize = CHANNEL_OFF + MAX_CHANNEL * size_of::<ChannelAdvert>();
pub(crate) const RECV_OFF: usize = SRQ_OFF + MAX_SRQ * size_of::<SrqAdvert>();
/// Bytes of a segment.
pub(crate) const SEGMENT_LEN: usize = RECV_OFF + RECV_AREA;

const_assert_eq!(size_of::<Header>(), 4096);
const_assert_eq!(size_of::<QpAdvert>(), 512);
const_assert_eq!(size_of::<MrAdvert>(), 64);
const_assert_eq!(size_of::<ArenaAdvert>(), 64);
const_assert_eq!(size_of::<CqAdvert>(), 64);
const_assert_eq!(size_of::<ChannelAdvert>(), 64);
const_assert_eq!(size_of::<SrqAdvert>(), 128);
const_assert_eq!(size_of::<RecvHead>(), 16);
const_assert_eq!(size_of::<RecvSge>(), 16);
// What changes with each message has lines of its own.
const_assert_eq!(core::mem::offset_of!(QpAdvert, posted), 128);
const_assert_eq!(core::mem::offset_of!(QpAdvert, consumed), 192);
const_assert_eq!(core::mem::offset_of!(QpAdvert, hazard), 256);
const_assert!(RECV_OFF.is_multiple_of(4096));
// A queue pair number has 24 bits: slot and index.
const_assert!(MAX_QP * crate::os::directory::SLOTS as usize <= 1 << 24);
// A key has an index of 24 bits and a tag of 8; the hazard word needs its top bit.
const_assert!(MAX_MR << 8 <= 1 << 31);
