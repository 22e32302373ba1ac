//! Checks of what a peer says about itself, one by one.

use crate::bell::CELL_LEN;
use crate::credit::{WINDOW_MAX, WINDOW_MIN};
use crate::handshake::limits::INLINE_MIN;
use crate::handshake::{HandshakeError, Welcome};
use crate::ring;
use crate::shelf;
use verbs::RemoteRegion;

pub(super) fn in_range(
    what: &'static str,
    value: u64,
    least: u64,
    most: u64,
    range: &'static str,
) -> Result<(), HandshakeError> {
    if (least..=most).contains(&value) {
        Ok(())
    } else {
        Err(HandshakeError::Range { what, value, range })
    }
}

pub(super) fn check_window(window: u32) -> Result<(), HandshakeError> {
    let (least, most) = (u64::from(WINDOW_MIN), u64::from(WINDOW_MAX));
    in_range("window", u64::from(window), least, most, "16 to 4096")
}

pub(super) fn check_inline(limit: u32, most: u32) -> Result<(), HandshakeError> {
    let (least, most) = (u64::from(INLINE_MIN), u64::from(most));
    let range = "512 to 65536, and not more than was asked for";
    in_range("inline limit", u64::from(limit), least, most, range)
}

/// Checks a ring that a peer offers for messages under this inline limit.
pub(super) fn check_ring(
    ring: Option<RemoteRegion>,
    inline_limit: u32,
) -> Result<RemoteRegion, HandshakeError> {
    let ring = ring.ok_or(HandshakeError::Ring(0))?;
    let least = ring::size_min(ring::longest_framed(inline_limit));
    let possible = (least..=ring::RING_MAX).contains(&ring.len)
        && ring.len.is_multiple_of(ring::GRANULE)
        && ring.addr.checked_add(ring.len).is_some();
    if possible {
        Ok(ring)
    } else {
        Err(HandshakeError::Ring(ring.len))
    }
}

/// Checks the cell that a peer offers beside messages that have to be looked for.
pub(super) fn check_cell(cell: Option<RemoteRegion>) -> Result<RemoteRegion, HandshakeError> {
    let cell = cell.ok_or(HandshakeError::Cell(0))?;
    let possible = cell.len == CELL_LEN
        && cell.addr.is_multiple_of(8)
        && cell.addr.checked_add(cell.len).is_some();
    match possible {
        true => Ok(cell),
        false => Err(HandshakeError::Cell(cell.len)),
    }
}

/// Checks the shelf in a welcome whose other numbers have been checked.
pub(super) fn check_shelf(welcome: &Welcome) -> Result<RemoteRegion, HandshakeError> {
    let shelf = welcome.shelf.ok_or(HandshakeError::Shelf(0))?;
    let len = shelf::size(welcome.slots, welcome.inline_limit);
    if shelf.len == len && shelf.addr.checked_add(len).is_some() {
        Ok(shelf)
    } else {
        Err(HandshakeError::Shelf(shelf.len))
    }
}

/// How many answers a reply ring has room for at once.
pub(super) fn ring_slots(ring: &RemoteRegion, inline_limit: u32) -> u32 {
    let answers = ring::answers(ring.len, ring::longest_framed(inline_limit));
    u32::try_from(answers).unwrap_or(u32::MAX)
}
