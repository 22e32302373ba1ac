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

/// Says that the line at `at` will be read soon. Only a hint: any address will do, also one that a peer made up.
#[inline]
pub(crate) fn will_read(at: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch accesses nothing.
    unsafe {
        use core::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(at.cast());
    }
    let _ = at;
}

/// Says that the line at `at` will be written soon, so that another processor gives it up meanwhile. Only a hint: any address will do.
#[inline]
pub(crate) fn will_write(at: *mut u8) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: a prefetch accesses nothing; processors without this one do nothing.
    unsafe {
        core::arch::asm!("prefetchw byte ptr [{}]", in(reg) at, options(nostack, preserves_flags, readonly));
    }
    let _ = at;
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
mod vector;

#[cfg(any(test, not(all(target_arch = "x86_64", not(verbatim_asan), not(miri)))))]
mod words;

#[cfg(test)]
mod tests;
