//! Copies to and from memory that somebody else may be writing.
//!
//! No reference to such memory may exist, and a plain copy of it would be a data race. Each access here is a relaxed atomic of
//! one byte, or of eight where aligned: the bytes seen may be old, new or a mixture, and nothing worse.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering::Relaxed};

const WORD: usize = size_of::<u64>();

/// Copies from cells.
///
/// # Safety
/// `src..src+dst.len()` must be mapped, and accessed by others in this process through atomics only.
pub(crate) unsafe fn read(src: *const u8, dst: &mut [u8]) {
    let head = src.align_offset(WORD).min(dst.len());
    let (first, rest) = dst.split_at_mut(head);
    // SAFETY: the caller's contract; offsets stay below the length of `dst`, and words are aligned by choice of `head`.
    unsafe {
        bytes_in(src, first);
        let mut at = src.add(head);
        let mut words = rest.chunks_exact_mut(WORD);
        for word in &mut words {
            let value = AtomicU64::from_ptr(at.cast_mut().cast()).load(Relaxed);
            word.copy_from_slice(&value.to_ne_bytes());
            at = at.add(WORD);
        }
        bytes_in(at, words.into_remainder());
    }
}

/// Copies to cells.
///
/// # Safety
/// `dst..dst+src.len()` must be mapped writable, and accessed by others in this process through atomics only.
pub(crate) unsafe fn write(dst: *mut u8, src: &[u8]) {
    let head = dst.align_offset(WORD).min(src.len());
    let (first, rest) = src.split_at(head);
    // SAFETY: as in `read`.
    unsafe {
        bytes_out(dst, first);
        let mut at = dst.add(head);
        let words = rest.chunks_exact(WORD);
        let last = words.remainder();
        for word in words {
            let mut value = [0; WORD];
            value.copy_from_slice(word);
            AtomicU64::from_ptr(at.cast()).store(u64::from_ne_bytes(value), Relaxed);
            at = at.add(WORD);
        }
        bytes_out(at, last);
    }
}

/// # Safety
/// As [`read`].
unsafe fn bytes_in(src: *const u8, dst: &mut [u8]) {
    for (i, byte) in dst.iter_mut().enumerate() {
        // SAFETY: the caller's contract.
        *byte = unsafe { AtomicU8::from_ptr(src.add(i).cast_mut()) }.load(Relaxed);
    }
}

/// # Safety
/// As [`write`].
unsafe fn bytes_out(dst: *mut u8, src: &[u8]) {
    for (i, byte) in src.iter().enumerate() {
        // SAFETY: the caller's contract.
        unsafe { AtomicU8::from_ptr(dst.add(i)) }.store(*byte, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn copies_exactly_the_range(offset in 0usize..20, data in prop::collection::vec(any::<u8>(), 0..100)) {
            let mut cells = vec![0xa5u8; 128];
            let p = cells.as_mut_ptr();
            let mut back = vec![0; data.len()];
            // SAFETY: offset + length stay below 128.
            unsafe {
                write(p.add(offset), &data);
                read(p.add(offset), &mut back);
            }
            prop_assert_eq!(&back, &data);
            prop_assert!(cells[..offset].iter().all(|b| *b == 0xa5));
            prop_assert!(cells[offset + data.len()..].iter().all(|b| *b == 0xa5));
        }
    }
}
