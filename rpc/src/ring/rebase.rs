//! Rings whose positions begin anew, so that a model sees two of them as the one state that they are.

use super::{Reader, Writer};

impl Writer {
    /// Counts positions and messages from the oldest that has not been released. Changes nothing that can be observed.
    pub fn rebase(&mut self) {
        let shift = self.released - self.released % self.cursor.size;
        let held = self.written - self.returned;
        let ends: Vec<u64> = (0..held)
            .map(|n| self.end_of(self.returned + n) - shift)
            .collect();
        self.ends.fill(0);
        self.ends[..ends.len()].copy_from_slice(&ends);
        self.cursor.at -= shift;
        self.released -= shift;
        self.written = held;
        self.returned = 0;
    }
}

impl Reader {
    /// The same for the end that reads, which only needs to know where in the ring it is.
    pub fn rebase(&mut self) {
        self.cursor.at = self.cursor.offset;
    }
}
