use super::*;
use crate::bell::CELL_LEN;
use crate::credit::WINDOW_MAX;
use crate::wire::longest;
use crate::{ring, shelf};
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
