//! From a payload to a message: what goes inline, what is leased, what has to be copied. Most that is short takes a quicker way: see `frame.rs`.
//!
//! * Plain bytes up to the inline limit are copied behind the header, into the same buffer: one
//!   segment for the device.
//! * Segments that fit into the inline limit together are gathered by the device, behind the
//!   header.
//! * Otherwise small segments ([`INLINE_PIECE`]) still travel inline, as long as there is room, and
//!   the large ones stay where they are: each gets a key of its own, and the peer READs it.
//!
//! Copied, and counted, are plain bytes above the inline limit; segments that cannot get a key
//! (regions of their own); and inline segments when there are more of them than the device gathers.

use crate::destination::CHUNK_MAX;
use crate::lease::Lease;
use crate::payload::Payload;
use crate::posted::Body;
use crate::wire::{HEADER_LEN, Header, PIECE_LEN, Piece, PieceList};
use mempool::{AllocError, BudgetKind, Buf, Kind, Pool, Segment, SgList};
use verbs::Pd;

/// Longest segment in bytes that travels inline beside others that do not.
const INLINE_PIECE: usize = 1024;

/// A payload that has been taken from the caller.
#[derive(Debug)]
pub(crate) enum Outgoing {
    /// Copied already: a buffer with room for the header in front.
    Copied(Buf),
    /// Segments as the caller gave them.
    Segments(Body),
}

impl Outgoing {
    /// Takes a payload in. On failure its segments come back.
    pub fn take(
        payload: impl Payload,
        pool: &Pool,
        inline_limit: u32,
        copies: &mut Copies,
    ) -> Result<Outgoing, AllocError> {
        let Some(bytes) = payload.as_bytes() else {
            return Ok(Outgoing::Segments(Body::from_list(payload.into_segments())));
        };
        if bytes.len() <= inline_limit as usize {
            let mut buf = header_buf(pool, bytes.len())?;
            buf[HEADER_LEN..].copy_from_slice(bytes);
            Ok(Outgoing::Copied(buf))
        } else {
            copies.count(bytes.len());
            let mut list = SgList::new();
            for chunk in bytes.chunks(CHUNK_MAX) {
                let pushed = list.push(pool.alloc_from_slice(chunk)?);
                if pushed.is_err() {
                    // Longer than any message.
                    return Err(AllocError::TooLarge { asked: bytes.len() });
                }
            }
            Ok(Outgoing::Segments(Body::from_list(list)))
        }
    }

    /// The same for a connection with this inline limit, which may not be the one that it was taken in for.
    pub fn under(self, inline_limit: u32) -> Outgoing {
        match self {
            Outgoing::Copied(mut buf) if buf.len() - HEADER_LEN > inline_limit as usize => {
                buf.advance(HEADER_LEN);
                Outgoing::Segments(Body::One(buf.into()))
            }
            fits => fits,
        }
    }

    /// Length of the payload in bytes.
    pub fn len(&self) -> u64 {
        match self {
            Outgoing::Copied(buf) => (buf.len() - HEADER_LEN) as u64,
            Outgoing::Segments(body) => body.len() as u64,
        }
    }

    /// The segments, to give them back.
    pub fn into_list(self) -> Option<SgList> {
        match self {
            Outgoing::Copied(_) => None,
            Outgoing::Segments(body) => Some(body.into_list()),
        }
    }
}

/// A buffer for a header and `extra` bytes behind it, from the control budget.
pub(crate) fn header_buf(pool: &Pool, extra: usize) -> Result<Buf, AllocError> {
    pool.alloc_in(BudgetKind::Control, Kind::Private, HEADER_LEN + extra)
}

/// Counts copies that had to be made.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Copies {
    pub copies: u64,
    pub bytes: u64,
}

impl Copies {
    fn count(&mut self, bytes: usize) {
        self.copies += 1;
        self.bytes += bytes as u64;
    }
}

/// Where messages are made.
pub(crate) struct Workshop<'a> {
    pub pool: &'a Pool,
    pub pd: &'a Pd,
    pub inline_limit: u32,
    /// Segments the device gathers, that of the header included.
    pub max_sge: u32,
    pub copies: &'a mut Copies,
}

/// A message but for the fixed header.
#[derive(Debug)]
pub(crate) struct Ready {
    /// Room for the header, the pieces, copied bytes.
    pub header: Buf,
    /// What the device gathers behind it.
    pub body: Body,
    /// What stays here.
    pub held: Held,
    pub inline_len: u32,
    pub body_len: u64,
    pub pieces: u16,
}

impl Ready {
    /// Puts what this message is made of into a header.
    pub fn describe(&self, header: &mut Header) {
        header.inline_len = self.inline_len;
        header.body_len = self.body_len;
        header.pieces = self.pieces;
    }

    /// The segments of a message that is not sent after all.
    pub fn restore(self) -> SgList {
        self.held.restore(self.body)
    }
}

/// What becomes of a payload's segments while its message is on its way.
#[derive(Debug, Default)]
pub(crate) enum Held {
    /// All segments are in the message.
    #[default]
    Nothing,
    /// One entry for each segment.
    Parts(Vec<Part>),
}

#[derive(Debug)]
pub(crate) enum Part {
    /// In the message.
    Sent,
    /// Not needed: it was copied, or has no bytes.
    Kept(Segment),
    /// The peer may READ it.
    Leased(Lease),
    /// The peer may READ a copy.
    Copy(Segment, Lease),
}

impl Held {
    pub fn has_leases(&self) -> bool {
        match self {
            Held::Nothing => false,
            Held::Parts(parts) => parts
                .iter()
                .any(|part| matches!(part, Part::Leased(_) | Part::Copy(..))),
        }
    }

    /// Whether nothing of the payload is held here.
    #[inline]
    pub fn is_nothing(&self) -> bool {
        matches!(self, Held::Nothing)
    }

    /// Ends the leases and puts the payload together again, with what came back from the device.
    pub fn restore(self, sent: Body) -> SgList {
        let Held::Parts(parts) = self else {
            return sent.into_list();
        };
        let mut sent = sent.into_list().into_segments();
        let mut list = SgList::new();
        for part in parts {
            let segment = match part {
                Part::Sent => sent.next(),
                Part::Kept(segment) => Some(segment),
                Part::Leased(lease) => lease.end(),
                Part::Copy(segment, lease) => {
                    drop(lease);
                    Some(segment)
                }
            };
            if let Some(segment) = segment {
                // Never more than there were.
                let _ = list.push(segment);
            }
        }
        list
    }
}

/// Why a message could not be made. The payload comes back.
#[derive(Debug)]
pub(crate) enum NotReady {
    Memory(AllocError, Outgoing),
    Register(verbs::Error, Outgoing),
}

impl Workshop<'_> {
    /// Makes a message of a payload.
    pub fn prepare(&mut self, payload: Outgoing) -> Result<Ready, NotReady> {
        let body = match payload {
            Outgoing::Copied(header) => {
                let len = header.len() - HEADER_LEN;
                return Ok(Ready {
                    header,
                    body: Body::Empty,
                    held: Held::Nothing,
                    inline_len: len as u32,
                    body_len: len as u64,
                    pieces: 0,
                });
            }
            Outgoing::Segments(body) => body,
        };
        let len = body.len();
        if len > self.inline_limit as usize {
            return self.large(body);
        }
        if body.gathered() + 1 > self.max_sge as usize {
            return self.flattened(body);
        }
        match header_buf(self.pool, 0) {
            Ok(header) => Ok(Ready {
                header,
                body,
                held: Held::Nothing,
                inline_len: len as u32,
                body_len: len as u64,
                pieces: 0,
            }),
            Err(error) => Err(NotReady::Memory(error, Outgoing::Segments(body))),
        }
    }

    /// More segments than the device gathers: the few bytes are copied behind the header.
    fn flattened(&mut self, body: Body) -> Result<Ready, NotReady> {
        let len = body.len();
        let mut header = match header_buf(self.pool, len) {
            Ok(header) => header,
            Err(error) => return Err(NotReady::Memory(error, Outgoing::Segments(body))),
        };
        self.copies.count(len);
        let mut at = HEADER_LEN;
        let mut parts = Vec::new();
        for segment in body.into_list().into_segments() {
            let bytes = segment.as_slice();
            header[at..at + bytes.len()].copy_from_slice(bytes);
            at += bytes.len();
            parts.push(Part::Kept(segment));
        }
        Ok(Ready {
            header,
            body: Body::Empty,
            held: Held::Parts(parts),
            inline_len: len as u32,
            body_len: len as u64,
            pieces: 0,
        })
    }

    /// Larger than the inline limit: small segments inline, large ones leased.
    fn large(&mut self, body: Body) -> Result<Ready, NotReady> {
        let body_len = body.len() as u64;
        let mut plan = Plan::default();
        let mut rest = body.into_list().into_segments();
        while let Some(segment) = rest.next() {
            if let Err((failure, segment)) = self.place(&mut plan, segment) {
                let mut list = Held::Parts(plan.parts).restore(Body::from_list(plan.inline));
                for segment in std::iter::once(segment).chain(rest) {
                    let _ = list.push(segment);
                }
                return Err(failure.with(list));
            }
        }
        let copy_inline = plan.inline.segment_count() + 1 > self.max_sge as usize;
        let pieces = plan.pieces.as_slice().len();
        let extra = pieces * PIECE_LEN + if copy_inline { plan.inline_len } else { 0 };
        let mut header = match header_buf(self.pool, extra) {
            Ok(header) => header,
            Err(error) => {
                let list = Held::Parts(plan.parts).restore(Body::from_list(plan.inline));
                return Err(Failure::Memory(error).with(list));
            }
        };
        plan.pieces.encode(&mut header[HEADER_LEN..]);
        let mut inline = Body::from_list(plan.inline);
        if copy_inline {
            self.copies.count(plan.inline_len);
            let mut at = HEADER_LEN + pieces * PIECE_LEN;
            let taken = std::mem::take(&mut inline);
            let mut segments = taken.into_list().into_segments();
            for part in &mut plan.parts {
                if let Part::Sent = part
                    && let Some(segment) = segments.next()
                {
                    let bytes = segment.as_slice();
                    header[at..at + bytes.len()].copy_from_slice(bytes);
                    at += bytes.len();
                    *part = Part::Kept(segment);
                }
            }
        }
        Ok(Ready {
            header,
            body: inline,
            held: Held::Parts(plan.parts),
            inline_len: plan.inline_len as u32,
            body_len,
            pieces: pieces as u16,
        })
    }

    /// Decides about one segment of a large body.
    fn place(&mut self, plan: &mut Plan, segment: Segment) -> Result<(), (Failure, Segment)> {
        let len = segment.as_slice().len();
        if len == 0 {
            plan.parts.push(Part::Kept(segment));
            return Ok(());
        }
        if len <= INLINE_PIECE && plan.inline_len + len <= self.inline_limit as usize {
            let piece = Piece::Inline { len: len as u32 };
            if plan.pieces.push(piece) {
                plan.inline_len += len;
                if let Err(full) = plan.inline.push(segment) {
                    // As many segments as a list holds came in, so this cannot be.
                    return Err((Failure::Full, full.0));
                }
                plan.parts.push(Part::Sent);
                return Ok(());
            }
        }
        let part = match Lease::new(self.pd, segment) {
            Ok(lease) => Part::Leased(lease),
            Err((segment, Some(error))) => return Err((Failure::Register(error), segment)),
            // Cannot be leased as it is.
            Err((segment, None)) => {
                let copy = match self.pool.alloc_from_slice(segment.as_slice()) {
                    Ok(copy) => copy,
                    Err(error) => return Err((Failure::Memory(error), segment)),
                };
                self.copies.count(len);
                match Lease::new(self.pd, copy.into()) {
                    Ok(lease) => Part::Copy(segment, lease),
                    Err((_, Some(error))) => return Err((Failure::Register(error), segment)),
                    Err((_, None)) => return Err((Failure::Full, segment)),
                }
            }
        };
        let (Part::Leased(lease) | Part::Copy(_, lease)) = &part else {
            return Ok(());
        };
        let remote = lease.remote();
        let pushed = plan.pieces.push(Piece::Remote {
            addr: remote.addr,
            len: remote.len,
            key: remote.rkey.0,
        });
        debug_assert!(pushed, "as many pieces as a list has segments");
        plan.parts.push(part);
        Ok(())
    }
}

#[derive(Default)]
struct Plan {
    pieces: PieceList,
    inline: SgList,
    inline_len: usize,
    parts: Vec<Part>,
}

enum Failure {
    Memory(AllocError),
    Register(verbs::Error),
    /// More segments than a list holds.
    Full,
}

impl Failure {
    fn with(self, list: SgList) -> NotReady {
        let payload = Outgoing::Segments(Body::from_list(list));
        match self {
            Failure::Memory(error) => NotReady::Memory(error, payload),
            Failure::Register(error) => NotReady::Register(error, payload),
            Failure::Full => NotReady::Memory(AllocError::NotReady, payload),
        }
    }
}

#[cfg(test)]
mod tests;
