//! Looking again and again without keeping the peer from running.

use crate::placement;

/// Empty looks before the processor is yielded between two of them, where each end has one of its own: some 50 µs, far more
/// than an answer takes unless other work has the peer's processor.
const LOOKS: u32 = 1024;
/// Looks between two yields afterwards.
const BETWEEN: u32 = 64;

/// One wait. The clock is not read: that would take longer than the looks.
pub struct Spin {
    left: u32,
    between: u32,
}

impl Spin {
    /// Begins to wait.
    #[inline]
    pub fn new() -> Spin {
        if placement::processors() > 1 {
            Spin {
                left: LOOKS,
                between: BETWEEN,
            }
        } else {
            Spin {
                left: 1,
                between: 1,
            }
        }
    }

    /// After a look that found nothing.
    #[inline]
    pub fn idle(&mut self) {
        // The look itself tells the processor that this is a wait loop, or is a system call.
        self.left -= 1;
        if self.left == 0 {
            self.left = self.between;
            std::thread::yield_now();
        }
    }
}
