//! Counters without their past: two states that differ only in how much went before are one.

use super::{Life, State};
use crate::credit::{ControlInFlight, Credits};

/// Counts anew in both directions. Changes nothing that either end could observe.
pub fn both(state: &mut State) {
    for sender in [0, 1] {
        // As much as the sender knows to have been dealt with.
        let credits = &mut state.ends[sender].credits;
        let by = credits.told_by_peer - u64::from(credits.peer_window);
        credits.rebase_sent(by);
        let (told, fetches) = (credits.told_by_peer as u32, credits.fetches);
        // What has been overtaken says nothing, however long ago.
        let rebased = |counter: u32, overtaken: bool| {
            let counter = counter.wrapping_sub(by as u32);
            let old = counter.wrapping_sub(told).cast_signed() < 0;
            if old && overtaken { told } else { counter }
        };
        for message in &mut state.ends[sender].inbox {
            message.counter = rebased(message.counter, fetches);
        }
        for counter in &mut state.ends[sender].shelf {
            *counter = rebased(*counter, true);
        }
        let receiver = &mut state.ends[1 - sender];
        if receiver.life != Life::Dead {
            receiver.credits.received -= by;
            receiver.credits.posted -= by;
        }
        if let Some(reader) = &mut receiver.credits.reader {
            reader.rebase();
        }
    }
}

impl Credits {
    fn rebase_sent(&mut self, by: u64) {
        self.told_by_peer -= by;
        self.sent -= by;
        let mut kept = ControlInFlight::default();
        let seqs = &self.control_sent.seqs[..usize::from(self.control_sent.len)];
        // The others are acknowledged.
        for &seq in seqs.iter().filter(|&&seq| seq >= by) {
            kept.seqs[usize::from(kept.len)] = seq - by;
            kept.len += 1;
        }
        self.control_sent = kept;
        if let Some(writer) = &mut self.writer {
            writer.rebase();
        }
    }
}
