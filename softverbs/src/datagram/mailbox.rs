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

mod reader;
#[cfg(test)]
mod tests;

pub(crate) use reader::{Next, Reader};

use super::MTU;
use crate::layout::Line;
use crate::os::memfd::ControlFile;
use core::mem::size_of;
use core::sync::atomic::{AtomicU64, Ordering};
use std::io;
use std::os::fd::OwnedFd;

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
