//! What the system is asked for beside memory: that children do not inherit it, and where it lies.
#![cfg(not(loom))]

use mempool::{NumaPlacement, Pool};
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
