#![doc = include_str!("../README.md")]
//!
//! ## Modules
//!
//! ```text
//!   service/                      typed methods, if asked for
//!   client/   server/             who waits for what, and what happens when it goes wrong
//!      \       /
//!       link  outgoing  frame  transfer  lease      one connection's queue pair; messages out; bodies in
//!         \      |      /
//!      wire  credit  ring  bell  slot  shelf  handshake       pure: encodings and rules, no I/O
//! ```

mod bell;
mod client;
mod clock;
mod control;
mod credit;
mod deadline;
mod destination;
mod epoll;
mod error;
mod frame;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
mod handshake;
mod histogram;
mod kept;
mod lease;
mod link;
mod names;
mod order;
mod outgoing;
mod payload;
mod posted;
#[cfg(feature = "metrics")]
mod publish;
mod ring;
mod server;
#[cfg(any(feature = "serde", feature = "zerocopy"))]
pub mod service;
mod setup;
mod shelf;
mod slices;
mod slot;
mod stream;
#[cfg(feature = "tls")]
mod tls;
mod trace;
mod transfer;
mod turns;
mod wait;
mod wire;

pub use client::{
    Batch, Client, ClientBuilder, ClientGroup, ClientStats, Clients, GroupPending, Parts,
    PartsIter, Pending, Reconnect, Reply, Spread,
};
pub use credit::CreditError;
pub use deadline::Deadline;
pub use destination::{CHUNK_MAX, Destination};
pub use error::{
    Buffers, CallError, ConnectError, Lost, NotSent, NotSentReason, ServeError, Violation,
};
pub use handshake::{Goodbye, HandshakeError, RefusalCode, ReplyPath, RequestPath};
pub use histogram::Histogram;
pub use names::{Code, Method};
pub use payload::Payload;
#[cfg(feature = "metrics")]
pub use publish::describe_metrics;
pub use server::{
    ConnectionStats, Core, PartError, PartsResponder, Request, Responder, Server, ServerHandle,
    ServerStats,
};
pub use slot::SlotError;
#[cfg(feature = "tls")]
pub use tls::{ClientTls, ServerTls, TlsError};
pub use wait::Waiting;
pub use wire::WireError;
