//! What stands in the way of another process's memory, with the kernel really refusing.

use super::{Other, hear, tell};
use crate::os::incarnation::Incarnation;
use crate::os::obstacle::Obstacle;
use crate::os::procvm::{ProbeError, permit_peers, probe};
use crate::os::pull::{Access, FileId, pull};
use std::io;
use std::os::fd::AsRawFd;

/// Becomes a user without rights if it is root now, so that the kernel has something to refuse.
fn drop_rights(dumpable: bool) {
    const NOBODY: u32 = 65534;
    // SAFETY: these calls take integers only.
    unsafe {
        if libc::geteuid() == 0 {
            assert_eq!(libc::setresgid(NOBODY, NOBODY, NOBODY), 0);
            assert_eq!(libc::setresuid(NOBODY, NOBODY, NOBODY), 0);
        }
        // A change of user has switched it off.
        let dumpable = libc::c_ulong::from(dumpable);
        assert_eq!(libc::prctl(libc::PR_SET_DUMPABLE, dumpable), 0);
    }
}

pub(super) fn sleep_unprivileged(words: &[&str]) {
    let byte = Box::new(7u8);
    permit_peers();
    drop_rights(words[0] == "dumpable");
    let (file, _writer) = std::io::pipe().unwrap();
    let id = FileId::of(&file).unwrap();
    let fd = file.as_raw_fd();
    let addr = &raw const *byte as u64;
    tell(format!("{addr} {fd} {} {}", id.dev, id.ino));
    hear();
}

pub(super) fn probe_unprivileged(words: &[&str]) {
    let number = |at: usize| words[at].parse::<u64>().unwrap();
    let (pid, addr) = (number(0) as u32, number(1));
    let owner = Incarnation::of(pid).unwrap();
    drop_rights(true);
    tell(match probe(pid, addr) {
        Ok(()) => "allowed".to_owned(),
        Err(ProbeError::Denied { obstacle, .. }) => match obstacle {
            Obstacle::OtherUser { theirs, .. } => format!("other user {theirs}"),
            other => format!("{other:?}"),
        },
        Err(other) => format!("{other:?}"),
    });
    if let Some(fd) = words.get(2) {
        let id = FileId {
            dev: number(3),
            ino: number(4),
        };
        let pulled = pull(owner, fd.parse().unwrap(), id, Access::ReadOnly);
        tell(match pulled {
            Ok(_) => "pulled".to_owned(),
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => error.to_string(),
            Err(error) => format!("unexpected: {error}"),
        });
    }
}

fn probe_of_a_sleeper(dumpable: &str) -> (String, String) {
    let mut sleeper = Other::start(&["sleep unprivileged", dumpable]);
    let words = sleeper.hear();
    let pid = sleeper.who().pid.to_string();
    let mut part = vec!["probe unprivileged", &pid];
    part.extend(words.split(' '));
    let mut prober = Other::start(&part);
    let answers = (prober.hear(), prober.hear());
    prober.finish();
    sleeper.finish();
    answers
}

#[test]
fn a_process_of_the_same_user_is_open() {
    let (probed, pulled) = probe_of_a_sleeper("dumpable");
    assert_eq!(probed, "allowed");
    assert_eq!(pulled, "pulled");
}

#[test]
fn a_process_that_is_not_dumpable_is_named_as_such() {
    let (probed, pulled) = probe_of_a_sleeper("not dumpable");
    assert_eq!(probed, "NotDumpable");
    assert!(pulled.contains("PR_SET_DUMPABLE"), "{pulled}");
}

/// Process 1 stands for another user's.
#[test]
fn a_process_of_another_user_is_named_as_such() {
    let mut prober = Other::start(&["probe unprivileged", "1", "4096"]);
    assert_eq!(prober.hear(), "other user 0");
    prober.finish();
}

#[test]
fn a_process_that_has_ended_is_gone() {
    let other = Other::start(&["sleep unprivileged", "dumpable"]);
    let pid = other.who().pid;
    other.kill();
    let error = probe(pid, 4096).unwrap_err();
    assert!(matches!(error, ProbeError::Gone { .. }), "{error}");
}
