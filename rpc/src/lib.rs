//! Blocking, thread-per-core RPC over RDMA

mod client;
mod control;
mod credit;
mod deadline;
mod epoll;
mod error;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
mod handshake;
mod histogram;
mod lease;
mod link;
mod names;
mod outgoing;
mod payload;
mod posted;
mod server;
mod setup;
mod slot;
mod transfer;
mod wait;
mod wire;

pub use client::{Client, ClientBuilder, ClientStats, Pending, Reply};
pub use deadline::Deadline;
pub use error::{
    Buffers, CallError, ConnectError, Lost, NotSent, NotSentReason, ServeError, Violation,
};
pub use names::{Code, Method};
pub use payload::Payload;
pub use server::{Core, Request, Responder, Server, ServerHandle, ServerStats};
pub use wait::Waiting;
