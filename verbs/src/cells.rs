//! Copies to and from memory that somebody else may be writing.
//!
//! No reference to such memory may exist, and a plain copy of it would be a data race. Each access here is a relaxed atomic: the bytes
//! seen may be old, new or a mixture, and nothing worse.
//!
//! One place is always accessed in one size, since atomics of different sizes on one place are a race as well: the aligned words of a
//! region as words, what is left at its ends as bytes. Part of a word is written by replacing the word if it is still what it was.

use crate::{CellError, OutOfBounds};
use std::marker::PhantomData;
use std::ops::Range;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering::Relaxed};

const WORD: usize = size_of::<u64>();
/// Copied without a loop: a cache line.
const LINE: usize = 8 * WORD;

/// Memory that somebody else may be writing, for as long as it is there: [`Exposed`](crate::Exposed) memory, and that of a pool.
///
/// Not in the documentation, as it is for those who make kinds of memory. The package `verbatim-mempool` uses it, which may be of another patch version.
#[derive(Clone, Copy)]
pub struct Cells<'a> {
    base: *mut u8,
    len: usize,
    memory: PhantomData<&'a AtomicU64>,
}

impl<'a> Cells<'a> {
    /// # Safety
    /// During `'a` `base..base+len` is mapped, for writing if it is written to, and accessed by others in this process only through
    /// cells of the same base and length.
    #[inline]
    pub unsafe fn new(base: *mut u8, len: usize) -> Cells<'a> {
        Cells {
            base,
            len,
            memory: PhantomData,
        }
    }

    #[inline]
    fn check(self, offset: usize, len: usize) -> Result<(), OutOfBounds> {
        OutOfBounds::check(offset as u64, len as u64, self.len as u64)
    }

    #[inline]
    fn pieces(self) -> Pieces {
        // SAFETY: the contract of `new`.
        unsafe { Pieces::new(self.base, self.len) }
    }

    /// Copies `out.len()` bytes from `offset`.
    ///
    /// # Errors
    /// [`OutOfBounds`] when they do not lie within the memory; nothing is copied then.
    #[inline]
    pub fn read_at(self, offset: usize, out: &mut [u8]) -> Result<(), OutOfBounds> {
        self.check(offset, out.len())?;
        if are_lines(self.base, offset, out.len()) {
            // SAFETY: in bounds, and as for `pieces`.
            unsafe { read_lines(self.base, offset, out) };
            return Ok(());
        }
        // SAFETY: in bounds.
        unsafe { self.pieces().read(offset, out) };
        Ok(())
    }

    /// Copies `bytes` to `offset`.
    ///
    /// # Errors
    /// [`OutOfBounds`] when they do not fit; nothing is copied then.
    #[inline]
    pub fn write_at(self, offset: usize, bytes: &[u8]) -> Result<(), OutOfBounds> {
        self.check(offset, bytes.len())?;
        if are_lines(self.base, offset, bytes.len()) {
            // SAFETY: in bounds, and as for `pieces`.
            unsafe { write_lines(self.base, offset, bytes) };
            return Ok(());
        }
        // SAFETY: in bounds.
        unsafe { self.pieces().write(offset, bytes) };
        Ok(())
    }

    /// The eight bytes at `offset`, in this machine's byte order.
    ///
    /// # Errors
    /// [`CellError`] when they do not lie within the memory or are not aligned.
    #[inline]
    pub fn atomic_u64(self, offset: usize) -> Result<&'a AtomicU64, CellError> {
        self.check(offset, WORD)?;
        let ptr = self.base.wrapping_add(offset);
        if !ptr.addr().is_multiple_of(WORD) {
            return Err(CellError::Misaligned { offset, size: WORD });
        }
        // SAFETY: in bounds and aligned, so one of the words; the memory is there during `'a` and only accessed as cells.
        Ok(unsafe { AtomicU64::from_ptr(ptr.cast()) })
    }
}

/// All of a region's memory, and which of it is words.
#[derive(Clone, Copy)]
struct Pieces {
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

impl Pieces {
    /// # Safety
    /// `base..base+len` is mapped, for writing if [`write`](Self::write) is called, and accessed by others in this process only in
    /// pieces of the same base and length, or as words that are aligned.
    #[inline]
    unsafe fn new(base: *mut u8, len: usize) -> Pieces {
        let first = base.align_offset(WORD).min(len);
        let end = first + (len - first) / WORD * WORD;
        Pieces { base, first, end }
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

    /// Copies from `offset` on.
    ///
    /// # Safety
    /// `offset..offset+out.len()` lies within the region.
    #[inline]
    unsafe fn read(&self, offset: usize, out: &mut [u8]) {
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
    unsafe fn write(&self, offset: usize, bytes: &[u8]) {
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

/// Whether all of such a piece is whole words in lines of them, so that [`read_lines`] copies it.
#[inline(always)]
fn are_lines(base: *mut u8, offset: usize, len: usize) -> bool {
    (base.addr() | offset).is_multiple_of(WORD) && len.is_multiple_of(LINE)
}

/// Copies lines, without a look at each word: the quick way for messages in rings.
///
/// # Safety
/// As [`Pieces::new`] and [`Pieces::read`], for what [`are_lines`] agrees to.
#[inline(always)]
unsafe fn read_lines(base: *mut u8, offset: usize, out: &mut [u8]) {
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
unsafe fn write_lines(base: *mut u8, offset: usize, bytes: &[u8]) {
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
            let cells = unsafe { Pieces::new(memory.as_mut_ptr().add(start), size) };
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

    /// Each byte of a copy, and the word that it is accessed by.
    fn accesses(pieces: &Pieces, range: Range<usize>) -> Vec<Option<usize>> {
        let mut all = Vec::new();
        let mut at = range.start;
        while at < range.end {
            let (count, word) = match pieces.piece(at, range.end - at) {
                Piece::InWord { word, within } => (within.len(), Some(word)),
                Piece::Byte => (1, None),
            };
            all.extend((0..count).map(|_| word));
            at += count;
        }
        all
    }

    /// A region of so many bytes at so many behind an aligned address, which are not accessed.
    fn unmapped(start: usize, size: usize) -> Pieces {
        let base = std::ptr::without_provenance_mut::<u8>(4096).wrapping_add(start);
        // SAFETY: nothing is read or written.
        unsafe { Pieces::new(base, size) }
    }

    #[test]
    fn a_place_is_accessed_in_one_size_by_whatever_range() {
        for (start, size) in (0..WORD).flat_map(|start| (0..40).map(move |size| (start, size))) {
            let pieces = unmapped(start, size);
            // The aligned word around a byte, if all of it is the region's.
            let expected: Vec<_> = (0..size)
                .map(|at| {
                    let word = ((start + at) / WORD * WORD).checked_sub(start)?;
                    (word + WORD <= size).then_some(word)
                })
                .collect();
            for (from, to) in (0..=size).flat_map(|from| (from..=size).map(move |to| (from, to))) {
                assert_eq!(
                    accesses(&pieces, from..to),
                    expected[from..to],
                    "{start} {size} {from}..{to}"
                );
            }
        }
    }

    #[test]
    fn all_ranges_are_copied_exactly_and_no_byte_more() {
        const SIZE: usize = 2 * LINE + 11;
        let memory: Vec<AtomicU64> = (0..SIZE / WORD + 2).map(|_| AtomicU64::new(0)).collect();
        for start in 0..WORD {
            let base = memory.as_ptr().cast_mut().cast::<u8>().wrapping_add(start);
            // SAFETY: within the memory, which only this thread uses, through these cells.
            let cells = unsafe { Cells::new(base, SIZE) };
            let mut model = vec![0; SIZE];
            cells.write_at(0, &model).unwrap();
            let (mut seed, mut all) = (start as u8, vec![0; SIZE]);
            for (from, to) in (0..=SIZE).flat_map(|from| (from..=SIZE).map(move |to| (from, to))) {
                seed = seed.wrapping_add(29);
                for (at, byte) in model[from..to].iter_mut().enumerate() {
                    *byte = seed ^ at as u8;
                }
                cells.write_at(from, &model[from..to]).unwrap();
                let mut back = vec![0; to - from];
                cells.read_at(from, &mut back).unwrap();
                assert_eq!(back, model[from..to], "{from}..{to} at {start}");
                cells.read_at(0, &mut all).unwrap();
                assert_eq!(all, model, "{from}..{to} at {start}");
            }
            assert!(cells.read_at(1, &mut all).is_err() && cells.write_at(SIZE, &[0]).is_err());
        }
    }

    #[test]
    fn lines_are_read_as_pieces_are() {
        let memory: Vec<AtomicU64> = (0..40).map(|n| AtomicU64::new(n * 0x0101_0307)).collect();
        let base = memory.as_ptr().cast_mut().cast::<u8>();
        let size = memory.len() * WORD;
        // SAFETY: this thread's memory, accessed as words.
        let cells = unsafe { Pieces::new(base, size) };
        let mut agreed = 0;
        for (offset, len) in (0..=64).flat_map(|at| (0..=256).map(move |len| (at, len))) {
            let (mut pieces, mut lines) = (vec![0; len], vec![0xa5; len]);
            // SAFETY: within the region; lines as they have to be.
            unsafe {
                cells.read(offset, &mut pieces);
                if !are_lines(base, offset, len) {
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
        let cells = unsafe { Pieces::new(base, WORD) };
        struct Shared(Pieces);
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
