//! How a header becomes bytes, and bytes a header.

use super::error::{DecodeError, EncodeError};

/// An encoding of headers: [`Postcard`](super::Postcard), [`Plain`](super::Plain), or your own.
///
/// What is decoded comes from a peer: an implementation answers with an error whatever the bytes are, takes no more memory than a small multiple of
/// their number, and never panics.
pub trait Encoding: 'static {
    /// What is encoded.
    type Value;
    /// What has been decoded, as far as that is more than the bytes themselves.
    type Held;
    /// Tells this encoding from others; below 128 are those of this crate.
    const CODEC: u8;

    /// Appends the value's bytes.
    ///
    /// # Errors
    /// [`EncodeError`] if the value has no encoding.
    fn encode(value: &Self::Value, out: &mut Vec<u8>) -> Result<(), EncodeError>;

    /// Looks at all bytes of a header, once.
    ///
    /// # Errors
    /// [`DecodeError`] if they are no value, or more than one.
    fn decode(bytes: &[u8]) -> Result<Self::Held, DecodeError>;

    /// The value: `held` is what [`decode`](Self::decode) made of just these bytes.
    fn get<'a>(held: &'a Self::Held, bytes: &'a [u8]) -> &'a Self::Value;
}
