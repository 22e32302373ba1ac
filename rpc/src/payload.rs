//! What can be sent: plain bytes by copy, pool memory without.

use mempool::{Buf, SgList, SharedBuf};

/// Something that can be the payload of a request or reply.
///
/// Plain bytes (`&str`, `&[u8]`, `Vec<u8>`, ...) are copied once, into memory the device knows;
/// buffers of the pool ([`Buf`], [`SharedBuf`], [`SgList`]) move in, and unless they are short together (4 KiB) leave without a copy, each
/// segment from where it lies.
pub trait Payload: Sized {
    /// The bytes, for payloads that are copied; `None` for those that move.
    fn as_bytes(&self) -> Option<&[u8]>;

    /// The segments, for payloads that move. Only called when [`as_bytes`](Self::as_bytes) gave
    /// `None`.
    fn into_segments(self) -> SgList {
        SgList::default()
    }
}

macro_rules! copied {
    ($($type:ty),+) => {$(
        impl Payload for $type {
            fn as_bytes(&self) -> Option<&[u8]> {
                Some(self.as_ref())
            }
        }
    )+};
}

copied!(&str, String, &String, &[u8], Vec<u8>, &Vec<u8>);

impl<const N: usize> Payload for [u8; N] {
    fn as_bytes(&self) -> Option<&[u8]> {
        Some(self)
    }
}

impl<const N: usize> Payload for &[u8; N] {
    fn as_bytes(&self) -> Option<&[u8]> {
        Some(*self)
    }
}

/// No bytes at all.
impl Payload for () {
    fn as_bytes(&self) -> Option<&[u8]> {
        Some(&[])
    }
}

macro_rules! moved {
    ($($type:ty),+) => {$(
        impl Payload for $type {
            fn as_bytes(&self) -> Option<&[u8]> {
                None
            }

            fn into_segments(self) -> SgList {
                self.into()
            }
        }
    )+};
}

moved!(Buf, SharedBuf, SgList);
