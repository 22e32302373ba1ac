//! A mailbox: the ring through which any process sends datagrams to one queue pair.
//!
//! Places are numbered, place `p` is slot `p` modulo the ring's length. Each slot has a word that says for which place it is free,
//! claimed (by which process) or filled. A sender claims the first free place by compare-and-swap, writes the message, and says
//! that it is filled; the owner takes places in order and frees each slot for its next place. A sender that dies or stops in between
//! leaves a claimed place behind, which the owner passes over: at once if the process is gone or stopped, else after a while. As a
//! stopped one may go on and write, its slot is used again only when it has filled it after all, or is gone.
//!
//! Invariants: a slot is written only by who claimed it, between claim and fill; the owner frees a slot only if it is filled or its
//! claimer is gone; places are claimed in order. Nobody trusts the file: the owner copies a slot's words once and checks them,
//! senders mask what they read. A peer that scribbles here loses or forges datagrams to this queue pair, and nothing else.

use super::MTU;
use crate::layout::Line;
use crate::os::incarnation::{Incarnation, PidFd};
use crate::os::memfd::ControlFile;
use core::mem::size_of;
use core::sync::atomic::{AtomicU64, Ordering};
use std::io;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

/// How long the owner waits for a process that is at work on a place, once it is that place's turn.
const PATIENCE: Duration = Duration::from_secs(1);
/// How often it looks whether that process is still at work.
const GLANCE: Duration = Duration::from_millis(1);

const STATE_BITS: u32 = 2;
const PID_BITS: u32 = 22;
const PLACE_SHIFT: u32 = STATE_BITS + PID_BITS;
/// Places are compared by this many bits: a million datagrams a second for twelve days, and then from the beginning.
const PLACE_BITS: u32 = 64 - PLACE_SHIFT;
const PLACES: u64 = (1 << PLACE_BITS) - 1;

const FREE: u64 = 1;
const CLAIMED: u64 = 2;
const FILLED: u64 = 3;

fn word(place: u64, pid: u32, state: u64) -> u64 {
    place << PLACE_SHIFT | u64::from(pid) << STATE_BITS & ((1 << PLACE_SHIFT) - 1) | state
}

fn free(place: u64) -> u64 {
    word(place, 0, FREE)
}

/// A slot's word. It is stored so that zero, as in a new file, says "free for the first place that this slot has": so a mailbox of many
/// places is made without touching them.
struct Word<'a> {
    stored: &'a AtomicU64,
    first: u64,
}

impl Word<'_> {
    fn load(&self, order: Ordering) -> u64 {
        self.stored.load(order) ^ free(self.first)
    }

    fn store(&self, value: u64, order: Ordering) {
        self.stored.store(value ^ free(self.first), order);
    }

    /// Whether the word was `old`, and is `new` now.
    fn swap(&self, old: u64, new: u64) -> bool {
        let (old, new) = (old ^ free(self.first), new ^ free(self.first));
        self.stored
            .compare_exchange(old, new, Ordering::AcqRel, Ordering::Relaxed)
            .is_ok()
    }
}

/// Whether a word is of this place, and in which state.
fn state_at(word: u64, place: u64) -> Option<u64> {
    (word >> PLACE_SHIFT == place & PLACES).then_some(word & ((1 << STATE_BITS) - 1))
}

fn pid_in(word: u64) -> u32 {
    (word >> STATE_BITS) as u32 & ((1 << PID_BITS) - 1)
}

/// What a sender says of its datagram.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Label {
    /// The sender's queue pair.
    pub from: u32,
    /// Bytes of the message.
    pub len: u32,
    pub imm: Option<u32>,
    /// The way it went: see [`super::address`].
    pub address: u64,
    /// It was given up: nothing is here.
    pub void: bool,
}

const WITH_IMM: u64 = 1;
const VOID: u64 = 2;

#[repr(C, align(64))]
struct Slot {
    word: AtomicU64,
    /// Length, immediate data, address, sender, flags.
    len_imm: AtomicU64,
    address: AtomicU64,
    from: AtomicU64,
}

#[repr(C)]
struct Head {
    /// Before this place none is free: where senders begin to look. If it is wrong, finding takes longer, or finds nothing.
    hint: Line<AtomicU64>,
}

/// The file, mapped.
pub(crate) struct Mailbox {
    file: ControlFile,
    slots: usize,
}

impl Mailbox {
    fn payload_off(slots: usize) -> usize {
        (size_of::<Head>() + slots * size_of::<Slot>()).next_multiple_of(64)
    }

    fn bytes(slots: usize) -> usize {
        Self::payload_off(slots) + slots * MTU
    }

    /// An empty one of `1 << order` places. The file is sparse: what is never used takes no memory.
    pub fn create(order: u32) -> io::Result<Mailbox> {
        let slots = 1 << order;
        let file = ControlFile::create(Self::bytes(slots), true)?;
        Ok(Mailbox { file, slots })
    }

    /// A peer's.
    pub fn attach(fd: OwnedFd, order: u32) -> io::Result<Mailbox> {
        if order > 16 {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let slots = 1 << order;
        let file = ControlFile::attach(fd, Self::bytes(slots), true)?;
        Ok(Mailbox { file, slots })
    }

    pub fn file(&self) -> &ControlFile {
        &self.file
    }

    fn head(&self) -> &Head {
        // SAFETY: the file is mapped as long as `self` lives, page-aligned and longer than `Head`; atomics only.
        unsafe { &*self.file.as_ptr().cast() }
    }

    fn index(&self, place: u64) -> usize {
        place as usize & (self.slots - 1)
    }

    fn slot(&self, place: u64) -> &Slot {
        // SAFETY: as above; slots follow the head, and the index is below their number.
        unsafe {
            let first = self.file.as_ptr().add(size_of::<Head>()).cast::<Slot>();
            &*first.add(self.index(place))
        }
    }

    fn word(&self, place: u64) -> Word<'_> {
        Word {
            stored: &self.slot(place).word,
            first: self.index(place) as u64,
        }
    }

    /// How many places there are.
    pub fn len(&self) -> usize {
        self.slots
    }

    /// Where the message of a place lies: [`MTU`] bytes.
    pub fn payload(&self, place: u64) -> *mut u8 {
        // SAFETY: the file has room for that of every slot.
        unsafe {
            self.file
                .as_ptr()
                .add(Self::payload_off(self.slots) + self.index(place) * MTU)
        }
    }

    /// The first place that may be free, for an owner who says that it is at `head`.
    pub fn first(&self, head: u64) -> u64 {
        let hint = self.head().hint.0.load(Ordering::Relaxed);
        hint.clamp(head, head.saturating_add(self.slots as u64))
    }

    /// Claims the first free place for process `pid`, if it may be had: `may` is told the place, and how many before it, of those the
    /// owner is still to come to, will be passed over. `left`: the owner says that there are such.
    pub fn claim(
        &self,
        head: u64,
        pid: u32,
        left: bool,
        may: impl Fn(u64, u64) -> bool,
    ) -> Option<u64> {
        let mut over = 0;
        let end = head.saturating_add(self.slots as u64);
        let from = if left { head } else { self.first(head) };
        for place in from..end {
            let word_of = self.word(place);
            // Loaded first: the swap takes the line away from whoever has it.
            let now = word_of.load(Ordering::Relaxed);
            if now != free(place) {
                over += u64::from(state_at(now, place).is_none());
                continue;
            }
            if !may(place, over) {
                return None;
            }
            let claimed = word(place, pid, CLAIMED);
            if word_of.swap(now, claimed) {
                self.head().hint.0.store(place + 1, Ordering::Relaxed);
                return Some(place);
            }
        }
        None
    }

    /// By who claimed it: the message is there.
    pub fn fill(&self, place: u64, pid: u32, label: &Label) {
        let slot = self.slot(place);
        let flags =
            if label.imm.is_some() { WITH_IMM } else { 0 } | if label.void { VOID } else { 0 };
        let imm = u64::from(label.imm.unwrap_or(0));
        slot.len_imm
            .store(imm << 32 | u64::from(label.len), Ordering::Relaxed);
        slot.address.store(label.address, Ordering::Relaxed);
        slot.from
            .store(flags << 32 | u64::from(label.from), Ordering::Relaxed);
        self.word(place)
            .store(word(place, pid, FILLED), Ordering::Release);
    }

    /// What is said of a filled place, read once.
    fn label(&self, place: u64) -> Label {
        let slot = self.slot(place);
        let len_imm = slot.len_imm.load(Ordering::Relaxed);
        let from = slot.from.load(Ordering::Relaxed);
        Label {
            from: from as u32,
            len: len_imm as u32,
            imm: (from >> 32 & WITH_IMM != 0).then_some((len_imm >> 32) as u32),
            address: slot.address.load(Ordering::Relaxed),
            void: from >> 32 & VOID != 0,
        }
    }
}

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
        Err(error) if error.raw_os_error() != Some(libc::ESRCH) => {}
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

#[cfg(test)]
mod tests {
    use super::*;

    const ME: u32 = 77;

    fn label(len: u32) -> Label {
        Label {
            from: 0xabcdef,
            len,
            imm: len.is_multiple_of(2).then_some(!len),
            address: u64::from(len) << 7,
            void: false,
        }
    }

    fn reader(order: u32) -> Reader {
        Reader::new(Mailbox::create(order).unwrap())
    }

    fn claim(mailbox: &Mailbox, head: u64, pid: u32) -> Option<u64> {
        mailbox.claim(head, pid, false, |_, _| true)
    }

    fn take(reader: &mut Reader) -> Option<Label> {
        match reader.next() {
            Next::Message { label, .. } => {
                reader.pass();
                Some(label)
            }
            Next::Nothing => None,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn places_are_taken_in_order_and_used_again() {
        let mut reader = reader(2);
        for round in 0..10u32 {
            for i in 0..4 {
                let place = claim(&reader.mailbox, reader.place(), ME).unwrap();
                reader.mailbox.fill(place, ME, &label(round * 4 + i));
            }
            assert_eq!(claim(&reader.mailbox, reader.place(), ME), None, "full");
            for i in 0..4 {
                assert_eq!(take(&mut reader), Some(label(round * 4 + i)));
            }
            assert_eq!(take(&mut reader), None);
        }
        let limit = reader.place() + 1;
        let one = || {
            let before = |place, _| place < limit;
            reader.mailbox.claim(reader.place(), ME, false, before)
        };
        assert!(one().is_some() && one().is_none(), "no receive");
    }

    #[test]
    fn threads_send_to_one() {
        const COUNT: u32 = 20_000;
        let mut reader = reader(4);
        let head = AtomicU64::new(0);
        let mailbox =
            Mailbox::attach(reader.mailbox.file().fd().try_clone_to_owned().unwrap(), 4).unwrap();
        std::thread::scope(|s| {
            for from in 0..3 {
                let (mailbox, head) = (&mailbox, &head);
                s.spawn(move || {
                    for len in 0..COUNT {
                        let place = loop {
                            let at = head.load(Ordering::Acquire);
                            match claim(mailbox, at, std::process::id()) {
                                Some(place) => break place,
                                None => std::thread::yield_now(),
                            }
                        };
                        let label = Label { from, ..label(len) };
                        mailbox.fill(place, std::process::id(), &label);
                    }
                });
            }
            let mut next = [0; 3];
            while next != [COUNT; 3] {
                match reader.next() {
                    Next::Message { label: got, .. } => {
                        let expect = &mut next[got.from as usize];
                        assert_eq!(
                            got,
                            Label {
                                from: got.from,
                                ..label(*expect)
                            }
                        );
                        *expect += 1;
                        reader.pass();
                        head.store(reader.place(), Ordering::Release);
                    }
                    Next::Nothing | Next::Blocked => std::thread::yield_now(),
                    other => panic!("{other:?}"),
                }
            }
        });
    }

    /// One that stops with a place is passed over; its slot is left alone until it is done.
    #[test]
    fn a_slot_is_left_to_who_has_it() {
        let mut child = std::process::Command::new("sleep")
            .arg("1000")
            .spawn()
            .unwrap();
        let pid = child.id();
        // SAFETY: a signal to a child of ours.
        let signal = |signal| unsafe { libc::kill(pid as i32, signal) };
        for end in [false, true] {
            let mut reader = reader(2);
            let late = claim(&reader.mailbox, 0, pid).unwrap();
            let place = claim(&reader.mailbox, 0, ME).unwrap();
            reader.mailbox.fill(place, ME, &label(1));
            assert_eq!(reader.next(), Next::Blocked);
            assert_eq!(signal(libc::SIGSTOP), 0);
            while reader.next() == Next::Blocked {
                std::thread::yield_now();
            }
            assert_eq!(reader.next(), Next::Lost);
            reader.pass();
            assert_eq!(take(&mut reader), Some(label(1)));
            // Three of four slots are in use, lap after lap.
            let lap = |reader: &mut Reader| {
                let mut places = Vec::new();
                while let Some(place) = claim(&reader.mailbox, reader.place(), ME) {
                    reader.mailbox.fill(place, ME, &label(2));
                    places.push(place);
                }
                let mut got = 0;
                while got < places.len() {
                    match reader.next() {
                        Next::Lost => reader.pass(),
                        Next::Message { .. } => {
                            got += 1;
                            reader.pass();
                        }
                        other => panic!("{other:?}"),
                    }
                }
                places
            };
            for _ in 0..3 {
                let places = lap(&mut reader);
                assert!(
                    places.iter().all(|place| (place ^ late) & 3 != 0),
                    "{places:?}"
                );
            }
            if end {
                child.kill().unwrap();
                child.wait().unwrap();
                std::thread::sleep(GLANCE);
            } else {
                assert_eq!(signal(libc::SIGCONT), 0);
                reader.mailbox.fill(late, pid, &label(3));
            }
            let places: Vec<u64> = (0..3).flat_map(|_| lap(&mut reader)).collect();
            assert!(
                places.iter().any(|place| (place ^ late) & 3 == 0),
                "{places:?}"
            );
        }
        child.wait().unwrap();
    }

    #[test]
    fn one_that_is_gone_is_passed_over_at_once() {
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let pid = child.id();
        child.wait().unwrap();
        let mut reader = reader(1);
        for _ in 0..5 {
            claim(&reader.mailbox, reader.place(), pid).unwrap();
            assert_eq!(reader.next(), Next::Lost);
            reader.pass();
        }
    }

    proptest::proptest! {
        /// Whatever a peer writes, the owner goes on or says that it makes no sense, and senders stay inside.
        #[test]
        fn rubbish_is_survived(words: [u64; 4], hint: u64, head: u64, limit: u64) {
            let mut reader = reader(2);
            reader.mailbox.head().hint.0.store(hint, Ordering::Relaxed);
            for (place, word) in words.into_iter().enumerate() {
                // Of no process: looking for one takes long.
                let word = word & !(((1 << PID_BITS) - 1) << STATE_BITS);
                reader.mailbox.slot(place as u64).word.store(word, Ordering::Relaxed);
            }
            if let Some(place) = reader.mailbox.claim(head, ME, limit.is_multiple_of(2), |place, _| place < limit) {
                proptest::prop_assert!(place < limit);
            }
            for _ in 0..8 {
                match reader.next() {
                    Next::Message { .. } | Next::Lost => reader.pass(),
                    _ => break,
                }
            }
        }
    }
}
