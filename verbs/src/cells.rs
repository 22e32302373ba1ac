//! Copies to and from memory that somebody else may be writing.
//!
//! No reference to such memory may exist, and a plain copy of it would be a data race. Each access here is a relaxed atomic: the bytes
//! seen may be old, new or a mixture, and nothing worse.
//!
//! One place is always accessed in one size, since atomics of different sizes on one place are a race as well: the aligned words of a
//! region as words, what is left at its ends as bytes. Part of a word is written by replacing the word if it is still what it was.

use std::ops::Range;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering::Relaxed};

const WORD: usize = size_of::<u64>();
/// Copied without a loop: a cache line.
const LINE: usize = 8 * WORD;

/// All of a region's memory, and which of it is words.
#[derive(Clone, Copy)]
pub(crate) struct Cells {
    base: *mut u8,
    /// Offset of the first word.
    first: usize,
    /// Offset behind the last.
    end: usize,
}

/// A piece of a copy: bytes of the region, within one word or outside of them.
enum Piece {
    /// `word` is its offset.
    InWord {
        word: usize,
        within: Range<usize>,
    },
    Byte,
}

impl Cells {
    /// # Safety
    /// `base..base+len` is mapped, for writing if [`write`](Self::write) is called, and accessed by others in this process only through
    /// cells of the same base and length, or as words that are aligned.
    #[inline]
    pub(crate) unsafe fn new(base: *mut u8, len: usize) -> Cells {
        let first = base.align_offset(WORD).min(len);
        let end = first + (len - first) / WORD * WORD;
        Cells { base, first, end }
    }

    /// What is at `at`, of which `len` bytes are to be copied.
    #[inline(always)]
    fn piece(&self, at: usize, len: usize) -> Piece {
        if at < self.first || at >= self.end {
            return Piece::Byte;
        }
        let skip = (at - self.first) % WORD;
        Piece::InWord {
            word: at - skip,
            within: skip..WORD.min(skip + len),
        }
    }

    /// # Safety
    /// A word of the region.
    #[inline(always)]
    unsafe fn word(&self, at: usize) -> &AtomicU64 {
        // SAFETY: the contracts of this and of `new`; words are aligned by choice of the first.
        unsafe { AtomicU64::from_ptr(self.base.add(at).cast()) }
    }

    /// # Safety
    /// A byte of the region, outside of its words.
    unsafe fn byte(&self, at: usize) -> &AtomicU8 {
        // SAFETY: the contracts of this and of `new`.
        unsafe { AtomicU8::from_ptr(self.base.add(at)) }
    }

    /// Whether all of such a piece is whole words in lines of them, so that [`read_lines`] copies it.
    #[inline(always)]
    pub(crate) fn are_lines(base: *mut u8, offset: usize, len: usize) -> bool {
        (base.addr() | offset).is_multiple_of(WORD) && len.is_multiple_of(LINE)
    }

    /// Copies from `offset` on.
    ///
    /// # Safety
    /// `offset..offset+out.len()` lies within the region.
    #[inline]
    pub(crate) unsafe fn read(&self, offset: usize, out: &mut [u8]) {
        let (mut at, mut left) = (offset, out);
        while !left.is_empty() {
            let count = match self.piece(at, left.len()) {
                Piece::InWord { word, within } => {
                    // SAFETY: `piece` names words of the region.
                    let value = unsafe { self.word(word) }.load(Relaxed).to_ne_bytes();
                    let count = within.len();
                    left[..count].copy_from_slice(&value[within]);
                    count
                }
                Piece::Byte => {
                    // SAFETY: within the region by the caller's contract, and no word.
                    left[0] = unsafe { self.byte(at) }.load(Relaxed);
                    1
                }
            };
            at += count;
            left = &mut left[count..];
        }
    }

    /// Copies to `offset` on.
    ///
    /// # Safety
    /// `offset..offset+bytes.len()` lies within the region.
    pub(crate) unsafe fn write(&self, offset: usize, bytes: &[u8]) {
        let (mut at, mut left) = (offset, bytes);
        while !left.is_empty() {
            let count = match self.piece(at, left.len()) {
                Piece::InWord { word, within } => {
                    let count = within.len();
                    // SAFETY: `piece` names words of the region.
                    replace(unsafe { self.word(word) }, within, &left[..count]);
                    count
                }
                Piece::Byte => {
                    // SAFETY: within the region by the caller's contract, and no word.
                    unsafe { self.byte(at) }.store(left[0], Relaxed);
                    1
                }
            };
            at += count;
            left = &left[count..];
        }
    }
}

/// Stores `bytes` in the part of the word.
#[inline(always)]
fn replace(word: &AtomicU64, within: Range<usize>, bytes: &[u8]) {
    if let Ok(all) = <[u8; WORD]>::try_from(bytes) {
        word.store(u64::from_ne_bytes(all), Relaxed);
        return;
    }
    let mut old = word.load(Relaxed);
    loop {
        let mut new = old.to_ne_bytes();
        new[within.clone()].copy_from_slice(bytes);
        match word.compare_exchange_weak(old, u64::from_ne_bytes(new), Relaxed, Relaxed) {
            Ok(_) => return,
            // A neighbour was written.
            Err(now) => old = now,
        }
    }
}

/// Copies lines, without a look at each word: the quick way for messages in rings.
///
/// # Safety
/// As [`Cells::new`] and [`Cells::read`], for what [`Cells::are_lines`] agrees to.
#[inline(always)]
pub(crate) unsafe fn read_lines(base: *mut u8, offset: usize, out: &mut [u8]) {
    // SAFETY: within the region.
    let mut at = unsafe { base.add(offset) };
    for line in out.as_chunks_mut::<LINE>().0 {
        // SAFETY: a line of the region, of whole words.
        unsafe { read_line(at, line) };
        // SAFETY: still within the region, or at its end.
        at = unsafe { at.add(LINE) };
    }
}

/// The other way round, word by word: what is written here has often just been put together out of words, and is not to be read by more at once.
///
/// # Safety
/// As for [`read_lines`].
#[inline(always)]
pub(crate) unsafe fn write_lines(base: *mut u8, offset: usize, bytes: &[u8]) {
    // SAFETY: within the region.
    let mut at = unsafe { base.add(offset) };
    for line in bytes.as_chunks::<LINE>().0 {
        for (i, from) in line.as_chunks::<WORD>().0.iter().enumerate() {
            // SAFETY: a word of the region: aligned as its base is, and within it.
            let word = unsafe { AtomicU64::from_ptr(at.add(i * WORD).cast()) };
            word.store(u64::from_ne_bytes(*from), Relaxed);
        }
        // SAFETY: still within the region, or at its end.
        at = unsafe { at.add(LINE) };
    }
}

/// Copies a line in four steps. To the compiler, and so to everybody who may write the line meanwhile, this is as good as atomic: it cannot
/// assume anything about what was read.
///
/// # Safety
/// The line is one of the region's.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn read_line(at: *const u8, line: &mut [u8; LINE]) {
    // SAFETY: reads and writes 64 bytes, which the caller vouches for and which `line` has; touches no stack or flags.
    unsafe {
        std::arch::asm!(
            "movups {a}, [{from}]",
            "movups {b}, [{from} + 16]",
            "movups {c}, [{from} + 32]",
            "movups {d}, [{from} + 48]",
            "movups [{to}], {a}",
            "movups [{to} + 16], {b}",
            "movups [{to} + 32], {c}",
            "movups [{to} + 48], {d}",
            from = in(reg) at,
            to = in(reg) line.as_mut_ptr(),
            a = out(xmm_reg) _,
            b = out(xmm_reg) _,
            c = out(xmm_reg) _,
            d = out(xmm_reg) _,
            options(nostack, preserves_flags),
        );
    }
}

/// Copies a line, word by word.
///
/// # Safety
/// The line is one of the region's.
#[cfg(not(target_arch = "x86_64"))]
#[inline(always)]
unsafe fn read_line(at: *mut u8, line: &mut [u8; LINE]) {
    for (i, to) in line.as_chunks_mut::<WORD>().0.iter_mut().enumerate() {
        // SAFETY: a word of the region: aligned as its base is, and within it.
        let word = unsafe { AtomicU64::from_ptr(at.add(i * WORD).cast()) };
        *to = word.load(Relaxed).to_ne_bytes();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn copies_exactly_the_range(
            start in 0usize..8, size in 1usize..80, from: prop::sample::Index, to: prop::sample::Index, seed: u8,
        ) {
            let (a, b) = (from.index(size + 1), to.index(size + 1));
            let range = a.min(b)..a.max(b);
            let data: Vec<u8> = range.clone().map(|i| seed ^ i as u8).collect();
            let mut memory = vec![0xa5u8; 96];
            // SAFETY: `start` and `size` stay below 96; only this thread uses the memory, through the cells.
            let cells = unsafe { Cells::new(memory.as_mut_ptr().add(start), size) };
            let mut back = vec![0; data.len()];
            // SAFETY: the range lies within `size`.
            unsafe {
                cells.write(range.start, &data);
                cells.read(range.start, &mut back);
            }
            prop_assert_eq!(&back, &data);
            for (at, byte) in memory.iter().enumerate() {
                let inside = range.contains(&at.wrapping_sub(start));
                prop_assert!(inside || *byte == 0xa5);
            }
        }
    }

    #[test]
    fn lines_are_read_as_pieces_are() {
        let memory: Vec<AtomicU64> = (0..40).map(|n| AtomicU64::new(n * 0x0101_0307)).collect();
        let base = memory.as_ptr().cast_mut().cast::<u8>();
        let size = memory.len() * WORD;
        // SAFETY: this thread's memory, accessed as words.
        let cells = unsafe { Cells::new(base, size) };
        let mut agreed = 0;
        for (offset, len) in (0..=64).flat_map(|at| (0..=256).map(move |len| (at, len))) {
            let (mut pieces, mut lines) = (vec![0; len], vec![0xa5; len]);
            // SAFETY: within the region; lines as they have to be.
            unsafe {
                cells.read(offset, &mut pieces);
                if !Cells::are_lines(base, offset, len) {
                    continue;
                }
                read_lines(base, offset, &mut lines);
            }
            assert_eq!(pieces, lines, "{len} bytes from {offset}");
            agreed += 1;
        }
        assert_eq!(agreed, 9 * 5);
    }

    #[test]
    fn writers_of_one_word_do_not_undo_each_other() {
        let memory = [AtomicU64::new(0)];
        let base = memory.as_ptr().cast_mut().cast::<u8>();
        // SAFETY: one word, accessed as a word only.
        let cells = unsafe { Cells::new(base, WORD) };
        struct Shared(Cells);
        // SAFETY: accessed through atomics only.
        unsafe impl Sync for Shared {}
        let shared = Shared(cells);
        std::thread::scope(|s| {
            for at in 0..WORD {
                let shared = &shared;
                s.spawn(move || {
                    for n in 0..10_000u32 {
                        let mut seen = [0];
                        // SAFETY: within the word.
                        unsafe {
                            shared.0.write(at, &[n as u8]);
                            shared.0.read(at, &mut seen);
                        }
                        assert_eq!(seen, [n as u8]);
                    }
                });
            }
        });
    }
}
