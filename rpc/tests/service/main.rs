//! Typed services over the default device, well-behaved and hostile.
#![cfg(all(feature = "serde", feature = "zerocopy"))]

#[path = "../common/mod.rs"]
mod common;

mod calls;
mod everything;
mod hostile;
mod parts;
mod strangers;
