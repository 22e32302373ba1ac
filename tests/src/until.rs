//! Waiting with a limit that is there for hangs only.

use std::time::{Duration, Instant};

/// After this time a test is taken to hang. Far above what anything here takes on a loaded machine.
pub const HANG: Duration = Duration::from_secs(120);

/// Asks `ready` again and again until it has an answer; lets others run in between.
pub fn until<T>(what: &str, mut ready: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(value) = ready() {
            return value;
        }
        assert!(start.elapsed() < HANG, "hangs: waiting until {what}");
        std::thread::yield_now();
    }
}
