//! What is not posted, and how it comes back.

use crate::errno;
use crate::qp::Limits;
use crate::ring::Ring;
use crate::sge::Size;
use crate::template::Ready;
use crate::wr::{Kind, Op};
use crate::{Destination, PostError, PostErrorKind, SgeList};

/// The device did not take the newest value, or took it in spite of what it says.
///
/// # Safety
/// As of [`Ready::names_refused`].
#[cold]
#[inline(never)]
pub(crate) unsafe fn failed<T, O, R>(
    ring: &mut Ring<T, O>,
    ret: i32,
    ready: Ready<R>,
) -> Option<Box<PostError<T>>> {
    // SAFETY: the caller's contract.
    if !unsafe { ready.names_refused() } {
        return None;
    }
    let errno = errno::number(ret);
    refuse(PostErrorKind::Device { errno }, ring.unfill()?)
}

/// What was refused comes back. By reference, and all of it made far away, so that what is usual needs no place in memory.
#[cold]
#[inline(never)]
pub(crate) fn refuse<T>(kind: PostErrorKind, value: T) -> Option<Box<PostError<T>>> {
    Some(Box::new(PostError::new(kind, value)))
}

#[cold]
#[inline(never)]
pub(crate) fn refuse_unconnected<T>(value: T) -> Option<Box<PostError<T>>> {
    refuse(PostErrorKind::NotConnected, value)
}

#[cold]
#[inline(never)]
pub(crate) fn refuse_full<T, O>(ring: &Ring<T, O>, value: T) -> Option<Box<PostError<T>>> {
    refuse(full(ring), value)
}

#[cold]
#[inline(never)]
pub(crate) fn refuse_long<T>(
    limits: &Limits,
    len: u64,
    remote: u64,
    inline: bool,
    value: T,
) -> Option<Box<PostError<T>>> {
    refuse(too_long(limits, len, remote, inline), value)
}

/// Why there is no vacant slot.
#[cold]
pub(crate) fn full<T, O>(ring: &Ring<T, O>) -> PostErrorKind {
    PostErrorKind::QueueFull {
        depth: ring.depth(),
        untaken: ring.retired_untaken(),
    }
}

/// Asked right after the list was made, as [`SgeList::size`].
#[inline(always)]
pub(crate) fn check_segments(limits: &Limits, size: Size, kind: Kind) -> Result<(), PostErrorKind> {
    let max = match kind {
        Kind::Outgoing | Kind::Datagram => limits.send_sge,
        Kind::Read => limits.read_sge,
        Kind::Atomic => return Ok(()),
    } as usize;
    let count = size.count;
    // No queue pair is built for less than one segment, nor for more than a list holds.
    match count > 1 && count > max {
        true => Err(PostErrorKind::TooManySegments { count, max }),
        false => Ok(()),
    }
}

/// Inline data is copied by this process, from the addresses that the device is told.
#[inline(always)]
pub(crate) fn check_view(list: &SgeList, op: &Op) -> Result<(), PostErrorKind> {
    match list.is_viewless() && op.is_inline() {
        true => Err(PostErrorKind::InlineWithoutView),
        false => Ok(()),
    }
}

/// What the device would refuse, or worse, would not.
#[inline(always)]
pub(crate) fn check(limits: &Limits, size: Size, op: &Op, kind: Kind) -> Result<(), PostErrorKind> {
    if kind == Kind::Atomic {
        return check_atomic(limits, size, op);
    }
    match exceeds(limits, size.len, op) {
        true => Err(too_long(limits, size.len, op.remote_len(), op.is_inline())),
        false => Ok(()),
    }
}

/// Whether it is too long, for anything.
#[inline(always)]
pub(crate) fn exceeds(limits: &Limits, len: u64, op: &Op) -> bool {
    len > op.remote_len()
        || len > limits.message.into()
        || (op.is_inline() && len > limits.inline.into())
}

/// For what.
pub(crate) fn too_long(limits: &Limits, len: u64, remote: u64, inline: bool) -> PostErrorKind {
    let message = limits.message.into();
    if len > remote {
        PostErrorKind::RemoteTooSmall { len, remote }
    } else if len > message || !inline {
        PostErrorKind::TooLong { len, max: message }
    } else {
        let max = limits.inline.into();
        PostErrorKind::InlineTooLong { len, max }
    }
}

/// A datagram is one packet.
pub(crate) fn check_mtu(size: Size, to: &Destination) -> Result<(), PostErrorKind> {
    let (len, mtu) = (size.len, to.handle().mtu().bytes());
    match len > mtu.into() {
        true => Err(PostErrorKind::LongerThanMtu { len, mtu }),
        false => Ok(()),
    }
}

/// A word here, and an aligned one there.
pub(crate) fn check_atomic(limits: &Limits, size: Size, op: &Op) -> Result<(), PostErrorKind> {
    if !limits.atomics {
        return Err(PostErrorKind::NoAtomics);
    }
    let Size { count, len } = size;
    if (count, len) != (1, Op::WORD) {
        return Err(PostErrorKind::NotAWord { count, len });
    }
    match op.remote {
        Some(remote) if remote.len < Op::WORD => Err(PostErrorKind::RemoteTooSmall {
            len: Op::WORD,
            remote: remote.len,
        }),
        Some(remote) if !remote.addr.is_multiple_of(Op::WORD) => {
            Err(PostErrorKind::RemoteMisaligned { addr: remote.addr })
        }
        _ => Ok(()),
    }
}
