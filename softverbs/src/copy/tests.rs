//! Tests of the copies, alone and beside a reader.

use super::{Rng, copy, copy_sliced, words};
use proptest::prelude::{prop_assert, prop_assert_eq, proptest};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

type Copy = unsafe fn(*mut u8, *const u8, usize);
/// What the device uses here, and what it uses where that is not possible.
const BOTH: [(&str, Copy); 2] = [("copy", copy), ("words", words::copy)];

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 7 + i / 251) as u8 | 1).collect()
}

#[derive(Clone)]
#[repr(align(4096))]
struct Page(#[allow(dead_code, reason = "read through pointers")] [u8; 4096]);

/// Zeroed pages for `len` bytes and at least one.
fn pages(len: usize) -> Vec<Page> {
    vec![Page([0; 4096]); len / 4096 + 1]
}

/// Copies between two buffers at these offsets and checks all bytes, those around too.
fn check(copy: Copy, dst_at: usize, src_at: usize, len: usize) -> Result<(), String> {
    const GUARD: u8 = 0xa5;
    let mut src = pages(src_at + len);
    let src = src.as_mut_ptr().cast::<u8>();
    let expect = pattern(len);
    let mut dst = pages(dst_at + len + 32);
    let dst_len = dst.len() * 4096;
    let dst_base = dst.as_mut_ptr().cast::<u8>();
    // SAFETY: the offsets and lengths lie within the buffers just made, which nothing else uses.
    let dst = unsafe {
        std::ptr::copy_nonoverlapping(expect.as_ptr(), src.add(src_at), len);
        dst_base.write_bytes(GUARD, dst_len);
        copy(dst_base.add(dst_at), src.add(src_at), len);
        std::slice::from_raw_parts(dst_base, dst_len)
    };
    if dst[dst_at..dst_at + len] != expect[..] {
        return Err(format!("{dst_at} {src_at} {len}: wrong bytes"));
    }
    let (before, after) = (&dst[..dst_at], &dst[dst_at + len..]);
    match before.iter().chain(after).all(|&byte| byte == GUARD) {
        true => Ok(()),
        false => Err(format!(
            "{dst_at} {src_at} {len}: bytes beside the range changed"
        )),
    }
}

#[test]
fn short_lengths_at_all_alignments() {
    for (name, copy) in BOTH {
        for len in 0..=96 {
            for at in 0..256 {
                check(copy, at / 16, at % 16, len).unwrap_or_else(|e| panic!("{name}: {e}"));
            }
        }
    }
}

#[test]
fn every_length_to_5000() {
    for (name, copy) in BOTH {
        for len in 0..5000 {
            let (dst_at, src_at) = (len % 17, len / 17 % 19);
            check(copy, dst_at, src_at, len).unwrap_or_else(|e| panic!("{name}: {e}"));
        }
    }
}

#[test]
fn lengths_around_the_non_temporal_limit() {
    for beyond in [0, 1, 15, 16, 63, 64, 65, 127, 128, 4097] {
        for (dst_at, src_at) in [(0, 0), (1, 0), (0, 1), (15, 8), (8, 24)] {
            check(copy, dst_at, src_at, (1 << 20) - 16 + beyond).unwrap();
        }
    }
}

proptest! {
    #[test]
    fn any_length_at_any_alignment(
        dst_at in 0usize..4200, src_at in 0usize..4200, len in 0usize..20_000,
    ) {
        for (name, copy) in BOTH {
            let result = check(copy, dst_at, src_at, len);
            prop_assert!(result.is_ok(), "{}: {:?}", name, result);
        }
    }

    #[test]
    fn downward_overlap_moves(start in 0usize..200, by in 0usize..200, len in 0usize..3000) {
        for (_, copy) in BOTH {
            let mut bytes = pattern(start + by + len);
            let mut expect = bytes.clone();
            expect.copy_within(start + by.., start);
            let base = bytes.as_mut_ptr();
            // SAFETY: both ranges lie within the vector.
            unsafe { copy(base.add(start), base.add(start + by), len) };
            prop_assert_eq!(&bytes, &expect);
        }
    }

    #[test]
    fn slices_copy_everything_in_whole_words_and_in_order(
        seed: u64, dst_at in 0usize..16, src_at in 0usize..16, len in 0usize..30_000,
    ) {
        let from = pattern(src_at + len);
        let from = &from[src_at..];
        let mut to = pages(dst_at + len);
        let to = to.as_mut_ptr().cast::<u8>().wrapping_add(dst_at);
        // SAFETY: `len` bytes from `to` are in the buffer; the copy, which uses it too, is not running.
        let written = |at: usize| unsafe { to.add(at).read() };
        let (mut rng, mut last, mut orderly) = (Rng::new(seed), 0, true);
        let pause = || {
            // No byte of the pattern is zero, as the buffer was.
            let mut done = last;
            while done < len && written(done) == from[done] {
                done += 1;
            }
            orderly &= done > last && done - last <= 4096;
            orderly &= to.addr().wrapping_add(done).is_multiple_of(8);
            last = done;
        };
        // SAFETY: `len` bytes are in both buffers; between slices the closure above only reads.
        unsafe { copy_sliced(to, from.as_ptr(), len, &mut rng, pause) };
        prop_assert!(orderly);
        prop_assert!((0..len).all(|at| written(at) == from[at]));
    }
}

#[test]
fn slices_depend_on_the_seed_only_and_vary_in_length() {
    let slices = |seed| {
        let (from, mut to) = (pattern(1 << 16), vec![0u8; 1 << 16]);
        let (mut rng, mut pauses) = (Rng::new(seed), 0);
        // SAFETY: both vectors are that long and not used otherwise.
        unsafe {
            copy_sliced(to.as_mut_ptr(), from.as_ptr(), 1 << 16, &mut rng, || {
                pauses += 1
            })
        };
        (pauses, rng.next_u64())
    };
    assert_eq!(slices(1), slices(1));
    assert_ne!(slices(1).1, slices(2).1);
    assert!(slices(1).0 >= (1 << 16) / 4096 - 1, "{:?}", slices(1));
}

#[test]
fn numbers_below_a_bound_reach_both_ends() {
    let mut rng = Rng::new(7);
    let mut seen = [false; 5];
    for _ in 0..200 {
        seen[rng.below(5) as usize] = true;
    }
    assert_eq!(seen, [true; 5]);
    assert_eq!(rng.below(0), 0);
}

/// Runs `read` in a thread beside `write`, which is called with 1, 2, 3 and so on.
fn beside(write: impl Fn(u64), read: impl Fn() + Sync, rounds: u64) {
    let end = AtomicBool::new(false);
    let reads = AtomicU64::new(0);
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            while !end.load(Ordering::Relaxed) {
                read();
                reads.fetch_add(1, Ordering::Relaxed);
            }
        });
        let mut round = 0;
        // At least as many rounds as asked for, and until the reader has run for a while beside them.
        while round < rounds || (reads.load(Ordering::Relaxed) < 1000 && !reader.is_finished()) {
            round += 1;
            write(round);
        }
        end.store(true, Ordering::Relaxed);
    });
}

#[test]
fn an_aligned_word_is_never_torn() {
    for (name, copy) in BOTH {
        for (dst_at, src_at) in [(0, 0), (8, 8), (3, 3), (16, 1), (5, 0), (63, 2)] {
            let len = 200;
            let mut target = pages(0);
            let base = target.as_mut_ptr().cast::<u8>();
            let address = base.expose_provenance();
            let first = usize::div_ceil(dst_at, 8);
            let words = first..(dst_at + len) / 8;
            beside(
                |round| {
                    let src = [round as u8; 256];
                    // SAFETY: both ranges lie in their buffers; the reader uses atomics, as of a device's memory.
                    unsafe { copy(base.add(dst_at), src.as_ptr().add(src_at), len) };
                },
                || {
                    for at in words.clone() {
                        let word = std::ptr::with_exposed_provenance::<AtomicU64>(address + at * 8);
                        // SAFETY: an aligned word of the buffer, which outlives the threads.
                        let bytes = unsafe { &*word }.load(Ordering::Relaxed).to_ne_bytes();
                        let whole = bytes.iter().all(|&byte| byte == bytes[0]);
                        assert!(whole, "{name} {dst_at} {src_at} word {at}: {bytes:x?}");
                    }
                },
                20_000,
            );
        }
    }
}

#[test]
fn whoever_sees_the_last_word_sees_all_before_it() {
    for (len, rounds) in [(72, 20_000), (4096, 5_000), (1 << 20, 300)] {
        let words = len / 8;
        let mut target = pages(len);
        let base = target.as_mut_ptr().cast::<u8>();
        let address = base.expose_provenance();
        let word = |at: usize| {
            let word = std::ptr::with_exposed_provenance::<AtomicU64>(address + at * 8);
            // SAFETY: an aligned word of the buffer, which outlives the threads.
            unsafe { &*word }
        };
        beside(
            |round| {
                let src = vec![round; words];
                // SAFETY: both buffers are `len` bytes long; the reader uses atomics, as of a device's memory.
                unsafe { copy(base, src.as_ptr().cast(), len) };
            },
            || {
                let last = word(words - 1).load(Ordering::Acquire);
                // Some from everywhere, and all just before the last.
                let some = (0..words - 1).step_by(1 + words / 64);
                for at in some.chain(words.saturating_sub(32)..words - 1) {
                    let earlier = word(at).load(Ordering::Relaxed);
                    assert!(
                        earlier >= last,
                        "{len}: word {at} is {earlier}, the last {last}"
                    );
                }
            },
            rounds,
        );
    }
}
