//! The debug mode: finds misuse of buffers that safe code cannot commit, but `unsafe` code, devices and peers can.
//!
//! In this mode threads keep no stock, so that every allocation and every free passes here; the hot path knows nothing of it.
//! What is noted of a buffer is in ordinary memory. Only guard bytes, between the end of what was asked for and that of the slab, and the
//! pattern that freed memory is filled with lie in registered memory; they are payload, and nothing is decided by them but whether to report.

mod finding;
mod mode;
mod watch;

pub use finding::{Finding, LiveBuffer};
pub use mode::DebugMode;
pub(crate) use mode::Debugging;
pub(crate) use watch::Watch;
