//! Size classes: which slab a length gets, and how a chunk is cut into slabs.
//!
//! Up to a page there are two classes per doubling, all multiples of 64 bytes. Above a page there are
//! four per doubling, which keeps the unused tail of a slab at or below 25 % of it. Slabs of a page and
//! more start on a page boundary; where the class is no multiple of the page (5, 6, 7, 10 and 14 KiB), what
//! lies between the end of one slab and the next page boundary becomes a slab of a smaller class, instead
//! of being lost. The same is done with what is left at the end of a chunk.

use crate::stack::Stack;

/// Alignment of every slab, in bytes: one cache line.
pub const LINE: usize = 64;
/// Alignment of slabs of this length and more, in bytes.
pub const PAGE: usize = 4096;
/// A chunk: what one size class takes from an arena at a time, in bytes.
pub const CHUNK: usize = 2 << 20;
/// The largest length that comes from a size class, in bytes; larger ones take whole chunks.
pub const MAX_CLASSED: usize = 1 << 20;
/// The largest length that the pool gives, in bytes.
pub const MAX_LEN: usize = 1 << 30;

/// How many size classes there are.
pub const CLASSES: usize = SMALL.len() + 4 * DOUBLINGS;

const SMALL: [u32; 12] = [
    64, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096,
];
const DOUBLINGS: usize = (MAX_CLASSED / PAGE).trailing_zeros() as usize;

const _: () = {
    assert!(SMALL[SMALL.len() - 1] as usize == PAGE);
    assert!(CLASSES < u8::MAX as usize);
    assert!(MAX_CLASSED * 2 <= CHUNK && MAX_LEN.is_multiple_of(CHUNK));
};

/// Slab size of each class, in bytes.
pub(crate) const SIZES: [u32; CLASSES] = {
    let mut sizes = [0; CLASSES];
    let mut i = 0;
    while i < SMALL.len() {
        sizes[i] = SMALL[i];
        i += 1;
    }
    while i < CLASSES {
        let quarter = (i - SMALL.len()) % 4;
        let base = (PAGE as u32) << ((i - SMALL.len()) / 4);
        sizes[i] = base / 4 * (5 + quarter as u32);
        i += 1;
    }
    sizes
};

/// What the numbers of classes are multiplied by in the tables, so that a thread's stack of a class is found without any further step.
pub(crate) const SCALE: usize = size_of::<Stack>();

const _: () = assert!(CLASSES * SCALE <= u16::MAX as usize);

/// Class of a length up to a page, by its number of cache lines.
const BY_LINES: [u16; PAGE / LINE + 1] = classes_by(LINE);

/// All classes above a page are multiples of this.
const KIB: usize = 1024;

/// Class of any length, by its number of KiB; for lengths above a page.
const BY_KIB: [u16; MAX_CLASSED / KIB + 1] = classes_by(KIB);

/// For each number of units, the smallest class that holds so many, times [`SCALE`].
const fn classes_by<const N: usize>(unit: usize) -> [u16; N] {
    let mut table = [0; N];
    let (mut units, mut class) = (0, 0);
    while units < N {
        while units * unit > SIZES[class] as usize {
            class += 1;
        }
        table[units] = (class * SCALE) as u16;
        units += 1;
    }
    table
}

/// The class of a length between 1 and [`MAX_CLASSED`]; `None` above. (0 counts as 1.)
pub(crate) fn class_of(len: usize) -> Option<usize> {
    scaled_class_of(len).map(|scaled| scaled / SCALE)
}

/// [`class_of`], times [`SCALE`].
#[inline(always)]
pub(crate) fn scaled_class_of(len: usize) -> Option<usize> {
    // Look-ups are shorter than computing the logarithm.
    if len <= PAGE {
        Some(BY_LINES[len.div_ceil(LINE)] as usize)
    } else if len <= MAX_CLASSED {
        Some(BY_KIB[len.div_ceil(KIB)] as usize)
    } else {
        None
    }
}

/// The slab size that `len` bytes get, in bytes: what a budget is charged for them.
///
/// 0 for 0; above [`MAX_CLASSED`] the length in whole pages; above [`MAX_LEN`] there is none.
///
/// ```
/// assert_eq!(mempool::slab_size(100), Some(128));
/// assert_eq!(mempool::slab_size(4096), Some(4096));
/// assert_eq!(mempool::slab_size(5000), Some(5120));
/// assert_eq!(mempool::slab_size((1 << 20) + 1), Some((1 << 20) + 4096));
/// assert_eq!(mempool::slab_size(usize::MAX), None);
/// ```
pub fn slab_size(len: usize) -> Option<usize> {
    if len == 0 {
        return Some(0);
    }
    match class_of(len) {
        Some(class) => Some(SIZES[class] as usize),
        None if len <= MAX_LEN => Some(len.next_multiple_of(PAGE)),
        None => None,
    }
}

/// One row of equal slabs in a chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Row {
    pub class: usize,
    /// Of the first slab, in bytes from the chunk's start.
    pub offset: usize,
    /// From one slab's start to the next one's, in bytes.
    pub stride: usize,
    pub count: usize,
}

/// How a chunk is cut for `class`: the row of its slabs, and the row made of what they leave over.
pub(crate) fn cut(class: usize) -> (Row, Option<Row>) {
    let size = SIZES[class] as usize;
    let align = if size >= PAGE { PAGE } else { LINE };
    let stride = size.next_multiple_of(align);
    let count = CHUNK / stride;
    let main = Row {
        class,
        offset: 0,
        stride,
        count,
    };
    let (tail, rest) = (stride - size, CHUNK - count * stride);
    let second = if tail >= LINE {
        largest_within(tail).map(|class| Row {
            class,
            offset: size,
            stride,
            count,
        })
    } else if rest >= 16 * PAGE {
        largest_within(rest).map(|class| Row {
            class,
            offset: count * stride,
            stride: rest,
            count: 1,
        })
    } else {
        None
    };
    (main, second)
}

fn largest_within(len: usize) -> Option<usize> {
    SIZES.iter().rposition(|&size| size as usize <= len)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn sizes_grow_and_end_at_the_largest_class() {
        assert!(SIZES.windows(2).all(|w| w[0] < w[1]));
        assert_eq!(SIZES[0], 64);
        assert_eq!(SIZES[CLASSES - 1] as usize, MAX_CLASSED);
        assert!(SIZES.iter().all(|s| (*s as usize).is_multiple_of(LINE)));
    }

    #[test]
    fn every_length_gets_the_smallest_class_that_holds_it() {
        for len in 1..=MAX_CLASSED {
            let class = class_of(len).unwrap();
            assert!(SIZES[class] as usize >= len, "{len}");
            assert!(class == 0 || (SIZES[class - 1] as usize) < len, "{len}");
        }
        assert_eq!(class_of(MAX_CLASSED + 1), None);
    }

    #[test]
    fn a_cut_chunk_has_no_overlap_and_keeps_alignment() {
        for class in 0..CLASSES {
            let (main, second) = cut(class);
            assert!(main.count >= 2, "class {class}");
            let mut spans = Vec::new();
            for row in [Some(main), second].into_iter().flatten() {
                let size = SIZES[row.class] as usize;
                let align = if size >= PAGE { PAGE } else { LINE };
                for i in 0..row.count {
                    let start = row.offset + i * row.stride;
                    assert_eq!(start % align, 0, "class {class}");
                    spans.push((start, start + size));
                }
            }
            spans.sort_unstable();
            assert!(spans.windows(2).all(|w| w[0].1 <= w[1].0), "class {class}");
            assert!(spans.last().unwrap().1 <= CHUNK);
            let used: usize = spans.iter().map(|(a, b)| b - a).sum();
            assert!(
                used * 16 >= CHUNK * 15,
                "class {class} uses {used} of a chunk"
            );
        }
    }

    proptest! {
        #[test]
        fn at_most_a_quarter_of_a_slab_is_unused_above_a_page(len in PAGE + 1..=MAX_CLASSED) {
            let size = slab_size(len).unwrap();
            prop_assert!((size - len) * 4 <= size, "{len} in {size}");
        }

        #[test]
        fn lengths_above_the_largest_class_are_rounded_to_pages(len in MAX_CLASSED + 1..=MAX_LEN) {
            let size = slab_size(len).unwrap();
            prop_assert!(size >= len && size - len < PAGE && size.is_multiple_of(PAGE));
        }
    }
}
