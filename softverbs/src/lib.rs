//! A verbs device in user space: RDMA semantics on any Linux machine

mod copy;
pub mod memory;
mod os;
