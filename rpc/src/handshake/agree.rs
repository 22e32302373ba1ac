//! What two ends agree upon, from what each can do.

use super::{HandshakeError, Hello, PUSHED_INTO_RING, ReplyPath, RequestPath, Welcome};
use crate::bell::CELL_LEN;
use crate::credit::{Credits, WINDOW_MAX, WINDOW_MIN};
use crate::destination::CHUNK_MAX;
use crate::ring;
use crate::shelf;
use crate::wire::{MAX_PIECES, RELEASE_BYTES_MAX};
use verbs::{Endpoint, RemoteRegion};

/// Smallest inline limit in bytes: bitmaps of control messages must fit.
pub(crate) const INLINE_MIN: u32 = RELEASE_BYTES_MAX as u32;
/// Largest inline limit in bytes.
pub(crate) const INLINE_MAX: u32 = 64 << 10;
/// Most slots.
pub(crate) const SLOTS_MAX: u32 = RELEASE_BYTES_MAX as u32 * 8;
/// Largest body in bytes that a version of this crate takes: as many of the longest buffers as a message has pieces.
pub(crate) const MESSAGE_MAX: u64 = MAX_PIECES as u64 * CHUNK_MAX as u64;

/// What one end is willing to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Receive entries to post for a connection: [`WINDOW_MIN`] to [`WINDOW_MAX`].
    pub window: u32,
    /// Largest inline payload in bytes.
    pub inline_limit: u32,
    /// Most calls on their way at once.
    pub slots: u32,
    /// Largest body in bytes.
    pub max_message: u64,
    /// Size of the receive ring in bytes; 0 is as large as the window can fill.
    pub ring: u64,
    /// Most bytes of the receive ring where its size is not fixed.
    pub ring_most: u64,
    /// Whether the device has immediate data, and so rings can be used.
    pub immediate: bool,
    /// Whether the device has passed the test of its WRITEs, and so rings can be polled.
    pub polled: bool,
}

impl Limits {
    /// The same, with each number brought into the range that the protocol allows.
    pub fn clamped(self) -> Limits {
        Limits {
            window: self.window.clamp(WINDOW_MIN, WINDOW_MAX),
            inline_limit: self.inline_limit.clamp(INLINE_MIN, INLINE_MAX),
            slots: self.slots.clamp(1, SLOTS_MAX),
            max_message: self.max_message.clamp(u64::from(INLINE_MAX), MESSAGE_MAX),
            ring: self.ring,
            ring_most: self.ring_most,
            immediate: self.immediate,
            polled: self.polled,
        }
    }

    /// Bytes of the receive ring for a connection with this window and inline limit.
    pub fn ring_size(&self, window: u32, inline_limit: u32) -> u64 {
        let max = ring::longest_framed(inline_limit);
        let size = match self.ring {
            0 => {
                let least = ring::size_min(max);
                ring::size_for(window, max).min(self.ring_most.max(least))
            }
            bytes => ring::span(bytes.min(ring::RING_MAX)).max(ring::size_min(max)),
        };
        size.min(ring::RING_MAX)
    }
}

/// What a connection runs under.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Terms {
    /// How requests travel.
    pub request_path: RequestPath,
    /// How answers travel.
    pub reply_path: ReplyPath,
    /// Receive entries of this end.
    pub window: u32,
    /// Receive entries of the peer.
    pub peer_window: u32,
    /// Largest inline payload in either direction, in bytes.
    pub inline_limit: u32,
    /// Most calls on their way at once.
    pub slots: u32,
    /// Largest body in either direction, in bytes.
    pub max_message: u64,
    /// The peer's receive ring, if messages to it go there.
    pub peer_ring: Option<RemoteRegion>,
    /// Whether the server's messages go into a ring of the client.
    pub reply_ring: bool,
    /// Where the server leaves replies, as the client sees it.
    pub shelf: Option<RemoteRegion>,
    /// Whether the peer looks into its ring for messages to it.
    pub peer_polls: bool,
    /// The peer's cell, if this end has to look into its ring.
    pub peer_cell: Option<RemoteRegion>,
}

fn in_range(
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

fn check_window(window: u32) -> Result<(), HandshakeError> {
    let (least, most) = (u64::from(WINDOW_MIN), u64::from(WINDOW_MAX));
    in_range("window", u64::from(window), least, most, "16 to 4096")
}

fn check_inline(limit: u32, most: u32) -> Result<(), HandshakeError> {
    let (least, most) = (u64::from(INLINE_MIN), u64::from(most));
    let range = "512 to 65536, and not more than was asked for";
    in_range("inline limit", u64::from(limit), least, most, range)
}

/// Checks a ring that a peer offers for messages under this inline limit.
fn check_ring(
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
fn check_cell(cell: Option<RemoteRegion>) -> Result<RemoteRegion, HandshakeError> {
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
fn check_shelf(welcome: &Welcome) -> Result<RemoteRegion, HandshakeError> {
    let shelf = welcome.shelf.ok_or(HandshakeError::Shelf(0))?;
    let len = shelf::size(welcome.slots, welcome.inline_limit);
    if shelf.len == len && shelf.addr.checked_add(len).is_some() {
        Ok(shelf)
    } else {
        Err(HandshakeError::Shelf(shelf.len))
    }
}

/// How many answers a reply ring has room for at once.
fn ring_slots(ring: &RemoteRegion, inline_limit: u32) -> u32 {
    let answers = ring::answers(ring.len, ring::longest_framed(inline_limit));
    u32::try_from(answers).unwrap_or(u32::MAX)
}

/// The end point in a hello or welcome; both ends have to answer READs, or large bodies would wait for
/// ever.
///
/// # Errors
/// [`HandshakeError`] for bytes that are none, and for one that answers no READs.
pub fn endpoint(bytes: &[u8]) -> Result<Endpoint, HandshakeError> {
    let endpoint = Endpoint::from_bytes(bytes)?;
    let depth = u64::from(endpoint.rd_atomic());
    in_range("READ depth of the end point", depth, 1, 255, "at least 1")?;
    Ok(endpoint)
}

/// The server's part: terms for a client that said `hello`, under the server's `limits`.
///
/// Numbers larger than the server's are brought down; numbers that no client can mean are
/// refused.
///
/// # Errors
/// [`HandshakeError`] names what cannot be agreed upon.
pub fn accept(hello: &Hello, limits: &Limits) -> Result<Terms, HandshakeError> {
    let can = |ring: bool, polled: bool| match polled {
        true => limits.polled,
        false => !ring || limits.immediate,
    };
    let request_path = RequestPath::ALL
        .into_iter()
        .find(|path| {
            hello.request_paths & path.bit() != 0 && can(path.has_ring(), path.is_polled())
        })
        .ok_or(HandshakeError::NoPath("request"))?;
    let reply_path = ReplyPath::ALL
        .into_iter()
        .find(|path| hello.reply_paths & path.bit() != 0 && can(path.has_ring(), path.is_polled()))
        .ok_or(HandshakeError::NoPath("reply"))?;
    let limits = limits.clamped();
    check_window(hello.window)?;
    check_inline(hello.inline_limit, INLINE_MAX)?;
    in_range("slots", u64::from(hello.slots), 1, u64::MAX, "at least 1")?;
    let least = u64::from(INLINE_MIN);
    in_range(
        "largest message",
        hello.max_message,
        least,
        u64::MAX,
        "at least 512",
    )?;
    let inline_limit = hello.inline_limit.min(limits.inline_limit);
    let mut possible = Credits::slots(hello.window, limits.window);
    let mut peer_ring = None;
    // Beside a shelf there are pushed messages as well; they go the best way there is.
    let beside = reply_path.has_shelf() && limits.immediate && hello.ring.is_some();
    let reply_ring = reply_path.has_ring() || beside;
    if reply_ring {
        let ring = check_ring(hello.ring, inline_limit)?;
        possible = possible.min(ring_slots(&ring, inline_limit));
        peer_ring = Some(ring);
    }
    let peer_cell = match request_path.is_polled() {
        true => Some(check_cell(hello.cell)?),
        false => None,
    };
    Ok(Terms {
        request_path,
        reply_path,
        window: limits.window,
        peer_window: hello.window,
        inline_limit,
        slots: hello.slots.min(limits.slots).min(possible),
        max_message: hello.max_message.min(limits.max_message),
        peer_ring,
        reply_ring,
        shelf: None,
        peer_polls: reply_path.is_polled(),
        peer_cell,
    })
}

/// The client's part: the terms that a server's `welcome` means, checked against what the client
/// had said.
///
/// # Errors
/// [`HandshakeError`] names what the server cannot have meant.
pub fn confirm(welcome: &Welcome, hello: &Hello) -> Result<Terms, HandshakeError> {
    let request_path = RequestPath::from_u8(welcome.request_path)
        .filter(|path| hello.request_paths & path.bit() != 0)
        .ok_or(HandshakeError::NoPath("request"))?;
    let reply_path = ReplyPath::from_u8(welcome.reply_path)
        .filter(|path| hello.reply_paths & path.bit() != 0)
        .ok_or(HandshakeError::NoPath("reply"))?;
    check_window(welcome.window)?;
    check_inline(welcome.inline_limit, hello.inline_limit)?;
    let mut most = Credits::slots(hello.window, welcome.window).min(hello.slots);
    let beside = reply_path.has_shelf() && welcome.features & PUSHED_INTO_RING != 0;
    let reply_ring = reply_path.has_ring() || beside;
    if reply_ring {
        let ring = check_ring(hello.ring, welcome.inline_limit)?;
        most = most.min(ring_slots(&ring, welcome.inline_limit));
    }
    let peer_ring = match request_path.has_ring() {
        true => Some(check_ring(welcome.ring, welcome.inline_limit)?),
        false => None,
    };
    let range = "1 to what was asked for and the windows allow";
    in_range("slots", u64::from(welcome.slots), 1, u64::from(most), range)?;
    let shelf = match reply_path.has_shelf() {
        true => Some(check_shelf(welcome)?),
        false => None,
    };
    let peer_cell = match reply_path.is_polled() {
        true => Some(check_cell(welcome.cell)?),
        false => None,
    };
    let range = "512 to what was asked for";
    in_range(
        "largest message",
        welcome.max_message,
        u64::from(INLINE_MIN),
        hello.max_message,
        range,
    )?;
    Ok(Terms {
        request_path,
        reply_path,
        window: hello.window,
        peer_window: welcome.window,
        inline_limit: welcome.inline_limit,
        slots: welcome.slots,
        max_message: welcome.max_message,
        peer_ring,
        reply_ring,
        shelf,
        peer_polls: request_path.is_polled(),
        peer_cell,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::longest;
    use proptest::prelude::*;

    const LIMITS: Limits = Limits {
        window: 64,
        inline_limit: 4096,
        slots: 48,
        max_message: 1 << 20,
        ring: 0,
        ring_most: u64::MAX,
        immediate: true,
        polled: true,
    };

    fn ring(addr: u64) -> RemoteRegion {
        RemoteRegion {
            addr,
            len: LIMITS.ring_size(64, 4096),
            rkey: verbs::RKey(7),
        }
    }

    fn hello() -> Hello {
        Hello {
            request_paths: 3,
            reply_paths: 3,
            window: 64,
            inline_limit: 4096,
            slots: 1000,
            max_message: 1 << 30,
            features: 0,
            endpoint: vec![1; 40],
            ring: Some(ring(4096)),
            cell: Some(cell(640)),
        }
    }

    fn cell(addr: u64) -> RemoteRegion {
        RemoteRegion {
            len: CELL_LEN,
            ..ring(addr)
        }
    }

    fn welcome(terms: &Terms) -> Welcome {
        Welcome {
            request_path: terms.request_path as u8,
            reply_path: terms.reply_path as u8,
            window: terms.window,
            inline_limit: terms.inline_limit,
            slots: terms.slots,
            max_message: terms.max_message,
            features: match terms.reply_ring {
                true => PUSHED_INTO_RING,
                false => 0,
            },
            endpoint: vec![2; 40],
            ring: terms.request_path.has_ring().then(|| ring(8192)),
            shelf: terms.reply_path.has_shelf().then(|| RemoteRegion {
                len: shelf::size(terms.slots, terms.inline_limit),
                ..ring(1 << 20)
            }),
            cell: terms.reply_path.is_polled().then(|| cell(1 << 30)),
        }
    }

    #[test]
    fn both_ends_reach_the_same_terms() {
        let ours = accept(&hello(), &LIMITS).unwrap();
        assert_eq!((ours.slots, ours.max_message), (48, 1 << 20));
        assert_eq!(ours.request_path, RequestPath::WriteImm);
        assert_eq!(ours.reply_path, ReplyPath::WriteImm);
        assert_eq!(ours.peer_ring, Some(ring(4096)));
        let theirs = confirm(&welcome(&ours), &hello()).unwrap();
        assert_eq!(
            theirs,
            Terms {
                window: ours.peer_window,
                peer_window: ours.window,
                peer_ring: Some(ring(8192)),
                ..ours
            }
        );
    }

    #[test]
    fn paths_are_chosen_one_by_one() {
        for (offer, immediate) in [(1, true), (2, true), (3, true), (3, false), (0xF1, true)] {
            let limits = Limits {
                immediate,
                ..LIMITS
            };
            for other in [1, 2, 3] {
                let said = Hello {
                    request_paths: offer,
                    reply_paths: other,
                    ..hello()
                };
                let ring = |bits: u8| immediate && bits & 2 != 0;
                match accept(&said, &limits) {
                    Ok(terms) => {
                        assert_eq!(terms.request_path.has_ring(), ring(offer));
                        assert_eq!(terms.reply_path.has_ring(), ring(other));
                        assert_eq!(terms.peer_ring.is_some(), ring(other));
                        assert!(confirm(&welcome(&terms), &said).is_ok());
                    }
                    Err(error) => {
                        assert!(!immediate && other == 2, "{error}");
                        assert!(matches!(error, HandshakeError::NoPath("reply")));
                    }
                }
            }
        }
    }

    #[test]
    fn rings_are_checked_and_limit_the_slots() {
        type Bend = fn(&mut RemoteRegion);
        let bends: [Bend; 6] = [
            |r| r.len = 0,
            |r| r.len -= 1,
            |r| r.len = ring::size_min(longest(4096) as u64) - 64,
            |r| r.len = 1 << 40,
            |r| r.len = u64::MAX,
            |r| r.addr = u64::MAX - 4096,
        ];
        for bend in bends {
            let mut said = hello();
            bend(said.ring.as_mut().unwrap());
            assert!(matches!(
                accept(&said, &LIMITS),
                Err(HandshakeError::Ring(_))
            ));
            let mut answer = welcome(&accept(&hello(), &LIMITS).unwrap());
            bend(answer.ring.as_mut().unwrap());
            assert!(matches!(
                confirm(&answer, &hello()),
                Err(HandshakeError::Ring(_))
            ));
        }
        assert!(
            accept(
                &Hello {
                    ring: None,
                    ..hello()
                },
                &LIMITS
            )
            .is_err()
        );
        let mut small = hello();
        small.ring.as_mut().unwrap().len = ring::size_min(longest(4096) as u64);
        let terms = accept(&small, &LIMITS).unwrap();
        assert!((3..10).contains(&terms.slots), "{}", terms.slots);
        let mut more = welcome(&terms);
        assert!(confirm(&more, &small).is_ok());
        more.slots += 1;
        assert!(confirm(&more, &small).is_err());
        // Without a reply ring its size does not matter.
        small.reply_paths = 1;
        assert_eq!(accept(&small, &LIMITS).unwrap().slots, 48);
    }

    #[test]
    fn shelves_are_checked_and_what_is_pushed_beside_them_goes_the_best_way() {
        for path in [ReplyPath::Fetch, ReplyPath::Hybrid] {
            for (ring_offered, immediate) in [(true, true), (true, false), (false, true)] {
                let said = Hello {
                    request_paths: RequestPath::Send.bit(),
                    reply_paths: path.bit(),
                    ring: ring_offered.then(|| ring(4096)),
                    ..hello()
                };
                let limits = Limits {
                    immediate,
                    ..LIMITS
                };
                let terms = accept(&said, &limits).unwrap();
                assert_eq!(terms.reply_path, path);
                assert_eq!(terms.reply_ring, ring_offered && immediate);
                assert_eq!(terms.peer_ring.is_some(), terms.reply_ring);
                let good = welcome(&terms);
                let theirs = confirm(&good, &said).unwrap();
                assert_eq!(theirs.reply_ring, terms.reply_ring);
                assert_eq!(theirs.shelf, good.shelf);
                for (addr, len) in [(4096, 64), (u64::MAX - 64, good.shelf.unwrap().len)] {
                    let bad = Welcome {
                        shelf: Some(RemoteRegion { len, ..ring(addr) }),
                        ..good.clone()
                    };
                    let error = confirm(&bad, &said).unwrap_err();
                    assert!(matches!(error, HandshakeError::Shelf(_)), "{error}");
                }
                let none = Welcome {
                    shelf: None,
                    ..good.clone()
                };
                assert!(confirm(&none, &said).is_err());
                if !ring_offered {
                    let claimed = Welcome {
                        features: PUSHED_INTO_RING,
                        ..good
                    };
                    assert!(confirm(&claimed, &said).is_err(), "no ring was offered");
                }
            }
        }
    }

    #[test]
    fn rings_are_polled_where_that_was_tried_and_nothing_else_is_wanted() {
        let bit = RequestPath::WritePoll.bit();
        assert_eq!(bit, ReplyPath::WritePoll.bit());
        for (immediate, polled) in [(true, true), (false, true), (true, false), (false, false)] {
            let limits = Limits {
                immediate,
                polled,
                ..LIMITS
            };
            let said = |request_paths, reply_paths| Hello {
                request_paths,
                reply_paths,
                ..hello()
            };
            for (requests, replies) in [(bit, bit), (bit, 1), (1, bit), (bit, 1 << 3)] {
                let said = said(requests, replies);
                let agreed = accept(&said, &limits);
                let Ok(terms) = agreed else {
                    assert!(!polled);
                    continue;
                };
                assert!(polled);
                assert_eq!(terms.request_path.is_polled(), requests == bit);
                assert_eq!(terms.reply_path.is_polled(), replies == bit);
                assert_eq!(terms.peer_polls, replies == bit);
                assert_eq!(terms.peer_cell, (requests == bit).then(|| cell(640)));
                assert!(!terms.peer_polls || terms.peer_ring.is_some());
                let good = welcome(&terms);
                let theirs = confirm(&good, &said).unwrap();
                assert_eq!(theirs.peer_polls, requests == bit);
                assert_eq!(theirs.peer_cell, good.cell);
                for bad in [
                    None,
                    Some(ring(640)),
                    Some(cell(u64::MAX - 8)),
                    Some(cell(4)),
                ] {
                    let hello = Hello {
                        cell: bad,
                        ..said.clone()
                    };
                    assert_eq!(accept(&hello, &limits).is_err(), requests == bit);
                    let welcome = Welcome {
                        cell: bad,
                        ..good.clone()
                    };
                    assert_eq!(confirm(&welcome, &said).is_err(), replies == bit);
                }
            }
            // Beside others, it comes after WRITEs with immediate data, and before SENDs.
            let terms = accept(&said(7, 7), &limits).unwrap();
            let best = match (immediate, polled) {
                (true, _) => RequestPath::WriteImm,
                (false, true) => RequestPath::WritePoll,
                (false, false) => RequestPath::Send,
            };
            assert_eq!(terms.request_path, best);
            assert_eq!(terms.reply_path as u8, best as u8);
        }
    }

    #[test]
    fn absurd_hellos_are_refused() {
        type Bend = fn(&mut Hello);
        let bends: [(&str, Bend); 8] = [
            ("request path", |h| h.request_paths = 0xF8),
            ("reply path", |h| h.reply_paths = 0),
            ("window", |h| h.window = 0),
            ("window", |h| h.window = u32::MAX),
            ("inline limit", |h| h.inline_limit = 0),
            ("inline limit", |h| h.inline_limit = u32::MAX),
            ("slots", |h| h.slots = 0),
            ("largest message", |h| h.max_message = 0),
        ];
        for (what, bend) in bends {
            let mut bad = hello();
            bend(&mut bad);
            let error = accept(&bad, &LIMITS).unwrap_err();
            assert!(error.to_string().contains(what), "{what}: {error}");
        }
    }

    #[test]
    fn absurd_welcomes_are_refused() {
        let good = welcome(&accept(&hello(), &LIMITS).unwrap());
        type Bend = fn(&mut Welcome);
        let bends: [Bend; 8] = [
            |w| w.request_path = 7,
            |w| w.reply_path = 200,
            |w| w.window = 3,
            |w| w.inline_limit = 4097,
            |w| w.slots = 0,
            |w| w.slots = 61,
            |w| w.max_message = 0,
            |w| w.max_message = u64::MAX,
        ];
        for bend in bends {
            let mut bad = good.clone();
            bend(&mut bad);
            assert!(confirm(&bad, &hello()).is_err(), "{bad:?}");
        }
    }

    proptest! {
        /// Whatever a client says, terms stay within the server's limits and the client agrees.
        #[test]
        fn terms_stay_within_limits(
            request_paths: u8, reply_paths: u8, window: u32, small: bool, inline_limit: u32,
            slots: u32, max_message: u64,
        ) {
            let window = if small { window % 5000 } else { window };
            let inline_limit = if small { inline_limit % 70_000 } else { inline_limit };
            let said = Hello {
                request_paths, reply_paths, window, inline_limit, slots, max_message, ..hello()
            };
            if let Ok(terms) = accept(&said, &LIMITS) {
                prop_assert_eq!(terms.window, LIMITS.window);
                prop_assert!(terms.slots >= 1 && terms.slots <= LIMITS.slots);
                prop_assert!(terms.inline_limit <= LIMITS.inline_limit);
                prop_assert!(terms.max_message <= LIMITS.max_message);
                prop_assert!(terms.peer_window <= WINDOW_MAX);
                prop_assert!(confirm(&welcome(&terms), &said).is_ok());
            }
        }
    }
}
