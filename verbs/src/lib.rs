//! Safe verbs: lifetime- and ownership-checked RDMA.
//!
//! A work request lets a device touch memory long after the call that posted it has returned, and memory that a peer holds
//! a writable key to can change at any instant. This crate keeps one promise about both: **safe code can never free, move or
//! alias memory that a device may still touch, and no safe function yields a reference (other than to atomics) to memory
//! that a peer's keys let it write.**
//!
//! How it is kept:
//!
//! * Buffers *move* into [`SendQueue`] and [`RecvQueue`] and come back with the completion, or when the queue pair is
//!   destroyed. [`Gather`] and [`Scatter`] say what may be posted. Borrowed memory can be posted within a
//!   [scope](SendQueue::scope), which waits for it.
//! * Memory regions own their memory, in one kind per exposure: [`Private`] is a slice, [`Readable`] a frozen one that peers
//!   may read, [`Exposed`] a set of cells that peers may write.
//! * Whoever depends on an object keeps it alive; reference counts are touched when objects are made and dropped, never when
//!   work is posted or completed.
//!
//! ```text
//! Device -> Context -> Pd -----> Private / Readable / Exposed / Region
//!              |        \
//!              |         `-----> RcBuilder -> RcReady -> (SendQueue<T>, RecvQueue<T>)
//!              `-> Channel -> Cq -----^                         |
//!                              `-> Completion --- retire / redeem
//! ```
//!
//! The device is hardware reached through libibverbs, loaded at run time, or `soft0`, the user-space device of the
//! feature `soft` (on by default), which needs no hardware, no kernel module and no privilege.

/// The C interface, for [raw posting](SendQueue::post_raw).
pub use ibverbs_sys as sys;

/// The README's example compiles.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

mod access;
mod address;
mod async_event;
mod batch;
mod cells;
mod channel;
mod completion;
mod context;
mod copied;
mod cq;
mod cq_control;
mod cursor;
mod datagram;
#[cfg(all(test, feature = "soft"))]
mod datagram_tests;
mod device;
mod device_attr;
mod dmabuf;
mod endpoint;
mod errno;
mod error;
mod exclusive;
mod exposed;
mod extended_cq;
mod extended_qp;
#[cfg(all(test, feature = "soft"))]
mod extended_tests;
#[cfg(all(test, feature = "soft"))]
mod fault_tests;
mod fd;
mod fork;
mod gid;
mod grh;
mod huge;
mod keys;
mod lent;
mod list;
mod memory;
mod memory_file;
mod mmap;
mod operations;
mod part;
mod pd;
mod pending;
mod port;
mod port_attr;
mod post_error;
#[cfg(all(test, feature = "soft"))]
mod post_tests;
mod posted_in_part;
mod private;
mod qp;
mod qp_builder;
mod qp_kind;
mod qp_setup;
mod raw;
mod rc_builder;
mod readable;
mod received;
mod recover;
mod recv_many;
mod recv_queue;
mod recv_scope;
mod redeemed;
mod refusal;
mod region;
mod register_error;
mod remote;
mod ring;
mod scope;
#[cfg(all(test, feature = "soft"))]
mod scope_tests;
mod send_queue;
mod sge;
mod shared_core;
mod shared_recv;
#[cfg(all(test, feature = "soft"))]
mod shared_tests;
mod slots;
mod spec;
mod status;
#[cfg(all(test, feature = "soft"))]
mod table_tests;
mod tags;
mod template;
mod transport;
mod uc_builder;
mod ud_builder;
#[cfg(all(test, feature = "soft"))]
mod unplugged_tests;
mod way;
mod wc;
mod wc_batch;
mod wr;

pub use access::Access;
pub use address::{AddressHandle, Destination};
pub use async_event::AsyncEvent;
pub use batch::Batch;
#[doc(hidden)]
pub use cells::Cells;
pub use channel::Channel;
pub use completion::{Completion, QueueId, Stale};
pub use context::Context;
pub use cq::{Cq, CqBuilder, CqId};
pub use cursor::{Poll, Polled};
pub use device::{Device, DeviceKind};
pub use device_attr::{AtomicCap, DeviceAttr, DeviceCaps};
pub use dmabuf::{Dmabuf, DmabufRegion};
pub use endpoint::{BadEndpoint, Endpoint};
pub use error::{ConnectError, DestroyError, Error, OpenError};
pub use exposed::{CellError, Exposed};
pub use extended_cq::WcFields;
pub use fork::fork_init;
pub use gid::{Gid, GidEntry, GidKind};
pub use grh::Grh;
pub use huge::{HugePageError, HugePageSize};
pub use keys::{LKey, RKey};
pub use lent::ScopeError;
pub use memory::{Memory, MemoryMut, StaticMemory};
pub use memory_file::{MemoryFile, MemoryKind};
pub use mmap::Mmap;
pub use part::{Part, PartMut};
pub use pd::Pd;
pub use pending::PendingWork;
pub use port::{LinkLayer, Mtu, PortChoice, PortState};
pub use port_attr::{PhysState, PortAttr, PortCaps};
pub use post_error::{PostError, PostErrorKind};
pub use posted_in_part::PostedInPart;
pub use private::Private;
pub use qp::destroy;
pub use qp_builder::QpBuilder;
pub use qp_kind::{Connected, Own, QpKind, Rc, Shared, Uc, Ud, Unreliable};
pub use qp_setup::{QpReady, QpSetup, RcReady, RcSetup};
pub use raw::{RawCompletion, RawPostError};
pub use rc_builder::RcBuilder;
pub use readable::Readable;
pub use received::{Received, ReceivedBy, RecvError};
pub use recv_queue::RecvQueue;
pub use recv_scope::RecvScope;
pub use redeemed::{Done, Redeemed};
pub use region::{Region, ReleaseError, SegmentError};
pub use register_error::RegisterError;
pub use remote::{OutOfBounds, RemoteRegion};
pub use scope::Scope;
pub use send_queue::SendQueue;
pub use sge::{Contiguous, Gather, Scatter, Sge, SgeList, StoredAs};
pub use shared_recv::{SharedRecvBuilder, SharedRecvQueue};
pub use status::{WcError, WcStatus};
pub use transport::Transport;
pub use uc_builder::{UcBuilder, UcReady, UcSetup};
pub use ud_builder::{UdBuilder, UdReady, UdSetup};
pub use wc::Wc;
pub use wc_batch::WcBatch;
pub use wr::Wr;
