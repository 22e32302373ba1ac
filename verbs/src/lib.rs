//! Safe verbs: lifetime- and ownership-checked RDMA
