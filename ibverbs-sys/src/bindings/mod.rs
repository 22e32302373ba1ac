//! What bindgen makes of verbs.h and rdma_cma.h.

#[cfg(feature = "bindgen")]
include!(concat!(env!("OUT_DIR"), "/bindings.rs"));

#[cfg(all(not(feature = "bindgen"), target_arch = "x86_64"))]
include!("x86_64.rs");

#[cfg(all(not(feature = "bindgen"), target_arch = "aarch64"))]
include!("aarch64.rs");
