//! Who may send when: credits, without I/O.
//!
//! A receiver that has no entry posted makes the sender's queue pair fail (the connections run
//! with `rnr_retry` 0), so a sender may only send what it knows an entry for. Each end keeps one
//! [`Credits`]; the numbers are cumulative, so a message that tells them twice, or late, does no
//! harm, and they travel in every header.
//!
//! ```text
//!   told by the peer: posted by the peer since the start      told to the peer: posted here
//!   |<------------- sent ------------->|<--- available --->|
//!                                       answers | reserve    (not for requests)
//! ```
//!
//! What holds, and is asserted in debug builds:
//!
//! * **I1** A message that consumes a receive entry is sent only while `sent < told`. The last
//!   [`CONTROL_RESERVE`] entries are for control messages; at most that many of them are on their
//!   way unacknowledged, so that control messages alone never use up the entries. Those that
//!   return credits can use all of the reserve, others half: credits must get through, because the
//!   peer may be waiting for just them.
//! * **I2** An answer never waits. Whoever sends requests keeps at most
//!   `own window - CONTROL_RESERVE` of them unanswered and tells, in each, how many entries it has
//!   posted; so the receiver of a request has an entry for its answer at that moment and
//!   *promises* it away. Its own requests leave alone as many entries as the peer has slots. A
//!   request for which there is no entry is a violation, and ends the connection.
//! * **I7** Credits return with any message. When half the window is owed for ordinary messages
//!   and nothing goes the other way, one control message returns them. Entries that control
//!   messages used are returned by the next message of another kind, never by a control message
//!   of their own: two idle ends would otherwise acknowledge each other for ever.
//! * **I9** An entry counts as posted only after it has been posted again. Entries are posted several at a time: some
//!   are *late*. Whoever makes a request has none late that its answers could need, and windows are a few entries larger than the
//!   slots need them, so that nobody waits for a late one. Of a ring's room little is late, and that only while there is other work.
//!
//! Where a direction has a receive [ring](crate::ring), its room is accounted for here as well: a
//! message takes an entry and, in the ring, its length in granules. The same counter returns both,
//! because messages are released in the order they were written: the sender knows how long each
//! was. I1 then asks for room beyond the control messages'; I2 for room for the longest answer to
//! every promised request, a skip at the ring's end included; I7 returns credits as well when half
//! the ring is owed.
//!
//! Room in the send queue is another matter (I3) and is accounted for by the queue itself.

use crate::ring::{CONTROL_SPAN, Reader, Writer};

/// Receive entries that ordinary messages leave to control messages.
pub const CONTROL_RESERVE: u32 = 4;

/// Smallest window: below it, credits that are owed for control messages could hold up a request
/// although nothing else is on its way.
pub const WINDOW_MIN: u32 = 4 * CONTROL_RESERVE;

/// Largest window that can be agreed upon.
pub const WINDOW_MAX: u32 = 4096;

/// Entries of a window that may be posted again late, together with others.
const fn late_share(window: u32) -> u32 {
    match window {
        0..32 => 0,
        32..128 => window / 8,
        _ => 16,
    }
}

/// What a message is to the account.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Class {
    /// Needs an entry beyond the reserve.
    Request,
    /// Uses the entry promised to its request.
    Answer,
    /// Returns credits; may use the whole reserve.
    Credit,
    /// Anything else that is not worth an entry of its own; may use half the reserve.
    Control,
}

impl Class {
    /// How many entries of the reserve messages of this class may have on their way.
    fn share(self) -> usize {
        match self {
            Class::Request | Class::Answer => 0,
            Class::Credit => CONTROL_RESERVE as usize,
            Class::Control => CONTROL_RESERVE as usize / 2,
        }
    }

    /// Whether this is one of the classes that live on the reserve.
    pub fn is_control(self) -> bool {
        self.share() > 0
    }
}

/// How the peer broke the rules.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CreditError {
    /// The peer says that it posted more entries than messages were sent to it, or fewer than
    /// before.
    #[error("peer's credit counter moved by {by}, at most {most} are possible")]
    Counter {
        /// By how much it moved.
        by: u32,
        /// By how much it could.
        most: u32,
    },
    /// More messages arrived than there were entries.
    #[error("more messages than receive entries")]
    Overrun,
    /// A request arrived that leaves no entry, or no room in the ring, for its answer.
    #[error("request without room for its answer")]
    NoReplyRoom,
    /// A message that is longer than agreed upon, or empty, in the ring.
    #[error("a message of {0} bytes in the receive ring")]
    Length(u64),
}

/// What goes with a message that is being posted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sent {
    /// For its header: entries posted here since the start, modulo 2^32.
    pub counter: u32,
    /// Where in the peer's ring it goes, if there is one.
    pub offset: Option<u64>,
}

/// One end's account of a connection.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Credits {
    peer_window: u32,
    peer_slots: u32,
    told_by_peer: u64,
    sent: u64,
    promised: u32,
    control_sent: ControlInFlight,
    /// Requests that may be sent without looking again: so many of the longest have entries and room.
    clear: u32,
    /// The peer's ring.
    writer: Option<Writer>,

    window: u32,
    received: u64,
    posted: u64,
    /// Ordinary messages that have been dealt with, and whose entries have not been posted again.
    late: u32,
    owed: u32,
    /// Our ring.
    reader: Option<Reader>,
    /// Whether counters are fetched as well, and so can overtake those in messages.
    fetches: bool,
}

impl Credits {
    /// The account of an end that has posted `window` entries, with a peer that has posted
    /// `peer_window` and keeps at most `peer_slots` requests of its own unanswered.
    ///
    /// Both are clamped by the handshake to [`WINDOW_MIN`]`..=`[`WINDOW_MAX`].
    pub fn new(window: u32, peer_window: u32, peer_slots: u32) -> Credits {
        debug_assert!((WINDOW_MIN..=WINDOW_MAX).contains(&window));
        debug_assert!((WINDOW_MIN..=WINDOW_MAX).contains(&peer_window));
        Credits {
            peer_window,
            peer_slots,
            told_by_peer: u64::from(peer_window),
            sent: 0,
            promised: 0,
            control_sent: ControlInFlight::default(),
            clear: 0,
            writer: None,
            window,
            received: 0,
            posted: u64::from(window),
            late: 0,
            owed: 0,
            reader: None,
            fetches: false,
        }
    }

    /// The same, with messages of at most `max` bytes going into a ring of `size` bytes at the peer.
    pub fn writing(mut self, size: u64, max: u64) -> Credits {
        self.writer = Some(Writer::new(size, max, self.peer_window));
        self
    }

    /// The same, with messages of at most `max` bytes arriving in a ring of `size` bytes here.
    pub fn reading(mut self, size: u64, max: u64) -> Credits {
        self.reader = Some(Reader::new(size, max));
        self
    }

    /// The same, with a [frame](crate::ring::stamp) in front of each message of at most `max` bytes in the peer's ring.
    pub fn writing_framed(mut self, max: u64) -> Credits {
        self.writer = self.writer.map(|writer| writer.framed(max));
        self
    }

    /// The same for our ring.
    pub fn reading_framed(mut self) -> Credits {
        self.reader = self.reader.map(Reader::framed);
        self
    }

    /// Where in the ring of this end the next message begins, as [`Reader::next`] says; `None` without a ring.
    #[inline]
    pub fn next(&self) -> Option<(u64, bool)> {
        self.reader.as_ref().map(Reader::next)
    }

    /// Most requests that may be unanswered at once between two windows (I2), when only one end
    /// makes requests.
    ///
    /// Where both do, each must be left with a request's worth of credits while less than half a
    /// window is owed to it: at most `window / 2 - 2 * CONTROL_RESERVE` slots on each side.
    pub fn slots(requester_window: u32, responder_window: u32) -> u32 {
        let replies = requester_window.saturating_sub(CONTROL_RESERVE);
        // Twice the reserve: what is kept for control, and what control may be owed.
        let kept = 2 * CONTROL_RESERVE + late_share(responder_window);
        let requests = responder_window.saturating_sub(kept);
        replies.min(requests).max(1)
    }

    /// How many entries may be late here, so that no message ever waits for one, when at most so many ordinary messages
    /// can be on their way to this end at once. With 1, none is. Of a ring's room, [little](Self::must_post) is late at any time.
    ///
    /// More would do no harm but to make the peer wait at times.
    pub fn late_most(&self, on_their_way: u32) -> u32 {
        let entries = self.window.saturating_sub(2 * CONTROL_RESERVE);
        let spare = entries.saturating_sub(on_their_way);
        late_share(self.window).min(spare).max(1)
    }

    /// Whether late entries are to be posted now, of which there may be so many.
    #[inline]
    pub fn must_post(&self, late_most: u32) -> bool {
        self.late >= late_most || self.reader.as_ref().is_some_and(Reader::much_aside)
    }

    /// Entries of the peer that are known to be free.
    #[inline]
    pub fn available(&self) -> u32 {
        // At most the peer's window, by the check in `received`.
        (self.told_by_peer - self.sent) as u32
    }

    /// Whether a message of this class may be sent now, however long it is.
    #[inline]
    pub fn may_send(&self, class: Class) -> bool {
        if class == Class::Request && self.clear > 0 {
            debug_assert!(self.has_entry(class) && self.has_room(class));
            return true;
        }
        self.has_entry(class) && self.has_room(class)
    }

    /// How many requests may be sent, however long they are.
    fn look_ahead(&self) -> u32 {
        self.look_beyond(0, 0)
    }

    /// How many requests may be sent, however long they are, after so many that take so much of a ring together, each in whole granules.
    pub fn look_beyond(&self, count: u32, bytes: u64) -> u32 {
        let kept = self.peer_slots + CONTROL_RESERVE + count;
        let entries = self.available().saturating_sub(kept);
        let Some(writer) = &self.writer else {
            return entries;
        };
        let kept =
            u64::from(self.peer_slots) * writer.max() + u64::from(CONTROL_RESERVE) * CONTROL_SPAN;
        entries.min(writer.count_beside(kept + bytes))
    }

    #[inline]
    fn has_entry(&self, class: Class) -> bool {
        match class {
            Class::Request => self.available() > self.peer_slots + CONTROL_RESERVE,
            Class::Answer => self.promised > 0,
            Class::Credit | Class::Control => {
                let on_their_way = self
                    .control_sent
                    .unacknowledged(self.told_by_peer, self.peer_window);
                self.available() > self.promised && on_their_way < class.share()
            }
        }
    }

    /// Whether the peer's ring has room for the longest message of a class, beside what is kept for
    /// others.
    #[inline]
    fn has_room(&self, class: Class) -> bool {
        let Some(writer) = &self.writer else {
            return true;
        };
        let answers = |n: u32| u64::from(n) * writer.max();
        writer.fits(match class {
            Class::Request => {
                answers(1 + self.peer_slots) + u64::from(CONTROL_RESERVE) * CONTROL_SPAN
            }
            // Its promise has taken care of that.
            Class::Answer => return true,
            Class::Credit | Class::Control => CONTROL_SPAN + answers(self.promised),
        })
    }

    /// Accounts for a message of `len` bytes that is being posted.
    ///
    /// Call it only after [`may_send`](Self::may_send) said yes.
    #[inline]
    pub fn send(&mut self, class: Class, len: usize) -> Sent {
        debug_assert!(self.may_send(class), "I1/I2: {class:?} without credit");
        debug_assert!(self.available() > 0, "I1: {class:?} without an entry");
        debug_assert!(
            !class.is_control() || len as u64 <= CONTROL_SPAN,
            "a control message of {len} bytes"
        );
        if let Some(writer) = &self.writer {
            debug_assert!(
                writer.fits(u64::from(self.promised) * writer.max()),
                "I2: no room in the ring for promised answers"
            );
        }
        match class {
            Class::Request => {}
            Class::Answer => {
                self.promised -= 1;
                self.clear = 0;
            }
            Class::Credit | Class::Control => {
                let seq = self.sent;
                self.control_sent
                    .push(seq, self.told_by_peer, self.peer_window);
                self.clear = 0;
            }
        }
        self.sent += 1;
        self.owed = 0;
        if let Some(reader) = &mut self.reader {
            reader.told();
        }
        let offset = self.writer.as_mut().map(|writer| writer.place(len as u64));
        if class == Class::Request {
            self.clear = match self.clear {
                0 => self.look_ahead(),
                more => more - 1,
            };
        }
        Sent {
            counter: self.posted as u32,
            offset,
        }
    }

    /// Where in the ring of this end the message lies that has just arrived, `len` bytes long as its
    /// completion says.
    ///
    /// # Errors
    /// [`CreditError::Length`] when there can be none; then, or without a ring, nothing has changed.
    #[inline]
    pub fn find(&mut self, len: u32) -> Result<u64, CreditError> {
        let len = u64::from(len);
        self.reader
            .as_mut()
            .and_then(|reader| reader.find(len))
            .ok_or(CreditError::Length(len))
    }

    /// Accounts for a message that has arrived with this counter in its header.
    ///
    /// # Errors
    /// [`CreditError`] when the peer cannot have said that; nothing has changed then.
    #[inline]
    pub fn receive(&mut self, class: Class, counter: u32) -> Result<(), CreditError> {
        if self.received == self.posted {
            return Err(CreditError::Overrun);
        }
        let mut by = counter.wrapping_sub(self.told_by_peer as u32);
        if self.fetches && by.cast_signed() < 0 {
            // Sent before what has been fetched in the meantime.
            by = 0;
        }
        if class == Class::Answer && by == 0 {
            // Nothing comes back with it, as with most of them.
            self.received += 1;
            return Ok(());
        }
        let most = self.sent + u64::from(self.peer_window) - self.told_by_peer;
        if u64::from(by) > most {
            return Err(CreditError::Counter {
                by,
                most: most as u32,
            });
        }
        if class == Class::Request {
            let available = self.available() + by;
            let room = self.writer.as_ref().is_none_or(|writer| {
                writer.fits_after(by, u64::from(self.promised + 1) * writer.max())
            });
            if available <= self.promised || self.promised >= self.peer_slots || !room {
                return Err(CreditError::NoReplyRoom);
            }
            self.promised += 1;
            self.clear = 0;
        }
        if let Some(writer) = &mut self.writer {
            // At most as many as were sent and not released: checked above.
            writer.release(by);
        }
        self.told_by_peer += u64::from(by);
        self.received += 1;
        debug_assert!(self.told_by_peer <= self.sent + u64::from(self.peer_window));
        Ok(())
    }

    /// Accounts for an answer that is left for the peer to fetch and so takes none of its entries: the counter to put on it.
    #[inline]
    pub fn shelve(&mut self) -> u32 {
        debug_assert!(self.promised > 0, "an answer to nothing");
        self.promised -= 1;
        self.clear = 0;
        // The peer sees the counter when it fetches; it will, because its slot is taken until it has.
        self.owed = 0;
        if let Some(reader) = &mut self.reader {
            reader.told();
        }
        self.posted as u32
    }

    /// Accounts for a counter that was fetched, and may be older than what messages have told since.
    ///
    /// # Errors
    /// [`CreditError`] when the peer cannot have said that; nothing has changed then.
    pub fn fetched(&mut self, counter: u32) -> Result<(), CreditError> {
        self.fetches = true;
        let by = counter.wrapping_sub(self.told_by_peer as u32);
        if by.cast_signed() <= 0 {
            return Ok(());
        }
        let most = self.sent + u64::from(self.peer_window) - self.told_by_peer;
        if u64::from(by) > most {
            return Err(CreditError::Counter {
                by,
                most: most as u32,
            });
        }
        if let Some(writer) = &mut self.writer {
            writer.release(by);
        }
        self.told_by_peer += u64::from(by);
        Ok(())
    }

    /// Accounts for an entry that has been posted again after a message of `class` (I9).
    pub fn reposted(&mut self, class: Class) {
        debug_assert!(
            self.posted < self.received + u64::from(self.window),
            "I9: more entries than the window"
        );
        self.posted += 1;
        if !class.is_control() {
            self.owed += 1;
        }
        if let Some(reader) = &mut self.reader {
            reader.copied(!class.is_control());
        }
    }

    /// Accounts for an ordinary message whose entry will be posted again later, together with others.
    #[inline]
    pub fn set_aside(&mut self) {
        self.late += 1;
        if let Some(reader) = &mut self.reader {
            reader.set_aside();
        }
    }

    /// Entries that are to be posted again.
    #[inline]
    pub fn late(&self) -> u32 {
        self.late
    }

    /// Accounts for all of them having been posted again (I9).
    #[inline]
    pub fn reposted_late(&mut self) {
        let late = std::mem::take(&mut self.late);
        self.posted += u64::from(late);
        self.owed += late;
        debug_assert!(
            self.posted <= self.received + u64::from(self.window),
            "I9: more entries than the window"
        );
        if let Some(reader) = &mut self.reader {
            reader.owe_aside();
        }
    }

    /// Whether there are entries, and room in the ring, for so many unanswered requests although some entries are late (I2).
    #[inline]
    pub fn covers(&self, unanswered: u32) -> bool {
        // Without late entries there is as much as was agreed upon.
        self.late == 0 || self.covers_late(unanswered)
    }

    fn covers_late(&self, unanswered: u32) -> bool {
        unanswered + self.late + CONTROL_RESERVE <= self.window
            && self
                .reader
                .as_ref()
                .is_none_or(|reader| reader.has_room_for(unanswered))
    }

    /// Whether a control message should return credits, if one may be sent (I7).
    #[inline]
    pub fn must_return(&self) -> bool {
        self.owed >= self.window / 2 || self.reader.as_ref().is_some_and(Reader::half_owed)
    }

    /// What the next message would tell.
    #[cfg(test)]
    pub fn posted_for_tests(&self) -> u32 {
        self.posted as u32
    }

    /// Answers that are promised and not sent.
    #[cfg(test)]
    pub fn promised(&self) -> u32 {
        self.promised
    }
}

/// Sequence numbers of control messages that the peer has not acknowledged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
struct ControlInFlight {
    seqs: [u64; CONTROL_RESERVE as usize],
    len: u8,
}

impl ControlInFlight {
    /// How many of them the counter does not cover.
    fn unacknowledged(&self, told: u64, window: u32) -> usize {
        // The entry of message `s` is free again once `window + s + 1` have been posted.
        let seqs = &self.seqs[..usize::from(self.len)];
        seqs.iter()
            .filter(|&&seq| told < u64::from(window) + seq + 1)
            .count()
    }

    fn push(&mut self, seq: u64, told: u64, window: u32) {
        let keep = self.unacknowledged(told, window);
        let first = usize::from(self.len) - keep;
        // Ascending, and acknowledged from the front.
        self.seqs.copy_within(first..first + keep, 0);
        self.seqs[keep] = seq;
        self.seqs[keep + 1..].fill(0);
        self.len = keep as u8 + 1;
    }
}

#[cfg(test)]
mod bounds;
#[cfg(test)]
mod model;
#[cfg(test)]
mod tests;
