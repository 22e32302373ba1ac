//! How long the next READ of a body is.
//!
//! Where posting a READ takes as long as its bytes take to move, whatever comes meanwhile waits for it. Long slices cost a bulk transfer less, short ones
//! those who call beside it. So slices are short while others are served between them and shortly after; and twice as long as was asked for when nobody
//! has called beside them for long, for a body that is alone. Only who calls after that can meet a longer one, once.

/// How much shorter they are. With an eighth small calls waited hardly less, and bulk had a third less.
const PARTS: u32 = 4;

/// Shortest slice in bytes that is made so. Below, posting costs more than moving.
const SHORTEST: u32 = 16 << 10;

/// Bytes READ since the last call beside them, after which slices are not short any more: a millisecond's, about, on devices without hardware.
const SHORT_FOR: u64 = 16 << 20;

/// The same, after which nobody is expected any more: tenths of a second.
const QUIET_AFTER: u64 = 256 << 20;

/// How many times as long as `slice` a READ can be of a body of which so many bytes are `left`, if nobody has to be served between.
///
/// Few READs cost less. Of what does not fit into a processor's cache, devices without hardware copy a mebibyte faster than less, past the
/// cache; what does, and is looked at next, is better there.
pub(crate) fn longer(slice: u32, left: u64) -> u32 {
    if left >= 32 * u64::from(slice) { 4 } else { 2 }
}

/// Says how long slices are.
#[derive(Debug)]
pub(crate) struct Slices {
    /// Bytes READ since somebody else was served between two READs.
    since: u64,
}

impl Default for Slices {
    fn default() -> Self {
        Slices { since: QUIET_AFTER }
    }
}

impl Slices {
    /// Somebody was served between two READs for whom nothing had to be READ.
    #[inline]
    pub fn interrupted(&mut self) {
        self.since = 0;
    }

    /// The longest that the next READ may be, where `slice` is what was asked for.
    ///
    /// `alone`: it is for the only body, and no other READ is on its way. Of several bodies, or on a device that takes its time, longer ones would be
    /// more bytes on their way at once, of more bodies, and the first would be there later.
    pub fn most(&self, slice: u32, alone: bool) -> u32 {
        match self.since {
            ..SHORT_FOR => (slice / PARTS).max(slice.min(SHORTEST)),
            QUIET_AFTER.. if alone => slice.saturating_mul(2),
            _ => slice,
        }
    }

    /// So many bytes have been asked for.
    #[inline]
    pub fn asked(&mut self, bytes: u64) {
        self.since = self.since.saturating_add(bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SLICE: u32 = 256 << 10;

    #[test]
    fn slices_are_short_while_others_are_served_and_some_time_after() {
        let mut slices = Slices::default();
        assert_eq!(slices.most(SLICE, false), SLICE);
        for _ in 0..2 {
            slices.interrupted();
            slices.asked(SHORT_FOR - 1);
            for alone in [false, true] {
                assert_eq!(slices.most(SLICE, alone), 64 << 10);
                assert_eq!(slices.most(32 << 10, alone), SHORTEST);
                assert_eq!(slices.most(4 << 10, alone), 4 << 10, "not longer");
            }
        }
        slices.asked(1);
        assert_eq!(slices.most(SLICE, true), SLICE);
    }

    #[test]
    fn those_of_a_body_that_is_alone_are_longer_when_nobody_has_come_for_long() {
        let mut slices = Slices::default();
        let asked = |slices: &Slices| [false, true].map(|alone| slices.most(SLICE, alone));
        assert_eq!(asked(&slices), [SLICE, 2 * SLICE]);
        slices.interrupted();
        slices.asked(QUIET_AFTER - 1);
        assert_eq!(asked(&slices), [SLICE, SLICE]);
        slices.asked(1);
        assert_eq!(asked(&slices), [SLICE, 2 * SLICE]);
        slices.asked(u64::MAX);
        assert_eq!(slices.most(u32::MAX, true), u32::MAX);
    }

    #[test]
    fn only_of_long_bodies_are_slices_much_longer() {
        let at = 32 * u64::from(SLICE);
        let times = [1, at - 1, at, u64::MAX].map(|left| longer(SLICE, left));
        assert_eq!(times, [2, 2, 4, 4]);
        assert_eq!(longer(u32::MAX, at), 2);
    }
}
