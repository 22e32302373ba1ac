//! What two ends agree upon, from what each can do.

use super::{HandshakeError, Hello, ReplyPath, RequestPath, Welcome};
use crate::credit::{Credits, WINDOW_MAX, WINDOW_MIN};
use crate::wire::RELEASE_BYTES_MAX;
use verbs::Endpoint;

/// Smallest inline limit in bytes: bitmaps of control messages must fit.
pub(crate) const INLINE_MIN: u32 = RELEASE_BYTES_MAX as u32;
/// Largest inline limit in bytes.
pub(crate) const INLINE_MAX: u32 = 64 << 10;
/// Most slots.
pub(crate) const SLOTS_MAX: u32 = RELEASE_BYTES_MAX as u32 * 8;
/// Largest body in bytes that a version of this crate takes.
pub(crate) const MESSAGE_MAX: u64 = 1 << 30;

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
}

impl Limits {
    /// The same, with each number brought into the range that the protocol allows.
    pub fn clamped(self) -> Limits {
        Limits {
            window: self.window.clamp(WINDOW_MIN, WINDOW_MAX),
            inline_limit: self.inline_limit.clamp(INLINE_MIN, INLINE_MAX),
            slots: self.slots.clamp(1, SLOTS_MAX),
            max_message: self.max_message.clamp(u64::from(INLINE_MAX), MESSAGE_MAX),
        }
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
    if hello.request_paths & RequestPath::Send.bit() == 0 {
        return Err(HandshakeError::NoPath("request"));
    }
    if hello.reply_paths & ReplyPath::Send.bit() == 0 {
        return Err(HandshakeError::NoPath("reply"));
    }
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
    let possible = Credits::slots(hello.window, limits.window);
    Ok(Terms {
        request_path: RequestPath::Send,
        reply_path: ReplyPath::Send,
        window: limits.window,
        peer_window: hello.window,
        inline_limit: hello.inline_limit.min(limits.inline_limit),
        slots: hello.slots.min(limits.slots).min(possible),
        max_message: hello.max_message.min(limits.max_message),
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
    let most = Credits::slots(hello.window, welcome.window).min(hello.slots);
    let range = "1 to what was asked for and the windows allow";
    in_range("slots", u64::from(welcome.slots), 1, u64::from(most), range)?;
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
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const LIMITS: Limits = Limits {
        window: 64,
        inline_limit: 4096,
        slots: 48,
        max_message: 1 << 20,
    };

    fn hello() -> Hello {
        Hello {
            request_paths: 1,
            reply_paths: 1,
            window: 64,
            inline_limit: 4096,
            slots: 1000,
            max_message: 1 << 30,
            features: 0,
            endpoint: vec![1; 40],
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
            features: 0,
            endpoint: vec![2; 40],
        }
    }

    #[test]
    fn both_ends_reach_the_same_terms() {
        let ours = accept(&hello(), &LIMITS).unwrap();
        assert_eq!((ours.slots, ours.max_message), (48, 1 << 20));
        let theirs = confirm(&welcome(&ours), &hello()).unwrap();
        assert_eq!(
            theirs,
            Terms {
                window: ours.peer_window,
                peer_window: ours.window,
                ..ours
            }
        );
    }

    #[test]
    fn absurd_hellos_are_refused() {
        type Bend = fn(&mut Hello);
        let bends: [(&str, Bend); 8] = [
            ("request path", |h| h.request_paths = 0xFE),
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
            |w| w.request_path = 1,
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
