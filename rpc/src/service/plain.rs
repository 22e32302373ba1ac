//! Headers that are read where they lie.

use super::encoding::Encoding;
use super::error::{DecodeError, EncodeError};
use std::marker::PhantomData;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// A `T` as its bytes: nothing is decoded but the length looked at, and the header is read where it arrived.
///
/// `T` is a structure for which all bytes are valid and whose fields have no alignment: integers are those of `zerocopy::byteorder`, which have the
/// same bytes on every machine.
#[derive(Debug)]
pub struct Plain<T>(PhantomData<fn() -> T>);

impl<T> Encoding for Plain<T>
where
    T: FromBytes + IntoBytes + KnownLayout + Immutable + Unaligned + 'static,
{
    type Value = T;
    type Held = ();
    const CODEC: u8 = 2;

    #[inline]
    fn encode(value: &T, out: &mut Vec<u8>) -> Result<(), EncodeError> {
        out.extend_from_slice(value.as_bytes());
        Ok(())
    }

    #[inline]
    fn decode(bytes: &[u8]) -> Result<(), DecodeError> {
        if bytes.len() == size_of::<T>() {
            Ok(())
        } else {
            Err(DecodeError::Size {
                len: bytes.len(),
                expected: size_of::<T>(),
            })
        }
    }

    #[inline]
    fn get<'a>((): &'a (), bytes: &'a [u8]) -> &'a T {
        T::ref_from_bytes(bytes).expect("`decode` has seen the length, and there is no alignment")
    }
}
