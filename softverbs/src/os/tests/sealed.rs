//! What a peer can do to a memory file, the kernel being the judge.

use super::{Other, hear, tell};
use crate::memory::{Kind, MemoryFile, lookup, map_peer};
use crate::os::incarnation::Incarnation;
use crate::os::pull::{Access, FileId, pull};
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;

/// Pid, start, descriptor, device, inode and kind, as words of a command line.
fn address(file: &MemoryFile) -> Vec<String> {
    let me = Incarnation::me();
    let backing = lookup(file.as_ptr().addr(), file.len()).unwrap();
    vec![
        me.pid.to_string(),
        me.start.to_string(),
        backing.fd.as_raw_fd().to_string(),
        backing.id.dev.to_string(),
        backing.id.ino.to_string(),
        file.kind().code().to_string(),
        file.len().to_string(),
    ]
}

fn open(words: &[&str], access: Access) -> (io::Result<File>, Kind, u64) {
    let number = |at: usize| words[at].parse::<u64>().unwrap();
    let owner = Incarnation {
        pid: number(0) as u32,
        start: number(1),
    };
    let id = FileId {
        dev: number(3),
        ino: number(4),
    };
    let kind = Kind::from_code(number(5) as u8).unwrap();
    let file = pull(owner, number(2) as i32, id, access).map(File::from);
    (file, kind, number(6))
}

fn start(part: &str, file: &MemoryFile) -> Other {
    let address = address(file);
    let words: Vec<&str> = std::iter::once(part)
        .chain(address.iter().map(String::as_str))
        .collect();
    Other::start(&words)
}

/// The error number of a call that answers -1, or "done".
fn outcome(answer: i64) -> String {
    match answer {
        -1 => match io::Error::last_os_error().raw_os_error() {
            Some(libc::EPERM) => "EPERM".to_owned(),
            Some(libc::EACCES) => "EACCES".to_owned(),
            other => format!("{other:?}"),
        },
        _ => "done".to_owned(),
    }
}

pub(super) fn try_everything(words: &[&str]) {
    let (file, _, len) = open(words, Access::ReadWrite);
    let file = file.unwrap();
    let (fd, len) = (file.as_raw_fd(), len as usize);
    let map = |protection| {
        let (anywhere, flags) = (std::ptr::null_mut(), libc::MAP_SHARED);
        // SAFETY: a new mapping at an address of the kernel's choice.
        unsafe { libc::mmap(anywhere, len, protection, flags, fd, 0) }
    };
    let writable = libc::PROT_READ | libc::PROT_WRITE;
    // MAP_FAILED is -1.
    let mapped = outcome(map(writable) as i64);
    let readable = map(libc::PROT_READ);
    assert_ne!(readable, libc::MAP_FAILED);
    // SAFETY: the range is the mapping just made, of which there is no reference.
    let protected = outcome(i64::from(unsafe {
        libc::mprotect(readable, len, writable)
    }));
    let resize = |len: usize| {
        // SAFETY: takes two integers.
        outcome(i64::from(unsafe { libc::ftruncate(fd, len as i64) }))
    };
    let (shrunk, grown) = (resize(0), resize(2 * len));
    let punch = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    // SAFETY: takes four integers.
    let punched = outcome(i64::from(unsafe {
        libc::fallocate(fd, punch, 0, len as i64)
    }));
    let written = outcome(file.write_at(b"x", 0).map_or(-1, |_| 0));
    // SAFETY: takes two integers.
    let unsealed = outcome(i64::from(unsafe {
        libc::fcntl(fd, libc::F_ADD_SEALS, libc::F_SEAL_WRITE)
    }));
    tell(format!(
        "map {mapped} mprotect {protected} shrink {shrunk} grow {grown} punch {punched} write {written} \
         seal {unsealed}"
    ));
}

#[test]
fn a_peer_can_resize_no_kind_and_change_only_those_it_may() {
    for kind in [Kind::Private, Kind::Readable, Kind::Receive, Kind::Exposed] {
        let file = MemoryFile::create(8192, kind).unwrap();
        let mut other = start("seals", &file);
        let expect = match kind {
            Kind::Private | Kind::Readable => {
                "map EPERM mprotect EACCES shrink EPERM grow EPERM punch EPERM write EPERM seal EPERM"
            }
            Kind::Receive | Kind::Exposed => {
                "map done mprotect done shrink EPERM grow EPERM punch done write done seal EPERM"
            }
        };
        assert_eq!(other.hear(), expect, "{kind:?}");
        other.finish();
    }
}

pub(super) fn share(words: &[&str]) {
    let access = match Kind::from_code(words[5].parse().unwrap()).unwrap() {
        Kind::Private | Kind::Readable => Access::ReadOnly,
        Kind::Receive | Kind::Exposed => Access::ReadWrite,
    };
    let (file, kind, len) = open(words, access);
    let mapping = match map_peer(file.unwrap().into(), len, kind) {
        Ok(mapping) => mapping,
        Err(error) => return tell(format!("refused {:?}", error.kind())),
    };
    // SAFETY: the first byte of a mapping of at least a page; the owner is waiting for our answer.
    let seen = unsafe { mapping.as_ptr().read_volatile() };
    if mapping.writable() {
        // SAFETY: as above, and the mapping is writable.
        unsafe { mapping.as_ptr().write_volatile(seen + 1) };
    }
    tell(format!(
        "saw {seen} of {} writable {}",
        mapping.len(),
        mapping.writable()
    ));
    hear();
}

#[test]
fn peers_share_what_the_kind_lets_them() {
    for (kind, expect, afterwards) in [
        (Kind::Private, "refused PermissionDenied", 40),
        (Kind::Readable, "saw 40 of 8192 writable false", 40),
        (Kind::Receive, "saw 40 of 8192 writable true", 41),
        (Kind::Exposed, "saw 40 of 8192 writable true", 41),
    ] {
        let file = MemoryFile::create(5000, kind).unwrap();
        // SAFETY: the first byte of a mapping of at least a page; nobody else uses it yet.
        unsafe { file.as_ptr().write_volatile(40) };
        let mut other = start("share", &file);
        assert_eq!(other.hear(), expect, "{kind:?}");
        // SAFETY: as above; the other process has answered and touches it no more.
        let found = unsafe { file.as_ptr().read_volatile() };
        assert_eq!(found, afterwards, "{kind:?}");
        other.finish();
    }
}

pub(super) fn fork_with_memory() {
    let file = MemoryFile::create(4096, Kind::Exposed).unwrap();
    let (place, len) = (file.as_ptr(), file.len());
    // SAFETY: the child only makes system calls, looks into the list of files (whose lock no other thread of this
    // process ever takes) and ends by _exit.
    let child = unsafe { libc::fork() };
    assert_ne!(child, -1);
    if child == 0 {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
        // SAFETY: MAP_FIXED_NOREPLACE takes the place only if nothing is there.
        let mine = unsafe { libc::mmap(place.cast(), len, protection, flags, -1, 0) };
        let was_free = mine.cast() == place;
        let unknown = lookup(place.addr(), len).is_none();
        // Must not take away what the child has put there.
        drop(file);
        // SAFETY: msync reads no memory; it fails if the range is not mapped.
        let still_there = unsafe { libc::msync(mine, len, libc::MS_ASYNC) } == 0;
        let code = i32::from(!was_free) | i32::from(!unknown) << 1 | i32::from(!still_there) << 2;
        // SAFETY: ends the child at once.
        unsafe { libc::_exit(code) };
    }
    let mut status = 0;
    // SAFETY: `status` lives across the call.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    tell(status);
    assert!(lookup(place.addr(), len).is_some());
}

#[test]
fn a_forked_child_neither_has_the_memory_nor_takes_anything_away() {
    let mut other = Other::start(&["fork"]);
    assert_eq!(other.hear(), "0");
    other.finish();
}
