//! A safe, fast RDMA stack for Rust, which also runs on machines without RDMA.
//!
//! RDMA (remote direct memory access) lets a network card move bytes between the memories of two
//! processes without a system call and without the peer's processor. This crate is the front door to
//! five layers; take the highest one that does what you need:
//!
//! | layer | what it is | start with |
//! |---|---|---|
//! | [`rpc`] | blocking, thread-per-core calls with large payloads and deadlines | [`rpc::Server`], [`rpc::Client`] |
//! | [`mempool`] | registered memory as cheap as `malloc`, scatter/gather lists of it | [`mempool::Pool`] |
//! | [`verbs`] | devices, queue pairs and memory regions, checked by the compiler | [`verbs::Device`] |
//! | [`softverbs`] | a verbs device in user space: `soft0`, on any Linux machine | [`softverbs::api`] |
//! | [`ibverbs_sys`] | the C interface as it is, loaded at run time | [`ibverbs_sys::Api`] |
//!
//! # The promise
//!
//! A work request lets a device touch memory long after the call that posted it has returned, and
//! memory that a peer holds a writable key to can change at any instant. Therefore: safe code can never
//! free, move or alias memory that a device may still touch, and no safe function ever yields a
//! reference (other than to atomics) to memory that a peer's keys let it write.
//!
//! # Without hardware
//!
//! [`verbs::Device::open_default`] takes a network card with an active port if there is one, and the
//! user-space device `soft0` otherwise. `soft0` connects processes of one user on one host, and is meant
//! for development, tests and co-operating processes; it is no security boundary between them.
//!
//! # The command
//!
//! `cargo run --release -- demo` sends a directory tree through all layers and checks every byte;
//! `cargo run --release -- devices` shows the devices of this host and which one would be used;
//! `cargo run --release -- bench` measures. The feature `cli` (default) builds it.

pub use ::ibverbs_sys;
pub use ::mempool;
pub use ::rpc;
pub use ::softverbs;
pub use ::verbs;

/// The code in README.md compiles and runs.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
