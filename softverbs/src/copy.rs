//! The device's copy. To the compiler it is an outside agent, as a real device's DMA engine is: inline assembly
//! that may read and write any memory, so that nothing is assumed about the bytes on either side, which other threads and
//! processes use at the same time.
//!
//! Promises, on which WRITE's and SEND's visibility rests:
//! * Addresses ascend, so whoever sees the last bytes sees all before them. (From 1 MiB the body bypasses the
//!   caches and may become visible in any order, but before the last bytes.)
//! * The destination's aligned 8-byte words are stored whole, and read whole if the source is aligned alike, so an
//!   aligned word is never torn.
//! * Never `rep movsb`, which is some 25 times slower on common processors if the destination lies 1 to 63 bytes after
//!   the source modulo 4096.
//!
//! Overlapping ranges end up with unspecified bytes, as with a real device, unless the destination is below the
//! source and less than 1 MiB is copied.
//!
//! Under `cfg(verbatim_asan)`, and on other processors, it is a loop of volatile accesses: address sanitizer cannot
//! see into assembly.

/// From here on copies bypass the caches: what is copied is more than a core's cache keeps anyway.
#[cfg(all(target_arch = "x86_64", not(verbatim_asan), not(miri)))]
const NON_TEMPORAL: usize = 1 << 20;

/// Copies `len` bytes from `src` to `dst` as described above.
///
/// # Safety
/// `src` must be mapped readable and `dst` mapped writable for `len` bytes until the call returns. Both may be used by
/// others meanwhile, as memory is that a device works on.
#[inline]
pub(crate) unsafe fn copy(dst: *mut u8, src: *const u8, len: usize) {
    #[cfg(all(target_arch = "x86_64", not(verbatim_asan), not(miri)))]
    // SAFETY: the caller's promise is the one asked for.
    unsafe {
        vector::copy(dst, src, len);
    }
    #[cfg(not(all(target_arch = "x86_64", not(verbatim_asan), not(miri))))]
    // SAFETY: the caller's promise is the one asked for.
    unsafe {
        words::copy(dst, src, len);
    }
}

/// Copies like [`copy`], in slices of 1 to 4096 bytes whose lengths come from `rng`, with a call of `pause` between
/// any two. Slices end where a word of the destination ends, so words stay whole.
///
/// # Safety
/// As [`copy`], also during the pauses.
pub(crate) unsafe fn copy_sliced(
    dst: *mut u8,
    src: *const u8,
    len: usize,
    rng: &mut Rng,
    mut pause: impl FnMut(),
) {
    let mut done = 0;
    while done < len {
        if done > 0 {
            pause();
        }
        let wanted = done + 1 + rng.below(4096) as usize;
        // Down to the end of a word, or up if that leaves nothing.
        let misaligned = dst.addr().wrapping_add(wanted) % 8;
        let end = match wanted - misaligned.min(wanted) {
            end if end > done => end,
            _ => wanted + (8 - misaligned),
        };
        let end = end.min(len);
        // SAFETY: done..end is a part of 0..len.
        unsafe { copy(dst.add(done), src.add(done), end - done) };
        done = end;
    }
}

/// A small generator of repeatable numbers (splitmix64) for the asynchronous mode. Not for secrets.
#[derive(Clone, Debug)]
pub(crate) struct Rng(u64);

impl Rng {
    /// The sequence of a seed.
    pub(crate) fn new(seed: u64) -> Rng {
        Rng(seed)
    }

    /// The next number.
    pub(crate) fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `bound`, 0 for bound 0. Slightly uneven, which does not matter here.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next_u64()) * u128::from(bound)) >> 64) as u64
    }
}

#[cfg(all(target_arch = "x86_64", not(verbatim_asan), not(miri)))]
mod vector {
    use super::NON_TEMPORAL;
    use std::arch::asm;

    /// One load and one store through a register of the given kind.
    macro_rules! move_one {
        ($dst:expr, $src:expr, $mov:literal, $class:ident, $load:literal, $store:literal) => {
            asm!(
                concat!($mov, $load),
                concat!($mov, $store),
                dst = in(reg) $dst,
                src = in(reg) $src,
                value = out($class) _,
                options(nostack, preserves_flags),
            )
        };
    }

    /// # Safety
    /// As [`super::copy`].
    pub(super) unsafe fn copy(mut dst: *mut u8, mut src: *const u8, len: usize) {
        let mut left = len;
        // SAFETY: every step moves at most `left` bytes, which lie in the caller's ranges, and moves on by as many.
        unsafe {
            // Head: to a destination that is a multiple of 16, in steps that are each aligned there.
            step(&mut dst, &mut src, &mut left, 1);
            step(&mut dst, &mut src, &mut left, 2);
            step(&mut dst, &mut src, &mut left, 4);
            step(&mut dst, &mut src, &mut left, 8);
            if left >= NON_TEMPORAL {
                let body = (left - 64) & !63;
                stream(dst, src, body);
                (dst, src, left) = (dst.add(body), src.add(body), left - body);
            }
            if left >= 64 {
                let body = left & !63;
                body_of_lines(dst, src, body);
                (dst, src, left) = (dst.add(body), src.add(body), left - body);
            }
            while left >= 16 {
                asm!(
                    "movups {value}, [{src}]",
                    "movups [{dst}], {value}",
                    dst = in(reg) dst,
                    src = in(reg) src,
                    value = out(xmm_reg) _,
                    options(nostack, preserves_flags),
                );
                (dst, src, left) = (dst.add(16), src.add(16), left - 16);
            }
            // Tail: the destination is aligned for each of these steps, also if the head stopped short.
            if left >= 8 {
                one(dst, src, 8);
                (dst, src, left) = (dst.add(8), src.add(8), left - 8);
            }
            if left >= 4 {
                one(dst, src, 4);
                (dst, src, left) = (dst.add(4), src.add(4), left - 4);
            }
            if left >= 2 {
                one(dst, src, 2);
                (dst, src, left) = (dst.add(2), src.add(2), left - 2);
            }
            if left >= 1 {
                one(dst, src, 1);
            }
        }
    }

    /// Moves `size` bytes if that takes the destination to the next higher alignment and so many are left.
    ///
    /// # Safety
    /// `left` bytes are the caller's on both sides.
    #[inline(always)]
    unsafe fn step(dst: &mut *mut u8, src: &mut *const u8, left: &mut usize, size: usize) {
        if dst.addr() & size != 0 && *left >= size {
            // SAFETY: `size` is at most `left`.
            unsafe {
                one(*dst, *src, size);
                (*dst, *src) = (dst.add(size), src.add(size));
            }
            *left -= size;
        }
    }

    /// Moves 1, 2, 4 or 8 bytes by one load and one store.
    ///
    /// # Safety
    /// `size` bytes are the caller's on both sides.
    #[inline(always)]
    unsafe fn one(dst: *mut u8, src: *const u8, size: usize) {
        // SAFETY: the assembly reads and writes `size` bytes at the addresses given and touches no stack or flags.
        unsafe {
            match size {
                8 => move_one!(
                    dst,
                    src,
                    "mov ",
                    reg,
                    "{value}, [{src}]",
                    "[{dst}], {value}"
                ),
                4 => move_one!(
                    dst,
                    src,
                    "mov ",
                    reg,
                    "{value:e}, [{src}]",
                    "[{dst}], {value:e}"
                ),
                2 => move_one!(
                    dst,
                    src,
                    "mov ",
                    reg,
                    "{value:x}, [{src}]",
                    "[{dst}], {value:x}"
                ),
                _ => move_one!(
                    dst,
                    src,
                    "mov ",
                    reg_byte,
                    "{value}, [{src}]",
                    "[{dst}], {value}"
                ),
            }
        }
    }

    /// `len`, a multiple of 64 and not 0, 64 bytes at a time.
    ///
    /// # Safety
    /// `len` bytes are the caller's on both sides, and `dst` is a multiple of 16.
    #[inline(always)]
    unsafe fn body_of_lines(dst: *mut u8, src: *const u8, len: usize) {
        // SAFETY: the loop touches `len` bytes on both sides; registers and flags are declared.
        unsafe {
            asm!(
                "2:",
                "movups {a}, [{src}]",
                "movups {b}, [{src} + 16]",
                "movups {c}, [{src} + 32]",
                "movups {d}, [{src} + 48]",
                "movaps [{dst}], {a}",
                "movaps [{dst} + 16], {b}",
                "movaps [{dst} + 32], {c}",
                "movaps [{dst} + 48], {d}",
                "add {src}, 64",
                "add {dst}, 64",
                "sub {len}, 64",
                "jnz 2b",
                dst = inout(reg) dst => _,
                src = inout(reg) src => _,
                len = inout(reg) len => _,
                a = out(xmm_reg) _,
                b = out(xmm_reg) _,
                c = out(xmm_reg) _,
                d = out(xmm_reg) _,
                options(nostack),
            );
        }
    }

    /// The same past the caches, complete before anything stored later.
    ///
    /// # Safety
    /// As [`body_of_lines`].
    unsafe fn stream(dst: *mut u8, src: *const u8, len: usize) {
        // SAFETY: the loop touches `len` bytes on both sides; registers and flags are declared.
        unsafe {
            asm!(
                "2:",
                "movups {a}, [{src}]",
                "movups {b}, [{src} + 16]",
                "movups {c}, [{src} + 32]",
                "movups {d}, [{src} + 48]",
                "movntps [{dst}], {a}",
                "movntps [{dst} + 16], {b}",
                "movntps [{dst} + 32], {c}",
                "movntps [{dst} + 48], {d}",
                "add {src}, 64",
                "add {dst}, 64",
                "sub {len}, 64",
                "jnz 2b",
                "sfence",
                dst = inout(reg) dst => _,
                src = inout(reg) src => _,
                len = inout(reg) len => _,
                a = out(xmm_reg) _,
                b = out(xmm_reg) _,
                c = out(xmm_reg) _,
                d = out(xmm_reg) _,
                options(nostack),
            );
        }
    }
}

#[cfg(any(test, not(all(target_arch = "x86_64", not(verbatim_asan), not(miri)))))]
mod words {
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
}
