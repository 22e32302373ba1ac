//! What the kernel refuses a peer that helps itself to memory files through `/proc`.
//!
//! The second process makes memory of each kind and writes the kind's name into it. The first finds each file by that
//! content, not by its seals, and tries what it must not succeed in.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use verbatim_tests::{Side, memory_files, seals, second_process};
use verbs::{Access, Device, Memory, MemoryFile, MemoryKind};

const KINDS: [(MemoryKind, &str); 4] = [
    (MemoryKind::Private, "this memory is private"),
    (MemoryKind::Readable, "this memory is readable"),
    (MemoryKind::Receive, "this memory is for receives"),
    (MemoryKind::Exposed, "this memory is exposed"),
];

#[test]
fn peers_map_and_truncate_only_what_a_kind_allows() {
    match second_process("peers_map_and_truncate_only_what_a_kind_allows") {
        Side::Child(mut control) => {
            let pd = Device::open_spec("soft0").unwrap().alloc_pd().unwrap();
            let regions = KINDS.map(|(kind, text)| {
                let file = MemoryFile::create(1 << 16, kind).unwrap();
                // SAFETY: new memory that nothing else refers to, longer than the text.
                unsafe { std::ptr::copy_nonoverlapping(text.as_ptr(), file.as_ptr(), text.len()) };
                let access = match kind {
                    MemoryKind::Readable => Access::REMOTE_READ,
                    MemoryKind::Exposed => Access::REMOTE_WRITE,
                    _ => Access::LOCAL_WRITE,
                };
                pd.region(file, access).unwrap()
            });
            control.send("made");
            control.expect("tried");
            for (region, (_, text)) in regions.iter().zip(KINDS) {
                // SAFETY: within the region; the peer has finished.
                let now = unsafe { std::slice::from_raw_parts(region.as_ptr(), text.len()) };
                assert_eq!(now, text.as_bytes());
            }
        }
        Side::Parent(mut peer) => {
            peer.control.expect("made");
            let mut found = [0; KINDS.len()];
            let mut others = 0;
            for (fd, name) in memory_files(peer.pid()) {
                let path = format!("/proc/{}/fd/{fd}", peer.pid());
                let file = File::options()
                    .read(true)
                    .write(true)
                    .open(&path)
                    .or_else(|_| File::open(&path))
                    .unwrap();
                let mut start = [0; 64];
                let n = file.read_at(&mut start, 0).unwrap();
                let kind = KINDS
                    .iter()
                    .position(|(_, text)| start[..n].starts_with(text.as_bytes()));
                // Also what belongs to the device itself: nobody may resize what others have mapped.
                cannot_be_resized(&file, &name);
                match kind {
                    None => others += 1,
                    Some(kind) => {
                        found[kind] += 1;
                        match KINDS[kind].0 {
                            MemoryKind::Private | MemoryKind::Readable => {
                                cannot_be_written(&file, &name)
                            }
                            MemoryKind::Receive | MemoryKind::Exposed => {
                                assert!(
                                    map(&file, libc::PROT_READ | libc::PROT_WRITE).is_ok(),
                                    "{name}"
                                );
                            }
                        }
                    }
                }
            }
            assert_eq!(found, [1; KINDS.len()], "each kind is one file");
            assert!(others > 0, "the device's own files are checked too");
            peer.control.send("tried");
            peer.finish();
        }
    }
}

fn cannot_be_resized(file: &File, name: &str) {
    let len = file.metadata().unwrap().len();
    assert!(file.set_len(0).is_err(), "{name} can be truncated");
    assert!(file.set_len(len + 4096).is_err(), "{name} can be extended");
    assert_eq!(file.metadata().unwrap().len(), len);
    let expected = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;
    assert_eq!(seals(file) & expected, expected, "{name}");
    // SAFETY: a request on a live descriptor.
    let added = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, libc::F_SEAL_WRITE) };
    assert_eq!(added, -1, "{name} can be sealed by others");
}

fn cannot_be_written(file: &File, name: &str) {
    let error =
        map(file, libc::PROT_READ | libc::PROT_WRITE).expect_err("a writable map is refused");
    assert!(
        matches!(error.raw_os_error(), Some(libc::EPERM | libc::EACCES)),
        "{name}: {error}"
    );
    let error = file.write_at(b"x", 0).expect_err("a write is refused");
    assert!(
        matches!(error.raw_os_error(), Some(libc::EPERM | libc::EBADF)),
        "{name}: {error}"
    );
    // Nor can a map for reading be made writable afterwards.
    let read_only = map(file, libc::PROT_READ).unwrap();
    // SAFETY: a mapping of our own, of that length.
    let changed = unsafe { libc::mprotect(read_only, 4096, libc::PROT_READ | libc::PROT_WRITE) };
    assert_eq!(
        changed, -1,
        "{name} can be made writable after it was mapped"
    );
}

/// Maps the first page, shared, and leaves it mapped.
fn map(file: &File, protection: i32) -> io::Result<*mut libc::c_void> {
    // SAFETY: a new mapping at an address the kernel chooses.
    let at = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            4096,
            protection,
            libc::MAP_SHARED,
            file.as_raw_fd(),
            0,
        )
    };
    if at == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    Ok(at)
}
