//! Registration that fails. In a process of its own: faults are for all who use the device.
#![cfg(not(loom))]

use mempool::{AllocError, ArenaError, Budget, BudgetKind, Pool};
use softverbs::faults::{self, Fault, Verb};
use verbs::{Device, Pd};

fn domain() -> Pd {
    let device = Device::open_spec("soft0").expect("the user-space device opens anywhere");
    device.alloc_pd().unwrap()
}

/// The device refuses the registration of the n-th arena: an error, and nothing is lost.
#[test]
fn registration_that_fails_at_the_nth_arena_is_an_error_and_nothing_is_lost() {
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
