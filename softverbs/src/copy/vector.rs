//! The copy in x86-64 assembly, SSE2 only, which every such processor has.

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
#[inline]
pub(super) unsafe fn copy(dst: *mut u8, src: *const u8, len: usize) {
    // Small messages are whole lines mostly, or whole words.
    if dst.addr().is_multiple_of(16) && len.is_multiple_of(8) && (8..=512).contains(&len) {
        let lines = len & !63;
        // SAFETY: by contract, and as was just checked.
        unsafe {
            if lines > 0 {
                body_of_lines(dst, src, lines);
            }
            if lines < len {
                rest_of_line(dst.add(lines), src.add(lines), len - lines);
            }
        }
    } else {
        // SAFETY: by contract.
        unsafe { copy_any(dst, src, len) }
    }
}

/// # Safety
/// As [`super::copy`].
#[inline(never)]
unsafe fn copy_any(mut dst: *mut u8, mut src: *const u8, len: usize) {
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
            sixteen(dst, src);
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

/// `len`, a multiple of 8 and less than 64.
///
/// # Safety
/// `len` bytes are the caller's on both sides, and `dst` is a multiple of 16.
#[inline(always)]
unsafe fn rest_of_line(mut dst: *mut u8, mut src: *const u8, len: usize) {
    // SAFETY: the steps move `len` bytes together, and no step begins at a destination that is not a multiple of its size.
    unsafe {
        if len & 32 != 0 {
            sixteen(dst, src);
            sixteen(dst.add(16), src.add(16));
            (dst, src) = (dst.add(32), src.add(32));
        }
        if len & 16 != 0 {
            sixteen(dst, src);
            (dst, src) = (dst.add(16), src.add(16));
        }
        if len & 8 != 0 {
            one(dst, src, 8);
        }
    }
}

/// # Safety
/// 16 bytes are the caller's on both sides.
#[inline(always)]
unsafe fn sixteen(dst: *mut u8, src: *const u8) {
    // SAFETY: the assembly reads and writes 16 bytes at the addresses given and touches no stack or flags.
    unsafe {
        asm!(
            "movups {value}, [{src}]",
            "movups [{dst}], {value}",
            dst = in(reg) dst,
            src = in(reg) src,
            value = out(xmm_reg) _,
            options(nostack, preserves_flags),
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
