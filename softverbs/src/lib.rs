//! A verbs device in user space: RDMA semantics on any Linux machine.
//!
//! No kernel module, no root, no adapter. [`api`] is the same table of functions that libibverbs would be; it holds one
//! device, `soft0`, which connects queue pairs between threads and between processes of one user on one host.
//!
//! # How it works
//!
//! *The target is passive.* The thread that posts a work request does all of it: it checks keys and state, moves the bytes,
//! and leaves an entry in a ring in shared memory (a *lane*) that the target's next poll takes out. The target may be asleep
//! or stopped. There is no daemon; one thread per process, the [`watcher`], sleeps until work that had to wait can go on.
//!
//! ```text
//!   initiator's process                               target's process
//!   post_send ── checks ── copies ──────────────────▶ arena (mapped, or by process_vm)
//!                └─────── lane entry ───────────────▶ lane ── poll_cq ──▶ completion
//!                         wake-up if armed ─────────▶ channel
//!   own completion ◀── private ring
//! ```
//!
//! *The kernel keeps peers out* where that is free: segments and private or readable memory files are sealed against
//! writable maps. *Memory is given back only when quiet*, see [`quiet`].
//!
//! Never use the device between processes that distrust one another: all of them run as one user and can trace each other
//! anyway. But a peer that scribbles over everything it has mapped does not crash the engine: what is read from peer-writable
//! memory is copied once, then checked.
//!
//! # What it does
//!
//! * Reliable and unreliable connections (RC, UC): SEND, WRITE, both also with immediate data; RC also READ, compare-and-swap,
//!   fetch-and-add. Datagrams (UD) of up to 4096 bytes by address handle, with and without immediate data, see [`datagram`].
//! * Queue pairs in all states, with SQD and its event, and SQE of the unreliable services; shared receive queues with limits, resized
//!   to up to eight times what they were made for; completion queues with channels, overflow, resizing, moderation.
//! * `ibv_create_cq_ex` with all standard fields and time stamps (when a completion was polled), `ibv_create_qp_ex` and
//!   `ibv_wr_*` for the operations above.
//! * Not there, and refused as the manual pages say: memory windows, multicast, XRC, raw packets, on-demand paging, local and remote
//!   invalidation, parent and thread domains, counters, flow steering, time stamps of the moment a completion was made.
//!
//! Where Linux's rxe and the specification differ, it does what the specification says: a failed send of an unreliable service leads to
//! SQE, which rxe does not have.
//!
//! # Environment
//!
//! * `VERBATIM_DIR`: where processes find each other; else `XDG_RUNTIME_DIR`, `/dev/shm`, `/tmp`.
//! * `VERBATIM_ASYNC=<seed>`: the asynchronous mode, see [`set_async`].
//! * `VERBATIM_FAULTS=<faults>`: what goes wrong, and when; see [`faults::environment`](mod@faults::environment).

#![cfg_attr(loom, allow(dead_code, unused_imports))]
#![allow(rustdoc::private_intra_doc_links)]

mod asynch;
mod atomic;
mod board;
mod channel;
mod copy;
mod cq;
mod datagram;
mod device;
mod events;
mod execute;
pub mod faults;
mod lane;
mod layout;
mod link;
mod lock;
pub mod memory;
mod os;
mod peer;
pub mod pending;
mod process;
mod qp;
mod qp_state;
mod quiet;
mod recv;
mod refusal;
mod region;
mod segment;
mod send;
mod send_done;
mod srq;
mod sync;
mod tables;
mod take_in;
mod thread;
mod transfer;
mod verbs;
mod watcher;

pub use device::{meeting_place, set_async};
pub use refusal::take_refusal;
pub use verbs::api;
