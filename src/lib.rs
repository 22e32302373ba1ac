//! A safe, fast RDMA stack.
