//! Registration that fails. In a process of its own: faults are for all who use the device.
#![cfg(not(loom))]

use mempool::{AllocError, ArenaError, Budget, BudgetKind, Pool};
use parking_lot::Mutex;
use softverbs::faults::{self, Fault, Verb};
use verbs::{Device, Pd};

fn domain() -> Pd {
    let device = Device::open_spec("soft0").expect("the user-space device opens anywhere");
    device.alloc_pd().unwrap()
}

/// Faults are the process's, so tests take turns.
static TURN: Mutex<()> = Mutex::new(());

/// Memory files that are mapped here.
fn files() -> usize {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    maps.matches("verbatim-memory").count()
}

/// The second of two devices refuses: the first has to let go of the memory too.
#[test]
fn registration_that_fails_with_another_device_leaves_nothing_behind() {
    let _turn = TURN.lock();
    let pool = Pool::builder(&domain()).also(&domain()).build().unwrap();
    let (files_before, nth) = (files(), [2, 3, 4]);
    // Of each try the second registration, as far as the tries go.
    let refused = nth.map(|nth| {
        let (verb, errno) = (Verb::RegMr, libc::ENOMEM);
        faults::inject(Fault::Verb { verb, nth, errno })
    });
    let first = pool.alloc(1 << 20);
    let failed = pool.stats().kind(mempool::Kind::Private).arenas_failed;
    assert!(failed > 0, "the fault was met");
    let arenas = pool.stats().kind(mempool::Kind::Private).arenas;
    assert_eq!(files() - files_before, arenas, "what failed is not mapped");
    drop((first, refused));
    let buf = pool.alloc(1 << 20).unwrap();
    assert_eq!(files() - files_before, 1);
    drop((buf, pool));
    assert_eq!(files(), files_before);
}

/// The device refuses the registration of the n-th arena: an error, and nothing is lost.
#[test]
fn registration_that_fails_at_the_nth_arena_is_an_error_and_nothing_is_lost() {
    let _turn = TURN.lock();
    const MIB: u64 = 1 << 20;
    for n in 1..4u64 {
        let pd = domain();
        let pool = Pool::builder(&pd)
            .budget(Budget::user(64 * MIB))
            .build()
            .unwrap();
        let mut held = Vec::new();
        let room: u64 = (0..n).map(|i| 4 << i).sum();
        for _ in 0..room {
            held.push(pool.alloc(MIB as usize).unwrap());
        }
        // The pool tries shorter ones, and again after it has looked for what lies about: each fault refuses one.
        let refused: Vec<_> = (0..32)
            .map(|_| {
                faults::inject(Fault::Verb {
                    verb: Verb::RegMr,
                    nth: 1,
                    errno: libc::ENOMEM,
                })
            })
            .collect();
        let error = pool.alloc(MIB as usize).unwrap_err();
        let AllocError::Grow { ref source, .. } = error else {
            panic!("{error}")
        };
        assert!(matches!(**source, ArenaError::Register(_)), "{error}");
        assert!(error.to_string().contains("ibv_reg_mr"), "{error}");
        let stats = pool.stats();
        assert_eq!(stats.budget(BudgetKind::User).in_use, room * MIB);
        assert!(stats.kind(mempool::Kind::Private).arenas_failed > 0);
        // What there is goes on.
        drop(held.pop());
        held.push(pool.alloc(MIB as usize).unwrap());
        assert!(
            refused.iter().any(|fault| fault.count() == 0),
            "not all were needed"
        );
        drop(refused);
        held.push(pool.alloc(MIB as usize).unwrap());
    }
}
