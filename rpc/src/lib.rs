//! Blocking, thread-per-core RPC over RDMA
