//! A receive ring whose peer writes what it likes, whenever it likes.

use crate::credit::{Class, Credits};
use crate::handshake::Limits;
use crate::ring::{self, span};
use crate::setup;
use crate::wire::{Header, Kind, PieceList, decode_release, longest};

/// The inline limit of the connection.
pub(super) const INLINE: u32 = 512;
/// Its window.
pub(super) const WINDOW: u32 = 32;
/// A step that writes: offset (u16), length (u8), and as many bytes.
pub(super) const WRITE: u8 = 0;
/// A step that completes a message: its length (u16).
pub(super) const COMPLETE: u8 = 1;

/// The size of its ring.
pub(super) fn size() -> u64 {
    let limits = Limits {
        ring: 1,
        ..setup::LIMITS
    };
    limits.ring_size(WINDOW, INLINE)
}

/// A script of what a peer does to the ring: steps of a kind ([`WRITE`], [`COMPLETE`]) and what belongs to it. True if all messages
/// that it completes are whole.
///
/// The steps of the receiving end are those of `link/inbox.rs`, and the checks on what was copied out those of the server.
pub fn ring_contents(mut bytes: &[u8]) -> bool {
    let max = longest(INLINE);
    let size = size();
    let mut memory = vec![0; size as usize + span(max as u64) as usize];
    let mut copy = vec![0; span(max as u64) as usize];
    let mut account = Credits::new(WINDOW, WINDOW, WINDOW)
        .writing(size, max as u64)
        .reading(size, max as u64);
    let mut whole = false;
    while let Some((&kind, rest)) = bytes.split_first() {
        let Some((&low, rest)) = rest.split_first_chunk::<2>() else {
            return false;
        };
        let number = u16::from_le_bytes(low);
        bytes = rest;
        if kind % 2 == WRITE {
            let Some((written, rest)) = written(rest) else {
                return false;
            };
            // The key ends where the ring does.
            let at = usize::from(number) % size as usize;
            let end = (at + written.len()).min(size as usize);
            memory[at..end].copy_from_slice(&written[..end - at]);
            bytes = rest;
            continue;
        }
        let Ok(offset) = account.find(number.into()) else {
            return false;
        };
        let (at, len) = (offset as usize, usize::from(number));
        assert!(
            at + span(len as u64) as usize <= size as usize,
            "within the ring"
        );
        let out = span(len as u64) as usize;
        copy[..out].copy_from_slice(&memory[at..at + out]);
        if !dealt_with(&copy[..len], &mut account) {
            return false;
        }
        whole = true;
    }
    whole
}

/// What a step writes, its length in front; and what is behind it.
pub(super) fn written(step: &[u8]) -> Option<(&[u8], &[u8])> {
    let (&len, rest) = step.split_first()?;
    Some(rest.split_at(rest.len().min(len.into())))
}

/// Takes a message, and answers it if it is a request; false if it is refused.
pub(super) fn dealt_with(message: &[u8], account: &mut Credits) -> bool {
    let Some(class) = take(message, account) else {
        return false;
    };
    account.reposted(class);
    if class == Class::Request && account.may_send(Class::Answer) {
        account.send(Class::Answer, 40);
    }
    assert!(account.available() <= WINDOW);
    true
}

/// What a server does with a message before it does anything else.
fn take(message: &[u8], account: &mut Credits) -> Option<Class> {
    let header = Header::decode(message).ok()?;
    let class = match header.kind {
        Kind::Request => Class::Request,
        Kind::Credit => Class::Credit,
        Kind::Release => Class::Control,
        _ => return None,
    };
    account.receive(class, header.credit).ok()?;
    match class {
        Class::Control => assert!(decode_release(&header, message).ok()?.count() <= 4096),
        _ if header.pieces > 0 => {
            let pieces = PieceList::decode(&header, message).ok()?;
            let total: u64 = pieces.as_slice().iter().map(|p| p.byte_len()).sum();
            assert_eq!(total, header.body_len);
        }
        _ => {}
    }
    Some(class)
}

#[allow(dead_code, reason = "the size is a u16 in scripts")]
const _: () = assert!(ring::size_min(longest(INLINE) as u64) <= u16::MAX as u64);
