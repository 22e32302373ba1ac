//! What the system is asked for beside memory: that children do not inherit it, and where it lies.
#![cfg(not(loom))]

use mempool::{DebugMode, Kind, NumaPlacement, Pool};
use verbs::{Device, Pd};

fn domain() -> Pd {
    let device = Device::open_spec("soft0").expect("the user-space device opens anywhere");
    device.alloc_pd().unwrap()
}

#[test]
fn a_child_does_not_inherit_the_memory() {
    let pool = Pool::builder(&domain()).build().unwrap();
    let mut buf = pool.alloc(4096).unwrap();
    buf.fill(1);
    // SAFETY: the child touches one byte and ends; it takes no lock and allocates nothing.
    let status = unsafe {
        let child = libc::fork();
        assert!(child >= 0);
        if child == 0 {
            // No report of the fault that is to come.
            libc::signal(libc::SIGSEGV, libc::SIG_DFL);
            let limit = libc::rlimit {
                rlim_cur: 0,
                rlim_max: 0,
            };
            libc::setrlimit(libc::RLIMIT_CORE, &limit);
            let byte = buf.as_ptr().read_volatile();
            libc::_exit(i32::from(byte));
        }
        let mut status = 0;
        assert_eq!(libc::waitpid(child, &mut status, 0), child);
        status
    };
    assert!(libc::WIFSIGNALED(status), "status {status:#x}");
    assert_eq!(libc::WTERMSIG(status), libc::SIGSEGV);
    assert!(buf.iter().all(|b| *b == 1), "the parent's is as it was");
}

/// What a child may do with buffers is to give them up, as its destructors will: that is between it and its copy of the pool.
#[test]
fn a_child_may_drop_what_it_inherited() {
    for mode in [None, Some(DebugMode::new())] {
        a_child_drops(&Pool::builder(&domain()).debug(mode).build().unwrap());
    }
}

fn a_child_drops(pool: &Pool) {
    let (one, large) = (pool.alloc(4096).unwrap(), pool.alloc(3 << 20).unwrap());
    let (head, tail) = pool.alloc(100).unwrap().split_at(10);
    let mine = [one, large, head, tail];
    // SAFETY: the child drops buffers, which takes locks that only this thread uses, and ends.
    let status = unsafe {
        let child = libc::fork();
        assert!(child >= 0);
        if child == 0 {
            libc::alarm(60);
            drop(mine);
            libc::_exit(7);
        }
        let mut status = 0;
        assert_eq!(libc::waitpid(child, &mut status, 0), child);
        status
    };
    assert!(libc::WIFEXITED(status), "status {status:#x}");
    assert_eq!(libc::WEXITSTATUS(status), 7);
    // Nothing of that happened here.
    let live: usize = pool.stats().classes.iter().map(|c| c.live).sum();
    assert_eq!((live, pool.stats().kind(Kind::Private).large), (2, 1));
    drop(mine);
    assert_eq!(pool.findings(), 0, "and gives up what is kept out of use");
    let live: usize = pool.stats().classes.iter().map(|c| c.live).sum();
    assert_eq!((live, pool.stats().kind(Kind::Private).large), (0, 0));
}

/// Of the pages from an address on, those that have memory behind them.
fn resident(start: *const u8, len: usize) -> usize {
    let mut seen = vec![0u8; len / 4096];
    // SAFETY: a byte for each page.
    let got = unsafe { libc::mincore(start.cast_mut().cast(), len, seen.as_mut_ptr()) };
    assert_eq!(got, 0, "{}", std::io::Error::last_os_error());
    seen.iter().filter(|page| **page & 1 == 1).count()
}

#[test]
fn memory_is_put_behind_buffers_before_they_are_handed_out_and_no_sooner() {
    let pool = Pool::builder(&domain()).build().unwrap();
    // The first buffer lies at the start of the first arena, of 4 MiB.
    let first = pool.alloc(4096).unwrap();
    let start = first.as_ptr();
    let after_first = resident(start, 4 << 20);
    assert!((1..=64).contains(&after_first), "{after_first} pages");
    let page = pool.alloc(1 << 20).unwrap();
    assert_eq!(resident(page.as_ptr(), page.len()), 256, "untouched");
    let with_page = resident(start, 4 << 20);
    assert_eq!(with_page, after_first + 256);
    let large = pool.alloc(9 << 20).unwrap();
    assert_eq!(resident(large.as_ptr(), large.len()), 9 * 256);
    drop((first, page, large));
}

#[test]
fn a_wish_for_a_numa_node_is_granted_or_explained() {
    let pd = domain();
    let pool = Pool::builder(&pd).numa_node(0).build().unwrap();
    let mut buf = pool.alloc(1 << 20).unwrap();
    buf.fill(1);
    let stats = pool.stats();
    match &stats.numa {
        NumaPlacement::Bound { node: 0 } => assert!(stats.to_string().contains("NUMA node: 0")),
        NumaPlacement::Unavailable { why, .. } => {
            assert!(stats.to_string().contains(why.as_str()), "{stats}");
        }
        other => panic!("{other:?}"),
    }
    let pool = Pool::builder(&pd).numa_node(999).build().unwrap();
    drop(pool.alloc(100).unwrap());
    let stats = pool.stats();
    assert!(
        matches!(stats.numa, NumaPlacement::Unavailable { node: 999, .. }),
        "{stats}"
    );
}
