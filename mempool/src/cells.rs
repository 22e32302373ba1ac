//! Copies to and from memory that a peer may be writing at the same time.
//!
//! Every access is a relaxed atomic, of a byte or of an aligned word, so that what a peer writes can only make bytes wrong.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

const WORD: usize = size_of::<u64>();

/// Where the aligned words of `addr..addr+len` begin and end, as offsets.
fn words_of(addr: usize, len: usize) -> (usize, usize) {
    let start = (addr.next_multiple_of(WORD) - addr).min(len);
    (start, start + (len - start) / WORD * WORD)
}

/// # Safety
/// `from..from+to.len()` is mapped, and this process touches it by atomics only.
pub(crate) unsafe fn read(from: *mut u8, to: &mut [u8]) {
    let (start, end) = words_of(from.addr(), to.len());
    for at in (0..start).chain(end..to.len()) {
        // SAFETY: within the range of the caller's promise.
        to[at] = unsafe { AtomicU8::from_ptr(from.add(at)) }.load(Ordering::Relaxed);
    }
    for at in (start..end).step_by(WORD) {
        // SAFETY: as above, and aligned by `words_of`.
        let word = unsafe { AtomicU64::from_ptr(from.add(at).cast()) }.load(Ordering::Relaxed);
        to[at..at + WORD].copy_from_slice(&word.to_ne_bytes());
    }
}

/// # Safety
/// `to..to+from.len()` is mapped, and this process touches it by atomics only.
pub(crate) unsafe fn write(to: *mut u8, from: &[u8]) {
    let (start, end) = words_of(to.addr(), from.len());
    for at in (0..start).chain(end..from.len()) {
        // SAFETY: within the range of the caller's promise.
        unsafe { AtomicU8::from_ptr(to.add(at)) }.store(from[at], Ordering::Relaxed);
    }
    for at in (start..end).step_by(WORD) {
        let word = from[at..at + WORD].try_into().map(u64::from_ne_bytes);
        // SAFETY: as above, and aligned by `words_of`.
        let cell = unsafe { AtomicU64::from_ptr(to.add(at).cast()) };
        cell.store(word.expect("a word's bytes"), Ordering::Relaxed);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn copies_are_exact(offset in 0usize..16, bytes in prop::collection::vec(any::<u8>(), 0..80)) {
            let mut memory = vec![0xaau8; 128];
            let at = memory.as_mut_ptr().wrapping_add(offset);
            let mut back = vec![0; bytes.len()];
            // SAFETY: 16 + 80 bytes lie within the memory, which nobody else touches.
            unsafe {
                write(at, &bytes);
                read(at, &mut back);
            }
            prop_assert_eq!(&back, &bytes);
            let end = offset + bytes.len();
            prop_assert_eq!(&memory[offset..end], &bytes[..]);
            prop_assert!(memory[..offset].iter().chain(&memory[end..]).all(|b| *b == 0xaa));
        }
    }
}
