//! Helpers for the tests that cross layers: real processes, and time bounds that only guard against hangs.
//!
//! A test with a second process calls [`second_process`] first. In the test run that starts the second
//! process: the test binary again, told to run this one test. There the same call returns [`Side::Child`],
//! and the test goes on as the other side. Both hold one end of a [`Control`] to talk over, and what a child
//! panics with is seen in the output of the test.

mod control;
mod huge_pages;
mod link;
mod process;
mod until;

pub use control::Control;
pub use huge_pages::HugePages;
pub use link::{Block, Cut, Link, fill, is_pattern, pattern};
pub use process::{Peer, Side, memory_files, seals, second_process, second_process_with};
pub use until::{HANG, until};
