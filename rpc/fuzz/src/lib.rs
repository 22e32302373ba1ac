//! What all targets have in common: they run an entry point of `rpc::fuzzing`, and bytes are changed by one that knows what valid ones
//! look like, or else by libFuzzer. Without that knowledge no entry of a shelf would get past its checksum.

pub use libfuzzer_sys;

use libfuzzer_sys::fuzzer_mutate;
use rpc::fuzzing::{Random, TARGETS, Target, generate};

/// The entry point of this name.
pub fn find(name: &str) -> Target {
    let found = TARGETS.into_iter().find(|target| target.name == name);
    found.expect("the name of an entry point")
}

/// Puts the next case in place of `data[..size]`; its length.
pub fn mutate(name: &str, data: &mut [u8], size: usize, max: usize, seed: u32) -> usize {
    let mut random = Random::new(seed.into());
    if random.once_in(2) {
        return fuzzer_mutate(data, size, max);
    }
    let valid = find(name).valid;
    let mut bytes = match size {
        0 => valid(&mut random),
        size => data[..size].to_vec(),
    };
    generate::bend(&mut bytes, &mut random, valid);
    let len = bytes.len().min(max);
    data[..len].copy_from_slice(&bytes[..len]);
    len
}

/// A target for this entry point.
#[macro_export]
macro_rules! target {
    ($entry:ident) => {
        use $crate::libfuzzer_sys;

        libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
            ::rpc::fuzzing::$entry(bytes);
        });

        libfuzzer_sys::fuzz_mutator!(|data: &mut [u8], size: usize, max: usize, seed: u32| {
            $crate::mutate(stringify!($entry), data, size, max, seed)
        });
    };
}
