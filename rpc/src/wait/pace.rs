//! How many empty polls are made between two looks at the clock: rules without a clock.
//!
//! A poll takes some ten nanoseconds, most often. That of a completion queue with hundreds of queue pairs can take a hundred microseconds, and who waits
//! is to notice in time that it has waited for long: others may want the processor, the peer among them.

use crate::wait::POLLS;

/// Rows of empty polls between two looks, where polls are quick.
const ROWS: u32 = 8;

/// About how long it may be from one look to the next.
const LOOK_NS: u64 = 8_000;

#[derive(Debug)]
pub(super) struct Pace {
    /// Polls in a row.
    pub row: u32,
    /// Rows from one look to the next.
    pub rows: u32,
    /// What a poll took the last time.
    last_ns: u64,
}

impl Default for Pace {
    fn default() -> Pace {
        Pace {
            row: POLLS,
            rows: ROWS,
            last_ns: 0,
        }
    }
}

impl Pace {
    /// So many rows of polls have taken so long. The processor may have been away meanwhile, so that it is believed when it is seen twice.
    pub fn took(&mut self, ns: u64, rows: u32) {
        let each = ns / u64::from(rows.saturating_mul(self.row).max(1));
        let polls = LOOK_NS / each.min(std::mem::replace(&mut self.last_ns, each)).max(1);
        let polls = polls.clamp(1, u64::from(ROWS * POLLS)) as u32;
        self.row = polls.min(POLLS);
        self.rows = polls / self.row;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn paced(samples: &[u64]) -> (u32, u32) {
        let mut pace = Pace::default();
        for &each in samples {
            // As many as were to be made.
            pace.took(each * u64::from(pace.row * pace.rows), pace.rows);
        }
        (pace.row, pace.rows)
    }

    #[test]
    fn quick_polls_are_made_in_long_rows() {
        assert_eq!(paced(&[]), (POLLS, ROWS));
        assert_eq!(paced(&[0, 20, 100, 125]), (POLLS, ROWS));
    }

    #[test]
    fn the_slower_polls_are_the_sooner_the_clock_is_looked_at() {
        assert_eq!(paced(&[300, 300]), (POLLS, 3));
        assert_eq!(paced(&[2000, 2000]), (4, 1));
        assert_eq!(paced(&[60_000, 60_000]), (1, 1));
        assert_eq!(paced(&[u64::MAX / 64, u64::MAX / 64]), (1, 1));
    }

    #[test]
    fn one_slow_look_is_no_slow_poll() {
        assert_eq!(paced(&[50, 60_000, 50, 60_000]), (POLLS, ROWS));
        assert_eq!(paced(&[60_000, 60_000, 50]), (POLLS, ROWS));
        // Nothing was polled in between.
        let mut pace = Pace::default();
        pace.took(100, 0);
        assert_eq!((pace.row, pace.rows), (POLLS, ROWS));
    }
}
