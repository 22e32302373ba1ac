//! Tests of the folder and its slots within one process.

use super::choose::choose;
use super::*;
use crate::os::incarnation::Incarnation;
use crate::os::tests::Scratch;
use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::sync::atomic::AtomicBool;

fn info() -> SlotInfo {
    SlotInfo {
        owner: Incarnation::me(),
        segment_fd: 5,
        segment: FileId { dev: 6, ino: 7 },
        layout: 8,
    }
}

fn folder_in(scratch: &Scratch) -> PathBuf {
    // SAFETY: geteuid has no preconditions and cannot fail.
    let me = unsafe { libc::geteuid() };
    scratch.path().join(format!("verbatim-{me}"))
}

#[test]
fn the_folder_is_made_for_its_user_only() {
    let scratch = Scratch::new();
    let directory = Directory::open_at(scratch.path()).unwrap();
    assert_eq!(directory.path(), folder_in(&scratch));
    let mode = fs::metadata(directory.path()).unwrap().permissions().mode();
    assert_eq!(mode & 0o7777, 0o700);
    Directory::open_at(scratch.path()).unwrap();
}

#[test]
fn links_and_files_are_no_folder() {
    let scratch = Scratch::new();
    let real = scratch.path().join("real");
    fs::create_dir(&real).unwrap();
    fs::set_permissions(&real, fs::Permissions::from_mode(0o700)).unwrap();
    symlink(&real, folder_in(&scratch)).unwrap();
    let error = Directory::open_at(scratch.path()).unwrap_err();
    assert!(error.to_string().contains("symbolic link"), "{error}");
    fs::remove_file(folder_in(&scratch)).unwrap();
    fs::write(folder_in(&scratch), "").unwrap();
    let error = Directory::open_at(scratch.path()).unwrap_err();
    assert!(error.to_string().contains("is a file"), "{error}");
}

#[test]
fn any_mode_but_0700_is_refused() {
    let scratch = Scratch::new();
    fs::create_dir(folder_in(&scratch)).unwrap();
    for mode in [0o701, 0o710, 0o704, 0o770, 0o777] {
        let permissions = fs::Permissions::from_mode(mode);
        fs::set_permissions(folder_in(&scratch), permissions).unwrap();
        let error = Directory::open_at(scratch.path()).unwrap_err();
        assert!(
            error.to_string().contains(&format!("{mode:04o}")),
            "{error}"
        );
    }
}

#[test]
fn a_folder_of_another_user_is_refused() {
    // SAFETY: geteuid has no preconditions and cannot fail.
    if unsafe { libc::geteuid() } != 0 {
        return; // only root can make one
    }
    let scratch = Scratch::new();
    Directory::open_at(scratch.path()).unwrap();
    chown(folder_in(&scratch), Some(65534), None).unwrap();
    let error = Directory::open_at(scratch.path()).unwrap_err();
    assert!(
        error.to_string().contains("belongs to user 65534"),
        "{error}"
    );
}

#[test]
fn a_missing_base_names_the_path_and_the_choice() {
    let error = Directory::open_at(Path::new("/nowhere/at/all")).unwrap_err();
    let text = error.to_string();
    assert!(text.contains("/nowhere/at/all/verbatim-"), "{text}");
    assert!(text.contains("the caller said so"), "{text}");
    assert!(text.contains("set VERBATIM_DIR"), "{text}");
}

#[test]
fn the_choice_follows_the_variables_and_says_so() {
    let some = |value: &str| Some(OsString::from(value));
    let all = |_: &Path| true;
    let none = |_: &Path| false;
    let chosen = |verbatim, xdg, usable: fn(&Path) -> bool| {
        let (path, why) = choose(verbatim, xdg, usable).unwrap();
        (path.to_str().unwrap().to_owned(), why)
    };
    assert_eq!(chosen(some("/a"), some("/b"), all).0, "/a");
    assert_eq!(chosen(some("/a"), some("/b"), none).0, "/a");
    assert_eq!(chosen(some(""), some("/b"), all).0, "/b");
    assert_eq!(chosen(None, some("/b"), all).0, "/b");
    assert_eq!(chosen(None, None, all).0, "/dev/shm");
    assert_eq!(chosen(None, some("b"), all).0, "/dev/shm");
    assert_eq!(chosen(None, None, none).0, "/tmp");
    let (path, why) = chosen(None, some("/b"), |path| path != Path::new("/b"));
    assert_eq!(path, "/dev/shm");
    assert!(why.contains("XDG_RUNTIME_DIR=/b cannot be used"), "{why}");
    let error = choose(some("a"), None, all).unwrap_err();
    assert!(matches!(error, DirectoryError::Relative { .. }));
}

#[test]
fn a_claimed_slot_is_found_and_a_dropped_one_is_not() {
    let scratch = Scratch::new();
    let directory = Directory::open_at(scratch.path()).unwrap();
    let slot = directory.claim(&info()).unwrap();
    assert!(slot.index < SLOTS);
    assert_eq!(directory.lookup(slot.index).unwrap(), info());
    let index = slot.index;
    drop(slot);
    let error = directory.lookup(index).unwrap_err();
    assert!(matches!(error, LookupError::Nobody { .. }), "{error}");
    assert!(error.to_string().contains("VERBATIM_DIR"), "{error}");
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
}

#[test]
fn a_slot_just_given_back_is_not_the_next_one() {
    let scratch = Scratch::new();
    let directory = Directory::open_at(scratch.path()).unwrap();
    let mut last = None;
    for _ in 0..5 {
        let index = directory.claim(&info()).unwrap().index;
        assert_ne!(last, Some(index));
        last = Some(index);
    }
}

#[test]
fn what_nobody_holds_is_cleaned() {
    let scratch = Scratch::new();
    let directory = Directory::open_at(scratch.path()).unwrap();
    let record = record::encode(&info(), pid_namespace());
    for (index, contents) in [(3, &record[..]), (4, b"junk"), (1023, b"")] {
        fs::write(directory.path().join(file_name(index)), contents).unwrap();
    }
    // The record names a live process, but nobody holds the lock.
    let error = directory.lookup(3).unwrap_err();
    assert!(matches!(error, LookupError::Nobody { .. }), "{error}");
    let slot = directory.claim_from(&info(), 3).unwrap();
    assert_eq!(slot.index, 3);
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
}

#[test]
fn a_late_cleaner_does_not_remove_the_next_holders_file() {
    let scratch = Scratch::new();
    let directory = Directory::open_at(scratch.path()).unwrap();
    let slot = directory.claim_from(&info(), 9).unwrap();
    let opened = directory.open_file(9, libc::O_RDWR).unwrap();
    drop(slot);
    let next = directory.claim_from(&info(), 9).unwrap();
    assert_eq!(next.index, 9);
    directory.clean_opened(9, &opened).unwrap();
    assert_eq!(directory.lookup(9).unwrap(), info());
    drop(next);
    directory.clean_opened(9, &opened).unwrap();
}

#[test]
fn held_files_that_are_no_slots_are_malformed() {
    let scratch = Scratch::new();
    let directory = Directory::open_at(scratch.path()).unwrap();
    let slot = directory.claim(&info()).unwrap();
    let good = record::encode(&info(), pid_namespace());
    let mut bad = good;
    bad[20] ^= 1;
    let mut long = good.to_vec();
    long.push(0);
    for contents in [&[][..], &good[..40], &bad, &long] {
        slot.file.set_len(0).unwrap();
        slot.file.write_all_at(contents, 0).unwrap();
        let error = directory.lookup(slot.index).unwrap_err();
        assert!(matches!(error, LookupError::Malformed { .. }), "{error}");
    }
    let elsewhere = record::encode(&info(), pid_namespace() + 1);
    slot.file.set_len(0).unwrap();
    slot.file.write_all_at(&elsewhere, 0).unwrap();
    let error = directory.lookup(slot.index).unwrap_err();
    assert!(
        matches!(error, LookupError::OtherPidNamespace { .. }),
        "{error}"
    );
}

#[test]
fn other_things_with_a_slots_name_are_stepped_over_until_none_is_left() {
    let scratch = Scratch::new();
    let directory = Directory::open_at(scratch.path()).unwrap();
    let target = scratch.path().join("target");
    fs::write(&target, "keep").unwrap();
    for index in (0..SLOTS).filter(|&index| index != 700) {
        let path = directory.path().join(file_name(index));
        match index % 2 {
            0 => symlink(&target, path).unwrap(),
            _ => fs::create_dir(path).unwrap(),
        }
    }
    let slot = directory.claim(&info()).unwrap();
    assert_eq!(slot.index, 700);
    let error = directory.claim(&info()).unwrap_err();
    assert!(matches!(error, DirectoryError::Full { .. }), "{error}");
    let error = directory.lookup(0).unwrap_err();
    assert!(matches!(error, LookupError::Malformed { .. }), "{error}");
    assert_eq!(fs::read(&target).unwrap(), b"keep");
}

#[test]
fn threads_that_race_for_slots_never_share_one() {
    let scratch = Scratch::new();
    let directory = Directory::open_at(scratch.path()).unwrap();
    let held: Vec<AtomicBool> = (0..SLOTS).map(|_| AtomicBool::new(false)).collect();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for turn in 0..50 {
                    let slot = directory.claim_from(&info(), turn % 2).unwrap();
                    let held = &held[usize::from(slot.index)];
                    assert!(!held.swap(true, Ordering::SeqCst), "slot {}", slot.index);
                    assert_eq!(directory.lookup(slot.index).unwrap(), info());
                    held.store(false, Ordering::SeqCst);
                    drop(slot);
                }
            });
        }
    });
}
