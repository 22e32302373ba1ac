//! The copy as a loop of volatile accesses, for other processors and for the address sanitizer.

use std::sync::atomic::{Ordering, fence};

/// Volatile accesses: bytes up to the destination's first aligned word, words, the bytes that are left.
///
/// # Safety
/// As [`super::copy`].
pub(super) unsafe fn copy(dst: *mut u8, src: *const u8, len: usize) {
    let head = dst.align_offset(8).min(len);
    let tail = head + (len - head) / 8 * 8;
    // SAFETY: the three parts are 0..head, head..tail and tail..len of the caller's ranges; `dst + head` is
    // aligned to 8 if there is any word to copy.
    unsafe {
        bytes(dst, src, 0, head);
        let mut at = head;
        while at < tail {
            if at + 8 == tail {
                // On processors that may reorder stores: the last word after all before it.
                fence(Ordering::Release);
            }
            let from = src.add(at);
            let word = match from.addr() % 8 {
                0 => from.cast::<u64>().read_volatile(),
                _ => u64::from_ne_bytes(std::array::from_fn(|i| from.add(i).read_volatile())),
            };
            dst.add(at).cast::<u64>().write_volatile(word);
            at += 8;
        }
        fence(Ordering::Release);
        bytes(dst, src, tail, len);
    }
}

/// # Safety
/// `from..to` must lie in the caller's ranges.
unsafe fn bytes(dst: *mut u8, src: *const u8, from: usize, to: usize) {
    for at in from..to {
        // SAFETY: the caller's promise.
        unsafe { dst.add(at).write_volatile(src.add(at).read_volatile()) };
    }
}
