//! A verbs device in user space: RDMA semantics on any Linux machine
