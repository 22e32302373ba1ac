//! The owner's side of a mailbox.

use super::{CLAIMED, FILLED, FREE, Label, Mailbox, STATE_BITS, free, pid_in, state_at};
use crate::os::errno;
use crate::os::incarnation::{Incarnation, PidFd};
use core::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// How long the owner waits for a process that is at work on a place, once it is that place's turn.
const PATIENCE: Duration = Duration::from_secs(1);
/// How often it looks whether that process is still at work.
pub(super) const GLANCE: Duration = Duration::from_millis(1);

/// What a process that has claimed a place is doing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Claimer {
    AtWork,
    Stopped,
    Gone,
}

fn look_at(pid: u32) -> Claimer {
    if pid == std::process::id() {
        return Claimer::AtWork;
    }
    let Ok(who) = Incarnation::of(pid) else {
        return Claimer::Gone;
    };
    match PidFd::open(who) {
        Ok(pidfd) if !pidfd.is_dead() => {}
        Err(error) if errno(&error) != Some(libc::ESRCH) => {}
        _ => return Claimer::Gone,
    }
    if who.is_stopped() {
        Claimer::Stopped
    } else {
        Claimer::AtWork
    }
}

/// What the owner finds at its place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Next {
    /// Nobody has sent anything.
    Nothing,
    /// Somebody is at work on it.
    Blocked,
    /// There will be no message here: [`Reader::pass`] it.
    Lost,
    /// A message, its bytes at [`Mailbox::payload`].
    Message { place: u64, label: Label },
    /// The file makes no sense any more.
    Rubbish,
}

/// A slot whose claimer was not waited for.
struct Left {
    slot: usize,
    /// The place it can be used for again, once its claimer is done.
    again: Option<u64>,
}

/// The owner's side.
pub(crate) struct Reader {
    pub mailbox: Mailbox,
    place: u64,
    left: Vec<Left>,
    /// Since when it waits for a claimer, and when it last looked.
    since: Option<(Instant, Instant)>,
    looked: Option<Instant>,
}

impl Reader {
    pub fn new(mailbox: Mailbox) -> Reader {
        Reader {
            mailbox,
            place: 0,
            left: Vec::new(),
            since: None,
            looked: None,
        }
    }

    /// The next place.
    pub fn place(&self) -> u64 {
        self.place
    }

    /// Whether slots are left to others.
    pub fn has_left(&self) -> bool {
        !self.left.is_empty()
    }

    /// Whether a look is worth while.
    pub fn waiting(&self) -> bool {
        let now = self.mailbox.word(self.place).load(Ordering::Acquire);
        now != free(self.place)
    }

    /// How many places from the next one on are filled.
    pub fn count(&self) -> usize {
        let places = self.place..self.place + self.mailbox.slots as u64;
        let filled = |place: &u64| {
            let word = self.mailbox.word(*place).load(Ordering::Acquire);
            state_at(word, *place) == Some(FILLED)
        };
        places.take_while(filled).count()
    }

    pub fn next(&mut self) -> Next {
        if !self.left.is_empty() && self.is_left() {
            return Next::Lost;
        }
        let place = self.place;
        let now = self.mailbox.word(place).load(Ordering::Acquire);
        match state_at(now, place) {
            Some(FREE) => Next::Nothing,
            Some(FILLED) => match self.mailbox.label(place) {
                label if label.void => Next::Lost,
                label => Next::Message { place, label },
            },
            Some(CLAIMED) => self.blocked(pid_in(now)),
            _ => Next::Rubbish,
        }
    }

    /// Done with the place; its slot is free for the next one.
    pub fn pass(&mut self) {
        let slot = self.mailbox.index(self.place);
        if !self.left.iter().any(|left| left.slot == slot) {
            let again = self.place + self.mailbox.slots as u64;
            let word = self.mailbox.word(self.place);
            word.store(free(again), Ordering::Release);
        }
        self.place += 1;
        self.since = None;
    }

    /// Somebody has claimed the place and not filled it.
    #[cold]
    fn blocked(&mut self, pid: u32) -> Next {
        let now = Instant::now();
        let (begin, looked) = *self.since.get_or_insert((now, now));
        if begin != now && now - looked < GLANCE {
            return Next::Blocked;
        }
        self.since = Some((begin, now));
        match look_at(pid) {
            // What it wrote last it wrote before it ended.
            Claimer::Gone => match self.mailbox.word(self.place).load(Ordering::Acquire) {
                word if state_at(word, self.place) == Some(FILLED) => self.next(),
                _ => Next::Lost,
            },
            Claimer::AtWork if now - begin < PATIENCE => Next::Blocked,
            Claimer::Stopped | Claimer::AtWork => {
                let slot = self.mailbox.index(self.place);
                self.left.push(Left { slot, again: None });
                Next::Lost
            }
        }
    }

    /// Whether the slot of this place is still left to an earlier claimer. Looks after those slots.
    #[cold]
    fn is_left(&mut self) -> bool {
        let now = Instant::now();
        let glance = self.looked.is_none_or(|looked| now - looked >= GLANCE);
        if glance {
            self.looked = Some(now);
        }
        let slots = self.mailbox.slots as u64;
        for left in self.left.iter_mut().filter(|left| left.again.is_none()) {
            let word = self.mailbox.word(left.slot as u64);
            let value = word.load(Ordering::Acquire);
            let done = value & ((1 << STATE_BITS) - 1) != CLAIMED;
            if done || glance && look_at(pid_in(value)) == Claimer::Gone {
                // Not for a place of this lap: senders may have gone by it.
                let ahead = (left.slot as u64).wrapping_sub(self.place) & (slots - 1);
                let again = self.place + ahead + slots;
                word.store(free(again), Ordering::Release);
                left.again = Some(again);
            }
        }
        let place = self.place;
        self.left.retain(|left| left.again != Some(place));
        let slot = self.mailbox.index(place);
        self.left.iter().any(|left| left.slot == slot)
    }
}
