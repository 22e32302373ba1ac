//! What one end is willing to do, and the range of each number.

use crate::credit::{WINDOW_MAX, WINDOW_MIN};
use crate::destination::CHUNK_MAX;
use crate::ring;
use crate::wire::{MAX_PIECES, RELEASE_BYTES_MAX};

/// Smallest inline limit in bytes: bitmaps of control messages must fit.
pub(crate) const INLINE_MIN: u32 = RELEASE_BYTES_MAX as u32;
/// Largest inline limit in bytes.
pub(crate) const INLINE_MAX: u32 = 64 << 10;
/// Most slots.
pub(crate) const SLOTS_MAX: u32 = RELEASE_BYTES_MAX as u32 * 8;
/// Largest body in bytes that a version of this crate takes: as many of the longest buffers as a message has pieces.
pub(crate) const MESSAGE_MAX: u64 = MAX_PIECES as u64 * CHUNK_MAX as u64;

/// What one end is willing to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Receive entries to post for a connection: [`WINDOW_MIN`] to [`WINDOW_MAX`].
    pub window: u32,
    /// Largest inline payload in bytes.
    pub inline_limit: u32,
    /// Most calls on their way at once.
    pub slots: u32,
    /// Largest body in bytes.
    pub max_message: u64,
    /// Size of the receive ring in bytes; 0 is as large as the window can fill.
    pub ring: u64,
    /// Most bytes of the receive ring where its size is not fixed.
    pub ring_most: u64,
    /// Whether the device has immediate data, and so rings can be used.
    pub immediate: bool,
    /// Whether the device has passed the test of its WRITEs, and so rings can be polled.
    pub polled: bool,
}

impl Limits {
    /// The same, with each number brought into the range that the protocol allows.
    pub fn clamped(self) -> Limits {
        Limits {
            window: self.window.clamp(WINDOW_MIN, WINDOW_MAX),
            inline_limit: self.inline_limit.clamp(INLINE_MIN, INLINE_MAX),
            slots: self.slots.clamp(1, SLOTS_MAX),
            max_message: self.max_message.clamp(u64::from(INLINE_MAX), MESSAGE_MAX),
            ring: self.ring,
            ring_most: self.ring_most,
            immediate: self.immediate,
            polled: self.polled,
        }
    }

    /// Bytes of the receive ring for a connection with this window and inline limit.
    pub fn ring_size(&self, window: u32, inline_limit: u32) -> u64 {
        let max = ring::longest_framed(inline_limit);
        let size = match self.ring {
            0 => {
                let least = ring::size_min(max);
                ring::size_for(window, max).min(self.ring_most.max(least))
            }
            bytes => ring::span(bytes.min(ring::RING_MAX)).max(ring::size_min(max)),
        };
        size.min(ring::RING_MAX)
    }
}
