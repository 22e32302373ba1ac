//! Slots and the ends of their holders.

use super::{Other, Scratch, hear, tell};
use crate::os::directory::{Directory, LookupError, Slot, SlotInfo};
use crate::os::incarnation::Incarnation;
use crate::os::pull::FileId;
use std::path::Path;

fn mine() -> SlotInfo {
    SlotInfo {
        owner: Incarnation::me(),
        segment_fd: 5,
        segment: FileId { dev: 6, ino: 7 },
        layout: 8,
    }
}

fn claim(base: &Path) -> Slot {
    Directory::open_at(base).unwrap().claim(&mine()).unwrap()
}

pub(super) fn hold(words: &[&str]) {
    let slot = claim(Path::new(words[0]));
    tell(slot.index);
    hear();
}

pub(super) fn hold_and_fork(words: &[&str]) {
    let slot = claim(Path::new(words[0]));
    // SAFETY: the child makes one system call at a time and nothing else.
    let child = unsafe { libc::fork() };
    assert_ne!(child, -1);
    if child == 0 {
        // SAFETY: waits for the signal that ends the child, in a minute at the latest.
        unsafe {
            libc::alarm(60);
            loop {
                libc::pause();
            }
        }
    }
    tell(format!("{} {child}", slot.index));
    hear();
}

pub(super) fn fork_and_drop(words: &[&str]) {
    let base = Path::new(words[0]);
    let slot = claim(base);
    // SAFETY: the child drops its copy of the slot, which makes a few system calls, and ends by _exit.
    let child = unsafe { libc::fork() };
    assert_ne!(child, -1);
    if child == 0 {
        drop(slot);
        // SAFETY: ends the child at once.
        unsafe { libc::_exit(0) };
    }
    let mut status = 0;
    // SAFETY: `status` lives across the call.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    assert_eq!(status, 0);
    let found = Directory::open_at(base).unwrap().lookup(slot.index);
    assert_eq!(found.unwrap(), mine());
    tell("still mine");
}

#[test]
fn a_forked_child_does_not_give_its_parents_slot_back() {
    let scratch = Scratch::new();
    let mut other = Other::start(&["fork and drop", scratch.path().to_str().unwrap()]);
    assert_eq!(other.hear(), "still mine");
    other.finish();
}

#[test]
fn a_slot_is_found_while_its_holder_lives_and_removed_after_a_kill() {
    let scratch = Scratch::new();
    let mut other = Other::start(&["hold", scratch.path().to_str().unwrap()]);
    let index: u16 = other.hear().parse().unwrap();
    let directory = Directory::open_at(scratch.path()).unwrap();
    let expect = SlotInfo {
        owner: other.who(),
        ..mine()
    };
    assert_eq!(directory.lookup(index).unwrap(), expect);

    other.kill();
    let file = directory.path().join(format!("slot-{index:04}"));
    assert!(file.exists());
    let error = directory.lookup(index).unwrap_err();
    assert!(matches!(error, LookupError::Nobody { .. }), "{error}");
    let slot = directory.claim(&mine()).unwrap();
    assert!(!file.exists() || slot.index == index);
}

#[test]
fn a_slot_goes_when_its_holder_ends_by_itself() {
    let scratch = Scratch::new();
    let mut other = Other::start(&["hold", scratch.path().to_str().unwrap()]);
    let index: u16 = other.hear().parse().unwrap();
    other.finish();
    let directory = Directory::open_at(scratch.path()).unwrap();
    assert!(!directory.path().join(format!("slot-{index:04}")).exists());
}

#[test]
fn a_forked_child_does_not_pass_for_its_dead_parent() {
    let scratch = Scratch::new();
    let mut other = Other::start(&["hold and fork", scratch.path().to_str().unwrap()]);
    let answer = other.hear();
    let (index, grandchild) = answer.split_once(' ').unwrap();
    let index: u16 = index.parse().unwrap();
    let grandchild: libc::pid_t = grandchild.parse().unwrap();
    let directory = Directory::open_at(scratch.path()).unwrap();
    let before = directory.lookup(index);
    other.kill();
    let after = directory.lookup(index);
    // SAFETY: ends the process whose number its parent told us; it cannot have ended and been replaced, since
    // it does nothing but wait for this.
    unsafe { libc::kill(grandchild, libc::SIGKILL) };
    assert!(before.is_ok(), "{before:?}");
    let error = after.unwrap_err();
    assert!(matches!(error, LookupError::Nobody { .. }), "{error}");
}

const TURNS: u32 = 150;

/// Claims and gives back, proving with a file of its own that nobody else holds the slot.
pub(super) fn churn(words: &[&str]) {
    let base = Path::new(words[0]);
    tell("ready");
    hear();
    for turn in 0..TURNS {
        let directory = Directory::open_at(base).unwrap();
        // All begin at the same few, to be in each other's way.
        let first = (turn % 2) as u16;
        let slot = directory.claim_from(&mine(), first).unwrap();
        let proof = base.join(format!("held-{}", slot.index));
        std::fs::File::create_new(&proof).expect("two hold one slot");
        let found = directory.lookup(slot.index);
        assert_eq!(found.expect("my own slot"), mine());
        std::fs::remove_file(&proof).unwrap();
        drop(slot);
    }
    tell("done");
}

#[test]
fn processes_that_race_for_slots_never_share_one() {
    let scratch = Scratch::new();
    let base = scratch.path().to_str().unwrap();
    let mut others: Vec<Other> = (0..4).map(|_| Other::start(&["churn", base])).collect();
    for other in &mut others {
        assert_eq!(other.hear(), "ready");
    }
    for other in &mut others {
        other.tell("go");
    }
    for mut other in others {
        assert_eq!(other.hear(), "done");
        other.finish();
    }
}
