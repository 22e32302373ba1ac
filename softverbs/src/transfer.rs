//! Moving bytes between lists of memory pieces, here and in a peer.

use crate::copy::{self, Rng};
use crate::os::procvm;
use std::io;

/// Scatter/gather elements of one work request at most.
pub(crate) const MAX_SGE: usize = 16;

/// Bytes at an address of this process.
#[derive(Clone, Copy)]
pub(crate) struct Piece {
    pub ptr: *mut u8,
    pub len: usize,
}

/// Bytes of a peer.
#[derive(Clone, Copy)]
pub(crate) enum Target {
    /// Mapped here (or ours): reached by plain stores.
    Mapped(*mut u8),
    /// At this address of the peer's: reached by process_vm.
    Process(u64),
}

impl Target {
    fn advance(self, by: usize) -> Target {
        match self {
            // SAFETY: callers stay within the piece that was checked.
            Target::Mapped(ptr) => Target::Mapped(unsafe { ptr.add(by) }),
            Target::Process(addr) => Target::Process(addr.wrapping_add(by as u64)),
        }
    }
}

/// A list of at most [`MAX_SGE`] things on the stack.
pub(crate) struct List<T: Copy> {
    items: [core::mem::MaybeUninit<T>; MAX_SGE],
    len: usize,
}

impl<T: Copy> List<T> {
    #[inline]
    pub fn new() -> List<T> {
        List {
            items: [const { core::mem::MaybeUninit::uninit() }; MAX_SGE],
            len: 0,
        }
    }

    /// Adds an item; the caller has checked that there are no more than [`MAX_SGE`].
    #[inline]
    pub fn push(&mut self, item: T) {
        self.items[self.len].write(item);
        self.len += 1;
    }

    #[inline]
    pub fn as_slice(&self) -> &[T] {
        // SAFETY: the first `len` items were written.
        unsafe { core::slice::from_raw_parts(self.items.as_ptr().cast(), self.len) }
    }
}

impl List<Piece> {
    /// Keeps the first `len` bytes of its pieces, which is more than none.
    #[inline(never)]
    pub fn cut(&mut self, mut len: usize) {
        for index in 0..self.len {
            // SAFETY: the first `self.len` items were written.
            let piece = unsafe { self.items[index].assume_init_mut() };
            if piece.len >= len {
                piece.len = len;
                self.len = index + 1;
                return;
            }
            len -= piece.len;
        }
    }
}

/// How the bytes move.
pub(crate) enum Mover<'a> {
    /// At once.
    Now,
    /// In random slices with pauses between: the asynchronous mode.
    Slices(&'a mut Rng),
}

impl Mover<'_> {
    /// # Safety
    ///
    /// Both ranges are mapped, the destination writable, and stay so during the call.
    #[inline]
    pub unsafe fn copy(&mut self, dst: *mut u8, src: *const u8, len: usize) {
        match self {
            // SAFETY: by contract.
            Mover::Now => unsafe { copy::copy(dst, src, len) },
            // SAFETY: by contract.
            Mover::Slices(rng) => unsafe {
                copy::copy_sliced(dst, src, len, rng, std::thread::yield_now)
            },
        }
    }
}

/// Which way.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    /// From the pieces to the targets.
    Out,
    /// From the targets to the pieces.
    In,
}

/// Copies between local pieces and targets, in order, as much as the pieces hold. The targets hold at least as much.
///
/// # Errors
///
/// Those of process_vm: `ESRCH`, the peer is gone; `EFAULT`, the memory is.
///
/// # Safety
///
/// All pieces and mapped targets are mapped (writable where written to) and stay so during the call.
pub(crate) unsafe fn transfer(
    way: Way,
    pid: u32,
    local: &[Piece],
    remote: &[(Target, usize)],
    mover: &mut Mover<'_>,
) -> io::Result<()> {
    let mut remote = remote.iter().copied();
    let (mut target, mut room) = (Target::Process(0), 0);
    let mut left: usize = local.iter().map(|p| p.len).sum();
    for piece in local {
        let (mut ptr, mut len) = (piece.ptr, piece.len);
        while len > 0 {
            while room == 0 {
                (target, room) = remote.next().ok_or(io::ErrorKind::InvalidInput)?;
            }
            let n = len.min(room);
            left -= n;
            // SAFETY: `n` bytes are within the local piece and the target.
            unsafe { one(way, pid, ptr, target, n, left == 0, mover)? };
            // SAFETY: still within the piece, or one past it.
            ptr = unsafe { ptr.add(n) };
            len -= n;
            room -= n;
            target = target.advance(n);
        }
    }
    Ok(())
}

#[inline]
unsafe fn one(
    way: Way,
    pid: u32,
    ptr: *mut u8,
    target: Target,
    n: usize,
    last: bool,
    mover: &mut Mover<'_>,
) -> io::Result<()> {
    match (target, way) {
        // SAFETY: by the caller's contract.
        (Target::Mapped(to), Way::Out) => unsafe { mover.copy(to, ptr, n) },
        // SAFETY: by the caller's contract.
        (Target::Mapped(from), Way::In) => unsafe { mover.copy(ptr, from, n) },
        (Target::Process(addr), way) => {
            let step = match mover {
                Mover::Now => n,
                Mover::Slices(rng) => (rng.below(65536) as usize + 8) & !7,
            };
            let mut done = 0;
            while done < n {
                let len = step.min(n - done);
                // SAFETY: within the piece.
                let here = unsafe { ptr.add(done) };
                let there = addr.wrapping_add(done as u64);
                // SAFETY: `here` is mapped by the caller's contract; the kernel checks the other side.
                unsafe {
                    match way {
                        Way::Out if last && done + len == n => {
                            procvm::write_last_word_last(pid, here, there, len)?
                        }
                        Way::Out => procvm::write_to(
                            pid,
                            &[procvm::segment(here as u64, len)],
                            &[procvm::segment(there, len)],
                        )?,
                        Way::In => procvm::read_from(
                            pid,
                            &[procvm::segment(here as u64, len)],
                            &[procvm::segment(there, len)],
                        )?,
                    }
                }
                done += len;
                if matches!(mover, Mover::Slices(_)) {
                    std::thread::yield_now();
                }
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn cut(bytes: &mut [u8], cuts: &[usize]) -> Vec<Piece> {
        let mut at = 0;
        let mut pieces = Vec::new();
        for &c in cuts.iter().chain([&usize::MAX]) {
            let len = c.min(bytes.len() - at);
            pieces.push(Piece {
                ptr: bytes[at..].as_mut_ptr(),
                len,
            });
            at += len;
        }
        pieces
    }

    proptest! {
        /// However both sides are cut, mapped or by process_vm, sliced or not, the bytes arrive.
        #[test]
        fn any_cut_arrives(
            data in proptest::collection::vec(any::<u8>(), 0..3000),
            a in proptest::collection::vec(0usize..900, 0..5),
            b in proptest::collection::vec(0usize..900, 0..5),
            mapped: [bool; 6], seed: Option<u64>, out: bool,
        ) {
            let mut data = data;
            let expect = data.clone();
            let mut other = vec![0u8; data.len()];
            let (from, to) = if out { (&mut data, &mut other) } else { (&mut other, &mut data) };
            let local = cut(from, &a);
            let remote: Vec<_> = cut(to, &b).iter().zip(mapped)
                .map(|(p, m)| (if m { Target::Mapped(p.ptr) } else { Target::Process(p.ptr as u64) }, p.len)).collect();
            let mut rng = crate::copy::Rng::new(seed.unwrap_or(0));
            let mut mover = if seed.is_some() { Mover::Slices(&mut rng) } else { Mover::Now };
            let way = if out { Way::Out } else { Way::In };
            // SAFETY: all pieces lie in live vectors.
            unsafe { transfer(way, std::process::id(), &local, &remote, &mut mover) }.unwrap();
            prop_assert_eq!(&other, &expect);
        }
    }
}
