//! A pool of registered memory made for scatter/gather work requests.
//!
//! Registering memory takes tens of microseconds and more, and every segment of a work request needs the key of a registered
//! region. A [`Pool`] registers large arenas once and hands out buffers that know their key: allocating and freeing cost a few
//! nanoseconds, and a [`Buf`] is a segment of a work request by itself.
//!
//! ```
//! use mempool::{Budget, Pool, sg};
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let pd = verbs::Device::open_spec("soft0")?.alloc_pd()?;
//! let pool = Pool::builder(&pd).budget(Budget::user(64 << 20)).build()?;
//! let mut header = pool.alloc(16)?;
//! header.fill(7);
//! let file = pool.alloc_from(&b"contents"[..], 8)?.freeze(); // can be cloned into many sends
//! let message = sg![header, file.slice(..4)]; // one work request of two segments
//! assert_eq!(message.len(), 20);
//! # Ok(()) }
//! ```
//!
//! # How it works
//!
//! ```text
//!   registered memory: payload only                 ordinary heap: everything the pool believes
//!
//!   arena (one memory file, one region)             Depot of this kind, behind a lock
//!   ┌─────────────┬─────────────┬──────┐              arenas, which chunks are free
//!   │ chunk 2 MiB │ chunk 2 MiB │ free │              per class: runs with slabs to give
//!   └──┬──────────┴─────────────┴──────┘                       │ batches
//!      ▼                                            Local of a thread, no lock
//!   ┌────┬────┬────┬────┬─                            per class: stack of slabs, last in first out
//!   │slab│slab│slab│slab│ ...                         remote list: slabs that others freed
//!   └─▲──┴────┴────┴────┴─                                     │
//!     │ address                  descriptor                    ▼
//!     └──────────────────────  Slab { address, run (class, key), owner, count } ◄── Buf { address, length }
//! ```
//!
//! * **Nothing that the pool relies on lies in registered memory.** A peer that writes garbage over a whole exposed arena
//!   changes payload, and nothing else.
//! * A thread allocates from its own stacks, and frees into them. A buffer freed by another thread is pushed to the remote list of the thread
//!   that allocated it, with one atomic operation. Locks and system calls are for batches: refill, return, growth.
//! * [`Budget`]s are apart: the user's buffers, receive buffers, and control messages cannot starve each other.
//! * The [`Kind`] of an arena says what peers can ever do with it, and the operating system enforces that where it can.
//!   Exposed memory, which peers write, is only ever seen as cells ([`ExposedBuf`]).
//!
//! Buffers outlive the pool's handles, and threads; see [`Pool`] for when memory is given back.

mod adopt;
mod ahead;
mod arena;
mod budget;
mod buf;
mod builder;
#[cfg(feature = "bytes")]
mod bytes;
mod coalesce;
mod count;
mod debug;
mod depot;
mod device;
mod device_buf;
mod error;
mod exposed;
mod fences;
mod from_vec;
mod grower;
mod handle;
mod huge;
mod kind;
mod ledger;
mod limits;
mod local;
mod parting;
mod pool;
mod reclaim;
mod refill;
mod remote;
mod scatter;
mod segment;
mod sg;
mod sg_reader;
mod shared;
mod shared_buf;
mod shared_map;
mod size;
mod slab;
mod source;
mod stack;
mod stats;
mod sync;
mod trace;
#[cfg(feature = "zerocopy")]
mod typed;
mod waiting;
mod write;

#[cfg(all(test, not(loom)))]
mod tests;

pub use adopt::{AdoptError, AdoptErrorKind, CellMemory};
pub use arena::ArenaError;
pub use budget::{Budget, BudgetId, BudgetKind, BudgetParent};
pub use buf::Buf;
pub use builder::PoolBuilder;
pub use debug::{DebugMode, Finding, LiveBuffer};
pub use device::{DeviceSlot, OfPool, On};
pub use device_buf::DeviceBuf;
pub use error::{AllocError, PoolError};
pub use exposed::{ExposedBuf, ExposedLease};
pub use from_vec::{FromVec, FromVecError, FromVecErrorKind};
pub use huge::{HugePageUse, HugePages};
pub use kind::Kind;
pub use limits::LimitError;
pub use parting::CannotPart;
pub use pool::Pool;
pub use scatter::{ScatterList, ScatterListFull, Writable};
pub use segment::{ForeignSegment, Segment};
pub use sg::{SgList, SgListFull};
pub use sg_reader::SgReader;
pub use shared_buf::SharedBuf;
pub use shared_map::SharedMap;
pub use size::{CHUNK, MAX_CLASSED, MAX_LEN, slab_size};
pub use stats::{BudgetStats, ClassStats, KindStats, NumaPlacement, PoolStats};
#[cfg(feature = "zerocopy")]
pub use typed::{Typed, WrongType};
pub use write::Writer;
