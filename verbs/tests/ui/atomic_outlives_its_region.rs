use verbs::*;

fn main() {}

use std::sync::atomic::AtomicU64;

fn f(pd: &Pd) -> u64 {
    let word: &AtomicU64 = {
        let shared = pd.expose(64, Access::REMOTE_WRITE).unwrap();
        shared.atomic_u64(0).unwrap()
    };
    word.load(std::sync::atomic::Ordering::Relaxed)
}
