//! What two ends agree upon, from what each can do.

mod checks;
#[cfg(test)]
mod tests;

use super::limits::{INLINE_MAX, INLINE_MIN, Limits};
use super::{HandshakeError, Hello, PUSHED_INTO_RING, ReplyPath, RequestPath, Welcome};
use crate::credit::Credits;
use checks::{
    check_cell, check_inline, check_ring, check_shelf, check_window, in_range, ring_slots,
};
use verbs::{Endpoint, RemoteRegion};

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
