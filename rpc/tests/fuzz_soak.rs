//! Bytes of a peer for everything that parses any, made from valid ones: the same for the same seed, and without a fuzzer.
//!
//! An ordinary run takes a few hundred thousand cases. Ten millions:
//! `cargo test --release -p verbatim-rpc --features fuzzing,serde,zerocopy --test fuzz_soak -- --ignored --nocapture`.
//! `VERBATIM_SEED` names another seed.

use rpc::fuzzing::{Random, TARGETS, generate};
use std::panic::{AssertUnwindSafe, catch_unwind};

fn seed() -> u64 {
    let seed = std::env::var("VERBATIM_SEED").ok();
    seed.map_or(1, |seed| seed.parse().expect("VERBATIM_SEED is a number"))
}

/// So many cases, spread over all targets.
fn cases(count: u64) {
    let each = count.div_ceil(TARGETS.len() as u64);
    for (n, target) in TARGETS.iter().enumerate() {
        let mut random = Random::new(seed() ^ ((n as u64) << 56));
        let mut taken = 0;
        for case in 0..each {
            let bytes = generate::case(target, &mut random);
            match catch_unwind(AssertUnwindSafe(|| (target.run)(&bytes))) {
                Ok(whole) => taken += u64::from(whole),
                Err(_) => panic!(
                    "{}: case {case} of seed {}: {bytes:02x?}",
                    target.name,
                    seed()
                ),
            }
        }
        println!("{:16} {each} cases, {taken} got through", target.name);
        // Neither all nor none: or else the bytes are no good as cases.
        assert!(taken > each / 10 && taken < each, "{}", target.name);
    }
}

/// What is made as valid is taken as such; what is bent is the difference.
#[test]
fn valid_bytes_get_through() {
    for target in TARGETS {
        let mut random = Random::new(seed());
        let mut refused = 0;
        for _ in 0..2000 {
            let bytes = (target.valid)(&mut random);
            refused += u64::from(!(target.run)(&bytes));
        }
        println!("{:16} {refused} of 2000 refused", target.name);
        // Some are valid one by one and not together: counters that no peer can have, a terms-less farewell.
        assert!(refused < 1400, "{}", target.name);
    }
}

#[test]
fn three_hundred_thousand_cases() {
    cases(300_000);
}

#[test]
#[ignore = "minutes; see above"]
fn ten_million_cases() {
    cases(10_000_000);
}
