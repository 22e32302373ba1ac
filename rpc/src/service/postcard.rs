//! Headers encoded by `postcard`: any type that `serde` knows.

use super::encoding::Encoding;
use super::error::{DecodeError, EncodeError};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::marker::PhantomData;

/// Encodes a `T` by `postcard`: compact, and free to have strings, lists and enums.
///
/// The bytes come from a peer. Lists of elements that take no bytes (`Vec<()>`) and types that contain themselves (`Box<Self>`) let few bytes
/// describe much: the one costs time without limit, the other stack. Do not use either in what a stranger may send.
#[derive(Debug)]
pub struct Postcard<T>(PhantomData<fn() -> T>);

impl<T: Serialize + DeserializeOwned + 'static> Encoding for Postcard<T> {
    type Value = T;
    type Held = T;
    const CODEC: u8 = 1;

    fn encode(value: &T, out: &mut Vec<u8>) -> Result<(), EncodeError> {
        postcard::to_extend(value, Extend(out)).map_err(|e| EncodeError(e.to_string()))?;
        Ok(())
    }

    fn decode(bytes: &[u8]) -> Result<T, DecodeError> {
        match postcard::take_from_bytes(bytes) {
            Ok((value, [])) => Ok(value),
            Ok((_, rest)) => Err(DecodeError::Left(rest.len())),
            Err(error) => Err(DecodeError::Value(error.to_string())),
        }
    }

    fn get<'a>(held: &'a T, _: &'a [u8]) -> &'a T {
        held
    }
}

/// Appends to a vector that stays the caller's.
struct Extend<'a>(&'a mut Vec<u8>);

impl std::iter::Extend<u8> for Extend<'_> {
    fn extend<I: IntoIterator<Item = u8>>(&mut self, bytes: I) {
        self.0.extend(bytes);
    }
}
