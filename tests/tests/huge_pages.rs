//! Memory of huge pages that the system has set aside. Each test sets aside what it needs; where it may not, it says so and passes.

use mempool::{AllocError, ArenaError, Budget, BudgetKind, HugePageUse, Kind, Pool, PoolError};
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::sync::{Mutex, MutexGuard, PoisonError};
use verbatim_tests::{
    Block, HugePages, Link, Side, fill, is_pattern, memory_files, second_process,
};
use verbs::{Access, Device, HugePageSize, Memory, MemoryFile, MemoryKind, Mmap, Pd, RemoteRegion};

/// One test at a time: a process that is just being started has the descriptors of all threads for a moment, and with them the pages.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

const MIB: usize = 1 << 20;
const PAGE: usize = HugePageSize::Mib2.bytes();

fn domain() -> Pd {
    Device::open_spec("soft0").unwrap().alloc_pd().unwrap()
}

fn pool(pd: &Pd, wish: mempool::HugePages) -> Pool {
    let pool = Pool::builder(pd).budget(Budget::user(256 << 20));
    pool.huge_pages(wish).build().unwrap()
}

/// Whether the memory at an address consists of huge pages, by `/proc/self/smaps`.
fn is_huge(addr: usize) -> bool {
    let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let mut here = false;
    for line in maps.lines() {
        let first = line.split(' ').next().unwrap();
        if let Some((start, end)) = first.split_once('-') {
            let number = |text| usize::from_str_radix(text, 16).unwrap();
            here = (number(start)..number(end)).contains(&addr);
        }
        if let (true, Some(size)) = (here, line.strip_prefix("KernelPageSize:")) {
            return size.trim() == "2048 kB";
        }
    }
    panic!("{addr:#x} is not mapped")
}

#[test]
fn files_of_huge_pages_are_huge_and_whole() {
    let _alone = alone();
    let Some(pages) = HugePages::set_aside(3) else {
        return;
    };
    let file = MemoryFile::huge(PAGE + 1, MemoryKind::Exposed, HugePageSize::Mib2).unwrap();
    let start = file.as_ptr();
    assert_eq!((file.len(), start.addr() % PAGE), (2 * PAGE, 0));
    assert!(is_huge(start.addr()));
    assert_eq!(pages.left(), 1, "promised before they are touched");
    // SAFETY: mapped, and nobody else's.
    unsafe { start.add(2 * PAGE - 1).write(1) };
    let e = MemoryFile::huge(2 * PAGE, MemoryKind::Private, HugePageSize::Mib2).unwrap_err();
    assert_eq!(
        (e.pages, e.source.kind()),
        (2, io::ErrorKind::OutOfMemory),
        "{e}"
    );
    let text = e.to_string();
    assert!(text.contains("/proc/sys/vm/nr_hugepages"), "{text}");
    assert!(text.contains("/sys/devices/system/node/node<N>"), "{text}");
    // One is enough for a map of its own.
    drop(Mmap::huge(1, HugePageSize::Mib2).unwrap());
    drop(file);
    assert_eq!(pages.left(), 3);
}

#[test]
fn arenas_are_of_huge_pages_as_long_as_there_are_any() {
    let _alone = alone();
    let Some(pages) = HugePages::set_aside(4) else {
        return;
    };
    let pool = pool(&domain(), mempool::HugePages::Try);
    assert_eq!(pool.stats().huge_pages, HugePageUse::SetAside);
    // Two arenas of two pages each.
    let mut held = Vec::new();
    for kind in [Kind::Private, Kind::Readable] {
        let mut buf = pool.alloc_in(BudgetKind::User, kind, MIB).unwrap();
        fill(&mut buf, 1);
        assert!(is_huge(buf.as_ptr().addr()), "{kind}");
        held.push(buf);
    }
    assert_eq!(pages.left(), 0);
    let stats = pool.stats();
    assert_eq!(stats.huge_pages, HugePageUse::SetAside, "{stats}");
    assert_eq!(stats.kind(Kind::Private).huge_bytes, 4 << 20);
    assert!(stats.to_string().contains("huge pages: yes"), "{stats}");
    assert!(
        pool.picture().contains("] of huge pages"),
        "{}",
        pool.picture()
    );

    // The next one does without, and says why.
    let receive = (BudgetKind::Receive, Kind::Receive);
    let mut buf = pool.alloc_in(receive.0, receive.1, MIB).unwrap();
    fill(&mut buf, 2);
    assert!(!is_huge(buf.as_ptr().addr()));
    let stats = pool.stats();
    let (HugePageUse::Advised(why) | HugePageUse::Unavailable(why)) = &stats.huge_pages else {
        panic!("{stats}")
    };
    assert!(why.contains("2 huge pages of 2 MiB"), "{why}");
    assert!(why.contains("/proc/sys/vm/nr_hugepages"), "{why}");
    assert_eq!(stats.kind(Kind::Receive).huge_bytes, 0);
    assert!(is_pattern(&held[0], 1) && is_pattern(&buf, 2));

    drop((held, buf));
    pool.trim();
    assert_eq!(pages.left(), 4, "they go back");
    // What needs an arena to itself is rounded up to whole ones.
    let large = pool.exposed(5 * MIB).unwrap();
    assert_eq!(pages.left(), 1);
    assert_eq!(pool.stats().kind(Kind::Exposed).huge_bytes, 6 << 20);
    drop(large);
}

#[test]
fn what_is_required_and_not_there_is_an_error_that_says_what_to_do() {
    let _alone = alone();
    let Some(pages) = HugePages::set_aside(2) else {
        return;
    };
    let pd = domain();
    let pool = pool(&pd, mempool::HugePages::Require);
    let held = [0; 4].map(|_| pool.alloc(MIB).unwrap());
    let error = pool.alloc(MIB).unwrap_err();
    let AllocError::Grow { source, .. } = &error else {
        panic!("{error}")
    };
    assert!(matches!(**source, ArenaError::HugePages(_)), "{error}");
    let text = error.to_string();
    assert!(
        text.contains("/proc/sys/vm/nr_hugepages") && text.contains("HugePages::Try"),
        "{text}"
    );
    let user = *pool.stats().budget(BudgetKind::User);
    assert_eq!(user.in_use, 4 << 20, "nothing was lost");
    // Nor is there one for another pool to begin with.
    assert_eq!(pages.left(), 0);
    let none = Pool::builder(&pd).huge_pages(mempool::HugePages::Require);
    assert!(matches!(none.build(), Err(PoolError::HugePages(_))));
    drop(held);
    assert_eq!(pool.alloc(MIB).unwrap().len(), MIB);
}

#[test]
fn huge_pages_of_a_node_are_there_from_the_beginning() {
    let _alone = alone();
    let Some(pages) = HugePages::set_aside(2) else {
        return;
    };
    let pool = Pool::builder(&domain()).huge_pages(mempool::HugePages::Require);
    let pool = pool.numa_node(0).build().unwrap();
    let buf = pool.alloc(64).unwrap();
    assert!(is_huge(buf.as_ptr().addr()));
    assert_eq!(pages.left(), 0);
    assert!(matches!(
        pool.alloc_in(BudgetKind::Receive, Kind::Receive, 64),
        Err(AllocError::Grow { .. })
    ));
}

const TEXT: &[u8] = b"read from a file of huge pages";

/// Peers map such files as they map all others: readable memory for reading only, whatever they try.
#[test]
fn peers_map_huge_pages_as_their_kind_allows() {
    let _alone = alone();
    match second_process("peers_map_huge_pages_as_their_kind_allows") {
        Side::Child(mut control) => {
            let mut link: Link = Link::new(&mut control, 8);
            let [readable, exposed] = [(); 2]
                .map(|()| RemoteRegion::from_bytes(control.receive()[..].try_into().unwrap()));
            let room: Block = link.pd.register(vec![0; TEXT.len()]).unwrap();
            link.tx.read(room, readable).signaled().post().unwrap();
            assert_eq!(&link.sent()[..], TEXT);
            let mut data = vec![0; PAGE];
            fill(&mut data, 3);
            let data = link.pd.register(data).unwrap();
            let target = exposed.slice(PAGE as u64 / 2..PAGE as u64 * 3 / 2).unwrap();
            link.tx.write(data, target).signaled().post().unwrap();
            link.sent();
            let mapped = std::fs::read_to_string("/proc/self/smaps").unwrap();
            let huge = mapped.matches("KernelPageSize:     2048 kB").count();
            control.send(format!("{huge} mapped"));
            control.expect("tried");
        }
        Side::Parent(mut peer) => {
            // The other side waits for what this says, or ends with it.
            let Some(_pages) = HugePages::set_aside(3) else {
                peer.kill();
                return;
            };
            let link: Link = Link::new(&mut peer.control, 8);
            let huge = |len, kind| MemoryFile::huge(len, kind, HugePageSize::Mib2).unwrap();
            let readable = huge(PAGE, MemoryKind::Readable);
            // SAFETY: new memory, long enough.
            unsafe { std::ptr::copy_nonoverlapping(TEXT.as_ptr(), readable.as_ptr(), TEXT.len()) };
            let text = link.pd.readable(readable).unwrap();
            let exposed = huge(2 * PAGE, MemoryKind::Exposed);
            let cells = link
                .pd
                .expose_memory(exposed, Access::REMOTE_WRITE)
                .unwrap();
            let of_text = text.remote().slice(0..TEXT.len() as u64).unwrap();
            peer.control.send(of_text.to_bytes());
            peer.control.send(cells.remote().to_bytes());
            peer.control.expect("2 mapped");
            let mut now = vec![0; PAGE];
            cells.read_at(PAGE / 2, &mut now).unwrap();
            assert!(is_pattern(&now, 3));
            // The same through /proc, as a peer would that wants more.
            let mut tried = 0;
            for (fd, name) in memory_files(std::process::id()) {
                let path = format!("/proc/self/fd/{fd}");
                let Ok(file) = File::options().read(true).write(true).open(path) else {
                    continue;
                };
                if file.metadata().unwrap().len() == PAGE as u64 && is_huge_file(&file) {
                    tried += 1;
                    assert!(file.set_len(0).is_err(), "{name} can be truncated");
                    let error = map_writable(&file).unwrap_err();
                    assert_eq!(error.raw_os_error(), Some(libc::EPERM), "{name}: {error}");
                }
            }
            assert_eq!(tried, 1, "the readable one");
            assert_eq!(&text[..TEXT.len()], TEXT);
            peer.control.send("tried");
            peer.finish();
        }
    }
}

fn is_huge_file(file: &File) -> bool {
    // SAFETY: all zeros is a value of it; the call fills it.
    let mut of: libc::statfs = unsafe { std::mem::zeroed() };
    // SAFETY: a live descriptor, and a place for the answer.
    assert_eq!(unsafe { libc::fstatfs(file.as_raw_fd(), &mut of) }, 0);
    of.f_bsize as usize == PAGE
}

fn map_writable(file: &File) -> io::Result<()> {
    let prot = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a new map at an address of the kernel's choice.
    let map = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            PAGE,
            prot,
            libc::MAP_SHARED,
            file.as_raw_fd(),
            0,
        )
    };
    match map {
        libc::MAP_FAILED => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}
