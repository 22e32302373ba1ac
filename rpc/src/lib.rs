//! Blocking, thread-per-core RPC over RDMA

mod credit;
mod handshake;
mod slot;
mod wire;
